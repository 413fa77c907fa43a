"""A lower bound over layouts whose layers may differ in strategy: each layer as fast as on any grid of its stage."""

import numpy as np

from costmodels.layout import NO_RECOMPUTE
from costmodels.pricing import Pricing
from planner.bounds.option_times import OptionTimes
from planner.bounds.step_time import Work, step_lower_bound_s, with_jitter_s
from planner.layouts.grids import Grids, enumerate_grids, halved_sizes, world_sizes
from planner.request import PlanRequest
from planner.rules import request_mask


def mixed_bound_s(request: PlanRequest, pricing: Pricing) -> float:
    """Least time of any layout whose layers pick their strategies one by one; infinite when no grid is legal.

    All strategies of a layout share pipeline stages, micro-batches and the sequences of a micro-batch over all
    replicas. Every layer, and every end of the model, is given the least time that it takes under any of them;
    resharding and memory are left out.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Of the island.
    """
    bounds = [float("inf")]
    for world in (*world_sizes(pricing.island), *halved_sizes(pricing.island)):
        every = enumerate_grids(request, world)
        grids = every.take(np.flatnonzero(request_mask(request, every.table).ok))
        if len(grids):
            bounds.append(_of_world(pricing, grids))
    return min(bounds)


def _of_world(pricing: Pricing, grids: Grids) -> float:
    table = grids.table
    work = OptionTimes(pricing=pricing, options=(NO_RECOMPUTE,), grids=grids).work(0, np.arange(len(grids)))
    shape = np.stack([table.pp, grids.num_microbatches, table.dp * table.micro_batch])
    shapes, group = np.unique(shape, axis=1, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(shapes.shape[1]))
    first, last = (np.minimum.reduceat(values[order], starts) for values in (work.first_s, work.last_s))
    layer = np.minimum.reduceat(work.layer_s[:, order], starts, axis=1)
    least = Work(
        total_s=np.array(work.counts) @ layer + first + last,
        first_s=first,
        last_s=last,
        layer_s=layer,
        counts=work.counts,
    )
    plain = np.ones(shapes.shape[1], dtype=np.bool_)
    bound = step_lower_bound_s(least, shapes[0], shapes[1], plain)
    return float(with_jitter_s(bound, np.full(len(bound), grids.gpus[0])).min())
