"""The checks that rules name: pure functions from columns to the rows that hold.

A general check takes the names of columns from its rule, so that most rules are a line of data; a named one says what
no general check can. Conditions (the rule's ``when``) are applied outside.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.table import Bools, Ints
from planner.rules.columns import Columns

Check = Callable[[Columns, tuple[str, ...]], Bools]


def _modulo(a: Ints, b: Ints) -> Ints:
    """Remainder, with 1 (does not divide) where the divisor is not positive."""
    result: Ints = np.where(b > 0, a % np.maximum(b, 1), 1)
    return result


def _divides(columns: Columns, names: tuple[str, ...]) -> Bools:
    """The first column is a multiple of the product of the others; 0 means that the model has no such part."""
    product = reduce(np.multiply, (columns[name] for name in names[1:]))
    holds: Bools = _modulo(columns[names[0]], product) == 0
    return holds


def _equal(columns: Columns, names: tuple[str, ...]) -> Bools:
    holds: Bools = columns[names[0]] == columns[names[1]]
    return holds


def _at_least(columns: Columns, names: tuple[str, ...]) -> Bools:
    """The first column is not below the second."""
    holds: Bools = columns[names[0]] >= columns[names[1]]
    return holds


def _at_most(columns: Columns, names: tuple[str, ...]) -> Bools:
    """The first column is not above the second."""
    holds: Bools = columns[names[0]] <= columns[names[1]]
    return holds


def _any_of(columns: Columns, names: tuple[str, ...]) -> Bools:
    """At least one of the switches is on."""
    holds: Bools = np.any([columns[name] > 0 for name in names], axis=0)
    return holds


def _none_of(columns: Columns, names: tuple[str, ...]) -> Bools:
    """No switch is on."""
    return ~_any_of(columns, names)


def _positive(columns: Columns, names: tuple[str, ...]) -> Bools:
    """Every column is 1 or more."""
    holds: Bools = np.all([columns[name] >= 1 for name in names], axis=0)
    return holds


def _multiple_or_divisor(columns: Columns, names: tuple[str, ...]) -> Bools:
    """Either column is a multiple of the other."""
    a, b = columns[names[0]], columns[names[1]]
    holds: Bools = (_modulo(a, b) == 0) | (_modulo(b, a) == 0)
    return holds


def _power_of_two(columns: Columns, names: tuple[str, ...]) -> Bools:
    holds: Bools = np.all([(columns[name] & (columns[name] - 1)) == 0 for name in names], axis=0)
    return holds


def _group_remainder(columns: Columns, _names: tuple[str, ...]) -> Bools:
    """The last group of an interleaved schedule is whole, or at least as large as the pipeline."""
    holds: Bools = (columns["remainder"] == 0) | (columns["remainder"] >= columns["pp"])
    return holds


def _connections_one(columns: Columns, _names: tuple[str, ...]) -> Bools:
    """CUDA_DEVICE_MAX_CONNECTIONS is 1, or not stated."""
    holds: Bools = (columns["cuda_max_connections"] == 1) | (columns["cuda_max_connections"] < 0)
    return holds


def _connections_many(columns: Columns, _names: tuple[str, ...]) -> Bools:
    """CUDA_DEVICE_MAX_CONNECTIONS is unset, not 1, or not stated."""
    holds: Bools = columns["cuda_max_connections"] != 1
    return holds


CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "divides": _divides,
        "equal": _equal,
        "at-least": _at_least,
        "at-most": _at_most,
        "any-of": _any_of,
        "none-of": _none_of,
        "positive": _positive,
        "multiple-or-divisor": _multiple_or_divisor,
        "power-of-two": _power_of_two,
        "group-remainder": _group_remainder,
        "connections-one": _connections_one,
        "connections-many": _connections_many,
    }
)
