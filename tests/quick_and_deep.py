"""Parameters of which the plain test command takes a few, and ``pytest -m deep`` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick_and_deep(quick: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Values of a parameter, with the mark ``deep`` on those that are not among the quick ones."""
    first = list(quick)
    return [*first, *(pytest.param(value, marks=pytest.mark.deep) for value in others if value not in first)]
