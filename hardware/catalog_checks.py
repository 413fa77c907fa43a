"""What a machine must satisfy beyond the range of each value: the parts must fit each other."""

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise

from hardware.cluster import Accelerator, Cluster, FabricShape, FabricTier, Island, NodeType, ScaleUp
from hardware.errors import InputError

MOST_GPUS = 10_000_000


def check_cluster(cluster: Cluster, where: str) -> None:
    """Raise InputError if the parts of a cluster do not fit each other.

    Parameters
    ----------
    cluster : Cluster
        Any cluster, from a preset or a file.
    where : str
        File, for messages.
    """
    for number, island in enumerate(cluster.islands, start=1):
        check_island(island, f"{where}: island {number} ({island.node.name})")
    if not cluster.islands:
        raise InputError("the cluster has no machines", allowed="one or more [[island]]", where=where)
    if len(cluster.islands) > 1 and cluster.inter_island_bytes_per_s <= 0.0:
        raise InputError(
            "several islands, but nothing says how they are joined",
            allowed="inter_island_gbit_per_s above 0: what one node reaches in another island",
            where=where,
        )
    if cluster.gpus > MOST_GPUS:
        raise InputError(f"{cluster.gpus} accelerators", allowed=f"up to {MOST_GPUS}", where=where)


def check_island(island: Island, where: str) -> None:
    """Raise InputError if an island cannot be built."""
    node = island.node
    check_node(node, where)
    spans = island.nodes * node.gpus
    if node.nics.count * node.nics.bytes_per_s <= 0.0 and spans > max(node.scale_up.domain_gpus, node.gpus):
        raise InputError(
            f"{island.nodes} nodes without network adapters",
            allowed="nics.count and nics.gbit_per_s above 0, or nodes = 1",
            where=where,
        )
    _check_fabric(island.fabric, where)
    _check_domains(island, where)
    _check_allocation(island, where)
    _check_devices(island, where)
    _check_rack(island, where)


def _check_domains(island: Island, where: str) -> None:
    """Parts of scale-up domains that span nodes hold every node once, and none is larger than a domain."""
    if not island.domains:
        return
    whole = island.node.scale_up.domain_gpus // island.node.gpus
    if whole < 2:
        raise InputError(
            f"domains of {island.node.name}, whose scale-up domain does not span nodes",
            allowed="no domains",
            where=where,
        )
    if sum(island.domains) != island.nodes or not 1 <= min(island.domains) <= max(island.domains) <= whole:
        raise InputError(
            f"domains {list(island.domains)} hold {sum(island.domains)} of {island.nodes} nodes",
            allowed=f"nodes of each domain in order, 1 to {whole}, that add up to all",
            where=where,
        )


def _check_allocation(island: Island, where: str) -> None:
    """Groups of unlike sizes hold every node once and lie inside those of the next tier; every host has a name."""
    inner: set[int] = set()
    for tier in island.fabric:
        ends = set(accumulate(tier.groups))
        if tier.groups and (min(tier.groups) < 1 or sum(tier.groups) != island.nodes):
            raise InputError(
                f"groups of {tier.name} hold {sum(tier.groups)} of {island.nodes} nodes",
                allowed="nodes of each group in order, from 1, that add up to all",
                where=where,
            )
        if tier.groups and max(tier.groups) != tier.nodes:
            raise InputError(
                f"nodes = {tier.nodes} and groups of up to {max(tier.groups)} in {tier.name}",
                allowed="the largest group, or no nodes at all",
                where=where,
            )
        if inner and ends and not ends <= inner:
            raise InputError(f"groups of {tier.name} cut those below", allowed="whole groups below", where=where)
        inner = ends or inner
    if island.hosts and (len(island.hosts) != island.nodes or len(set(island.hosts)) != island.nodes):
        raise InputError(
            f"{len(set(island.hosts))} names of {island.nodes} hosts", allowed="one for each node, or none", where=where
        )


