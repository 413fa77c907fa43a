"""What layouts are ranked by: seconds, joules or money of one optimizer step."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.layout import Layout
from costmodels.power.node import node_w
from costmodels.results import LayoutCost
from costmodels.table import Floats
from hardware.cluster import NodeType
from hardware.errors import InputError
from planner.request import Objective, PlanRequest

JOULES_PER_KWH: Final = 3.6e6
SECONDS_PER_HOUR: Final = 3600.0


def check_objective(request: PlanRequest) -> None:
    """Refuse a ranking by money where the cluster states no price at all.

    Raises
    ------
    InputError
        Neither a node nor electricity has a price.
    """
    cluster = request.cluster
    priced = cluster.electricity_per_kwh > 0.0 or any(island.node.price_per_hour > 0.0 for island in cluster.islands)
    if request.objective is Objective.COST and not priced:
        raise InputError(
            f"cluster {cluster.name} states no price, so layouts cannot be ranked by cost",
            allowed="a cluster file with electricity_per_kwh or a price_per_hour, or --objective time or energy",
        )


def step_energy_j(cost: LayoutCost) -> float:
    """Energy of the GPUs in use over one step [J]."""
    return cost.power.energy_j_per_token * cost.tokens_per_s * cost.step.total_s


def step_cost(request: PlanRequest, layout: Layout, cost: LayoutCost) -> float:
    """Money of one step, in the currency of the cluster: nodes in use by the hour, and their electricity.

    A node counts whole when any of its GPUs is used. Electricity is that of whole nodes, with hosts and fans, times the
    power usage effectiveness.
    """
    tokens = cost.tokens_per_s * cost.step.total_s
    rent = cost.step.total_s / SECONDS_PER_HOUR * _rent_per_hour(request, layout)
    return rent + float(_electricity(request, np.asarray(cost.power.node_energy_j_per_token * tokens)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a run of many tokens takes.

    ``gpu_j`` is drawn by accelerators, ``building_j`` by whole nodes times the power usage effectiveness;
    ``electricity`` and ``money`` (rent too) are in the currency of the cluster, 0.0 where it states no price.
    """

    tokens: float
    seconds: float
    gpu_j: float
    building_j: float
    electricity: float
    money: float


def run_cost(request: PlanRequest, layout: Layout, cost: LayoutCost, tokens: float) -> RunCost:
    """Energy and money of a run without failures.

    Parameters
    ----------
    request : PlanRequest
        States prices and power usage effectiveness.
    layout, cost : Layout, LayoutCost
        What runs.
    tokens : float
        Tokens (or samples) of the run.

    Returns
    -------
    RunCost
    """
    steps = tokens / (cost.tokens_per_s * cost.step.total_s)
    nodes_j = cost.power.node_energy_j_per_token * tokens
    return RunCost(
        tokens=tokens,
        seconds=tokens / cost.tokens_per_s,
        gpu_j=cost.power.energy_j_per_token * tokens,
        building_j=nodes_j * request.cluster.pue,
        electricity=float(_electricity(request, np.asarray(nodes_j))),
        money=steps * step_cost(request, layout, cost),
    )


def _nodes_used(request: PlanRequest, layout: Layout) -> list[tuple[NodeType, int]]:
    """Nodes in use of each island."""
    used = []
    for number, island in enumerate(request.cluster.islands):
        gpus = sum(stage.gpus for stage in layout.stages if stage.island == number)
        used.append((island.node, -(-gpus // island.node.gpus)))
    return used


def _rent_per_hour(request: PlanRequest, layout: Layout) -> float:
    return sum(nodes * node.price_per_hour for node, nodes in _nodes_used(request, layout))


def _electricity(request: PlanRequest, energy_j: Floats) -> Floats:
    cluster = request.cluster
    return np.asarray(energy_j / JOULES_PER_KWH * cluster.pue * cluster.electricity_per_kwh)


def nodes_power_w(request: PlanRequest, layout: Layout, gpu_w: Floats) -> Floats:
    """Draw of the nodes in use [W] when their accelerators draw ``gpu_w`` each in the mean."""
    used = _nodes_used(request, layout)
    hosts_w = sum(nodes * node_w(node, 0.0) for node, nodes in used if nodes)
    node = next(node for node, nodes in used if nodes)
    per_gpu = node_w(node, 1.0) - node_w(node, 0.0)
    return np.asarray(hosts_w + per_gpu * gpu_w * layout.gpus)


def objective_value(request: PlanRequest, layout: Layout, cost: LayoutCost) -> float:
    """Return what the request ranks by; smaller is better."""
    if request.objective is Objective.ENERGY:
        return step_energy_j(cost)
    if request.objective is Objective.COST:
        return step_cost(request, layout, cost)
    return cost.step.total_s


def objective_values(request: PlanRequest, layout: Layout, step_s: Floats, gpu_w: Floats) -> Floats:
    """Return what the request ranks by for placements of one layout.

    Parameters
    ----------
    request : PlanRequest
        States the objective and the prices.
    layout : Layout
        The layout that they all place.
    step_s, gpu_w : array
        Step times [s] and mean draws of the accelerators [W].

    Returns
    -------
    array
        Smaller is better; proportional to :func:`objective_value` for time and energy.
    """
    if request.objective is Objective.TIME:
        return step_s
    energy_j = step_s * gpu_w * layout.gpus
    if request.objective is Objective.ENERGY:
        return energy_j
    nodes_w = nodes_power_w(request, layout, gpu_w)
    return step_s / SECONDS_PER_HOUR * _rent_per_hour(request, layout) + _electricity(request, step_s * nodes_w)


def why_slower(better: LayoutCost, worse: LayoutCost) -> str:
    """One line on what a layout loses to the one before it: the largest differences of the breakdown."""
    names = (
        ("compute", "compute_s"),
        ("exposed exchange", "exposed_comm_s"),
        ("bubble", "bubble_s"),
        ("jitter", "sync_s"),
    )
    changes = [(getattr(worse.step, field) - getattr(better.step, field), name) for name, field in names]
    total = worse.step.total_s - better.step.total_s
    changes.sort(reverse=True)
    lost = [f"{name} +{change:.3g} s" for change, name in changes[:2] if change > 0.05 * abs(total)]
    gained = [f"{name} {change:.3g} s" for change, name in changes[-1:] if change < -0.05 * abs(total)]
    return f"{100 * total / better.step.total_s:+.1f} %: " + ", ".join(lost + gained)
