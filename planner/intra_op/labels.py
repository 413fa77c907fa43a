"""Exact search over a chain: labels (units, bytes) from both ends, pruned by dominance and Lagrangian bounds.

A label is a way to choose the layers from one end up to some layer, with its units, its persistent bytes and its peak
of transient bytes. It is dropped when another label with the same peak, which pays the same for every next strategy, is
no worse in units and bytes; when it cannot stay within the budget; or when for one of the prices p

    time + p * (memory + peak) + cheapest completion(p) - p * budget > target - 1        (times are whole numbers)

so no completion can beat the target: the incumbent, less what the stated gap forgives. The incumbent improves whenever
a label's completion at some price fits, and when the labels of both ends are joined in the middle. After the join no
path on the grid beats the target.

With a gap, times are compared in steps of a share of it when labels dominate each other: of all labels with almost
the same time one stays, which bounds their number. The loss, one step per layer, is part of the gap.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.intra_op.bounds import Path, completions, rounding_margin
from planner.intra_op.chain import FORBIDDEN, GRID_BITS, Bools, Chain
from planner.intra_op.problem import Floats, Ints

STRIDE: Final = 1 << (GRID_BITS + 2)

BEAMS: Final = (256, 2048)
"""Labels per layer in the first passes."""

PRICE_FACTORS: Final = (1.0, 0.0, 0.5, 0.8, 1.25, 2.0)
"""Prices at which labels are bounded, as multiples of the best one; the first prunes most."""


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    """``best`` is None if nothing beats the goal; no path takes fewer than ``bound`` units.

    ``proven`` is False, and ``bound`` 0, when the label limit stopped the search.
    """

    best: Path | None
    bound: int
    proven: bool
    labels: int


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Beat ``upper`` units, none takes fewer than ``lower``; within ``relative_gap`` of the best is good enough."""

    lower: int
    upper: int
    relative_gap: float = 0.0

    def target(self, incumbent: int) -> int:
        """Value that a path must be below to matter: half of the gap is left for coarse dominance."""
        return incumbent - self._half(incumbent)

    def step(self, layers: int) -> int:
        """Step of times in dominance: over all layers at most half of the gap."""
        return max(1, self._half(self.lower) // layers)

    def _half(self, value: int) -> int:
        return math.floor(self.relative_gap * value / 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Labels:
    """Labels of one layer, in order of rank and memory; ``origin`` is the position of the parent one layer before."""

    time: Ints
    memory: Ints
    peak: Ints
    strategy: Ints
    origin: Ints

    def take(self, index: Ints | Bools) -> "_Labels":
        """Select labels by position or mask."""
        return _Labels(
            time=self.time[index],
            memory=self.memory[index],
            peak=self.peak[index],
            strategy=self.strategy[index],
            origin=self.origin[index],
        )

    def __len__(self) -> int:
        return self.time.size


@dataclass(kw_only=True)
class _Incumbent:
    """Value to beat, and the path that reached it (None: the caller's)."""

    goal: Goal
    time: int
    path: Path | None = None

    @property
    def target(self) -> int:
        """Value that a path must be below to matter."""
        return self.goal.target(self.time)


class _Side:
    """Labels from one end of a chain; the other side is a ``_Side`` of the reversed chain."""

    def __init__(self, chain: Chain, price: float, *, backward: bool) -> None:
        """Bound every completion at several prices before the first label is made."""
        self.chain = chain.reversed() if backward else chain
        self.backward = backward
        self.owners = self.chain.layer_runs()
        self.links = self.chain.transitions()
        self.prices = [price * f for f in PRICE_FACTORS] if price > 0 else [0.0]
        self.ahead = completions(self.chain, [*((1.0, p) for p in self.prices), (0.0, 1.0)])
        self.layers: list[_Labels] = []

    def hopeful(self, labels: _Labels, layer: int, best: _Incumbent) -> _Labels:
        """Labels that may still lead to a path below the target."""
        budget, target = self.chain.budget, best.target
        fits: Bools = labels.memory + labels.peak + self.ahead.memory[layer][-1, labels.strategy] <= budget
        labels = labels.take(fits & (labels.time < target))
        for k, price in enumerate(self.prices):
            over = labels.memory + labels.peak - budget
            bound = labels.time + price * over + self.ahead.cost[layer][k, labels.strategy]
            labels = labels.take(bound <= target - 1 + rounding_margin(self.chain, best.time, price))
        return labels

    def improve(self, labels: _Labels, layer: int, best: _Incumbent) -> None:
        """Complete every label at every weighting and keep the best that fits."""
        for k in range(len(self.prices) + 1):
            memory = labels.memory + self.ahead.memory[layer][k, labels.strategy]
            peak = np.maximum(labels.peak, self.ahead.peak[layer][k, labels.strategy])
            total = labels.time + self.ahead.time[layer][k, labels.strategy]
            candidates = np.where(memory + peak <= self.chain.budget, total, FORBIDDEN)
            label = int(candidates.argmin())
            if candidates[label] < best.time:
                start = self.trace(layer, label)
                layers = [*start, *self.ahead.path(k, layer, start[-1])]
                best.time = int(candidates[label])
                order = reversed(layers) if self.backward else layers
                best.path = Path(layers=tuple(order), time=best.time, memory=int(memory[label]))

    def grow(self, layer: int) -> _Labels:
        """All labels of ``layer`` from those of the layer before."""
        run = self.chain.runs[self.owners[layer]]
        size = run.keep.size
        if layer == 0:
            peak = np.maximum(run.transient, self.chain.paid)
            start = np.arange(size)
            return _Labels(time=run.time, memory=run.memory, peak=peak, strategy=start, origin=np.full(size, -1))
        before, link = self.layers[layer - 1], self.links[layer - 1]
        grown = before.time[:, None] + run.time
        return _Labels(
            time=(grown if link is None else grown + link.core[link.row[before.strategy]][:, link.column]).ravel(),
            memory=(before.memory[:, None] + run.memory).ravel(),
            peak=np.maximum(before.peak[:, None], run.transient).ravel(),
            strategy=np.tile(np.arange(size), len(before)),
            origin=np.repeat(np.arange(len(before)), size),
        )

    def run(self, until: int, best: _Incumbent, *, beam: int, max_labels: int) -> bool:
        """Make the labels of the first ``until`` layers; False if some had to be dropped to stay within a limit."""
        self.layers, total, complete = [], 0, True
        step = best.goal.step(len(self.owners))
        for layer in range(until):
            labels = self.hopeful(self.grow(layer), layer, best)
            ahead = self.links[layer] if layer < len(self.links) else None
            labels = _undominated(labels, step, None if ahead is None else ahead.row)
            if len(labels) > beam:
                complete = False
                labels = labels.take(np.linspace(0, len(labels) - 1, beam).astype(np.int64))
            self.layers.append(labels)
            total += len(labels)
            if len(labels) == 0 or total > max_labels:
                return complete and total <= max_labels
            self.improve(labels, layer, best)
        return complete

    def trace(self, layer: int, label: int) -> list[int]:
        """Strategies of a label from the end of this side up to ``layer``."""
        found = []
        for labels in reversed(self.layers[: layer + 1]):
            found.append(int(labels.strategy[label]))
            label = int(labels.origin[label])
        found.reverse()
        return found


def _ranks(classes: Ints | None, labels: _Labels) -> Ints:
    """Number the pairs of (class of the strategy, peak) that occur, in order."""
    peaks: Ints = np.unique(labels.peak, return_inverse=True)[1]
    if classes is None:
        return peaks
    pairs = classes[labels.strategy] * (int(peaks.max(initial=0)) + 1) + peaks
    ranks: Ints = np.unique(pairs, return_inverse=True)[1]
    return ranks


def _undominated(labels: _Labels, step: int, classes: Ints | None) -> _Labels:
    """Pareto set of (memory, time in steps) within each rank; labels of one class pay the same for every next strategy.

    Ties keep the first.
    """
    if len(labels) <= 1:
        return labels
    rank = _ranks(classes, labels)
    order = np.lexsort((labels.time, labels.memory, rank))
    rank = rank[order]
    # Later ranks start lower, so that one running minimum serves all; times are below the target, hence the stride.
    height = labels.time[order] // step + (rank.max() - rank) * STRIDE
    lowest = np.minimum.accumulate(height)
    return labels.take(order[np.concatenate(([True], height[1:] < lowest[:-1]))])


def _join(front: _Side, back: _Side, best: _Incumbent) -> None:
    """Pair labels of both sides over the link between them: in a rank the fastest partner that fits is the fullest."""
    middle = len(front.layers) - 1
    left, right, link = front.layers[-1], back.layers[-1], front.links[middle]
    if len(left) == 0 or len(right) == 0:
        return
    rank = _ranks(None if link is None else link.column, right)
    begins = np.flatnonzero(np.diff(rank, prepend=-1))
    for begin, end in itertools.pairwise([*begins.tolist(), len(right)]):
        peak = np.maximum(left.peak, right.peak[begin])
        room = front.chain.budget - peak - left.memory
        partner = begin + np.searchsorted(right.memory[begin:end], room, side="right") - 1
        total = left.time + right.time[partner]
        if link is not None:
            total = total + link.cost(left.strategy, right.strategy[begin])
        total = np.where(partner >= begin, total, FORBIDDEN)
        label = int(total.argmin())
        if total[label] < best.time:
            other = int(partner[label])
            layers = front.trace(middle, label) + back.trace(len(back.layers) - 1, other)[::-1]
            best.time = int(total[label])
            best.path = Path(layers=tuple(layers), time=best.time, memory=int(left.memory[label] + right.memory[other]))


def path_bounds(chain: Chain, price: float) -> list[Floats]:
    """Lower bound on every path that uses a strategy in a run, by run and strategy, in units.

    The cheapest path through strategy s at layer l costs the layer plus its cheapest completions to both ends, and pays
    the transient bytes of s. Subject to :func:`planner.intra_op.bounds.rounding_margin`.
    """
    ahead = completions(chain, [(1.0, price)]).cost
    behind = completions(chain.reversed(), [(1.0, price)]).cost[::-1]
    least = [np.full(run.keep.size, np.inf) for run in chain.runs]
    for layer, r in enumerate(chain.layer_runs()):
        peak = np.maximum(chain.runs[r].transient, chain.paid)
        own = chain.runs[r].time + price * (chain.runs[r].memory + peak - chain.budget)
        least[r] = np.minimum(least[r], own + ahead[layer][0] + behind[layer][0])
    return least


def search_labels(chain: Chain, *, price: float, goal: Goal, max_labels: int) -> LabelResult:
    """Find the fastest path within the budget that beats the goal.

    The first passes keep only so many labels a layer (``BEAMS``). If one of them never had to drop a label it is the
    proof; else it has found a better value to beat, and the last pass keeps all.

    Parameters
    ----------
    chain : Chain
        The problem.
    price : float
        Best Lagrangian price of memory (:func:`planner.intra_op.bounds.dual`), units per byte.
    goal : Goal
        Value to beat, and the gap that is good enough.
    max_labels : int
        Stop, unproven, when either side has kept more labels than this.
    """
    middle = (chain.layers + 1) // 2
    best = _Incumbent(goal=goal, time=goal.upper)
    front, back = _Side(chain, price, backward=False), _Side(chain, price, backward=True)
    labels, proven = 0, False
    for beam in (*BEAMS, max_labels):
        proven = front.run(middle, best, beam=beam, max_labels=max_labels)
        proven &= back.run(chain.layers - middle, best, beam=beam, max_labels=max_labels)
        labels += sum(map(len, front.layers)) + sum(map(len, back.layers))
        if chain.layers > 1 and (len(front.layers), len(back.layers)) == (middle, chain.layers - middle):
            _join(front, back, best)
        if proven or goal.lower >= best.target:
            break
    step = goal.step(chain.layers)
    bound = best.target - (step * chain.layers if step > 1 else 0) if proven else 0
    return LabelResult(best=best.path, bound=bound, proven=proven, labels=labels)
