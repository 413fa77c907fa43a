"""Options of a framework's command line as data, and reading an argument list by them.

Nothing is guessed: an option that the table does not name is kept as unknown, a value of the wrong type or outside the
parser's choices is kept as a fault, and both are told to the user with what was meant.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from hardware.package_table import package_table
from planner.rules.table import Found, version_key

MOST_INTEGER: Final = 10**12  # products of a few such numbers still fit into the columns of the rules
MOST_LAYERS: Final = 10_000
MOST_RANKS: Final = 1_000_000  # of one parallel degree
_MOST: Final = MappingProxyType(
    {
        "--num-layers": MOST_LAYERS,
        "--encoder-num-layers": MOST_LAYERS,
        "--mtp-num-layers": MOST_LAYERS,
        "--num-virtual-stages-per-pipeline-rank": MOST_LAYERS,
        "--num-layers-per-virtual-pipeline-stage": MOST_LAYERS,
        "--tensor-model-parallel-size": MOST_RANKS,
        "--pipeline-model-parallel-size": MOST_RANKS,
        "--context-parallel-size": MOST_RANKS,
        "--expert-model-parallel-size": MOST_RANKS,
        "--expert-tensor-parallel-size": MOST_RANKS,
        "--num-experts": MOST_RANKS,
    }
)
"""Largest values of options whose size decides how much there is to judge."""
MOST_DIGITS: Final = 9
_KINDS: Final = MappingProxyType(
    {
        "int": "an integer",
        "integers": "integers with commas, such as 127,0",
        "layers": "an integer n (every n-th layer), or lists with + and *, such as ([0]*3+[1]*58)",
    }
)
MOST_ASCII: Final = 127
_LOOKING_ALIKE: Final = ("Pd", "Zs", "Cf", "Pi", "Pf")
"""Unicode's categories of dashes, blanks, letters without a width, and quotes."""
_NEAR: Final = 0.6
_NUMBER: Final = re.compile(r"-\d*\.?\d+(e[+-]?\d+)?$", re.IGNORECASE)
_PATTERN: Final = re.compile(r"[,\d\[\]()+*]+")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a parser; ``values`` is ``0``, ``1``, ``3``, ``+`` or ``*``, ``kind`` what it is read as."""

    name: str
    values: str
    kind: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An argument that is refused, by the parser itself unless ``found`` says what refuses it."""

    rule: str
    argument: str
    message: str
    found: Found = Found.PARSE

    @property
    def unknown(self) -> bool:
        """Whether the framework does not know the argument, which then takes nothing from the rest of a launch."""
        return "unknown" in self.rule


def rest_stands(faults: Iterable[Fault]) -> bool:
    """Whether a launch can be judged beside its faults: all of them are arguments that are not known."""
    return all(fault.unknown for fault in faults)


def refuse_faults(faults: Sequence[Fault], allowed: str) -> None:
    """Refuse a launch with arguments that are wrong.

    Raises
    ------
    InputError
        Says all that is wrong, and what is allowed.
    """
    if faults:
        raise InputError("; ".join(fault.message for fault in faults), allowed=allowed)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """An argument list read by a table of options.

    ``given`` holds each known option once, with its last values, in order of first use.
    """

    given: Mapping[str, tuple[str, ...]]
    faults: tuple[Fault, ...]

    def has(self, name: str) -> bool:
        """Whether a switch or option was given."""
        return name in self.given

    def text(self, name: str, default: str = "") -> str:
        """First value of an option, or the default."""
        values = self.given.get(name, ())
        return values[0] if values else default

    def texts(self, name: str) -> tuple[str, ...]:
        """All values of an option."""
        return self.given.get(name, ())

    def number(self, name: str, default: int) -> int:
        """First value as an integer, or the default when it is absent, no integer or too large (which are faults)."""
        try:
            value = int(self.text(name))
        except ValueError:
            return default
        return value if abs(value) <= _MOST.get(name, MOST_INTEGER) else default


