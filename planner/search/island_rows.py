"""Candidates of one stage size over several islands: prices on each island, lower bounds for each order of islands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.layer_costs import PartCosts, part_weights, price_parts
from costmodels.layout import Strategy
from costmodels.memory import ModelMemory, model_memory
from costmodels.part_ops import part_names
from costmodels.pipeline.schedules import PipelineSpec
from costmodels.positions import Contents, part_counts
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.step import price_steps, stage_work, staircase_bound_s
from costmodels.table import Bools, Floats, Ints
from planner.bounds.memory import Flight, stage_room
from planner.bounds.stage_capacity import Layers, Pipelines, capacity_bound_s, memory_holds
from planner.bounds.step_time import Work, part_seconds, part_work, with_jitter_s
from planner.layouts.build import schedule_of
from planner.layouts.grids import Grids
from planner.search.stage_table import PartSizes, part_sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class IslandRows:
    """R strategies, all with stages of the same number of GPUs.

    Parameters
    ----------
    pricings : tuple of Pricing
        One per island; they share model and job.
    grids : Grids
        The R strategies, with their recompute.
    stages : tuple of int
        Stages of each island.
    """

    pricings: tuple[Pricing, ...]
    grids: Grids
    stages: tuple[int, ...]

    @property
    def pp(self) -> int:
        """Stages of all islands together."""
        return sum(self.stages)

    def hosts(self, order: Sequence[int]) -> tuple[int, ...]:
        """Island of every stage when the islands come in an order."""
        return tuple(island for island in order for _ in range(self.stages[island]))

    def strategy(self, row: int) -> Strategy:
        """Strategy of a row."""
        return self.grids.table.strategy(row)

    def sizes(self, row: int) -> tuple[PartSizes, ...]:
        """Sizes of the model's parts under a row on every island."""
        return tuple(part_sizes(cost, self._memory, row) for cost in self._costs)

    def step_s(
        self, row: int, hosts: Sequence[int], chunks: Sequence[Sequence[int]], limit_s: float = float("inf")
    ) -> float:
        """Step time of a row whose stages lie on islands ``hosts`` and hold ``chunks``, as a full price has it.

        Infinite where a bound on it exceeds ``limit_s``.
        """
        pp, vpp = len(hosts), len(chunks[0])
        spec = PipelineSpec(
            schedule=schedule_of(pp, vpp), pp=pp, vpp=vpp, num_microbatches=int(self.grids.num_microbatches[row])
        )
        layers = np.array([chunks[stage][chunk] for chunk in range(vpp) for stage in range(pp)])
        contents = Contents(
            spec=spec,
            rows=np.array([[row]]),
            counts=part_counts(self.pricings[0].model, layers)[None, :, None, :],
            islands=tuple(hosts),
        )
        work = stage_work(self._costs, contents)
        if staircase_bound_s(work, spec)[0] > limit_s:
            return float("inf")
        return float(price_steps(self.pricings, self._costs, contents, work).total_s[0])

    def holds(self, order: Sequence[int]) -> Bools:
        """Whether the memory of the islands in an order may hold the layers of every row, shape (R,)."""
        hosts, count = np.array(self.hosts(order)), len(self.grids)
        free = np.zeros(count)
        model = self.pricings[0].model
        counts = part_weights(self.pricings[0])[: len(model.kinds())].astype(int).tolist()
        work = Work(
            total_s=free, first_s=free, last_s=free, layer_s=np.zeros((len(counts), count)), counts=tuple(counts)
        )
        pipelines, kinds = self._pipelines(hosts, [work] * len(self.pricings))
        return np.asarray(np.all([memory_holds(pipelines, layers) for layers in kinds], axis=0))

    def bound_s(self, order: Sequence[int]) -> Floats:
        """Least time of any layout of every row with its islands in an order; infinite where none can fit; shape (R,).

        The mean over the stages, each at the speed of its island, raised by what the stages can hold in whole layers.

        Notes
        -----
        A stage on island j takes at least ``r w_j`` for work that takes r on island 0, ``w_j`` the least ratio over
        the parts. From ``T >= m t_s + d_s``, d_s the first chunks of the stages before s, and ``sum r_s = W``:
        ``T >= (m W + sum d_s / w_s) / sum 1 / w_s``.
        """
        hosts = np.array(self.hosts(order))
        pipelines, kinds = self._pipelines(hosts, self._works)
        m = self.grids.num_microbatches
        ratio = self._ratios[:, hosts]
        between = np.cumsum(pipelines.shortest_s, axis=1) - pipelines.shortest_s - pipelines.shortest_s[:, :1]
        before = np.where(np.arange(len(hosts)) > 0, pipelines.first_s[:, None] + between, 0.0)
        mean = (m * self._work_s + (before / ratio).sum(axis=1)) / (1.0 / ratio).sum(axis=1)
        bound = np.asarray(mean)
        for layers in kinds:
            finite = np.flatnonzero(np.isfinite(bound))
            raised = np.full_like(bound, np.inf)
            if finite.size:
                raised[finite] = capacity_bound_s(pipelines.take(finite), layers.take(finite), bound[finite], np.inf)
            bound = raised
        return with_jitter_s(bound, self.grids.gpus)

    @cached_property
    def _costs(self) -> tuple[PartCosts, ...]:
        return tuple(price_parts(pricing, self.grids.table) for pricing in self.pricings)

    @cached_property
    def _memory(self) -> ModelMemory:
        first = self.pricings[0]
        return model_memory(first.model, first.job, self.grids.table, first.constants.memory)

    @cached_property
    def _work_s(self) -> Floats:
        """Seconds of the whole model per micro-batch on island 0, shape (R,)."""
        return np.asarray(part_weights(self.pricings[0]) @ part_seconds(self._costs[0]))

    @cached_property
    def _ratios(self) -> Floats:
        """Least time of any part on an island over its time on island 0, shape (R, islands)."""
        first = np.maximum(part_seconds(self._costs[0]), 1e-30)
        ratios = [(part_seconds(cost) / first).min(axis=0, where=first > 1e-12, initial=np.inf) for cost in self._costs]
        return np.stack(ratios, axis=1)

    @cached_property
    def _works(self) -> tuple[Work, ...]:
        """Work of every row on every island."""
        names, weights = part_names(self.pricings[0]), part_weights(self.pricings[0])
        return tuple(part_work(names, part_seconds(cost), weights) for cost in self._costs)

    def _pipelines(self, hosts: Ints, works: Sequence[Work]) -> tuple[Pipelines, tuple[Layers, ...]]:
        """Rows as pipelines whose stages lie on islands ``hosts``, and the layers of every kind."""
        names = part_names(self.pricings[0])
        flight = Flight(np.full(len(self.grids), len(hosts)), self.grids.num_microbatches, chunked=False)
        in_flight = np.minimum(self.grids.num_microbatches, len(hosts))
        rooms = [stage_room(pricing, self._memory, names, Verdict.FITS, in_flight) for pricing in self.pricings]
        by_stage = np.stack([work.layer_s for work in works], axis=-1)[:, :, hosts]  # (kinds, R, pp)
        first, last = rooms[hosts[0]], rooms[hosts[-1]]
        pipelines = Pipelines(
            flight=flight,
            first_s=works[hosts[0]].first_s,
            last_s=works[hosts[-1]].last_s,
            shortest_s=by_stage.min(axis=0),
            room_bytes=np.stack([room.room_bytes for room in rooms], axis=1)[:, hosts],
            first_bytes=first.first_bytes,
            last_bytes=last.last_bytes,
        )
        nothing = np.zeros(len(self.grids))
        layers = tuple(
            Layers(
                count=count,
                layer_s=by_stage[kind],
                states_bytes=first.states_bytes[kind],
                kept_bytes=first.kept_bytes[kind],
                again_s=nothing,
                saved_bytes=nothing,
            )
            for kind, count in enumerate(works[0].counts)
        )
        return pipelines, layers
