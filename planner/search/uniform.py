"""The uniform search: every grid, bounded, priced with its recompute and virtual stages, in order of its lower bound.

A cheap lower bound over every split and recompute orders the grids. Those that come first get a tighter bound under
every recompute option, with whole layers and with the memory, and are priced in its order, until the least bound that
is left exceeds the time of the worst layout still wanted. What is left is pruned by proof: ``docs/search.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.layer_costs import part_weights, price_parts
from costmodels.memory import model_memory
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Floats, Ints
from planner.bounds.option_memory import OptionMemory
from planner.bounds.options import OptionBounds
from planner.bounds.priced import PricedBounds
from planner.bounds.step_time import part_seconds, part_work
from planner.layouts.expand import WITH_ONE_RECOMPUTE, Group, expand, lone_ends, pinned_virtual, pipeline_groups
from planner.layouts.grids import Grids, enumerate_grids, halved_sizes, kernel_table, world_sizes
from planner.layouts.recompute_options import requested_options
from planner.request import PlanRequest
from planner.rules import request_mask
from planner.search.effort import EXPANDED_S, GRID_S, GROUP_S, OPEN_BLOCK_S, OPEN_S, OPERATION_S, Until, from_now
from planner.search.frontier import Frontier
from planner.search.priced_block import PricedBlock
from planner.search.refine import offer_other_splits
from planner.search.smallest import excess_bytes
from planner.search.tally import Tally

FIRST_BLOCK: Final = 128
BLOCK: Final = 512
LATE_BLOCK: Final = 16  # near the end of the time, and after it while nothing fits
HURRY_S: Final = 0.5  # what a larger block may take
GRIDS_KEPT: Final = 10  # at least: which of them is best is decided when their splits are refined


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a search is for.

    Attributes
    ----------
    wanted : int
        Grids to keep; 0: as many as the request wants layouts, and at least :data:`GRIDS_KEPT`.
    limit_s : float
        What need not be found: layouts that take longer [s].
    any_will_do : bool
        Look only under the recompute that keeps least, and stop at the first layouts that fit.
    on_all : bool
        Only the fastest layout counts, and it takes all nodes: fewer are not looked at, what stays open has no bound.
    """

    wanted: int = 0
    limit_s: float = float("inf")
    any_will_do: bool = False
    on_all: bool = False


RANKING: Final = Aim()


