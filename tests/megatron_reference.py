"""Argument lists of Megatron-LM whose verdicts by its own parser are known: the tables of tests/reference."""

import shlex
import tomllib
from pathlib import Path

from planner.ingest.megatron.arguments import Launch, parse_megatron

_REFERENCE = Path(__file__).parent / "reference"
TABLE = tomllib.loads((_REFERENCE / "megatron_cases.toml").read_text(encoding="utf-8"))
VERSION_CASES = tomllib.loads((_REFERENCE / "megatron_version_cases.toml").read_text(encoding="utf-8"))
OPTION_CASES = tomllib.loads((_REFERENCE / "megatron_option_cases.toml").read_text(encoding="utf-8"))
SIZES = "--hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"


def words_of(case: dict) -> list[str]:
    """Arguments of a case: those of its model, the common ones, its own."""
    return " ".join((TABLE["models"][case["model"]], TABLE["common"], case["args"])).split()


def options_of(table: dict, case: dict) -> dict[str, list[str]]:
    """Options of a case with their values: its own over the model's, less what it is without."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(f"{table['models'][case['model']]} {case['args']}"):
        if word.startswith("--"):
            name = word
            given[name] = []
        else:
            given[name].append(word)
    return {name: values for name, values in given.items() if name not in case.get("without", ())}


def words_in(given: dict[str, list[str]]) -> list[str]:
    """Options as an argument list."""
    return [word for name, values in given.items() for word in (name, *values)]


def launch_of(name: str) -> Launch:
    """The case of a name, read for the newest version."""
    case = next(case for case in TABLE["case"] if case["name"] == name)
    return parse_megatron(words_of(case), world=case["world"])
