"""Nodes for the network's sake: allocations in parts, groups listed node by node, and orders of nodes by price."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import nodes_of

from costmodels.mesh import Group, place
from hardware import catalog
from hardware.cluster import Cluster, FabricTier, Island
from hardware.cluster_file import read_cluster_file, to_toml
from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.importers.topology import import_topology
from hardware.tiers import island_tiers
from hardware.topology import bytes_per_s_between, cluster_graph, gpu_vertices
from planner import Question, plan, request_of
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import node_orders
from planner.planning import estimate
from planner.report.json_report import layout_to_json
from planner.request import PlanRequest
from planner.traffic import traffic_of

TREE = """
SwitchName=spine Switches=leaf[0-3]
SwitchName=leaf0 Nodes=n[00-03]
SwitchName=leaf1 Nodes=n[04-07]
SwitchName=leaf2 Nodes=n[08-11]
SwitchName=leaf3 Nodes=n[12-15]
"""


def in_parts(*groups: int, oversubscription: float = 4.0) -> Island:
    island = catalog.cluster(f"dgx-h100:{sum(groups)}").islands[0]
    leaf = FabricTier(name="leaf", nodes=max(groups), oversubscription=oversubscription, groups=groups)
    return replace(island, fabric=(leaf, FabricTier(name="spine", nodes=0)))


def asked(island: Island, model: str = "llama3_8b", batch: int = 64) -> PlanRequest:
    request = request_of(Question(model=model, cluster="dgx-h100:2", global_batch=batch, seq=8192))
    return replace(request, cluster=Cluster(name="parts", islands=(island,)))


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    size=st.integers(1, 16),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    data=st.data(),
)
def test_groups_on_listed_nodes_match_enumeration(
    groups: list[int], size: int, stride: int, data: st.DataObject
) -> None:
    island = in_parts(*groups)
    ranks = island.gpus // (size * stride) * size * stride
    if not ranks:
        return
    nodes = tuple(data.draw(st.permutations(range(island.nodes))))
    tiers = island_tiers(island, nodes)
    placed = place(Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([ranks])), tiers)
    leaf, level = island.fabric[0], next((n for n, tier in enumerate(tiers) if tier.name == "leaf"), None)
    if level is None:  # single nodes below every leaf: no tier of its own
        return
    fewest, most = size, 1
    for first in range(ranks):
        if first // stride % size:
            continue
        homes = [leaf.group_of(nodes[(first + k * stride) // 8]) for k in range(size)]
        fewest = min(fewest, *(homes.count(home) for home in homes))
        most = max(most, len(set(homes)))
    assert (int(placed.members[0, level]), int(placed.domains[0, level])) == (fewest, most)


def test_nodes_in_order_are_the_same_listed_or_not() -> None:
    even = replace(in_parts(4, 4), fabric=(FabricTier(name="leaf", nodes=4), FabricTier(name="spine", nodes=0)))
    listed = in_parts(4, 4, oversubscription=1.0)
    group = Group(size=np.array([4, 8, 2]), stride=np.array([8, 1, 32]), ranks=np.array([64, 64, 64]))
    one, two = (place(group, island_tiers(island)) for island in (even, listed))
    assert one.members.tolist() == two.members.tolist()
    assert one.domains.tolist() == two.domains.tolist()


def test_more_ranks_than_are_listed_get_the_best_of_the_listed_groups() -> None:
    island = in_parts(4, 3, 3, 1)
    tiers = island_tiers(island)
    level = next(number for number, tier in enumerate(tiers) if tier.name == "leaf")
    group = Group(size=np.array([16, 128]), stride=np.array([1, 1]), ranks=np.array([256, 256]))
    placed = place(group, tiers)
    assert placed.members[:, level].tolist() == [16, 128]
    assert placed.domains[:, level].tolist() == [1, 1]


def test_a_small_batch_on_a_part_of_a_ragged_allocation_is_planned() -> None:
    report = plan(asked(in_parts(4, 3, 3, 1), batch=7))
    assert report.layouts[0].layout.gpus < 88
    assert report.search.lower_bound_s <= report.layouts[0].cost.step.total_s


def test_the_graph_of_an_allocation_in_parts() -> None:
    island = in_parts(3, 1)
    graph, gpus = (
        cluster_graph(Cluster(name="c", islands=(island,))),
        gpu_vertices(Cluster(name="c", islands=(island,))),
    )
    assert bytes_per_s_between(graph, gpus[:8], gpus[8:16]) == pytest.approx(400e9)  # below one leaf
    assert bytes_per_s_between(graph, gpus[:24], gpus[24:]) == pytest.approx(100e9)  # one node's uplinks at 4:1


def test_a_schedulers_hosts_become_groups_and_names(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(TREE)
    wishes = Wishes(accelerator="h100-sxm-80gb", hosts="n[13,01-03,05,06]")
    cluster = import_topology([file], wishes).cluster
    island = cluster.islands[0]
    assert island.hosts == ("n01", "n02", "n03", "n05", "n06", "n13")
    assert island.fabric[0].groups == (3, 2, 1)
    again = tmp_path / "cluster.toml"
    again.write_text(to_toml(cluster))
    assert read_cluster_file(again).islands == cluster.islands
    assert cluster.host_names == island.hosts


@pytest.mark.parametrize(
    ("hosts", "message"),
    [("n01,n01", "n01 twice"), ("n99", "n99 in no list"), ("n[01-", "closing bracket"), (" ", "no host")],
)
def test_allocations_that_are_refused(tmp_path: Path, hosts: str, message: str) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(TREE)
    with pytest.raises(InputError, match=message):
        import_topology([file], Wishes(accelerator="h100-sxm-80gb", hosts=hosts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups = [2, 3]", "hold 5 of 4 nodes"),
        ("groups = [3, 1]\nnodes = 2", "nodes = 2 and groups of up to 3"),
        ("groups = [4, 0]", "from 1"),
    ],
)
def test_cluster_files_with_wrong_groups_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'[[island]]\nnode = "dgx-h100"\nnodes = 4\n[[island.fabric]]\nname = "leaf"\n{text}\n'
                    '[[island.fabric]]\nname = "spine"\nnodes = 0\n')  # fmt: skip
    with pytest.raises(InputError, match=message):
        read_cluster_file(file)


def test_orders_permute_the_nodes() -> None:
    island = in_parts(1, 4, 3)
    layout = layout_of(asked(island), ExplicitLayout(tp=8, pp=2, dp=4))
    orders = node_orders(layout, island)
    assert (1, 2, 3, 4, 5, 6, 7, 0) in orders  # largest parts first
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert node_orders(layout, catalog.cluster("dgx-h100:8").islands[0]) == ()  # one leaf: all alike


def test_stages_go_below_leaves_where_the_allocation_is_in_parts() -> None:
    """Stages of four nodes on parts of 1, 4 and 4: in order both straddle leaves; the odd node stays idle instead."""
    request = asked(in_parts(1, 4, 4, oversubscription=8.0), model="mixtral_8x7b", batch=64)
    wide = ExplicitLayout(tp=4, pp=2, dp=8, ep=8, etp=4, vpp=2)  # experts over the four nodes of a stage
    found = estimate(request, layout_of(request, wide))
    nodes = nodes_of(found, 8)
    assert nodes == (1, 2, 3, 4, 5, 6, 7, 8)
    data = layout_to_json(found, request)
    places = data["placement"]
    assert isinstance(places, list)
    assert [place["host"] for place in places[::8]] == [f"node{node}" for node in nodes]
    assert traffic_of(request, found).bottleneck


def test_pipelines_turn_where_their_sends_cost_more_than_the_reduction() -> None:
    """On leaves of two nodes at 16:1, stages that take turns send below a leaf and reduce gradients between leaves."""
    request = asked(in_parts(2, 2, oversubscription=16.0), batch=512)
    sends = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=2, dp=2, micro_batch=4)))
    assert nodes_of(sends, 8) == (0, 2, 1, 3)
    hidden = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=2, dp=2, vpp=4)))
    assert nodes_of(hidden, 8) == ()


def test_searches_plan_allocations_as_given() -> None:
    request = replace(asked(in_parts(3, 1), batch=32), fixed=(("tp", 8), ("cp", 1), ("pp", 2)), top=2)
    report = plan(request)
    assert report.layouts
    again = estimate(request, report.layouts[0].layout)
    assert again.cost.step.total_s == pytest.approx(report.layouts[0].cost.step.total_s)
