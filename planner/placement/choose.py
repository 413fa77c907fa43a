"""The layouts of a search with heat: which of them are placed, and which split their layers anew."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Final

from costmodels.layout import Layout, RankOrder
from costmodels.pricing import Pricing
from planner.placement.island_splits import place_and_split
from planner.placement.joint import (
    PlacedLayout,
    place_layout,
    placed_on_network,
    placed_roughly,
)
from planner.placement.scattered import scatter
from planner.request import Objective, PlanRequest
from planner.search.effort import UNENDING, Until
from planner.search.objective import objective_value

MOST_SCATTERED: Final = 3  # layouts whose ranks are scattered over nodes, where the launcher can: the best


def place_all(
    request: PlanRequest,
    pricings: Sequence[Pricing],
    cool: Mapping[Layout, PlacedLayout],
    known: Mapping[Layout, PlacedLayout] = MappingProxyType({}),
    until: Until = UNENDING,
) -> dict[Layout, PlacedLayout]:
    """Place the layouts that a search without heat found.

    Heat takes pace and gives none, so a layout whose step without heat is no faster than the best with heat cannot win:
    such layouts keep their splits, and are placed as long as they can be among those wanted.

    Parameters
    ----------
    request : PlanRequest
        States the objective and how many layouts are wanted.
    pricings : sequence of Pricing
        One per island.
    cool : mapping of Layout to PlacedLayout
        Layouts with the best orders of their ranks and nodes, and their prices, without heat.
    known : mapping
        What has been placed already, by the layout given.
    until : Until
        Of the layouts after it the best ones are kept, in order or on the coolest nodes.

    Returns
    -------
    dict of PlacedLayout
        By the layout given, in the order of the prices without heat. The best of them is never worse than any of the
        layouts given, with ranks and nodes in the orders given or in their own.
    """
    placed: dict[Layout, PlacedLayout] = {}
    best: dict[Layout, float] = {}  # of the orders of ranks of a layout
    by_time = request.objective is Objective.TIME
    ahead = sorted(cool.items(), key=lambda item: objective_value(request, item[1].layout, item[1].cost))
    for number, (layout, cooled) in enumerate(ahead):
        if until.late() and layout not in known:
            rest = [other.layout for given, other in ahead[number:] if given not in known]
            return placed | {one.layout: one for one in placed_roughly(request, pricings, rest)}
        least = objective_value(request, cooled.layout, cooled.cost)
        if by_time and len(best) >= request.top and least >= sorted(best.values())[request.top - 1]:
            break
        may_win = not best or not by_time or least < min(best.values())
        place = place_and_split if may_win else place_layout
        found = known.get(layout) or _or_as_given(
            request, pricings, cooled, place(request, pricings, cooled.layout, until)
        )
        placed[layout] = found
        usual = in_usual_order(layout)
        best[usual] = min(best.get(usual, inf), objective_value(request, found.layout, found.cost))
    return placed


def scatter_best(
    request: PlanRequest, pricings: Sequence[Pricing], placed: Mapping[Layout, PlacedLayout], until: Until
) -> dict[Layout, PlacedLayout]:
    """The layouts placed, the best of them with their ranks on any node where the launcher can and where it gains."""
    if not request.launcher.scatters:
        return dict(placed)
    ahead = sorted(placed.items(), key=lambda item: objective_value(request, item[1].layout, item[1].cost))
    better = {given: scatter(request, pricings, one, until, split=True) for given, one in ahead[:MOST_SCATTERED]}
    return {given: better.get(given, one) for given, one in placed.items()}


def in_usual_order(layout: Layout) -> Layout:
    """The layout with its ranks in the order that frameworks count them by themselves."""
    return replace(layout, rank_order=RankOrder.DP_INSIDE)


def one_order_each(
    request: PlanRequest, placed: Mapping[Layout, PlacedLayout], kin: Mapping[Layout, Layout] = MappingProxyType({})
) -> tuple[PlacedLayout, ...]:
    """Of the orders of ranks that were placed the best for each layout and its kin; ties keep the first.

    Parameters
    ----------
    request : PlanRequest
        Its objective decides.
    placed : mapping of Layout to PlacedLayout
        By the layout given.
    kin : mapping of Layout to Layout
        Layouts that stand for the same grid as another: that other.
    """
    best: dict[Layout, PlacedLayout] = {}
    for given, one in placed.items():
        usual = in_usual_order(given)
        grid = kin.get(usual, usual)
        held = best.setdefault(grid, one)
        if objective_value(request, one.layout, one.cost) < objective_value(request, held.layout, held.cost):
            best[grid] = one
    return tuple(best.values())


def _or_as_given(
    request: PlanRequest, pricings: Sequence[Pricing], cooled: PlacedLayout, found: PlacedLayout
) -> PlacedLayout:
    """What was found, or the nodes in the order that is best for the network where that is better with heat too."""
    if cooled.placement is None:
        return found
    cost = placed_on_network(pricings, cooled.layout, cooled.placement)
    if objective_value(request, cooled.layout, cost) >= objective_value(request, found.layout, found.cost):
        return found
    return PlacedLayout(
        layout=cooled.layout, cost=cost, placement=cooled.placement, in_order=found.in_order, cut=found.cut
    )
