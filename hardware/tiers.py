"""The bandwidth hierarchy of an island as seen by one accelerator: from its scale-up domain outwards.

Collective costs need no more of the topology than this: for each tier, how many accelerators share one domain of it,
and what one accelerator can send and at what latency when a transfer has to cross to the next domain of the tier below.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Final

from hardware.adapters import adapters_of, least_share, used_adapters
from hardware.cluster import FabricShape, Island, LinkKind, NodeType, ScaleUp


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How flows of one pattern along one axis go on the topology graph, over what shares of the tiers say.

    ``loads`` is how much of each of some links, the same for all patterns and axes, they use at this pace; the fullest
    link, with 1.0, sets it.
    """

    axis: str
    pattern: str
    speed: float
    loads: tuple[float, ...] = ()


EVEN_PACE: Final = Pace(axis="", pattern="", speed=1.0)
"""Of flows that go as shares of the tiers say."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One level of the hierarchy.

    ``gpus`` is the number of accelerators in one domain of this tier; ``bytes_per_s`` the share of one accelerator
    (per direction) when all accelerators of the domain cross this tier together; ``pair_bytes_per_s`` what one
    accelerator reaches alone; ``adapter_bytes_per_s`` its share of the node's adapters, whatever is behind them, 0.0
    inside of a node; ``nic_bytes_per_s`` what one adapter carries, and ``way_bytes_per_s`` what one accelerator can
    send towards its adapters. ``links`` and ``axes`` are those of :class:`hardware.cluster.ScaleUp`. ``adapters`` are
    those of each accelerator of a node, where some have less than an even share. Ranks fill domains in order, unless
    ``domain_of`` lists the domain of each ``block`` of consecutive ranks; ``gpus`` is the largest then. ``speeds`` of
    the outermost tier lists paces where flows on the topology graph go at another
    pace than their shares of tiers say.
    """

    name: str
    kind: LinkKind
    shape: FabricShape
    gpus: int
    bytes_per_s: float
    pair_bytes_per_s: float
    latency_s: float
    adapter_bytes_per_s: float = 0.0
    nic_bytes_per_s: float = 0.0
    way_bytes_per_s: float = math.inf
    in_network_reduction: bool = False
    links: tuple[tuple[int, int, int], ...] = ()
    axes: tuple[int, ...] = ()
    adapters: tuple[tuple[int, ...], ...] = ()
    block: int = 0
    domain_of: tuple[int, ...] = ()
    speeds: tuple[Pace, ...] = ()

    @property
    def leaves_node(self) -> bool:
        """Whether what crosses the tier goes through adapters of the node."""
        return self.adapter_bytes_per_s > 0.0


@dataclass(frozen=True, kw_only=True)
class RankBlocks:
    """Blocks of ``ranks`` consecutive ranks; block b lies where block ``places[b]`` would lie in order."""

    ranks: int
    places: tuple[int, ...]


@lru_cache(maxsize=64)
def island_tiers(island: Island, nodes: tuple[int, ...] = ()) -> tuple[Tier, ...]:
    """Tiers of an island from the fast domain outwards; the last one spans every accelerator.

    Parameters
    ----------
    island : Island
        Nodes of one type behind one network.
    nodes : tuple of int
        Node of every block of as many ranks as a node has accelerators; empty: in order.

    Returns
    -------
    tuple of Tier
        At least one tier; ``gpus`` rises strictly. Oversubscription multiplies from tier to tier.
    """
    tiers = _tiers_in_order(island)
    uneven = bool(island.domains) or any(tier.groups for tier in island.fabric)
    moved = bool(nodes) and nodes != tuple(range(len(nodes)))
    return tuple(_listed(tier, island, nodes) for tier in tiers) if uneven or moved else tiers


