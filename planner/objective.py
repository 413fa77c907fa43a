"""What layouts are ranked by: seconds, joules or money of one optimizer step."""

from typing import Final

from costmodels.layout import Layout
from costmodels.results import LayoutCost
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
    """Money of one step, in the currency of the cluster: nodes in use by the hour, and their GPUs' electricity.

    A node counts whole when any of its GPUs is used. Electricity is multiplied by the power usage effectiveness.
    """
    cluster = request.cluster
    hours = cost.step.total_s / SECONDS_PER_HOUR
    rent = 0.0
    for number, island in enumerate(cluster.islands):
        gpus = sum(stage.gpus for stage in layout.stages if stage.island == number)
        rent += -(-gpus // island.node.gpus) * island.node.price_per_hour * hours
    kwh = step_energy_j(cost) / JOULES_PER_KWH
    return rent + kwh * cluster.pue * cluster.electricity_per_kwh


def objective_value(request: PlanRequest, layout: Layout, cost: LayoutCost) -> float:
    """Return what the request ranks by; smaller is better."""
    if request.objective is Objective.ENERGY:
        return step_energy_j(cost)
    if request.objective is Objective.COST:
        return step_cost(request, layout, cost)
    return cost.step.total_s
