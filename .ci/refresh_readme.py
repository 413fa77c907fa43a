"""Write the outputs in README.md and docs/questions.md anew.

A block behind ``<!-- output of: COMMAND -->`` becomes what that prints; behind ``<!-- parts "A" "B" of: COMMAND -->``
its parts that begin with these words. Commands of a page run in order in one folder with the examples in it. With
``--check`` nothing is written; the exit code says whether something would change.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "questions.md")
BLOCK = re.compile(
    r"(?P<head><!-- (?:output|parts (?P<parts>[^>]*?)) of: (?P<command>plan [^>]*?) -->\n```text\n)(?P<output>.*?)```",
    re.DOTALL,
)
# What depends on the machine: how long the search took, and a price that is given up after a few seconds.
UNSTABLE = re.compile(r"; \d+\.\d s$|^  constraint .*\n", re.MULTILINE)
DONE = (0, 3)  # 3: the answer is that nothing is feasible, or that a launch is not legal


def printed(command: str, folder: str) -> str:
    """Return what a command prints when it is piped."""
    words = [sys.executable, "-m", "planner", *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if result.returncode not in DONE:
        raise SystemExit(f"{command}: exit code {result.returncode}\n{result.stderr}")
    return result.stdout


def chosen(text: str, parts: str | None) -> str:
    """Those parts of an output (blank lines stand between them) that begin with the quoted words; all without any."""
    if not parts:
        return text
    wanted = tuple(shlex.split(parts))
    kept = [part for part in text.strip("\n").split("\n\n") if part.lstrip().startswith(wanted)]
    if len(kept) < len(wanted):
        raise SystemExit(f"parts {wanted}: only {[part.splitlines()[0] for part in kept]} are printed")
    return "\n\n".join(kept) + "\n"


def refreshed(text: str) -> str:
    """Return the text with every output anew. Commands run in order in one empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        return BLOCK.sub(
            lambda found: f"{found['head']}{chosen(printed(found['command'], folder), found['parts'])}```", text
        )


def main() -> int:
    """Refresh or check the pages."""
    changed = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if "--check" not in sys.argv[1:]:
            page.write_text(after, encoding="utf-8")
        elif UNSTABLE.sub("", before) != UNSTABLE.sub("", after):
            changed += 1
            print(f"{page.relative_to(ROOT)} would change")
    return int(changed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
