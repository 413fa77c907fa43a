"""Bounds of grids whose parts are priced: what is left to choose is the split, and which layers recompute in full."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.compute import optimizer_step_s
from costmodels.exchange import state_exchange
from costmodels.layer_costs import PartCosts, part_weights
from costmodels.layout import NO_RECOMPUTE, Recompute
from costmodels.memory.states import LocalParameters
from costmodels.pipeline.schedules import Schedule
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds.option_memory import Held, OptionMemory
from planner.bounds.splits import SplitBounds, Works, one_chunk_only
from planner.bounds.step_time import ENDS, Work, part_seconds, part_work, step_lower_bound_s, with_jitter_s
from planner.bounds.whole_layers import Chunks, OncePerStep, whole_layers_bound_s
from planner.layouts.expand import Expanded, lone_ends, pinned_virtual, virtual_degrees
from planner.request import PlanRequest


@dataclass(frozen=True, eq=False)
class PricedBounds:
    """Bounds of a block of priced rows, each a grid under one recompute option.

    Rows without recompute stand also for layouts in which some layers recompute in full and the others do nothing.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Model, job, island.
    accepted : Verdict
        What still fits: safely (``FITS``), or at all (``RISKY``).
    block : Expanded
        The rows.
    costs : PartCosts
        Of the rows.
    """

    request: PlanRequest
    pricing: Pricing
    accepted: Verdict
    block: Expanded
    costs: PartCosts

    def time_s(self) -> Floats:
        """Least time of every row, whatever its memory; shape (S,)."""
        grids = self.block.grids
        one_chunk = one_chunk_only(self.request, grids.table.pp, grids.num_microbatches)
        schedule = self.request.schedule
        bound = step_lower_bound_s(self._least, grids.table.pp, grids.num_microbatches, one_chunk, schedule)
        return with_jitter_s(bound, grids.gpus)

    def within_memory_s(self, rows: Ints, limit_s: float) -> Floats:
        """Least times of some rows over the splits that fit their memory; shape (R,).

        Parameters
        ----------
        rows : ndarray of int
            Which rows, shape (R,).
        limit_s : float
            Times above it need not be told from infinity [s].
        """
        splits = SplitBounds(request=self.request, pricing=self.pricing, accepted=self.accepted, grids=self.block.grids)
        out = np.full(len(rows), np.inf)
        for option, some in self._by_option(rows):
            out[some] = splits.option_s(rows[some], option, self._works(rows[some], option), limit_s)
        return out

    def whole_layers_s(self, rows: Ints, limit_s: float) -> Floats:
        """Least times of some rows with whole layers that recompute, under every virtual degree; shape (R,).

        Parameters are as in :meth:`within_memory_s`, which is cheaper and weaker. Nothing is said of schedules other
        than 1F1B and interleaved: 0 then.
        """
        if self.request.schedule not in (None, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
            return np.zeros(len(rows))
        out = np.full(len(rows), np.inf)
        for option, some in self._by_option(rows):
            out[some] = self._whole_s(rows[some], option, limit_s)
        return out

    def _by_option(self, rows: Ints) -> Iterator[tuple[Recompute, Ints]]:
        """Recompute options and which of some rows are under them."""
        table = self.block.grids.table
        for number in np.unique(table.recompute[rows]).tolist():
            yield table.recomputes[number], np.flatnonzero(table.recompute[rows] == number)

    def _works(self, rows: Ints, option: Recompute) -> Works:
        """Seconds of some rows under their option."""
        alike = self._least.take(rows)
        mixes = option == NO_RECOMPUTE and bool(self._may_mix[rows].any())
        return Works(alike=alike, mixed=(alike, self._again_s[:, rows]) if mixes else None)

    def _whole_s(self, rows: Ints, option: Recompute, limit_s: float) -> Floats:
        """Least times of some rows of one option with whole layers that recompute, under every virtual degree; (R,)."""
        grids, out = self.block.grids.take(rows), np.full(len(rows), np.inf)
        regular = grids.num_microbatches % grids.table.pp == 0
        for pp, whole in sorted({*zip(grids.table.pp.tolist(), regular.tolist(), strict=True)}):
            some = np.flatnonzero((grids.table.pp == pp) & (regular == whole))
            works, part = self._works(rows[some], option), grids.take(some)
            held = OptionMemory(pricing=self.pricing, accepted=self.accepted).held(
                part, option, mixed=works.mixed is not None
            )
            pinned, ends = pinned_virtual(self.request), lone_ends(self.request)
            m, once = int(part.num_microbatches[0]), self._once(rows[some])
            for vpp in virtual_degrees(self.request.model.layers, pp, m, pinned, ends):
                one = held.take(np.arange(len(some)), chunked=vpp > 1)
                found = self._of_chunks_s(one, works, once, vpp, limit_s)
                out[some] = np.minimum(out[some], found)
        return with_jitter_s(out, grids.gpus)

    def _once(self, rows: Ints) -> tuple[OncePerStep, ...]:
        """What layers of each kind add to a step once under some rows.

        The longer a message, the less a byte takes: no stage exchanges a layer faster than all layers together. Owners
        of whole tensors send one message each, and fewer tensors have no more owners for each of them.
        """
        pricing, costs = self.pricing, self.costs
        overlap, software = pricing.constants.overlap, pricing.job.software
        placed, found = costs.placed.take(rows), []
        shows = [overlap.contention if hides else 1.0 for hides in (software.grad_overlap, software.param_overlap)]
        for kind, count in enumerate(self._least.counts):
            held = LocalParameters(
                dense=count * costs.dense_parameters[kind, rows], expert=count * costs.expert_parameters[kind, rows]
            )
            tensors = np.full(len(rows), count * costs.weight_tensors[kind])
            exchange = state_exchange(held, pricing.job, placed, overlap.bucket_bytes, tensors)
            update_s = optimizer_step_s(
                exchange.owned_parameters,
                pricing.job,
                pricing.accelerator,
                efficiency=pricing.constants.efficiency,
                node=pricing.island.node,
            )
            exchange_s = shows[0] * exchange.reduce_s + shows[1] * exchange.gather_s
            found.append(OncePerStep(exchange_s=exchange_s / count, optimizer_s=update_s / count))
        return tuple(found)

    def _of_chunks_s(self, held: Held, works: Works, once: tuple[OncePerStep, ...], vpp: int, limit_s: float) -> Floats:
        """Least times of pipelines of equal depth under one virtual degree: the largest over the kinds of layers."""
        work = works.alike
        again_s = np.zeros_like(work.layer_s) if works.mixed is None else works.mixed[1]
        pipelines = held.pipelines(work)
        lies = [Chunks.of(self.request.model, kind, vpp, lone_ends(self.request)) for kind in range(len(work.counts))]
        bounds = [
            whole_layers_bound_s(pipelines, layers, each, chunks, limit_s)
            for layers, each, chunks in zip(held.layers(work, again_s), once, lies, strict=True)
        ]
        return np.asarray(np.max(bounds, axis=0))

    @cached_property
    def _may_mix(self) -> Bools:
        return np.asarray((self.block.full >= 0) & (self.block.full != np.arange(len(self.block.full))))

    @cached_property
    def _seconds(self) -> Floats:
        return part_seconds(self.costs)

    @cached_property
    def _least(self) -> Work:
        """At most the work of every row: each part in the cheaper of the ways that it may run."""
        part_s = self._seconds.copy()
        plain = np.flatnonzero(self._may_mix)
        part_s[:, plain] = np.minimum(part_s[:, plain], part_s[:, self.block.full[plain]])
        return part_work(self.costs.names, part_s, part_weights(self.pricing))

    @cached_property
    def _again_s(self) -> Floats:
        """Seconds that a layer of each kind takes longer in full recompute, shape (kinds, S)."""
        is_layer = np.array([name not in ENDS for name in self.costs.names])
        layers_s = self._seconds[is_layer]
        return np.asarray(np.maximum(layers_s[:, self.block.full] - layers_s, 0.0))
