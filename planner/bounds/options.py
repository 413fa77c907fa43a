"""Bounds of every grid under every recompute option: time, and whether the memory can hold it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds.option_memory import Held, OptionMemory
from planner.bounds.option_times import OptionTimes
from planner.bounds.step_time import Work, pipeline_bound_s, step_lower_bound_s, with_jitter_s
from planner.layouts.expand import pinned_virtual
from planner.layouts.grids import Grids
from planner.request import PlanRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionBounds:
    """Bounds of the grids of one request on one island under O recompute options.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Model, job, island.
    options : tuple of Recompute
        Recompute choices.
    accepted : Verdict
        What still fits: safely (``FITS``), or at all (``RISKY``).
    grids : Grids
        S grids, all on equally many GPUs.
    """

    request: PlanRequest
    pricing: Pricing
    options: tuple[Recompute, ...]
    accepted: Verdict
    grids: Grids

    def time_s(self) -> Floats:
        """Least time of any layout of a grid under any option, whatever split, chunks and memory; shape (S,)."""
        grids = self.grids
        bound = pipeline_bound_s(self._times.least(), grids.table.pp, grids.num_microbatches, ~self._allows[True])
        return with_jitter_s(bound, grids.gpus)

    def within_memory_s(self, rows: Ints, limit_s: float = np.inf) -> Floats:
        """Least times of some grids under each option; infinite where no split can fit the memory, shape (R, O).

        Layouts without recompute stand also for those in which some layers recompute in full and the others do nothing.

        Parameters
        ----------
        rows : array of int
            Which grids, shape (R,).
        limit_s : float, optional
            Times above it need not be told from infinity [s].
        """
        columns = [self._option_s(number, rows, limit_s) for number in range(len(self.options))]
        out = np.stack(columns, axis=1)
        return np.where(out <= limit_s, out, np.inf)

    def _option_s(self, number: int, rows: Ints, limit_s: float) -> Floats:
        """Least time of any split of some grids under one option, infinite where none fits; shape (R,)."""
        work = self._times.work(number, rows)
        chunks = [chunked for chunked in (False, True) if self._allows[chunked].any()]
        bounds = {chunked: self._step_s(work, rows, chunked=chunked) for chunked in chunks}
        gpus = self.grids.gpus[rows]
        out = np.full(len(rows), np.inf)
        near = np.flatnonzero(np.any([with_jitter_s(bound, gpus) <= limit_s for bound in bounds.values()], axis=0))
        if not near.size:
            return out
        mixed = self.options[number] == NO_RECOMPUTE and FULL_RECOMPUTE in self.options
        held = self._memory.held(self.grids.take(rows[near]), self.options[number], mixed=mixed)
        for chunked, bound in bounds.items():
            some = np.flatnonzero(bound[near] <= limit_s)
            if some.size:
                mine = held.take(some, chunked=chunked)
                found = self._split_s(mine, work.take(near[some]), bound[near[some]], limit_s)
                if mixed:
                    found = np.minimum(found, self._mixed_s(mine, rows[near[some]], limit_s))
                out[near[some]] = np.minimum(out[near[some]], found)
        return with_jitter_s(out, gpus)

    def _split_s(self, held: Held, work: Work, bound_s: Floats, limit_s: float) -> Floats:
        """Least time when all layers use one option; shape (R,)."""
        plain = held.without_choice()
        if len(work.counts) > 1:
            bound_s = np.where(self._memory.recomputed_layers(plain) > 0.0, np.inf, bound_s)
        return self._memory.capacity_s(plain, work, np.zeros_like(work.layer_s), bound_s, limit_s)

    def _mixed_s(self, held: Held, rows: Ints, limit_s: float) -> Floats:
        """Least time when at least one layer recomputes in full and the others do nothing; shape (R,)."""
        work, again_s = self._times.mixed(rows)
        layers = np.maximum(self._memory.recomputed_layers(held), 1.0)
        possible = np.isfinite(layers)
        work = work.plus(np.where(possible, layers, 0.0) * again_s.min(axis=0))
        bound = np.where(possible, self._step_s(work, rows, chunked=held.chunked), np.inf)
        return self._memory.capacity_s(held, work, again_s, bound, limit_s)

    @cached_property
    def _times(self) -> OptionTimes:
        return OptionTimes(pricing=self.pricing, options=self.options, grids=self.grids)

    @cached_property
    def _memory(self) -> OptionMemory:
        return OptionMemory(pricing=self.pricing, accepted=self.accepted)

    @cached_property
    def _allows(self) -> tuple[Bools, Bools]:
        """Whether the stages of a grid may have one chunk each, and several, shapes (S,)."""
        one = np.full(len(self.grids), pinned_virtual(self.request) in (None, 1))
        several = ~one_chunk_only(self.request, self.grids.table.pp, self.grids.num_microbatches)
        return one, several

    def _step_s(self, work: Work, rows: Ints, *, chunked: bool) -> Floats:
        """Bound the pipelines of some grids, with whole layers; infinite where the chunks are not allowed; (R,)."""
        grids, plain = self.grids, np.full(len(rows), not chunked)
        bound = step_lower_bound_s(work, grids.table.pp[rows], grids.num_microbatches[rows], plain)
        return np.where(self._allows[chunked][rows], bound, np.inf)


def one_chunk_only(request: PlanRequest, pp: Ints, num_microbatches: Ints) -> Bools:
    """Whether pipelines cannot have virtual stages: pinned, without a pipeline, or with micro-batches left over."""
    return np.asarray((pp == 1) | (num_microbatches % pp != 0) | (pinned_virtual(request) == 1))
