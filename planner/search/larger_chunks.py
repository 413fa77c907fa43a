"""Layouts with fewer and larger virtual chunks, whose layers can follow the paces of unlike accelerators.

Without slow devices the smallest chunks win, as they have the least bubble. A stage of one-layer chunks cannot give
layers to another one, though: what an uneven pace asks for has no legal split there.
"""

from collections.abc import Sequence
from typing import Final

from costmodels.layout import Layout
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from planner.layouts.build import on_island, uniform_layout
from planner.layouts.expand import pinned_virtual, splits_freely
from planner.layouts.splits import even_chunks
from planner.request import PlanRequest
from planner.rules import broken_rules

LAYERS_OF_A_CHUNK: Final = 4  # of chunks that can lose and gain layers in quarters of their time


def with_larger_chunks(
    request: PlanRequest, pricings: Sequence[Pricing], layout: Layout, cost: LayoutCost
) -> tuple[tuple[Layout, LayoutCost], ...]:
    """Return a layout's likes with one chunk a stage, and with the fewest layers a chunk that splits well.

    Parameters
    ----------
    request : PlanRequest
        Splits must be legal in its framework; a pinned virtual degree leaves no others.
    pricings : sequence of Pricing
        One per island.
    layout : Layout
        Of one strategy on one island; others have no likes.
    cost : LayoutCost
        Its price.

    Returns
    -------
    tuple of (Layout, LayoutCost)
        Up to two with their prices, split evenly and no riskier than the layout; none where it has one chunk a stage.
    """
    used = {run.strategy for stage in layout.stages for run in stage.strategies}
    islands = {stage.island for stage in layout.stages}
    if layout.vpp == 1 or len(used) > 1 or len(islands) > 1 or pinned_virtual(request) or not splits_freely(request):
        return ()
    found = []
    for chunks in dict.fromkeys((1, layout.layers // (layout.pp * LAYERS_OF_A_CHUNK))):
        if not 1 <= chunks < layout.vpp or (chunks == 1 and request.always_piped):  # one chunk is 1F1B
            continue
        split = uniform_layout(
            layout.first,
            even_chunks(layout.layers, layout.pp, chunks),
            micro_batch=layout.micro_batch,
            num_microbatches=layout.num_microbatches,
        )
        other = on_island(split, next(iter(islands)))
        if broken_rules(other, request):
            continue
        price = price_layout(pricings, other)
        if price.heaviest.verdict in (Verdict.FITS, cost.heaviest.verdict):
            found.append((other, price))
    return tuple(found)
