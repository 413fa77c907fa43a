"""Layers onto interleaved chunks: position ``c * pp + p`` of the model is chunk c of stage p.

A stage works on all its chunks for every micro-batch, so its time is the sum over them:

    T = (1/v) sum_p t_p + (m - 1/v) max_p t_p,     t_p = sum_c cost of chunk (p, c)

With equal layers only the totals per stage matter: the problem is that of :mod:`planner.inter_op.stages`, solved
exactly, and the totals are dealt to the chunks as evenly as their ends allow. With unlike layers the chunks' places
matter: the split of least largest chunk (exact) is improved by moving layers between chunks, and compared with a bound
that may put any layer on any stage. Where it does not fit, splits that spread the memory are improved as well.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from planner.inter_op.costs import NO_ENDS, Ends, LayerRun, Position, stage_costs_s
from planner.inter_op.grid import Floats, Ints
from planner.inter_op.objective import PipelineObjective, interleaved, one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages

NEAR: Final = 2  # splits beside the best of unlike layers that are told
FEW_A_CHUNK: Final = 2  # layers a chunk up to which ends are left alone beside what the objective says
NUMBERS_AT_ONCE: Final = 1 << 20  # of splits that are priced together
_NO_END: Final = (False, False)
_WITH_LONE_ENDS: Final = ((True, True), (True, False), (False, True))  # the first chunk of the model, the last

Chunks = tuple[tuple[int, ...], ...]
"""Layers by stage and chunk."""


@dataclass(frozen=True, kw_only=True)
class ChunkProblem:
    """Layers, stages, chunks per stage.

    Parameters
    ----------
    runs : tuple of LayerRun
        The model's layers.
    positions : tuple of Position
        The stages; memory limits hold for a stage's total.
    chunks : int
        Virtual stages per stage, at least 2.
    micro_batches : int
        Micro-batches per step.
    ends : Ends, optional
        Embedding (first chunk of the first stage) and head (last chunk of the last stage).
    lone_ends : bool, optional
        Whether the first and the last chunk of the model may hold no layer.
    """

    runs: tuple[LayerRun, ...]
    positions: tuple[Position, ...]
    chunks: int
    micro_batches: int
    ends: Ends = NO_ENDS
    lone_ends: bool = False

    def least_layers(self, stage: int, chunk: int) -> int:
        """Least layers of a chunk: 1, or 0 for the first and the last of the model if they may be alone."""
        last = len(self.positions) - 1, self.chunks - 1
        return 0 if self.lone_ends and (stage, chunk) in ((0, 0), last) else 1

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(run.count for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """Layers by stage and chunk; no plan is faster than ``bound_s``.

    ``near`` are splits that the exact schedule may prefer: with unlike layers the best with one layer elsewhere, with
    equal ones, if they are few, the same totals with the ends of the model alone, where they may be.
    """

    layers: Chunks
    near: tuple[Chunks, ...] = field(default=(), kw_only=True)
    step_s: float
    stage_times_s: tuple[float, ...]
    bound_s: float

    @property
    def proven_optimal(self) -> bool:
        """Whether the plan meets the bound."""
        return self.step_s <= self.bound_s * (1 + 1e-9)


def partition_chunks(problem: ChunkProblem) -> ChunkPlan | None:
    """Split layers over interleaved chunks; None if nothing fits.

    Every chunk holds at least one layer, but for lone ends. Deterministic: equal steps keep the plan found first.

    Raises
    ------
    ValueError
        If there are fewer than two chunks per stage.
    """
    if problem.chunks < 2:
        raise ValueError(f"interleaving needs at least 2 chunks per stage, got {problem.chunks}")
    kinds = {(run.time_s, run.weight_bytes, run.activation_bytes) for run in problem.runs}
    return _equal_layers(problem) if len(kinds) == 1 else _unlike_layers(problem)


def _equal_layers(problem: ChunkProblem) -> ChunkPlan | None:
    """Exact: totals per stage, then dealt to the chunks."""
    objective = interleaved(problem.micro_batches, problem.chunks)
    costs = stage_costs_s(problem.runs, problem.positions, problem.ends)
    least = tuple(
        sum(problem.least_layers(stage, chunk) for chunk in range(problem.chunks))
        for stage in range(len(problem.positions))
    )
    best = partition_stages(StageProblem(cost_s=costs, objective=objective, min_layers=least)).best
    if best is None:
        return None
    few = problem.layers <= FEW_A_CHUNK * problem.chunks * len(problem.positions)
    dealt = [
        tuple(_deal(problem, p, total, alone) for p, total in enumerate(best.split))
        for alone in (_NO_END, *(_WITH_LONE_ENDS if problem.lone_ends and few else ()))
    ]
    first, *near = dict.fromkeys(dealt)
    return ChunkPlan(
        layers=first, near=tuple(near), step_s=best.step_s, stage_times_s=best.stage_times_s, bound_s=best.step_s
    )


def _deal(problem: ChunkProblem, stage: int, total: int, alone: tuple[bool, bool]) -> tuple[int, ...]:
    """Give each chunk its least layers, then the rest one by one to that with least time, the earliest of equals.

    ``alone``: whether the first and the last chunk of the model get nothing as long as the stage has another chunk.
    """
    layer_s, ends = problem.runs[0].time_s, problem.ends
    busy = [0.0] * problem.chunks
    busy[0] += (math.inf if alone[0] else ends.first_s) if stage == 0 else 0.0
    busy[-1] += (math.inf if alone[1] else ends.last_s) if stage == len(problem.positions) - 1 else 0.0
    counts = [problem.least_layers(stage, chunk) for chunk in range(problem.chunks)]
    for _ in range(total - sum(counts)):
        chunk = min(range(problem.chunks), key=lambda c: (busy[c] + counts[c] * layer_s, c))
        counts[chunk] += 1
    return tuple(counts)


class _Pricing:
    """Prices of splits over all chunks, in model order."""

    def __init__(self, problem: ChunkProblem) -> None:
        self.problem = problem
        self.objective = interleaved(problem.micro_batches, problem.chunks)
        pp, v = len(problem.positions), problem.chunks
        free = tuple(replace(position, limit_bytes=float("inf")) for position in problem.positions)
        self.cost = stage_costs_s(problem.runs, free * v, problem.ends)  # ends: first and last of all positions
        held = [LayerRun(count=r.count, time_s=r.weight_bytes) for r in problem.runs]
        flying = [LayerRun(count=r.count, time_s=r.activation_bytes) for r in problem.runs]
        self.weights = stage_costs_s(held, (Position(),))[0]
        self.activations = stage_costs_s(flying, (Position(),))[0]
        self.limit = np.array([p.limit_bytes for p in problem.positions])
        self.limit[0] -= problem.ends.first_bytes
        self.limit[-1] -= problem.ends.last_bytes
        self.in_flight = np.array([p.in_flight for p in problem.positions])
        self.shape = (v, pp)
        self.least = tuple(problem.least_layers(stage, chunk) for chunk in range(v) for stage in range(pp))

    def stage_times_s(self, split: tuple[int, ...]) -> Floats | None:
        """Seconds per stage; None if a stage does not fit."""
        return None if self.excess_bytes(split) > 0.0 else self._times_s(*_spans(np.array([split])))[0]

    def excess_bytes(self, split: tuple[int, ...]) -> float:
        """What the stages hold beyond their limits, added up."""
        return float(self._excess_bytes(*_spans(np.array([split])))[0])

    def keys(self, splits: Ints) -> Floats:
        """Objective of splits, shape (N, P), and what tells those of one bottleneck apart: shape (N, 2).

        That is the sum of squares. Of a split that does not fit, infinity and by how much.
        """
        spans = _spans(splits)
        excess, times = self._excess_bytes(*spans), self._times_s(*spans)
        total, largest = times.cumsum(axis=1)[:, -1], times.max(axis=1)
        weights = self.objective
        step_s = (weights.sum_weight * total + weights.max_weight * largest) / weights.fill.denominator
        fits = excess <= 0.0
        return np.stack([np.where(fits, step_s, np.inf), np.where(fits, (times**2).sum(axis=1), excess)], axis=1)

    def key(self, split: tuple[int, ...]) -> tuple[float, float]:
        """The keys of one split."""
        first, second = self.keys(np.array([split]))[0].tolist()
        return first, second

    def _excess_bytes(self, starts: Ints, ends: Ints) -> Floats:
        """As :meth:`excess_bytes`, of N splits by their spans, shape (N, P) each."""
        shape = (len(starts), *self.shape)
        weights = self.weights[starts, ends].reshape(shape).sum(axis=1)
        activations = self.activations[starts, ends].reshape(shape).sum(axis=1)
        excess: Floats = np.maximum(weights + self.in_flight * activations - self.limit, 0.0).sum(axis=1)
        return excess

    def _times_s(self, starts: Ints, ends: Ints) -> Floats:
        """Seconds of every stage of N splits by their spans, shape (N, stages)."""
        places = np.arange(starts.shape[1])
        times: Floats = self.cost[places, starts, ends].reshape(len(starts), *self.shape).sum(axis=1)
        return times

    def by_stage(self, split: tuple[int, ...]) -> Chunks:
        """A split over the positions as chunks of every stage."""
        return tuple(split[stage :: self.shape[1]] for stage in range(self.shape[1]))

    def by_memory(self) -> Floats:
        """Bytes of every span on every position over its stage's limit for one chunk, shape (P, L + 1, L + 1)."""
        held = self.weights + self.in_flight[:, None, None] * self.activations
        share = held / np.maximum(self.limit, 1.0)[:, None, None]
        return np.tile(share, (self.shape[0], 1, 1))


