"""Asks the real parser again about the cases of Megatron-LM in tests/reference: splits, options, versions."""

import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import real

REFERENCE = real.HERE.parents[1] / "tests" / "reference"
TABLE = REFERENCE / "megatron_cases.toml"
OPTIONS = REFERENCE / "megatron_option_cases.toml"
VERSIONS = REFERENCE / "megatron_version_cases.toml"
CORE = "0.19"  # of the environment
GPUS = 8  # of every case on options


def arguments_of(table: dict[str, Any], case: dict[str, Any]) -> list[str]:
    """Words of a case: the model's, the common ones, its own."""
    text = " ".join((table["models"][case["model"]], table["common"], case["args"]))
    return text.split()


def option_arguments(table: dict[str, Any], case: dict[str, Any]) -> list[str]:
    """Words of a case on options: its own behind the model's, less what it goes without."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(table["models"][case["model"]] + " " + case["args"]):
        if word.startswith("--"):
            name = word
            given[name] = []
        else:
            given[name].append(word)
    kept = {option: words for option, words in given.items() if option not in case.get("without", ())}
    return [word for option, words in kept.items() for word in (option, *words)]


def options_differing() -> int:
    """Cases on options whose verdict is another; they are printed."""
    table = tomllib.loads(OPTIONS.read_text(encoding="utf-8"))
    cases = table["case"]
    asked = [{"name": c["rule"], "world_size": GPUS, "args": option_arguments(table, c)} for c in cases]
    differing = 0
    for case, answer in zip(cases, real.answers(asked, build=True), strict=True):
        if case["accepted"] != answer["accepted"]:
            differing += 1
            print(f"{case['rule']}: the table says {case['accepted']}, Megatron {answer}")
    print(f"{len(cases)} cases on options, {differing} differ from the table")
    return differing


def versions_differing() -> int:
    """Cases on this version whose verdict or layers are others; they are printed."""
    table = tomllib.loads(VERSIONS.read_text(encoding="utf-8"))
    cases = [case for case in table["case"] if case["core"] == CORE]
    asked = [{"name": c["args"], "world_size": c["world"], "args": option_arguments(table, c)} for c in cases]
    differing = 0
    for case, answer in zip(cases, real.answers(asked, build=True), strict=True):
        counted = answer["layers"] if answer["accepted"] or "layers" in case else None
        layers = " ".join("/".join(map(str, chunks)) for chunks in counted or ())
        if (case["accepted"], case.get("layers", "")) != (answer["accepted"], layers):
            differing += 1
            print(f"{case['args']}: the table says {case['accepted']} {case.get('layers')}, Megatron {answer}")
    print(f"{len(cases)} cases on core {CORE}, {differing} differ from the table")
    return differing


def main() -> int:
    """Compare verdicts and layers; print what differs."""
    table = tomllib.loads(Path(TABLE).read_text(encoding="utf-8"))
    cases = [case for case in table["case"] if case.get("core", CORE) == CORE]
    asked = [{"name": c["name"], "world_size": c["world"], "args": arguments_of(table, c)} for c in cases]
    differing = 0
    for case, answer in zip(cases, real.answers(asked, build=True), strict=True):
        if (case["accepted"], case.get("layers")) != (answer["accepted"], answer["layers"]):
            differing += 1
            print(f"{case['name']}: the table says {case['accepted']} {case.get('layers')}, Megatron {answer}")
    print(f"{len(cases)} cases, {differing} differ from the table")
    return int(bool(differing + options_differing() + versions_differing()))


if __name__ == "__main__":
    sys.exit(main())
