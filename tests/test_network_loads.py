"""Exchanges on the topology graph: equal to the tiers where all is even, to a fluid simulation where it is not."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodels.collectives import COLLECTIVE_S
from costmodels.exchange.placed import PlacedTable
from costmodels.layout import Layout, RankOrder, Strategy
from costmodels.mesh import Axis, group_of
from costmodels.network_loads import FlowSpeed, Pattern, flow_speeds, on_graph, rank_places, uneven_flows
from costmodels.price import price_layout
from costmodels.pricing import Pricing, rank_blocks
from costmodels.shared_links import pair_speeds
from costmodels.table import table_of
from hardware import catalog
from hardware.adapters import adapters_of
from hardware.cluster import Cluster, FabricTier, Island
from hardware.tiers import island_tiers
from hardware.topology import cluster_graph
from planner import Question, request_of
from planner.layouts.build import uniform_layout
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate, pricings_of
from planner.report.traffic_json import traffic_to_json
from planner.request import PlanRequest
from planner.traffic import traffic_of


def island_of(groups: tuple[int, ...], *, ratio: float = 4.0, adapters: int = 8) -> Island:
    base = catalog.cluster("dgx-h100:2").islands[0]
    node = replace(base.node, nics=replace(base.node.nics, count=adapters, gpu_bytes_per_s=0.0))
    node = replace(node, host=replace(node.host, pcie_switches=()))
    leaf = FabricTier(name="leaf", nodes=max(groups), oversubscription=ratio, groups=groups)
    return Island(node=node, nodes=sum(groups), fabric=(leaf, FabricTier(name="spine", nodes=0)))


def asked(island: Island, batch: int = 64, model: str = "llama3_8b") -> PlanRequest:
    request = request_of(Question(model=model, cluster="dgx-h100:2", global_batch=batch, seq=8192))
    return replace(request, cluster=Cluster(name="parts", islands=(island,)))


def pricing_of(island: Island, layout: Layout, nodes: tuple[int, ...] = ()) -> Pricing:
    return replace(pricings_of(asked(island))[0], nodes=nodes, blocks=rank_blocks(layout))


def layout_with(strategy: Strategy, pp: int, order: RankOrder = RankOrder.DP_INSIDE, vpp: int = 1) -> Layout:
    layout = uniform_layout(strategy, [[1] * vpp] * pp, micro_batch=1, num_microbatches=pp)
    return replace(layout, rank_order=order)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1)]),
    ratio=st.sampled_from([1.0, 2.0, 4.0]),
    adapters=st.sampled_from([1, 2, 4, 8]),
    degrees=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8])),
    ep=st.sampled_from([1, 2, 4, 8]),
)
@example(shape=(1, 8), ratio=2.0, adapters=8, degrees=(4, 4, 1), ep=1)  # a node alone below oversubscribed uplinks
def test_even_clusters_go_at_the_pace_of_the_tiers(
    shape: tuple[int, int], ratio: float, adapters: int, degrees: tuple[int, int, int], ep: int
) -> None:
    """Leaves of equal numbers of nodes, all in use: every axis and pattern, on every link."""
    nodes_of_a_leaf, leaves = shape
    tp, cp, pp = degrees
    dp = 64 // (tp * cp * pp)
    if not dp or (tp * cp * dp) % ep:
        return
    layout = layout_with(Strategy(tp=tp, cp=cp, dp=dp, ep=ep), pp, vpp=2)
    island = island_of((nodes_of_a_leaf,) * leaves, ratio=ratio, adapters=adapters)
    for flow in flow_speeds(pricing_of(island, layout), layout):
        assert flow.speed == pytest.approx(1.0), flow
    assert on_graph(pricing_of(replace(island, fabric=()), layout), layout).speeds == ()


@pytest.mark.parametrize("nearest", [((0, 1, 2),) * 8, ((0, 1, 2, 3),) * 4 + ((4,),) * 4, ((0,),) * 6 + ((1,),) * 2])
@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (8, 8), (1, 8)])
def test_accelerators_that_share_adapters_unevenly_go_at_the_pace_of_the_tiers(
    nearest: tuple[tuple[int, ...], ...], tp: int, pp: int
) -> None:
    """All nodes alike: what the fullest adapter carries is known without the graph."""
    island = island_of((8,), adapters=5)
    node = replace(island.node, host=replace(island.node.host, nearest_nics=nearest))
    layout = layout_with(Strategy(tp=tp, dp=64 // tp // pp), pp)
    for flow in flow_speeds(pricing_of(replace(island, node=node), layout), layout):
        assert flow.speed == pytest.approx(1.0), flow


Place = tuple[int, int]
Bytes = dict[tuple[object, object], float]


def unit_flows(members: list[Place], pattern: Pattern, *, around: bool) -> list[list[tuple[Place, Place, float]]]:
    """Flows between nodes of one collective, those that move on together in one list."""
    n, neighbours = len(members), list(pairwise([*members, members[0]] if around else members))
    if pattern is Pattern.NEIGHBOUR:
        return [[(source, target, 1.0)] for source, target in neighbours if source[0] != target[0]]
    if pattern is Pattern.PAIRS:
        return [[(a, b, 1.0 / n) for a in members for b in members if a[0] != b[0]]]
    by_node: dict[int, list[Place]] = {}
    for member in members:
        by_node.setdefault(member[0], []).append(member)
    held = list(by_node.values())
    flows = []
    for here, there in pairwise([*held, held[0]] if len(held) > 1 else held):
        parts = max(len(here), len(there))
        for part in range(parts):
            ends = here[part * len(here) // parts], there[part * len(there) // parts]
            flows.append((*ends, (n - 1) / n / parts))
    return [flows]


class Network:
    """The links between the adapters of an island, and shortest paths over them, each looked for once."""

    def __init__(self, island: Island) -> None:
        graph = cluster_graph(Cluster(name="c", islands=(island,)))
        self.outside = nx.DiGraph(graph.subgraph([v for v in graph if v[0] in ("nic", "tier", "rail")]))
        self.capacity = {
            edge[:2]: edge[2]["bytes_per_s"] for edge in graph.edges(data=True) if "bytes_per_s" in edge[2]
        }
        self.own = adapters_of(island.node)
        self.paths: dict[tuple[Place, Place], list[tuple[object, object]]] = {}

    def path(self, source: Place, target: Place) -> list[tuple[object, object]]:
        """Links from an adapter of a node to one of another."""
        if (source, target) not in self.paths:
            nodes = nx.shortest_path(self.outside, ("nic", 0, *source), ("nic", 0, *target))
            self.paths[source, target] = list(pairwise(nodes))
        return self.paths[source, target]

    def bytes_by_link(self, flows: list[tuple[Place, Place, float]]) -> Bytes:
        """Bytes over each directed link of the network, by shortest paths between the adapters of both ends."""
        found: Bytes = {}
        for source, target, size in flows:
            parts = max(len(self.own[source[1]]), len(self.own[target[1]]))
            for part in range(parts):
                ends = [(node, self.own[gpu][part * len(self.own[gpu]) // parts]) for node, gpu in (source, target)]
                for edge in self.path(*ends):
                    found[edge] = found.get(edge, 0.0) + size / parts
        return found


def poured(loads: list[Bytes], capacity: dict[tuple[object, object], float]) -> float:
    """Pace of the slowest group: pour small equal drops of progress into all groups that still fit their links."""
    fastest = min(min(capacity[edge] / size for edge, size in group.items()) for group in loads if group)
    links = sorted({edge for group in loads for edge in group}, key=repr)
    drops = fastest / 2000.0 * np.array([[group.get(edge, 0.0) for edge in links] for group in loads if group])
    full = np.array([capacity[edge] for edge in links]) * (1 + 1e-9)
    used, pace = np.zeros(len(links)), 0.0
    while (used + drops.sum(axis=0) <= full).all():
        used += drops.sum(axis=0)
        pace += fastest / 2000.0
    return pace


@pytest.mark.parametrize("order", list(RankOrder))
@pytest.mark.parametrize(
    ("groups", "nodes"),
    [
        ((4, 3, 1), ()),
        ((1, 3, 4), (1, 2, 3, 4, 5, 6, 7, 0)),
        ((2, 4), (0, 2, 1, 3)),
        ((3, 5), (0, 4, 1, 5, 2, 6)),
        ((4, 4), (0, 1, 4)),
    ],
)
@pytest.mark.parametrize(
    "strategy", [Strategy(tp=8, dp=2), Strategy(tp=2, dp=4, ep=2), Strategy(tp=4, cp=2, dp=2, ep=8)]
)
def test_uneven_allocations_match_a_fluid_simulation(
    strategy: Strategy, groups: tuple[int, ...], nodes: tuple[int, ...], order: RankOrder
) -> None:
    island = island_of(groups)
    in_use = len(nodes) or sum(groups)
    pp = in_use * 8 // strategy.gpus
    layout = layout_with(strategy, pp, order)
    pricing = pricing_of(island, layout, nodes)
    table = table_of([strategy], pp=[pp], micro_batch=[1])
    places = [(int(node), int(gpu)) for node, gpu in rank_places(pricing, layout)]
    network = Network(island)
    found = flow_speeds(pricing, layout)
    assert found
    for flow in found:
        group = group_of(flow.axis, table)
        size, stride = int(group.size[0]), int(group.stride[0])
        ranks = [
            [block * size * stride + first + k * stride for k in range(size)]
            for block in range(layout.gpus // (size * stride))
            for first in range(stride)
        ]
        around = flow.axis is not Axis.PP
        moved = [flows for one in ranks for flows in unit_flows([places[r] for r in one], flow.pattern, around=around)]
        loads = [network.bytes_by_link(flows) for flows in moved]
        even = flow_pace(flow, pricing, layout)
        assert even * flow.speed == pytest.approx(poured(loads, network.capacity), rel=2e-3), flow


def flow_pace(flow: FlowSpeed, pricing: Pricing, layout: Layout) -> float:
    """Collectives a second that shares of the tiers say, from a very long message without losses of software."""
    network = pricing.constants.network
    ideal = replace(
        network,
        links=tuple(replace(link, ring=1.0, copy_bytes_per_s=1e30, alltoall=1.0, incast=0.0) for link in network.links),
        group_bytes_per_s=1e30,
        interference=0.0,
    )
    inner, *outer = pricing.tiers
    tiers = (replace(inner, bytes_per_s=1e30, pair_bytes_per_s=1e30), *outer)
    placed = PlacedTable(table_of([layout.first], pp=[layout.pp], micro_batch=[1]), tiers, ideal)
    collective = {Pattern.RING: "all_gather", Pattern.PAIRS: "alltoall", Pattern.NEIGHBOUR: "sendrecv"}[flow.pattern]
    message = 1e18
    seconds = COLLECTIVE_S[collective](message, placed.group(flow.axis), tiers, ideal)
    return message / float(seconds[0])


def test_idle_nodes_leave_their_share_of_the_uplinks() -> None:
    """Six of eight nodes below leaves of four at 4:1: two of the second leaf stay idle, and reports price it so."""
    island = island_of((4, 4))
    request = asked(island, batch=63)
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2, dp=3))
    pricing = pricings_of(request)[0]
    found = {(flow.axis, flow.pattern): flow for flow in uneven_flows(pricing, layout)}
    # The ring of the second stage crosses to the second leaf once for all of its four nodes' uplinks: 4 shares, not 1.
    assert found[Axis.DP_CP, Pattern.RING].speed == pytest.approx(4.0)
    assert found[Axis.DP_CP, Pattern.RING].link.startswith("uplinks of leaf")
    ranked = estimate(request, layout)
    even = price_layout([pricing], layout)
    assert ranked.cost.step.total_s < even.step.total_s
    assert ranked.cost == price_layout([on_graph(pricing, layout)], layout)


def test_reports_name_the_shared_link_of_the_graph() -> None:
    """Stages whose nodes alternate between leaves cross them at every hop of their rings: half the pace."""
    island = island_of((4, 4), ratio=16.0)
    request = asked(island)
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2, dp=4))
    ranked = estimate(request, layout)
    turned = replace(island, hosts=())
    pricing = replace(pricings_of(request)[0], island=turned, nodes=(0, 4, 1, 5, 2, 6, 3, 7))
    slow = {(flow.axis, flow.pattern): flow for flow in uneven_flows(pricing, layout)}
    assert slow[Axis.DP_CP, Pattern.RING].speed == pytest.approx(0.5)
    assert price_layout([on_graph(pricing, layout)], layout).step.total_s > price_layout([pricing], layout).step.total_s
    lean = layout_of(asked(island, batch=63), ExplicitLayout(tp=8, pp=2, dp=3))
    found = traffic_of(asked(island, batch=63), estimate(asked(island, batch=63), lean))
    assert [flow.link for flow in found.uneven if flow.pattern is Pattern.RING] == [
        "uplinks of leaf 1 (4 nodes)"
    ] * len([flow for flow in found.uneven if flow.pattern is Pattern.RING])
    assert any(link.name == "uplinks of leaf 1 (4 nodes)" for link in found.resources)
    told = traffic_to_json(found)["uneven"]
    assert isinstance(told, list)
    assert {"axis", "pattern", "speed", "link"} == set(told[0])
    assert traffic_of(request, ranked).uneven == ()


def test_even_tiers_keep_their_prices() -> None:
    request = asked(island_of((4, 4)))
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2, dp=4))
    pricing = pricings_of(request)[0]
    assert on_graph(pricing, layout) is pricing
    assert island_tiers(pricing.island)[-1].speeds == ()


def link_seconds(network: Network, layout: Layout, axis: Axis, pattern: Pattern) -> dict[object, float]:
    """Seconds that a unit of an axis keeps every link of the graph in use, by shortest paths, all groups together."""
    groups = group_of(axis, table_of([layout.first], pp=[layout.pp], micro_batch=[1]))
    size, stride = int(groups.size[0]), int(groups.stride[0])
    found: Bytes = {}
    for start in range(layout.gpus):
        if start // stride % size:
            continue
        members = [divmod(start + turn * stride, 8) for turn in range(size)]
        for flows in unit_flows(members, pattern, around=False):
            for edge, size_bytes in network.bytes_by_link(flows).items():
                found[edge] = found.get(edge, 0.0) + size_bytes
    return {edge: size_bytes / network.capacity[edge] for edge, size_bytes in found.items()}


def fair_paces(first: dict[object, float], second: dict[object, float], rates: tuple[float, float]) -> list[float]:
    """Paces of two collectives over those alone: their rates rise together in small steps until a link is full."""
    links = {*first, *second}
    use = np.array([[own.get(link, 0.0) / max(own.values()) for link in links] for own in (first, second)])
    paces, rising, step = np.zeros(2), [0, 1], 1e-4
    while rising:
        grown = paces.copy()
        for number in rising:
            grown[number] = min(1.0, grown[number] + step / rates[number] * max(rates))
        over = grown @ use > 1.0
        full = [number for number in rising if grown[number] >= 1.0 or over[use[number] > 0.0].any()]
        for number in range(2):
            paces[number] = paces[number] if number in full and grown[number] < 1.0 else grown[number]
        rising = [number for number in rising if number not in full]
    return paces.tolist()


@pytest.mark.parametrize("groups", [(4, 3, 1), (6, 2), (4, 4), (5, 3)])
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_two_kinds_of_transfers_share_the_links_of_the_graph(groups: tuple[int, ...], ratio: float) -> None:
    """Sends beside all-to-all, and reductions beside sends, on every link of an uneven allocation."""
    island = replace(island_of(groups, ratio=ratio), nodes=8)
    layout = layout_with(Strategy(tp=2, dp=8, ep=16), 4)
    flows = {(flow.axis, flow.pattern): flow for flow in flow_speeds(pricing_of(island, layout), layout)}
    network = Network(island)
    kinds = ((Axis.PP, Pattern.NEIGHBOUR), (Axis.EP, Pattern.PAIRS), (Axis.DP_CP, Pattern.RING))
    for one, other in ((kinds[0], kinds[1]), (kinds[2], kinds[0]), (kinds[2], kinds[1])):
        seconds = [link_seconds(network, layout, *kind) for kind in (one, other)]
        adapter = [max(t for (start, _), t in own.items() if start[0] == "nic") / max(own.values()) for own in seconds]
        loads = [
            np.array([rate, *flows[kind].loads])[:, None] for rate, kind in zip(adapter, (one, other), strict=True)
        ]
        found = pair_speeds(*loads)
        expected = fair_paces(*seconds, rates=(adapter[0], adapter[1]))
        assert [float(pace[0]) for pace in found] == pytest.approx(expected, abs=2e-3)
        used = [{link: time / max(own.values()) for link, time in own.items()} for own in seconds]
        both = max(used[0].get(link, 0.0) + used[1].get(link, 0.0) for link in {*used[0], *used[1]})
        pairs = zip(flows[one].loads, flows[other].loads, strict=True)
        assert max(first + second for first, second in pairs) == pytest.approx(both)
