"""Exact search of a chain whose layers do not depend on each other: sums of two halves within an open excess.

At a price p of memory the *excess* of a strategy is its ``time + p * memory`` over the least of its layer. For every
path x that fits

    time(x) >= L(p) + excess(x),    L(p) = sum over layers of the least (time + p * memory), less p * room

so the paths of at most ``L + e`` units are among those of at most e excess. These are few for small e, and e doubles
until it reaches the fastest path or the target. Layers of one run make a sum (units, bytes) for every way to count
their strategies, more runs the pairs of their sums. Sums that another one beats in both are dropped, which loses
nothing: what replaces them has no more excess. At last each sum of one half of the layers meets the fastest of the
other half that fits (Horowitz and Sahni, Journal of the ACM 21, 1974).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.intra_op.bounds import Path, rounding_margin
from planner.intra_op.chain import Chain
from planner.intra_op.labels import Goal, LabelResult
from planner.intra_op.problem import Floats, Ints

FIRST_EXCESS: Final = 2.0**-22
"""Share of the lower bound up to which paths are listed first."""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Layers of one strategy: as many as the number of its row."""

    strategy: int

    def picks(self, row: int) -> list[int]:
        """Strategy of every layer."""
        return [self.strategy] * row


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """Sums over some layers: each is row ``first`` of the first part and row ``second`` of the second."""

    time: Ints
    memory: Ints
    excess: Floats
    first: Ints
    second: Ints
    parts: "tuple[_Sums | _Block, _Sums | _Block]"

    def picks(self, row: int) -> list[int]:
        """Strategy of every layer of a sum."""
        return self.parts[0].picks(int(self.first[row])) + self.parts[1].picks(int(self.second[row]))

    def best(self) -> "_Sums":
        """Those that no other one beats, in order of bytes; of equal ones the first."""
        order = np.lexsort((self.time, self.memory))
        before = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], self.time[order])))[:-1]
        rows = order[self.time[order] < before]
        arrays = {name: getattr(self, name)[rows] for name in ("time", "memory", "excess", "first", "second")}
        return _Sums(parts=self.parts, **arrays)


@dataclass(kw_only=True)
class _Lists:
    """Lists of sums of at most ``most`` excess; ``made`` counts them; more than ``limit`` are not ``complete``."""

    chain: Chain
    price: float
    most: float
    limit: int
    made: int = 0

    @property
    def complete(self) -> bool:
        """Whether no list was left empty because the sums were too many."""
        return self.made <= self.limit

    def _numbered(self, sizes: Ints) -> tuple[Ints, Ints]:
        """Row and number of every sum where each row makes so many; of none when they are too many."""
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        self.made += total
        at = np.arange(total if self.complete else 0)
        row = np.searchsorted(ends, at, side="right")
        return row, at - (ends - sizes)[row]

    def layers(self, run: int, count: int) -> _Sums:
        """Sums over some layers of a run: every way to move layers from its cheapest strategy to others."""
        own = self.chain.runs[run]
        cost = own.time + self.price * own.memory
        each = cost - cost.min()
        base, zero = int(each.argmin()), np.zeros(1, dtype=np.int64)
        sums = _Sums(
            time=zero, memory=zero, excess=np.zeros(1), first=zero, second=zero, parts=(_Block(strategy=base),) * 2
        )
        left = np.array([count])
        for s in np.argsort(-each, kind="stable").tolist():
            if s != base and each[s] <= self.most:
                may = np.floor((self.most - sums.excess) / each[s]) if each[s] > 0.0 else left
                row, moved = self._numbered(1 + np.minimum(left, may).astype(np.int64))
                sums = self._with(sums, row, moved, run, s)
                left = left[row] - moved
        return self._with(sums, np.arange(len(left)), left, run, base).best()

    def _with(self, sums: _Sums, row: Ints, moved: Ints, run: int, strategy: int) -> _Sums:
        """Rows of sums with so many layers of one more strategy."""
        own = self.chain.runs[run]
        cost = own.time + self.price * own.memory
        return _Sums(
            time=sums.time[row] + moved * own.time[strategy],
            memory=sums.memory[row] + moved * own.memory[strategy],
            excess=sums.excess[row] + moved * (cost[strategy] - cost.min()),
            first=row,
            second=moved,
            parts=(sums, _Block(strategy=strategy)),
        )

    def pairs(self, a: _Sums, b: _Sums) -> _Sums:
        """Sums of both within the excess."""
        by_excess = np.argsort(b.excess, kind="stable")
        row, number = self._numbered(np.searchsorted(b.excess[by_excess], self.most - a.excess, side="right"))
        other = by_excess[number]
        return _Sums(
            time=a.time[row] + b.time[other],
            memory=a.memory[row] + b.memory[other],
            excess=a.excess[row] + b.excess[other],
            first=row,
            second=other,
            parts=(a, b),
        ).best()

    def half(self, begin: int, end: int) -> _Sums:
        """Sums over layers ``begin .. end - 1``."""
        sums, at = self.layers(0, 0), 0
        for number, run in enumerate(self.chain.runs):
            count = min(end, at + run.count) - max(begin, at)
            sums, at = self.pairs(sums, self.layers(number, count)) if count > 0 else sums, at + run.count
        return sums

    def fastest(self) -> Path | None:
        """Fastest path that fits, of those listed."""
        middle = self.chain.layers // 2
        a, b = self.half(0, middle), self.half(middle, self.chain.layers)
        partner = np.searchsorted(b.memory, self.chain.room - a.memory, side="right") - 1
        fitting = np.flatnonzero(partner >= 0)
        if not fitting.size:
            return None
        total = a.time[fitting] + b.time[partner[fitting]]  # the fullest partner is the fastest
        row = int(fitting[total.argmin()])
        layers = a.picks(row) + b.picks(int(partner[row]))
        memory = int(a.memory[row] + b.memory[partner[row]])
        return Path(layers=tuple(layers), time=int(total.min()), memory=memory)


def search_halves(chain: Chain, *, price: float, goal: Goal, max_sums: int) -> LabelResult:
    """Find the fastest path within the room of a separable chain, to the last unit, if it beats the goal's target.

    Parameters
    ----------
    chain : Chain
        One cap of transient bytes, which are paid.
    price : float
        Best Lagrangian price of memory (:func:`planner.intra_op.bounds.dual`), units per byte.
    goal : Goal
        Value to beat, and the gap that is good enough.
    max_sums : int
        Stop, unproven, when more would have to be listed in all.
    """
    least = sum(run.count * float((run.time + price * run.memory).min()) for run in chain.runs)
    margin = rounding_margin(chain, goal.upper, price)
    lower = least - price * chain.room - margin
    best, upper, made, bound = None, goal.upper, 0, 0
    most = max(1.0, FIRST_EXCESS * abs(lower))
    while bound < goal.target(upper):
        lists = _Lists(chain=chain, price=price, most=most + margin, limit=max_sums - made)
        found = lists.fastest()
        if not lists.complete:
            return LabelResult(best=best, bound=bound, proven=False, labels=made)
        made += lists.made
        if found is not None and found.time < upper:
            best, upper = found, found.time
        bound = min(upper, math.floor(lower + most) + 1)
        most = min(2.0 * most, goal.target(upper) - lower)
    return LabelResult(best=best, bound=bound, proven=True, labels=made)
