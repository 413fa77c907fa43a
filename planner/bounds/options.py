"""Bounds of every grid under every recompute option: time, and whether the memory can hold it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.layer_costs import price_parts
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, REDUCING_ZERO, Recompute
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Floats, Ints
from planner.bounds.option_times import OptionTimes
from planner.bounds.priced import PricedBounds
from planner.bounds.splits import SplitBounds, Works, one_chunk_only
from planner.bounds.step_time import pipeline_bound_s, with_jitter_s
from planner.layouts.expand import WITH_ONE_RECOMPUTE, expand
from planner.layouts.grids import Grids
from planner.request import PlanRequest

PRICED_AT_ONCE: Final = 512  # grids whose parts are priced together


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
        one_chunk = one_chunk_only(self.request, grids.table.pp, grids.num_microbatches)
        schedule = self.request.schedule
        bound = pipeline_bound_s(self._times.least(), grids.table.pp, grids.num_microbatches, one_chunk, schedule)
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

    def with_exchanges_s(self, grids: Grids, known_s: Floats, limit_s: float) -> Floats:
        """Raise bounds of grids by what their ZeRO stages exchange for every micro-batch; shape (R, O).

        Parameters
        ----------
        grids : Grids
            R grids, over whatever group of ranks they shard.
        known_s : ndarray
            Bounds that are known under each option [s], shape (R, O).
        limit_s : float
            Bounds above it stay as they are [s].
        """
        out = known_s.copy()
        near = np.flatnonzero((grids.table.zero >= REDUCING_ZERO) & (known_s.min(axis=1, initial=np.inf) <= limit_s))
        mixes = self.request.framework not in WITH_ONE_RECOMPUTE
        for first in range(0, len(near), PRICED_AT_ONCE):
            rows = near[first : first + PRICED_AT_ONCE]
            wanted = known_s[rows] <= limit_s
            block = expand(grids.take(rows), self.options, wanted, mixes=mixes)
            costs = price_parts(self.pricing, block.grids.table)
            time_s = PricedBounds(self.request, self.pricing, self.accepted, block, costs).time_s()
            raised = np.zeros(wanted.shape)
            raised[block.grid, block.grids.table.recompute] = time_s
            out[rows] = np.maximum(out[rows], np.where(wanted, raised, 0.0))
        return out

    def _option_s(self, number: int, rows: Ints, limit_s: float) -> Floats:
        """Least time of any split of some grids under one option, infinite where none fits; shape (R,)."""
        option, work = self.options[number], self._times.work(number, rows)
        mixed = self._times.mixed(rows) if option == NO_RECOMPUTE and FULL_RECOMPUTE in self.options else None
        return self._splits.option_s(rows, option, Works(alike=work, mixed=mixed), limit_s)

    @cached_property
    def _times(self) -> OptionTimes:
        return OptionTimes(pricing=self.pricing, options=self.options, grids=self.grids)

    @cached_property
    def _splits(self) -> SplitBounds:
        return SplitBounds(request=self.request, pricing=self.pricing, accepted=self.accepted, grids=self.grids)
