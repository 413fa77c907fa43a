"""Layouts over islands of unlike machines: each stage on one island, the layers split by the islands' speeds.

All stages have the same number of GPUs and the same strategy (what Megatron-like frameworks can launch); an island
takes as many stages as its GPUs allow. In the order of bounds on every strategy with the islands in every order
(:mod:`planner.search.island_frontier`) the split of the layers is solved, with one chunk per stage and with several,
until the next bound is too slow.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Final

import numpy as np

from costmodels.layout import Layout
from costmodels.memory import usable_memory
from costmodels.pipeline.inflight import in_flight_total
from costmodels.pipeline.schedules import PipelineSpec
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from planner.inter_op.chunks import ChunkProblem, Chunks
from planner.inter_op.costs import Position
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages
from planner.layouts.build import schedule_of, uniform_stages, with_strategies
from planner.layouts.expand import lone_ends, pinned_virtual
from planner.layouts.grids import Grids, divisors, enumerate_grids, groups_allowed
from planner.layouts.recompute_options import requested_options
from planner.layouts.shard_groups import group_sizes
from planner.request import PlanRequest
from planner.rules import broken_rules, request_mask
from planner.search.effort import GRID_S, ISLAND_SPLIT_S, LAYOUT_S, Until
from planner.search.island_frontier import IslandFrontier, Open, Shape
from planner.search.stage_table import PartSizes, StagePlace, chunk_ends, layer_runs, span_costs_s
from planner.search.uneven import BEST_SPLITS, every_chunk_split

FULLEST_SHARE: Final = 0.9  # of the usable memory that parts may take in the table; prices judge the rest
GRACE_S: Final = 1.0  # for a first layout where none is known
MOST_ORDERS: Final = 24  # of the islands that are looked at
VIRTUAL: Final = (1, 2, 3, 4, 6, 8)  # chunks per stage that are tried
LARGEST_IDLE_SHARE: Final = 0.25  # of an island's GPUs that a stage size may leave idle


@dataclass(frozen=True, kw_only=True)
class IslandPlan:
    """A layout over several islands with its price."""

    layout: Layout
    cost: LayoutCost


def island_orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Return the orders of so many islands that are looked at: all, or the first :data:`MOST_ORDERS`."""
    return tuple(islice(permutations(range(count)), MOST_ORDERS))


