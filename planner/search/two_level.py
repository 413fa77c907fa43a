"""Alpa's two levels: the ILP of every span of layers on every stage, inside the dynamic program over stage boundaries.

For frameworks that let each layer have a strategy of its own. The uniform search gives the pipeline shapes worth
solving and an incumbent; a stage longer than ``incumbent / m`` cannot be part of a faster layout, which bounds the
spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from costmodels.layout import Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.positions import kind_prefix
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from costmodels.table import Bools, Floats, StrategyTable
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages
from planner.intra_op.solution import SolutionCache
from planner.layouts.grids import Grids, enumerate_grids
from planner.layouts.recompute_options import requested_options
from planner.layouts.shard_groups import in_groups
from planner.request import Framework, PlanRequest
from planner.rules import request_mask
from planner.search.effort import LAYOUT_S, STAGE_S, STRATEGY_S, Until
from planner.search.stage_ilp import Span, StageShape, StageSolver
from planner.search.tally import Candidate

REPAIRS: Final = 4  # times that the memory limit is lowered when a layout needs more than its parts explain
PER_LAYER: Final = (Framework.GALVATRON, Framework.NONE)


@dataclass(frozen=True, kw_only=True)
class MixedPlan:
    """A layout whose layers may differ in strategy, with its price."""

    layout: Layout
    cost: LayoutCost


def candidate_shape(candidate: Candidate) -> tuple[StageShape, float]:
    """Pipeline shape and step time of a uniform candidate."""
    shape = StageShape(
        gpus=candidate.tp * candidate.cp * candidate.dp,
        samples=candidate.micro_batch * candidate.dp,
        pp=candidate.pp,
        num_microbatches=candidate.num_microbatches,
        shard_group=candidate.shard_group,
    )
    return shape, candidate.total_s


def mixed_plans(
    request: PlanRequest, pricing: Pricing, wanted: Sequence[tuple[StageShape, float]], until: Until
) -> tuple[MixedPlan, ...]:
    """Solve some pipeline shapes with a strategy for every layer.

    Parameters
    ----------
    request : PlanRequest
        What is asked; pinned degrees hold for every layer.
    pricing : Pricing
        Model, job, island.
    wanted : sequence of (StageShape, float)
        Shapes with the step time [s] of a uniform layout of each, best first.
    until : Until
        No shape is begun after it.

    Returns
    -------
    tuple of MixedPlan
        One for each shape that has a feasible layout, in their order.
    """
    cache = SolutionCache()
    shapes: dict[StageShape, float] = {}
    for shape, step_s in wanted:
        shapes.setdefault(shape, step_s)
    plans = []
    for shape, incumbent_s in shapes.items():
        if until.late():
            break
        strategies = stage_strategies(request, pricing, shape)
        if strategies:
            until.spend(STRATEGY_S * len(strategies))
            solver = StageSolver(pricing, shape, strategies, cache)
            plan = _solve_shape(pricing, solver, incumbent_s, until)
            plans += [plan] if plan is not None else []
    return tuple(plans)


def stage_strategies(request: PlanRequest, pricing: Pricing, shape: StageShape) -> tuple[Strategy, ...]:
    """Strategies that a layer may use on a stage: every legal grid of its GPUs, ZeRO stage and recompute.

    All share the group of the shape, as one mesh of replicas and shards holds a whole model.
    """
    grids = enumerate_grids(request, shape.gpus * shape.pp)
    table = grids.table
    fits = (table.pp == shape.pp) & (table.dp * table.micro_batch == shape.samples)
    chosen = grids.take(np.flatnonzero(fits))
    if shape.shard_group:
        ranks = chosen.table.dp * chosen.table.cp
        divides = (chosen.table.zero > 0) & (ranks > shape.shard_group) & (ranks % shape.shard_group == 0)
        chosen = in_groups(chosen, np.where(divides, shape.shard_group, 0))
    legal = request_mask(request, chosen.table).ok
    choices = requested_options(request, pricing)
    rows = np.flatnonzero(legal & _of_one_kind(request, chosen.table, legal))
    return tuple(_with_recomputes(chosen.take(rows), choices))


def _of_one_kind(request: PlanRequest, table: StrategyTable, legal: Bools) -> Bools:
    """Rows that may stand in one layout: beside ZeRO-3 Galvatron has one kind of replicas, so 2 where it may."""
    alone = table.dp * table.cp == 1
    both = bool((legal & ~alone & (table.zero == 2)).any())
    if request.framework is not Framework.GALVATRON or not both:
        return np.ones(len(legal), dtype=np.bool_)
    return np.asarray(alone | (table.zero > 0))


def _with_recomputes(grids: Grids, choices: Sequence[Recompute]) -> list[Strategy]:
    rows = [grids.table.strategy(row) for row in range(len(grids))]
    return [replace(strategy, recompute=choice) for strategy in rows for choice in choices]


def _solve_shape(pricing: Pricing, solver: StageSolver, incumbent_s: float, until: Until) -> MixedPlan | None:
    """Best layout of a shape; lowers the memory limit and solves again while the priced layout does not fit safely.

    None when nothing fits or the time is up.
    """
    for repair in range(REPAIRS):
        spans = _Spans(pricing, solver, incumbent_s, until)
        plans = partition_stages(
            StageProblem(cost_s=spans.cost_s(), objective=one_f_one_b(solver.shape.num_microbatches))
        )
        if plans.best is None or spans.late:
            return None
        layout = spans.layout(plans.best.split)
        until.spend(LAYOUT_S)
        cost = price_layout([pricing], layout)
        worst = cost.heaviest
        if worst.verdict is Verdict.FITS:
            return MixedPlan(layout=layout, cost=cost)
        safe = worst.usable_bytes * pricing.constants.memory.risky_share
        # parts may explain so much less that the same answer comes again: lower the limit faster each time
        solver.forget(2.0**repair * max(worst.total_bytes - safe, 0.005 * worst.usable_bytes))
    return None


class _Spans:
    """The table of stage costs of one shape, by solving the ILP of each span that can matter."""

    def __init__(self, pricing: Pricing, solver: StageSolver, incumbent_s: float, until: Until) -> None:
        self.pricing = pricing
        self.solver = solver
        self.upto = kind_prefix(pricing.model).astype(np.int64)
        self.limit_s = incumbent_s / solver.shape.num_microbatches
        self.until = until
        self.late = False

    def cost_s(self) -> Floats:
        """Seconds of every span on every stage, shape (pp, L + 1, L + 1); infinite where it cannot matter."""
        pp, layers = self.solver.shape.pp, self.pricing.model.layers
        cost = np.full((pp, layers + 1, layers + 1), np.inf)
        most = min(layers - pp + 1, int(self.limit_s / self.solver.least_layer_s) if pp > 1 else layers)
        for stage in range(pp):
            for start in range(stage, layers - (pp - stage) + 1):
                first_end = layers if stage == pp - 1 else start + 1
                for end in range(first_end, min(start + most, layers - (pp - 1 - stage)) + 1):
                    if (stage == 0) == (start == 0) and self._reachable(stage, start, end, most):
                        cost[stage, start, end] = self._time_s(stage, start, end)
        return cost

    def _reachable(self, stage: int, start: int, end: int, most: int) -> bool:
        """Whether the other stages can hold the layers before and behind, none of them more than ``most``."""
        layers, pp = self.pricing.model.layers, self.solver.shape.pp
        return start <= stage * most and layers - end <= (pp - 1 - stage) * most

    def _time_s(self, stage: int, start: int, end: int) -> float:
        self.late = self.late or self.until.late()
        if self.late:
            return float("inf")
        span = self.span(stage, start, end)
        if not self.solver.knows(span):
            self.until.spend(STAGE_S)
        return self.solver.solve(span).time_s

    def span(self, stage: int, start: int, end: int) -> Span:
        """Return the contents of a span: runs of equal layers in model order."""
        shape = self.solver.shape
        kinds = self.upto[start + 1 : end + 1] - self.upto[start:end]
        order = kinds.argmax(axis=1).tolist()
        return Span(
            counts=tuple((kind, len(list(run))) for kind, run in groupby(order)),
            in_flight=min(shape.num_microbatches, shape.pp - stage),
            first=stage == 0,
            last=stage == shape.pp - 1,
        )

    def layout(self, split: Sequence[int]) -> Layout:
        """Return the layout of a split with the strategies that the ILP chose."""
        stages, start = [], 0
        for stage, count in enumerate(split):
            chosen = self.solver.layer_strategies(self.span(stage, start, start + count))
            runs = tuple(StrategyRun(strategy=strategy, count=len(list(run))) for strategy, run in groupby(chosen))
            stages.append(Stage(layers_per_chunk=(count,), strategies=runs))
            start += count
        first = stages[0].strategies[0].strategy
        return Layout(
            stages=tuple(stages),
            micro_batch=self.solver.shape.samples // first.dp,
            num_microbatches=self.solver.shape.num_microbatches,
            schedule=Schedule.ONE_F_ONE_B,
        )
