"""The uniform search: every grid, bounded, priced with its recompute and virtual stages, in order of its lower bound.

Grids are priced once without recompute; a lower bound over every split of their layers orders them. They are then
expanded
in that order until the next bound exceeds the time of the worst layout still wanted. What is left is pruned by proof.
"""

import time
from typing import Final

import numpy as np

from costmodels.layer_costs import part_weights, price_parts
from costmodels.memory import model_memory
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats
from planner.bounds import part_work, step_lower_bound_s
from planner.expand import Group, expand, pinned_virtual, pipeline_groups
from planner.grids import Grids, enumerate_grids, kernel_table, world_sizes
from planner.option_bounds import OptionBounds
from planner.priced_block import PricedBlock
from planner.recompute_options import recompute_options
from planner.request import PlanRequest
from planner.rules import legal_mask
from planner.tally import Tally

FIRST_BLOCK: Final = 128
BLOCK: Final = 512


class UniformSearch:
    """One search over uniform grids on one island.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Model, job and the island.
    """

    def __init__(self, request: PlanRequest, pricing: Pricing) -> None:
        self.request = request
        self.pricing = pricing
        self.weights = part_weights(pricing)
        self.options = recompute_options(request.recompute, request.framework, pricing)
        self.accepted = Verdict.FITS
        self.tally = Tally(accepted=self.accepted)
        self.deadline = time.monotonic() + request.time_limit_s
        self._gpu_seconds_per_sample: float | None = None

    def run(self) -> Tally:
        """Search for what fits safely, and if there is nothing for what fits with risk; returns what was found."""
        self._search(Verdict.FITS)
        if not self.tally.best:
            self._search(Verdict.RISKY)
        return self.tally

    def _search(self, accepted: Verdict) -> None:
        """Search all GPU counts, the whole island first."""
        self.accepted = accepted
        self.tally = Tally(accepted=accepted)
        sizes = world_sizes(self.pricing.island)
        for number, world in enumerate(sizes):
            if number and self._bound_of_fewer_s(world) > self.tally.threshold_s(self.request.top):
                self.tally.pruned["fewer GPUs: time lower bound (counts of GPUs)"] += len(sizes) - number
                break
            if number and time.monotonic() > self.deadline:
                self.tally.pruned["fewer GPUs: time limit (counts of GPUs)"] += len(sizes) - number
                self.tally.open_bound_s = min(self.tally.open_bound_s, self._bound_of_fewer_s(world))
                break
            self._search_world(world)

    def _search_world(self, world: int) -> None:
        every = enumerate_grids(self.request, world)
        self.tally.enumerated += len(every)
        verdict = legal_mask(self.request.framework, every.table, self.request.model, self.request.job)
        self.tally.rejected.update(dict(verdict.reasons))
        grids = every.take(np.flatnonzero(verdict.ok))
        if not len(grids):
            return
        bounds = OptionBounds(request=self.request, pricing=self.pricing, options=self.options, accepted=self.accepted)
        time_s = bounds.time_s(grids)
        near = time_s.min(axis=1) <= self.tally.threshold_s(self.request.top)
        self._prune("time lower bound", near, time_s.min(axis=1))
        rows = np.flatnonzero(near)
        if len(rows):
            self._expand_in_order(grids.take(rows), bounds.within_memory_s(grids.take(rows), time_s[rows]))

    def _prune(self, reason: str, kept: Bools, bound: Floats) -> None:
        if not kept.all():
            self.tally.pruned[reason] += int((~kept).sum())
            self.tally.open_bound_s = min(self.tally.open_bound_s, float(bound[~kept].min()))

    def _expand_in_order(self, grids: Grids, bound: Floats) -> None:
        """Price blocks of grids in order of their bounds, shape (S, options), until the next one is too slow."""
        least = bound.min(axis=1)
        order = np.argsort(least, kind="stable")
        fitting = int(np.isfinite(least).sum())
        self.tally.pruned["memory lower bound"] += len(order) - fitting
        start, size = 0, FIRST_BLOCK
        while start < fitting:
            limit = self.tally.threshold_s(self.request.top)
            late = time.monotonic() > self.deadline
            if least[order[start]] > limit or late:
                rest = np.zeros(fitting - start, dtype=np.bool_)
                self._prune("time limit" if late else "time lower bound", rest, least[order[start:fitting]])
                return
            block = order[start : min(start + size, fitting)]
            self._evaluate(grids.take(block), bound[block])
            start, size = start + size, BLOCK

    def _evaluate(self, grids: Grids, known: Floats) -> None:
        """Price a block of grids under every virtual degree and the recompute options whose known bounds allow it.

        ``known`` has shape (S, options).
        """
        request = self.request
        wanted = known <= self.tally.threshold_s(request.top)
        block = expand(grids, self.options, wanted)
        table = block.grids.table
        costs = price_parts(self.pricing, table)
        plain = np.zeros(len(table), dtype=np.bool_)
        bound = step_lower_bound_s(part_work(costs, self.weights), table.pp, block.grids.num_microbatches, plain)
        bound = np.maximum(bound, known[wanted])
        alive = np.flatnonzero(bound <= self.tally.threshold_s(request.top))
        self.tally.pruned["time lower bound with exchanges"] += len(table) - len(alive)
        free = bound[table.pp > 1]  # their layers may be split in ways that are not tried one by one
        self.tally.open_bound_s = min(self.tally.open_bound_s, float(free.min(initial=np.inf)))
        priced = PricedBlock(
            request=request,
            pricing=self.pricing,
            tally=self.tally,
            block=block,
            costs=costs,
            memory=model_memory(request.model, request.job, table, self.pricing.constants.memory),
        )
        groups = pipeline_groups(block.grids.take(alive), request.model.layers, pinned_virtual(request))
        for group in groups:
            priced.group(Group(spec=group.spec, rows=alive[group.rows]))

    def _bound_of_fewer_s(self, world: int) -> float:
        """Least time of any layout on ``world`` GPUs.

        Every GPU works ``m W / pp`` with ``m pp = batch world / (micro-batch tp cp pp)``; the least GPU-seconds per
        sample over all kernels' sizes, whatever the pipeline, are computed once.
        """
        if self._gpu_seconds_per_sample is None:
            kernels = kernel_table(self.request, self.pricing.island.gpus)
            work = part_work(price_parts(self.pricing, kernels), self.weights)
            per_sample = work.total_s * kernels.tp * kernels.cp / kernels.micro_batch
            self._gpu_seconds_per_sample = float(per_sample.min())
        return self.request.job.global_batch * self._gpu_seconds_per_sample / world