@lru_cache(maxsize=8)
def megatron_options(version: str) -> Mapping[str, Option]:
    """Options of Megatron-LM's parser.

    Parameters
    ----------
    version : str
        Core version, such as ``0.19``; older than all that were read: the oldest, newer: the newest.

    Returns
    -------
    mapping of str to Option
        By name.
    """
    table = package_table("planner.ingest.megatron", "options.toml")
    choices = package_table("planner.ingest.megatron", "choices.toml")
    editions = table["editions"]
    edition = [one for one in editions if version_key(one) <= version_key(version)[:2]][-1:] or editions[:1]
    allowed = {name: told for of, names in choices.items() if edition[0] in of.split() for name, told in names.items()}
    found = {
        name: Option(name=name, values=group["values"], kind=group["kind"], choices=tuple(allowed.get(name, ())))
        for group in table["options"]
        if edition[0] in group["versions"]
        for name in group["names"].split()
    }
    return MappingProxyType(found)


def read_arguments(arguments: Sequence[str], options: Mapping[str, Option]) -> Arguments:
    """Sort an argument list into options with values and faults.

    Parameters
    ----------
    arguments : sequence of str
        As after ``pretrain_gpt.py``; ``--name value`` and ``--name=value`` are both understood.
    options : mapping of str to Option
        The parser's options.

    Returns
    -------
    Arguments
        A repeated option keeps its last values, as the parser does.
    """
    given: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    index = 0
    while index < len(arguments):
        token = arguments[index]
        name, has_value, inline = token.partition("=")
        values = _following(arguments, index + 1)
        index += 1
        if not token.startswith("--"):
            faults.append(_stray(token))
            continue
        option = options.get(name)
        if option is None:
            faults.append(_unknown(name, options))
            index += len(values)
            continue
        taken = (inline,) if has_value else values[: _most(option)]
        index += 0 if has_value else len(taken)
        faults += _value_faults(option, taken)
        given[name] = taken
    return Arguments(given=MappingProxyType(given), faults=tuple(faults))


def whole(text: str, digits: int = MOST_DIGITS) -> int | None:
    """Number that a text of at most so many digits says; None for any other text."""
    return int(text) if text.isdecimal() and len(text) <= digits else None


