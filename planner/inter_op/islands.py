"""Stages pinned to islands of unlike devices, in the given order or in the best one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.inter_op.costs import NO_ENDS, Ends, Island, LayerRun, island_orders, positions_of, stage_costs_s
from planner.inter_op.objective import PipelineObjective
from planner.inter_op.stages import StagePlans, StageProblem, partition_many

MAX_ISLANDS: Final = 7
"""Up to 5040 orders are enumerated."""


@dataclass(frozen=True, kw_only=True)
class IslandProblem:
    """Layers, islands and in-flight counts by place in the pipeline.

    Parameters
    ----------
    runs : tuple of LayerRun
        The model's layers.
    islands : tuple of Island
        In pipeline order unless ``free_order``.
    in_flight : tuple of float
        One per stage of the whole pipeline.
    objective : PipelineObjective
        Weights of sum and bottleneck.
    ends : Ends, optional
        Embedding and head.
    free_order : bool, optional
        Whether the islands may change places.
    """

    runs: tuple[LayerRun, ...]
    islands: tuple[Island, ...]
    in_flight: tuple[float, ...]
    objective: PipelineObjective
    ends: Ends = NO_ENDS
    free_order: bool = False


@dataclass(frozen=True, kw_only=True)
class IslandPlans:
    """The best order of the islands and its best splits; ``orders`` counts the orders solved."""

    islands: tuple[Island, ...]
    plans: StagePlans
    orders: int


def partition_islands(problem: IslandProblem, *, k: int = 1) -> IslandPlans:
    """Solve every order of the islands exactly; of equally good orders the first stays (the given one before all).

    Raises
    ------
    ValueError
        If more than seven islands may change places.
    """
    if problem.free_order and len(problem.islands) > MAX_ISLANDS:
        raise ValueError(f"at most {MAX_ISLANDS} islands may change places, got {len(problem.islands)}")
    orders = list(island_orders(problem.islands)) if problem.free_order else [problem.islands]
    stage_problems = [
        StageProblem(
            cost_s=stage_costs_s(problem.runs, positions_of(order, problem.in_flight), problem.ends),
            objective=problem.objective,
        )
        for order in orders
    ]
    solved = partition_many(stage_problems, k=k)
    best = min(range(len(orders)), key=lambda o: (_step_s(solved[o]), o))
    return IslandPlans(islands=orders[best], plans=solved[best], orders=len(orders))


def _step_s(plans: StagePlans) -> float:
    return math.inf if plans.best is None else plans.best.step_s


def island_of_stage(islands: Sequence[Island]) -> tuple[int, ...]:
    """Index of the island of each stage."""
    return tuple(i for i, island in enumerate(islands) for _ in range(island.stages))
