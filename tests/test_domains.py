"""Racks of one fast domain of which an allocation has unlike parts, and rails: imports, files, tiers, graph, prices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import nodes_of

from costmodels.mesh import Group, place
from hardware import catalog
from hardware.cluster import Cluster, Island
from hardware.cluster_file import parse_cluster, to_toml
from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.importers.topology import Import, import_topology
from hardware.resized import without_nodes
from hardware.segments import in_segments
from hardware.tiers import island_tiers
from hardware.topology import bytes_per_s_between, cluster_graph
from planner import Question, plan, request_of
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import node_orders
from planner.planning import estimate
from planner.request import PlanRequest

BLOCKS = "BlockName=r1 Nodes=tray[01-18]\nBlockName=r2 Nodes=tray[19-36]\nBlockSizes=18,36\n"


def racks(*domains: int) -> Island:
    return replace(catalog.cluster(f"gb200-nvl72:{sum(domains)}").islands[0], domains=domains)


def asked(island: Island, model: str = "mixtral_8x22b", batch: int = 144) -> PlanRequest:
    request = request_of(Question(model=model, cluster="gb200-nvl72:18", global_batch=batch, seq=4096))
    return replace(request, cluster=Cluster(name="parts", islands=(island,)))


def imported(folder: Path, text: str, **wishes: str) -> Import:
    path = folder / "topology.conf"
    path.write_text(text)
    return import_topology([path], Wishes(**wishes))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    domains=st.lists(st.integers(1, 18), min_size=1, max_size=4),
    size=st.integers(1, 16),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_groups_on_parts_of_domains_match_enumeration(domains: list[int], size: int, stride: int) -> None:
    island = racks(*domains)
    ranks = island.gpus // (size * stride) * size * stride
    if not ranks:
        return
    tiers = island_tiers(island)
    placed = place(Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([ranks])), tiers)
    ends = np.cumsum(np.array(domains) * 4)
    held = []
    for block in range(ranks // (size * stride)):
        for first in range(stride):
            members = block * size * stride + first + np.arange(size) * stride
            held.append(np.unique(np.searchsorted(ends, members, side="right"), return_counts=True)[1])
    assert placed.members[0, 0] == min(int(counts.min()) for counts in held)
    assert placed.domains[0, 0] == max(len(counts) for counts in held)


def test_two_parts_are_no_domain_though_one_would_hold_as_many() -> None:
    whole, parts = catalog.cluster("gb200-nvl72:18").islands[0], racks(10, 8)
    assert [tier.gpus for tier in island_tiers(whole)] == [72]
    assert [tier.gpus for tier in island_tiers(parts)] == [40, 72]
    assert in_segments(parts) is parts


def test_the_graph_has_a_switch_for_each_part() -> None:
    island = racks(3, 1, 2)
    graph = cluster_graph(Cluster(name="c", islands=(island,)))
    nodes = [[("gpu", 0, node, gpu) for gpu in range(4)] for node in range(6)]
    inside, across = 4 * island.node.scale_up.bytes_per_s, island.node.nics.node_bytes_per_s
    assert bytes_per_s_between(graph, nodes[0], nodes[2]) == pytest.approx(inside)
    assert bytes_per_s_between(graph, nodes[4], nodes[5]) == pytest.approx(inside)
    assert bytes_per_s_between(graph, nodes[2], nodes[3]) == pytest.approx(across)
    assert [island.domain_of(node) for node in range(6)] == [0, 0, 0, 1, 2, 2]


def test_files_state_parts_and_read_them_back() -> None:
    text = '[[island]]\nnode = "gb200-nvl72"\nnodes = 18\ndomains = [10, 8]\n'
    cluster = parse_cluster(text, "lab.toml", "lab")
    assert cluster.islands[0].domains == (10, 8)
    assert parse_cluster(to_toml(cluster), "again.toml", "lab") == cluster


@pytest.mark.parametrize(
    ("node", "domains", "reason"),
    [
        ("gb200-nvl72", "[10, 9]", r"domains \[10, 9\] hold 19 of 18 nodes; allowed: .* 1 to 18"),
        ("gb200-nvl72", "[18, 0]", "hold 18 of 18 nodes"),
        ("dgx-h100", "[9, 9]", "whose scale-up domain does not span nodes"),
    ],
)
def test_wrong_parts_are_refused(node: str, domains: str, reason: str) -> None:
    text = f'[[island]]\nnode = "{node}"\nnodes = 18\ndomains = {domains}\n'
    with pytest.raises(InputError, match=reason):
        parse_cluster(text, "lab.toml", "lab")


def test_imports_keep_unlike_parts(tmp_path: Path) -> None:
    whole = imported(tmp_path, BLOCKS, accelerator="gb200").cluster.islands[0]
    assert (whole.domains, whole.node.scale_up.domain_gpus) == ((), 72)
    found = imported(tmp_path, BLOCKS, accelerator="gb200", hosts="tray[01-10,19-26]")
    part = found.cluster.islands[0]
    assert (part.nodes, part.domains, part.node.scale_up.domain_gpus) == (18, (10, 8), 40)
    assert part.hosts[9:11] == ("tray10", "tray19")
    assert not any("smallest domain" in line for line in found.assumed)
    assert parse_cluster(found.toml(), "c.toml", "c").islands[0].domains == (10, 8)


def test_experts_that_straddle_parts_pay_for_it() -> None:
    """Parts of 40 and 24 GPUs: groups of 8 lie inside, of the groups of 16 one has members in both."""
    parts = asked(racks(10, 6), batch=128)
    whole = replace(parts, cluster=Cluster(name="rack", islands=(racks(16),)))

    def exchange_s(at: PlanRequest, **degrees: int) -> float:
        return dict(estimate(at, layout_of(at, ExplicitLayout(pp=1, ep=8, **degrees))).cost.step.details)["ep"]

    assert exchange_s(parts, tp=1, etp=1) == pytest.approx(exchange_s(whole, tp=1, etp=1))
    assert exchange_s(parts, tp=2, etp=2) > 1.5 * exchange_s(whole, tp=2, etp=2)


def test_stages_take_the_largest_parts_first() -> None:
    """A layout of 8 nodes on parts of 2, 8 and 1: the part of 8 holds it whole."""
    island = racks(2, 8, 1)
    request = asked(island, model="llama3_70b", batch=32)
    layout = layout_of(request, ExplicitLayout(tp=8, pp=1, dp=4))
    assert tuple(range(2, 10)) in node_orders(layout, island)
    assert nodes_of(estimate(request, layout), 4) == tuple(range(2, 10))


def test_searches_and_lean_clusters_know_the_parts() -> None:
    island = racks(2, 1)
    request = replace(asked(island, model="llama3_8b", batch=24), fixed=(("cp", 1), ("pp", 1)), top=2)
    report = plan(request)
    assert report.layouts
    again = estimate(request, report.layouts[0].layout)
    assert again.cost.step.total_s == pytest.approx(report.layouts[0].cost.step.total_s)
    assert without_nodes(racks(4, 2, 3), {0, 5}).domains == (3, 1, 3)
    assert without_nodes(racks(1, 2), {0}).domains == (2,)


def fabric(units: int, rails: int, hosts: int) -> str:
    """A rail-optimised fabric as ibnetdiscover prints it: a leaf of a unit serves one adapter of each of its hosts."""
    lines = []
    for unit in range(units):
        for rail in range(rails):
            lines.append(f'Switch\t40 "S-{unit}{rail}"\t\t# "leaf{unit}{rail}" enhanced port 0 lid 1 lmc 0')
            for host in range(hosts):
                cable = f'"H-{unit}{host}{rail}"[1](b) \t\t# "h{unit}{host} mlx5_{rail}" lid 9 4xNDR'
                lines.append(f"[{host + 1}]\t{cable}")
            lines.append(f'[{hosts + 1}]\t"S-e"[{unit * rails + rail + 1}]\t\t# "spine" lid 7 4xNDR')
    lines.append('Switch\t40 "S-e"\t\t# "spine"')
    ends = [(unit, host, rail) for unit in range(units) for host in range(hosts) for rail in range(rails)]
    lines += [f'Ca\t1 "H-{unit}{host}{rail}"\t\t# "h{unit}{host} mlx5_{rail}"' for unit, host, rail in ends]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("units", "rails"), [(2, 4), (1, 8), (3, 1)])
def test_imports_find_rails(tmp_path: Path, units: int, rails: int) -> None:
    path = tmp_path / "fabric"
    path.write_text(fabric(units, rails, 3))
    found = import_topology([path], Wishes(accelerator="h100-sxm"))
    leaf = found.cluster.islands[0].fabric[0]
    assert leaf.rails == rails
    assert any(f"{rails} rails" in line for line in found.stated) is (rails > 1)
    again = parse_cluster(found.toml(), "c.toml", "c")
    assert again.islands[0].fabric[0].rails == rails
    graph = cluster_graph(again)
    assert len([vertex for vertex in graph if vertex[0] == "rail"]) == (units * rails if rails > 1 else 0)


def test_leaves_that_serve_parts_of_a_unit_are_no_rails(tmp_path: Path) -> None:
    text = "SwitchName=l1 Nodes=a[1-4]\nSwitchName=l2 Nodes=b[1-4]\nSwitchName=s Switches=l[1-2]\n"
    found = imported(tmp_path, text, accelerator="h100-sxm")
    assert [tier.rails for tier in found.cluster.islands[0].fabric] == [1, 1]
