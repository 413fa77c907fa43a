"""Placements as lists of ranks, and where the groups of a layout lie in the orders of ranks that launchers know."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from costmodels.layout import Layout
from costmodels.placement import Placement, identity
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.choices import Launcher
from planner.placement.joint import PlacedLayout
from planner.plan_report import InOrder, RankedLayout, RankPlace
from planner.request import PlanRequest


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


def placement_of(
    places: Sequence[RankPlace], cluster: Cluster, layout: Layout, where: str, launcher: Launcher = Launcher.TORCHRUN
) -> Placement:
    """Return ranks on hosts as a placement.

    Parameters
    ----------
    places : sequence of RankPlace
        Each rank of the layout once, on hosts node0, node1, ... of its island.
    cluster : Cluster
        The machines.
    layout : Layout
        On one island.
    where : str
        File, for messages.
    launcher : Launcher
        Says whether the ranks of a node must be consecutive.

    Raises
    ------
    InputError
        A rank or an accelerator is missing or named twice, or the launcher cannot have these ranks on one node.
    """
    number = layout.stages[0].island
    island = cluster.islands[number]
    first = sum(other.nodes for other in cluster.islands[:number])
    nodes = {f"node{first + node}": node for node in range(island.nodes)}
    ordered = sorted(places, key=lambda place: place.rank)
    if [place.rank for place in ordered] != list(range(layout.gpus)):
        raise InputError(f"{len(places)} ranks", allowed=f"each of 0 to {layout.gpus - 1} once", where=where)
    wrong = [place for place in ordered if place.host not in nodes or not 0 <= place.gpu < island.node.gpus]
    if wrong:
        raise InputError(
            f"rank {wrong[0].rank} is on GPU {wrong[0].gpu} of {wrong[0].host!r}",
            allowed=f"GPUs 0 to {island.node.gpus - 1} of {', '.join(list(nodes)[:4])}, ...",
            where=where,
        )
    if len({(place.host, place.gpu) for place in ordered}) < layout.gpus:
        raise InputError("a GPU has two ranks", allowed="each rank on a GPU of its own", where=where)
    by_host: dict[str, list[RankPlace]] = {}
    for place in ordered:
        by_host.setdefault(place.host, []).append(place)
    blocks = list(by_host.values())
    ranks = tuple(place.rank for block in blocks for place in block)
    scattered = ranks != tuple(range(layout.gpus)) or any(len(block) < island.node.gpus for block in blocks[:-1])
    if scattered and not launcher.scatters:
        raise InputError(
            "ranks of a node are not consecutive",
            allowed="as torchrun starts them, or a --launcher that starts any rank on any node: srun, mpirun",
            where=where,
        )
    if scattered and any(len(block) < island.node.gpus for block in blocks):
        raise InputError("ranks do not fill their nodes", allowed=f"{island.node.gpus} ranks on a node", where=where)
    return Placement(
        nodes=tuple(nodes[block[0].host] for block in blocks),
        gpus=tuple(tuple(place.gpu for place in block) for block in blocks),
        order=ranks if scattered else (),
    )


def stated_placement(ranked: RankedLayout, request: PlanRequest) -> Placement | None:
    """Return where the ranks of a priced layout run, so that what else is asked of it is asked of these ranks.

    Parameters
    ----------
    ranked : RankedLayout
        Of this request.
    request : PlanRequest
        Its machines and launcher.

    Returns
    -------
    Placement or None
        None where accelerators were not priced one by one, and over several islands, which are placed anew.

    Raises
    ------
    InputError
        The places are none that the launcher can start.
    """
    cluster, layout = request.cluster, ranked.layout
    if ranked.in_order is None or len({stage.island for stage in layout.stages}) > 1:
        return None
    if not ranked.placement:
        return identity(layout.gpus, cluster.islands[layout.stages[0].island].node.gpus)
    return placement_of(ranked.placement, cluster, layout, "placement", request.launcher)


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
    slots = _named(placement, first)
    return tuple(RankPlace(rank=rank, host=host, gpu=gpu) for rank, (host, gpu) in enumerate(slots))


def places_in_order(
    layout: Layout, cluster: Cluster, placements: Sequence[tuple[int, Placement]] = ()
) -> tuple[RankPlace, ...]:
    """Name the host and accelerator of every rank where ranks are in order on the islands of their stages.

    Parameters
    ----------
    layout : Layout
        Its stages fit on their islands.
    cluster : Cluster
        Hosts are ``node0``, ``node1``, ... over all islands.
    placements : sequence of (int, Placement)
        Islands whose accelerators the ranks take in another order.

    Returns
    -------
    tuple of RankPlace
        In rank order: each stage takes the next accelerators of its island.
    """
    firsts = list(accumulate((island.nodes for island in cluster.islands), initial=0))
    usual = {number: identity(island.gpus, island.node.gpus) for number, island in enumerate(cluster.islands)}
    slots = [_named(placement, firsts[number]) for number, placement in (usual | dict(placements)).items()]
    taken = (slot for stage in layout.stages for slot in islice(slots[stage.island], stage.gpus))
    return tuple(RankPlace(rank=rank, host=host, gpu=gpu) for rank, (host, gpu) in enumerate(taken))


def _named(placement: Placement, first: int) -> Iterator[tuple[str, int]]:
    """Host and accelerator of every rank on an island, whose nodes are counted from ``first``."""
    return ((f"node{first + node}", gpu) for node, gpu in placement.slots)
