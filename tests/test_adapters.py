"""Adapters of a node: which an accelerator takes, what it has of them, and what that does to collectives."""

from dataclasses import replace
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
from fair_flows import Flow, max_min_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives import COLLECTIVE_S, default_network
from costmodels.mesh import Group, place
from hardware import catalog
from hardware.adapters import Adapters, adapters_of, least_of_senders, least_share, used_adapters
from hardware.cluster import Cluster, Island, NodeType
from hardware.cluster_file import parse_cluster, to_toml
from hardware.errors import InputError
from hardware.node_parts import with_gpus
from hardware.sharing import binding_link, nic_sharing
from hardware.tiers import island_tiers, reachable_nic_bytes_per_s
from hardware.topology import bytes_per_s_between, cluster_graph


def node_with(nearest: Adapters, count: int, **host: object) -> NodeType:
    base = catalog.node_type("dgx-h100")
    node = with_gpus(base, len(nearest)) if len(nearest) != base.gpus else base
    nics = replace(node.nics, count=count, gpu_bytes_per_s=0.0)
    return replace(node, nics=nics, host=replace(node.host, pcie_switches=(), nearest_nics=nearest, **host))


@pytest.mark.parametrize(
    ("nearest", "expected"),
    [
        (((2, 3), (2, 3), (0, 1), (0, 1)), ((2,), (3,), (0,), (1,))),  # two below a switch, two GPUs as well
        (((0, 1),) * 4, ((0,), (1,), (0,), (1,))),
        (((0, 1, 2, 3),) * 4, ((0,), (2,), (1,), (3,))),  # mirrored bits
        (((0, 1, 2, 3),) * 2, ((0, 1), (2, 3))),
        (((0, 1, 2),) * 4, ((0,), (1,), (2,), (0,))),
        (((0, 1, 2, 3, 4, 5),) * 4, ((0, 1), (2, 3), (4, 5), (0, 1))),
        (((0, 1, 2, 3), (0, 1, 2, 3), (4,), (4,)), ((0, 1), (2, 3), (4,), (4,))),
    ],
)
def test_accelerators_take_the_nearest_adapters_as_nccl_does(nearest, expected):
    assert adapters_of(node_with(nearest, 6)) == expected


def test_adapters_that_are_nearest_to_none_are_not_used():
    node = node_with(tuple((gpu,) for gpu in range(8)), 10)
    assert used_adapters(node) == tuple(range(8))
    assert reachable_nic_bytes_per_s(node) == 8 * node.nics.bytes_per_s
    assert binding_link(node) == "NICs (8 of 10 x 400 Gb/s infiniband per node)"
    assert nic_sharing(node) == tuple(f"nic{gpu}: GPU {gpu}" for gpu in range(8))


UNEVEN = (((0, 1, 2),) * 8, ((0, 1, 2, 3),) * 4 + ((4,),) * 4, ((0,),) * 6 + ((1,),) * 2, ((0, 1),) * 5 + ((2, 3),) * 3)


@pytest.mark.parametrize(("nearest", "stride"), list(product(UNEVEN, (1, 2, 4, 8, 64))))
def test_least_share_is_the_load_of_the_fullest_adapter(nearest, stride):
    adapters = adapters_of(node_with(nearest, 5))
    loads = np.zeros(5)
    for first in range(min(stride, 8)):
        members = range(first, 8, min(stride, 8))
        own = sorted({nic for gpu in members for nic in adapters[gpu]})
        for nic in own:
            loads[nic] += len(members) / len(own)
    used = len(used_adapters(node_with(nearest, 5)))
    assert least_share(adapters, stride) == pytest.approx(8 / used / loads.max())
    assert 0.0 < least_share(adapters, stride) <= 1.0


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.lists(st.integers(0, 4), min_size=4, max_size=8),
    senders=st.integers(1, 8),
)
def test_senders_share_their_adapters_max_min_fairly(chosen, senders):
    adapters = tuple((nic,) for nic in chosen)
    flows = tuple(Flow(volume_bytes=1.0, links=own, limit_bytes_per_s=1.0) for own in adapters[-senders:])
    assert least_of_senders(adapters, senders) == pytest.approx(float(max_min_rates(flows, np.ones(5)).min()))


