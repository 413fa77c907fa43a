"""The catalogue of machines: accelerators, node types and clusters by name, and islands from a table's facts.

Names ignore case and everything but letters, digits and ``+``: ``H100-SXM5 80GB`` is ``h100sxm580gb``. What is unknown
as it stands is looked up without its maker and in any order of its words: ``NVIDIA A100 80GB PCIe``.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hardware import catalog_store
from hardware.catalog_build import NodePreset
from hardware.catalog_checks import check_cluster, check_island
from hardware.catalog_schema import canonical, describe_names, nearest
from hardware.catalog_store import ACCELERATOR_FILES, CLUSTER_FILES, NODE_FILES
from hardware.cluster import Accelerator, Cluster, FabricShape, Island, LinkKind, Nics, NodeType, ScaleUp
from hardware.cluster_file import build_cluster, read_cluster_file
from hardware.errors import InputError
from hardware.node_parts import with_gpus

MOST_NODES: Final = 1_000_000
MOST_MACHINES: Final = 6
"""That a message lists."""
SLOWEST_RDMA_BYTES_PER_S: Final = 5e9
"""Adapters below 40 Gb/s are taken as plain Ethernet: no RDMA network of GPU servers is slower."""
TCP_LATENCY_S: Final = 30e-6
"""Assumed for kernel TCP, as in the catalogue's Ethernet presets."""
EFA_LATENCY_S: Final = 10e-6
OLD_EFA_LATENCY_S: Final = 20e-6
OLD_EFA_NODE_BYTES_PER_S: Final = 50e9
"""EFA of nodes of up to 400 Gb/s (P3dn, P4d), and of later ones: as in the catalogue's presets."""
RDMA_WORDS: Final = re.compile(r"roce|rdma|infiniband|\bib\b|ultra.?ethernet|spectrum")
"""What says of Ethernet that its adapters write to memory themselves."""

PCIE_SHARE_OF_ALL: Final = 0.45
PCIE_SHARE_OF_PAIR: Final = 0.7
"""Parts of the usable PCIe rate that all accelerators of a node, or one pair, reach: 25 and 39 of 55 GB/s in
aiconfigurator's NCCL tables for RTX PRO 6000 (8 and 2 cards); L40S pairs reach 22 of 26 GB/s."""
PCIE_LATENCY_S: Final = 1e-6
"""NCCL's base latency for PCIe, LL protocol."""

