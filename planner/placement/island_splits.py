"""Layers moved between the stages of a pipeline over several islands, one at a time, as long as that gains.

The partitioner knows one island; over several the search has found a split for accelerators that are like their kind,
so the split for slow or hot ones is near: stages that take longest give a layer, each of the others may take it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.layout import Layout, Stage
from costmodels.power.heat import heat_problem
from costmodels.pricing import Pricing
from planner.layouts.expand import splits_freely
from planner.placement.joint import SAME, PlacedLayout, as_safe, place_layout, place_with_splits
from planner.request import PlanRequest
from planner.search.effort import UNENDING, Until
from planner.search.objective import objective_value

GIVING: Final = 2  # stages that give a layer: those that take longest
MOST_MOVES: Final = 24


def place_and_split(
    request: PlanRequest, pricings: Sequence[Pricing], layout: Layout, until: Until = UNENDING
) -> PlacedLayout:
    """Place the ranks of a layout on one island or on several, and choose its layers per stage.

    Parameters
    ----------
    request, pricings, layout, until
        As in :func:`planner.placement.joint.place_with_splits`.
    """
    if len({stage.island for stage in layout.stages}) == 1:
        return place_with_splits(request, pricings, layout, until)
    like = heat_problem(pricings, layout)
    best = place_layout(request, pricings, layout, until, like)
    tried = {layout}
    for _ in range(MOST_MOVES):
        near = [other for other in _moved(request, best) if other not in tried]
        tried.update(near)
        verdict = best.cost.heaviest.verdict
        fit = [other for other in near if as_safe(request, pricings, other, verdict)]
        found = [place_layout(request, pricings, other, until, like) for other in fit if not until.late()]
        better = min(found, key=lambda one: objective_value(request, one.layout, one.cost), default=best)
        least = objective_value(request, best.layout, best.cost) * (1.0 - SAME)
        if objective_value(request, better.layout, better.cost) >= least:
            break
        best = better
    return replace(best, cut=until.late())


def _moved(request: PlanRequest, placed: PlacedLayout) -> Iterator[Layout]:
    """Layouts with one layer moved from a stage that takes longest."""
    layout = placed.layout
    if not splits_freely(request) or any(len(stage.strategies) > 1 for stage in layout.stages):
        return
    slowest = np.argsort(-np.array(placed.cost.stage_times_s), kind="stable")[:GIVING].tolist()
    for giver in slowest:
        if max(layout.stages[giver].layers_per_chunk) <= 1:
            continue
        for taker in range(layout.pp):
            if taker != giver:
                stages = list(layout.stages)
                stages[giver], stages[taker] = _with_one(stages[giver], -1), _with_one(stages[taker], 1)
                yield replace(layout, stages=tuple(stages))


def _with_one(stage: Stage, change: int) -> Stage:
    """A stage with a layer more in its smallest chunk, or one less in its largest."""
    chunks = list(stage.layers_per_chunk)
    place = chunks.index(min(chunks) if change > 0 else max(chunks))
    chunks[place] += change
    (run,) = stage.strategies
    return replace(stage, layers_per_chunk=tuple(chunks), strategies=(replace(run, count=run.count + change),))