def _check_rack(island: Island, where: str) -> None:
    """Inlets name every node, and what is stated by rack says how many nodes a rack has."""
    if island.inlets_c and len(island.inlets_c) != island.nodes:
        raise InputError(
            f"inlets_c states {len(island.inlets_c)} temperatures of {island.nodes} nodes",
            allowed="one for every node, or none",
            where=where,
        )
    cooling = island.node.cooling
    by_rack = [
        name
        for name, value in (("rack_power_cap_w", island.rack_power_cap_w), ("cooling.rack_rise_c", cooling.rack_rise_c))
        if value > 0.0
    ]
    if by_rack and not cooling.rack_nodes:
        raise InputError(f"{by_rack[0]} without the nodes of a rack", allowed="cooling.rack_nodes from 1", where=where)


def _check_devices(island: Island, where: str) -> None:
    """Each device exists, and is stated once."""
    seen: set[tuple[int, int]] = set()
    place = f"{where}: device"
    for device in island.devices:
        key = (device.node, device.gpu)
        if not (0 <= device.node < island.nodes and 0 <= device.gpu < island.node.gpus):
            raise InputError(
                f"node {device.node}, gpu {device.gpu} is not in the island",
                allowed=f"node 0 to {island.nodes - 1}, gpu 0 to {island.node.gpus - 1}",
                where=place,
            )
        if key in seen:
            raise InputError(f"node {device.node}, gpu {device.gpu} is stated twice", allowed="once", where=place)
        seen.add(key)


def check_node(node: NodeType, where: str) -> None:
    """Raise InputError if the parts of a node do not fit each other."""
    _check_accelerator(node.accelerator, where)
    _check_scale_up(node.scale_up, node.gpus, f"{where}: scale_up")
    if node.node_fabric is not None:
        _check_scale_up(node.node_fabric, node.gpus, f"{where}: node_fabric")
    elif node.scale_up.domain_gpus < node.gpus:
        raise InputError(
            f"scale_up.domain_gpus is {node.scale_up.domain_gpus} of {node.gpus}, and nothing joins the domains",
            allowed=f"domain_gpus = {node.gpus}, or a table node_fabric",
            where=where,
        )
    _check_groups(node.host.numa, node.gpus, f"{where}: host.numa", whole=False)
    _check_groups(node.host.pcie_switches, node.gpus, f"{where}: host.pcie_switches", whole=False)
    _check_nearest(node, f"{where}: host.nearest_nics")
    _check_groups(node.cooling.rows, node.gpus, f"{where}: cooling.rows", whole=True)
    cap, lowest = node.gpu_power_cap_w, node.accelerator.min_power_limit_w
    highest = node.accelerator.max_power_limit_w or node.accelerator.tdp_w
    if cap and (cap < lowest or (highest and cap > highest)):
        raise InputError(
            f"gpu_power_cap_w {cap:g} cannot be set on {node.accelerator.name}",
            allowed=f"{lowest:g} to {highest:g} W",
            where=where,
        )


def _check_nearest(node: NodeType, where: str) -> None:
    """Refuse lists of nearest adapters that do not fit the node's accelerators and adapters."""
    nearest, count = node.host.nearest_nics, node.nics.count
    if nearest and len(nearest) != node.gpus:
        raise InputError(f"{len(nearest)} lists", allowed=f"one for each of {node.gpus} GPUs, or none", where=where)
    for gpu, nics in enumerate(nearest):
        if not nics or not all(0 <= nic < count for nic in nics) or len(set(nics)) < len(nics):
            what = f"GPU {gpu} has {list(nics)}, and nics.count is {count}"
            raise InputError(
                what, allowed=f"adapters of 0 to {count - 1}, each once; state both or neither", where=where
            )


def _check_accelerator(accelerator: Accelerator, where: str) -> None:
    peak = accelerator.peak
    if max(peak.fp32, peak.tf32, peak.fp16, peak.bf16, peak.fp8, peak.fp4) <= 0.0:
        raise InputError(f"{accelerator.name} has no peak rate above 0", allowed="peak_bf16_tflops > 0", where=where)
    if accelerator.allocatable_bytes > accelerator.memory_bytes:
        raise InputError(
            f"{accelerator.name}: allocatable memory exceeds the memory",
            allowed=f"allocatable_gib up to {accelerator.memory_bytes / 2**30:.2f}",
            where=where,
        )
    lowest, highest = accelerator.min_power_limit_w, accelerator.max_power_limit_w
    if lowest and highest and lowest > highest:
        raise InputError(
            f"{accelerator.name}: min_power_limit_w {lowest:g} is above max_power_limit_w {highest:g}", where=where
        )


