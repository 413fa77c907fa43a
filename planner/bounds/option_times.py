"""Work of every grid under every recompute option, as bounds take it: priced once for each distinct size of kernels."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from costmodels.compute.local import Grid, grid_of
from costmodels.host_waits import IN_TURN, MEETING, host_of_wait_s, pass_s
from costmodels.layer_costs import PartCosts, part_weights, price_parts, repeated_s
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, REDUCING_ZERO, Granularity, Recompute
from costmodels.part_ops import part_names
from costmodels.power import accelerator as power
from costmodels.pricing import Pricing
from costmodels.table import Floats, Ints
from costmodels.works import DEVICE_WORKS, EXCHANGE_WORKS, Work
from planner.bounds.step_time import ENDS, part_work
from planner.bounds.step_time import Work as ModelWork
from planner.layouts.grids import Grids


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """Seconds of each part per micro-batch under D kernel sizes, shape (K, D), at ZeRO 0 and under one recompute.

    ``exact`` is the price, or nothing above it. More exchanges leave more power to the compute beside them and hide
    waits for the host: ``low`` is at most what a part can then take, and ``busy`` adds up to at most what the whole
    model can.
    """

    exact: Floats
    busy: Floats
    low: Floats

    def plus(self, more_s: Floats) -> "_Parts":
        """Parts that compute ``more_s`` longer."""
        return _Parts(exact=self.exact + more_s, busy=self.busy + more_s, low=self.low + more_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionTimes:
    """Bounds on the work of S grids under O recompute options.

    Seconds of a part per micro-batch depend on the degrees that decide a rank's kernels alone, so they are priced once
    for each of the D distinct ones, whatever pp, dp and ZeRO stage. Arrays have 2 D columns: for grids whose exchanges
    are all priced, then for those whose ZeRO stage exchanges more.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island.
    options : tuple of Recompute
        Recompute choices.
    grids : Grids
        The S grids.
    """

    pricing: Pricing
    options: tuple[Recompute, ...]
    grids: Grids

    def least(self) -> ModelWork:
        """At most the work of every grid under any option, rows S."""
        works = self._works
        total, first, last, layer = (
            np.min([getattr(work, name) for work in works], axis=0)
            for name in ("total_s", "first_s", "last_s", "layer_s")
        )
        return replace(works[0], total_s=total, first_s=first, last_s=last, layer_s=layer).take(self._columns)

    def work(self, option: int, rows: Ints) -> ModelWork:
        """At most the work of some grids when all layers use an option, rows R."""
        return self._works[option].take(self._columns[rows])

    def mixed(self, rows: Ints) -> tuple[ModelWork, Floats]:
        """At most the work of some grids when layers recompute in full or do nothing, and what recomputing adds.

        Returns
        -------
        tuple of Work and ndarray
            Rows R; seconds that a layer of each kind takes longer when it recomputes, shape (kinds, R).
        """
        none, full = (self._parts[self.options.index(option)] for option in (NO_RECOMPUTE, FULL_RECOMPUTE))
        is_layer = np.array([name not in ENDS for name in part_names(self.pricing)])
        known, again = (_sharded_too(parts.exact, parts.low) for parts in (none, full))
        columns = self._columns[rows]
        dearer = np.maximum(again - known, 0.0)[is_layer][:, columns]
        return self._work(np.minimum(known, again)).take(columns), dearer

    @cached_property
    def _kernels(self) -> Grid:
        """The distinct degrees that decide kernels, and which of them a grid has."""
        return grid_of(self.grids.table)

    @cached_property
    def _columns(self) -> Ints:
        distinct = len(self._kernels.first)
        return np.asarray(self._kernels.inverse + distinct * (self.grids.table.zero >= REDUCING_ZERO))

    @cached_property
    def _parts(self) -> tuple[_Parts, ...]:
        """Parts under every option; those of full recompute are priced, as it repeats exchanges too."""
        table = self.grids.table.take(self._kernels.first)
        size = len(table)
        twice = table.take(np.tile(np.arange(size), 2))  # one table: what they share is priced once
        costs = price_parts(
            self.pricing,
            replace(
                twice,
                zero=np.zeros_like(twice.zero),
                recompute=np.repeat([0, 1], size),
                recomputes=(NO_RECOMPUTE, FULL_RECOMPUTE),
            ),
        )
        plain, full = self._of(costs, slice(None, size)), self._of(costs, slice(size, None))
        found = []
        for option, more in zip(self.options, repeated_s(self.pricing, table, self.options), strict=True):
            parts = plain.plus(more)
            if option.granularity is Granularity.FULL:
                parts = replace(full, low=np.maximum(full.low, parts.low))
            elif "moe" in option.modules or option.per_op:  # exchanges again: a wait hides, the clock rises
                parts = replace(parts, exact=parts.low)
            found.append(parts)
        return tuple(found)

    def _of(self, costs: PartCosts, rows: slice) -> _Parts:
        model, clock = power.power_model(self.pricing.accelerator), costs.clock[rows]
        shape = costs.dense_parameters[:, rows].shape
        exact, low, busy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        exponent = IN_TURN if self.pricing.job.software.blocking_launches else MEETING
        for times in (costs.forward_s[:, :, rows], costs.backward_s[:, :, rows]):
            total = times.sum(axis=0)
            device, exchange = times[list(DEVICE_WORKS)].sum(axis=0), times[list(EXCHANGE_WORKS)].sum(axis=0)
            lead = costs.hosts_run_on[rows] * times[Work.TP]
            beside = exchange - lead
            once = times[Work.RECOMPUTE] == 0.0  # a pass of its own, whose host takes at least as long as if they met
            host = np.where(once, host_of_wait_s(device + beside, times[Work.LAUNCH], exponent), 0.0)
            exact += total
            low += lead + pass_s(clock * device + beside, host, exponent)
            busy += device + exchange
        # Below the clock at which the voltage stops to fall, less power can mean more energy: nothing is sure then.
        rising = clock >= 1.0 - (1.0 - model.voltage_floor) / model.voltage_slope
        return _Parts(exact=exact, busy=np.where(rising, busy, 0.0), low=low)

    @cached_property
    def _works(self) -> tuple[ModelWork, ...]:
        """Work of the model under every option, 2 D columns each."""
        return tuple(
            self._work(_sharded_too(parts.exact, parts.low), _sharded_too(parts.busy, parts.busy))
            for parts in self._parts
        )

    def _work(self, pieces_s: Floats, busy_s: Floats | float = 0.0) -> ModelWork:
        """Work of the model from seconds of shape (K, columns): the sum of its pieces, or what is sure of all."""
        weights = part_weights(self.pricing)
        work = part_work(part_names(self.pricing), pieces_s, weights)
        return replace(work, total_s=np.maximum(work.total_s, weights @ (busy_s + np.zeros_like(pieces_s))))


def _sharded_too(exact: Floats, low: Floats) -> Floats:
    """Columns of grids whose exchanges are all priced, then of those whose ZeRO stage exchanges more."""
    return np.concatenate([exact, low], axis=1)
