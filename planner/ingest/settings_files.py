"""Settings in YAML and TOML as the arguments or overrides that say the same."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import yaml

from hardware.errors import InputError
from planner.ingest.options import megatron_options
from planner.request import Framework
from planner.rules.table import NEWEST

MOST_YAML_EVENTS: Final = 20_000
MOST_NESTING: Final = 20
MOST_ALIASES: Final = 12
"""Each may stand for all before it: so many make at most 81 of one entry, where a few dozen would never end."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_LAYOUT_WORDS: Final = MappingProxyType({"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"})


def yaml_overrides(text: str, where: str) -> Iterator[str]:
    """Write a YAML configuration out; errors as of :func:`load_yaml`, see :func:`written_out`."""
    yield from written_out(load_yaml(text, where), where)


def written_out(content: object, where: str) -> Iterator[str]:
    """Write settings out: ``section.key=value``, or flags where keys are flags.

    Raises
    ------
    InputError
        No mapping.
    """
    if not isinstance(content, dict):
        raise InputError("no mapping", allowed="a YAML mapping of settings", where=where)
    flags = content.get("MODEL_ARGS")
    if isinstance(flags, dict):  # the form of Megatron-LM's own tests
        yield from _flag_words(flags)
        return
    if all(str(key).startswith("--") for key in content):
        yield from _flag_words(content)
        return
    for name, value in _leaves(content, ""):
        yield f"{name}={plain_value(value)}"


def _flag_words(flags: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in flags.items():
        if value is False or value is None:
            continue
        yield str(name)
        if value is not True:
            yield from map(str, value if isinstance(value, list) else _flag_values(str(name), value))


def _flag_values(name: str, value: object) -> list[object]:
    """Values of one flag: ``2 2`` and ``[2 2]`` are two, as the scripts that read this form take them apart.

    An option that takes one value has it whole, such as a schedule of batches.
    """
    option = megatron_options(NEWEST[Framework.MEGATRON]).get(name)
    if not isinstance(value, str) or " " not in value.strip() or (option is not None and option.values == "1"):
        return [value]
    try:
        return [*shlex.split(re.sub(r"^\[(.*)\]$", r"\1", value.strip()))]
    except ValueError:  # a quote that is not closed: one value
        return [value]


def load_yaml(text: str, where: str) -> object:
    """Content of a YAML text.

    Raises
    ------
    InputError
        Not YAML, too deep, too long, or with so many aliases that they could expand without end.
    """
    depth = aliases = 0
    try:
        for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            aliases += isinstance(event, yaml.AliasEvent)
            if aliases > MOST_ALIASES:
                what = f"more than {MOST_ALIASES} aliases, which can expand without end"
                raise InputError(what, allowed="their values in their places", where=where)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTING or number > MOST_YAML_EVENTS:
                raise InputError(
                    "too deep or too long", allowed=f"{MOST_NESTING} levels, {MOST_YAML_EVENTS} entries", where=where
                )
        content = yaml.load(text, Loader=_LOADER)
        left = [MOST_YAML_EVENTS]
        _refuse_endless(content, MOST_NESTING, left, where)
        return content
    except yaml.YAMLError as error:
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise InputError(f"not YAML: {what}", allowed="a YAML mapping of settings", where=where) from None
    except ValueError as error:  # numbers of thousands of digits, days that no month has
        if isinstance(error, InputError):
            raise
        raise InputError(f"not YAML: {error}", allowed="a YAML mapping of settings", where=where) from None


def _refuse_endless(content: object, levels: int, left: list[int], where: str) -> None:
    """Refuse what aliases make too deep or too long; ``left`` is how many entries there still may be."""
    left[0] -= 1
    if levels < 0 or left[0] < 0:
        allowed = f"{MOST_NESTING} levels, {MOST_YAML_EVENTS} entries with aliases put in"
        raise InputError("too deep or too long", allowed=allowed, where=where)
    for entry in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _refuse_endless(entry, levels - 1, left, where)


def _leaves(table: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def plain_value(value: object) -> str:
    """Value as an override writes it; a pipeline layout of lists becomes a layout string."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        if value and all(isinstance(entry, list) for entry in value):
            return layout_of_lists(value)
        return f"[{','.join(map(str, value))}]"
    return str(value)


def layout_of_lists(stages: Sequence[Sequence[object]]) -> str:
    """Pipeline layout given as lists of words (``embedding``, ``decoder``, ``mtp``, ``loss``) as a layout string."""
    letters = ("".join(_LAYOUT_WORDS.get(str(word).lower(), str(word)) for word in stage) for stage in stages)
    return "|".join(letters)


def toml_options(text: str, where: str) -> Iterator[str]:
    """Options of torchtitan 0.2's command line that say what its TOML says; InputError where it is none.

    A number that stands in quotes keeps them: torchtitan keeps it as a text, with which it cannot count (tyro warns of
    a default of another type and takes it; ``distributed/parallel_dims.py`` compares it with a number).
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InputError(f"not TOML: {error}", allowed="a torchtitan configuration", where=where) from None
    for name, value in _leaves(content, ""):
        section, _, option = name.rpartition(".")
        if isinstance(value, bool):
            yield f"--{section}.{option}" if value else f"--{section}.no_{option}"
        elif isinstance(value, list):
            if value:
                yield f"--{name}"
                yield from (_modules(entry) for entry in value)
        elif isinstance(value, str) and _NUMBER.fullmatch(value):
            yield from (f"--{name}", f'"{value}"')
        else:
            yield from (f"--{name}", str(value))


def without_restated(words: Sequence[str], later: Sequence[str]) -> Iterator[str]:
    """Words of :func:`toml_options` without the options, and their values, that later words state again."""
    stated = {word.partition("=")[0] for word in later if word.startswith("--")}
    kept = True
    for word in words:
        kept = word not in stated if word.startswith("--") else kept
        if kept:
            yield word


def _modules(entry: object) -> str:
    """One pipeline part: earlier versions call the last module ``output``."""
    names = [str(name) for name in entry] if isinstance(entry, list) else [str(entry)]
    return ",".join("lm_head" if name == "output" else name for name in names)
