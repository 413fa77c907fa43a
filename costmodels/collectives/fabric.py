"""What one member of a group can send inside its scale-up domain, by the shape of the fabric and the members' place.

A small group uses only the links among its members: on a full mesh one link per peer, on a partial mesh as many rings
as the links allow, on a torus the axes that it spans, on a PCIe tree the path through the host.
"""

from collections.abc import Callable

import numpy as np

from costmodels.collectives.rings import worst_exchange_links, worst_ring_count
from costmodels.table import Floats, Ints
from hardware.cluster import FabricShape
from hardware.tiers import Tier


def ring_bytes_per_s(tier: Tier, together: Ints, stride: Ints) -> Floats:
    """Rate of one member in ring collectives among members of one domain.

    Parameters
    ----------
    tier : Tier
        The domain's fabric.
    together : array of int, shape (S,)
        Members of the group in one domain.
    stride : array of int, shape (S,)
        Distance of neighbouring members in rank order.

    Returns
    -------
    array, shape (S,)
        Bytes per second and direction, before the efficiency of software.
    """
    if tier.shape == FabricShape.MESH:
        links = np.maximum(together - 1, 1).astype(np.float64)
    elif tier.shape == FabricShape.CUBE_MESH and tier.links:
        links = _by_placement(together, stride, lambda m, s: worst_ring_count(tier.links, m, s))
    elif tier.shape == FabricShape.TORUS and tier.axes:
        extents = _torus_extents(tier.axes, together, stride)
        links = np.maximum(((extents > 1) * np.where(extents == np.array(tier.axes), 2.0, 1.0)).sum(axis=1), 1.0)
    elif tier.shape == FabricShape.TREE:
        return np.where(together > 2, tier.bytes_per_s, max(tier.pair_bytes_per_s, tier.bytes_per_s))
    else:
        return np.full(together.shape, tier.bytes_per_s)
    return np.minimum(tier.bytes_per_s, links * tier.pair_bytes_per_s)


def alltoall_bytes_per_s(tier: Tier, together: Ints, stride: Ints) -> Floats:
    """Rate of one member that sends equal shares to all others in the domain; parameters as in `ring_bytes_per_s`.

    On a torus a byte occupies as many links as it makes hops: a quarter of a full axis on average, a third of an
    axis that the group fills in part. On a partial mesh pairs without a link forward through others.
    """
    if tier.shape == FabricShape.TORUS and tier.axes:
        extents = _torus_extents(tier.axes, together, stride)
        hops = np.where(extents == np.array(tier.axes), extents / 4.0, extents / 3.0)
        spread: Floats = np.maximum((hops * (extents > 1)).sum(axis=1), 1.0)
        return ring_bytes_per_s(tier, together, stride) / spread
    if tier.shape == FabricShape.CUBE_MESH and tier.links:
        links = _by_placement(together, stride, lambda m, s: worst_exchange_links(tier.links, m, s))
        return np.minimum(tier.bytes_per_s, links * tier.pair_bytes_per_s)
    return ring_bytes_per_s(tier, together, stride)


def _by_placement(together: Ints, stride: Ints, count: Callable[[int, int], float]) -> Floats:
    """Evaluate ``count`` once per distinct pair of members and stride."""
    keys, inverse = np.unique(np.stack([together, stride], axis=1), axis=0, return_inverse=True)
    values: Floats = np.array([count(int(m), int(s)) for m, s in keys], dtype=np.float64)
    placed: Floats = values[inverse.reshape(-1)]
    return placed


def _torus_extents(axes: tuple[int, ...], together: Ints, stride: Ints) -> Ints:
    """Length of a group along each axis of a torus that ranks fill first axis first, shape (S, axes)."""
    steps = np.cumprod((1, *axes[:-1]))
    reach = np.minimum(steps * np.array(axes), (stride * together)[:, None])
    extents: Ints = np.maximum(reach // np.maximum(steps, stride[:, None]), 1)
    return extents
