"""The scale-up fabric that links between GPUs amount to."""

from dataclasses import dataclass, replace
from typing import Final

from hardware.catalog import PCIE_LATENCY_S, PCIE_SHARE_OF_ALL, PCIE_SHARE_OF_PAIR
from hardware.cluster import FabricShape, LinkKind, NodeType, ScaleUp
from hardware.importers.amd_matrices import AMD_FORM
from hardware.importers.devices import nvlinks
from hardware.importers.facts import Links, NodeFacts, groups_joined, links_of_each

DEFAULT_LINKS: Final = (18, 25e9)
"""Count and bytes/s of one NVLink where the part's are not tabulated: those of NVLink 4."""
NVLINK_LATENCY_S: Final = 0.6e-6
XGMI_LATENCY_S: Final = 1.5e-6
"""Base latencies of the catalogue's nodes."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Fabrics of a node and the order in which its GPUs are numbered: new index to index in the file."""

    scale_up: ScaleUp
    node_fabric: ScaleUp | None
    order: tuple[int, ...]
    assumed: tuple[str, ...]


def fabric_of(facts: NodeFacts, base: NodeType) -> Fabric:
    """Return the fabrics of a node whose links a file states.

    Parameters
    ----------
    facts : NodeFacts
        With ``links_known``.
    base : NodeType
        The usual node of the accelerator with as many GPUs, for rates and latencies that no topology file states.

    Returns
    -------
    Fabric
        A switch where GPUs have links to switches, or more links to every peer than they could have directly; a mesh
        where all pairs have equally many; a cube mesh where links join all; bridged groups with PCIe between them
        where links join equal groups; else a PCIe tree.
    """
    gpus = facts.gpus
    same = tuple(range(gpus))
    if facts.switch_links:
        rate, said = _link_rate(facts, base)
        return _fabric(_switch(base, gpus, facts.switch_links * rate), None, same, said)
    groups = groups_joined(gpus, facts.links)
    sizes = {len(group) for group in groups}
    if sizes == {1}:
        note = (
            ()
            if gpus == 1
            else ("no fast links are stated: accelerators talk over PCIe, with the rates of measured trees",)
        )
        return _fabric(_pcie(facts, base), None, same, note)
    if len(sizes) == 1:
        order = tuple(gpu for group in groups for gpu in group)
        inner = _relative(groups[0], facts.links)
        if all(_relative(group, facts.links) == inner for group in groups):
            rate, said = _link_rate(facts, base)
            counted = _counted(facts, base, inner)
            said += ("as many XGMI links between pairs as in " + base.name,) if counted != inner else ()
            fast = _joined(facts, base, len(groups[0]), counted, rate)
            between = _pcie(facts, base) if len(groups) > 1 else None
            if between is not None:
                said += ("between bridged groups: PCIe with the rates of measured trees",)
            if order != same:
                said += (f"GPUs are renumbered so that linked ones are neighbours: order {list(order)}",)
            return _fabric(fast, between, order, said)
    shown = ", ".join(f"{a}-{b} x{count}" for a, b, count in facts.links[:12])
    return _fabric(_pcie(facts, base), None, same, (f"links {shown} join unequal groups and are left out: PCIe only",))


def _fabric(fast: ScaleUp, between: ScaleUp | None, order: tuple[int, ...], said: tuple[str, ...]) -> Fabric:
    return Fabric(scale_up=fast, node_fabric=between, order=order, assumed=said)


def _link_rate(facts: NodeFacts, base: NodeType) -> tuple[float, tuple[str, ...]]:
    """Return the rate of one link [bytes/s] and what was assumed for it."""
    usual = base.scale_up
    if facts.link_kind is LinkKind.XGMI:
        known = usual.kind is LinkKind.XGMI
        rate = usual.pair_bytes_per_s if known else 50e9
    else:
        count, rate = nvlinks(base.accelerator.name)
        rate = rate if count else DEFAULT_LINKS[1]
    return rate, (
        f"one {facts.link_kind} link carries {rate / 1e9:g} GB/s each way: the link of {base.accelerator.name}",
    )


def _switch(base: NodeType, gpus: int, bytes_per_s: float) -> ScaleUp:
    usual = base.scale_up
    alike = usual.kind is LinkKind.NVLINK and usual.shape is FabricShape.SWITCH
    wider = alike and usual.domain_gpus > base.gpus
    return ScaleUp(
        kind=LinkKind.NVLINK,
        shape=FabricShape.SWITCH,
        domain_gpus=usual.domain_gpus if wider else gpus,
        bytes_per_s=bytes_per_s,
        pair_bytes_per_s=bytes_per_s,
        latency_s=usual.latency_s if alike else NVLINK_LATENCY_S,
        in_network_reduction=usual.in_network_reduction if alike else False,
    )


def _counted(facts: NodeFacts, base: NodeType, links: Links) -> Links:
    """Return links with the numbers that the usual node has where it joins the same pairs and tools print none."""
    usual = base.scale_up
    same = facts.form == AMD_FORM and {pair[:2] for pair in usual.links} == {pair[:2] for pair in links}
    return usual.links if same else links


def _joined(facts: NodeFacts, base: NodeType, size: int, links: Links, rate: float) -> ScaleUp:
    counts = {count for _, _, count in links}
    whole = len(links) == size * (size - 1) // 2 and len(counts) == 1
    most = nvlinks(base.accelerator.name)[0] or DEFAULT_LINKS[0]
    each = max(counts)
    if whole and facts.link_kind is LinkKind.NVLINK and each * (size - 1) > most:
        return _switch(base, size, each * rate)
    usual = base.scale_up
    alike = usual.kind is facts.link_kind and usual.domain_gpus == size
    latency = usual.latency_s if usual.kind is facts.link_kind else (
        XGMI_LATENCY_S if facts.link_kind is LinkKind.XGMI else NVLINK_LATENCY_S
    )  # fmt: skip
    if whole:
        total = (size - 1) * each * rate
        return ScaleUp(kind=facts.link_kind, shape=FabricShape.MESH, domain_gpus=size, bytes_per_s=total,
                       pair_bytes_per_s=each * rate, latency_s=latency)  # fmt: skip
    degrees = links_of_each(size, links)
    total = usual.bytes_per_s if alike and usual.shape is FabricShape.CUBE_MESH else min(degrees) * rate
    return ScaleUp(kind=facts.link_kind, shape=FabricShape.CUBE_MESH, domain_gpus=size,
                   bytes_per_s=max(total, rate), pair_bytes_per_s=rate, latency_s=latency, links=links)  # fmt: skip


def _pcie(facts: NodeFacts, base: NodeType) -> ScaleUp:
    """Return the PCIe tree of all GPUs of a node."""
    for usual in (base.scale_up, base.node_fabric):
        if usual is not None and usual.kind is LinkKind.PCIE and not facts.pcie_bytes_per_s:
            return replace(usual, domain_gpus=facts.gpus)
    link = facts.pcie_bytes_per_s or base.host.pcie_bytes_per_s_per_gpu or 26e9
    return ScaleUp(
        kind=LinkKind.PCIE,
        shape=FabricShape.TREE,
        domain_gpus=facts.gpus,
        bytes_per_s=PCIE_SHARE_OF_ALL * link,
        pair_bytes_per_s=PCIE_SHARE_OF_PAIR * link,
        latency_s=PCIE_LATENCY_S,
    )


def _relative(group: tuple[int, ...], links: Links) -> Links:
    place = {gpu: index for index, gpu in enumerate(group)}
    return tuple(sorted((place[a], place[b], count) for a, b, count in links if a in place and b in place))
