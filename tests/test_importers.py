"""Topology files: what a reader finds in each fixture by hand, and what the importer makes of it."""

from pathlib import Path

import pytest

from hardware import catalog
from hardware.cluster import FabricShape, LinkKind
from hardware.cluster_file import parse_cluster
from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.importers.infiniband import hosts_by_guid, read_ibnetdiscover
from hardware.importers.source_text import read_source
from hardware.importers.topology import import_topology
from hardware.tiers import reachable_nic_bytes_per_s

FOLDER = Path(__file__).parent / "fixtures" / "topology"
CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1), (3, 7, 1),
    (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip

# file, --accelerator: GPUs, adapters, their kind and Gb/s (0: not stated), NUMA, PCIe switches shared with adapters
NODES = {
    ("smi-8gpu-nvswitch.txt", ""): (8, 0, None, 0, [[0, 1, 2, 3], [4, 5, 6, 7]], []),
    ("smi-8gpu-10nic.txt", ""): (8, 10, None, 0, [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("smi-8gpu-cube-mesh.txt", ""): (8, 1, None, 0, [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1]]),
    ("smi-4gpu-bridges.txt", "a100-pcie-80gb"): (4, 0, None, 0, [[0, 1], [2, 3]], []),
    ("smi-4gpu-pcie.txt", "l40s"): (4, 0, None, 0, [[0, 1, 2, 3]], []),
    ("smi-1gpu-4nic.txt", "l4"): (1, 4, "roce", 0, [[0]], []),
    ("smi-2gpu-desktop.txt", "rtx-3090"): (2, 0, None, 0, None, []),
    ("smi-4gpu-nv4.txt", ""): (4, 0, None, 0, [[0, 1], [2, 3]], []),
    ("smi-4gpu-2nic.txt", "l40s"): (4, 2, None, 0, [[0, 1], [2, 3]], []),
    ("rocm-8gpu-xgmi.txt", ""): (8, 0, None, 0, [[0, 1, 2, 3], [4, 5, 6, 7]], None),
    ("rocm-2gpu-pcie.txt", "mi300x"): (2, 0, None, 0, None, None),
    ("nccl-4gpu-nvswitch.xml", ""): (4, 4, "infiniband", 200, [[0, 1], [2, 3]], [[0], [1], [2], [3]]),
    ("nccl-4gpu-hints.xml", "a100-sxm-40gb"): (4, 4, "infiniband", 0, [[2, 3], [0, 1]], [[0, 1], [2, 3]]),
    ("nccl-one-rank.xml", ""): (1, 1, "infiniband", 100, [[0]], [[0]]),
    ("nccl-2gpu-bridge.xml", ""): (2, 1, "ethernet", 40, [[0], [1]], []),
    ("nccl-old-gpu.xml", "titan-rtx"): (1, 0, None, 0, None, [[0]][:0]),
    ("nccl-graph.xml", "t4"): (3, 2, None, 0, None, []),
    ("rccl-4gpu-mesh.xml", ""): (4, 4, "slingshot", 200, [[2], [3], [0], [1]], []),
    ("rccl-4gpu-nested.xml", ""): (4, 2, "infiniband", 200, [[0, 1, 2, 3]], [[0, 1], [2, 3]]),
}
# file, --accelerator: kind, shape, domain, GB/s of one accelerator, links of a cube mesh
FABRICS = {
    ("smi-8gpu-nvswitch.txt", ""): ("nvlink", "switch", 8, 450, ()),
    ("smi-8gpu-10nic.txt", ""): ("nvlink", "switch", 8, 300, ()),
    ("smi-8gpu-cube-mesh.txt", ""): ("nvlink", "cube-mesh", 8, 150, CUBE_MESH),
    ("smi-4gpu-bridges.txt", "a100-pcie-80gb"): ("nvlink", "mesh", 2, 300, ()),
    ("smi-4gpu-nv4.txt", ""): ("nvlink", "mesh", 4, 300, ()),
    ("nccl-4gpu-nvswitch.xml", ""): ("nvlink", "switch", 4, 300, ()),
    ("nccl-2gpu-bridge.xml", ""): ("nvlink", "mesh", 2, 300, ()),
    ("rocm-8gpu-xgmi.txt", ""): ("xgmi", "mesh", 8, 448, ()),
    ("rccl-4gpu-mesh.xml", ""): ("xgmi", "mesh", 4, 192, ()),
    ("rccl-4gpu-nested.xml", ""): ("xgmi", "cube-mesh", 4, 250, ((0, 1, 4), (0, 2, 1), (1, 3, 2), (2, 3, 4))),
    ("smi-4gpu-pcie.txt", "l40s"): ("pcie", "tree", 4, None, ()),
    ("rocm-2gpu-pcie.txt", "mi300x"): ("pcie", "tree", 2, None, ()),
    ("nccl-graph.xml", "t4"): ("pcie", "tree", 3, None, ()),
}
# file: hosts, adapters (0: not stated), tiers as (name, nodes, oversubscription)
NETWORKS = {
    "slurm-tree.conf": (16, 0, [("leaf", 4, 1.0), ("spine", 8, 1.0), ("core", 0, 1.0)]),
    "ibnetdiscover.txt": (6, 2, [("leaf", 3, 12 / 7), ("spine", 0, 1.0)]),
    "netq.json": (4, 2, [("leaf", 2, 8 / 3), ("spine", 0, 1.0)]),
    "ibstat-guids.txt": (2, 2, None),
    "ibstat-host.txt": (1, 2, None),
    "topograph.yaml": (27, 0, [("leaf", 9, 1.0), ("spine", 18, 1.0), ("core", 0, 1.0)]),
}


def imported(*names: str, **wishes):
    return import_topology([FOLDER / name for name in names], Wishes(**wishes))


@pytest.mark.parametrize(("name", "accelerator"), NODES)
def test_nodes_have_what_a_reader_finds(name, accelerator):
    gpus, adapters, kind, gbit, numa, switches = NODES[name, accelerator]
    node = imported(name, accelerator=accelerator).cluster.islands[0].node
    assert node.gpus == gpus
    assert node.nics.count == adapters
    if kind:
        assert node.nics.kind == LinkKind(kind)
    if gbit:
        assert node.nics.bytes_per_s == gbit * 1.25e8
    if numa is not None:
        assert [list(group) for group in node.host.numa] == numa
    if switches is not None:
        assert [list(group) for group in node.host.pcie_switches] == switches


@pytest.mark.parametrize(("name", "accelerator"), FABRICS)
def test_links_have_what_a_reader_finds(name, accelerator):
    kind, shape, domain, rate, links = FABRICS[name, accelerator]
    fabric = imported(name, accelerator=accelerator).cluster.islands[0].node.scale_up
    assert (fabric.kind, fabric.shape, fabric.domain_gpus) == (LinkKind(kind), FabricShape(shape), domain)
    assert fabric.links == links
    if rate is not None:
        assert fabric.bytes_per_s == pytest.approx(rate * 1e9)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_what_a_reader_finds(name):
    hosts, adapters, tiers = NETWORKS[name]
    island = imported(name, accelerator="h100-sxm").cluster.islands[0]
    assert island.nodes == hosts
    if adapters:
        assert island.node.nics.count == adapters
    if tiers is not None:
        assert [(tier.name, tier.nodes) for tier in island.fabric] == [tier[:2] for tier in tiers]
        assert [tier.oversubscription for tier in island.fabric] == pytest.approx([t[2] for t in tiers], abs=1e-3)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_what_is_written_reads_back_and_names_assumptions(name):
    wishes = {"node": "p5"} if name == "nccl-nameless.xml" else {"accelerator": "h100-sxm"}
    found = imported(name, **wishes)
    text = found.toml()
    assert parse_cluster(text, "x", "x") == found.cluster
    assert found.stated
    assert any("power" in line or "those of" in line or "devices are" in line for line in found.assumed)
    sources = found.cluster.islands[0].node.sources
    for line in found.assumed:
        assert f"#   {line}\n" in text
        assert f"assumed: {line}" in sources


def test_rates_that_no_file_states_are_marked_and_stated_ones_are_not():
    assumed = imported("smi-8gpu-10nic.txt").assumed
    assert any("nics.gbit_per_s = 200" in line for line in assumed)  # as the usual node: two of ten are far
    stated = imported("nccl-4gpu-nvswitch.xml")
    assert any("nics.gbit_per_s = 200" in line for line in stated.stated)
    assert not any("gbit_per_s" in line for line in stated.assumed)
    assert any("accelerator = a100-sxm-80gb" in line for line in stated.stated)
    assert any("accelerator = a100-sxm-80gb" in line for line in assumed)


def test_bridged_pairs_become_neighbours_with_pcie_between():
    found = imported("smi-4gpu-bridges.txt", accelerator="a100-pcie-80gb")
    node = found.cluster.islands[0].node
    assert node.node_fabric is not None
    assert (node.node_fabric.kind, node.node_fabric.domain_gpus) == (LinkKind.PCIE, 4)
    assert any("order [0, 2, 1, 3]" in line for line in found.assumed)


def test_links_to_gpus_that_are_not_described_are_left_out_and_said():
    stated = imported("nccl-one-rank.xml").stated
    assert any("2 GPUs that the file does not describe" in line for line in stated)


def test_a_slip_of_unit_is_said():
    assert any("taken as kilobits: 200 Gb/s" in line for line in imported("rccl-4gpu-mesh.xml").stated)


def test_domains_that_span_nodes_are_scale_up_domains_of_rack_machines_only():
    rack = imported("topograph.yaml")
    assert rack.cluster.islands[0].node.scale_up.domain_gpus == 36
    assert any("accelerator = gb200" in line for line in rack.assumed)
    block = imported("slurm-block.conf").cluster.islands[0]
    assert (block.nodes, block.node.scale_up.domain_gpus) == (36, 72)
    boxes = imported("topograph.yaml", accelerator="h100-sxm")
    assert boxes.cluster.islands[0].node.scale_up.domain_gpus == 8
    assert any("domains are not used" in line for line in boxes.assumed)


def test_a_node_file_and_a_network_file_make_one_cluster():
    found = imported("slurm-tree.conf", "smi-8gpu-10nic.txt")
    island = found.cluster.islands[0]
    assert (found.cluster.gpus, island.nodes, island.node.gpus, island.node.nics.count) == (128, 16, 8, 10)
    assert found.hosts[:2] == ("gpu001", "gpu002")
    assert "#   gpu001,gpu002,gpu003" in found.toml()


def test_hosts_below_one_spine_are_neighbours(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(
        "SwitchName=l1 Nodes=a[1-2]\nSwitchName=l2 Nodes=b[1-2]\n"
        "SwitchName=l3 Nodes=c[1-2]\nSwitchName=l4 Nodes=d[1-2]\n"
        "SwitchName=s1 Switches=l1,l3\nSwitchName=s2 Switches=l2,l4\nSwitchName=top Switches=s[1-2]\n"
    )
    found = import_topology([path], Wishes(accelerator="h100-sxm"))
    assert found.hosts == ("a1", "a2", "c1", "c2", "b1", "b2", "d1", "d2")
    assert [tier.nodes for tier in found.cluster.islands[0].fabric] == [2, 4, 0]


def test_adapters_that_no_host_owns_are_counted_unless_a_list_of_guids_names_it():
    alone = imported("ibnetdiscover.txt", accelerator="h100-sxm")
    assert any("1 adapters whose description names no host" in line for line in alone.stated)
    assert alone.hosts == ("host-0", "host-1", "host-2", "host-3", "host-4", "host-5")
    assert alone.cluster.islands[0].node.nics.in_network_reduction
    source = read_source(FOLDER / "ibnetdiscover.txt")
    listed = hosts_by_guid(read_source(FOLDER / "ibstat-guids.txt"))
    assert listed["00000000000b0002"] == "vm-b"
    network = read_ibnetdiscover(source, listed)
    assert "vm-a" in network.hosts
    assert not any("names no host" in note for note in network.notes)


def test_equal_nodes_are_counted_and_different_ones_are_islands():
    two = import_topology([FOLDER / "nccl-4gpu-nvswitch.xml"] * 2).cluster
    assert (len(two.islands), two.nodes) == (1, 2)
    mixed = imported("nccl-4gpu-nvswitch.xml", "rccl-4gpu-mesh.xml").cluster
    assert [island.node.accelerator.name for island in mixed.islands] == ["a100-sxm-80gb", "mi300x"]
    assert mixed.inter_island_bytes_per_s == 4 * 25e9
    with pytest.raises(InputError, match="describe different nodes"):
        imported("nccl-4gpu-nvswitch.xml", "rccl-4gpu-mesh.xml", "slurm-tree.conf")


def test_adapters_are_assumed_where_several_nodes_need_them():
    found = imported("smi-8gpu-nvswitch.txt", nodes=4)
    assert (found.cluster.gpus, found.cluster.islands[0].node.nics.count) == (32, 8)
    assert any(line.startswith("nics: 8 x 400 Gb/s") for line in found.assumed)


def test_devices_without_class_follow_the_node_type_that_the_user_names():
    host = imported("nccl-nameless.xml", node="p5").cluster.islands[0].node.host
    assert host.pcie_switches == tuple((gpu,) for gpu in range(8))
    assert host.numa == ((0, 1, 2, 3), (4, 5, 6, 7))
    with pytest.raises(InputError, match="8 GPUs and 8 adapters"):
        imported("nccl-nameless.xml", node="dgx-h100")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smi-4gpu-pcie.txt", "found 4 GPUs and 0 adapters, but the file does not say which accelerator"),
        ("nccl-4gpu-hints.xml", "does not say which accelerator"),
        ("nccl-nameless.xml", "32 PCI devices, all without 'class'"),
        ("nccl-old-gpu.xml", r"compute capability 6.1, which the catalogue lacks"),
        ("slurm-tree.conf", "does not say which accelerator"),
    ],
)
def test_what_files_leave_open_is_asked_for(name, reason):
    with pytest.raises(InputError, match=reason) as caught:
        imported(name)
    assert "--accelerator" in caught.value.allowed or "--node" in caught.value.allowed


def test_files_of_different_clusters_are_refused():
    with pytest.raises(InputError, match=r"4 nodes, but .* has 16"):
        imported("slurm-tree.conf", "netq.json", accelerator="h100-sxm")
    with pytest.raises(InputError, match="--nodes 3"):
        imported("slurm-tree.conf", accelerator="h100-sxm", nodes=3)


def pcie_node(*, gpu: str = "16", adapter: str = "16", nets: int = 1, extra: str = "", switch: bool = True) -> str:
    """Four GPUs, each with one adapter below the same PCIe switch or beside it, links of PCIe 4.0."""
    rate = 'link_speed="16.0 GT/s PCIe"'
    ports = "".join(f'<net name="mlx5_{port}" dev="{port}" speed="400000" gdr="1"/>' for port in range(nets))
    parts = []
    for n in range(4):
        device = f'<gpu dev="{n}">{extra}</gpu>'
        both = f'<pci busid="0:{n}1:0.0" class="0x030200" {rate} link_width="{gpu}">{device}</pci>'
        both += f'<pci busid="0:{n}2:0.0" class="0x020700" {rate} link_width="{adapter}"><nic>{ports}</nic></pci>'
        above = f'<pci busid="0:{n}0:0.0" class="0x060400" {rate} link_width="16">{both}</pci>'
        parts.append(above if switch else both)
    return f'<system version="1"><cpu numaid="0">{"".join(parts)}</cpu></system>'


PCIE_4_X16 = 16e9 * 16 / 8 * 128 / 130 * 0.85


@pytest.mark.parametrize(
    ("words", "adapter", "gpu"),
    [
        ({}, PCIE_4_X16, PCIE_4_X16),  # 400 Gb/s in a slot of 215
        ({"nets": 2}, PCIE_4_X16 / 2, PCIE_4_X16),  # two ports share their slot
        ({"adapter": "8"}, PCIE_4_X16 / 2, PCIE_4_X16),
        ({"gpu": "8"}, PCIE_4_X16, PCIE_4_X16 / 2),
        ({"gpu": "4", "switch": False}, PCIE_4_X16, PCIE_4_X16 / 4),
        ({"adapter": "32"}, 2 * PCIE_4_X16, PCIE_4_X16),  # as wide as two slots: 429 Gb/s hold the adapter no longer
        ({"gpu": "1", "extra": '<c2c bw="400000" count="1"/>'}, PCIE_4_X16, 0.0),  # the host link is another one
    ],
)
def test_slots_below_the_rate_of_an_adapter_bind(tmp_path, words, adapter, gpu):
    path = tmp_path / "node.xml"
    path.write_text(pcie_node(**words))
    found = import_topology([path], Wishes(accelerator="h100-sxm", nodes=2))
    nics = found.cluster.islands[0].node.nics
    stated = min(adapter, 400e9 / 8)
    assert nics.bytes_per_s == pytest.approx(stated, rel=1e-5)
    usual = catalog.node_type("dgx-h100").nics.gpu_bytes_per_s
    assert nics.gpu_bytes_per_s == pytest.approx(gpu or usual, rel=1e-5)
    assert any("behind" in line for line in found.stated) is (adapter < 400e9 / 8)
    node = found.cluster.islands[0].node
    limits = (4 * words.get("nets", 1) * stated, 4 * (gpu or 1e30))
    assert reachable_nic_bytes_per_s(node) == pytest.approx(min(limits), rel=1e-5)


def two_sockets(*, vendor: str = "GenuineIntel", model: int = 85, links: str = "", near: str = "0") -> str:
    """Four GPUs on two processors, both adapters of 200 Gb/s on the first one (``near``) or one on each."""
    rate = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    sockets = []
    for cpu in range(2):
        gpus = "".join(
            f'<pci busid="0:{n}1:0.0" class="0x030200" {rate}><gpu dev="{n}">{links}</gpu></pci>'
            for n in (2 * cpu, 2 * cpu + 1)
        )
        here = {"0": (0, 1) if cpu == 0 else (), "each": (cpu,)}[near]
        nets = {n: f'<nic><net name="mlx5_{n}" dev="{n}" speed="200000"/></nic>' for n in here}
        nics = "".join(f'<pci busid="0:a{n}:0.0" class="0x020700" {rate}>{net}</pci>' for n, net in nets.items())
        told = f'numaid="{cpu}" arch="x86_64" vendor="{vendor}" familyid="6" modelid="{model}"'
        sockets.append(f"<cpu {told}>{gpus}{nics}</cpu>")
    return f'<system version="1">{"".join(sockets)}</system>'


@pytest.mark.parametrize(
    ("words", "gpu"),
    [
        ({}, 10e9 / 2),
        ({"model": 79}, 6e9 / 2),
        ({"model": 143}, 22e9 / 2),
        ({"vendor": "AuthenticAMD"}, 16e9 / 2),
        ({"vendor": "CentaurHauls"}, PCIE_4_X16),  # nobody says how fast its link is
        ({"near": "each"}, PCIE_4_X16),
        ({"links": '<nvlink target="0:21:0.0" count="4" tclass="0x030200"/>'}, PCIE_4_X16),  # by way of the linked GPU
    ],
)
def test_gpus_without_an_adapter_on_their_processor_share_its_link(tmp_path, words, gpu):
    path = tmp_path / "node.xml"
    path.write_text(two_sockets(**words))
    found = import_topology([path], Wishes(accelerator="l40s", nodes=2))
    assert found.cluster.islands[0].node.nics.gpu_bytes_per_s == pytest.approx(gpu, rel=1e-5)
    assert any("over the link between processors" in line for line in found.stated) is (gpu < PCIE_4_X16)
