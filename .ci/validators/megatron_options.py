"""Reads the options of Megatron-LM's real parser, for planner/ingest/megatron/options.toml.

Run with the validators' Python: ``megatron_options.py`` prints one JSON object with each option's number of values,
type and choices; ``megatron_options.py --check TABLE`` compares the table (and the choices beside it) with the parser
and prints what differs. With the ``megatron`` folder of another tag first on PYTHONPATH that version's parser is read;
``megatron_options.py --write TABLE 0.13=FILE.json 0.14=...`` writes the table anew from what was printed for each.
"""

import argparse
import json
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import harness

Option = dict[str, Any]
# The parser's own types: a period or a list expression of layers, and integers with commas.
_LAYERS = ("moe_freq_type", "la_freq_type", "no_rope_freq_type")
_KINDS = {"int": "int", "float": "float", **dict.fromkeys(_LAYERS, "layers"), "tuple_type": "integers"}
HEAD = """\
# Options of Megatron-LM's argument parser: how many values each takes, and of which type, by the core versions that
# have it. Facts read from the parsers of tags core_v0.13.0, 0.14.0, 0.15.3, 0.16.1, 0.17.1 and 0.18.2 and of
# megatron-core 0.19.2, written by .ci/validators/megatron_options.py. `values`: "0" a switch, "1" one, "3" three,
# "+" one or more, "*" any number.
"""
CHOICES_HEAD = """\
# Values that options of Megatron-LM's argument parser allow, where it names them, by the core versions that do. Read
# and written as megatron/options.toml.
"""


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
    kind = _KINDS.get(getattr(action.type, "__name__", ""), "str")
    choices = [getattr(choice, "name", str(choice)) for choice in action.choices] if action.choices else []
    return {"values": values, "kind": kind if values != "0" else "none", "choices": choices}


def write(table: Path, editions: dict[str, dict[str, Option]]) -> None:
    """Write both tables: options and choices, each with the versions that have them."""
    groups: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    allowed: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for version, found in editions.items():
        for name, option in found.items():
            groups.setdefault((option["values"], option["kind"]), {}).setdefault(name, []).append(version)
            if option["choices"]:
                allowed.setdefault((name, tuple(option["choices"])), []).append(version)
    text = [HEAD, f"editions = {json.dumps(list(editions))}\n"]
    for (values, kind), names in sorted(groups.items()):
        for versions in sorted({tuple(listed) for listed in names.values()}):
            own = sorted(name for name, listed in names.items() if tuple(listed) == versions)
            shown = textwrap.fill(" ".join(own), 116, break_long_words=False, break_on_hyphens=False)
            facts = f'versions = {json.dumps(list(versions))}\nvalues = "{values}"\nkind = "{kind}"'
            text.append(f'\n[[options]]\n{facts}\nnames = """\n{shown}\n"""\n')
    table.write_text("".join(text), encoding="utf-8")
    text = [CHOICES_HEAD]
    for versions in sorted({tuple(listed) for listed in allowed.values()}):
        text.append(f'\n["{" ".join(versions)}"]\n')
        for (name, choices), listed in sorted(allowed.items()):
            if tuple(listed) == versions:
                line = f"{name} = {json.dumps(list(choices))}"
                body = textwrap.fill(json.dumps(list(choices))[1:-1], 116, initial_indent="  ", subsequent_indent="  ")
                text.append(f"{line}\n" if len(line) <= 120 else f"{name} = [\n{body},\n]\n")
    table.with_name("choices.toml").write_text("".join(text), encoding="utf-8")


def main() -> int:
    """Print the options, or compare them with a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("printed", nargs="*", help="VERSION=FILE.json, oldest first")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]
    if options.write:
        files = dict(entry.split("=", 1) for entry in options.printed)
        write(options.write, {version: json.loads(Path(file).read_text()) for version, file in files.items()})
        return 0
    real = real_options(harness.load("hopper"))
    if options.check is None:
        print(json.dumps(real, indent=1, sort_keys=True))
        return 0
    table = tomllib.loads(options.check.read_text(encoding="utf-8"))
    choices = tomllib.loads(options.check.with_name("choices.toml").read_text(encoding="utf-8"))
    newest = str(table["editions"][-1])
    allowed = {name: told for key, names in choices.items() if newest in key.split() for name, told in names.items()}
    listed = {
        name: {"values": group["values"], "kind": group["kind"], "choices": allowed.get(name, [])}
        for group in table["options"]
        if newest in group["versions"]
        for name in group["names"].split()
    }
    differing = sorted(name for name in {*real, *listed} if real.get(name) != listed.get(name))
    for name in differing:
        print(f"{name}: parser {real.get(name)}, table {listed.get(name)}")
    print(f"{len(real)} options, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
