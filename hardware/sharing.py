"""Which accelerators of a node share which adapter, and which of a node's links binds its traffic to other nodes."""

from collections import Counter
from itertools import chain
from typing import Final

from hardware.adapters import adapters_of, used_adapters
from hardware.cluster import NodeType
from hardware.tiers import reachable_nic_bytes_per_s

_SAME: Final = 1.0 + 1e-9
GBIT: Final = 8e-9  # Gb/s for each byte per second


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
    used = len(used_adapters(node))
    if reachable * _SAME < nics.bytes_per_s * used:
        if nics.gpu_bytes_per_s > 0.0 and reachable * _SAME >= node.gpus * nics.gpu_bytes_per_s:
            return "PCIe links of the accelerators towards the NICs"
        return "PCIe switch uplinks (no GPUDirect RDMA)"
    sharers = max(Counter(chain.from_iterable(adapters_of(node))).values(), default=1)
    shared = f", each shared by {sharers} GPUs" if sharers > 1 else ""
    number = str(nics.count) if used == nics.count else f"{used} of {nics.count}"
    return f"NICs ({number} x {nics.bytes_per_s * GBIT:.0f} Gb/s {nics.kind.value} per node{shared})"
