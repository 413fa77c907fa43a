"""Grids in the order of their lower bounds, which are refined only when they come to the front."""

from typing import Final

import numpy as np

from costmodels.table import Floats, Ints
from planner.bounds.option_memory import OptionMemory
from planner.bounds.options import OptionBounds
from planner.layouts.grids import Grids, joined
from planner.search.effort import REFINED_OPTION_S, REFINED_S, Until
from planner.search.shard_groups import legal_groups

REFINED_AT_ONCE: Final = 2_048  # grids whose options and memory are bounded together
GROUPS_AT_ONCE: Final = 2_048
REFINED_FIRST: Final = 256  # as long as there is no limit that leaves options out; then twice as many


class Frontier:
    """What a search has still to look at, least bound first.

    A grid that is taken leaves its groups behind, with ZeRO over fewer ranks than all. They run the same kernels and
    hold more, and no bound of a grid knows the exchanges of its states: no layout of a group is faster than that bound.

    Parameters
    ----------
    bounds : OptionBounds
        Of the grids; the cheap bound orders all of them, the full one those at the front.
    until : Until
        The end of the search, where its work is counted.
    grouped : bool
        Whether groups are looked at.

    Attributes
    ----------
    without_memory : int
        Grids found too large for the memory, and groups of them, under every option that is fast enough.
    """

    def __init__(self, bounds: OptionBounds, until: Until, *, grouped: bool) -> None:
        self.bounds = bounds
        self.until = until
        self.grouped = grouped
        self.without_memory = 0
        cheap = bounds.time_s()
        self._order = np.argsort(cheap, kind="stable")
        self._cheap = cheap[self._order]
        self._next = 0  # first of the order that is not refined
        self._size = REFINED_FIRST
        self._rows: Ints = np.empty(0, dtype=np.int64)  # refined, by bound
        self._known: Floats = np.empty((0, len(bounds.options)))
        self._groups = bounds.grids.take(self._rows)  # that wait, with the bounds of their grids
        self._groups_known = self._known

    @property
    def left(self) -> int:
        """Grids and groups that have not been taken."""
        return len(self._order) - self._next + len(self._rows) + len(self._groups)

    @property
    def least_s(self) -> float:
        """Least bound of what is left; infinite when nothing is."""
        refined = self._known[0].min() if len(self._rows) else np.inf
        return float(min(refined, self._groups_known.min(initial=np.inf), self._least_unrefined_s))

    def take(self, size: int, limit_s: float, *, grouped: bool = True) -> tuple[Grids, Floats]:
        """Take the grids of least bound, and the groups that others have left.

        Only as many grids are refined as it takes to have so many, in the order of the cheap bound: what they cost
        lowers the limit for the others.

        Parameters
        ----------
        size : int
            How many at most; of groups :data:`GROUPS_AT_ONCE`.
        limit_s : float
            Grids whose bounds exceed it [s] stay where they are.
        grouped : bool
            Whether groups may be taken.

        Returns
        -------
        tuple of Grids and ndarray
            R grids, and their bounds under each option, shape (R, O); empty when no bound that is left is within the
            limit. Grids taken later may have lower bounds. Groups come when no grid within the limit is left.
        """
        count = self._within(limit_s)
        while count < (size if np.isfinite(limit_s) else 1) and self._least_unrefined_s <= limit_s and self._unrefined:
            self._refine(limit_s)
            count = self._within(limit_s)
        count = min(size, count)
        rows, known = self._rows[:count], self._known[:count]
        self._rows, self._known = self._rows[count:], self._known[count:]
        grids = self.bounds.grids.take(rows)
        if self.grouped:
            of, groups = legal_groups(self.bounds.request, grids, self.bounds.pricing.tiers)
            self._groups = joined(self._groups, groups)
            self._groups_known = np.concatenate([self._groups_known, known[of]])
        while grouped and not len(grids) and self._groups_known.min(initial=np.inf) <= limit_s and len(self._groups):
            grids, known = self._take_groups(limit_s)
        return grids, known

    def drop_groups(self) -> None:
        """Leave the groups that wait: where no grid fits, none of its groups does."""
        self.without_memory += len(self._groups)
        self._groups, self._groups_known = self._groups.take(self._rows[:0]), self._groups_known[:0]

    def _take_groups(self, limit_s: float) -> tuple[Grids, Floats]:
        """Take the groups of least bound, without the options whose memory the mean stage has no room for."""
        least = self._groups_known.min(axis=1, initial=np.inf)
        order = np.argsort(least, kind="stable")
        count = min(GROUPS_AT_ONCE, int((least <= limit_s).sum()))
        taken, left = order[:count], np.sort(order[count:])
        groups, known = self._groups.take(taken), self._groups_known[taken]
        self._groups, self._groups_known = self._groups.take(left), self._groups_known[left]
        self._count(len(groups))
        schedule = self.bounds.request.schedule
        memory = OptionMemory(pricing=self.bounds.pricing, accepted=self.bounds.accepted, schedule=schedule)
        known = np.where(memory.mean_fits(groups, self.bounds.options, known <= limit_s), known, np.inf)
        holds = np.isfinite(known.min(axis=1))
        self.without_memory += int((~holds).sum())
        return groups.take(np.flatnonzero(holds)), known[holds]

    def _count(self, grids: int) -> None:
        """Count the work of bounding so many grids under every option."""
        self.until.spend(len(self.bounds.options) * (REFINED_OPTION_S + REFINED_S * grids))

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
        size = REFINED_AT_ONCE if np.isfinite(limit_s) else self._size
        self._size = min(2 * self._size, REFINED_AT_ONCE)
        until = min(self._next + size, int(np.searchsorted(self._cheap, limit_s, side="right")))
        rows = self._order[self._next : until]
        self._next = until
        self._count(len(rows))
        known = self.bounds.within_memory_s(rows, limit_s)
        holds = np.isfinite(known.min(axis=1))
        self.without_memory += int((~holds).sum())
        rows = np.concatenate([self._rows, rows[holds]])
        known = np.concatenate([self._known, known[holds]])
        order = np.lexsort((rows, known.min(axis=1)))
        self._rows, self._known = rows[order], known[order]
