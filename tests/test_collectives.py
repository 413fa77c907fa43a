"""Collectives: closed forms of their parts, properties, and behaviour by fabric."""

from dataclasses import replace

import numpy as np
import pytest
from fair_flows import Flow, max_min_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives import (
    COLLECTIVE_S,
    default_network,
    send_receive_s,
)
from costmodels.collectives.algorithms import smooth_sum_s
from costmodels.collectives.fabric import alltoall_bytes_per_s, ring_bytes_per_s
from costmodels.collectives.leaving import leaving_bytes
from costmodels.collectives.rings import ring_count, worst_exchange_links
from costmodels.mesh import Group, PlacedGroup, place
from hardware import catalog
from hardware.adapters import adapters_of
from hardware.cluster import FabricShape, FabricTier, LinkKind
from hardware.tiers import Tier, island_tiers

NETWORK = default_network()
DGX1 = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip


def tiers_of(
    node: int = 8, *, switch_reduces: bool = False, share: float = 50e9, ranks: int = 4096
) -> tuple[Tier, ...]:
    inner = Tier(
        name="scale-up",
        kind=LinkKind.NVLINK,
        shape=FabricShape.SWITCH,
        gpus=node,
        bytes_per_s=450e9,
        pair_bytes_per_s=450e9,
        latency_s=0.6e-6,
        in_network_reduction=switch_reduces,
    )
    outer = replace(
        inner,
        name="network",
        kind=LinkKind.INFINIBAND,
        gpus=ranks,
        bytes_per_s=share,
        pair_bytes_per_s=50e9,
        latency_s=2.7e-6,
        in_network_reduction=False,
    )
    return (inner, outer)


def placed(size: int, stride: int, tiers: tuple[Tier, ...], blocks: int = 1) -> PlacedGroup:
    group = Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([size * stride * blocks]))
    return place(group, tiers)


def seconds(collective: str, message: float, group: PlacedGroup, tiers: tuple[Tier, ...]) -> float:
    return float(COLLECTIVE_S[collective](message, group, tiers, NETWORK)[0])


@pytest.mark.parametrize("collective", sorted(COLLECTIVE_S))
def test_groups_of_one_are_free(collective: str) -> None:
    tiers = tiers_of()
    assert seconds(collective, 1e9, placed(1, 8, tiers, 4), tiers) == 0.0


@pytest.mark.parametrize("collective", sorted(COLLECTIVE_S))
@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([2, 3, 4, 8, 16, 64]),
    stride=st.sampled_from([1, 2, 8]),
    message=st.floats(1.0, 1e10),
    switch_reduces=st.booleans(),
)
def test_time_rises_with_the_message_and_falls_with_the_rate(
    collective: str, size: int, stride: int, message: float, switch_reduces: bool
) -> None:
    tiers = tiers_of(switch_reduces=switch_reduces)
    group = placed(size, stride, tiers, 2)
    time = seconds(collective, message, group, tiers)
    assert time > 0.0
    assert seconds(collective, 2.0 * message, group, tiers) > time
    slower = (tiers[0], replace(tiers[1], bytes_per_s=tiers[1].bytes_per_s / 2.0))
    assert seconds(collective, message, group, slower) >= time * (1.0 - 1e-9)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0.3, 1.0))
def test_latency_and_bandwidth_combine_to_more_than_either(latency: float, bandwidth: float, exponent: float) -> None:
    total = float(smooth_sum_s(np.array(latency), np.array(bandwidth), exponent))
    assert total >= max(latency, bandwidth)
    assert total >= (latency + bandwidth) * (1.0 - 1e-9)
    assert float(smooth_sum_s(np.array(latency), np.array(bandwidth), 1.0)) == pytest.approx(latency + bandwidth)


def test_large_rings_move_their_share_of_the_message_over_the_link() -> None:
    tiers = tiers_of()
    link = NETWORK.link(tiers[0])
    rate = 450e9 * link.ring
    message = 1e15  # so large that latency vanishes
    for size in (2, 4, 8):
        copy = message / size / link.copy_bytes_per_s
        group = placed(size, 1, tiers)
        gather = seconds("all_gather", message, group, tiers)
        assert gather == pytest.approx((size - 1) / size * message / rate + copy, rel=1e-3)
        reduce = seconds("all_reduce", message, group, tiers)
        assert reduce == pytest.approx(2 * (size - 1) / size * message / rate + copy, rel=1e-3)


