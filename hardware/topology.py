"""The topology graph of a cluster: accelerators, switches, PCIe, adapters, leaves and spines, and what links carry.

:mod:`hardware.tiers` is the summary that collective costs use; this graph is what it summarises, and answers what the
summary cannot: how much flows between two given sets of accelerators. networkx is imported when a graph is built.

A vertex is a tuple that starts with its kind: ``("gpu", island, node, index)``, ``("switch", island, domain)``,
``("tree up", island, domain)`` and ``("tree down", ...)`` (a PCIe tree), ``("pcie", island, node, k)``,
``("numa", island, node, k)``, ``("host", island, node)``, ``("nic", island, node, k)``,
``("rail", island, group, k)`` (a leaf switch that serves some adapters of each node),
``("tier", island, level, group)``, ``("core",)``. Edges are directed, with ``bytes_per_s`` (absent: no limit known),
``latency_s`` and ``kind``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hardware.adapters import used_adapters
from hardware.cluster import Cluster, FabricShape, FabricTier, Island, NodeType, ScaleUp
from hardware.errors import InputError
from hardware.tiers import adapter_bytes_per_s, reachable_nic_bytes_per_s

if TYPE_CHECKING:
    import networkx as nx

Vertex = tuple[Any, ...]
Edge = tuple[Vertex, Vertex, dict[str, Any]]

MOST_GRAPH_GPUS = 20_000
"""Accelerators of the largest cluster that a graph is built for: beyond, the tiers say the same in a line each."""

_HOST_KINDS = ("pcie", "numa", "host", "nic")


def cluster_graph(cluster: Cluster) -> nx.DiGraph[Vertex]:
    """Build the graph of a cluster.

    Parameters
    ----------
    cluster : Cluster
        At most ``MOST_GRAPH_GPUS`` accelerators.

    Returns
    -------
    networkx.DiGraph
        Vertices and edges as the module describes. The inside of a node is worked out once for each node type.

    Raises
    ------
    InputError
        The cluster is larger.
    """
    import networkx as nx  # noqa: PLC0415  (costs 0.2 s, and most commands build no graph)

    if cluster.gpus > MOST_GRAPH_GPUS:
        allowed = f"up to {MOST_GRAPH_GPUS}"
        raise InputError(f"{cluster.gpus} accelerators are too many for a graph", allowed=allowed, where=cluster.name)
    graph: nx.DiGraph[Vertex] = nx.DiGraph(islands=cluster.islands)
    for number, island in enumerate(cluster.islands):
        graph.add_nodes_from(_gpus(number, island))
        graph.add_edges_from(_both_ways(_island_edges(number, island)))
        graph.add_edges_from(_tree_edges(number, island))
        if len(cluster.islands) > 1:
            rate = island.nodes * cluster.inter_island_bytes_per_s
            link = _link("inter-island", rate, cluster.inter_island_latency_s)
            graph.add_edges_from(_both_ways([(_network_root(number, island), ("core",), link)]))
    return graph


def bytes_per_s_between(graph: nx.DiGraph[Vertex], sources: Iterable[Vertex], sinks: Iterable[Vertex]) -> float:
    """Return what two sets of vertices can exchange, one direction, when nothing else flows.

    Parameters
    ----------
    graph : networkx.DiGraph
        From :func:`cluster_graph`.
    sources, sinks : iterable of vertices
        Disjoint sets, such as the accelerators of two nodes.

    Returns
    -------
    float
        Maximum flow [bytes/s]. Accelerators forward, as they do in rings over partial meshes and across rails. Inside
        one domain (or node) only its fabrics are used: no library sends by way of the host or the network there, and
        where PCIe is the fabric of a node, its ``ScaleUp`` says so.
    """
    import networkx as nx  # noqa: PLC0415

    starts, ends = list(sources), list(sinks)
    flow: nx.DiGraph[Vertex] = nx.DiGraph()
    inside = _inside_one_domain(graph, [*starts, *ends])
    for start, end, data in graph.edges(data=True):
        if inside and (start[0] in _HOST_KINDS or end[0] in _HOST_KINDS):
            continue
        # Whole numbers: flow algorithms are exact on them.
        capacity = {"capacity": round(data["bytes_per_s"])} if "bytes_per_s" in data else {}
        flow.add_edges_from((*pair, capacity) for pair in _one_way(start, end))
    flow.add_nodes_from((("source",), ("sink",)))
    flow.add_edges_from((("source",), vertex) for vertex in starts)
    flow.add_edges_from((vertex, ("sink",)) for vertex in ends)
    return float(nx.maximum_flow_value(flow, ("source",), ("sink",)))


def _one_way(start: Vertex, end: Vertex) -> Iterator[tuple[Vertex, Vertex]]:
    """Return an edge with its ends doubled inside a host: one copy leads from accelerators to adapters, one back."""
    inside = start[0] in _HOST_KINDS, end[0] in _HOST_KINDS
    if inside == (True, True):
        yield from (((*start, way), (*end, way)) for way in ("out", "in"))
    elif inside == (True, False):
        yield (*start, "in" if end[0] == "gpu" else "out"), end
    elif inside == (False, True):
        yield start, (*end, "out" if start[0] == "gpu" else "in")
    else:
        yield start, end


def _inside_one_domain(graph: nx.DiGraph[Vertex], vertices: list[Vertex]) -> bool:
    """Return whether all vertices are accelerators of one scale-up domain or one node."""
    if any(vertex[0] != "gpu" for vertex in vertices) or len({vertex[1] for vertex in vertices}) > 1:
        return False
    island = graph.graph["islands"][vertices[0][1]]
    return len({island.domain_of(node) for _, _, node, _ in vertices}) == 1


def bisection_bytes_per_s(cluster: Cluster) -> float:
    """Return what the first half of a cluster's accelerators can send to the second half, one direction.

    The order is that of ranks: node by node, and along the longest axis of a torus last, so that the cut is the
    narrowest one between equal halves of a symmetric machine. 0.0 for a single accelerator.
    """
    order = gpu_vertices(cluster)
    if len(order) < 2:
        return 0.0
    half = len(order) // 2
    return bytes_per_s_between(cluster_graph(cluster), order[:half], order[half:])


def gpu_vertices(cluster: Cluster) -> list[Vertex]:
    """Return the accelerators of a cluster in the order of ranks: island by island, node by node."""
    return [vertex for number, island in enumerate(cluster.islands) for vertex in _gpus(number, island)]


def torus_axes(gpus: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of a torus of ``gpus`` chips, longest first.

    Parameters
    ----------
    gpus : int
        Chips of the slice.
    axes : tuple of int
        Lengths of the whole machine: the answer for all of it, and the number of dimensions otherwise.

    Returns
    -------
    tuple of int
        The product is ``gpus``; the lengths are as equal as its factors allow.
    """
    if math.prod(axes) == gpus:
        return tuple(sorted(axes, reverse=True))
    return tuple(sorted(_equal_factors(gpus, len(axes) or 1), reverse=True))


