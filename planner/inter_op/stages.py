"""Layers onto a fixed row of pipeline stages: uneven splits, exactly, with the k best.

``problem.cost_s[p, i, j]`` is the time of stage p when it holds layers i..j-1 (infinite: not allowed, for instance
because memory is short there). A split gives stage p its count ``n_p``. With ``fill`` and ``m`` of the objective

    F_p(i; tau) = min over n of cost_p(i, i+n) + F_{p+1}(i+n; tau),   cost <= tau;   F_pp(L) = 0

is the least sum of stage times under a threshold on each of them. F_0(0; .) only falls as tau grows, so the optimum is
at one of its steps. The search goes down the steps that can still matter: between the least possible bottleneck and the
threshold above which the bound ``fill F + (m - fill) tau`` exceeds the k-th best. Proofs: docs/formulation.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from planner.inter_op.grid import FORBIDDEN, Floats, Ints, grid_unit_s, on_grid
from planner.inter_op.objective import PipelineObjective

Split = tuple[int, ...]

WIDENINGS: Final = (12, 9, 6, 3)
"""Thresholds tried until k splits are known: the least bottleneck plus so many halvings of what lies above it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProblem:
    """Layers, stages, and what each span of layers costs on each stage.

    Parameters
    ----------
    cost_s : array of shape (pp, L + 1, L + 1) or (pp, L, L + 1)
        Seconds per micro-batch of stage p with layers i..j-1 at ``[p, i, j]``; infinite if not allowed. Entries with
        j < i are ignored, entries with j = i are empty stages.
    objective : PipelineObjective
        Weights of sum and bottleneck.
    min_layers : int or tuple of int, optional
        Least layers of a stage, the same for all or one per stage; 0 allows empty stages.

    Raises
    ------
    ValueError
        On shapes that do not match or numbers out of range.
    """

    cost_s: Floats
    objective: PipelineObjective
    min_layers: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        """Check the shapes; complete the row of empty stages after the last layer."""
        cost = np.asarray(self.cost_s, dtype=np.float64)
        if cost.ndim != 3 or cost.shape[1] not in {cost.shape[2], cost.shape[2] - 1} or 0 in cost.shape:
            raise ValueError(f"cost_s must have shape (pp, L + 1, L + 1) or (pp, L, L + 1), got {cost.shape}")
        if cost.shape[1] < cost.shape[2]:
            last = np.full((cost.shape[0], 1, cost.shape[2]), np.inf)
            last[:, 0, -1] = cost[:, -1, -2]  # an empty stage costs the same after the last layer as before it
            cost = np.concatenate((cost, last), axis=1)
        cost.setflags(write=False)
        object.__setattr__(self, "cost_s", cost)
        least = (self.min_layers,) * self.stages if isinstance(self.min_layers, int) else tuple(self.min_layers)
        if len(least) != self.stages or min(least) < 0:
            raise ValueError(f"min_layers needs {self.stages} numbers of at least 0, got {least}")
        object.__setattr__(self, "min_layers", least)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.cost_s.shape[0])

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.cost_s.shape[2]) - 1

    def stage_times_s(self, split: Split) -> tuple[float, ...]:
        """Seconds of each stage under a split."""
        ends = np.cumsum(split)
        return tuple(float(self.cost_s[p, end - n, end]) for p, (n, end) in enumerate(zip(split, ends, strict=True)))

    def step_s(self, split: Split) -> float:
        """Objective of a split, from the costs as given."""
        return self.objective.step_s(self.stage_times_s(split))


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One split, priced from the problem's own costs."""

    split: Split
    step_s: float
    stage_times_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StagePlans:
    """The best distinct splits, best first; empty if no split is allowed.

    Every split that is not listed costs at least ``bound_s`` (infinite if all are listed). Equal costs go to the
    lexicographically smallest split (before that to the smaller sum, if the sum has no weight). ``thresholds`` counts
    evaluations of the recursion.
    """

    plans: tuple[StagePlan, ...]
    bound_s: float
    thresholds: int

    @property
    def best(self) -> StagePlan | None:
        """The optimum, None if no split is allowed."""
        return self.plans[0] if self.plans else None


