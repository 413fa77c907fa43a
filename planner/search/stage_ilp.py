"""One pipeline stage as an intra-op ILP: every layer picks its strategy, within the memory of the stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from costmodels.compute import optimizer_step_s
from costmodels.exchange import state_exchange
from costmodels.exchange.reshard import reshard_s
from costmodels.layer_costs import PartCosts, price_parts
from costmodels.layout import Strategy
from costmodels.memory import ModelMemory, model_memory, usable_memory
from costmodels.memory.states import LocalParameters
from costmodels.part_ops import EMBEDDING, MTP
from costmodels.positions import same_activations
from costmodels.pricing import Pricing
from costmodels.table import Floats, table_of
from planner.bounds.memory import RECEIVE_BUFFERS
from planner.intra_op.problem import IntraOpProblem, Run
from planner.intra_op.solution import IntraOpSolution, SolutionCache, SolveOptions
from planner.intra_op.solve import solve

MOST_STRATEGIES: Final = 384  # strategies of a stage that the ILP is given, cheapest per layer first
TRANSIENT_STEPS: Final = 40
OPTIONS: Final = SolveOptions(relative_gap=1e-3)  # finer than the cost models; the gap of a plan is stated anyway


@dataclass(frozen=True, kw_only=True)
class StageShape:
    """What all stages of a pipeline share: GPUs of a stage, sequences of a micro-batch over its replicas, depth.

    ``shard_group`` is what ZeRO shards over in every layer whose data-parallel ranks it divides; 0: all of these.
    """

    gpus: int
    samples: int
    pp: int
    num_microbatches: int
    shard_group: int = 0


@dataclass(frozen=True, kw_only=True)
class Span:
    """Layers of one stage: how many of each run of the model, in order, and which ends it holds."""

    counts: tuple[tuple[int, int], ...]  # (kind, layers) in order
    in_flight: int
    first: bool
    last: bool


class StageSolver:
    """Solves spans of one pipeline shape; answers are kept.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island.
    shape : StageShape
        Of the pipeline.
    strategies : sequence of Strategy
        What a layer may use; each divides the micro-batch's sequences over its dp.
    cache : SolutionCache
        Answers by problem.
    """

    def __init__(
        self, pricing: Pricing, shape: StageShape, strategies: Sequence[Strategy], cache: SolutionCache
    ) -> None:
        self.pricing = pricing
        self.shape = shape
        self.cache = cache
        self.margin_bytes = 0.0
        table = table_of(
            list(strategies),
            pp=[shape.pp] * len(strategies),
            micro_batch=[shape.samples // strategy.dp for strategy in strategies],
        )
        costs = price_parts(pricing, table)
        memory = model_memory(pricing.model, pricing.job, table, pricing.constants.memory)
        time_s = (costs.forward_s + costs.backward_s).sum(axis=0) + self._per_step_s(costs)
        keep = _promising(strategies, time_s, memory)
        self.strategies = tuple(strategies[row] for row in keep)
        self.time_s = time_s[:, keep]
        moving = 1.0 + pricing.constants.memory.reserve_share  # what comes and goes, with what the allocator adds
        self.states = np.stack([part.states for part in memory.parts])[:, keep]
        self.kept = moving * np.stack([part.kept for part in memory.parts])[:, keep]
        self.working = moving * np.stack([part.working + part.gathered for part in memory.parts])[:, keep]
        if memory.embedding is not None:  # the token table's dense gradient has memory of its own in the reserve
            self.states[memory.embedding] += memory.parts[memory.embedding].working[keep]
            self.working[memory.embedding] = 0.0
        buffers = RECEIVE_BUFFERS * memory.boundary + memory.buckets
        self.buffers = float((buffers + memory.groups * pricing.constants.memory.group_bytes)[keep].min())
        self.kinds = memory.kinds
        self.names = costs.names
        self.switch_s = self._switch_s()
        self._found: dict[Span, IntraOpSolution] = {}

    @property
    def least_layer_s(self) -> float:
        """Time of the cheapest layer under its fastest strategy."""
        return float(self.time_s[: self.kinds].min())

    def solve(self, span: Span) -> IntraOpSolution:
        """Return the best assignment of a span; infeasible spans have infinite time."""
        if not self.knows(span):
            self._found[span] = solve(self._problem(span), options=OPTIONS, cache=self.cache)
        return self._found[span]

    def knows(self, span: Span) -> bool:
        """Whether a span has been solved."""
        return span in self._found

    def forget(self, tighter_by_bytes: float) -> None:
        """Lower the memory limit, after a layout turned out to need more than its parts explain."""
        self.margin_bytes += tighter_by_bytes
        self._found.clear()

    def layer_strategies(self, span: Span) -> list[Strategy]:
        """Strategy of every layer of a solved span, in order."""
        assignment = self.solve(span).assignment
        head = int(span.first and EMBEDDING in self.names)  # a list of layers has no ends
        middle = assignment[head : len(assignment) - self._tail(span)]
        return [self.strategies[s] for blocks in middle for s, count in blocks for _ in range(count)]

    def _tail(self, span: Span) -> int:
        return len([name for name in self.names[self.kinds :] if name != EMBEDDING]) if span.last else 0

    def _problem(self, span: Span) -> IntraOpProblem:
        """Runs of layers between the ends of the model; an end uses the strategy of the layer beside it."""
        head = [(self.names.index(EMBEDDING), 1)] if span.first and EMBEDDING in self.names else []
        tail = [(row, self._times(row)) for row in range(self.kinds, len(self.names)) if self.names[row] != EMBEDDING]
        parts = [*head, *span.counts, *(tail if span.last else [])]
        tied = np.where(np.eye(len(self.strategies), dtype=np.bool_), 0.0, np.inf)
        edges = [
            tied if row >= self.kinds or following >= self.kinds else self.switch_s
            for (row, _), (following, _) in pairwise(parts)
        ]
        return IntraOpProblem(
            runs=tuple(self._run(row, count, span.in_flight) for row, count in parts),
            limit_bytes=int(self._limit_bytes()),
            edges_s=tuple(edges),
        )

    def _times(self, row: int) -> int:
        return self.pricing.model.mtp_layers if self.names[row] == MTP else 1

    def _run(self, row: int, count: int, in_flight: int) -> Run:
        # The solver splits a stage by the largest transient: a few coarse steps, rounded up, keep these cases few.
        step = usable_memory(self.pricing.accelerator) / TRANSIENT_STEPS
        return Run(
            count=count,
            time_s=self.time_s[row],
            persistent_bytes=self.states[row] + in_flight * self.kept[row],
            transient_bytes=np.ceil(self.working[row] / step) * step,
            switch_s=self.switch_s if row < self.kinds else None,
            name=self.names[row],
        )

    def _limit_bytes(self) -> float:
        constants = self.pricing.constants.memory
        safe = usable_memory(self.pricing.accelerator) * constants.risky_share
        return max(safe - constants.context_bytes - constants.workspace_bytes - self.buffers - self.margin_bytes, 0.0)

    def _per_step_s(self, costs: PartCosts) -> Floats:
        """Exchange of gradients and weights and the optimizer of one layer, spread over the micro-batches: (K, S)."""
        job, overlap = self.pricing.job, self.pricing.constants.overlap
        held = LocalParameters(dense=costs.dense_parameters.T, expert=costs.expert_parameters.T)
        exchange = state_exchange(held, job, costs.placed, overlap.bucket_bytes)
        window = overlap.window_share * costs.backward_s.sum(axis=0).T
        table = costs.placed.table
        hidden_s = np.where(job.software.hides_reduction(table.zero, table.pp)[:, None], window, 0.0)
        reduce = np.maximum(exchange.reduce_s - hidden_s, 0.0)
        optimizer = optimizer_step_s(
            exchange.owned_parameters,
            job,
            self.pricing.accelerator,
            efficiency=self.pricing.constants.efficiency,
            node=self.pricing.island.node,
        )
        return np.asarray((reduce + optimizer).T / self.shape.num_microbatches)

    def _switch_s(self) -> Floats:
        """Forward and backward resharding between every pair of strategies, shape (S, S)."""
        once = reshard_s(
            self.pricing.model,
            self.pricing.job,
            (self.shape.samples, self.shape.gpus),
            self.pricing.tiers,
            self.pricing.constants.network,
        )
        differ = [[not same_activations(a, b) for b in self.strategies] for a in self.strategies]
        return np.where(np.array(differ), 2.0 * once, 0.0)


def _promising(strategies: Sequence[Strategy], time_s: Floats, memory: ModelMemory) -> list[int]:
    """Strategies that none of the same grid beats in time and in every kind of memory, the fastest first.

    Within one grid a dominated strategy can always be replaced: nothing has to be resharded for it.
    """
    size = np.stack([[part.states, part.kept, part.working + part.gathered] for part in memory.parts[: memory.kinds]])
    traits = np.concatenate([time_s[: memory.kinds], size.reshape(-1, size.shape[-1])])
    order = np.lexsort((np.arange(traits.shape[1]), traits[: memory.kinds].sum(axis=0)))
    groups: dict[tuple[int, int, int, bool], list[int]] = {}
    for row in order.tolist():
        strategy = strategies[row]
        rivals = groups.setdefault((strategy.tp, strategy.cp, strategy.dp, strategy.sequence_parallel), [])
        if not (traits[:, rivals] <= traits[:, [row]]).all(axis=0).any():
            rivals.append(row)
    place = {row: number for number, row in enumerate(order.tolist())}
    kept = sorted((row for rivals in groups.values() for row in rivals), key=place.__getitem__)
    return kept[:MOST_STRATEGIES]