FAST_FABRICS: Final = ("nvlink", "nvswitch", "xgmi", "infinityfabric", "ici", "hccs", "neuronlink", "xelink")
"""How tables name a fabric of an accelerator that is not PCIe, as :func:`hardware.catalog_schema.canonical` has it."""


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by any of its names.

    Raises
    ------
    InputError
        Unknown name; the message has the nearest one.
    """
    return catalog_store.find_accelerator(name)


def node_preset(name: str) -> NodePreset:
    """Return a node type with its usual network, by any of its names; InputError if unknown."""
    return catalog_store.find_node(name)


def node_type(name: str) -> NodeType:
    """Return a node type by any of its names; InputError if unknown."""
    return catalog_store.find_node(name).node


def accelerator_names() -> tuple[str, ...]:
    """Return the names of all accelerators."""
    return catalog_store.names(ACCELERATOR_FILES)


def node_type_names() -> tuple[str, ...]:
    """Return the names of all node types; each is a cluster preset that takes ``:NODES``."""
    return catalog_store.names(NODE_FILES)


def fixed_cluster_names() -> tuple[str, ...]:
    """Return the names of the machines of fixed size."""
    return catalog_store.names(CLUSTER_FILES)


def aliases() -> Mapping[str, tuple[str, ...]]:
    """Return the other names of every entry."""
    return MappingProxyType(
        {
            **catalog_store.aliases(ACCELERATOR_FILES),
            **catalog_store.aliases(NODE_FILES),
            **catalog_store.aliases(CLUSTER_FILES),
        }
    )


def default_node(accelerator_name: str) -> str:
    """Return the node type that an accelerator is taken to sit in when a table names none; InputError if unknown."""
    name = accelerator(accelerator_name).name
    found = catalog_store.default_nodes().get(name)
    if found is None:
        raise InputError(f"no node type is known for '{name}'", allowed=describe_names(name, node_type_names()))
    return found


def cluster(spec: str) -> Cluster:
    """Return the cluster that a command line names.

    Parameters
    ----------
    spec : str
        ``PRESET:NODES`` (NODES counts nodes of the preset's type; for ``gb200-nvl72`` a node is a tray of four, so
        ``gb200-nvl72:18`` is one rack), a machine of fixed size (``h200-thermal-study``), or the path of a TOML file.

    Raises
    ------
    InputError
        Unknown preset, NODES missing or not a number, or a wrong file.

    Examples
    --------
    >>> cluster("dgx-h100:8").gpus
    64
    """
    if spec.casefold().endswith(".toml") or os.sep in spec:
        return read_cluster_file(spec)
    name, colon, count = spec.partition(":")
    fixed = _fixed_cluster(name)
    if fixed is not None:
        if colon:
            raise InputError(f"'{name}' is of fixed size: {fixed.nodes} nodes", allowed=f"'{name}' without ':{count}'")
        return fixed
    if catalog_store.locate(name, NODE_FILES) is None:
        raise _not_a_cluster(spec, name, count)
    return _preset_cluster(name, _node_count(name, count))


def node_of_hardware(hardware: str) -> NodePreset:
    """Return the nodes that the ``hardware`` of a table means.

    Parameters
    ----------
    hardware : str
        An accelerator (its usual node), a node type, or the path of a cluster file with one island.

    Raises
    ------
    InputError
        Unknown name; the message has the nearest ones and says how to describe a machine. Or a file that is wrong.
    """
    if hardware.casefold().endswith(".toml"):
        islands = read_cluster_file(hardware).islands
        if len(islands) > 1:
            raise InputError(f"{hardware} has {len(islands)} islands", allowed="one, whose nodes the run had")
        return NodePreset(node=islands[0].node, fabric=islands[0].fabric)
    if catalog_store.locate(hardware, ACCELERATOR_FILES) is not None:
        preset = node_preset(default_node(hardware))
        return replace(preset, node=replace(preset.node, accelerator=accelerator(hardware)))
    if catalog_store.locate(hardware, NODE_FILES) is not None:
        return node_preset(hardware)
    raise InputError(
        f"unknown accelerator or machine '{hardware}'",
        allowed=f"{catalog_store.near_names(hardware, (*ACCELERATOR_FILES, *NODE_FILES))} (`plan catalog accelerators` "
        "and `plan catalog clusters` list all), or a cluster file that describes the machine, such as lab.toml",
    )


def parts_of_hardware(hardware: str) -> tuple[str, ...]:
    """Return the machines of a table's ``hardware``: several are joined by ``+``; a path of a file is one."""
    if hardware.casefold().endswith(".toml"):
        return (hardware.strip(),)
    return tuple(part.strip() for part in hardware.split("+"))


def custom_island(
    hardware: str,
    gpus_per_node: int,
    nodes: int,
    scaleout_bytes_per_s_per_node: float | None = None,
    intra_node: str = "",
) -> Island:
    """Return an island from what a table of measured runs states.

    Parameters
    ----------
    hardware : str
        As in :func:`node_of_hardware`.
    gpus_per_node : int
        Accelerators of a node that take part; 0: as many as that node has.
    nodes : int
        Nodes.
    scaleout_bytes_per_s_per_node : float or None
        All adapters of a node together, one direction [bytes/s]; None: those of the usual node. 0.0 (no network) goes
        with one node only.
    intra_node : str
        A word that begins as one of :data:`FAST_FABRICS` or with ``pcie``; empty: as in that node. An accelerator has
        one fast fabric, so all fast words mean that one; cards on PCIe that bridges can join are joined by them.

    Returns
    -------
    Island
        The node with these facts in place of its own. Adapters are the node's, fewer or slower; below 40 Gb/s each they
        are plain Ethernet without RDMA.

    Raises
    ------
    InputError
        Unknown hardware or fabric, a fabric that the accelerator has not, or several nodes without a network.
    """
    sizes = (gpus_per_node, nodes)
    return _custom_island(node_of_hardware(hardware), hardware, sizes, scaleout_bytes_per_s_per_node, intra_node)