def _check_scale_up(fabric: ScaleUp, gpus: int, where: str) -> None:
    domain = fabric.domain_gpus
    if domain % gpus and gpus % domain:
        raise InputError(
            f"domain_gpus {domain} with {gpus} accelerators a node",
            allowed="a multiple or a divisor of the node's accelerators",
            where=where,
        )
    if fabric.pair_bytes_per_s > fabric.bytes_per_s and fabric.shape is not FabricShape.TREE:
        raise InputError(
            "pair_gb_per_s is above gb_per_s",
            allowed=f"up to {fabric.bytes_per_s / 1e9:g}, all that one accelerator sends",
            where=where,
        )
    if fabric.axes and math.prod(fabric.axes) != domain:
        raise InputError(f"axes {list(fabric.axes)} hold other than {domain}", allowed="that product", where=where)
    if fabric.shape is FabricShape.CUBE_MESH:
        _check_links(fabric, where)
    elif fabric.links:
        raise InputError(f"links with shape '{fabric.shape}'", allowed="links only with 'cube-mesh'", where=where)


def _check_links(fabric: ScaleUp, where: str) -> None:
    domain = fabric.domain_gpus
    pairs = [(min(a, b), max(a, b)) for a, b, _ in fabric.links]
    for a, b, count in fabric.links:
        if not (a < domain and b < domain and a != b and count > 0):
            allowed = f"two different GPUs below {domain} and a count above 0"
            raise InputError(f"link [{a}, {b}, {count}]", allowed=allowed, where=where)
    if len(set(pairs)) != len(pairs):
        raise InputError("a pair of GPUs is listed twice in links", allowed="each pair once", where=where)
    reached = {0}
    for _ in range(domain):
        reached |= {x for pair in pairs for x in pair if reached & set(pair)}
    if len(reached) < domain:
        missing = sorted(set(range(domain)) - reached)
        raise InputError(f"no links lead from GPU 0 to {missing}", allowed="links that join all GPUs", where=where)


def _check_groups(groups: tuple[tuple[int, ...], ...], gpus: int, where: str, *, whole: bool) -> None:
    members = [index for group in groups for index in group]
    if not members:
        return
    outside = [index for index in members if index >= gpus]
    if outside:
        raise InputError(f"GPU {outside[0]} of {gpus}", allowed=f"indices 0 to {gpus - 1}", where=where)
    if len(set(members)) != len(members):
        raise InputError("a GPU is listed twice", allowed="each GPU once", where=where)
    if whole and len(members) != gpus:
        missing = sorted(set(range(gpus)) - set(members))
        raise InputError(f"GPUs {missing} are in no row", allowed="every GPU in one row, or no rows", where=where)


def _check_fabric(fabric: Iterable[FabricTier], where: str) -> None:
    tiers = tuple(fabric)
    for number, tier in enumerate(tiers, start=1):
        last = number == len(tiers)
        if tier.nodes == 0 and not last:
            raise InputError(
                f"fabric {number} ({tier.name}) spans all nodes, but another follows",
                allowed="nodes = 0 in the last tier only",
                where=where,
            )
    sizes = [tier.nodes for tier in tiers if tier.nodes]
    even = not any(tier.groups for tier in tiers)
    if any(outer < inner or (outer == inner and even) for inner, outer in pairwise(sizes)):
        raise InputError(f"fabric sizes {sizes} do not rise", allowed="tiers from the leaf outwards", where=where)
    if even and any(outer % inner for inner, outer in pairwise(sizes)):
        raise InputError(
            f"fabric sizes {sizes} do not nest", allowed="multiples of the size of the tier before", where=where
        )
