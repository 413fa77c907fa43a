"""Least times of grids over every split of their layers, with whole layers and the memory of every stage."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.layout import Recompute
from costmodels.pipeline.schedules import Schedule
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds.option_memory import Held, OptionMemory
from planner.bounds.step_time import Work, step_lower_bound_s, with_jitter_s
from planner.layouts.expand import pinned_virtual
from planner.layouts.grids import Grids
from planner.request import PlanRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class Works:
    """Seconds of R grids under one option.

    Attributes
    ----------
    alike : Work
        At most the work when all layers use the option, or some of them recompute more.
    mixed : tuple of Work and ndarray, optional
        Where layers may recompute in full instead: at most the work before that, and the seconds that a layer of each
        kind takes longer when it recomputes, shape (kinds, R).
    """

    alike: Work
    mixed: tuple[Work, Floats] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitBounds:
    """Bounds of S grids over every split, whatever seconds their parts take.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Model, job, island.
    accepted : Verdict
        What still fits: safely (``FITS``), or at all (``RISKY``).
    grids : Grids
        The S grids.
    """

    request: PlanRequest
    pricing: Pricing
    accepted: Verdict
    grids: Grids

    def option_s(self, rows: Ints, option: Recompute, works: Works, limit_s: float) -> Floats:
        """Least time of any split of some grids under one option.

        Parameters
        ----------
        rows : ndarray of int
            Which grids, shape (R,).
        option : Recompute
            What the layers recompute, or those that do not recompute in full.
        works : Works
            Of the R grids.
        limit_s : float
            Times above it need not be told from infinity [s].

        Returns
        -------
        ndarray
            Seconds, shape (R,); infinite where no split fits the memory.
        """
        gpus = self.grids.gpus[rows]
        chunks = [chunked for chunked in (False, True) if self._allows[chunked].any()]
        bounds = {chunked: self._step_s(works.alike, rows, chunked=chunked) for chunked in chunks}
        out = np.full(len(rows), np.inf)
        near = np.flatnonzero(np.any([with_jitter_s(bound, gpus) <= limit_s for bound in bounds.values()], axis=0))
        if not near.size:
            return out
        held = self._memory.held(self.grids.take(rows[near]), option, mixed=works.mixed is not None)
        for chunked, bound in bounds.items():
            some = np.flatnonzero(bound[near] <= limit_s)
            if some.size:
                mine, index = held.take(some, chunked=chunked), near[some]
                found = self._alike_s(mine, works.alike.take(index), bound[index], limit_s)
                if works.mixed is not None:
                    mixed = works.mixed[0].take(index), works.mixed[1][:, index]
                    found = np.minimum(found, self._mixed_s(mine, rows[index], mixed, limit_s))
                out[index] = np.minimum(out[index], found)
        return with_jitter_s(out, gpus)

    def _alike_s(self, held: Held, work: Work, bound_s: Floats, limit_s: float) -> Floats:
        """Least time when all layers use one option; shape (R,)."""
        plain = held.without_choice()
        if len(work.counts) > 1:
            bound_s = np.where(self._memory.recomputed_layers(plain) > 0.0, np.inf, bound_s)
        return self._memory.capacity_s(plain, work, np.zeros_like(work.layer_s), bound_s, limit_s)

    def _mixed_s(self, held: Held, rows: Ints, mixed: tuple[Work, Floats], limit_s: float) -> Floats:
        """Least time when at least one layer recomputes in full and the others do nothing; shape (R,)."""
        work, again_s = mixed
        layers = np.maximum(self._memory.recomputed_layers(held), 1.0)
        possible = np.isfinite(layers)
        work = work.plus(np.where(possible, layers, 0.0) * again_s.min(axis=0))
        bound = np.where(possible, self._step_s(work, rows, chunked=held.chunked), np.inf)
        return self._memory.capacity_s(held, work, again_s, bound, limit_s)

    @cached_property
    def _memory(self) -> OptionMemory:
        return OptionMemory(pricing=self.pricing, accepted=self.accepted, schedule=self.request.schedule)

    @cached_property
    def _allows(self) -> tuple[Bools, Bools]:
        """Whether the stages of a grid may have one chunk each, and several, shapes (S,)."""
        one = np.full(len(self.grids), pinned_virtual(self.request) in (None, 1) or not _loops(self.request))
        several = ~one_chunk_only(self.request, self.grids.table.pp, self.grids.num_microbatches)
        return one, several

    def _step_s(self, work: Work, rows: Ints, *, chunked: bool) -> Floats:
        """Bound the pipelines of some grids, with whole layers; infinite where the chunks are not allowed; (R,)."""
        grids, plain = self.grids, np.full(len(rows), not chunked)
        schedule = self.request.schedule
        bound = step_lower_bound_s(work, grids.table.pp[rows], grids.num_microbatches[rows], plain, schedule)
        return np.where(self._allows[chunked][rows], bound, np.inf)


def one_chunk_only(request: PlanRequest, pp: Ints, num_microbatches: Ints) -> Bools:
    """Whether pipelines cannot interleave: pinned, without a pipeline, in a V, or with micro-batches left over."""
    alone = pinned_virtual(request) == 1 or not _loops(request)
    if request.schedule is Schedule.LOOPED_BFS:  # with several chunks whatever the micro-batches
        return np.asarray(pp == 1)
    return np.asarray((pp == 1) | (num_microbatches % pp != 0) | alone)


def _loops(request: PlanRequest) -> bool:
    """Whether several chunks of a stage mean that micro-batches pass the stages in a loop, not in a V."""
    return request.schedule is None or not request.schedule.is_v
