"""Reads the options of Megatron-LM's real parser, for planner/ingest/megatron_options.toml.

Run with the validators' Python: ``megatron_options.py`` prints one JSON object with each option's number of values,
type and choices; ``megatron_options.py --check TABLE`` compares the table (and the choices beside it) with the parser
and prints what differs.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import harness

Option = dict[str, Any]


def real_options(arguments: Any) -> dict[str, Option]:
    """Every option of the parser: values it takes, type, choices."""
    found: dict[str, Option] = {}
    original = argparse.ArgumentParser.parse_args

    def capture(self: argparse.ArgumentParser, *_args: Any, **_kwargs: Any) -> Any:
        for action in self._actions:
            for name in action.option_strings:
                found[name] = _option(action)
        raise KeyboardInterrupt

    argparse.ArgumentParser.parse_args = capture  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_known_args = capture  # type: ignore[method-assign]
    try:
        arguments.parse_args()
    except KeyboardInterrupt:
        pass
    finally:
        argparse.ArgumentParser.parse_args = original  # type: ignore[method-assign]
    return {name: option for name, option in found.items() if name.startswith("--")}


def _option(action: argparse.Action) -> Option:
    values = "1" if action.nargs is None else str(action.nargs)
    kind = action.type.__name__ if action.type in (int, float) else "str"
    choices = [getattr(choice, "name", str(choice)) for choice in action.choices] if action.choices else []
    return {"values": values, "kind": kind if values != "0" else "none", "choices": choices}


def main() -> int:
    """Print the options, or compare them with a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]
    real = real_options(harness.load("hopper"))
    if options.check is None:
        print(json.dumps(real, indent=1, sort_keys=True))
        return 0
    table = tomllib.loads(options.check.read_text(encoding="utf-8"))
    choices = tomllib.loads(options.check.with_name("megatron_choices.toml").read_text(encoding="utf-8"))
    newest = str(table["newest"])
    listed = {
        name: {"values": group["values"], "kind": group["kind"], "choices": choices[newest].get(name, [])}
        for group in table["options"]
        if newest in group["versions"]
        for name in group["names"]
    }
    differing = sorted(name for name in {*real, *listed} if real.get(name) != listed.get(name))
    for name in differing:
        print(f"{name}: parser {real.get(name)}, table {listed.get(name)}")
    print(f"{len(real)} options, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
