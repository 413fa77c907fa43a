"""From what files state to a cluster: the rest comes from the catalogue, and each such value is named as assumed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hardware import catalog
from hardware.adapters import used_adapters
from hardware.catalog_build import NodePreset
from hardware.cluster import Cluster, FabricShape, FabricTier, Host, Island, LinkKind, Nics, NodeType
from hardware.errors import InputError
from hardware.importers.allocation import allocated
from hardware.importers.devices import RACK_ACCELERATOR, UNKNOWN
from hardware.importers.facts import Adapter, Groups, NetworkFacts, NodeFacts, TierFacts
from hardware.importers.scale_up import fabric_of
from hardware.node_parts import with_gpus


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user adds to the files; empty and 0: nothing."""

    accelerator: str = ""
    node: str = ""
    nodes: int = 0
    name: str = ""
    hosts: str = ""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A part of a cluster with what the files state of it and what was assumed."""

    island: Island
    stated: tuple[str, ...]
    assumed: tuple[str, ...]


def build_island(node: NodeFacts | None, network: NetworkFacts | None, wishes: Wishes, copies: int = 1) -> Built:
    """Return the island of one kind of node.

    Parameters
    ----------
    node : NodeFacts or None
        What a node is; None: the usual one.
    network : NetworkFacts or None
        What joins the nodes; None: as usual for the node.
    wishes : Wishes
        The user's own statements.
    copies : int
        Files that describe such a node.

    Returns
    -------
    Built
        The island, unchecked.

    Raises
    ------
    InputError
        Nothing tells the accelerator, or it is not catalogued.
    """
    stated: list[str] = []
    assumed: list[str] = []
    if wishes.hosts:
        if network is None:
            raise InputError("--hosts without a file that names hosts", allowed="a network file such as topology.conf")
        network = allocated(network, wishes.hosts)
    count = _node_count(network, wishes, copies, stated, assumed)
    preset = _base(node, network, wishes, stated, assumed)
    built = preset.node
    if node is not None and node.nameless:
        built = _with_nameless(built, node, stated, assumed)
    elif node is not None:
        built = _with_node_facts(built, node, count, stated, assumed)
    else:
        assumed.append(f"gpus = {built.gpus}, scale_up, host: those of {preset.node.name}")
    fabric = preset.fabric
    if network is not None:
        built = _with_network_facts(built, network, stated, assumed)
        fabric = _tiers(network, count, preset, stated, assumed, exact=bool(wishes.hosts)) or fabric
        built = _with_domains(built, network, stated, assumed)
    elif count > 1:
        assumed.append(f"fabric: that of {preset.node.name}")
    if count > 1 and not built.nics.count:
        built = replace(built, nics=preset.node.nics)
        assumed.append(f"nics: those of {preset.node.name}, for no file lists adapters")
    hosts = network.hosts if network is not None and wishes.hosts else ()
    where = "; ".join(facts.where for facts in (node, network) if facts is not None)
    sources = (*(f"stated in {where}: {text}" for text in stated), *(f"assumed: {text}" for text in assumed))
    island = Island(node=replace(built, sources=sources), nodes=count, fabric=fabric, hosts=hosts)
    island = replace(island, domains=_parts_of_domains(built, network, count))
    return Built(island=island, stated=tuple(stated), assumed=tuple(assumed))


def _node_count(
    network: NetworkFacts | None, wishes: Wishes, copies: int, stated: list[str], assumed: list[str]
) -> int:
    hosts = len(network.hosts) if network is not None else 0
    if wishes.nodes and hosts and wishes.nodes != hosts:
        raise InputError(f"--nodes {wishes.nodes}, but {network.where if network else ''} states {hosts}",
                         allowed="one number of nodes")  # fmt: skip
    if wishes.nodes:
        return wishes.nodes
    if hosts:
        stated.append(f"nodes = {hosts}")
        return hosts
    (stated if copies > 1 else assumed).append(f"nodes = {copies}" + (", one for each file" if copies > 1 else ""))
    return copies


def _base(
    node: NodeFacts | None, network: NetworkFacts | None, wishes: Wishes, stated: list[str], assumed: list[str]
) -> NodePreset:
    """Return the catalogued node that everything is taken from that no file states."""
    chosen = catalog.node_preset(wishes.node) if wishes.node else None
    name = _accelerator_name(node, network, wishes, chosen, stated, assumed)
    if chosen is None:
        chosen = catalog.node_preset(_closest_preset(name, node))
        assumed.append(f"what no file states is that of {chosen.node.name}, the catalogue's closest node")
    base = replace(chosen.node, accelerator=catalog.accelerator(name))
    return replace(chosen, node=base)


def _accelerator_name(
    node: NodeFacts | None,
    network: NetworkFacts | None,
    wishes: Wishes,
    chosen: NodePreset | None,
    stated: list[str],
    assumed: list[str],
) -> str:
    if wishes.accelerator:
        name = catalog.accelerator(wishes.accelerator).name
        if node is not None and node.accelerator_sure and node.accelerator not in ("", name):
            found = node.accelerator.removeprefix(UNKNOWN)
            assumed.append(f"accelerator = {name}, as asked for; the file says {found} ({node.accelerator_why})")
        return name
    facts = node or network
    where = facts.where if facts else ""
    if node is not None and node.nameless and chosen is None:
        count = sum(len(group) for socket in node.nameless for group in socket)
        what = f"{count} PCI devices, all without 'class': nothing tells GPUs from adapters"
        raise InputError(what, allowed="--node with the type of the node (plan catalog clusters)", where=where)
    part = node.accelerator if node else ""
    if chosen is not None:
        return chosen.node.accelerator.name
    if part.startswith(UNKNOWN) and node is not None:
        what = f"{node.accelerator_why}: {part.removeprefix(UNKNOWN)}, which the catalogue lacks"
        raise InputError(what, allowed="--accelerator with the closest part: plan catalog accelerators", where=where)
    if part and node is not None:
        sure = node.accelerator_sure
        (stated if sure else assumed).append(f"accelerator = {part}, from {node.accelerator_why}")
        return part
    if network is not None and network.accelerator:
        stated.append(f"accelerator = {network.accelerator} ({network.form})")
        return network.accelerator
    if network is not None and any(len(group) > 1 for group in network.domains):
        assumed.append(f"accelerator = {RACK_ACCELERATOR}: accelerator domains that span nodes")
        return RACK_ACCELERATOR
    found = f"found {_summary(node)}, but " if node else ""
    what = f"{found}the file does not say which accelerator this is"
    raise InputError(what, allowed="--accelerator NAME (plan catalog accelerators)", where=where)


def _summary(node: NodeFacts) -> str:
    return f"{node.gpus} GPUs and {len(node.adapters)} adapters"


def _closest_preset(accelerator: str, node: NodeFacts | None) -> str:
    """Return the node type with this accelerator that is most like the file: GPUs, then adapters and their kind."""
    usual = catalog.default_node(accelerator)
    if node is None:
        return usual
    kinds = _possible_kinds(node)
    best, score = usual, (False, False, False)
    for name in (usual, *catalog.node_type_names()):
        entry = catalog.node_type(name)
        if entry.accelerator.name != accelerator:
            continue
        network = entry.nics.kind in kinds
        match = (entry.gpus == node.gpus, network, network and entry.nics.count == len(node.adapters))
        if match > score:
            best, score = name, match
    return best


def _possible_kinds(node: NodeFacts) -> set[LinkKind]:
    """Return what the adapters of a file may be: as stated, or InfiniBand or RoCE for names such as ``mlx5_0``."""
    kinds = {adapter.kind for adapter in node.adapters if adapter.kind is not None}
    return kinds or ({LinkKind.INFINIBAND, LinkKind.ROCE} if node.adapters else set())


def _with_node_facts(base: NodeType, facts: NodeFacts, count: int, stated: list[str], assumed: list[str]) -> NodeType:
    usual = base
    stated.append(f"gpus = {facts.gpus} ({facts.form})")
    alone = replace(base, scale_up=replace(base.scale_up, links=()), node_fabric=None)
    order = tuple(range(facts.gpus))
    if facts.links_known:
        fabric = fabric_of(facts, base)
        order = fabric.order
        host = with_gpus(_without_mesh(alone), facts.gpus, facts.where)
        base = replace(host, scale_up=fabric.scale_up, node_fabric=fabric.node_fabric)
        stated.append(f"scale_up: {_links_text(facts)}")
        assumed += [f"scale_up: {text}" for text in fabric.assumed]
    else:
        base = with_gpus(base, facts.gpus, facts.where)
        assumed.append(f"scale_up: that of {usual.name}, for the file states no links between accelerators")
    base = replace(base, name=f"{usual.name}-as-found", host=_host(base.host, facts, order, stated, assumed))
    base = replace(base, nics=_nics(usual.nics, facts, count, stated, assumed))
    stated += [f"remark: {text}" for text in facts.notes]
    return base


def _with_nameless(base: NodeType, facts: NodeFacts, stated: list[str], assumed: list[str]) -> NodeType:
    """Return the node type that the user names, checked against devices of which the file states the places only.

    As many devices as the node has adapters are its adapters, and its GPUs are spread evenly over their switches; as
    many as GPUs and adapters together agree with the node and say nothing more.
    """
    switches = [group for socket in facts.nameless for group in socket]
    count = sum(len(group) for group in switches)
    stated.append(f"{count} PCI devices below {len(switches)} switches or ports of {len(facts.nameless)} sockets")
    if count == base.gpus + base.nics.count:
        assumed.append(f"{count} devices: {base.gpus} accelerators and {base.nics.count} adapters, as in {base.name}")
        return base
    if count != base.nics.count or base.gpus % len(switches):
        what = f"{count} PCI devices, but {base.name} has {base.gpus} GPUs and {base.nics.count} adapters"
        raise InputError(what, allowed="--node with the type of the node", where=facts.where)
    each = base.gpus // len(switches)
    assumed.append(f"the devices are the {count} adapters of {base.name}, and {each} GPU(s) sit below each switch")
    groups, sockets, first = [], [], 0
    for socket in facts.nameless:
        groups += [tuple(range(first + k * each, first + (k + 1) * each)) for k in range(len(socket))]
        sockets.append(tuple(range(first, first + len(socket) * each)))
        first += len(socket) * each
    host = replace(base.host, numa=tuple(filter(None, sockets)), pcie_switches=tuple(groups))
    return replace(base, host=host)


def _without_mesh(node: NodeType) -> NodeType:
    """Return the node with a scale-up fabric that any number of GPUs may have; the caller replaces it."""
    return replace(node, scale_up=replace(node.scale_up, shape=FabricShape.SWITCH, domain_gpus=node.gpus, axes=()))


def _links_text(facts: NodeFacts) -> str:
    if facts.switch_links:
        return f"{facts.switch_links} NVLinks of each GPU to switches"
    if not facts.links:
        return "no NVLink or XGMI between GPUs"
    each = sorted({count for _, _, count in facts.links})
    return f"{len(facts.links)} pairs of GPUs with {facts.link_kind}, {', '.join(map(str, each))} links each"


def _host(host: Host, facts: NodeFacts, order: Sequence[int], stated: list[str], assumed: list[str]) -> Host:
    place = {old: new for new, old in enumerate(order)}

    def renumbered(groups: Groups) -> Groups:
        return tuple(tuple(sorted(place[gpu] for gpu in group)) for group in groups)

    if facts.numa:
        stated.append(f"host.numa = {[list(group) for group in renumbered(facts.numa)]}")
        host = replace(host, numa=renumbered(facts.numa))
    elif host.numa:
        assumed.append(f"host.numa = {[list(group) for group in host.numa]}")
    if facts.adapters_known:
        host = replace(host, pcie_switches=renumbered(facts.pcie_switches))
        shared = [list(group) for group in host.pcie_switches]
        stated.append(f"host.pcie_switches = {shared}: GPUs that share a PCIe switch with an adapter")
        nearest = tuple(facts.nearest_adapters[gpu] for gpu in order) if facts.nearest_adapters else ()
        host = replace(host, nearest_nics=nearest)
        if nearest:
            stated.append(f"host.nearest_nics = {[list(nics) for nics in nearest]}: adapters nearest to each GPU")
    elif host.pcie_switches:
        assumed.append(f"host.pcie_switches = {[list(group) for group in host.pcie_switches]}")
    if facts.pcie_bytes_per_s:
        host = replace(host, pcie_bytes_per_s_per_gpu=facts.pcie_bytes_per_s)
        assumed.append("host.pcie_gb_per_s_per_gpu: payload is 85 % of the stated link speed and width")
    else:
        assumed.append(f"host.pcie_gb_per_s_per_gpu = {host.pcie_bytes_per_s_per_gpu / 1e9:g}")
    assumed.append("host memory and power, cooling, price")
    return host


def _nics(usual: Nics, facts: NodeFacts, count: int, stated: list[str], assumed: list[str]) -> Nics:
    found = facts.adapters
    if not found:
        if facts.adapters_known:
            stated.append("nics: no adapters are listed")
        if count == 1:
            assumed.append("nics.count = 0: the node stands alone, for no adapters are listed")
            return replace(usual, count=0)
        assumed.append(f"nics: {usual.count} x {usual.bytes_per_s / 1.25e8:g} Gb/s {usual.kind}, for none are listed")
        return usual
    stated.append(f"nics.count = {len(found)} ({_names(found)})")
    near = sorted({nic for nics in facts.nearest_adapters for nic in nics})
    found = tuple(found[nic] for nic in near) or found
    if len(found) < len(facts.adapters):
        stated.append(f"{len(facts.adapters) - len(found)} adapters are nearest to no GPU: libraries do not use them")
    kind = _kind(found, usual, stated, assumed)
    rates = [adapter.bytes_per_s for adapter in found if adapter.bytes_per_s]
    if len(rates) == len(found):
        rate = sum(rates) / len(rates)
        stated.append(f"nics.gbit_per_s = {rate / 1.25e8:g}" + (", the mean" if len(set(rates)) > 1 else ""))
    else:
        total = usual.node_bytes_per_s or usual.bytes_per_s
        rate = min(usual.bytes_per_s, total / len(found)) if usual.count else usual.bytes_per_s
        assumed.append(f"nics.gbit_per_s = {rate / 1.25e8:g}: as much as the usual node's adapters, none faster")
    direct = {adapter.gpudirect for adapter in found if adapter.gpudirect is not None}
    gpudirect = direct.pop() if len(direct) == 1 else usual.gpudirect and kind is not LinkKind.ETHERNET
    (stated if any(a.gpudirect is not None for a in found) else assumed).append(
        f"nics.gpudirect = {str(gpudirect).lower()}"
    )
    if facts.gpu_bytes_per_s:
        usual = replace(usual, gpu_bytes_per_s=facts.gpu_bytes_per_s)
        assumed.append(f"nics.gpu_gb_per_s = {facts.gpu_bytes_per_s / 1e9:.1f}: payload of the GPUs' PCIe links")
    latency = catalog.TCP_LATENCY_S if kind is LinkKind.ETHERNET else usual.latency_s
    assumed.append(f"nics.latency_us = {latency * 1e6:g}")
    count = len(facts.adapters)
    return replace(usual, kind=kind, count=count, bytes_per_s=rate, gpudirect=gpudirect, latency_s=latency,
                   in_network_reduction=usual.in_network_reduction and kind is usual.kind)  # fmt: skip


def _kind(found: Iterable[Adapter], usual: Nics, stated: list[str], assumed: list[str]) -> LinkKind:
    kinds = [adapter.kind for adapter in found if adapter.kind is not None]
    if kinds:
        kind = max(sorted(set(kinds)), key=kinds.count)
        stated.append(f"nics.kind = {kind}, by class, vendor or name")
        return kind
    assumed.append(f"nics.kind = {usual.kind}")
    return usual.kind


def _names(found: Sequence[Adapter]) -> str:
    names = ", ".join(adapter.name for adapter in found[:4])
    return names if len(found) <= 4 else f"{names}, ..."


def _with_network_facts(node: NodeType, network: NetworkFacts, stated: list[str], assumed: list[str]) -> NodeType:
    nics = node.nics
    if network.adapters:
        stated.append(f"nics.count = {network.adapters} ({network.form})")
        total = nics.bytes_per_s * len(used_adapters(node))
        rate = min(nics.bytes_per_s, total / network.adapters) if total else nics.bytes_per_s
        if network.adapters != nics.count:
            node = replace(node, host=replace(node.host, nearest_nics=()))
        nics = replace(nics, count=network.adapters, bytes_per_s=network.bytes_per_s or rate)
        name = f"nics.gbit_per_s = {nics.bytes_per_s / 1.25e8:g}"
        (stated if network.bytes_per_s else assumed).append(name)
    if network.kind is not None:
        nics = replace(nics, kind=network.kind)
        (assumed if network.kind is LinkKind.ROCE else stated).append(f"nics.kind = {network.kind}")
    if network.adapters:
        nics = replace(nics, in_network_reduction=network.in_network_reduction)
        stated.append(f"nics.in_network_reduction = {str(network.in_network_reduction).lower()}")
    stated += [f"remark: {text}" for text in network.notes]
    return replace(node, nics=nics)


def _tiers(
    network: NetworkFacts, nodes: int, preset: NodePreset, stated: list[str], assumed: list[str], *, exact: bool
) -> tuple[FabricTier, ...]:
    """Return the tiers of a network; sizes are made even and nested unless ``exact``, for hosts in order of groups."""
    found = list(network.tiers)
    if not found and network.domains and len(network.domains) > 1:
        found = [TierFacts(name="block", groups=network.domains)]
    usual = {tier.name: tier for tier in preset.fabric}
    tiers: list[FabricTier] = []
    size, groups = 1, nodes
    for tier in found:
        count = len(tier.groups)
        sizes = sorted(len(group) for group in tier.groups)
        size, groups = size * -(-groups // count), count
        text = f"{count} {tier.name} groups of {sizes[0]}" + (f" to {sizes[-1]}" if sizes[0] != sizes[-1] else "")
        stated.append(f"fabric: {text} nodes" + (f", {tier.rails} rails" if tier.rails > 1 else ""))
        each = tuple(len(group) for group in tier.groups) if exact and count > 1 else ()
        if each:
            size = sizes[-1]
        elif sizes[0] != sizes[-1]:
            assumed.append(f"fabric.{tier.name}: {size} nodes a group, for a cluster file has even groups")
        like = usual.get(tier.name)
        ratio = tier.oversubscription or 1.0
        text = f"fabric.{tier.name}.oversubscription = {ratio:g}"
        if tier.oversubscription:
            stated.append(f"{text}, from the cables that are there")
        elif count > 1:
            assumed.append(f"{text}, with cables of equal rate enough")
        latency = like.latency_s if like else 0.0
        assumed.append(f"fabric.{tier.name}.latency_us = {latency * 1e6:g}")
        tiers.append(
            FabricTier(
                name=tier.name,
                nodes=0 if count == 1 else size,
                oversubscription=ratio,
                latency_s=latency,
                groups=each,
                rails=tier.rails,
            )
        )
    if tiers and tiers[-1].nodes:
        tiers.append(FabricTier(name="top", nodes=0))
        assumed.append("fabric.top: something joins the outermost groups, without oversubscription")
    return tuple(tiers)


def _with_domains(node: NodeType, network: NetworkFacts, stated: list[str], assumed: list[str]) -> NodeType:
    """Return the node with accelerator domains that span nodes, where the accelerator has such."""
    if not network.domains:
        return node
    sizes = sorted({len(group) for group in network.domains})
    text = f"{len(network.domains)} accelerator domains of {sizes[0]}" + (f" to {sizes[-1]}" if sizes[1:] else "")
    stated.append(f"{text} nodes")
    if node.scale_up.domain_gpus <= node.gpus:
        assumed.append(f"{node.accelerator.name} in {node.name} has no fast links between nodes: domains are not used")
        return node
    return replace(node, scale_up=replace(node.scale_up, domain_gpus=sizes[-1] * node.gpus))


def _parts_of_domains(node: NodeType, network: NetworkFacts | None, nodes: int) -> tuple[int, ...]:
    """Nodes of each accelerator domain in the order of the hosts, where they are unlike; empty where they are alike."""
    if network is None or len({len(group) for group in network.domains}) < 2 or node.scale_up.domain_gpus <= node.gpus:
        return ()
    place = {host: number for number, host in enumerate(network.hosts)}
    ordered = sorted(network.domains, key=lambda group: min(place.get(host, 0) for host in group))
    sizes = tuple(len(group) for group in ordered)
    return sizes if sum(sizes) == nodes else ()


def cluster_of(islands: Sequence[Built], name: str, files: Sequence[str]) -> Cluster:
    """Return the cluster of one or several islands.

    Parameters
    ----------
    islands : sequence of Built
        One or more; several are joined at the rate of the slowest node's adapters.
    name : str
        Of the cluster.
    files : sequence of str
        What it was imported from.
    """
    parts = tuple(built.island for built in islands)
    if len(parts) == 1:
        return Cluster(name=name, islands=parts, sources=tuple(f"imported from {file}" for file in files))
    slowest = min((island.node.nics for island in parts), key=lambda nics: nics.node_bytes_per_s)
    note = "assumed: islands are joined at the rate of the slowest node's adapters"
    return Cluster(
        name=name,
        islands=parts,
        inter_island_bytes_per_s=slowest.node_bytes_per_s,
        inter_island_latency_s=slowest.latency_s,
        sources=(*(f"imported from {file}" for file in files), note),
    )
