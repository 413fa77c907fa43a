"""The topology graph against the tiers that summarise it, and against cuts counted by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import catalog
from hardware.cluster import Cluster, FabricShape, FabricTier, Island
from hardware.errors import InputError
from hardware.tiers import island_tiers
from hardware.topology import (
    bisection_bytes_per_s,
    bytes_per_s_between,
    cluster_graph,
    gpu_vertices,
    torus_axes,
)


@pytest.mark.parametrize(
    "spec",
    [
        *(f"{name}:{nodes}" for name in ("dgx-1", "dgx-a100", "dgx-h100", "p4d", "p3dn", "l4-8") for nodes in (2, 40)),
        "mi300x-8:3",
        "frontier:150",
        "gb200-nvl72:36",
        "gh200-alps:8",
        "h100-pcie-8-bridged:4",
        "gaudi2-8:2",
        "h200-thermal-study",
    ],
)
def test_the_network_carries_what_the_tiers_say(spec: str) -> None:
    machine = catalog.cluster(spec)
    graph, gpus = cluster_graph(machine), gpu_vertices(machine)
    tiers = island_tiers(machine.islands[0])
    for inner, outer in pairwise(tiers):
        if outer.name == "node":
            continue  # a tree lets one domain send faster while the others are silent
        inside, outside = gpus[: inner.gpus], gpus[inner.gpus : outer.gpus]
        senders = min(len(inside), len(outside))  # the smaller side limits
        assert bytes_per_s_between(graph, inside, outside) == pytest.approx(senders * outer.bytes_per_s, rel=1e-6)


@pytest.mark.parametrize("name", catalog.node_type_names())
def test_one_accelerator_sends_what_its_fabric_says(name: str) -> None:
    machine = catalog.cluster(f"{name}:8")
    graph, gpus = cluster_graph(machine), gpu_vertices(machine)
    fabric = machine.islands[0].node.scale_up
    domain = gpus[: fabric.domain_gpus]
    rate = bytes_per_s_between(graph, domain[:1], domain[1:])
    if fabric.domain_gpus == 1:
        assert rate == 0.0  # nodes of one superchip: no peer but over the network
    elif fabric.shape is FabricShape.TREE:
        assert rate == pytest.approx(fabric.pair_bytes_per_s)
    elif fabric.shape in (FabricShape.CUBE_MESH, FabricShape.TORUS):
        assert fabric.bytes_per_s * 0.45 <= rate <= fabric.bytes_per_s * 1.8  # counted in the tests below
    elif machine.islands[0].node.node_fabric is None:
        assert rate == pytest.approx(fabric.bytes_per_s)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("dgx-h100:1", 4 * 450e9),
        ("dgx-1:1", (2 + 2 + 1 + 1) * 25e9),  # links 0-4, 1-5, 2-6, 3-7
        ("frontier:1", (2 + 1 + 2 + 1) * 50e9),  # links 0-6, 1-5, 2-4, 3-7
        ("mi300x-8:1", 16 * 64e9),
        ("gh200-alps:1", 4 * 150e9),
        ("tpu-v4-pod:16", 2 * 16 * 45e9),  # 4x4x4: a plane of 16, and the links that close the ring
        ("tpu-v5e-pod:8", 2 * 8 * 50e9),  # 8x8
        ("dgx-h100:2", 400e9),
        ("dgx-h100:64", 32 * 400e9),
        ("h200-thermal-study", 2 * 2 * 12.5e9),
    ],
)
def test_bisections_counted_by_hand(spec: str, expected: float) -> None:
    assert bisection_bytes_per_s(catalog.cluster(spec)) == pytest.approx(expected)


def test_pairs_of_a_hybrid_cube_mesh() -> None:
    machine = catalog.cluster("dgx-1:1")
    links = machine.islands[0].node.scale_up.links
    degrees = [sum(count for a, b, count in links if gpu in (a, b)) for gpu in range(8)]
    assert degrees == [6] * 8
    graph = cluster_graph(machine)
    direct = {(a, b): graph.edges[("gpu", 0, 0, a), ("gpu", 0, 0, b)]["bytes_per_s"] for a, b, _ in links}
    assert direct[0, 1] == 25e9
    assert direct[0, 3] == 50e9
    assert not graph.has_edge(("gpu", 0, 0, 0), ("gpu", 0, 0, 7))


def test_oversubscribed_leaves() -> None:
    fabric = (FabricTier(name="leaf", nodes=2, oversubscription=4.0), FabricTier(name="spine", nodes=0))
    island = replace(catalog.cluster("dgx-h100:4").islands[0], fabric=fabric)
    assert bisection_bytes_per_s(Cluster(name="c", islands=(island,))) == pytest.approx(2 * 400e9 / 4.0)


def test_rails_are_switches_of_their_own() -> None:
    leaf = FabricTier(name="leaf", nodes=2, oversubscription=2.0, rails=8)
    island = replace(catalog.cluster("dgx-h100:4").islands[0], fabric=(leaf, FabricTier(name="spine", nodes=0)))
    machine = Cluster(name="c", islands=(island,))
    graph, gpus = cluster_graph(machine), gpu_vertices(machine)
    assert {vertex for vertex in graph if vertex[0] == "rail"} == {
        ("rail", 0, group, rail) for group in range(2) for rail in range(8)
    }
    assert graph.has_edge(("nic", 0, 1, 3), ("rail", 0, 0, 3))
    assert bytes_per_s_between(graph, gpus[:8], gpus[8:16]) == pytest.approx(400e9)
    assert bisection_bytes_per_s(machine) == pytest.approx(2 * 400e9 / 2.0)


def test_islands_meet_in_the_core() -> None:
    first, second = (catalog.cluster(spec).islands[0] for spec in ("dgx-h100:4", "dgx-a100:2"))
    machine = Cluster(name="c", islands=(first, second), inter_island_bytes_per_s=10e9)
    graph, gpus = cluster_graph(machine), gpu_vertices(machine)
    assert bytes_per_s_between(graph, gpus[:32], gpus[32:]) == pytest.approx(2 * 10e9)


def test_graphs_have_a_largest_size() -> None:
    with pytest.raises(InputError, match="too many for a graph"):
        cluster_graph(catalog.cluster("dgx-h100:5000"))


def test_a_lone_accelerator_has_no_bisection() -> None:
    assert bisection_bytes_per_s(catalog.cluster_of_run("H100", 1)) == 0.0


@given(st.integers(1, 5000), st.sampled_from([(16, 16), (16, 16, 16), (16, 20, 28)]))
def test_torus_axes_hold_every_chip(chips: int, axes: tuple[int, ...]) -> None:
    lengths = torus_axes(chips, axes)
    product = 1
    for length in lengths:
        product *= length
    assert product == chips
    assert len(lengths) == len(axes)
    assert list(lengths) == sorted(lengths, reverse=True)


def test_torus_axes_of_slices() -> None:
    assert torus_axes(64, (16, 16, 16)) == (4, 4, 4)
    assert torus_axes(32, (16, 16, 16)) == (4, 4, 2)
    assert torus_axes(8960, (16, 20, 28)) == (28, 20, 16)


@settings(max_examples=12, deadline=None)
@given(
    nodes=st.integers(2, 24),
    sizes=st.sampled_from([(), (2,), (3,), (2, 4), (2, 6), (3, 12), (4, 8)]),
    ratios=st.lists(st.floats(1.0, 6.0), min_size=2, max_size=2),
    gpudirect=st.booleans(),
)
def test_leaves_send_what_the_tiers_say(
    nodes: int, sizes: tuple[int, ...], ratios: list[float], gpudirect: bool
) -> None:
    base = catalog.cluster("dgx-a100:2").islands[0].node
    node = replace(base, nics=replace(base.nics, gpudirect=gpudirect))
    tiers = tuple(
        FabricTier(name=str(size), nodes=size, oversubscription=ratio)
        for size, ratio in zip(sizes, ratios, strict=False)
    )
    island = Island(node=node, nodes=nodes, fabric=tiers)
    machine = Cluster(name="c", islands=(island,))
    graph, gpus = cluster_graph(machine), gpu_vertices(machine)
    summary = island_tiers(island)
    for inner, outer in pairwise(summary):
        inside, outside = gpus[: inner.gpus], gpus[inner.gpus : outer.gpus]
        flow = bytes_per_s_between(graph, inside, outside)
        assert flow <= len(inside) * outer.bytes_per_s * (1 + 1e-6)
        if len(outside) >= len(inside) and (outer.gpus // node.gpus) % (inner.gpus // node.gpus) == 0:
            assert flow == pytest.approx(len(inside) * outer.bytes_per_s, rel=1e-6)
