"""Groups of ranks that ZeRO may shard over instead of over all ranks that hold the same weights (hybrid sharding)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Final

import numpy as np

from costmodels.table import Ints
from hardware.tiers import Tier
from planner.layouts.grids import Grids

DOUBLINGS: Final = 4  # of the ranks that lie nearest to each other: what a domain does not hold, 16 of them mostly do


def group_sizes(ranks: int, tp: int, experts: int, tiers: Sequence[Tier]) -> tuple[int, ...]:
    """Return the sizes of groups that are tried beside all ranks, rising.

    Parameters
    ----------
    ranks : int
        dp x cp: those that hold the same weights, ``tp`` apart from each other.
    tp : int
        Tensor parallelism.
    experts : int
        ep x etp: groups hold whole copies of the experts, as no framework shards these over groups of their own.
    tiers : sequence of Tier
        Of the island, from the inside out.

    Returns
    -------
    tuple of int
        Divisors of ``ranks`` between 1 and ``ranks``: the ranks that lie together in one domain of each tier, and those
        of the innermost doubled up to :data:`DOUBLINGS` times. The larger a group, the less a rank holds, and the more
        leaves the domain.
    """
    sizes = _near_sizes(ranks, tuple(max(1, tier.gpus // tp) for tier in tiers))
    return tuple(size for size in sizes if size * tp % experts == 0)


@lru_cache(maxsize=4096)
def _near_sizes(ranks: int, together: tuple[int, ...]) -> tuple[int, ...]:
    near = [gcd(ranks, count) for count in together]
    doubled = [near[0] << times for times in range(DOUBLINGS + 1)]
    return tuple(sorted({size for size in (*near, *doubled) if 1 < size < ranks and ranks % size == 0}))


def in_groups(grids: Grids, group: Ints) -> Grids:
    """Return the grids with ZeRO over groups of so many ranks, shape (S,); 0 leaves a grid as it is."""
    sharded = np.where(group > 0, group, grids.table.shard_group)
    return replace(grids, table=replace(grids.table, shard_group=sharded))


def grouped_rows(grids: Grids, tiers: Sequence[Tier]) -> tuple[Ints, Ints]:
    """Return which grids may shard over groups, and over how many ranks: shapes (G,), once for every size.

    Parameters
    ----------
    grids : Grids
        S grids; those that shard nothing, or over groups already, are left out.
    tiers : sequence of Tier
        Of their island.

    Returns
    -------
    tuple of ndarray
        Rows of the grids and sizes as :func:`group_sizes` has them.
    """
    table = grids.table
    degrees = np.stack([table.dp * table.cp, table.tp, table.ep * table.etp])
    keys, inverse = np.unique(degrees, axis=1, return_inverse=True)
    sizes = [group_sizes(ranks, tp, experts, tiers) for ranks, tp, experts in keys.T.tolist()]
    open_rows = np.flatnonzero((table.zero > 0) & (table.shard_group == 0))
    found = [(row, size) for row in open_rows.tolist() for size in sizes[inverse[row]]]
    rows, group = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return rows, group