class UniformSearch:
    """One search over uniform grids on one island.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricing : Pricing
        Model, job and the island.
    aim : Aim
        What for.
    until : Until, optional
        Default: the request's time limit from now on. After it grids of a first block are priced until one fits.
    """

    def __init__(self, request: PlanRequest, pricing: Pricing, aim: Aim = RANKING, until: Until | None = None) -> None:
        self.request = request
        self.pricing = pricing
        self.aim = aim
        self.weights = part_weights(pricing)
        options = requested_options(request, pricing)
        self.options = options[-1:] if aim.any_will_do else options
        self.accepted = Verdict.FITS
        self.wanted = 1 if aim.any_will_do else aim.wanted or max(request.top, GRIDS_KEPT)
        self.tally = Tally(accepted=self.accepted, wanted=self.wanted)
        self.until = from_now(request.time_limit_s) if until is None else until
        self._gpu_seconds_per_sample: float | None = None

    def run(self, accepted: Sequence[Verdict] = (Verdict.FITS, Verdict.RISKY)) -> Tally:
        """Search for what fits safely, and if there is nothing for what fits with risk; returns what was found.

        Parameters
        ----------
        accepted : sequence of Verdict
            What may fit, in this order, until something is found.
        """
        for verdict in accepted:
            self._search(verdict)
            if not (self.tally.best and self.aim.any_will_do):
                offer_other_splits(self.request, self.pricing, self.tally, self.until)
            if self.tally.best:
                break
        return self.tally

    def _search(self, accepted: Verdict) -> None:
        """Search GPU counts, the whole island first, while fewer can be faster than the last that is kept."""
        self.accepted = accepted
        self.tally = Tally(accepted=accepted, wanted=self.wanted)
        usual = world_sizes(self.pricing.island)
        sizes = (*usual, *halved_sizes(self.pricing.island))
        if self.aim.on_all and self.pricing.island.nodes > 1:
            sizes = usual = usual[:1]
        for number, world in enumerate(sizes):
            if number and self.aim.any_will_do and self.tally.best:
                break
            if number >= len(usual) and not self.tally.best:
                break  # what many GPUs do not hold, few hold less
            limit = self._limit_s()
            if number and np.isfinite(limit) and self._bound_of_fewer_s(world) > limit:
                self.tally.pruned["fewer GPUs: time lower bound (counts of GPUs)"] += len(sizes) - number
                break
            if number and self.until.late():
                self.tally.pruned["fewer GPUs: time limit (counts of GPUs)"] += len(sizes) - number
                self.tally.open_bound_s = min(self.tally.open_bound_s, self._bound_of_fewer_s(world))
                break
            self._search_world(world)

    def _limit_s(self) -> float:
        """Time beyond which a bound rules a grid out, whatever its split."""
        return min(self.aim.limit_s, self.tally.threshold_s())

    def _search_world(self, world: int) -> None:
        grids = self._with_room(self.grids_of(world))
        if len(grids):
            bounds = OptionBounds(
                request=self.request,
                pricing=self.pricing,
                options=self.options,
                accepted=self.accepted,
                grids=grids,
            )
            self._best_first(Frontier(bounds, self.until, grouped=not self.aim.any_will_do))

    def _with_room(self, grids: Grids) -> Grids:
        """Drop grids whose states alone are too large: they are not worth a bound on their time under any option.

        When any layout will do, grids without room under the recompute that keeps least go too.
        """
        if not len(grids):
            return grids
        held = OptionMemory(pricing=self.pricing, accepted=self.accepted).states_fit(grids)
        if self.aim.any_will_do and pinned_virtual(self.request) in (None, 1):
            held &= excess_bytes(self.request, self.pricing, grids, self.options[-1], self.accepted) <= 0.0
        self.tally.pruned["memory lower bound"] += int((~held).sum())
        return grids.take(np.flatnonzero(held))

    def grids_of(self, world: int) -> Grids:
        """Return the legal grids over so many GPUs; the tally counts them and those that are refused."""
        every = enumerate_grids(self.request, world)
        self.until.spend(GRID_S * len(every))
        self.tally.enumerated += len(every)
        verdict = request_mask(self.request, every.table)
        self.tally.rejected.update(dict(verdict.reasons))
        return every.take(np.flatnonzero(verdict.ok))

    def _best_first(self, frontier: Frontier) -> None:
        """Price blocks of grids in the order of their bounds, until the least bound left is too slow."""
        taken = 0
        while True:
            size = LATE_BLOCK if self.until.near(HURRY_S) else BLOCK if taken else FIRST_BLOCK
            grids, known = frontier.take(size, self._limit_s(), grouped=bool(self.tally.best))
            if not len(grids):
                break
            self._evaluate(grids, known)
            taken += len(grids)
            enough = bool(self.tally.best) or taken >= FIRST_BLOCK
            if self.aim.any_will_do and self.tally.best:
                break
            if enough and frontier.least_s <= self._limit_s() and self.until.late():
                break
        if not self.tally.best:
            frontier.drop_groups()
        self.tally.pruned["memory lower bound"] += frontier.without_memory
        if frontier.left:
            ended = frontier.least_s <= self._limit_s() and self.until.late()
            self.tally.pruned["time limit" if ended else "time lower bound"] += frontier.left
            self.tally.open_bound_s = min(self.tally.open_bound_s, frontier.least_s)

    def _evaluate(self, grids: Grids, known: Floats) -> None:
        """Price a block of grids under every virtual degree and the recompute options whose known bounds allow it.

        ``known`` has shape (S, options).
        """
        request = self.request
        wanted = known <= self._limit_s()
        block = expand(grids, self.options, wanted, mixes=request.framework not in WITH_ONE_RECOMPUTE)
        table = block.grids.table
        self.until.spend(EXPANDED_S * len(table))
        costs = price_parts(self.pricing, table)
        asked = wanted[block.grid, table.recompute]
        limit = self._limit_s()
        bounds = PricedBounds(self.request, self.pricing, self.accepted, block, costs)
        bound = np.maximum(bounds.time_s(), known[block.grid, table.recompute])
        rows = np.flatnonzero(asked & (bound <= limit) & (table.pp > 1))
        bound[rows] = np.maximum(bound[rows], bounds.within_memory_s(rows, limit))
        alive = np.flatnonzero(asked & (bound <= limit))
        self.tally.pruned["time lower bound of a variant"] += int(asked.sum()) - len(alive)
        priced = PricedBlock(
            request=request,
            pricing=self.pricing,
            tally=self.tally,
            block=block,
            costs=costs,
            memory=model_memory(request.model, request.job, table, self.pricing.constants.memory),
        )
        ends = lone_ends(request)
        near = block.grids.take(alive)
        groups = pipeline_groups(near, request.model.layers, pinned_virtual(request), ends, request.schedule)
        self._price_groups(priced, [Group(spec=group.spec, rows=alive[group.rows]) for group in groups], bound)
        if not self.aim.on_all:
            self._leave_open(bounds, bound, np.flatnonzero(asked & (table.pp > 1)))

    def _price_groups(self, priced: PricedBlock, groups: list[Group], bound: Floats) -> None:
        """Price groups of a block, until the time has ended and something fits; those of least bound first then."""
        while groups:
            if self.until.late():
                if self.tally.best:
                    break
                groups.sort(key=lambda group: float(bound[group.rows].min()))
            group = groups.pop(0)
            priced.group(group)
            operations = group.spec.pp * group.spec.vpp * group.spec.num_microbatches
            self.until.spend(GROUP_S + OPERATION_S * operations * len(group.rows))
        if groups:
            left = np.unique(np.concatenate([group.rows for group in groups]))
            self.tally.pruned["time limit of a variant"] += len(left)
            self.tally.open_bound_s = min(self.tally.open_bound_s, float(bound[left].min()))

    def _leave_open(self, bounds: PricedBounds, bound: Floats, rows: Ints) -> None:
        """Note the least bound of rows whose layers may be split in ways that are not tried one by one."""
        best_s = self.tally.best_s()
        near = rows[bound[rows] < best_s]
        near = rows[:0] if len(near) and self.until.late() else near
        self.until.spend((OPEN_BLOCK_S if len(near) else 0.0) + OPEN_S * len(near))
        bound[near] = np.maximum(bound[near], np.minimum(bounds.whole_layers_s(near, best_s), best_s))
        self.tally.open_bound_s = min(self.tally.open_bound_s, float(bound[rows].min(initial=np.inf)))

    def _bound_of_fewer_s(self, world: int) -> float:
        """Least time of any layout on ``world`` GPUs.

        Every GPU works ``m W / pp`` with ``m pp = batch world / (micro-batch tp cp pp)``; the least GPU-seconds per
        sample over all kernels' sizes, whatever the pipeline, are computed once.
        """
        if self._gpu_seconds_per_sample is None:
            kernels = kernel_table(self.request, self.pricing.island.gpus)
            costs = price_parts(self.pricing, kernels)
            work = part_work(costs.names, part_seconds(costs), self.weights)
            per_sample = work.total_s * kernels.tp * kernels.cp / kernels.micro_batch
            self._gpu_seconds_per_sample = float(per_sample.min(initial=np.inf))
        return self.request.job.global_batch * self._gpu_seconds_per_sample / world
