"""The layouts of a search with heat: which of them are placed, and which split their layers anew."""

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType

from costmodels.layout import Layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost
from planner.placement.joint import PlacedLayout, place_layout, place_with_splits, placed_in_order
from planner.request import Objective, PlanRequest
from planner.search.objective import objective_value
from planner.search.spans import late


def place_all(
    request: PlanRequest,
    pricings: Sequence[Pricing],
    priced: Sequence[tuple[Layout, LayoutCost]],
    known: Mapping[Layout, PlacedLayout] = MappingProxyType({}),
    end_s: float = inf,
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
    priced : sequence of (Layout, LayoutCost)
        Layouts with their prices without heat.
    known : mapping
        What has been placed already, by the layout given.
    end_s : float
        Of ``time.monotonic``: of the layouts after it the best ones with their ranks in order are kept.

    Returns
    -------
    dict of PlacedLayout
        By the layout given, in the order of the prices without heat. The best of them is never worse than any of the
        layouts given, with its ranks in order.
    """
    placed: dict[Layout, PlacedLayout] = {}
    values: list[float] = []
    by_time = request.objective is Objective.TIME
    ahead = sorted(priced, key=lambda pair: objective_value(request, *pair))
    for number, (layout, cost) in enumerate(ahead):
        if late(end_s) and layout not in known:
            rest = [other for other, _ in ahead[number:] if other not in known]
            return placed | {one.layout: one for one in placed_in_order(request, pricings, rest)}
        cool = objective_value(request, layout, cost)
        if by_time and len(values) >= request.top and cool >= sorted(values)[request.top - 1]:
            break
        may_win = not values or not by_time or cool < min(values)
        place = place_with_splits if may_win else place_layout
        found = known.get(layout) or place(request, pricings, layout, end_s)
        placed[layout] = found
        values.append(objective_value(request, found.layout, found.cost))
    return placed
