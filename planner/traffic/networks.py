"""How the ranking of layouts changes on a slower and on a faster network."""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.pricing import Constants
from planner.placement import stated_placement
from planner.plan_report import RankedLayout
from planner.planning import estimate
from planner.request import PlanRequest
from planner.traffic.sensitivity import FACTORS, with_network


@dataclass(frozen=True, kw_only=True)
class NetworkRanking:
    """Layouts on a network ``factor`` times as fast: their present ranks in the order that they would have, and times.

    ``step_s`` belongs to ``order``.
    """

    factor: float
    order: tuple[int, ...]
    step_s: tuple[float, ...]


def network_rankings(
    request: PlanRequest, layouts: Sequence[RankedLayout], constants: Constants | None = None
) -> tuple[NetworkRanking, ...]:
    """Rank the layouts of a report at half and at double the network's rate.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    layouts : sequence of RankedLayout
        Kept as they are.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    tuple of NetworkRanking
        Empty for a cluster of one node.
    """
    if request.cluster.nodes < 2:
        return ()
    found = []
    for factor in FACTORS:
        times = [
            estimate(
                with_network(asked, factor), ranked.layout, constants, stated_placement(ranked, asked)
            ).cost.step.total_s
            for ranked, asked in ((ranked, request.with_choices(ranked.choices)) for ranked in layouts)
        ]
        order = sorted(range(len(times)), key=lambda number, times=times: (times[number], number))  # type: ignore[misc]
        found.append(
            NetworkRanking(
                factor=factor,
                order=tuple(number + 1 for number in order),
                step_s=tuple(times[number] for number in order),
            )
        )
    return tuple(found)