def _spans(splits: Ints) -> tuple[Ints, Ints]:
    """First layer of each position of N splits, and the one behind its last, shape (N, P) each."""
    ends = np.cumsum(splits, axis=1)
    return ends - splits, ends


def _unlike_layers(problem: ChunkProblem) -> ChunkPlan | None:
    pricing = _Pricing(problem)
    v = problem.chunks
    # In lockstep every slot takes the largest chunk's time: m v slots, and one fill of all chunks over v.
    lockstep = one_f_one_b(problem.micro_batches * v * v - v + 1)
    start = _cheapest(pricing, pricing.cost, lockstep)
    if start is None:
        return None
    starts = [start]
    if pricing.excess_bytes(start) > 0.0:  # it knows nothing of the memory
        share = pricing.by_memory()
        others = (_cheapest(pricing, share, lockstep), _cheapest(pricing, share**2, one_f_one_b(1)))
        starts += [other for other in others if other is not None]
    split, near = min((_improve(pricing, start) for start in starts), key=lambda found: pricing.key(found[0]))
    step_s = pricing.key(split)[0]
    times = pricing.stage_times_s(split)
    if times is None:
        return None
    return ChunkPlan(
        layers=pricing.by_stage(split),
        near=tuple(map(pricing.by_stage, near)),
        step_s=step_s,
        stage_times_s=tuple(float(t) for t in times),
        bound_s=min(step_s, _bound_s(problem, pricing)),
    )


