"""Forms that tools print beyond the fixtures: on other machines, in other versions, copied from terminals and pages."""

import re
from collections.abc import Callable

import pytest

from hardware.cluster import Cluster, FabricShape, LinkKind
from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.importers.facts import NetworkFacts, NodeFacts
from hardware.importers.source_text import SourceText
from hardware.importers.topology import import_topology, read_facts

LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n"


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def number_of(device: str) -> int:
    return int(re.findall(r"\d+", device)[-1])


def matrix(devices: list[str], cell: Callable[[str, str], str], tail: str, rest: Callable[[int], str]) -> str:
    lines = ["\t" + "\t".join(devices) + "".join(f"\t{column}" for column in tail.split("|") if column)]
    for one in devices:
        cells = [" X " if one == other else cell(one, other) for other in devices]
        after = rest(number_of(one)) if one.startswith("GPU") else ""
        lines.append("\t".join([one, *cells]) + after)
    return "\n".join(lines) + "\n"


def grace(gpus: int, links: str, nics: int, rest: Callable[[int], str]) -> str:
    def cell(one: str, other: str) -> str:
        kinds = {one[:3], other[:3]}
        return links if kinds == {"GPU"} else "SYS" if len(kinds) > 1 else "NODE"

    tail = "CPU Affinity|NUMA Affinity|GPU NUMA ID"
    names = "".join(f"  NIC{number}: mlx5_{number}\n" for number in range(nics))
    return matrix([*numbered("GPU", gpus), *numbered("NIC", nics)], cell, tail, rest) + LEGEND + names


TRAY = grace(
    4, "NV18", 6, lambda gpu: "\t0-71\t0,3-9,11-17\t2" if gpu < 2 else f"\t72-143\t1,19-25,27-33\t{18 + 8 * (gpu - 2)}"
)
"""A compute tray of GB200 NVL72: GPU memory is a NUMA node, adapters are below other roots."""
QUAD = grace(4, "NV6", 4, lambda gpu: f"\t{72 * gpu}-{72 * gpu + 71}\t{gpu}\t{4 + 8 * gpu}")
"""Four GH200 that have six NVLinks to each other."""