def test_groups_share_the_adapters_of_their_node() -> None:
    # dp groups with one member per node run beside their seven neighbours: each has an eighth of the node's adapters.
    tiers = tiers_of(share=25e9)
    rate = 25e9 * NETWORK.link(tiers[1]).ring
    message = 1e15
    alone = seconds("all_gather", message, placed(4, 8, tiers), tiers)
    whole = seconds("all_gather", message, placed(32, 1, tiers), tiers)
    assert alone == pytest.approx(message * 3 / 4 / rate, rel=0.12)
    assert alone / whole == pytest.approx(8 * (3 / 4) / (31 / 32), rel=0.12)


def test_two_nodes_all_reduce_faster_than_a_ring_through_their_adapters() -> None:
    # a tree between two nodes sends each node's message once, a ring 2 (n - 1) / n times
    tiers = tiers_of(switch_reduces=True)
    message = 8e9
    time = seconds("all_reduce", message, placed(16, 1, tiers), tiers)
    bus_bytes_per_s = message / time * 2 * 15 / 16
    node_bytes_per_s = 8 * 50e9
    assert node_bytes_per_s < bus_bytes_per_s < 2 * 15 / 16 * node_bytes_per_s


def test_in_network_reduction_gains_with_the_group() -> None:
    plain, reducing = tiers_of(), tiers_of(switch_reduces=True)
    message = 8e9

    def gain(size: int) -> float:
        ring = seconds("all_reduce", message, placed(size, 1, plain), plain)
        return ring / seconds("all_reduce", message, placed(size, 1, reducing), reducing)

    assert [gain(size) for size in (2, 3)] == pytest.approx([1.0, 1.0])
    gains = [gain(size) for size in (4, 5, 6, 7, 8)]
    assert gains == sorted(gains)
    assert gains[-1] > 1.2


def test_latency_grows_with_steps_and_tiers() -> None:
    tiers = tiers_of()
    times = [seconds("all_gather", 8.0, placed(size, 1, tiers), tiers) for size in (2, 4, 8)]
    hop = NETWORK.hop_s(tiers[0])
    assert times[1] - times[0] == pytest.approx(2 * hop, rel=0.05)
    assert times[2] - times[1] == pytest.approx(4 * hop, rel=0.05)
    across = seconds("all_gather", 8.0, placed(2, 8, tiers), tiers)
    assert across - times[0] == pytest.approx(NETWORK.hop_s(tiers[1]) - hop, rel=0.05)


def test_higher_tiers_add_their_latency() -> None:
    near = tiers_of()
    far = (near[0], replace(near[1], latency_s=near[1].latency_s + 20e-6))
    group = placed(4, 8, near)
    longer = seconds("all_gather", 8.0, group, far) - seconds("all_gather", 8.0, group, near)
    usual = NETWORK.link(near[1]).latency_s
    assert longer == pytest.approx(3 * (near[1].latency_s + 20e-6 - usual), rel=0.05)


def test_oversubscription_binds_only_groups_that_cross_it() -> None:
    inner, outer = tiers_of()
    pod = replace(outer, name="leaf", gpus=32)
    spine = replace(outer, name="spine", bytes_per_s=outer.bytes_per_s / 4, pair_bytes_per_s=50e9)
    thin, thick = (inner, pod, spine), (inner, pod, replace(spine, bytes_per_s=outer.bytes_per_s))
    message = 1e12
    within, across = placed(4, 8, thin, 8), placed(4, 32, thin)
    assert seconds("all_gather", message, within, thin) == seconds("all_gather", message, within, thick)
    ratio = seconds("all_gather", message, across, thin) / seconds("all_gather", message, across, thick)
    assert ratio == pytest.approx(4.0, rel=0.15)


def test_all_to_all_collapses_across_large_domains() -> None:
    # published: GB300 NVL72, 64 members in a rack 685 GB/s, 128 in two racks 48 GB/s
    rack = replace(tiers_of()[0], gpus=72, bytes_per_s=900e9, pair_bytes_per_s=900e9)
    network = replace(tiers_of()[1], kind=LinkKind.ROCE, bytes_per_s=100e9, pair_bytes_per_s=100e9)
    message = 16e9
    one = seconds("alltoall", message, placed(64, 1, (rack, network)), (rack, network))
    half = (replace(rack, gpus=64), network)
    two = seconds("alltoall", message, placed(128, 1, half), half)
    assert 10.0 < two / one < 16.0


