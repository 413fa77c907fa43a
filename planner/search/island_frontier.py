"""Strategies of stages over several islands in the order of their bounds; they are priced when they come to the front.

Every grid has a cheap bound under every recompute option, from kernels that are priced once for each distinct size on
every island. In its order the strategies are weighed against the memory, and those that fit are priced and bounded with
their islands in every order. What has the least bound of these is handed out when no cheap bound is lower, and after
every block that was priced: what it costs is a limit for the others.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from costmodels.layout import Recompute
from costmodels.pricing import Pricing
from costmodels.table import Floats, Ints
from planner.bounds.option_times import OptionTimes
from planner.bounds.step_time import Work, with_jitter_s
from planner.layouts.expand import expand
from planner.layouts.grids import Grids, joined
from planner.search.effort import GRID_S, ISLAND_ROW_S, Until
from planner.search.island_rows import IslandRows

WEIGHED_AT_ONCE: Final = 4_096  # strategies weighed against the memory together
PRICED_AT_ONCE: Final = 2_048  # at most: every block is twice the one before
PRICED_FIRST: Final = 32  # for a first layout early
_NOTHING_S: Final = 1e-12  # work on the first island that says nothing about the speed of another


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """Grids whose stages have equally many GPUs, and how many of these stages each island takes."""

    grids: Grids
    stages: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Open:
    """One row with its islands in an order: no layout of it is faster than ``bound_s``."""

    bound_s: float
    rows: IslandRows
    row: int
    order: tuple[int, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """What makes two layouts differ for a user: the grid."""
        table, row = self.rows.grids.table, self.row
        degrees = (table.tp, table.cp, table.dp, table.ep, table.etp)
        return (*(int(degree[row]) for degree in degrees), self.rows.pp)


class IslandFrontier:
    """What a search over islands has still to look at, least bound first.

    A *strategy* is a grid under a recompute option.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island.
    options : tuple of Recompute
        Recompute choices.
    orders : sequence of tuple of int
        Orders of the islands.
    shapes : sequence of Shape
        At least one, none of them without grids.
    """

    def __init__(
        self,
        pricings: Sequence[Pricing],
        options: tuple[Recompute, ...],
        orders: Sequence[tuple[int, ...]],
        shapes: Sequence[Shape],
    ) -> None:
        self.pricings = tuple(pricings)
        self.options = options
        self.orders = tuple(orders)
        self.shapes = tuple(shapes)
        self._grids = reduce(joined, (shape.grids for shape in shapes))
        self._shape = np.repeat(np.arange(len(shapes)), [len(shape.grids) for shape in shapes])
        cheap = self._cheap_s().ravel()
        self._order = np.argsort(cheap, kind="stable")  # strategies: grid x options + option
        self._cheap = cheap[self._order]
        self._next = 0  # first that is not weighed
        self._held: Ints = np.empty(0, dtype=np.int64)  # weighed and not priced, by cheap bound
        self._held_s: Floats = np.empty(0)
        self._heap: list[tuple[float, tuple[int, ...], int, Open]] = []
        self._size = PRICED_FIRST
        self._probe = False  # whether to hand out what is ahead, whatever is left

    @property
    def left(self) -> int:
        """Strategies that have not been taken, those not priced with their islands in every order."""
        return len(self._heap) + (len(self._order) - self._next + len(self._held)) * len(self.orders)

    @property
    def least_s(self) -> float:
        """Least bound of what is left; infinite when nothing is."""
        return min(self._ahead_s, self._least_held_s, self._least_unweighed_s)

    def take(self, limit_s: float, until: Until) -> Open | None:
        """Take what has the least bound of what has been priced.

        Parameters
        ----------
        limit_s : float
            What exceeds it stays where it is [s].
        until : Until
            After it nothing more is priced.

        Returns
        -------
        Open or None
            None where no bound that is left is within the limit, or where the time has ended.
        """
        while not until.late():
            within_s = min(self._ahead_s, limit_s)
            if self._probe and self._heap and self._ahead_s <= limit_s:
                self._probe = False
                return heapq.heappop(self._heap)[-1]
            if len(self._held) and self._least_held_s <= within_s:
                until.spend(ISLAND_ROW_S * len(self.orders) * self._price(within_s))
            elif self._next < len(self._order) and self._least_unweighed_s <= within_s:
                until.spend(GRID_S * self._weigh(limit_s))
            elif self._heap and self._ahead_s <= limit_s:
                return heapq.heappop(self._heap)[-1]
            else:
                return None
        return None

    @property
    def _ahead_s(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def _least_held_s(self) -> float:
        return float(self._held_s[0]) if len(self._held) else float("inf")

    @property
    def _least_unweighed_s(self) -> float:
        return float(self._cheap[self._next]) if self._next < len(self._order) else float("inf")

    def _weigh(self, limit_s: float) -> int:
        """Drop those of the next strategies that no order of the islands has the memory for; how many were weighed."""
        until = min(self._next + WEIGHED_AT_ONCE, int(np.searchsorted(self._cheap, limit_s, side="right")))
        numbers = np.arange(self._next, until)
        self._next = until
        held = np.zeros(len(numbers), dtype=np.bool_)
        for rows, some in self._rows_of(self._order[numbers]):
            held[some] = np.any([rows.holds(order) for order in self.orders], axis=0)
        self._held = np.concatenate([self._held, self._order[numbers[held]]])
        self._held_s = np.concatenate([self._held_s, self._cheap[numbers[held]]])
        return len(numbers)

    def _price(self, within_s: float) -> int:
        """Bound the next strategies that fit with their islands in every order; how many they were."""
        size = min(self._size, int(np.searchsorted(self._held_s, within_s, side="right")))
        self._size, self._probe = min(2 * self._size, PRICED_AT_ONCE), True
        chosen, self._held, self._held_s = self._held[:size], self._held[size:], self._held_s[size:]
        for rows, some in self._rows_of(chosen):
            for order in self.orders:
                bound = rows.bound_s(order)
                for row in np.flatnonzero(np.isfinite(bound)).tolist():
                    entry = Open(bound_s=float(bound[row]), rows=rows, row=row, order=order)
                    heapq.heappush(self._heap, (entry.bound_s, order, int(chosen[some[row]]), entry))
        return size

    def _rows_of(self, strategies: Ints) -> Iterator[tuple[IslandRows, Ints]]:
        """Some strategies as rows, one table for each shape, with their places among those given."""
        grid, option = np.divmod(strategies, len(self.options))
        for number in np.unique(self._shape[grid]).tolist():
            some = np.flatnonzero(self._shape[grid] == number)
            some = some[np.lexsort((option[some], grid[some]))]  # as they are expanded
            mine, of = np.unique(grid[some], return_inverse=True)
            used, under = np.unique(option[some], return_inverse=True)
            wanted = np.zeros((len(mine), len(used)), dtype=np.bool_)
            wanted[of, under] = True
            options = tuple(self.options[one] for one in used.tolist())
            block = expand(self._grids.take(mine), options, wanted, mixes=False).grids
            yield IslandRows(pricings=self.pricings, grids=block, stages=self.shapes[number].stages), some

    def _cheap_s(self) -> Floats:
        """Least time of any layout of every grid under every option, shape (S, options).

        Notes
        -----
        With ``w_j`` the least ratio of any piece of work on island j to the same on island 0, W all work there and n_j
        the stages of an island: ``T >= m t_s`` for every stage s, and ``sum t_s / w_s >= W``, so that ``T >= m W / sum
        n_j / w_j``.
        """
        every = np.arange(len(self._grids))
        stages = np.array([shape.stages for shape in self.shapes], dtype=np.float64)[self._shape]
        times = [OptionTimes(pricing=one, options=self.options, grids=self._grids) for one in self.pricings]
        columns = []
        for number in range(len(self.options)):
            works = [time.work(number, every) for time in times]
            pieces = [_pieces_s(work) for work in works]
            first = np.maximum(pieces[0], _NOTHING_S)
            told = pieces[0] > _NOTHING_S
            ratio = [(piece / first).min(axis=0, where=told, initial=np.inf) for piece in pieces]
            speed = (stages / np.stack(ratio, axis=1)).sum(axis=1)
            whole_s = np.array(works[0].counts, dtype=np.float64) @ works[0].layer_s
            whole_s = whole_s + works[0].first_s + works[0].last_s
            columns.append(with_jitter_s(self._grids.num_microbatches * whole_s / speed, self._grids.gpus))
        return np.stack(columns, axis=1)


def _pieces_s(work: Work) -> Floats:
    """Seconds per micro-batch of each kind of layer and of what lies at the ends of the model, shape (pieces, S)."""
    return np.concatenate([work.layer_s, work.first_s[None], work.last_s[None]])