def sixteen(one: str, other: str) -> str:
    if one.startswith("GPU") and other.startswith("GPU"):
        return "NV6"
    switch, peer = (number_of(name) // (2 if name.startswith("GPU") else 1) for name in (one, other))
    return (
        "PIX"
        if switch == peer
        else "PXB"
        if switch // 2 == peer // 2
        else "NODE"
        if switch // 4 == peer // 4
        else "SYS"
    )


SIXTEEN = matrix(
    [*numbered("GPU", 16), *numbered("mlx5_", 8)],
    sixteen,
    "CPU Affinity",
    lambda gpu: "\t0-23,48-71" if gpu < 8 else "\t24-47,72-95",
)
"""A DGX-2: sixteen V100 behind NVSwitches, eight adapters named as old drivers do."""


def read(text: str) -> NodeFacts | NetworkFacts:
    (facts,) = read_facts(SourceText(where="file", text=text))
    return facts


def imported(tmp_path, text: str, **wishes: str) -> Cluster:
    path = tmp_path / "file"
    path.write_text(text, newline="")
    return import_topology([path], Wishes(**wishes)).cluster


@pytest.mark.parametrize(
    "text",
    [
        TRAY,
        TRAY.replace("\n", "\r\n"),
        re.sub("\t+", "    ", TRAY),
        TRAY.replace("\tGPU0", "\x1b[4m\tGPU0", 1).replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m", 1),
        TRAY.replace("NIC4\tNIC5", "NIC4NIC5", 1),
        f"$ nvidia-smi topo -m\n```\n{TRAY}```\n",
        f"GPU 0,1,2,3: NVIDIA GB200\nGPU0 temperature: 40\n{TRAY}",
    ],
    ids=["tabs", "CRLF", "blanks", "underlined header", "columns run together", "in Markdown", "in a log"],
)
def test_a_compute_tray_however_its_matrix_was_copied(tmp_path, text):
    cluster = imported(tmp_path, text)
    (island,) = cluster.islands
    assert island.node.accelerator.name == "gb200"
    assert (island.nodes, island.node.gpus, island.node.nics.count) == (1, 4, 6)
    assert (island.node.scale_up.shape, island.node.scale_up.domain_gpus) == (FabricShape.SWITCH, 72)
    assert island.node.scale_up.bytes_per_s == 900e9
    assert island.node.host.numa == ((0, 1), (2, 3))
    assert island.node.host.pcie_switches == ()


def test_four_superchips_with_links_to_each_other(tmp_path):
    node = imported(tmp_path, QUAD).islands[0].node
    assert node.accelerator.name == "gh200-96gb"
    assert (node.scale_up.shape, node.scale_up.pair_bytes_per_s) == (FabricShape.MESH, 150e9)
    assert node.host.numa == ((0,), (1,), (2,), (3,))


def test_sixteen_gpus_behind_switches(tmp_path):
    node = imported(tmp_path, SIXTEEN).islands[0].node
    assert node.accelerator.name == "v100-sxm2-16gb"
    assert (node.gpus, node.nics.count) == (16, 8)
    assert (node.scale_up.shape, node.scale_up.domain_gpus) == (FabricShape.SWITCH, 16)
    assert node.scale_up.bytes_per_s == 150e9
    assert node.host.numa == (tuple(range(8)), tuple(range(8, 16)))
    assert node.host.pcie_switches == tuple((2 * k, 2 * k + 1) for k in range(8))


def test_what_peers_can_do_is_no_topology(tmp_path):
    text = "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n  OK   = Status Ok\n"
    with pytest.raises(InputError, match="'OK' says what peers can do, not what joins them"):
        imported(tmp_path, text, accelerator="a40")


def amd_table(title: str, names: list[str], cell: Callable[[int, int], str]) -> str:
    lines = [title, "       " + " ".join(names)]
    lines += [f"{name}   " + " ".join(cell(a, b) for b in range(len(names))) for a, name in enumerate(names)]
    return "\n".join(lines) + "\n\n"


def amd_node(gpus: int, links: set[tuple[int, int]]) -> str:
    """``rocm-smi --showtopo``: hops are 1 wherever XGMI joins, in one step or several, weights 15 a step."""
    names = numbered("GPU", gpus)

    def step(a: int, b: int) -> int:
        return 0 if a == b else 1 if (min(a, b), max(a, b)) in links else 2

    return (
        amd_table("==== Weight between two GPUs ====", names, lambda a, b: str(15 * step(a, b)))
        + amd_table("==== Hops between two GPUs ====", names, lambda a, b: str(int(a != b)))
        + amd_table("==== Link Type between two GPUs ====", names, lambda a, b: "0" if a == b else "XGMI")
        + "".join(f"GPU[{gpu}]\t\t: (Topology) Numa Node: {gpu // 2}\n" for gpu in range(gpus))
    )


# ROCm's numbering of a node of four MI250X: packages side by side, then links between packages.
DIES = {(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (0, 6), (1, 3), (1, 5), (2, 4), (3, 7), (4, 6), (5, 7)}


def test_dies_that_are_joined_by_way_of_others_have_no_link():
    facts = read(amd_node(8, DIES))
    assert isinstance(facts, NodeFacts)
    assert {(a, b) for a, b, _ in facts.links} == DIES
    assert facts.accelerator == "mi250x-gcd"
    assert facts.numa == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_dies_take_the_numbers_of_links_of_the_usual_node(tmp_path):
    node = imported(tmp_path, amd_node(8, DIES)).islands[0].node
    assert node.scale_up.shape is FabricShape.CUBE_MESH
    assert {(a, b): count for a, b, count in node.scale_up.links}[0, 1] == 4  # inside a package


def test_a_mesh_of_eight_stays_one():
    every = {(a, b) for a in range(8) for b in range(a + 1, 8)}
    facts = read(amd_node(8, every))
    assert isinstance(facts, NodeFacts)
    assert (facts.accelerator, len(facts.links)) == ("mi300x", 28)


@pytest.mark.parametrize("gpus", [16, 32, 64])
def test_partitions_of_gpus_are_refused(tmp_path, gpus):
    every = {(a, b) for a in range(gpus) for b in range(a + 1, gpus)}
    with pytest.raises(InputError, match=r"partitions of GPUs \(CPX, DPX, QPX\) are listed"):
        imported(tmp_path, amd_node(gpus, every), accelerator="mi300x")


def test_amd_smi_prints_the_same_by_pci_address():
    names = [f"0000:{bus}:00.0" for bus in ("0c", "22", "38", "5c")]
    text = (
        amd_table("ACCESS TABLE:", names, lambda _a, _b: "ENABLED")
        + amd_table("WEIGHT TABLE:", names, lambda a, b: "0" if a == b else "15")
        + amd_table("HOPS TABLE:", names, lambda a, b: "0" if a == b else "1")
        + amd_table("LINK TYPE TABLE:", names, lambda a, b: "SELF" if a == b else "XGMI")
        + amd_table("NUMA BW TABLE:", names, lambda a, b: "N/A" if a == b else "50000-50000")
    )
    facts = read(text)
    assert isinstance(facts, NodeFacts)
    assert (facts.gpus, len(facts.links), facts.link_kind) == (4, 6, LinkKind.XGMI)


LISTED = """\
switches:
- {name: top, metadata: {region: here}, switches: [left, right]}
- {name: left, capacity_blocks: [b1]}
- {name: right, capacity_blocks: [b2]}
capacity_blocks:
- {name: b1, type: H100, nodes: [n1, "n[2-3]"]}
- {name: b2, type: H100, nodes: [n4, n5, n6]}
physical_layers: []
"""
IMPLIED = """\
switches:
  top: {switches: [left, right]}
  left: {nodes: ["n[1-3]"]}
  right: {nodes: [n4, n5]}
nodes:
  n1: {capacity_block: b1, attributes: {nvlink: r1, gpus: [{index: 0, model: NVIDIA GB300}]}}
  n2: {capacity_block: b1, attributes: {nvlink: r1}}
  n3: {capacity_block: b1, attributes: {nvlink: r1}}
  n4: {capacity_block_id: b2, attributes: {nvlink: r2}}
  n5: {capacity_block_id: b2, attributes: {nvlink: r2}}
  n6: {capacity_block_id: b2, attributes: {nvlink: r2}}
capacity_blocks: [b1, b2]
"""
LABELLED = """\
switches:
  top: {switches: [left, right]}
blocks:
- {switch: left, nodes: ["n[1-3]"], labels: {accelerator.example/sub-domain: r1a, accelerator.example/domain: r1}}
- {switch: right, nodes: ["n[4-6]"], labels: {accelerated.topology.example/level-0: r2}}
"""


@pytest.mark.parametrize(
    ("text", "leaves", "domains", "accelerator"),
    [
        (LISTED, [3, 3], [], "h100-sxm-80gb"),
        (IMPLIED, [3, 2, 1], [3, 3], "gb300"),
        (LABELLED, [3, 3], [3, 3], ""),
    ],
    ids=["lists", "nodes name their block", "labels"],
)
def test_topograph_models_of_all_versions(text, leaves, domains, accelerator):
    facts = read(text)
    assert isinstance(facts, NetworkFacts)
    assert sorted(facts.hosts) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert [len(group) for group in facts.tiers[0].groups] == leaves
    assert [len(group) for group in facts.domains] == domains
    assert facts.accelerator == accelerator
    assert any("below no switch" in note for note in facts.notes) == (leaves == [3, 2, 1])


SLURM_YAML = """\
- topology: flat_one
  flat: true
- topology: other
  tree:
    switches:
    - {switch: only, nodes: "x[1-2]"}
- topology: main
  cluster_default: true
  tree:
    switches:
    - {switch: root, children: "s[1-2]"}
    - {switch: s1, nodes: "n[01-04]"}
    - {switch: s2, nodes: "n[05-08]"}
- topology: racks
  block:
    block_sizes: [4]
    blocks:
    - {block: b1, nodes: "n[01-04]"}
    - {block: b2, nodes: "n[05-08]"}
"""


def test_slurm_topologies_in_yaml():
    facts = read(SLURM_YAML)
    assert isinstance(facts, NetworkFacts)
    assert facts.hosts == tuple(f"n{number:02}" for number in range(1, 9))
    assert [len(tier.groups) for tier in facts.tiers] == [2, 1]
    assert [len(group) for group in facts.domains] == [4, 4]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- topology: a\n  tree: {switches: [{switch: s, nodes: n1}, {switch: s, nodes: n2}]}\n", "defined twice"),
        ("- topology: a\n  flat: true\n", "no nodes"),
        ("- topology: a\n  tree: 5\n", "tree: not a table"),
        ("SwitchName=a Nodes=n1, n2\n", "'n2' belongs to no key"),
        ("switches: [5]\nblocks: [{nodes: [n1]}]\n", "switch 1: not a table"),
        ("switches: {a: {nodes: [n1]}, b: {nodes: [n1]}}\nblocks: [{nodes: [n1]}]\n", "is in 'a' and in 'b'"),
        ("blocks: [{name: b, nodes: [n1]}, {name: b, nodes: [n2]}]\n", "block 'b' is defined twice"),
    ],
)
def test_broken_networks_say_why(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        imported(tmp_path, text, accelerator="h100-sxm")


def test_lists_of_slurm_may_be_quoted():
    facts = read('SwitchName=a Nodes="n[1-3]"\n')
    assert isinstance(facts, NetworkFacts)
    assert facts.hosts == ("n1", "n2", "n3")
