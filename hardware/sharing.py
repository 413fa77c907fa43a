"""Which accelerators of a node share which adapter, and which of a node's links binds its traffic to other nodes."""

from typing import Final

from hardware.cluster import NodeType
from hardware.tiers import reachable_nic_bytes_per_s

_SAME: Final = 1.0 + 1e-9
GBIT: Final = 8e-9  # Gb/s for each byte per second


def adapters_of(node: NodeType) -> tuple[tuple[int, ...], ...]:
    """Return the adapters that each accelerator of a node sends through.

    Parameters
    ----------
    node : NodeType
        The server.

    Returns
    -------
    tuple of tuple of int
        Per accelerator: the adapters below its PCIe switch, as libraries prefer the nearest; where switches are not
        known or hold none, an even share of all; the same one for several where there are fewer.
    """
    count = node.nics.count
    if not count:
        return tuple(() for _ in range(node.gpus))
    switches = node.host.pcie_switches
    found: list[tuple[int, ...]] = []
    for gpu in range(node.gpus):
        below = next((number for number, group in enumerate(switches) if gpu in group), None)
        near = [] if below is None else [nic for nic in range(count) if nic * len(switches) // count == below]
        if near and below is not None:
            found.append(_part(near, switches[below].index(gpu), len(switches[below])))
        else:
            found.append(_part(list(range(count)), gpu, node.gpus))
    return tuple(found)


def _part(nics: list[int], place: int, sharers: int) -> tuple[int, ...]:
    """An even part of some adapters: at least one, shared where there are fewer than sharers."""
    first = place * len(nics) // sharers
    return tuple(nics[first : max((place + 1) * len(nics) // sharers, first + 1)])


def nic_sharing(node: NodeType) -> tuple[str, ...]:
    """Return a line for every set of adapters with the accelerators that share it, such as ``nic0: GPUs 0, 1``."""
    by_nics: dict[tuple[int, ...], list[int]] = {}
    for gpu, nics in enumerate(adapters_of(node)):
        by_nics.setdefault(nics, []).append(gpu)
    return tuple(
        f"{', '.join(f'nic{nic}' for nic in nics)}: {'GPU' if len(gpus) == 1 else 'GPUs'} {', '.join(map(str, gpus))}"
        for nics, gpus in by_nics.items()
        if nics
    )


def binding_link(node: NodeType) -> str:
    """Name the link that limits what a node's accelerators send to other nodes together.

    Parameters
    ----------
    node : NodeType
        The server.

    Returns
    -------
    str
        The adapters (NICs) with their rate; the accelerators' own PCIe links, or the uplinks of PCIe switches that
        carry every byte twice without GPUDirect RDMA, where these are slower.
    """
    nics = node.nics
    reachable = reachable_nic_bytes_per_s(node)
    if reachable * _SAME < nics.node_bytes_per_s:
        if nics.gpu_bytes_per_s > 0.0 and reachable * _SAME >= node.gpus * nics.gpu_bytes_per_s:
            return "PCIe links of the accelerators towards the NICs"
        return "PCIe switch uplinks (no GPUDirect RDMA)"
    sharers = max((sum(nic in own for own in adapters_of(node)) for nic in range(nics.count)), default=1)
    shared = f", each shared by {sharers} GPUs" if sharers > 1 else ""
    return f"NICs ({nics.count} x {nics.bytes_per_s * GBIT:.0f} Gb/s {nics.kind.value} per node{shared})"