def partition_stages(problem: StageProblem, *, k: int = 1) -> StagePlans:
    """Find the k best distinct splits.

    Parameters
    ----------
    problem : StageProblem
        Layers, stages and costs.
    k : int, optional
        How many splits to return.

    Returns
    -------
    StagePlans
        Exact on the grid of :mod:`planner.inter_op.grid`; ties go to the lexicographically smallest split.
    """
    return partition_many([problem], k=k)[0]


def partition_many(problems: Sequence[StageProblem], *, k: int = 1) -> list[StagePlans]:
    """Solve many problems; those with equal numbers of layers and stages share each array operation."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    groups: dict[tuple[int, int], list[int]] = {}
    for index, problem in enumerate(problems):
        groups.setdefault((problem.stages, problem.layers), []).append(index)
    found: dict[int, StagePlans] = {}
    for members in groups.values():
        batch = _Batch([problems[i] for i in members], k)
        found |= dict(zip(members, batch.solve(), strict=True))
    return [found[i] for i in range(len(problems))]


@dataclass(kw_only=True)
class _Best:
    """The k best splits of one problem so far, as (units, sum if it has no weight, split)."""

    objective: PipelineObjective
    k: int
    found: list[tuple[int, int, Split]] = field(default_factory=list)

    def offer(self, split: Split, times: Sequence[int]) -> None:
        """Keep the split if it is among the k best."""
        total, largest = sum(times), max(times)
        entry = (self.objective.units(total, largest), 0 if self.objective.sum_weight else total, split)
        if entry not in self.found:
            self.found = sorted([*self.found, entry])[: self.k]

    @property
    def worst(self) -> int:
        """Units that a split must not exceed to matter."""
        return self.found[-1][0] if len(self.found) == self.k else FORBIDDEN << 12

    def cap(self, least_sum: int) -> int:
        """Largest bottleneck with which a split of at least this sum can still matter."""
        if self.objective.max_weight == 0:
            return FORBIDDEN - 1
        room = self.worst - self.objective.sum_weight * least_sum
        return max(-1, min(FORBIDDEN - 1, room // self.objective.max_weight))


class _Batch:
    """Problems with equal (pp, L): arrays of shape (B, pp, L + 1, W + 1) by stage, first layer and count."""

    def __init__(self, problems: Sequence[StageProblem], k: int) -> None:
        self.problems = problems
        self.k = k
        self.units = [grid_unit_s(np.triu(p.cost_s)) for p in problems]
        self.cost = np.stack([_by_count(p, unit) for p, unit in zip(problems, self.units, strict=True)])
        self.best = [_Best(objective=p.objective, k=k) for p in problems]
        self.evaluated = [0] * len(problems)
        # Least cost of any span of n layers: thresholds below it leave the count out.
        self.least_by_count = self.cost.min(axis=(1, 2))
        self.dearest = np.where(self.cost < FORBIDDEN, self.cost, 0).max(axis=(1, 2, 3))
        self.bottleneck_counts = np.array([p.objective.max_weight > 0 for p in problems])

    def solve(self) -> list[StagePlans]:
        """Begin at the least bottleneck, widen until k splits are known, then go down the steps that can matter."""
        every = np.arange(len(self.problems))
        floor = self.bottleneck()
        feasible = every[floor < FORBIDDEN]
        self.evaluate(feasible, floor[feasible])
        for shift in WIDENINGS:
            short = np.array([b for b in feasible if len(self.best[b].found) < self.k], dtype=np.int64)
            self.evaluate(short, floor[short] + ((self.dearest[short] - floor[short]) >> shift))
        least = np.zeros(every.size, dtype=np.int64)
        tau = np.where(floor < FORBIDDEN, FORBIDDEN - 1, -1)
        while True:
            tau = np.minimum(tau, [self.best[b].cap(int(least[b])) for b in every])
            active = feasible[tau[feasible] > floor[feasible]]  # the floor itself has been evaluated
            if active.size == 0:
                return [self.answer(int(b)) for b in every]
            least[active], largest = self.evaluate(active, tau[active])
            tau[active] = np.where(self.bottleneck_counts[active], largest - 1, -1)

    def bottleneck(self) -> Ints:
        """Least possible largest stage time per problem, shape (B,)."""
        after = self.leaf(len(self.problems))
        for p in range(self.cost.shape[1] - 1, -1, -1):
            after = np.maximum(self.cost[:, p], _windows(after, self.cost.shape[3])).min(axis=2)
        return after[:, 0]

    def leaf(self, size: int) -> Ints:
        """Recursion after the last stage: all layers must be placed."""
        end = np.full((size, self.cost.shape[2]), FORBIDDEN, dtype=np.int64)
        end[:, -1] = 0
        return end

    def evaluate(self, members: Ints, thresholds: Ints) -> tuple[Ints, Ints]:
        """Offer the k splits of least sum under the thresholds.

        Returns the least sum and the largest bottleneck among the k splits, shape (members,); if there are fewer than
        k splits, all have been seen, and the bottleneck is 0.
        """
        if members.size == 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        useful = (self.least_by_count[members] <= thresholds[:, None]).any(axis=0)
        width = int(np.flatnonzero(useful)[-1]) + 1
        allowed = self.cost[members, :, :, :width]
        allowed = np.where(allowed <= thresholds[:, None, None, None], allowed, FORBIDDEN)
        suffix = [self.leaf(members.size)]
        for p in range(self.cost.shape[1] - 1, -1, -1):
            suffix.append(np.minimum((allowed[:, p] + _windows(suffix[-1], width)).min(axis=2), FORBIDDEN))
        suffix.reverse()
        largest = []
        for row, b in enumerate(members):
            tops = []
            for split, times in _cheapest_paths(allowed[row], [f[row] for f in suffix], self.k):
                self.best[b].offer(split, times)
                tops.append(max(times))
            largest.append(max(tops) if len(tops) == self.k else 0)
            self.evaluated[b] += 1
        return suffix[0][:, 0], np.array(largest, dtype=np.int64)

    def answer(self, b: int) -> StagePlans:
        """Price the splits from the problem's own costs."""
        problem, best = self.problems[b], self.best[b]
        plans = tuple(
            StagePlan(split=split, step_s=problem.step_s(split), stage_times_s=problem.stage_times_s(split))
            for *_, split in best.found
        )
        bound_s = (
            float("inf") if len(plans) < self.k else best.worst * self.units[b] / problem.objective.fill.denominator
        )
        return StagePlans(plans=plans, bound_s=bound_s, thresholds=self.evaluated[b])


