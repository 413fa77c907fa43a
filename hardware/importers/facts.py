"""What a file states about a machine, before anything is assumed. Zero, empty and ``None`` mean: not stated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hardware.cluster import LinkKind

Groups = tuple[tuple[int, ...], ...]
Links = tuple[tuple[int, int, int], ...]


def nearest_of(distances: Sequence[Sequence[tuple[float, float]]]) -> Groups:
    """Return for each GPU the adapters that none is nearer than.

    Parameters
    ----------
    distances : sequence of sequences
        For each GPU and adapter what orders them, the lowest first.

    Returns
    -------
    tuple of tuple of int
        Empty without adapters, and where all are as near to all GPUs: then the file says nothing about them.
    """
    if len({distance for row in distances for distance in row}) < 2:
        return ()
    return tuple(tuple(nic for nic, distance in enumerate(row) if distance == min(row)) for row in distances)


def links_of_each(gpus: int, links: Links) -> tuple[int, ...]:
    """Return how many links each of so many GPUs has to all others together."""
    sums: Counter[int] = Counter()
    for a, b, count in links:
        sums[a] += count
        sums[b] += count
    return tuple(sums[gpu] for gpu in range(gpus))


def groups_joined(gpus: int, links: Links) -> Groups:
    """Return the GPUs that links join, each group in order, groups by their first member."""
    home = list(range(gpus))
    for a, b, _ in links:
        low, high = sorted((home[a], home[b]))
        if low != high:
            home = [low if value == high else value for value in home]
    return tuple(tuple(gpu for gpu in range(gpus) if home[gpu] == first) for first in sorted(set(home)))


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One network adapter (a port that collectives can use)."""

    name: str
    kind: LinkKind | None = None
    bytes_per_s: float = 0.0
    gpudirect: bool | None = None


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a file states about one node.

    ``links`` lists (GPU, GPU, number of links) of NVLink or XGMI; ``links_known`` is False where the file cannot say,
    as in hints that list PCI devices only. ``switch_links`` is how many links each GPU has to NVSwitches.
    ``accelerator`` is a name of the catalogue, ``accelerator_why`` what it is read from, ``accelerator_sure`` whether
    that names one part. ``adapters_known`` is False where the form lists none.
    ``nearest_adapters`` lists for each GPU the adapters that none is nearer than; empty where all are as near to all.
    ``nameless`` holds, for files that list PCI devices without saying what they are, the devices (numbered) below each
    PCIe switch of each socket; ``gpus`` is 0 then. ``pcie_bytes_per_s`` is the way of a GPU to its host,
    ``gpu_bytes_per_s`` that towards the adapters.
    """

    where: str
    form: str
    gpus: int
    accelerator: str = ""
    accelerator_why: str = ""
    accelerator_sure: bool = False
    links: Links = ()
    links_known: bool = False
    link_kind: LinkKind = LinkKind.NVLINK
    switch_links: int = 0
    numa: Groups = ()
    pcie_switches: Groups = ()
    nearest_adapters: Groups = ()
    adapters: tuple[Adapter, ...] = ()
    adapters_known: bool = False
    pcie_bytes_per_s: float = 0.0
    gpu_bytes_per_s: float = 0.0
    nameless: tuple[Groups, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TierFacts:
    """One switch tier: hosts of each group of switches that sees the same hosts, and downlink over uplink capacity.

    ``rails`` is the number of switches of a group that each serve all of its hosts.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    oversubscription: float = 0.0
    rails: int = 1


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What a file states about the network between nodes.

    ``tiers`` go from the leaf outwards, ``domains`` are hosts that share a scale-up fabric, ``adapters`` is the usual
    number of a host, ``accelerator`` a name of the catalogue.
    """

    where: str
    form: str
    hosts: tuple[str, ...]
    tiers: tuple[TierFacts, ...] = ()
    domains: tuple[tuple[str, ...], ...] = ()
    adapters: int = 0
    kind: LinkKind | None = None
    bytes_per_s: float = 0.0
    in_network_reduction: bool = False
    accelerator: str = ""
    notes: tuple[str, ...] = ()


Facts = NodeFacts | NetworkFacts
