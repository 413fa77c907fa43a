"""An island with fewer or more nodes: what it states of single nodes stays right for those that there are."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

from hardware.cluster import FabricTier, Island


def without_nodes(island: Island, left_out: set[int]) -> Island:
    """Return an island without some of its nodes; the others keep their order, devices and inlets.

    Parameters
    ----------
    island : Island
        With more nodes than are left out.
    left_out : set of int
        Nodes, from 0.
    """
    kept = [node for node in range(island.nodes) if node not in left_out]
    place = {node: number for number, node in enumerate(kept)}
    devices = (replace(device, node=place[device.node]) for device in island.devices if device.node in place)
    inlets = tuple(island.inlets_c[node] for node in kept if node < len(island.inlets_c))
    hosts = tuple(island.hosts[node] for node in kept if node < len(island.hosts))
    fabric = tuple(_with_some(tier, kept) for tier in island.fabric)
    domains = tuple(Counter(map(island.domain_of, kept)).values()) if island.domains else ()
    lean = replace(island, nodes=len(kept), devices=tuple(devices), inlets_c=inlets, hosts=hosts, fabric=fabric)
    return replace(lean, domains=domains)


def with_nodes(island: Island, nodes: int) -> Island:
    """Return an island with another number of nodes: the first of its own, or these and more like them.

    Parameters
    ----------
    island : Island
        The nodes that there are.
    nodes : int
        At least 1.

    Returns
    -------
    Island
        Devices unlike the others stay where they are. Nodes that are added are healthy; their inlets, groups and
        domains repeat those that there are, in order; all names are dropped, as theirs are unknown.
    """
    if nodes <= island.nodes:
        return without_nodes(island, set(range(nodes, island.nodes)))
    return replace(
        island,
        nodes=nodes,
        inlets_c=tuple(islice(cycle(island.inlets_c), nodes)),
        hosts=(),
        domains=tuple(_repeated(island.domains, nodes)),
        fabric=tuple(_with_more(tier, nodes) for tier in island.fabric),
    )


def _repeated(sizes: Sequence[int], nodes: int) -> Iterator[int]:
    """Sizes of groups, again from the first until they hold so many nodes."""
    for size in cycle(sizes):
        if nodes <= 0:
            return
        yield min(size, nodes)
        nodes -= size


def _with_more(tier: FabricTier, nodes: int) -> FabricTier:
    """A tier of more nodes; one that joined all of them still does."""
    if len(tier.groups) == 1:
        return replace(tier, groups=(), nodes=0)
    return replace(tier, groups=tuple(_repeated(tier.groups, nodes)))


def _with_some(tier: FabricTier, kept: Sequence[int]) -> FabricTier:
    """A tier whose groups of unlike sizes hold some of their nodes; groups of one size stay as they are."""
    if not tier.groups:
        return tier
    groups = tuple(Counter(tier.group_of(node) for node in kept).values())
    return replace(tier, groups=groups, nodes=max(groups))