def test_incast_on_a_shared_adapter() -> None:
    # eight V100 nodes with one 100 Gb/s adapter each reached 0.51 GB/s of bus bandwidth (NVIDIA/nccl-tests issue 78)
    inner = replace(tiers_of()[0], bytes_per_s=150e9, shape=FabricShape.CUBE_MESH, pair_bytes_per_s=25e9, links=DGX1)
    outer = replace(tiers_of()[1], bytes_per_s=12.5e9 / 8, pair_bytes_per_s=12.5e9)
    message = float(1 << 29)
    time = seconds("alltoall", message, placed(64, 1, (inner, outer)), (inner, outer))
    assert message / time * 63 / 64 == pytest.approx(0.51e9, rel=0.3)


def test_few_flows_into_one_adapter_cost_little() -> None:
    """Sixteen accelerators that reach each other over adapters of 400 Gb/s alone kept 0.91 and 0.93 of the rate."""
    inner, outer = tiers_of(node=1)
    message = float(8 << 30)
    time = seconds("alltoall", message, placed(16, 1, (inner, outer)), (inner, outer))
    assert message * 15 / 16 / time == pytest.approx(0.92 * 50e9, rel=0.02)


def test_a_send_uses_the_outermost_tier_between_neighbours() -> None:
    tiers = tiers_of()
    message = 1e11
    inside = float(send_receive_s(message, placed(4, 2, tiers), tiers, NETWORK)[0])
    outside = float(send_receive_s(message, placed(4, 8, tiers), tiers, NETWORK)[0])
    rate = NETWORK.link(tiers[1]).ring * 50e9
    assert outside == pytest.approx(message / rate, rel=0.01)
    assert inside < outside / 5


def test_stages_inside_a_domain_leave_their_share_to_the_one_that_sends_out() -> None:
    """Eight GPUs share one adapter: a stage of 1, 2, 4, 8 or 16 ranks has 8, 4, 2, 1 and 1 shares of it for a flow."""
    inner, outer = tiers_of()
    shared = (inner, replace(outer, bytes_per_s=12.5e9 / 8, pair_bytes_per_s=12.5e9))
    own = (inner, replace(outer, bytes_per_s=50e9, pair_bytes_per_s=50e9))
    ring, message = NETWORK.link(outer).ring, 1e11
    for stride, shares in ((1, 8), (2, 4), (4, 2), (8, 1), (16, 1)):
        group = placed(32, stride, shared)
        taken = float(send_receive_s(message, group, shared, NETWORK)[0])
        assert taken == pytest.approx(message / (ring * shares * 12.5e9 / 8), rel=0.01)
        taken = float(send_receive_s(message, group, own, NETWORK)[0])
        assert taken == pytest.approx(message / (ring * 50e9), rel=0.01)  # an adapter each: nothing to gain


def test_vectorised_groups_equal_single_ones() -> None:
    rng = np.random.default_rng(11)
    tiers = tiers_of(switch_reduces=True)
    size, stride = 2 ** rng.integers(0, 6, 64), 2 ** rng.integers(0, 4, 64)
    group = place(Group(size=size, stride=stride, ranks=size * stride * 2), tiers)
    messages = 10.0 ** rng.uniform(2, 10, 64)
    for collective in COLLECTIVE_S.values():
        together = collective(messages, group, tiers, NETWORK)
        for row in range(64):
            alone = collective(messages[row], group.take(np.array([row])), tiers, NETWORK)
            assert together[row] == pytest.approx(alone[0], rel=1e-12)


def test_every_kind_of_link_has_constants() -> None:
    base = tiers_of()[0]
    for kind in LinkKind:
        for rate in (1e9, 1e12):
            link = NETWORK.link(replace(base, kind=kind, bytes_per_s=rate))
            assert kind in link.kinds
            assert 0.0 < link.ring <= 1.0


def test_a_full_mesh_uses_one_link_per_peer() -> None:
    mesh = replace(tiers_of()[0], kind=LinkKind.XGMI, shape=FabricShape.MESH, bytes_per_s=448e9, pair_bytes_per_s=64e9)
    together = np.array([2, 3, 4, 8])
    assert ring_bytes_per_s(mesh, together, np.ones(4, dtype=np.int64)).tolist() == [64e9, 128e9, 192e9, 448e9]


