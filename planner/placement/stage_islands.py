"""Which island gets which stages of a layout whose user named none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodels.layout import Layout
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from hardware.errors import InputError
from planner.search.islands import island_orders


def on_islands(pricings: Sequence[Pricing], layout: Layout) -> Layout:
    """Put the stages of a layout on the islands where it is fastest, of those ways in which it fits.

    Every order of the islands is filled from its first island on, each with as many whole stages as it has GPUs for:
    all stages on one island where they find room, and the layouts that a search makes over several.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island.
    layout : Layout
        With all stages on the first island; one that names others is returned as it is.

    Returns
    -------
    Layout

    Raises
    ------
    InputError
        The islands do not hold as many stages: each lies on one island.
    """
    if len(pricings) == 1 or any(stage.island for stage in layout.stages):
        return layout
    ways = list(dict.fromkeys(_ways([pricing.island.gpus for pricing in pricings], layout)))
    if not ways:
        sizes = ", ".join(str(pricing.island.gpus) for pricing in pricings)
        raise InputError(
            f"{layout.pp} stages of {layout.stages[0].gpus} GPUs do not fit on islands of {sizes} GPUs",
            allowed="stages that each fit on one island: more and smaller ones, or a --dp that leaves GPUs idle",
        )
    placed = [_with(layout, islands) for islands in ways]
    return min(placed, key=lambda one: _worth(pricings, one)) if len(placed) > 1 else placed[0]


def _ways(gpus: Sequence[int], layout: Layout) -> Iterator[tuple[int, ...]]:
    """Island of every stage."""
    for order in island_orders(len(gpus)):
        left, rest, islands = list(order), 0, []
        for stage in layout.stages:
            while rest < stage.gpus and left:
                island = left.pop(0)
                rest = gpus[island]
            if rest < stage.gpus:
                break
            rest -= stage.gpus
            islands.append(island)
        else:
            yield tuple(islands)


def _with(layout: Layout, islands: Sequence[int]) -> Layout:
    stages = zip(layout.stages, islands, strict=True)
    return replace(layout, stages=tuple(replace(stage, island=island) for stage, island in stages))


def _worth(pricings: Sequence[Pricing], layout: Layout) -> tuple[bool, float]:
    cost = price_layout(pricings, layout)
    return cost.heaviest.verdict is Verdict.OOM, cost.step.total_s
