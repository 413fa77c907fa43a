"""The best of a grid: its best variants with the splits that the partitioner finds for them, and with layers moved."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costmodels.layout import Layout, Strategy
from costmodels.positions import contents_of
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from planner.layouts.build import uniform_layout
from planner.layouts.expand import splits_freely
from planner.layouts.splits import by_stage
from planner.request import PlanRequest
from planner.rules import broken_rules
from planner.search.effort import LAYOUT_S, SPLITS_S, UNENDING, Until
from planner.search.moved_layers import moved_layers
from planner.search.objective import objective_value
from planner.search.spans import SPLITS_CUT
from planner.search.tally import Candidate, Key, Tally
from planner.search.uneven import split_as, uneven_layouts

VARIANTS: Final = 3  # virtual degrees of a grid whose splits are refined
SPLIT_TO_FIT: Final = 100  # candidates whose splits are looked at where nothing fits as it is split
_SAME: Final = 1.0 - 1e-9  # a layout that is faster by less is no faster

Priced = tuple[Layout, LayoutCost]


def layout_of(candidate: Candidate) -> Layout:
    """Return the explicit layout of a candidate."""
    return uniform_layout(
        Strategy(
            tp=candidate.tp,
            cp=candidate.cp,
            dp=candidate.dp,
            ep=candidate.ep,
            etp=candidate.etp,
            sequence_parallel=candidate.sequence_parallel,
            zero=candidate.zero,
            shard_group=candidate.shard_group,
            recompute=candidate.recompute,
        ),
        by_stage(candidate.layers, candidate.pp, candidate.schedule),
        micro_batch=candidate.micro_batch,
        num_microbatches=candidate.num_microbatches,
        prefix=candidate.prefix,
        schedule=candidate.schedule,
    )


def best_of_grid(request: PlanRequest, pricing: Pricing, tally: Tally, key: Key, until: Until = UNENDING) -> Priced:
    """Return the best layout of a grid by the objective, with its price; ties keep the earlier one.

    Parameters
    ----------
    request : PlanRequest
        What is asked: splits must be legal.
    pricing : Pricing
        Of the island of the search.
    tally : Tally
        What the search found; says whether layers may be split at will.
    key : tuple of int
        The grid, one of ``tally.best``.
    until : Until
        No further split is priced after it; ``tally.cut`` counts the grid then.
    """

    def value(pair: Priced) -> float:
        return objective_value(request, *pair)

    first, *others = tally.near_best(key, VARIANTS)
    best = with_best_split(request, pricing, layout_of(first), until)
    for variant in others:
        if not until.late():
            best = min([best, with_best_split(request, pricing, layout_of(variant), until)], key=value)
    for variant in tally.tight.get(key, ()):  # faster as they are split, but too large: they may fit otherwise
        if variant.total_s < best[1].step.total_s:
            splits = _splits(request, pricing, layout_of(variant), until)
            fitting = [pair for pair in splits if pair[1].heaviest.verdict is tally.accepted]
            best = min([best, *fitting], key=value)
    best = _with_moved_layers(request, pricing, best, until)
    if until.late():
        tally.cut[SPLITS_CUT] += 1
    return best


def _with_moved_layers(request: PlanRequest, pricing: Pricing, found: Priced, until: Until) -> Priced:
    """Return a layout with the best split near its own, where that is faster, no riskier and accepted."""
    layout, cost = found
    if until.late():
        return found
    split = moved_layers(request, pricing, layout, cost.step.total_s, until)
    if split is None:
        return found
    moved = split_as(layout, split)
    if broken_rules(moved, request):
        return found
    until.spend(LAYOUT_S)
    price = price_layout([pricing], moved)
    safe = price.heaviest.verdict in (Verdict.FITS, cost.heaviest.verdict)
    return (moved, price) if safe and price.step.total_s < cost.step.total_s * _SAME else found


def offer_other_splits(request: PlanRequest, pricing: Pricing, tally: Tally, until: Until) -> None:
    """Offer what fits with its layers split in another way than evenly or balanced by time.

    The fastest candidates come first. Where nothing fits yet, until as many grids as are wanted do; else those faster
    than the best, of grids that are not among the best (:func:`best_of_grid` looks at the others). At most
    :data:`SPLIT_TO_FIT` are looked at, and none after ``until``.
    """
    some = bool(tally.best)
    followed = {one.key for one in sorted(tally.best.values(), key=lambda one: one.order)[: tally.wanted]}
    tight = sorted((one for held in tally.tight.values() for one in held), key=lambda candidate: candidate.order)
    kinds = len(request.model.kinds())
    for candidate in [one for one in tight if one.key not in followed][:SPLIT_TO_FIT]:
        enough = candidate.total_s >= tally.best_s() if some else len(tally.best) >= tally.wanted
        if until.late() or enough:
            break
        for layout, cost in _splits(request, pricing, layout_of(candidate), until):
            if cost.heaviest.verdict is tally.accepted:
                counts = contents_of(layout, request.model)[0].counts[0, :, :, :kinds].sum(axis=(1, 2))
                found = replace(
                    candidate,
                    total_s=cost.step.total_s,
                    layers=tuple(int(count) for count in counts),
                    memory_bytes=cost.heaviest.total_bytes,
                    verdict=tally.accepted,
                )
                tally.offer(found)


def with_best_split(request: PlanRequest, pricing: Pricing, layout: Layout, until: Until) -> Priced:
    """Return a layout with the fastest split among its own and the partitioner's that is no riskier, and the price.

    Ties keep its own; no further split is priced after ``until``.
    """
    until.spend(LAYOUT_S)
    best = (layout, price_layout([pricing], layout))
    for other, cost in _splits(request, pricing, layout, until):
        safe = cost.heaviest.verdict in (Verdict.FITS, best[1].heaviest.verdict)
        if safe and cost.step.total_s < best[1].step.total_s * _SAME:
            best = (other, cost)
    return best


def _splits(request: PlanRequest, pricing: Pricing, layout: Layout, until: Until) -> Iterator[Priced]:
    """Other splits of a layout that the framework accepts, with their prices; none after a moment."""
    if not splits_freely(request) or until.late():
        return
    until.spend(SPLITS_S)
    for other in uneven_layouts(pricing, layout):
        if until.late():
            return
        if not broken_rules(other, request):
            until.spend(LAYOUT_S)
            yield other, price_layout([pricing], other)
