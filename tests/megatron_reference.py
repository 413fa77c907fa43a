"""Argument lists of Megatron-LM whose verdicts by its own parser are known: the tables of tests/reference."""

import tomllib
from pathlib import Path

from planner.ingest.megatron import Launch, parse_megatron

_REFERENCE = Path(__file__).parent / "reference"
TABLE = tomllib.loads((_REFERENCE / "megatron_cases.toml").read_text(encoding="utf-8"))
OPTION_CASES = tomllib.loads((_REFERENCE / "megatron_option_cases.toml").read_text(encoding="utf-8"))
SIZES = "--hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"


def words_of(case: dict) -> list[str]:
    """Arguments of a case: those of its model, the common ones, its own."""
    return " ".join((TABLE["models"][case["model"]], TABLE["common"], case["args"])).split()


def launch_of(name: str) -> Launch:
    """The case of a name, read for the newest version."""
    case = next(case for case in TABLE["case"] if case["name"] == name)
    return parse_megatron(words_of(case), world=case["world"])