def _equal_factors(number: int, count: int) -> tuple[int, ...]:
    if count == 1:
        return (number,)
    side = round(number ** (1.0 / count))
    first = next(factor for factor in range(max(side, 1), 0, -1) if number % factor == 0)
    return (first, *_equal_factors(number // first, count - 1))


def _gpus(number: int, island: Island) -> Iterator[Vertex]:
    return (("gpu", number, node, index) for node in range(island.nodes) for index in range(island.node.gpus))


def _link(kind: str, bytes_per_s: float, latency_s: float = 0.0) -> dict[str, Any]:
    limit = {"bytes_per_s": bytes_per_s} if math.isfinite(bytes_per_s) else {}
    return {"kind": kind, "latency_s": latency_s, **limit}


def _both_ways(edges: Iterable[Edge]) -> Iterator[Edge]:
    for start, end, data in edges:
        yield start, end, data
        yield end, start, data


def _island_edges(number: int, island: Island) -> Iterator[Edge]:
    node = island.node
    gpus = list(_gpus(number, island))
    yield from _fabric_edges(number, "switch", gpus, node.scale_up, island.domains)
    if node.node_fabric is not None:
        yield from _fabric_edges(number, "bridge", gpus, node.node_fabric)
    template = list(_node_edges(node))
    used = used_adapters(node)  # libraries leave those aside that are nearest to no accelerator
    link = _link(node.nics.kind, adapter_bytes_per_s(node), node.nics.latency_s / 2.0)  # one adapter at either end
    leaf = _levels(island)[0]
    rails = min(leaf.rails, len(used))
    for place in range(island.nodes):
        for start, end, data in template:
            yield _placed(start, number, place), _placed(end, number, place), data
        group = leaf.group_of(place)
        for turn, nic in enumerate(used):
            home = ("rail", number, group, turn * rails // len(used)) if rails > 1 else ("tier", number, 0, group)
            yield ("nic", number, place, nic), home, link
    if rails > 1:
        yield from _rail_edges(number, island, rails)
    yield from _tier_edges(number, island)


def _rail_edges(number: int, island: Island, rails: int) -> Iterator[Edge]:
    """Leaf switches of each group, one for every rail; what crosses rails meets at the group's vertex, the spines."""
    leaf, kind = _levels(island)[0], island.node.nics.kind
    each = reachable_nic_bytes_per_s(island.node) / rails
    for group, nodes in Counter(leaf.group_of(node) for node in range(island.nodes)).items():
        link = _link(kind, nodes * each)
        yield from ((("rail", number, group, rail), ("tier", number, 0, group), link) for rail in range(rails))


def _placed(vertex: Vertex, number: int, place: int) -> Vertex:
    return (vertex[0], number, place, *vertex[1:])


def _fabric_edges(
    number: int, name: str, gpus: list[Vertex], fabric: ScaleUp, domains: tuple[int, ...] = ()
) -> Iterator[Edge]:
    """Links of every domain of a scale-up fabric; ``gpus`` in order of ranks, ``domains`` nodes of unlike domains."""
    for domain, members in enumerate(_domain_members(gpus, fabric, domains)):
        pair = _link(fabric.kind, fabric.pair_bytes_per_s, fabric.latency_s)
        half = fabric.latency_s / 2.0  # two links make a path
        if fabric.shape is FabricShape.SWITCH:
            link = _link(fabric.kind, fabric.bytes_per_s, half)
            yield from ((gpu, (name, number, domain), link) for gpu in members)
        elif fabric.shape is FabricShape.MESH:
            yield from ((a, b, pair) for place, a in enumerate(members) for b in members[place + 1 :])
        elif fabric.shape is FabricShape.CUBE_MESH:
            for a, b, count in fabric.links:
                if max(a, b) < len(members):
                    yield members[a], members[b], _link(fabric.kind, count * fabric.pair_bytes_per_s, fabric.latency_s)
        elif fabric.shape is FabricShape.TORUS:
            yield from ((members[a], members[b], pair) for a, b in _torus_pairs(len(members), fabric.axes))


def _domain_members(gpus: list[Vertex], fabric: ScaleUp, domains: tuple[int, ...]) -> list[list[Vertex]]:
    """Accelerators of each domain: so many in a row, or those of the nodes that are listed."""
    if domains:
        ends = tuple(accumulate(domains))
        return [[gpu for gpu in gpus if bisect_right(ends, gpu[2]) == domain] for domain in range(len(domains))]
    size = fabric.domain_gpus
    return [gpus[start : start + size] for start in range(0, len(gpus), size)]


def _tree_edges(number: int, island: Island) -> Iterator[Edge]:
    """Links of PCIe trees, one way each: every accelerator's own, and what the host bridges carry for all together."""
    node = island.node
    gpus = list(_gpus(number, island))
    for name, fabric in (("tree", node.scale_up), ("node tree", node.node_fabric)):
        if fabric is None or fabric.shape is not FabricShape.TREE:
            continue
        own = _link(fabric.kind, max(fabric.pair_bytes_per_s, fabric.bytes_per_s), fabric.latency_s / 2.0)
        for domain, start in enumerate(range(0, len(gpus), fabric.domain_gpus)):
            members = gpus[start : start + fabric.domain_gpus]
            up, down = (f"{name} up", number, domain), (f"{name} down", number, domain)
            yield from ((gpu, up, own) for gpu in members)
            yield from ((down, gpu, own) for gpu in members)
            yield up, down, _link(fabric.kind, len(members) * fabric.bytes_per_s)


def _torus_pairs(gpus: int, axes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Neighbours in a torus, numbered along its longest axis last."""
    lengths = torus_axes(gpus, axes)
    strides = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    for chip in range(gpus):
        for length, stride in zip(lengths, strides, strict=True):
            step = chip // stride % length
            if step + 1 < length:
                yield chip, chip + stride
            elif length > 2:
                yield chip, chip - step * stride


def _node_edges(node: NodeType) -> Iterator[Edge]:
    """Inside of one node: accelerators to their PCIe switch or socket, to the host, and adapters."""
    attach = node.nics.gpu_bytes_per_s or math.inf
    pcie = node.host.pcie_bytes_per_s_per_gpu or math.inf
    numa = {gpu: k for k, group in enumerate(node.host.numa) for gpu in group}
    switch = {gpu: k for k, group in enumerate(node.host.pcie_switches) for gpu in group}

    def root(gpu: int) -> Vertex:
        return ("numa", numa[gpu]) if gpu in numa else ("host",)

    for gpu in range(node.gpus):
        nearest = ("pcie", switch[gpu]) if gpu in switch else root(gpu)
        yield ("gpu", gpu), nearest, _link("pcie", attach)
    for k, group in enumerate(node.host.pcie_switches):
        yield ("pcie", k), root(group[0]), _link("pcie", pcie)
    yield from ((("numa", k), ("host",), _link("socket", math.inf)) for k in range(len(node.host.numa)))
    yield from ((place, ("nic", nic), _link("pcie", math.inf)) for nic, place in enumerate(_nic_places(node)))


def _nic_places(node: NodeType) -> list[Vertex]:
    """What each adapter hangs on: as the accelerators that it is nearest to, or spread evenly where nobody says."""
    host, count = node.host, node.nics.count
    if host.nearest_nics:
        groups = [*((("pcie", k), group) for k, group in enumerate(host.pcie_switches)),
                  *((("numa", k), group) for k, group in enumerate(host.numa))]  # fmt: skip
        own = [(place, {nic for gpu in group for nic in host.nearest_nics[gpu]}) for place, group in groups]
        return [next((place for place, nics in own if nic in nics), ("host",)) for nic in range(count)]
    places: list[Vertex] = [("pcie", k) for k in range(len(host.pcie_switches))]
    places = places or [("numa", k) for k in range(len(host.numa))] or [("host",)]
    return [places[nic * len(places) // count] for nic in range(count)]


def _levels(island: Island) -> list[FabricTier]:
    """Return tiers of the network; the outermost spans all nodes."""
    levels = [tier for tier in island.fabric if tier.nodes == 0 or tier.nodes < island.nodes]
    if not levels or 0 < levels[-1].nodes < island.nodes:
        wider = [tier for tier in island.fabric if tier.nodes >= island.nodes]
        name, latency = (wider[0].name, wider[0].latency_s) if wider else ("network", 0.0)
        levels.append(FabricTier(name=name, nodes=0, latency_s=latency))
    return levels


def _group(number: int, level: int, place: int, island: Island) -> Vertex:
    return ("tier", number, level, _levels(island)[level].group_of(place))


def _network_root(number: int, island: Island) -> Vertex:
    return ("tier", number, len(_levels(island)) - 1, 0)


def _tier_edges(number: int, island: Island) -> Iterator[Edge]:
    levels = _levels(island)
    rate = reachable_nic_bytes_per_s(island.node)
    for level, (tier, outer) in enumerate(pairwise(levels)):
        rate /= tier.oversubscription
        groups = Counter(tier.group_of(node) for node in range(island.nodes))
        firsts = {tier.group_of(node): node for node in reversed(range(island.nodes))}
        for group, nodes in groups.items():
            link = _link(island.node.nics.kind, nodes * rate, outer.latency_s / 2.0)
            yield ("tier", number, level, group), _group(number, level + 1, firsts[group], island), link