class IslandSearch:
    """One search over all islands of a cluster together.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricings : sequence of Pricing
        One per island.
    known_s : sequence of float
        Step times of layouts that are in the ranking already [s].
    until : Until
        Its end.
    """

    def __init__(
        self, request: PlanRequest, pricings: Sequence[Pricing], known_s: Sequence[float], until: Until
    ) -> None:
        self.request = request
        self.pricings = tuple(pricings)
        self.known_s = list(known_s)
        self.until = until
        self.grace = until.beyond(until.after(GRACE_S))
        self.enumerated = 0
        self.solved = 0
        self.pruned = 0
        self.unreached = 0  # in time
        self.open_bound_s = float("inf")  # least time of any layout over the islands, as far as is proven

    def run(self) -> list[IslandPlan]:
        """Best layouts over all islands, best first, one for each grid.

        Where nothing is known yet the search goes on for :data:`GRACE_S` after its end, until it has found something.
        """
        best: dict[tuple[int, ...], IslandPlan] = {}
        frontier = self._frontier()
        while frontier is not None:
            entry = frontier.take(self._limit_s(best), self._until(best))
            if entry is None:
                break
            self.open_bound_s = min(self.open_bound_s, entry.bound_s)
            held = best.get(entry.key)
            limit_s = min(self._limit_s(best), held.cost.step.total_s if held else float("inf"))
            if entry.bound_s <= limit_s:
                fastest = min(self._solve(entry, limit_s), key=lambda plan: plan.cost.step.total_s, default=None)
                if fastest is not None and fastest.cost.step.total_s < limit_s:
                    best[entry.key] = fastest
        if frontier is not None:
            self.open_bound_s = min(self.open_bound_s, frontier.least_s)
            ended = self._until(best).late() and frontier.least_s <= self._limit_s(best)
            self.pruned, self.unreached = (0, frontier.left) if ended else (frontier.left, 0)
        ranked = sorted(best.values(), key=lambda plan: plan.cost.step.total_s)[: self.request.top]
        if self.until.late():
            return ranked
        return sorted(map(self._with_best_group, ranked), key=lambda plan: plan.cost.step.total_s)

    def _until(self, best: Mapping[tuple[int, ...], IslandPlan]) -> Until:
        """When the search ends."""
        return self.until if self.known_s or best else self.grace

    def _limit_s(self, best: Mapping[tuple[int, ...], IslandPlan]) -> float:
        """Time beyond which nothing can enter the ranking any more."""
        times = sorted([*self.known_s, *(plan.cost.step.total_s for plan in best.values())])
        return times[self.request.top - 1] if len(times) >= self.request.top else float("inf")

    def _frontier(self) -> IslandFrontier | None:
        """Every strategy in every order of the islands; None where there is none, or no time to look."""
        pinned = self.request.fixed_degree("pp")
        shapes = []
        for stage_gpus in self._stage_sizes():
            if self._until({}).late():
                self.open_bound_s = 0.0  # nothing is known of sizes that were not looked at
                return None
            stages = tuple(pricing.island.gpus // stage_gpus for pricing in self.pricings)
            if pinned in (None, sum(stages)):
                shapes.append(Shape(grids=self._grids(stage_gpus, sum(stages)), stages=stages))
        shapes = [shape for shape in shapes if len(shape.grids)]
        options = requested_options(self.request, self.pricings[0])
        return IslandFrontier(self.pricings, options, island_orders(len(self.pricings)), shapes) if shapes else None

    def _stage_sizes(self) -> tuple[int, ...]:
        """GPUs of a stage such that every island holds stages and leaves few GPUs idle."""
        gpus = [pricing.island.gpus for pricing in self.pricings]
        layers = self.request.model.layers
        sizes = sorted({size for count in gpus for size in divisors(count)})
        return tuple(
            size
            for size in sizes
            if sum(count // size for count in gpus) <= layers
            and all(count >= size and count % size <= LARGEST_IDLE_SHARE * count for count in gpus)
        )

    def _grids(self, stage_gpus: int, pp: int) -> Grids:
        pinned = replace(self.request, fixed=tuple((dict(self.request.fixed) | {"pp": pp}).items()))
        grids = enumerate_grids(pinned, stage_gpus * pp)
        self.enumerated += len(grids)
        self.until.spend(GRID_S * len(grids))
        legal = request_mask(self.request, grids.table).ok
        return grids.take(np.flatnonzero(legal))

    def _solve(self, entry: Open, limit_s: float) -> Iterator[IslandPlan]:
        """Splits of one row for every number of chunks; those too slow, not legal or not safe are left out."""
        sizes = entry.rows.sizes(entry.row)
        for vpp in self._virtual_degrees(entry):
            self.solved += 1
            self.until.spend(ISLAND_SPLIT_S)
            hosts = entry.rows.hosts(entry.order)
            for chunks in self._splits(entry, sizes, vpp):
                if entry.rows.step_s(entry.row, hosts, chunks, limit_s) > limit_s:
                    continue
                plan = self._priced(self._layout(entry, chunks))
                if plan is not None:
                    yield plan

    def _priced(self, layout: Layout) -> IslandPlan | None:
        """Return a layout with its price; None where it is not legal or not safe."""
        if broken_rules(layout, self.request):
            return None
        self.until.spend(LAYOUT_S)
        cost = price_layout(self.pricings, layout)
        return IslandPlan(layout=layout, cost=cost) if all(use.verdict is Verdict.FITS for use in cost.memory) else None

    def _with_best_group(self, plan: IslandPlan) -> IslandPlan:
        """Return a plan with ZeRO over the groups of ranks that make it fastest; bounds know nothing of them."""
        first = plan.layout.first
        tiers = [tier for pricing in self.pricings for tier in pricing.tiers]
        free = self.request.fixed_degree("shard_group") is None and first.zero
        sizes = group_sizes(first.dp * first.cp, first.tp, first.ep * first.etp, tiers) if free else ()
        sizes = tuple(size for size in sizes if groups_allowed(self.request, size))
        grouped = (self._priced(with_strategies(plan.layout, shard_group=size)) for size in sizes)
        return min([plan, *filter(None, grouped)], key=lambda one: one.cost.step.total_s)

    def _virtual_degrees(self, entry: Open) -> tuple[int, ...]:
        pinned = pinned_virtual(self.request)
        if pinned is not None:
            return (pinned,) if pinned == 1 or self._interleaves(entry) else ()
        most = (self.request.model.layers + lone_ends(self.request)) // entry.rows.pp
        return tuple(v for v in VIRTUAL if v == 1 or (v <= most and self._interleaves(entry)))

    def _interleaves(self, entry: Open) -> bool:
        return entry.rows.pp > 1 and int(entry.rows.grids.num_microbatches[entry.row]) % entry.rows.pp == 0

    def _splits(self, entry: Open, sizes: Sequence[PartSizes], vpp: int) -> tuple[Chunks, ...]:
        """Layers of every chunk of every stage as the partitioner sees them, in a few ways."""
        model, hosts = self.request.model, entry.rows.hosts(entry.order)
        m = int(entry.rows.grids.num_microbatches[entry.row])
        schedule = schedule_of(len(hosts), vpp)
        spec = PipelineSpec(schedule=schedule, pp=len(hosts), vpp=vpp, num_microbatches=m)
        held = in_flight_total(spec) / vpp
        limits = [FULLEST_SHARE * usable_memory(self.pricings[island].accelerator) for island in hosts]
        if vpp == 1:
            places = [
                StagePlace(sizes=sizes[island], in_flight=float(flying), limit_bytes=limit)
                for island, flying, limit in zip(hosts, held, limits, strict=True)
            ]
            problem = StageProblem(cost_s=span_costs_s(model, places), objective=one_f_one_b(m))
            plans = partition_stages(problem, k=BEST_SPLITS).plans
            return tuple(tuple((count,) for count in plan.split) for plan in plans)
        reference = sizes[0]
        slower = [float(size.time_s[: size.kinds].sum() / reference.time_s[: size.kinds].sum()) for size in sizes]
        chunked = ChunkProblem(
            runs=layer_runs(model, reference),
            positions=tuple(
                Position(slowdown=slower[island], limit_bytes=limit, in_flight=float(flying))
                for island, flying, limit in zip(hosts, held, limits, strict=True)
            ),
            chunks=vpp,
            micro_batches=m,
            ends=chunk_ends(model, reference),
        )
        return every_chunk_split(chunked, alone=lone_ends(self.request) > 0)

    def _layout(self, entry: Open, chunks: Chunks) -> Layout:
        grids, hosts = entry.rows.grids, entry.rows.hosts(entry.order)
        return Layout(
            stages=uniform_stages(entry.rows.strategy(entry.row), chunks, islands=hosts),
            micro_batch=int(grids.table.micro_batch[entry.row]),
            num_microbatches=int(grids.num_microbatches[entry.row]),
            schedule=schedule_of(len(hosts), len(chunks[0])),
        )
