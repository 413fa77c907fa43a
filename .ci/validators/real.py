"""Asks the real parsers from the project's own Python: starts a harness in the validators' environment."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

WORKERS = 2  # harnesses at once
HERE = Path(__file__).resolve().parent


def validator_python() -> Path:
    """Python of the validators' environment, from VALIDATOR_VENV or beside this file."""
    return Path(os.environ.get("VALIDATOR_VENV", HERE / ".venv")) / "bin" / "python"


def answers(
    cases: Iterable[Mapping[str, Any]], *, build: bool = False, harness: str = "harness.py"
) -> list[dict[str, Any]]:
    """Verdicts of a real parser, one for each case, in order."""
    lines = [json.dumps(case) for case in cases]
    shares = [lines[start::WORKERS] for start in range(WORKERS)]
    ask = partial(asked, harness, *(["--build"] if build else []))
    with ThreadPoolExecutor(WORKERS) as pool:
        told = [text.splitlines() for text in pool.map(lambda share: ask(text="\n".join(share)), shares)]
    return [json.loads(told[index % WORKERS][index // WORKERS]) for index in range(len(lines))]


def asked(harness: str, *options: str, text: str = "") -> str:
    """What a harness prints."""
    python = validator_python()
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run .ci/validators/setup, or set VALIDATOR_VENV")
    command = [str(python), str(HERE / harness), *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{harness} failed:\n{done.stderr[-4000:]}")
    return done.stdout