def _windows(after: Ints, width: int) -> Ints:
    """View of ``after[b, i + n]`` as (B, L + 1, width); beyond the last layer it is forbidden."""
    padded = np.pad(after, ((0, 0), (0, width - 1)), constant_values=FORBIDDEN)
    return sliding_window_view(padded, width, axis=1)


def _by_count(problem: StageProblem, unit_s: float) -> Ints:
    """Costs by (stage, first layer, count) in units; counts that are too small or run over are forbidden."""
    layers = problem.layers
    start = np.arange(layers + 1)[:, None]
    count = np.arange(layers + 1)[None, :]
    end = np.minimum(start + count, layers)
    cost = on_grid(np.where(start <= end, problem.cost_s[:, start, end], np.inf), unit_s)
    least = np.array(problem.min_layers)[:, None, None]
    return np.where((start + count <= layers) & (count >= least), cost, FORBIDDEN)


def _cheapest_paths(cost: Ints, suffix: Sequence[Ints], k: int) -> Iterator[tuple[Split, list[int]]]:
    """The k splits of least sum, equal sums in lexicographic order: best-first search with exact completions.

    ``cost`` has shape (pp, L + 1, W + 1), ``suffix[p][i]`` is the least sum of stages p.. from layer i.
    """
    stages, layers = cost.shape[0], cost.shape[1] - 1
    heap: list[tuple[int, Split, int, int]] = []
    if suffix[0][0] < FORBIDDEN:
        heap.append((int(suffix[0][0]), (), 0, 0))
    while heap and k > 0:
        _, split, used, spent = heappop(heap)
        p = len(split)
        if p == stages:
            ends = np.cumsum(split)
            yield split, [int(cost[q, ends[q] - n, n]) for q, n in enumerate(split)]
            k -= 1
            continue
        counts = np.arange(min(cost.shape[2], layers - used + 1))
        total = cost[p, used, counts] + suffix[p + 1][used + counts]
        order = np.argsort(total, kind="stable")[:k]
        for n in order[total[order] < FORBIDDEN]:
            step = int(cost[p, used, n])
            heappush(heap, (spent + int(total[n]), (*split, int(n)), used + int(n), spent + step))
