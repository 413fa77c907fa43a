"""What rules say in Megatron-LM's flags, in the keys of overrides that users of Megatron-Bridge and NeMo write."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hardware.package_table import package_table
from planner.ingest.bridge.overrides import override_keys
from planner.request import Framework
from planner.rules.verdict import Violation

_FLAG: Final = re.compile(r"(?P<no>\bno )?(?P<option>\boption )?(?P<flag>--[a-z][a-z0-9-]*)(?P<rest>(?: [^\s,;:]+)?)")
_NAME: Final = re.compile(r"--[a-z][a-z0-9-]*")
_JOINING: Final = (
    *("with", "without", "together", "and", "or", "instead", "of", "is", "are", "alone", "only", "out", "has", "from"),
    *("does", "outside", "by", "in", "that", "where", "up", "got", "as", "for", "to", "though"),
)
"""Words behind a flag that are not its value."""
_CALL: Final = re.compile(
    r"(?:choice|range|interval|tag|shuffle|sort|glob|extend_list|int|str|float|bool|json_str)\(.*\)"
)
"""A value that one of Hydra's functions makes."""
_OTHER: Final = MappingProxyType({"true": "false", "false": "true"})


@lru_cache(maxsize=2)
def _words(framework: Framework) -> Mapping[str, tuple[str, ...]]:
    """Keys of every flag, the value of a switch behind ``=``."""
    table = package_table("planner.ingest.bridge", "override_keys.toml")
    found: dict[str, tuple[str, ...]] = {}
    section = "model.config." if framework is Framework.NEMO else "model."
    for key, flag in table["sizes"].items():
        if key.startswith(section) and (framework is Framework.NEMO or not key.startswith("model.config.")):
            found[flag] = (key,)
    found |= {flag: (word,) for flag, word in table["words"][str(framework)].items()}
    switches = {"on": "=true", "off": "=false"}
    for entry in override_keys(framework):
        if entry.keys:
            second = [name for name, key in table["synonyms"].items() if key in entry.keys and name not in entry.keys]
            found[entry.flag] = tuple(key + switches.get(entry.kind, "") for key in (*entry.keys, *second))
    return MappingProxyType(found)


def in_overrides(text: str, overrides: Sequence[str], framework: Framework) -> str:
    """Write the flags of a text as overrides.

    Parameters
    ----------
    text : str
        Such as ``--overlap-param-gather without --overlap-grad-reduce``.
    overrides : sequence of str
        Of the launch: of several keys for one flag the one is named that stands there.
    framework : Framework
        Megatron-Bridge or NeMo.

    Returns
    -------
    str
        Such as ``ddp.overlap_param_gather=true without ddp.overlap_grad_reduce=true``.
    """
    given = {word.lstrip("+-~").partition("=")[0] for word in overrides}
    return _FLAG.sub(_written(_words(framework), given), text)


def _written(words: Mapping[str, Sequence[str]], given: Collection[str]) -> Callable[[re.Match[str]], str]:
    def write(found: re.Match[str]) -> str:
        keys = words.get(found["flag"])
        if keys is None:
            return found[0]
        word = next((key for key in keys if key.partition("=")[0] in given), keys[0])
        key, sign, state = word.partition("=")
        negated, rest = found["no"] or "", found["rest"]
        option = "override " if found["option"] else ""
        if sign:
            return f"{key}={_OTHER.get(state, 'null') if negated else state}{rest}"
        value = rest.strip()
        if value and value not in _JOINING:
            return f"{negated}{option}{key}={value}"
        return f"{negated}{option}{key}{rest}"

    return write


def in_names(violation: Violation, names: Mapping[str, str]) -> Violation:
    """A broken rule with flags by the names that a program has for them.

    Parameters
    ----------
    violation : Violation
        In Megatron-LM's flags.
    names : mapping of str to str
        The program's name of each flag that has one.
    """
    return replace(violation, message=_NAME.sub(lambda found: names.get(found[0], found[0]), violation.message))


def bridge_names() -> Mapping[str, tuple[str, ...]]:
    """Keys of Megatron-Bridge that stand for each flag."""
    words = _words(Framework.BRIDGE)
    return {flag: tuple(key.partition("=")[0] for key in keys) for flag, keys in words.items()}


def unquoted_notes(overrides: Sequence[str]) -> tuple[str, ...]:
    """Say of each override which letters of its value Hydra takes in quotes alone.

    Parameters
    ----------
    overrides : sequence of str
        Of a launch of Megatron-Bridge, as they reach the program: a shell has taken its own quotes off.

    References
    ----------
    Hydra 1.3 ``grammar/OverrideLexer.g4`` and ``OverrideParser.g4``: a value of plain letters has no parentheses, which
    call a function, and no comma, which parts values of a sweep.
    """
    notes = []
    for word in overrides:
        name, sign, value = word.partition("=")
        plain = re.sub(r"\\.", "", value.strip())
        if not sign or not plain or plain[0] in "'\"[{" or "$" in plain or _CALL.fullmatch(plain):
            continue
        strange = [letter for letter in "()," if letter in plain]
        if strange:
            told = " and ".join(strange)
            notes.append(f"on a command line Hydra takes {told} in quotes alone: '{name}=\"{value}\"', with both kinds")
    return tuple(notes)


def violation_in_overrides(violation: Violation, overrides: Sequence[str], framework: Framework) -> Violation:
    """A broken rule in the words of overrides; parameters as of :func:`in_overrides`."""
    return replace(violation, message=in_overrides(violation.message, overrides, framework))
