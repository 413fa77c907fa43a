"""Write the outputs in README.md anew: a block behind ``<!-- output of: COMMAND -->`` becomes what that prints.

With ``--check`` nothing is written; the exit code says whether something would change.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- output of: (?P<command>plan [^>]*?) -->\n```text\n)(?P<output>.*?)(```)", re.DOTALL)
# What depends on the machine: how long the search took, and a price that is given up after a few seconds.
UNSTABLE = re.compile(r"; \d+\.\d s$|^  constraint .*\n", re.MULTILINE)


def printed(command: str, folder: str) -> str:
    """Return what a command prints when it is piped."""
    words = [sys.executable, "-m", "planner", *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=True)
    return result.stdout


def refreshed(text: str) -> str:
    """Return the text with every output anew. Commands run in order in one empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        return BLOCK.sub(lambda found: f"{found[1]}{printed(found['command'], folder)}{found[4]}", text)


def main() -> int:
    """Refresh or check the page."""
    before = README.read_text(encoding="utf-8")
    after = refreshed(before)
    if "--check" in sys.argv[1:]:
        return int(UNSTABLE.sub("", before) != UNSTABLE.sub("", after))
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
