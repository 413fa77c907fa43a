"""Bounds of every grid under every recompute option: time, and whether the memory can hold it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds import Work, pipeline_bound_s, step_lower_bound_s, with_jitter_s
from planner.expand import pinned_virtual
from planner.grids import Grids
from planner.option_memory import OptionMemory
from planner.option_times import OptionTimes
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
        bound = pipeline_bound_s(self._times.least(), grids.table.pp, grids.num_microbatches, ~self._may_interleave)
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
        out = np.full((len(rows), len(self.options)), np.inf)
        for chunked in (False, True):
            some = np.flatnonzero(self._may_interleave[rows] if chunked else self._may_be_plain[rows])
            for number in range(len(self.options)) if some.size else ():
                found = self._option_s(number, rows[some], limit_s, chunked=chunked)
                out[some, number] = np.minimum(out[some, number], found)
        return np.where(out <= limit_s, out, np.inf)

    def _option_s(self, number: int, rows: Ints, limit_s: float, *, chunked: bool) -> Floats:
        """Least time of any split of some grids under one option, with or without virtual stages; shape (R,)."""
        work = self._times.work(number, rows)
        bound = self._step_s(work, rows, chunked=chunked)
        out = np.full(len(rows), np.inf)
        near = np.flatnonzero(with_jitter_s(bound, self.grids.gpus[rows]) <= limit_s)
        if not near.size:
            return out
        rows, work, bound = rows[near], work.take(near), bound[near]
        option, memory = self.options[number], self._memory(chunked=chunked)
        held = memory.held(self.grids.take(rows), option)
        if len(work.counts) > 1:
            bound = np.where(memory.recomputed_layers(held) > 0.0, np.inf, bound)
        found = memory.capacity_s(held, work, np.zeros_like(work.layer_s), bound, limit_s)
        if option == NO_RECOMPUTE and FULL_RECOMPUTE in self.options:
            found = np.minimum(found, self._mixed_s(rows, limit_s, chunked=chunked))
        out[near] = with_jitter_s(found, self.grids.gpus[rows])
        return out

    def _mixed_s(self, rows: Ints, limit_s: float, *, chunked: bool) -> Floats:
        """Least time when at least one layer recomputes in full and the others do nothing; shape (R,)."""
        memory = self._memory(chunked=chunked)
        held = memory.held(self.grids.take(rows), NO_RECOMPUTE, mixed=True)
        work, again_s = self._times.mixed(rows)
        layers = np.maximum(memory.recomputed_layers(held), 1.0)
        possible = np.isfinite(layers)
        work = work.plus(np.where(possible, layers, 0.0) * again_s.min(axis=0))
        bound = np.where(possible, self._step_s(work, rows, chunked=chunked), np.inf)
        return memory.capacity_s(held, work, again_s, bound, limit_s)

    @cached_property
    def _times(self) -> OptionTimes:
        return OptionTimes(pricing=self.pricing, options=self.options, grids=self.grids)

    def _memory(self, *, chunked: bool) -> OptionMemory:
        return OptionMemory(pricing=self.pricing, accepted=self.accepted, chunked=chunked)

    @cached_property
    def _may_interleave(self) -> Bools:
        """Whether a grid may have several chunks per stage, shape (S,)."""
        return ~one_chunk_only(self.request, self.grids.table.pp, self.grids.num_microbatches)

    @cached_property
    def _may_be_plain(self) -> Bools:
        """Whether a grid may have one chunk per stage, shape (S,)."""
        return np.full(len(self.grids), pinned_virtual(self.request) in (None, 1))

    def _step_s(self, work: Work, rows: Ints, *, chunked: bool) -> Floats:
        """Bound the pipelines of some grids by their work, with whole layers; shape (R,)."""
        grids, plain = self.grids, np.full(len(rows), not chunked)
        return step_lower_bound_s(work, grids.table.pp[rows], grids.num_microbatches[rows], plain)


def one_chunk_only(request: PlanRequest, pp: Ints, num_microbatches: Ints) -> Bools:
    """Whether pipelines cannot have virtual stages: pinned, without a pipeline, or with micro-batches left over."""
    return np.asarray((pp == 1) | (num_microbatches % pp != 0) | (pinned_virtual(request) == 1))
