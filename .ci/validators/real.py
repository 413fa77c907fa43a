"""Asks the real parser from the project's own Python: starts harness.py in the validators' environment."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def validator_python() -> Path:
    """Python of the validators' environment, from VALIDATOR_VENV or beside this file."""
    return Path(os.environ.get("VALIDATOR_VENV", HERE / ".venv")) / "bin" / "python"


def answers(cases: Iterable[Mapping[str, Any]], *, build: bool = False) -> list[dict[str, Any]]:
    """Verdicts of the real parser, one for each case, in order."""
    python = validator_python()
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run .ci/validators/setup, or set VALIDATOR_VENV")
    lines = "\n".join(json.dumps(case) for case in cases)
    command = [str(python), str(HERE / "harness.py"), *(["--build"] if build else [])]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the harness failed:\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
