"""Flows on shared links: the definition of max-min fairness, and a fluid simulation in small steps."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from fair_flows import Flow, finish_times_s, max_min_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.shared_links import pair_speeds
from hardware import catalog
from hardware.cluster import Cluster, FabricTier, Island
from hardware.node_parts import with_gpus
from hardware.topology import cluster_graph

LINKS = 3


@st.composite
def flow_sets(draw: st.DrawFn) -> tuple[tuple[Flow, ...], np.ndarray]:
    count = draw(st.integers(1, 5))
    flows = tuple(
        Flow(
            volume_bytes=float(draw(st.integers(1, 40))),
            links=tuple(sorted(draw(st.sets(st.integers(0, LINKS - 1), min_size=1)))),
            limit_bytes_per_s=float(draw(st.integers(1, 20))),
        )
        for _ in range(count)
    )
    return flows, np.array([float(draw(st.integers(1, 20))) for _ in range(LINKS)])


@settings(max_examples=200, deadline=None)
@given(flow_sets())
def test_every_flow_has_a_bottleneck(case: tuple[tuple[Flow, ...], np.ndarray]) -> None:
    """Rates are max-min fair exactly when each flow is at its limit, or is among the fastest on a full link."""
    flows, capacities = case
    rates = max_min_rates(flows, capacities)
    loads = np.array([sum(r for r, f in zip(rates, flows, strict=True) if link in f.links) for link in range(LINKS)])
    assert (loads <= capacities * (1 + 1e-9)).all()
    for rate, flow in zip(rates, flows, strict=True):
        assert rate <= flow.limit_bytes_per_s * (1 + 1e-9)
        at_limit = rate >= flow.limit_bytes_per_s * (1 - 1e-9)
        bottleneck = any(
            loads[link] >= capacities[link] * (1 - 1e-9)
            and rate >= max(r for r, f in zip(rates, flows, strict=True) if link in f.links) * (1 - 1e-9)
            for link in flow.links
        )
        assert at_limit or bottleneck


def filled_by_drops(flows: list[Flow], capacities: np.ndarray) -> list[float]:
    """Max-min rates by brute force: pour small equal drops into all flows that can still take one."""
    drop = 0.004
    rates, loads = [0.0] * len(flows), np.zeros(LINKS)
    progress = True
    while progress:
        progress = False
        for index, flow in enumerate(flows):
            fits = all(loads[link] + drop <= capacities[link] + 1e-9 for link in flow.links)
            if fits and rates[index] + drop <= flow.limit_bytes_per_s + 1e-9:
                rates[index] += drop
                loads[list(flow.links)] += drop
                progress = True
    return rates


def fluid(flows: tuple[Flow, ...], capacities: np.ndarray) -> list[float]:
    """Finish times by simulation: pour rates anew whenever a flow has ended."""
    left = {index: flow.volume_bytes for index, flow in enumerate(flows)}
    finish, now = [0.0] * len(flows), 0.0
    while left:
        running = sorted(left)
        rates = filled_by_drops([flows[index] for index in running], capacities)
        step = min(left[index] / rate for index, rate in zip(running, rates, strict=True))
        now += step
        for index, rate in zip(running, rates, strict=True):
            left[index] -= rate * step
            if left[index] <= 1e-6 * flows[index].volume_bytes:
                finish[index] = now
                del left[index]
    return finish


@settings(max_examples=25, deadline=None)
@given(flow_sets())
def test_finish_times_match_a_fluid_simulation(case: tuple[tuple[Flow, ...], np.ndarray]) -> None:
    flows, capacities = case
    assert finish_times_s(flows, capacities) == pytest.approx(fluid(flows, capacities), rel=0.03)


@settings(max_examples=30, deadline=None)
@given(
    nodes_of_a_leaf=st.integers(1, 3),
    leaves=st.integers(2, 3),
    ratio=st.sampled_from([1.0, 2.0, 4.0]),
    gpus=st.integers(1, 4),
    shares=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
)
def test_two_transfers_of_every_rank_on_the_topology_graph_share_as_the_closed_form_says(
    nodes_of_a_leaf: int, leaves: int, ratio: float, gpus: int, shares: tuple[float, float]
) -> None:
    """Every rank sends to its peer in the next node and in the next leaf at once, over one adapter that a node has."""
    nodes = nodes_of_a_leaf * leaves
    node = with_gpus(catalog.node_type("dgx-h100"), gpus)
    node = replace(node, nics=replace(node.nics, count=1, gpu_bytes_per_s=0.0))
    tiers = (FabricTier(name="leaf", nodes=nodes_of_a_leaf, oversubscription=ratio), FabricTier(name="spine", nodes=0))
    island = Island(node=node, nodes=nodes, fabric=tiers)
    graph = cluster_graph(Cluster(name="c", islands=(island,)))
    links = {edge: number for number, edge in enumerate(graph.edges)}
    rates = np.array([data.get("bytes_per_s", np.inf) for _, _, data in graph.edges(data=True)])
    share = node.nics.bytes_per_s / gpus
    slowest = share / ratio if nodes > nodes_of_a_leaf else share
    flows = []
    for limit in shares:  # both transfers go to the peer one leaf on, so that both cross adapters and uplinks
        for place in range(nodes):
            there = (place + nodes_of_a_leaf) % nodes
            path = nx.shortest_path(graph, ("nic", 0, place, 0), ("nic", 0, there, 0))
            used = tuple(links[edge] for edge in pairwise(path))
            flows += [Flow(volume_bytes=1.0, links=used, limit_bytes_per_s=limit * slowest)] * gpus
    found = max_min_rates(tuple(flows), rates).reshape(2, -1) / np.array([[limit * slowest] for limit in shares])
    loads = [np.array([[limit * slowest / share], [limit]]) for limit in shares]
    first, second = pair_speeds(*loads)
    assert found[0] == pytest.approx(float(first[0]), rel=1e-6)
    assert found[1] == pytest.approx(float(second[0]), rel=1e-6)
