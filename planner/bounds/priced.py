"""Bounds of grids whose parts are priced: what is left to choose is the split, and which layers recompute in full."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.layer_costs import PartCosts, part_weights
from costmodels.layout import NO_RECOMPUTE
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds.splits import SplitBounds, Works, one_chunk_only
from planner.bounds.step_time import ENDS, Work, part_seconds, part_work, step_lower_bound_s, with_jitter_s
from planner.layouts.expand import Expanded
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
        bound = step_lower_bound_s(self._least, grids.table.pp, grids.num_microbatches, one_chunk)
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
        table, out = self.block.grids.table, np.full(len(rows), np.inf)
        splits = SplitBounds(request=self.request, pricing=self.pricing, accepted=self.accepted, grids=self.block.grids)
        for number in np.unique(table.recompute[rows]).tolist():
            option = table.recomputes[number]
            of_option = np.flatnonzero(table.recompute[rows] == number)
            some = rows[of_option]
            alike, mixed = self._least.take(some), None
            if option == NO_RECOMPUTE and self._may_mix[some].any():
                mixed = alike, self._again_s[:, some]
            out[of_option] = splits.option_s(some, option, Works(alike=alike, mixed=mixed), limit_s)
        return out

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
