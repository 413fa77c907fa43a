"""The uniform search: every grid, bounded, priced with its recompute and virtual stages, in order of its lower bound.

Grids are priced once without recompute; a lower bound over every split of their layers orders them. They are then
expanded
in that order until the next bound exceeds the time of the worst layout still wanted. What is left is pruned by proof.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.compute.local import grid_of
from costmodels.layer_costs import part_weights, price_parts
from costmodels.memory import model_memory, usable_memory
from costmodels.pricing import Pricing
from costmodels.table import Bools, Floats, Ints
from planner.bounds import part_work, step_lower_bound_s
from planner.expand import Group, pipeline_groups, with_recomputes
from planner.grids import Grids, enumerate_grids, join_grids, world_sizes
from planner.priced_block import PricedBlock
from planner.recompute_options import recompute_options
from planner.request import PlanRequest
from planner.rules import legal_mask
from planner.tally import Tally

FIRST_BLOCK: Final = 128
BLOCK: Final = 512
CHUNK: Final = 32_768  # rows that are priced at once for their states: bounds the memory of a search


class UniformSearch:
    """One search over uniform grids on one cluster."""

    def __init__(self, request: PlanRequest, pricings: Sequence[Pricing]) -> None:
        self.request = request
        self.pricings = pricings
        self.weights = part_weights(pricings[0])
        self.options = recompute_options(request.recompute, request.framework, pricings[0])
        self.tally = Tally()
        self.deadline = time.monotonic() + request.time_limit_s

    def run(self) -> Tally:
        """Search; returns what was found, with counts."""
        grids = self._legal(self._grids())
        if not len(grids):
            return self.tally
        bound = self._lower_bound_s(grids)
        fits = self._states_fit(grids)
        self.tally.pruned["memory of the states alone"] += int((~fits).sum())
        order = np.flatnonzero(fits)[np.argsort(bound[fits], kind="stable")]
        self._expand_in_order(grids, bound, order)
        return self.tally

    def _grids(self) -> Grids:
        worlds = world_sizes(self.request.cluster)
        grids = join_grids([enumerate_grids(self.request, world) for world in worlds])
        self.tally.enumerated += len(grids)
        return grids

    def _legal(self, grids: Grids) -> Grids:
        verdict = legal_mask(self.request.framework, grids.table, self.request.model, self.request.job)
        self.tally.rejected.update(dict(verdict.reasons))
        return grids.take(np.flatnonzero(verdict.ok))

    def _lower_bound_s(self, grids: Grids) -> Floats:
        """Least time of any layout of a grid, whatever its split, chunks, recompute and exchanges; fastest island."""
        table = grids.table
        may_interleave = (table.pp > 1) & (grids.num_microbatches % table.pp == 0)
        if self.request.fixed_degree("vpp") == 1:
            may_interleave[:] = False
        distinct = grid_of(table)
        bounds = []
        for pricing in self.pricings:
            costs = price_parts(pricing, table.take(distinct.first), exchanges=False)
            work = part_work(costs, self.weights).take(distinct.inverse)
            bounds.append(step_lower_bound_s(work, table.pp, grids.num_microbatches, ~may_interleave))
        return np.asarray(np.min(bounds, axis=0))

    def _states_fit(self, grids: Grids) -> Bools:
        """Whether the states alone, spread evenly over the stages, fit: necessary, not sufficient."""
        request = self.request
        largest = max(usable_memory(pricing.accelerator) for pricing in self.pricings)
        fits = np.empty(len(grids), dtype=np.bool_)
        for start in range(0, len(grids), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(grids)))
            table = grids.table.take(rows)
            memory = model_memory(request.model, request.job, table, self.pricings[0].constants.memory)
            weights = self.weights[: len(memory.parts)]
            states = sum(weight * part.states for weight, part in zip(weights, memory.parts, strict=True))
            fits[rows] = states / table.pp <= largest
        return fits

    def _expand_in_order(self, grids: Grids, bound: Floats, order: Ints) -> None:
        start, size = 0, FIRST_BLOCK
        while start < len(order):
            limit = self.tally.threshold_s(self.request.top)
            least = float(bound[order[start]])
            if least > limit or time.monotonic() > self.deadline:
                self.tally.pruned["time lower bound" if least > limit else "time limit"] += len(order) - start
                self.tally.open_bound_s = min(self.tally.open_bound_s, least)
                return
            self._evaluate(grids.take(order[start : start + size]))
            start, size = start + size, BLOCK

    def _evaluate(self, grids: Grids) -> None:
        """Price a block of grids under every recompute choice and virtual degree."""
        request = self.request
        block = with_recomputes(grids, self.options)
        costs = [price_parts(pricing, block.table) for pricing in self.pricings]
        plain = np.zeros(len(block), dtype=np.bool_)
        bounds = [
            step_lower_bound_s(part_work(cost, self.weights), block.table.pp, block.num_microbatches, plain)
            for cost in costs
        ]
        alive = np.flatnonzero(np.min(bounds, axis=0) <= self.tally.threshold_s(request.top))
        self.tally.pruned["time lower bound with recompute"] += len(block) - len(alive)
        priced = PricedBlock(
            request=request,
            pricings=self.pricings,
            options=self.options,
            tally=self.tally,
            block=block,
            costs=costs,
            memory=model_memory(request.model, request.job, block.table, self.pricings[0].constants.memory),
        )
        for group in pipeline_groups(block.take(alive), request.model.layers, request.fixed_degree("vpp")):
            priced.group(Group(spec=group.spec, rows=alive[group.rows]))
