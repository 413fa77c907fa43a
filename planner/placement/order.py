"""Placements as lists of ranks, and where the groups of a layout lie in the orders of ranks that launchers know."""

from costmodels.placement import Placement
from hardware.cluster import Cluster
from planner.placement.joint import PlacedLayout
from planner.plan_report import InOrder, RankPlace


def in_order(placed: PlacedLayout) -> InOrder | None:
    """Return what a placed layout would be with its ranks in order; None where no other placement was looked for."""
    cost = placed.in_order
    if cost is None:
        return None
    return InOrder(
        step_time_s=cost.step.total_s,
        energy_j_per_token=cost.power.energy_j_per_token,
        gap_c=cost.power.gap_c,
        max_temp_c=cost.power.max_temp_c,
    )


def rank_places(placement: Placement, cluster: Cluster, island: int = 0) -> tuple[RankPlace, ...]:
    """Name the host and accelerator of every rank.

    Parameters
    ----------
    placement : Placement
        On one island.
    cluster : Cluster
        Hosts are ``node0``, ``node1``, ... over all islands.
    island : int
        Which island.

    Returns
    -------
    tuple of RankPlace
        In rank order; empty for the identity placement on the first island.
    """
    if placement.is_identity and not island:
        return ()
    first = sum(other.nodes for other in cluster.islands[:island])
    places: list[RankPlace] = []
    for node, gpus in zip(placement.nodes, placement.gpus, strict=True):
        for gpu in gpus:
            places.append(RankPlace(rank=len(places), host=f"node{first + node}", gpu=gpu))
    return tuple(places)
