"""The bandwidth hierarchy: odd nodes, racks, bridges, slices, oversubscription and missing GPUDirect."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import catalog
from hardware.catalog import cluster
from hardware.cluster import FabricShape, FabricTier, Island
from hardware.errors import InputError
from hardware.node_parts import with_gpus
from hardware.segments import in_segments
from hardware.tiers import island_tiers, reachable_nic_bytes_per_s


def island(name: str, nodes: int) -> Island:
    return catalog.cluster(f"{name}:{nodes}").islands[0]


def test_fat_tree_keeps_the_share_and_oversubscription_multiplies() -> None:
    machine = replace(
        island("dgx-h100", 64),
        fabric=(
            FabricTier(name="leaf", nodes=4, oversubscription=2.0),
            FabricTier(name="spine", nodes=16, oversubscription=4.0, latency_s=1e-6),
            FabricTier(name="core", nodes=0, latency_s=3e-6),
        ),
    )
    tiers = island_tiers(machine)
    assert [tier.name for tier in tiers] == ["scale-up", "leaf", "spine", "core"]
    assert [tier.gpus for tier in tiers] == [8, 32, 128, 512]
    assert [tier.bytes_per_s for tier in tiers[1:]] == [50e9, 25e9, 6.25e9]
    assert [tier.pair_bytes_per_s for tier in tiers[1:]] == [50e9, 50e9, 50e9]
    assert tiers[3].latency_s - tiers[1].latency_s == pytest.approx(3e-6)


def test_tiers_that_the_island_does_not_fill_are_left_out() -> None:
    assert [tier.name for tier in island_tiers(island("dgx-h100", 1))] == ["scale-up"]
    assert [tier.name for tier in island_tiers(island("dgx-h100", 32))] == ["scale-up", "leaf"]
    assert [tier.name for tier in island_tiers(island("dgx-h100", 33))] == ["scale-up", "leaf", "spine"]


@pytest.mark.parametrize("gpus", [6, 7, 12])
def test_odd_nodes(gpus: int) -> None:
    node = with_gpus(catalog.node_type("dgx-h100"), gpus)
    tiers = island_tiers(Island(node=node, nodes=20))
    assert [tier.gpus for tier in tiers] == [gpus, 20 * gpus]
    assert tiers[0].bytes_per_s == 450e9
    assert tiers[1].bytes_per_s == pytest.approx(min(400e9 / gpus, 55e9))  # shared adapters, but one PCIe link each


def test_parts_of_meshes_lose_the_links_of_absent_peers() -> None:
    node = catalog.node_type("mi300x-8")
    assert [with_gpus(node, gpus).scale_up.bytes_per_s / 64e9 for gpus in (8, 4, 2)] == [7.0, 3.0, 1.0]
    half = with_gpus(catalog.node_type("dgx-1"), 4)
    assert half.scale_up.bytes_per_s == 100e9  # GPU 0: one link to 1, one to 2, two to 3
    assert half.cooling.rows == ((0, 1, 2, 3),)
    assert half.host.pcie_switches == ((0, 1), (2, 3))
    assert all(max(a, b) < 4 for a, b, _ in half.scale_up.links)


def test_larger_nodes_forget_what_is_not_known() -> None:
    node = with_gpus(catalog.node_type("dgx-a100"), 16)
    assert node.scale_up.domain_gpus == 16
    assert (node.cooling.rows, node.host.numa, node.host.pcie_switches) == ((), (), ())


def test_domains_of_several_nodes_follow_the_tray() -> None:
    half_trays = with_gpus(catalog.node_type("gb200-nvl72"), 2)
    assert half_trays.scale_up.domain_gpus == 36
    odd = replace(half_trays, scale_up=replace(half_trays.scale_up, domain_gpus=35))
    with pytest.raises(InputError, match="do not fill a domain"):
        with_gpus(odd, 1)


def test_bridged_pairs_have_a_tier_of_their_own() -> None:
    tiers = island_tiers(island("h100-pcie-8-bridged", 2))
    assert [(tier.name, tier.gpus) for tier in tiers] == [("scale-up", 2), ("node", 8), ("leaf", 16)]
    assert [tier.bytes_per_s for tier in tiers] == [300e9, 25e9, 12.5e9]
    single = with_gpus(catalog.node_type("h100-pcie-8-bridged"), 2)
    assert [tier.gpus for tier in island_tiers(Island(node=single, nodes=1))] == [2]


def test_slices_are_one_domain_up_to_the_pod() -> None:
    assert [tier.gpus for tier in island_tiers(island("tpu-v4-pod", 1024))] == [4096]
    tiers = island_tiers(island("tpu-v4-pod", 2048))
    assert [tier.gpus for tier in tiers] == [4096, 8192]
    assert tiers[0].shape is FabricShape.TORUS
    assert tiers[0].bytes_per_s == 6 * tiers[0].pair_bytes_per_s


def test_gcd_mesh_pairs_are_slow() -> None:
    up = island_tiers(island("frontier", 1))[0]
    assert up.pair_bytes_per_s == 50e9
    assert up.bytes_per_s == 200e9


def test_without_gpudirect_shared_switches_carry_every_byte_twice() -> None:
    node = catalog.node_type("dgx-1")
    one = replace(node, nics=replace(node.nics, count=1, gpudirect=False))
    assert reachable_nic_bytes_per_s(one) == pytest.approx(6.15e9)  # measured: 6 GB/s, NVIDIA/nccl issue 465
    assert reachable_nic_bytes_per_s(replace(one, nics=replace(one.nics, gpudirect=True))) == 12.5e9
    own_ports = replace(one, host=replace(one.host, pcie_switches=()))
    assert reachable_nic_bytes_per_s(own_ports) == 12.5e9
    slow = replace(one, nics=replace(one.nics, bytes_per_s=3.125e9))
    assert reachable_nic_bytes_per_s(slow) == 3.125e9


def test_few_accelerators_cannot_fill_all_adapters() -> None:
    two = with_gpus(catalog.node_type("dgx-a100"), 2)
    tier = island_tiers(Island(node=two, nodes=4))[1]
    assert (tier.bytes_per_s, tier.pair_bytes_per_s) == (26e9, 26e9)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(catalog.node_type_names()),
    nodes=st.integers(1, 300),
    sizes=st.sets(st.integers(1, 200), max_size=3),
    ratio=st.floats(1.0, 8.0),
)
def test_tiers_widen_and_never_quicken_outwards(name: str, nodes: int, sizes: set[int], ratio: float) -> None:
    fabric = tuple(FabricTier(name=str(size), nodes=size, oversubscription=ratio) for size in sorted(sizes))
    machine = Island(node=catalog.node_type(name), nodes=nodes, fabric=fabric)
    tiers = island_tiers(machine)
    gpus = [tier.gpus for tier in tiers]
    assert gpus == sorted(set(gpus))
    assert gpus[-1] == machine.gpus
    network = [tier.bytes_per_s for tier in tiers if tier.name not in ("scale-up", "node")]
    assert network == sorted(network, reverse=True)
    assert all(rate * machine.node.gpus <= machine.node.nics.node_bytes_per_s * (1 + 1e-12) for rate in network)


def test_jobs_on_several_racks_take_segments_of_a_power_of_two():
    one, two, odd = (cluster(f"gb200-nvl72:{nodes}").islands[0] for nodes in (18, 32, 27))
    assert in_segments(one) is one
    assert in_segments(two).node.scale_up.domain_gpus == 64
    assert in_segments(odd) is odd  # 108 GPUs do not divide into segments of 64
    eight = cluster("dgx-h100:16").islands[0]
    assert in_segments(eight) is eight
