"""Layouts over islands of unlike machines: each stage on one island, the layers split by the islands' speeds.

All stages have the same number of GPUs and the same strategy (what Megatron-like frameworks can launch); an island
takes as
many stages as its GPUs allow. The order of the islands and the split of the layers are solved exactly for every grid.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import numpy as np

from costmodels.layer_costs import PartCosts, part_weights, price_parts
from costmodels.layout import Layout
from costmodels.memory import ModelMemory, model_memory, usable_memory
from costmodels.pipeline.schedules import Schedule
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from costmodels.table import Floats
from planner.build import uniform_stages
from planner.expand import expand
from planner.grids import Grids, divisors, enumerate_grids
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages
from planner.recompute_options import recompute_options
from planner.request import PlanRequest
from planner.rules import legal_mask
from planner.stage_table import PartSizes, StagePlace, part_sizes, span_costs_s

LONGEST_SHARE: Final = (
    1.35  # by how much the partitioner's objective may exceed the schedule (costmodels.pipeline.bounds)
)
FULLEST_SHARE: Final = 0.9  # of the usable memory that parts may take in the table; prices judge the rest


@dataclass(frozen=True, kw_only=True)
class IslandPlan:
    """A layout over several islands with its price."""

    layout: Layout
    cost: LayoutCost


class IslandSearch:
    """One search over all islands of a cluster together."""

    def __init__(
        self, request: PlanRequest, pricings: Sequence[Pricing], known_s: Sequence[float], deadline: float
    ) -> None:
        self.request = request
        self.pricings = pricings
        self.known_s = list(known_s)  # step times of layouts that are already in the ranking
        self.deadline = deadline
        self.enumerated = 0
        self.solved = 0

    def run(self) -> list[IslandPlan]:
        """Best layouts over all islands, best first, one for each grid."""
        found: list[IslandPlan] = []
        for stage_gpus in self._stage_sizes():
            found += self._of_stage_size(stage_gpus)
        found.sort(key=lambda plan: plan.cost.step.total_s)
        return found[: self.request.top]

    def _stage_sizes(self) -> tuple[int, ...]:
        """GPUs of a stage such that every island holds whole stages."""
        common = int(np.gcd.reduce([pricing.island.gpus for pricing in self.pricings]))
        layers = self.request.model.layers
        gpus = self.request.cluster.gpus
        return tuple(size for size in divisors(common) if gpus // size <= layers)

    def _of_stage_size(self, stage_gpus: int) -> list[IslandPlan]:
        pp = self.request.cluster.gpus // stage_gpus
        pinned = self.request.fixed_degree("pp")
        if pinned is not None and pinned != pp:
            return []
        grids = self._grids(stage_gpus, pp)
        if not len(grids):
            return []
        options = recompute_options(self.request.recompute, self.request.framework, self.pricings[0])
        block = expand(grids, options, np.ones((len(grids), len(options)), dtype=np.bool_)).grids
        costs = [price_parts(pricing, block.table) for pricing in self.pricings]
        memory = model_memory(self.request.model, self.request.job, block.table, self.pricings[0].constants.memory)
        best: dict[tuple[int, ...], IslandPlan] = {}
        bound = self._bound_s(block, costs)
        for row in np.argsort(bound, kind="stable"):
            if bound[row] > self._threshold_s() or time.monotonic() > self.deadline:
                break
            for plan in self._solve(block, int(row), costs, memory):
                self.known_s.append(plan.cost.step.total_s)
                first = plan.layout.first
                key = (first.tp, first.cp, first.dp, first.ep, first.etp, pp)
                held = best.get(key)
                if held is None or plan.cost.step.total_s < held.cost.step.total_s:
                    best[key] = plan
        return list(best.values())

    def _grids(self, stage_gpus: int, pp: int) -> Grids:
        every = enumerate_grids(self.request, stage_gpus * pp)
        grids = every.take(np.flatnonzero(every.table.pp == pp))
        self.enumerated += len(grids)
        legal = legal_mask(self.request.framework, grids.table, self.request.model, self.request.job).ok
        return grids.take(np.flatnonzero(legal))

    def _threshold_s(self) -> float:
        """Time beyond which nothing can enter the ranking any more."""
        times = sorted(self.known_s)
        return times[self.request.top - 1] if len(times) >= self.request.top else float("inf")

    def _bound_s(self, block: Grids, costs: Sequence[PartCosts]) -> Floats:
        """Lower bound of every row: ``m / sum_i (pp_i / W_i)``, W_i the model's work at the speed of island i."""
        weights = part_weights(self.pricings[0])
        stages = np.zeros(len(block))
        for number, cost in enumerate(costs):
            work = weights @ (cost.forward_s + cost.backward_s).sum(axis=0)
            stages += self.pricings[number].island.gpus / (block.table.tp * block.table.cp * block.table.dp) / work
        return np.asarray(block.num_microbatches / stages)

    def _solve(self, block: Grids, row: int, costs: Sequence[PartCosts], memory: ModelMemory) -> Iterator[IslandPlan]:
        """Best split of one row for every order of the islands; what does not fit safely is left out."""
        pp, m = int(block.table.pp[row]), int(block.num_microbatches[row])
        sizes = [part_sizes(cost, memory, row) for cost in costs]
        for order in permutations(range(len(self.pricings))):
            hosts = [island for island in order for _ in range(self._stages_of(island, block, row))]
            problem = StageProblem(
                cost_s=span_costs_s(self.request.model, self._places(hosts, sizes, min(m, pp), m)),
                objective=one_f_one_b(m),
            )
            plan = partition_stages(problem).best
            self.solved += 1
            if plan is None or plan.step_s > LONGEST_SHARE * self._threshold_s():
                continue
            layout = self._layout(block, row, plan.split, hosts)
            cost = price_layout(self.pricings, layout)
            if all(use.verdict is Verdict.FITS for use in cost.memory):
                yield IslandPlan(layout=layout, cost=cost)

    def _stages_of(self, island: int, block: Grids, row: int) -> int:
        table = block.table
        stage_gpus = int(table.tp[row] * table.cp[row] * table.dp[row])
        return self.pricings[island].island.gpus // stage_gpus

    def _places(self, hosts: Sequence[int], sizes: Sequence[PartSizes], most: int, m: int) -> list[StagePlace]:
        return [
            StagePlace(
                sizes=sizes[island],
                in_flight=float(min(most, m, len(hosts) - number)),
                limit_bytes=FULLEST_SHARE * usable_memory(self.pricings[island].accelerator),
            )
            for number, island in enumerate(hosts)
        ]

    def _layout(self, block: Grids, row: int, split: Sequence[int], hosts: Sequence[int]) -> Layout:
        strategy = block.table.strategy(row)
        return Layout(
            stages=uniform_stages(strategy, [(count,) for count in split], islands=hosts),
            micro_batch=int(block.table.micro_batch[row]),
            num_microbatches=int(block.num_microbatches[row]),
            schedule=Schedule.ONE_F_ONE_B,
        )
