"""Grids in the order of their lower bounds, which are refined only when they come to the front.

Bounds of kernels know nothing of what ZeRO 2 and 3 exchange for every micro-batch, so grids of these stages that come
to the front are priced with it first: a few times cheaper than to look at what their layers may do.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layout import REDUCING_ZERO
from costmodels.table import Bools, Floats, Ints
from planner.bounds.option_memory import OptionMemory
from planner.bounds.options import OptionBounds
from planner.layouts.grids import Grids, joined
from planner.search.effort import PARTS_S, REFINED_OPTION_S, REFINED_S, Until
from planner.search.shard_groups import legal_groups

REFINED_AT_ONCE: Final = 2_048  # grids whose options and memory are bounded together
GROUPS_AT_ONCE: Final = 2_048
REFINED_FIRST: Final = 256  # as long as there is no limit that leaves options out; then twice as many


@dataclass(frozen=True, kw_only=True, eq=False)
class _Refined:
    """R grids with bounds under each of O options, of their kernels alone and with all exchanges, shape (R, O).

    ``grouped`` says which have left their groups behind, shape (R,).
    """

    rows: Ints
    kernels: Floats
    known: Floats
    grouped: Bools

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def least(self) -> Floats:
        """Least bound of each under any option, shape (R,)."""
        return np.asarray(self.known.min(axis=1, initial=np.inf))

    def take(self, index: Ints) -> "_Refined":
        """Grids ``index``."""
        return _Refined(
            rows=self.rows[index],
            kernels=self.kernels[index],
            known=self.known[index],
            grouped=self.grouped[index],
        )

    def with_more(self, other: "_Refined") -> "_Refined":
        """These and others, by bound."""
        both = _Refined(
            rows=np.concatenate([self.rows, other.rows]),
            kernels=np.concatenate([self.kernels, other.kernels]),
            known=np.concatenate([self.known, other.known]),
            grouped=np.concatenate([self.grouped, other.grouped]),
        )
        return both.take(np.lexsort((both.rows, both.least)))


class Frontier:
    """What a search has still to look at, least bound first.

    A grid that is taken, or too slow by the exchanges of its states, leaves its groups behind, with ZeRO over fewer
    ranks than all. They run the same kernels and hold more: none is faster than the bound of the kernels of its grid.

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
        none, nothing = np.empty(0, dtype=np.int64), np.empty((0, len(bounds.options)))
        self._refined = _Refined(rows=none, kernels=nothing, known=nothing, grouped=none.astype(np.bool_))
        self._groups = bounds.grids.take(none)  # that wait, with the bounds of the kernels of their grids
        self._groups_known = nothing
        self._slow_groups = 0  # that their exchanges keep out

    @property
    def left(self) -> int:
        """Grids and groups that have not been taken."""
        return len(self._order) - self._next + len(self._refined) + len(self._groups) + self._slow_groups

    @property
    def least_s(self) -> float:
        """Least bound of what is left; infinite when nothing is."""
        refined, waiting = self._refined.least.min(initial=np.inf), self._groups_known.min(initial=np.inf)
        return float(min(refined, waiting, self._least_unrefined_s))

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
        count, every = min(size, count), np.arange(len(self._refined))
        taken, self._refined = self._refined.take(every[:count]), self._refined.take(every[count:])
        grids, known = self.bounds.grids.take(taken.rows), taken.known
        if self.grouped:
            self._leave_groups(taken)
            self._leave_groups_of_slow(limit_s)
        while grouped and not len(grids) and self._groups_known.min(initial=np.inf) <= limit_s and len(self._groups):
            grids, known = self._take_groups(limit_s)
        return grids, known

    def drop_groups(self) -> None:
        """Leave the groups that wait: where no grid fits, none of its groups does."""
        self.without_memory += len(self._groups)
        self._groups, self._groups_known = self._groups.take(np.empty(0, dtype=np.int64)), self._groups_known[:0]

    def _leave_groups(self, refined: _Refined) -> None:
        """Put the groups of some grids with those that wait."""
        grids = self.bounds.grids.take(refined.rows)
        of, groups = legal_groups(self.bounds.request, grids, self.bounds.pricing.tiers)
        self._groups = joined(self._groups, groups)
        self._groups_known = np.concatenate([self._groups_known, refined.kernels[of]])

    def _leave_groups_of_slow(self, limit_s: float) -> None:
        """Put the groups of grids whose exchanges alone exceed the limit with those that wait."""
        refined = self._refined
        slow = (refined.least > limit_s) & (refined.kernels.min(axis=1, initial=np.inf) <= limit_s) & ~refined.grouped
        if slow.any():
            self._leave_groups(refined.take(np.flatnonzero(slow)))
            self._refined = replace(refined, grouped=refined.grouped | slow)

    def _take_groups(self, limit_s: float) -> tuple[Grids, Floats]:
        """Take the groups of least bound, without the options whose memory the mean stage has no room for."""
        least = self._groups_known.min(axis=1, initial=np.inf)
        order = np.argsort(least, kind="stable")
        count = min(GROUPS_AT_ONCE, int((least <= limit_s).sum()))
        taken, left = order[:count], np.sort(order[count:])
        groups, known = self._groups.take(taken), self._groups_known[taken]
        self._groups, self._groups_known = self._groups.take(left), self._groups_known[left]
        schedule = self.bounds.request.schedule
        memory = OptionMemory(pricing=self.bounds.pricing, accepted=self.bounds.accepted, schedule=schedule)
        wanted = known <= limit_s
        self.until.spend(REFINED_S * int(wanted.sum()))
        known = np.where(memory.mean_fits(groups, self.bounds.options, wanted), known, np.inf)
        holds = np.isfinite(known.min(axis=1))
        self.without_memory += int((~holds).sum())
        groups, known = groups.take(np.flatnonzero(holds)), known[holds]
        known = self._with_exchanges_s(groups, known, limit_s)
        near = known.min(axis=1, initial=np.inf) <= limit_s
        self._slow_groups += int((~near).sum())
        return groups.take(np.flatnonzero(near)), known[near]

    def _count(self, grids: int) -> None:
        """Count the work of bounding so many grids under every option."""
        self.until.spend(len(self.bounds.options) * (REFINED_OPTION_S + REFINED_S * grids))

    def _within(self, limit_s: float) -> int:
        """Refined grids whose bound is within a limit."""
        return int((self._refined.least <= limit_s).sum())

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
        rows, kernels = rows[holds], known[holds]
        known = self._with_exchanges_s(self.bounds.grids.take(rows), kernels, limit_s)
        more = _Refined(rows=rows, kernels=kernels, known=known, grouped=np.zeros(len(rows), dtype=np.bool_))
        self._refined = self._refined.with_more(more)

    def _with_exchanges_s(self, grids: Grids, known: Floats, limit_s: float) -> Floats:
        """Bounds of grids or groups with what their ZeRO stages exchange for every micro-batch."""
        sharded = grids.table.zero >= REDUCING_ZERO
        self.until.spend(PARTS_S * int((known[sharded] <= limit_s).sum()))
        return self.bounds.with_exchanges_s(grids, known, limit_s)