@pytest.mark.parametrize(("members", "rings"), [(2, 1), (3, 2), (4, 4), (6, 2), (7, 4), (8, 6)])
def test_rings_of_a_hybrid_cube_mesh(members: int, rings: int) -> None:
    assert ring_count(DGX1, tuple(range(members))) == rings


def test_rings_never_use_a_link_twice() -> None:
    # an upper bound by counting: a ring takes two of a member's links (one of two members)
    for members in range(3, 9):
        inside = tuple(range(members))
        ends = [sum(n for a, b, n in DGX1 if gpu in (a, b) and {a, b} <= set(inside)) for gpu in inside]
        assert ring_count(DGX1, inside) <= max(min(ends), 1)


def test_all_to_all_on_a_partial_mesh_pays_for_detours() -> None:
    assert worst_exchange_links(DGX1, 4, 1) == 4.0  # a quad is fully joined
    assert worst_exchange_links(DGX1, 8, 1) == pytest.approx(6 / (10 / 7))  # four neighbours, three detours


def test_a_torus_uses_the_axes_that_a_group_spans() -> None:
    torus = replace(
        tiers_of()[0],
        kind=LinkKind.ICI,
        shape=FabricShape.TORUS,
        gpus=512,
        bytes_per_s=300e9,
        pair_bytes_per_s=50e9,
        axes=(8, 8, 8),
    )
    together, stride = np.array([2, 8, 64, 512, 8]), np.array([1, 1, 1, 1, 8])
    assert ring_bytes_per_s(torus, together, stride).tolist() == [50e9, 100e9, 200e9, 300e9, 100e9]
    # hops: a quarter of each full axis
    assert alltoall_bytes_per_s(torus, together, stride)[[1, 2, 3]].tolist() == [50e9, 50e9, 50e9]


def test_cards_behind_a_host_bridge_share_it() -> None:
    tree = replace(tiers_of()[0], kind=LinkKind.PCIE, shape=FabricShape.TREE, bytes_per_s=25e9, pair_bytes_per_s=39e9)
    one = np.ones(2, dtype=np.int64)
    assert ring_bytes_per_s(tree, np.array([2, 8]), one).tolist() == [39e9, 25e9]


@pytest.mark.parametrize("adapters", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("stage", [1, 2, 4, 8])
def test_only_the_last_stage_in_a_node_sends_outwards(adapters: int, stage: int) -> None:
    """Stages of a few accelerators on nodes of eight, all sending at once: max-min fair rates on the adapters."""
    island = catalog.cluster("dgx-h100:4").islands[0]
    node = replace(island.node, nics=replace(island.node.nics, count=adapters, gpu_bytes_per_s=0.0))
    node = replace(node, host=replace(node.host, pcie_switches=()))
    tiers = island_tiers(replace(island, node=node, fabric=()))
    own = adapters_of(node)
    flows = tuple(
        Flow(volume_bytes=1.0, links=own[rank], limit_bytes_per_s=node.nics.bytes_per_s)
        for rank in range(8)
        if (rank + stage) // 8 != rank // 8
    )
    rates = max_min_rates(flows, np.full(adapters, node.nics.bytes_per_s))
    message = 1e12  # so large that only the rate counts
    group = placed(32 // stage, stage, tiers)
    time_s = seconds("sendrecv", message, group, tiers)
    assert message / time_s == pytest.approx(float(rates.min()) * NETWORK.link(tiers[1]).ring, rel=1e-2)
    leaving = leaving_bytes("sendrecv", np.array([message]), group, tiers, NETWORK)
    assert leaving[0, 0] * 8 == pytest.approx(len(flows) * message)  # what all ranks of a node send outwards together


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_uplinks_are_shared_by_the_stages_that_cross_them(oversubscription: float) -> None:
    """Two stages of a node each below leaves of two nodes: half of the accelerators send over the leaf's uplinks."""
    island = catalog.cluster("dgx-h100:8").islands[0]
    leaf = FabricTier(name="leaf", nodes=2, oversubscription=oversubscription)
    tiers = island_tiers(replace(island, fabric=(leaf, FabricTier(name="core", nodes=0))))
    message = 1e12
    rate = message / seconds("sendrecv", message, placed(8, 8, tiers), tiers) / NETWORK.link(tiers[1]).ring
    uplinks = 16 * tiers[1].bytes_per_s / oversubscription
    assert rate == pytest.approx(min(uplinks / 8, tiers[1].pair_bytes_per_s), rel=1e-2)