def _cheapest(pricing: _Pricing, cost: Floats, objective: PipelineObjective) -> tuple[int, ...] | None:
    """The split of least cost over the chunks; None where none has a finite one."""
    best = partition_stages(StageProblem(cost_s=cost, objective=objective, min_layers=pricing.least)).best
    return None if best is None else best.split


def _neighbours(split: tuple[int, ...], least: tuple[int, ...]) -> Iterator[Ints]:
    """All splits with one layer less in one chunk and one more in another, a few givers at once, shape (N, P)."""
    places = np.arange(len(split))
    givers = np.flatnonzero(np.array(split) > least)
    at_once = max(1, NUMBERS_AT_ONCE // len(split) ** 2)
    for first in range(0, len(givers), at_once):
        giver, taker = (side.ravel() for side in np.meshgrid(givers[first : first + at_once], places, indexing="ij"))
        giver, taker = giver[giver != taker], taker[giver != taker]
        yield np.array(split) - (places == giver[:, None]) + (places == taker[:, None])


def _improve(pricing: _Pricing, split: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Move single layers as long as that helps, the best and earliest first; with the best moves left."""
    while True:
        moved = []
        for others in _neighbours(split, pricing.least):
            keys = pricing.keys(others)
            nearest = np.lexsort((keys[:, 1], keys[:, 0]))[:NEAR]
            moved += [(tuple(keys[one].tolist()), tuple(others[one].tolist())) for one in nearest]
        moves = heapq.nsmallest(NEAR, moved, _key)
        if not moves or not moves[0][0] < pricing.key(split):
            return split, [other for key, other in moves if math.isfinite(key[0])]
        split = moves[0][1]


def _key(move: tuple[tuple[float, ...], tuple[int, ...]]) -> tuple[float, ...]:
    return move[0]


def _bound_s(problem: ChunkProblem, pricing: _Pricing) -> float:
    """Lower bound: any layer may go to any stage, in whole layers if there are two kinds, else in any amounts.

    The sum is at least all work on the fastest stage.
    """
    slowdown = np.array([position.slowdown for position in problem.positions])
    layers_s = np.array([run.time_s for run in problem.runs for _ in range(run.count)])
    ends_s = problem.ends.first_s + problem.ends.last_s
    work_s = float(layers_s.sum()) + ends_s
    bottleneck_s = max(work_s / float((1.0 / slowdown).sum()), _whole_layers_bound_s(problem, layers_s))
    weights = pricing.objective
    total = weights.sum_weight * work_s * float(slowdown.min()) + weights.max_weight * bottleneck_s
    return total / weights.fill.denominator


def _whole_layers_bound_s(problem: ChunkProblem, layers_s: Floats) -> float:
    """Bottleneck below which two kinds of layers cannot be packed, to 1e-10; 0 for other numbers of kinds."""
    kinds, counts = np.unique(layers_s, return_counts=True)
    if kinds.size != 2 or kinds[0] <= 0:
        return 0.0
    rare, common = np.argsort(counts, kind="stable")
    last = len(problem.positions) - 1
    ends = [(p == 0) * problem.ends.first_s + (p == last) * problem.ends.last_s for p in range(last + 1)]
    low, high = 0.0, (float(layers_s.sum()) + sum(ends)) * max(p.slowdown for p in problem.positions)
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        room = [middle / p.slowdown - end for p, end in zip(problem.positions, ends, strict=True)]
        placed = _most_common(room, float(kinds[rare]), int(counts[rare]), float(kinds[common]))
        low, high = (low, middle) if placed >= counts[common] else (middle, high)
    return low


def _most_common(room: Sequence[float], rare_s: float, rare: int, common_s: float) -> int:
    """Most layers of the common kind that fit beside all of the rare kind; -1 if those do not fit."""
    most = [0] + [-1] * rare  # by rare layers placed so far
    for space in room:
        after = [-1] * (rare + 1)
        for placed, common in enumerate(most):
            for more in range(rare - placed + 1):
                left = space - more * rare_s
                if common < 0 or left < 0:
                    break
                after[placed + more] = max(after[placed + more], common + math.floor(left / common_s))
        most = after
    return most[rare]
