"""The groups of grids that a search looks at: those that the framework of a request can launch."""

from collections.abc import Sequence

import numpy as np

from costmodels.table import Ints
from hardware.tiers import Tier
from planner.layouts.grids import Grids, groups_allowed
from planner.layouts.shard_groups import grouped_rows, in_groups
from planner.request import PlanRequest
from planner.rules import request_mask


def legal_groups(request: PlanRequest, grids: Grids, tiers: Sequence[Tier]) -> tuple[Ints, Grids]:
    """Return grids with ZeRO over groups of ranks, and the row that each came from, shape (G,).

    None where the request pins what ZeRO shards over, which its grids have, or its launcher has no groups.

    Parameters
    ----------
    request : PlanRequest
        Framework, model and job; pins.
    grids : Grids
        Legal grids.
    tiers : sequence of Tier
        Of their island, as :func:`planner.layouts.shard_groups.group_sizes` takes them.
    """
    if request.fixed_degree("shard_group") is not None:
        grids = grids.take(np.empty(0, dtype=np.int64))
    rows, group = grouped_rows(grids, tiers)
    allowed = np.array([groups_allowed(request, size) for size in group.tolist()], dtype=np.bool_)
    rows, group = rows[allowed], group[allowed]
    found = in_groups(grids.take(rows), group)
    legal = np.flatnonzero(request_mask(request, found.table).ok)
    return rows[legal], found.take(legal)
