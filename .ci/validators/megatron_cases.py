"""Asks the real parser again about every case of tests/reference/megatron_cases.toml that its version can judge."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import real

TABLE = real.HERE.parents[1] / "tests" / "reference" / "megatron_cases.toml"


def arguments_of(table: dict[str, Any], case: dict[str, Any]) -> list[str]:
    """Words of a case: the model's, the common ones, its own."""
    text = " ".join((table["models"][case["model"]], table["common"], case["args"]))
    return text.split()


def main() -> int:
    """Compare verdicts and layers; print what differs."""
    table = tomllib.loads(Path(TABLE).read_text(encoding="utf-8"))
    cases = [case for case in table["case"] if case.get("core", "0.19") == "0.19"]
    asked = [{"name": c["name"], "world_size": c["world"], "args": arguments_of(table, c)} for c in cases]
    differing = 0
    for case, answer in zip(cases, real.answers(asked, build=True), strict=True):
        if (case["accepted"], case.get("layers")) != (answer["accepted"], answer["layers"]):
            differing += 1
            print(f"{case['name']}: the table says {case['accepted']} {case.get('layers')}, Megatron {answer}")
    print(f"{len(cases)} cases, {differing} differ from the table")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
