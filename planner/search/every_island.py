"""Searching the islands of a request, each by itself and all of them together, before ranks are placed.

Prices here know nothing of heat and of single devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from costmodels.layout import Layout
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from hardware.cluster import Island
from planner.bounds.mixed_layers import mixed_bound_s
from planner.layouts.build import on_island
from planner.request import Objective, PlanRequest
from planner.search.effort import Until
from planner.search.islands import IslandSearch
from planner.search.objective import objective_value
from planner.search.refine import best_of_grid, layout_of
from planner.search.spans import SPLITS_CUT, Span, spans
from planner.search.tally import Candidate, Tally
from planner.search.two_level import PER_LAYER, candidate_shape, mixed_plans
from planner.search.uniform import GRIDS_KEPT, Aim, UniformSearch

ISLANDS_CUT: Final = "time limit (islands alone)"
ANY_FIT: Final = (Verdict.FITS, Verdict.RISKY)  # safely if possible
MIXED_SHAPES: Final = 6  # pipeline shapes that are solved with a strategy for every layer

Priced = tuple[Layout, LayoutCost]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How islands are searched.

    Attributes
    ----------
    until : Until
        Of the grids that are kept one is followed to the end beyond it.
    aim : Aim
        Of each.
    placed : bool
        Whether accelerators are placed one by one afterwards, for which time is left.
    accepted : tuple of Verdict
        What may fit, in this order, until something is found.
    """

    until: Until
    aim: Aim
    placed: bool = False
    accepted: tuple[Verdict, ...] = ANY_FIT


def search_islands(request: PlanRequest, pricings: Sequence[Pricing], look: Look) -> tuple[Tally, list[Priced]]:
    """Search islands alone, and all of them together.

    Parameters
    ----------
    request : PlanRequest
        What is asked.
    pricings : sequence of Pricing
        One for each island.
    look : Look
        How.

    Returns
    -------
    tuple
        Counts, and the layouts that were found with their prices.
    """
    alone = _unlike(pricings)
    count = len(alone) + (len(pricings) > 1)
    parts = spans(look.until, count, placed=look.placed, mixed=request.framework in PER_LAYER)
    tally, priced = search_island(request, pricings, alone[0], parts[0], look)
    for number, (island, part) in enumerate(zip(alone[1:], parts[1:], strict=False), start=1):
        if look.until.late():
            tally.pruned[ISLANDS_CUT] += len(alone) - number
            tally.open_bound_s = 0.0  # nothing is known of them
            break
        other, more = search_island(request, pricings, island, part, look)
        tally.absorb(other)
        priced += more
    if len(pricings) > 1 and not request.always_piped:  # those know 1F1B and interleaving alone
        known = [cost.step.total_s for _, cost in priced]
        together = IslandSearch(request, pricings, known, parts[-1].end)
        priced += [(plan.layout, plan.cost) for plan in together.run()]
        tally.enumerated += together.enumerated
        tally.solved += together.solved
        tally.pruned["time lower bound over all islands"] += together.pruned
        tally.pruned["time limit over all islands"] += together.unreached
        tally.open_bound_s = min(tally.open_bound_s, together.open_bound_s)
    return tally, priced


def _unlike(pricings: Sequence[Pricing]) -> list[int]:
    """Islands that are searched alone, the largest first: of those unlike in the names of nodes at most, one."""
    first: dict[Island, int] = {}
    for number, pricing in enumerate(pricings):
        first.setdefault(replace(pricing.island, hosts=()), number)
    return sorted(first.values(), key=lambda number: -pricings[number].island.gpus)


def search_island(
    request: PlanRequest, pricings: Sequence[Pricing], island: int, span: Span, look: Look
) -> tuple[Tally, list[Priced]]:
    """Search one island by itself: its best grids with their best splits, and mixed strategies where allowed.

    Parameters
    ----------
    request, pricings : PlanRequest, sequence of Pricing
        As of :func:`search_islands`.
    island : int
        Its number.
    span : Span
        When its phases end.
    look : Look
        How.

    Returns
    -------
    tuple
        As of :func:`search_islands`; layouts name the island.
    """
    tally = UniformSearch(request, pricings[island], look.aim, span.grids).run(look.accepted)
    chosen = sorted(tally.best.values(), key=lambda candidate: candidate.order)[: tally.wanted]
    if request.objective is not Objective.TIME:
        chosen = _thriftiest(request, pricings[island], chosen)
        tally.open_bound_s = min(tally.open_bound_s, tally.best_s())  # the fastest need not be among the thriftiest
    priced: list[Priced] = []
    for number, candidate in enumerate(chosen):
        if number and look.until.late():
            tally.cut[SPLITS_CUT] += len(chosen) - number
            break
        priced.append(best_of_grid(request, pricings[island], tally, candidate.key, span.splits))
    tally.open_bound_s = min(tally.open_bound_s, tally.threshold_s())  # of grids that were priced and not kept
    if request.framework in PER_LAYER and not request.always_piped:
        shapes = [candidate_shape(candidate) for candidate in chosen[:MIXED_SHAPES]]
        mixed = mixed_plans(request, pricings[island], shapes, span.end)
        priced = distinct([*priced, *((plan.layout, plan.cost) for plan in mixed)])
        tally.open_bound_s = min(tally.open_bound_s, mixed_bound_s(request, pricings[island]))
    if island:
        moved = [on_island(layout, island) for layout, _ in priced]
        priced = [(layout, price_layout(pricings, layout)) for layout in moved]
    return tally, priced


def shown(request: PlanRequest) -> int:
    """Grids that are followed to the end."""
    return max(request.top, GRIDS_KEPT)


def _thriftiest(request: PlanRequest, pricing: Pricing, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best of some candidates by the objective, as they are split."""

    def value(candidate: Candidate) -> float:
        layout = layout_of(candidate)
        return objective_value(request, layout, price_layout([pricing], layout))

    return sorted(candidates, key=value)[: shown(request)]


def distinct(priced: Sequence[Priced]) -> list[Priced]:
    """Each layout once."""
    return list(dict(priced).items())
