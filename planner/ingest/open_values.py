"""What can be said of a launch though values in it are wrong or missing: what holds whatever they would be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from planner.ingest.options import Arguments, Option

_WHOLE: Final = ("1", "2", "6", "8", "96", "4096")
"""Powers of two and multiples of three, small and large: no rule on divisors holds for all, or for none, by chance."""
_LEFT_OUT: Final = None
Value = tuple[str, ...] | None


def supposed(read: Arguments, options: Mapping[str, Option], names: Iterable[str]) -> tuple[Arguments, ...]:
    """Argument lists in which options have several values each, one after the other.

    Parameters
    ----------
    read : Arguments
        As given.
    options : mapping of str to Option
        The parser's.
    names : iterable of str
        Options whose values are not known; others than those of the parser are passed over.
    """
    tried = {name: _values(options[name]) for name in names if name in options}
    if not tried:
        return ()
    found = []
    for index in range(max(len(_WHOLE), *map(len, tried.values()))):
        given = dict(read.given)
        for name, values in tried.items():
            value = values[index % len(values)]
            given.pop(name, None)
            given |= {} if value is None else {name: value}
        found.append(replace(read, given=MappingProxyType(given)))
    return tuple(found)


def _values(option: Option) -> Sequence[Value]:
    if option.values == "0":
        return ((), _LEFT_OUT)
    if option.choices:
        return tuple((choice,) for choice in option.choices)
    if option.kind in ("int", "layers"):
        return tuple((number,) for number in _WHOLE)
    return (_LEFT_OUT,)
