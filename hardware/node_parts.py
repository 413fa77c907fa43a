"""Nodes with another number of accelerators than their preset: parts of a node, and 6-, 7- or 12-way variants."""

from dataclasses import replace

from hardware.cluster import Cooling, FabricShape, Host, NodeType, ScaleUp
from hardware.errors import InputError


def with_gpus(node: NodeType, gpus: int, where: str = "gpus") -> NodeType:
    """Return ``node`` with ``gpus`` accelerators: the first ones if fewer, more of the same if more.

    Parameters
    ----------
    node : NodeType
        The node to change. Its adapters, host and price stay: a part of a node still has the whole node's.
    gpus : int
        Accelerators afterwards.
    where : str
        For messages.

    Returns
    -------
    NodeType
        Scale-up domains of node size follow the node; those of several nodes keep their number of nodes. A mesh
        loses the links of absent peers. Airflow rows and groupings keep the present indices; a larger node loses
        them, for nobody knows where its further accelerators sit.

    Raises
    ------
    InputError
        A domain of several nodes, or one with listed links, cannot follow.
    """
    if gpus == node.gpus:
        return node
    fabric = node.node_fabric
    return replace(
        node,
        gpus=gpus,
        scale_up=_resized_fabric(node.scale_up, node.gpus, gpus, where),
        node_fabric=None if fabric is None else _resized_fabric(fabric, node.gpus, gpus, where),
        host=_resized_host(node.host, node.gpus, gpus),
        cooling=_resized_cooling(node.cooling, node.gpus, gpus),
    )


def _resized_fabric(fabric: ScaleUp, before: int, after: int, where: str) -> ScaleUp:
    if fabric.domain_gpus > before:
        if fabric.domain_gpus % before:
            raise InputError(f"{after} accelerators do not fill a domain evenly", where=where)
        return replace(fabric, domain_gpus=fabric.domain_gpus // before * after, axes=())
    domain = after if fabric.domain_gpus == before else min(fabric.domain_gpus, after)
    links = tuple(link for link in fabric.links if link[0] < after and link[1] < after) if after < before else ()
    return replace(fabric, domain_gpus=domain, links=links, bytes_per_s=_bytes_per_s(fabric, domain, links))


def _bytes_per_s(fabric: ScaleUp, domain: int, links: tuple[tuple[int, int, int], ...]) -> float:
    """Return what one accelerator still sends once the links to absent peers are gone."""
    if domain < 2 or domain >= fabric.domain_gpus:
        return fabric.bytes_per_s
    if fabric.shape is FabricShape.MESH:
        return min(fabric.bytes_per_s, (domain - 1) * fabric.pair_bytes_per_s)
    if links:
        degrees = [sum(count for a, b, count in links if gpu in (a, b)) for gpu in range(domain)]
        return min(fabric.bytes_per_s, min(degrees) * fabric.pair_bytes_per_s) or fabric.pair_bytes_per_s
    return fabric.bytes_per_s


def _kept(groups: tuple[tuple[int, ...], ...], before: int, after: int) -> tuple[tuple[int, ...], ...]:
    if after > before:
        return ()
    kept = (tuple(index for index in group if index < after) for group in groups)
    return tuple(group for group in kept if group)


def _resized_host(host: Host, before: int, after: int) -> Host:
    return replace(
        host,
        numa=_kept(host.numa, before, after),
        pcie_switches=_kept(host.pcie_switches, before, after),
        nearest_nics=() if after > before else host.nearest_nics[:after],
    )


def _resized_cooling(cooling: Cooling, before: int, after: int) -> Cooling:
    return replace(cooling, rows=_kept(cooling.rows, before, after))