def without_unknown(arguments: Sequence[str], options: Mapping[str, Option]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Take the options off that a table does not have, with their values.

    Parameters
    ----------
    arguments : sequence of str
        As of :func:`read_arguments`.
    options : mapping of str to Option
        The parser's options.

    Returns
    -------
    tuple
        The arguments left, and the names of the options that were taken off.
    """
    kept: list[str] = []
    taken: list[str] = []
    known = True
    for token in arguments:
        if token.startswith("--"):
            name = token.partition("=")[0]
            known = name in options
            taken += [] if known else [name]
        if known:
            kept.append(token)
    return tuple(kept), tuple(taken)


def _following(arguments: Sequence[str], start: int) -> tuple[str, ...]:
    """Tokens from ``start`` up to the next option; a negative number is a value."""
    values = []
    for token in arguments[start:]:
        if token.startswith("-") and len(token) > 1 and not _NUMBER.match(token):
            break
        values.append(token)
    return tuple(values)


def _most(option: Option) -> int:
    return int(option.values) if option.values.isdigit() else 1_000_000


def _stray(token: str) -> Fault:
    return Fault(
        rule="megatron-unknown-option",
        argument=token,
        message=f"argument {token!r} belongs to no option; allowed: --name value{_look_alike(token)}",
    )


def _look_alike(token: str) -> str:
    """What of a word looks like something else, as text behind a message: dashes, blanks and quotes of documents."""
    if not token.strip():
        return "; a blank behind the backslash at the end of a line is a word, and the line does not go on"
    odd = [letter for letter in token if ord(letter) > MOST_ASCII and unicodedata.category(letter) in _LOOKING_ALIKE]
    names = dict.fromkeys(unicodedata.name(letter, ascii(letter)).lower() for letter in odd)
    return f"; it has {', '.join(names)}, which a shell takes for letters" if names else ""


def close_name(name: str, known: Iterable[str]) -> str:
    """The known name nearest to one, or an empty text; of ``section.name`` the names behind the dot must be near too.

    The dashes before an option are not compared: short names would all be near by them.

    Parameters
    ----------
    name : str
        Not known.
    known : iterable of str
        Names to choose from.
    """
    field = name.rpartition(".")[2]
    by_body = {other.lstrip("-"): other for other in known}
    for near in difflib.get_close_matches(name.lstrip("-"), by_body, n=10, cutoff=_NEAR):
        if difflib.SequenceMatcher(None, near.rpartition(".")[2], field.lstrip("-")).ratio() >= _NEAR:
            return by_body[near]
    return ""


def near_key(key: str, known: Iterable[str]) -> str:
    """Hint at the known key of a configuration that is nearest to one, in brackets; empty when none is near."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=_NEAR)
    return f" (did you mean {close[0]}?)" if close else ""


def _editions_with(name: str) -> tuple[str, ...]:
    """Core versions that know an option, in their order."""
    table = package_table("planner.ingest.megatron", "options.toml")
    having = [group["versions"] for group in table["options"] if name in group["names"].split()]
    return tuple(edition for edition in table["editions"] if any(edition in versions for versions in having))


def _unknown(name: str, options: Mapping[str, Option]) -> Fault:
    near = close_name(name, options)
    hint = f"; did you mean {near}?" if near else ""
    if elsewhere := _editions_with(name):  # no slip of the pen
        last = f" to {elsewhere[-1]}" if len(elsewhere) > 1 else ""
        hint = f"; core {elsewhere[0]}{last} {'know' if last else 'knows'} it: --framework-version {elsewhere[-1]}"
    return Fault(
        rule="megatron-unknown-option",
        argument=name,
        message=f"option {name} is unknown to this version{hint}{_look_alike(name)}",
    )


def _value_faults(option: Option, values: tuple[str, ...]) -> list[Fault]:
    wanted = {"+": "one or more values", "*": "any number of values"}.get(option.values, f"{option.values} value(s)")
    enough = len(values) == int(option.values) if option.values.isdigit() else bool(values) or option.values == "*"
    if not enough:
        message = f"option {option.name} got {len(values)} value(s); allowed: {wanted}"
        return [Fault(rule="megatron-option-value", argument=option.name, message=message)]
    faults = []
    for value in values:
        if _fits(option, value) and _too_large(option, value):
            limit = _MOST.get(option.name, MOST_INTEGER)
            message = f"option {option.name} got {value[:40]!r}; allowed: a whole number up to {limit}"
            faults.append(Fault(rule="megatron-option-value", argument=option.name, message=message))
        elif not _fits(option, value):
            allowed = ", ".join(option.choices) or _KINDS.get(option.kind, "a number")
            message = f"option {option.name} got {value!r}; allowed: {allowed}{_look_alike(value)}"
            faults.append(Fault(rule="megatron-option-value", argument=option.name, message=message))
    return faults


def _too_large(option: Option, value: str) -> bool:
    whole = option.kind == "int" and not option.choices
    return whole and abs(int(value)) > _MOST.get(option.name, MOST_INTEGER)


def _fits(option: Option, value: str) -> bool:
    if option.choices:
        return value in option.choices
    if option.kind in ("str", "none"):
        return True
    if option.kind == "layers" and "[" in value:
        return bool(_PATTERN.fullmatch(value))
    parts = value.strip("()").split(",") if option.kind == "integers" else [value]
    try:
        _ = [float(part) if option.kind == "float" else int(part) for part in parts]
    except ValueError:
        return False
    return True
