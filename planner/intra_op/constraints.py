"""Constraints on the strategies of a stage, in the planner's nouns: attributes of strategies and runs of layers."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Restrict:
    """Only strategies whose ``attribute`` has one of ``values`` may be used.

    Parameters
    ----------
    attribute : str
        Name of a strategy attribute, such as ``"tp"``.
    values : tuple
        What is legal.
    runs : tuple of int, optional
        Runs that the constraint covers; all runs by default.
    """

    attribute: str
    values: tuple[Hashable, ...]
    runs: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """All layers of the runs use strategies with one and the same value of ``attribute``.

    Parameters
    ----------
    attribute : str
        Name of a strategy attribute, such as ``"tp"``.
    runs : tuple of int, optional
        Runs that the constraint covers; all runs by default.
    """

    attribute: str
    runs: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """Along the layers, the value of ``attribute`` may only move forward in ``order``.

    With two values this is a prefix: the first k layers use ``order[0]``, the rest ``order[1]``, k in 0..n; which is
    what block recompute can express. Strategies with a value that is not in ``order`` are not allowed.

    Parameters
    ----------
    attribute : str
        Name of a strategy attribute, such as ``"recompute"``.
    order : tuple
        Values, earliest layers first.
    runs : tuple of int, optional
        Consecutive runs that the order spans; all runs by default.
    """

    attribute: str
    order: tuple[Hashable, ...]
    runs: tuple[int, ...] | None = None


Constraint = Restrict | Uniform | Ordered