def _custom_island(
    preset: NodePreset, where: str, sizes: tuple[int, int], scaleout_bytes_per_s_per_node: float | None, intra_node: str
) -> Island:
    """As :func:`custom_island` for nodes that were looked up; ``sizes`` are accelerators of a node, and nodes."""
    node, (gpus_per_node, nodes) = preset.node, sizes
    if not 0 <= gpus_per_node <= 1024:
        raise InputError(f"{gpus_per_node} accelerators a node", allowed="1 to 1024, or 0 for the usual", where=where)
    if not 1 <= nodes <= MOST_NODES:
        raise InputError(f"{nodes} nodes", allowed=f"1 to {MOST_NODES}", where=where)
    if gpus_per_node:
        node = with_gpus(node, gpus_per_node, where)
    if scaleout_bytes_per_s_per_node is not None:
        node = replace(node, nics=_scaled_nics(node, scaleout_bytes_per_s_per_node, where))
    if intra_node:
        node = _with_intra_node(node, intra_node, where)
    island = Island(node=node, nodes=nodes, fabric=preset.fabric)
    check_island(island, where)
    return island


def cluster_of_run(
    hardware: str,
    gpus: int,
    gpus_per_node: int = 0,
    scaleout_bytes_per_s_per_node: float | None = None,
    intra_node: str = "",
    interconnect: str = "",
) -> Cluster:
    """Return the cluster of a measured run.

    Parameters
    ----------
    hardware : str
        As in :func:`node_of_hardware`, or several names joined by ``+`` (machines of each in equal numbers).
    gpus : int
        Accelerators of the run. Fewer than a node has: a part of one node.
    gpus_per_node : int
        As in :func:`custom_island`.
    scaleout_bytes_per_s_per_node : float or None
        As in :func:`custom_island`.
    intra_node : str
        As in :func:`custom_island`.
    interconnect : str
        What the run says of its network; EFA, and Ethernet without RDMA, are adapters of those kinds.

    Raises
    ------
    InputError
        As :func:`custom_island`, or accelerators that do not fill nodes.
    """
    kinds = parts_of_hardware(hardware)
    per_kind, rest = divmod(gpus, len(kinds))
    if gpus < 1 or rest:
        raise InputError(f"{gpus} accelerators of {len(kinds)} kinds", allowed=f"a multiple of {len(kinds)}")
    islands = []
    for kind in kinds:
        preset = _wide_enough(node_of_hardware(kind), kind, min(gpus_per_node, per_kind))
        per_node = min(gpus_per_node or preset.node.gpus, per_kind)
        if per_kind % per_node:
            raise InputError(f"{per_kind} x {kind} with {per_node} a node", allowed=f"a multiple of {per_node}")
        sizes = (per_node, per_kind // per_node)
        island = _custom_island(preset, kind, sizes, scaleout_bytes_per_s_per_node, intra_node)
        nics = _named_nics(island.node.nics, interconnect.lower())
        islands.append(replace(island, node=replace(island.node, nics=nics)))
    slowest = min(islands, key=lambda island: island.node.nics.node_bytes_per_s).node.nics if len(islands) > 1 else None
    machine = Cluster(
        name=f"{hardware} x {gpus}",
        islands=tuple(islands),
        inter_island_bytes_per_s=slowest.node_bytes_per_s if slowest else 0.0,
        inter_island_latency_s=slowest.latency_s if slowest else 0.0,
    )
    check_cluster(machine, hardware)
    return machine


def _wide_enough(preset: NodePreset, hardware: str, gpus: int) -> NodePreset:
    """Return the smallest node of the catalogue with ``gpus`` accelerators, where an accelerator's usual one has fewer.

    Sixteen V100 a node are a DGX-2, not two of DGX-1; where the catalogue knows no such node the usual one stays.
    """
    if preset.node.gpus >= gpus or catalog_store.locate(hardware, ACCELERATOR_FILES) is None:
        return preset
    wider = (node_preset(name) for name in catalog_store.nodes_with(preset.node.accelerator.name))
    return min((one for one in wider if one.node.gpus >= gpus), key=lambda one: one.node.gpus, default=preset)


@lru_cache(maxsize=64)
def _fixed_cluster(name: str) -> Cluster | None:
    found = catalog_store.fixed_cluster_table(name)
    return None if found is None else build_cluster(found[1], f"clusters.toml: {found[0]}", found[0])


@lru_cache(maxsize=64)
def _preset_cluster(name: str, nodes: int) -> Cluster:
    preset = node_preset(name)
    island = Island(node=preset.node, nodes=nodes, fabric=preset.fabric)
    machine = Cluster(name=f"{preset.node.name}:{nodes}", islands=(island,), sources=preset.node.sources)
    check_cluster(machine, machine.name)
    return machine


def _is_node_count(count: str) -> bool:
    digits = count.strip()
    return digits.isascii() and digits.isdigit() and len(digits) <= 7 and 1 <= int(digits) <= MOST_NODES


def _node_count(name: str, count: str) -> int:
    if not _is_node_count(count):
        what = f"'{name}:{count}': NODES is not a number of nodes" if count else f"'{name}' lacks a number of nodes"
        raise InputError(what, allowed=f"'{name}:8' or the like, 1 to {MOST_NODES} nodes of the preset's type")
    return int(count)


def _not_a_cluster(spec: str, name: str, count: str) -> InputError:
    """Return the error of a name that is none of a machine, with what to type in its place."""
    forms = "PRESET:NODES, a machine of fixed size, or a file that ends in .toml"
    if catalog_store.locate(name, ACCELERATOR_FILES) is not None:
        part = accelerator(name).name
        return InputError(f"'{spec}' names an accelerator, {part}, and no machine", allowed=_machines_for(part, count))
    entries = (*node_type_names(), *fixed_cluster_names())
    known = (*entries, *(other for entry in entries for other in aliases()[entry]))
    near = nearest(name, known)
    told = f"did you mean '{near}'?" if near else f"one of the {len(entries)} names of `plan catalog clusters`"
    return InputError(f"unknown cluster '{spec}'", allowed=f"{told} ({forms})")


def _machines_for(part: str, count: str) -> str:
    """Say which machines hold an accelerator, or how a file states one, with as many nodes as were asked for."""
    found = catalog_store.nodes_with(part)
    if not found:
        nodes = int(count) if _is_node_count(count) else 1
        line = f'island = [{{ node = "{default_node(part)}", accelerator = "{part}", nodes = {nodes} }}]'
        return f"a file that ends in .toml with the line {line}; no machine of the catalogue holds it"
    nodes_of = [f"'{name}:{count.strip() if _is_node_count(count) else 'NODES'}'" for name in found]
    sizes = [node_type(name).gpus for name in found]
    told = ", ".join(f"{word} (nodes of {gpus})" for word, gpus in zip(nodes_of[:MOST_MACHINES], sizes, strict=False))
    rest = len(found) - MOST_MACHINES
    return f"{told}, and {rest} more in `plan catalog clusters`" if rest > 0 else told


def _scaled_nics(node: NodeType, bytes_per_s: float, where: str) -> Nics:
    """Return adapters that add up to ``bytes_per_s``: whole ones of the usual kind, else slower ones.

    How many slower ones there are nobody says, so as many are taken as divide evenly among the accelerators.
    """
    nics, gpus = node.nics, node.gpus
    if not (math.isfinite(bytes_per_s) and bytes_per_s >= 0.0):
        raise InputError(f"scale-out rate {bytes_per_s}", allowed="0 or more bytes per second", where=where)
    if bytes_per_s == 0.0:
        return replace(nics, count=0)
    usual = nics.bytes_per_s
    count = max(1, round(bytes_per_s / usual))
    if not math.isclose(count * usual, bytes_per_s, rel_tol=1e-6):
        most = max(1, min(nics.count, math.floor(bytes_per_s / SLOWEST_RDMA_BYTES_PER_S)))
        count = next(number for number in range(most, 0, -1) if gpus % number == 0 or number % gpus == 0)
    each = bytes_per_s / count
    scaled = replace(nics, count=count, bytes_per_s=each)
    return scaled if each >= SLOWEST_RDMA_BYTES_PER_S else _sockets(scaled)


def _sockets(nics: Nics) -> Nics:
    """Return adapters as plain Ethernet: kernel TCP through host memory."""
    return replace(nics, kind=LinkKind.ETHERNET, gpudirect=False, latency_s=TCP_LATENCY_S)


def _named_nics(nics: Nics, words: str) -> Nics:
    """Return adapters of the kind that a run's words on its network say, at the same rate; else as they are."""
    if re.search(r"\befa\b", words):
        old = nics.node_bytes_per_s <= OLD_EFA_NODE_BYTES_PER_S
        return replace(nics, kind=LinkKind.EFA, latency_s=OLD_EFA_LATENCY_S if old else EFA_LATENCY_S)
    return _sockets(nics) if "ethernet" in words and not RDMA_WORDS.search(words) else nics


def _with_intra_node(node: NodeType, intra_node: str, where: str) -> NodeType:
    wanted = canonical(intra_node)
    if wanted.startswith("pci"):
        on_pcie = node.scale_up.kind is LinkKind.PCIE
        return node if on_pcie else replace(node, scale_up=_pcie_tree(node), node_fabric=None)
    if not wanted.startswith(FAST_FABRICS):
        raise InputError(f"unknown intra-node fabric '{intra_node}'", allowed="nvlink, xgmi, pcie", where=where)
    return node if node.scale_up.kind is not LinkKind.PCIE else _bridged(node, intra_node, where)


def _bridged(node: NodeType, intra_node: str, where: str) -> NodeType:
    """Return a node of PCIe cards with the bridges that such cards take."""
    part = node.accelerator.name
    preset = catalog_store.bridged_nodes().get(part)
    if preset is None:
        what = f"{part} has no {intra_node}: its cards talk over PCIe"
        raise InputError(what, allowed="'pcie', or intra_node left blank", where=where)
    bridge = catalog_store.find_node(preset).node.scale_up
    domain = min(bridge.domain_gpus, node.gpus)
    if node.gpus % domain:
        what = f"{node.gpus} cards a node with {intra_node}: bridges of {part} join {domain}"
        raise InputError(what, allowed=f"a multiple of {domain} a node, or 'pcie'", where=where)
    return replace(
        node,
        scale_up=replace(bridge, domain_gpus=domain),
        node_fabric=node.scale_up if domain < node.gpus else None,
    )


def _pcie_tree(node: NodeType) -> ScaleUp:
    """Return the fabric of a node whose accelerators talk over PCIe."""
    link = node.host.pcie_bytes_per_s_per_gpu
    return ScaleUp(
        kind=LinkKind.PCIE,
        shape=FabricShape.TREE,
        domain_gpus=node.gpus,
        bytes_per_s=PCIE_SHARE_OF_ALL * link,
        pair_bytes_per_s=PCIE_SHARE_OF_PAIR * link,
        latency_s=PCIE_LATENCY_S,
    )
