"""A running layout on the machine as it was measured: layers and ranks placed anew, and whether a restart pays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from costmodels.goodput import goodput
from costmodels.placement import UNUSED, Placement
from costmodels.power.heat import heat_problem, settle
from costmodels.price import placed_cost, price_layout_with_heat
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost
from hardware.errors import InputError
from planner.placement import SAME, place_and_split, scatter
from planner.placement import placement_of as placed_as_told
from planner.plan_report import RankedLayout
from planner.planning import as_ranked, pricings_of
from planner.request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """The layout as it runs, and the best split and placement of the same degrees.

    Attributes
    ----------
    now_s : float
        Step time of the layout as it runs [s].
    best : RankedLayout
        Same degrees, other layers per stage or ranks on other accelerators; the running layout where nothing is better.
    restart_s : float
        Time that the change takes: writing a checkpoint, a new start, reading it [s].
    payback_steps : int
        Steps after which the change has paid for the restart; 0 where nothing is gained.
    """

    now_s: float
    best: RankedLayout
    restart_s: float
    payback_steps: int

    @property
    def gain(self) -> float:
        """Share of the step time that is saved."""
        return 1.0 - self.best.cost.step.total_s / self.now_s


def rebalance(request: PlanRequest, running: RankedLayout) -> Rebalance:
    """Propose another split and placement of a running layout.

    Parameters
    ----------
    request : PlanRequest
        Its cluster states the devices as they were measured.
    running : RankedLayout
        Layout and placement as the job runs.

    Returns
    -------
    Rebalance

    Raises
    ------
    InputError
        The layout does not fit on the cluster, or its placement is not one of nodes and their accelerators.
    """
    layout, pricings = running.layout, pricings_of(request)
    if layout.gpus > request.cluster.gpus:
        raise InputError(
            f"the layout has {layout.gpus} ranks and {request.cluster.name} has {request.cluster.gpus} accelerators",
            allowed="the cluster that the layout runs on",
        )
    now = _as_it_runs(request, pricings, running)
    found = scatter(request, pricings, place_and_split(request, pricings, layout), split=True)
    saved_s = now.step.total_s - found.cost.step.total_s
    gains = saved_s > SAME * now.step.total_s
    lost = goodput(request.model, request.job, request.cluster, layout.gpus)
    restart_s = lost.write_s + lost.restart_s
    best = as_ranked(request, pricings, found) if gains else replace(running, cost=now)
    return Rebalance(
        now_s=now.step.total_s,
        best=best,
        restart_s=restart_s,
        payback_steps=math.ceil(restart_s / saved_s) if gains else 0,
    )


def _as_it_runs(request: PlanRequest, pricings: Sequence[Pricing], running: RankedLayout) -> LayoutCost:
    """Price a layout with its ranks on the accelerators where they are."""
    layout = running.layout
    if len({stage.island for stage in layout.stages}) == 1 or not running.placement:
        return price_layout_with_heat(pricings, layout, placement_of(running, request))
    problem = heat_problem(pricings, layout)
    maps = [np.full((1, *heat.inlet_c.shape), UNUSED, dtype=np.int64) for heat in problem.heats]
    held = {heat.island: stages[0] for heat, stages in zip(problem.heats, maps, strict=True)}
    firsts = list(accumulate((island.nodes for island in request.cluster.islands), initial=0))
    stage_of_rank = [number for number, stage in enumerate(layout.stages) for _ in range(stage.gpus)]
    for place, stage in zip(running.placement, stage_of_rank, strict=True):
        island = layout.stages[stage].island
        node, there = _node(place.host) - firsts[island], held[island]
        if not (0 <= node < there.shape[0] and 0 <= place.gpu < there.shape[1] and there[node, place.gpu] == UNUSED):
            raise InputError(
                f"rank {place.rank} of the layout's placement is on GPU {place.gpu} of {place.host}",
                allowed=f"a GPU of its own on island {island}, as its stage",
            )
        there[node, place.gpu] = stage
    return placed_cost(problem, settle(problem, maps), 0)


def placement_of(ranked: RankedLayout, request: PlanRequest) -> Placement | None:
    """Return the placement that a layout on one island states; None where its ranks are in order.

    Parameters
    ----------
    ranked : RankedLayout
        Its places name hosts ``node0``, ``node1``, ... over all islands.
    request : PlanRequest
        Says the nodes, and which ranks its launcher can have on one.

    Raises
    ------
    InputError
        Ranks of a node that its launcher cannot start there, or hosts that are no nodes of the cluster.
    """
    if not ranked.placement:
        return None
    where = "the layout's placement"
    return placed_as_told(ranked.placement, request.cluster, ranked.layout, where, request.launcher)


def _node(host: str) -> int:
    number = host.removeprefix("node")
    if not number.isdecimal() or len(number) > 7:
        raise InputError(f"host '{host[:60]}' of the layout's placement", allowed="node0, node1, ...")
    return int(number)