@pytest.mark.parametrize("nearest", UNEVEN)
def test_groups_of_one_rank_a_node_wait_for_the_fullest_adapter(nearest):
    """A ring over nodes with one member each, all rings at once: as slow as the adapter that most of them share."""
    node = node_with(nearest, 5)
    island = Island(node=node, nodes=4)
    tiers, network = island_tiers(island), default_network()
    group = place(Group(size=np.array([4]), stride=np.array([8]), ranks=np.array([32])), tiers)
    message = 1e13
    rate = 0.75 * message / float(COLLECTIVE_S["all_gather"](np.array([message]), group, tiers, network)[0])
    sharers = max(sum(1.0 / len(own) for own in adapters_of(node) if nic in own) for nic in range(5))
    assert rate == pytest.approx(node.nics.bytes_per_s / sharers * network.link(tiers[1]).ring, rel=1e-2)


def test_what_flows_between_nodes_on_the_graph_is_what_their_adapters_reach():
    node = node_with(((2, 3), (2, 3), (0, 1), (0, 1)), 6)
    graph = cluster_graph(Cluster(name="two", islands=(Island(node=node, nodes=2),)))
    ends = [[("gpu", 0, place, gpu) for gpu in range(4)] for place in (0, 1)]
    assert bytes_per_s_between(graph, *ends) == reachable_nic_bytes_per_s(node) == 4 * node.nics.bytes_per_s
    hops = nx.shortest_path_length(graph, ("gpu", 0, 0, 0), ("nic", 0, 0, 2))
    assert hops < nx.shortest_path_length(graph, ("gpu", 0, 0, 0), ("nic", 0, 0, 5)) or hops == 2


@pytest.mark.parametrize(
    ("nearest", "switches", "ways"),
    [
        (((0,),) * 8, ((0, 1),), 0.5),  # the only adapter is below a switch with GPUs: its uplink carries all twice
        (((0,),) * 8, (), 8.0),  # below none: only the accelerators' own links bound it
        (((0,), (0,), (1,), (1,), (2,), (2,), (2,), (2,)), ((0, 1), (2, 3)), 2.0),  # two shared uplinks, one of its own
    ],
)
def test_without_gpudirect_only_uplinks_that_are_shared_carry_every_byte_twice(nearest, switches, ways):
    node = node_with(nearest, 3, numa=())
    node = replace(node, nics=replace(node.nics, gpudirect=False, bytes_per_s=1e12))
    node = replace(node, host=replace(node.host, pcie_switches=switches))
    assert reachable_nic_bytes_per_s(node) == pytest.approx(
        min(ways * node.host.pcie_bytes_per_s_per_gpu, 1e12 * len(used_adapters(node)))
    )


def test_nearest_adapters_are_kept_in_files_and_checked():
    island = Island(node=node_with(((2, 3), (2, 3), (0, 1), (0, 1)), 4), nodes=2)
    text = to_toml(Cluster(name="two", islands=(island,)))
    assert "nearest_nics = [[2, 3], [2, 3], [0, 1], [0, 1]]" in text
    again = parse_cluster(text, "file", "two").islands[0].node
    assert again.host.nearest_nics == island.node.host.nearest_nics
    assert with_gpus(again, 2).host.nearest_nics == ((2, 3), (2, 3))
    for wrong in ("[[2, 3], [2, 3], [0, 1]]", "[[2, 3], [2, 4], [0, 1], [0, 1]]", "[[2, 2], [2, 3], [0, 1], [0, 1]]"):
        with pytest.raises(InputError, match="nearest_nics"):
            parse_cluster(text.replace("[[2, 3], [2, 3], [0, 1], [0, 1]]", wrong), "file", "two")


COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@pytest.mark.parametrize("gpus", range(1, 9))
def test_more_adapters_are_never_slower(gpus):
    """Whatever few accelerators share them: their own ways bind what they send, not what each adapter carries."""
    base = with_gpus(catalog.node_type("dgx-h200"), gpus)
    network, message = default_network(), np.array([1e9])
    for name, stride in product(COLLECTIVE_S, range(1, gpus + 1)):
        found = []
        for count in COUNTS:
            tiers = island_tiers(Island(node=replace(base, nics=replace(base.nics, count=count)), nodes=8))
            size = 8 * gpus // stride
            group = place(Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([8 * gpus])), tiers)
            found.append(float(COLLECTIVE_S[name](message, group, tiers, network)[0]))
        assert all(b <= a * (1.0 + 1e-9) for a, b in pairwise(found)), (name, stride, found)
