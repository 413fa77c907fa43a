"""The layout of a request that needs least memory: what stood nearest to being feasible when nothing is."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layout import Layout, Recompute
from costmodels.memory import stage_memory
from costmodels.pipeline.schedules import runs
from costmodels.pricing import Pricing
from costmodels.results import MemoryUse, Verdict
from costmodels.table import Floats
from planner.bounds.memory import memory_bound
from planner.bounds.option_memory import OptionMemory
from planner.layouts.build import uniform_layout
from planner.layouts.grids import Grids, enumerate_grids
from planner.layouts.recompute_options import requested_options
from planner.layouts.splits import even_chunks
from planner.request import PlanRequest
from planner.rules import broken_rules, request_mask

WEIGHED: Final = 24  # layouts whose memory is computed exactly, those of least bound first


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """A layout with the memory of its heaviest stage."""

    layout: Layout
    use: MemoryUse


def smallest_layout(request: PlanRequest, pricing: Pricing) -> Smallest | None:
    """Find a layout over a whole island whose heaviest stage exceeds the memory least; None when none is legal.

    Parameters
    ----------
    request : PlanRequest
        What was asked.
    pricing : Pricing
        Of the island.

    Returns
    -------
    Smallest or None
        Exact among the evenly split layouts of least bound under the recompute that keeps least.
    """
    every = enumerate_grids(request, pricing.island.gpus)
    legal = request_mask(request, every.table).ok
    grids = every.take(np.flatnonzero(legal))
    if not len(grids):
        return None
    option = requested_options(request, pricing)[-1]
    over = excess_bytes(request, pricing, grids, option, Verdict.RISKY)
    weighed = [
        _weighed(request, pricing, grids, (int(row), option)) for row in np.argsort(over, kind="stable")[:WEIGHED]
    ]
    found = [entry for entry in weighed if entry is not None]
    return min(found, key=lambda entry: entry.use.total_bytes) if found else None


def excess_bytes(request: PlanRequest, pricing: Pricing, grids: Grids, option: Recompute, accepted: Verdict) -> Floats:
    """Bytes by which the heaviest stage of a grid exceeds the memory at least, whatever the split; one chunk a stage.

    Parameters
    ----------
    request : PlanRequest
        Its schedule.
    pricing : Pricing
        Model, job, island.
    grids : Grids
        S grids.
    option : Recompute
        Of all layers.
    accepted : Verdict
        What still fits.

    Returns
    -------
    ndarray
        Shape (S,), negative where there may be room [bytes].
    """
    memory = OptionMemory(pricing=pricing, accepted=accepted, schedule=request.schedule)
    held = memory.held(grids, option)
    return memory_bound(held.room, memory.counts(held), held.flight).least_bytes - held.room.room_bytes


def _weighed(request: PlanRequest, pricing: Pricing, grids: Grids, chosen: tuple[int, Recompute]) -> Smallest | None:
    """An evenly split layout of a grid under a recompute option, or None where no even split is legal."""
    row, option = chosen
    pp, schedule = int(grids.table.pp[row]), request.schedule
    vpp = (schedule.fixed_vpp or 2) if schedule else 1
    layout = uniform_layout(
        replace(grids.table.strategy(row), recompute=option),
        even_chunks(request.model.layers, pp, vpp, schedule),
        micro_batch=int(grids.table.micro_batch[row]),
        num_microbatches=int(grids.num_microbatches[row]),
        schedule=schedule,
    )
    if broken_rules(layout, request) or not runs(layout.schedule, pp, vpp, layout.num_microbatches):
        return None
    uses = stage_memory(layout, request.model, request.job, pricing.accelerator, pricing.constants.memory)
    return Smallest(layout=layout, use=max(uses, key=lambda use: (use.total_bytes, -use.stage)))
