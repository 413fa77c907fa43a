"""The best split near a given one: layers moved one by one, each priced with the exact schedule and its memory.

The partitioner minimises a sum over stages and their largest; few micro-batches, or chunks of unlike size, take another
time than that says.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.known_parts import known_parts
from costmodels.layer_costs import PartCosts
from costmodels.layout import Layout
from costmodels.memory import ModelMemory, components, model_memory, stage_sums, usable_memory
from costmodels.memory.peak import verdicts
from costmodels.pipeline.schedules import PipelineSpec
from costmodels.positions import Contents, part_counts, pipeline_spec
from costmodels.pricing import Pricing, in_rank_order
from costmodels.results import Verdict
from costmodels.step import price_steps, rows_of_work, stage_work, staircase_bound_s
from costmodels.table import Floats, Ints, StrategyTable, table_of
from planner.layouts.expand import lone_ends, splits_freely
from planner.request import PlanRequest
from planner.search.effort import OPERATION_S, Until

MOST_PLACES: Final = 64  # pipeline positions of a layout whose layers are moved
MOST_ROUNDS: Final = 16
MOVES_PRICED: Final = 128  # of a round, those of least bound
ROUND_S: Final = 15e-3  # counted for a round beside the operations of its schedules
_SAME: Final = 1.0 - 1e-9  # a split that is faster by less is no faster


@dataclass(frozen=True, kw_only=True, eq=False)
class _Near:
    """Splits of one layout whose layers share a strategy."""

    request: PlanRequest
    pricing: Pricing
    layout: Layout

    @cached_property
    def spec(self) -> PipelineSpec:
        return pipeline_spec(self.layout)

    @cached_property
    def table(self) -> StrategyTable:
        return table_of([self.layout.first], pp=[self.layout.pp], micro_batch=[self.layout.micro_batch])

    @cached_property
    def costs(self) -> PartCosts:
        return known_parts(self.pricing, self.table)

    @cached_property
    def memory(self) -> ModelMemory:
        return model_memory(self.pricing.model, self.pricing.job, self.table, self.pricing.constants.memory)

    @cached_property
    def given(self) -> Ints:
        """Layers of every position of the layout, in model order."""
        chunks = np.array([stage.layers_per_chunk for stage in self.layout.stages])
        return np.asarray(chunks.T.reshape(-1))

    def moves(self, split: Ints) -> Ints:
        """Every split with one layer on another position, shape (R, P)."""
        places = len(split)
        ends_too = self.layout.vpp > 1 and lone_ends(self.request) > 0
        least = np.ones(places, dtype=np.int64)
        least[[0, -1]] = 0 if ends_too else 1
        ways = [(a, b) for a in np.flatnonzero(split > least).tolist() for b in range(places) if a != b]
        found = np.tile(split, (len(ways), 1))
        every = np.arange(len(ways))
        taken, given = np.array(ways, dtype=np.int64).reshape(-1, 2).T
        found[every, taken] -= 1
        found[every, given] += 1
        return found

    def fastest(self, splits: Ints, limit_s: float, until: Until) -> tuple[Ints, float] | None:
        """The fastest of some splits that fits safely within a limit [s], with its time; None where none does."""
        every = self._contents(splits)
        work = stage_work([self.costs], every)
        bound_s = staircase_bound_s(work, self.spec)
        near = np.flatnonzero(bound_s < limit_s * _SAME)
        near = near[np.argsort(bound_s[near], kind="stable")][:MOVES_PRICED]
        near = near[self._fit(every.take(near))] if near.size else near
        until.spend(ROUND_S + OPERATION_S * len(near) * len(self.given) * self.spec.num_microbatches)
        if not near.size:
            return None
        times = price_steps([self.pricing], [self.costs], every.take(near), rows_of_work(work, near))
        first = int(np.argmin(times.total_s))
        time_s = float(times.total_s[first])
        return (splits[near[first]], time_s) if time_s < limit_s * _SAME else None

    def _contents(self, splits: Ints) -> Contents:
        return Contents(
            spec=self.spec,
            rows=np.zeros((len(splits), 1), dtype=np.int64),
            counts=part_counts(self.pricing.model, splits)[:, :, None, :],
            islands=tuple(0 for _ in range(self.layout.pp)),
        )

    def _fit(self, contents: Contents) -> Floats:
        pricing, constants = self.pricing, self.pricing.constants.memory
        usable = usable_memory(pricing.accelerator)
        named = components(stage_sums(pricing.model, pricing.job, self.memory, contents), usable, constants)
        return np.asarray((verdicts(named, usable, constants) == Verdict.FITS).all(axis=1))


def moved_layers(
    request: PlanRequest, pricing: Pricing, layout: Layout, step_s: float, until: Until
) -> tuple[tuple[int, ...], ...] | None:
    """Return layers of every chunk of every stage such that no single move makes the step faster.

    Parameters
    ----------
    request : PlanRequest
        Says how layers may be split.
    pricing : Pricing
        Of the island of the layout.
    layout : Layout
        On one island.
    step_s : float
        Its step time [s].
    until : Until
        No layer is moved after it.

    Returns
    -------
    tuple of tuple of int, or None
        Shape (pp, vpp); None where no move helps, where strategies differ, and where positions are too many.
    """
    used = {run.strategy for stage in layout.stages for run in stage.strategies}
    places = layout.pp * layout.vpp
    if layout.pp == 1 or len(used) > 1 or places > MOST_PLACES or layout.schedule.is_v or not splits_freely(request):
        return None
    near = _Near(request=request, pricing=in_rank_order([pricing], layout)[0], layout=layout)
    split, best_s = near.given, step_s
    for _ in range(MOST_ROUNDS):
        moves = near.moves(split)
        found = near.fastest(moves, best_s, until) if len(moves) and not until.late() else None
        if found is None:
            break
        split, best_s = found
    if best_s == step_s:
        return None
    return tuple(tuple(stage.tolist()) for stage in split.reshape(layout.vpp, layout.pp).T)
