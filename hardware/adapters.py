"""Which adapters of a node its accelerators send through, and what each has of them when several share one."""

from functools import lru_cache
from itertools import chain

from hardware.cluster import NodeType

Adapters = tuple[tuple[int, ...], ...]


def adapters_of(node: NodeType) -> Adapters:
    """Return the adapters that each accelerator of a node sends through.

    Parameters
    ----------
    node : NodeType
        The server.

    Returns
    -------
    tuple of tuple of int
        Per accelerator. Of the nearest ones where these are stated, as libraries choose among them; else those below
        its PCIe switch; where switches are not known or hold none, an even share of all. The same one for several
        where there are fewer.

    References
    ----------
    NVIDIA/nccl, ``src/graph/topo.cc``, ``ncclTopoGetLocalNet``: of the nearest adapters accelerator d takes number
    ``mirrored bits of d`` where their number is a power of two, else ``d`` times the adapters of each, and so many from
    there on.
    """
    count, nearest = node.nics.count, node.host.nearest_nics
    if not count:
        return tuple(() for _ in range(node.gpus))
    if nearest:
        return tuple(_chosen(nearest, gpu) for gpu in range(node.gpus))
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


def used_adapters(node: NodeType) -> tuple[int, ...]:
    """Return the adapters that any accelerator sends through, in order; those nearest to none stay idle."""
    return tuple(sorted(set(chain.from_iterable(adapters_of(node)))))


@lru_cache(maxsize=256)
def least_share(adapters: Adapters, stride: int) -> float:
    """What the worst-off accelerator of a node sends, over an even share of the node's adapters.

    Parameters
    ----------
    adapters : tuple of tuple of int
        Adapters of each accelerator, from :func:`adapters_of`; none: they are shared evenly.
    stride : int
        Every so many-th accelerator belongs to one group; all groups send at the same time, as much for each of their
        members, each over all adapters of its members evenly. Strides beyond the node: each is alone.

    Returns
    -------
    float
        Within (0, 1]; 1.0 where adapters divide evenly among the groups.
    """
    if not adapters:
        return 1.0
    step = min(stride, len(adapters))
    loads: dict[int, float] = {}
    for first in range(step):
        members = adapters[first::step]
        own = sorted(set(chain.from_iterable(members)))
        for nic in own:
            loads[nic] = loads.get(nic, 0.0) + len(members) / len(own)
    if not loads:
        return 1.0
    return min(1.0, len(adapters) / (len(loads) * max(loads.values())))


@lru_cache(maxsize=256)
def least_of_senders(adapters: Adapters, senders: int) -> float:
    """What the worst-off of a node's last accelerators sends while only these send, each over its own adapters.

    Parameters
    ----------
    adapters : tuple of tuple of int
        Adapters of each accelerator, from :func:`adapters_of`.
    senders : int
        How many accelerators send, counted from the last one.

    Returns
    -------
    float
        In adapters: 1.0 where it has one to itself, also where it has several and others share all of them by half.
    """
    loads: dict[int, float] = {}
    for own in adapters[-senders:]:
        for nic in own:
            loads[nic] = loads.get(nic, 0.0) + 1.0 / len(own)
    return 1.0 / max(loads.values(), default=1.0)


def _chosen(nearest: Adapters, gpu: int) -> tuple[int, ...]:
    """Adapters that an accelerator takes of the nearest, which others may have as well."""
    own = nearest[gpu]
    sharers = sum(own[0] in others for others in nearest)
    each = -(-len(own) // sharers)
    first = _mirrored(gpu, len(own)) if len(own) & (len(own) - 1) == 0 else gpu * each
    return tuple(sorted({own[(first + turn) % len(own)] for turn in range(each)}))


def _mirrored(number: int, power: int) -> int:
    """Lowest bits of a number in reverse order, as many as a power of two has places."""
    width = power.bit_length() - 1
    return int(format(number % power, f"0{width}b")[::-1], 2) if width else 0


def _part(nics: list[int], place: int, sharers: int) -> tuple[int, ...]:
    """An even part of some adapters: at least one, shared where there are fewer than sharers."""
    first = place * len(nics) // sharers
    return tuple(nics[first : max((place + 1) * len(nics) // sharers, first + 1)])
