"""Grids in the order of their lower bounds, which are refined only when they come to the front."""

from typing import Final

import numpy as np

from costmodels.table import Floats, Ints
from planner.bounds.options import OptionBounds

REFINED_AT_ONCE: Final = 2_048  # grids whose options and memory are bounded together
REFINED_FIRST: Final = 256  # as long as there is no limit that leaves options out


class Frontier:
    """What a search has still to look at, least bound first.

    Parameters
    ----------
    bounds : OptionBounds
        Of the grids; the cheap bound orders all of them, the full one those at the front.

    Attributes
    ----------
    without_memory : int
        Grids found too large for the memory under every option that is fast enough.
    """

    def __init__(self, bounds: OptionBounds) -> None:
        self.bounds = bounds
        self.without_memory = 0
        cheap = bounds.time_s()
        self._order = np.argsort(cheap, kind="stable")
        self._cheap = cheap[self._order]
        self._next = 0  # first of the order that is not refined
        self._rows: Ints = np.empty(0, dtype=np.int64)  # refined, by bound
        self._known: Floats = np.empty((0, len(bounds.options)))

    @property
    def left(self) -> int:
        """Grids that have not been taken."""
        return len(self._order) - self._next + len(self._rows)

    @property
    def least_s(self) -> float:
        """Least bound of what is left; infinite when nothing is."""
        refined = self._known[0].min() if len(self._rows) else np.inf
        return float(min(refined, self._least_unrefined_s))

    def take(self, size: int, limit_s: float) -> tuple[Ints, Floats]:
        """Take the grids of least bound.

        Only as many grids are refined as it takes to have so many, in the order of the cheap bound: what they cost
        lowers the limit for the others.

        Parameters
        ----------
        size : int
            How many at most.
        limit_s : float
            Grids whose bounds exceed it [s] stay where they are.

        Returns
        -------
        tuple of ndarray
            Rows of the grids, shape (R,), and their bounds under each option, shape (R, O); empty when no bound that is
            left is within the limit. Grids taken later may have lower bounds.
        """
        count = self._within(limit_s)
        while count < (size if np.isfinite(limit_s) else 1) and self._least_unrefined_s <= limit_s and self._unrefined:
            self._refine(limit_s)
            count = self._within(limit_s)
        count = min(size, count)
        rows, known = self._rows[:count], self._known[:count]
        self._rows, self._known = self._rows[count:], self._known[count:]
        return rows, known

    def _within(self, limit_s: float) -> int:
        """Refined grids whose bound is within a limit."""
        return int((self._known.min(axis=1, initial=np.inf) <= limit_s).sum())

    @property
    def _unrefined(self) -> bool:
        return self._next < len(self._order)

    @property
    def _least_unrefined_s(self) -> float:
        return float(self._cheap[self._next]) if self._unrefined else float("inf")

    def _refine(self, limit_s: float) -> None:
        """Bound the next grids under every option and with their memory."""
        size = REFINED_AT_ONCE if np.isfinite(limit_s) else REFINED_FIRST
        until = min(self._next + size, int(np.searchsorted(self._cheap, limit_s, side="right")))
        rows = self._order[self._next : until]
        self._next = until
        known = self.bounds.within_memory_s(rows, limit_s)
        holds = np.isfinite(known.min(axis=1))
        self.without_memory += int((~holds).sum())
        rows = np.concatenate([self._rows, rows[holds]])
        known = np.concatenate([self._known, known[holds]])
        order = np.lexsort((rows, known.min(axis=1)))
        self._rows, self._known = rows[order], known[order]