def link_rates(island: Island) -> tuple[float, float]:
    """Return what one accelerator sends inside its fast domain and towards the farthest node, both per direction.

    Parameters
    ----------
    island : Island
        Nodes of one type behind one network.

    Returns
    -------
    tuple of float
        Bytes per second; the second is 0.0 where no transfer leaves a node or its domain.
    """
    tiers = island_tiers(island)
    leaves = tiers[-1].gpus > max(tiers[0].gpus, island.node.gpus)
    return tiers[0].bytes_per_s, tiers[-1].bytes_per_s if leaves else 0.0


@lru_cache(maxsize=64)
def tiers_of_blocks(tiers: tuple[Tier, ...], blocks: RankBlocks) -> tuple[Tier, ...]:
    """Tiers as ranks see them whose blocks change places.

    Parameters
    ----------
    tiers : tuple of Tier
        For ranks in order, or with listed domains.
    blocks : RankBlocks
        Where each block lies.

    Returns
    -------
    tuple of Tier
        With the domain of every part of a block that no domain divides; a tier that spans all ranks stays.
    """
    return tuple(_of_blocks(tier, blocks) for tier in tiers)


def _of_blocks(tier: Tier, blocks: RankBlocks) -> Tier:
    if not tier.domain_of and tier.gpus >= len(blocks.places) * blocks.ranks:
        return tier
    span = tier.block if tier.domain_of else tier.gpus
    step = gcd(blocks.ranks, span)
    firsts = [place * blocks.ranks + part for place in blocks.places for part in range(0, blocks.ranks, step)]
    spans = [first // span for first in firsts]
    domains = tuple(tier.domain_of[number] for number in spans) if tier.domain_of else tuple(spans)
    return replace(tier, block=step, domain_of=domains)


def _listed(tier: Tier, island: Island, nodes: tuple[int, ...]) -> Tier:
    """Return a tier with the domain of every node's block of ranks; tiers inside nodes and that of all stay."""
    per_node = island.node.gpus
    if tier.gpus <= per_node or tier.gpus >= island.gpus:
        return tier
    level = next((level for level in island.fabric if level.name == tier.name), None)
    order = nodes or range(island.nodes)
    if tier.name != "scale-up" and level is not None:
        domains = tuple(level.group_of(node) for node in order)
    elif tier.name == "scale-up":
        domains = tuple(island.domain_of(node) for node in order)
    else:
        domains = tuple(node * per_node // tier.gpus for node in order)
    return replace(tier, block=per_node, domain_of=domains)


def _tiers_in_order(island: Island) -> tuple[Tier, ...]:
    node = island.node
    domain = max(island.domains) * node.gpus if island.domains else node.scale_up.domain_gpus
    tiers = [_fabric_tier("scale-up", node.scale_up, min(domain, island.gpus))]
    if node.node_fabric is not None and node.gpus > tiers[-1].gpus:
        tiers.append(_fabric_tier("node", node.node_fabric, min(node.gpus, island.gpus)))
    share = reachable_nic_bytes_per_s(node) / node.gpus
    oversubscription = 1.0
    for level in island.fabric:
        gpus = island.gpus if level.nodes == 0 else min(level.nodes * node.gpus, island.gpus)
        if gpus > tiers[-1].gpus:
            tiers.append(_network_tier(node, level.name, gpus, share / oversubscription, level.latency_s))
        oversubscription *= level.oversubscription
    if tiers[-1].gpus < island.gpus:
        tiers.append(_network_tier(node, "network", island.gpus, share / oversubscription, 0.0))
    return tuple(tiers)


def reachable_nic_bytes_per_s(node: NodeType) -> float:
    """Return what the accelerators of one node can send through its adapters together, one direction.

    Three limits: the adapters that accelerators use; the accelerators' own links towards them, which bind when a node
    has few accelerators (``Nics.gpu_bytes_per_s``); and, without GPUDirect RDMA, the detour through host memory. That
    costs nothing where accelerator and adapter have root ports of their own: each of their links carries a byte once.
    Where both sit below one PCIe switch, every byte climbs and descends the switch's uplink, and received bytes do so
    too: each direction of the uplink carries twice the adapter's rate. An adapter that is nearest to accelerators below
    no switch with it has a way of its own to memory, and so have they.

    Parameters
    ----------
    node : NodeType
        The server.

    Returns
    -------
    float
        Bytes per second; 0.0 for a node without adapters.

    Notes
    -----
    The rule gives 6.2 GB/s for one 100 Gb/s adapter below a PCIe 3.0 x16 switch (12.3 GB/s usable); measured without
    GPUDirect: 6 GB/s (NVIDIA/nccl issue 465, where NCCL's author states the same rule).
    """
    return min(_adapters_and_ways(node))


def adapter_bytes_per_s(node: NodeType) -> float:
    """Return what one adapter that accelerators use carries while all of these do, one direction.

    Parameters
    ----------
    node : NodeType
        The server.

    Returns
    -------
    float
        Bytes per second, however little the accelerators behind it can send: that is a limit of their own, and more
        adapters do not lower what each carries. 0.0 for a node without adapters.
    """
    used = len(used_adapters(node))
    return _adapters_and_ways(node)[0] / used if used else 0.0


def _adapters_and_ways(node: NodeType) -> tuple[float, float]:
    """What a node's adapters carry together, and what its accelerators' own ways to them do (inf: no limit)."""
    nics = node.nics
    used = used_adapters(node)
    carried, way = nics.bytes_per_s * len(used), nics.gpu_bytes_per_s or math.inf
    uplink = node.host.pcie_bytes_per_s_per_gpu
    if not nics.gpudirect and uplink > 0.0:
        shared, alone = _ways_to_memory(node, used)
        if shared:
            carried = min(carried, (shared / 2.0 + alone) * uplink)
        else:
            way = min(way, uplink)
    return carried, node.gpus * way


def _ways_to_memory(node: NodeType, used: tuple[int, ...]) -> tuple[int, int]:
    """Switch uplinks that accelerators and adapters share, and adapters with a way to memory of their own."""
    switches, nearest = node.host.pcie_switches, node.host.nearest_nics
    if not nearest:
        return min(len(switches), len(used)), 0
    below = [{nic for gpu in group for nic in nearest[gpu]} & set(used) for group in switches]
    beside = set().union(*below) if below else set()
    return sum(map(bool, below)), len(set(used) - beside)


def _fabric_tier(name: str, fabric: ScaleUp, gpus: int) -> Tier:
    return Tier(
        name=name,
        kind=fabric.kind,
        shape=fabric.shape,
        gpus=gpus,
        bytes_per_s=fabric.bytes_per_s,
        pair_bytes_per_s=fabric.pair_bytes_per_s,
        latency_s=fabric.latency_s,
        in_network_reduction=fabric.in_network_reduction,
        links=fabric.links,
        axes=fabric.axes,
    )


def _network_tier(node: NodeType, name: str, gpus: int, bytes_per_s: float, extra_latency_s: float) -> Tier:
    """Tier of the scale-out network; alone, an accelerator has its own share of the adapters or one adapter whole."""
    nics = node.nics
    reachable = reachable_nic_bytes_per_s(node)
    way = _adapters_and_ways(node)[1] / node.gpus
    per_nic = adapter_bytes_per_s(node)
    return Tier(
        name=name,
        kind=nics.kind,
        shape=FabricShape.SWITCH,
        gpus=gpus,
        bytes_per_s=bytes_per_s,
        pair_bytes_per_s=max(reachable / node.gpus, min(per_nic, way)),
        adapter_bytes_per_s=reachable / node.gpus,
        nic_bytes_per_s=per_nic,
        way_bytes_per_s=way,
        latency_s=nics.latency_s + extra_latency_s,
        in_network_reduction=nics.in_network_reduction,
        adapters=_uneven(adapters_of(node)),
    )


def _uneven(adapters: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return adapters of accelerators where some groups of these have less than an even share; else nothing."""
    return adapters if any(least_share(adapters, stride) < 1.0 - 1e-9 for stride in range(1, len(adapters) + 1)) else ()
