"""Orders of ranks over the places of nodes that only launchers can start which put any rank on any node.

torchrun keeps consecutive ranks on a node. ``srun --distribution=arbitrary`` and ``mpirun --map-by seq`` take a list of
hosts, one for each rank: then stages can share nodes, so that each takes the accelerators that suit it on all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import factorial
from typing import Final

from costmodels.layout import Layout, RankOrder
from costmodels.power.heat import HeatProblem, heat_problem, placed_maps, settle
from costmodels.price import price_layout_with_heat
from costmodels.pricing import Pricing
from planner.placement.candidates import board_of, first_placements
from planner.placement.joint import ROUGH, SAME, PlacedLayout, place_layout, place_with_splits
from planner.request import Objective, PlanRequest
from planner.rules.proposal import grid_of
from planner.search.effort import HEAT_S, LAYOUT_S, PLACE_S, UNENDING, Until
from planner.search.objective import objective_value, objective_values

MOST_ORDERS: Final = 128
"""Orders of ranks of a layout that are looked at; where there are no more, all are."""
MOST_PLACED: Final = 6  # of these orders that are placed as well as can be: the best at a glance
SMALL: Final = 8  # accelerators of a layout all of whose orders are placed so
MOST_SPLIT: Final = 2  # of these orders in which layers are split anew
MOST_GLANCES: Final = 16  # placements that tell what an order is worth at a glance
MOST_EXCHANGES: Final = 256  # of two units of the best order between nodes that are looked at

Order = tuple[int, ...]


def scatter(
    request: PlanRequest,
    pricings: Sequence[Pricing],
    placed: PlacedLayout,
    until: Until = UNENDING,
    *,
    split: bool = False,
) -> PlacedLayout:
    """Place the ranks of a layout on any node, where the launcher of a request can.

    Parameters
    ----------
    request : PlanRequest
        Its objective decides what is best.
    pricings : sequence of Pricing
        One per island.
    placed : PlacedLayout
        With consecutive ranks on every node.
    until : Until
        No other order is priced after it.
    split : bool
        Whether layers are split anew for the paces that an order leaves.

    Returns
    -------
    PlacedLayout
        As given where no other order of the ranks is better; never worse.
    """
    layout = placed.layout
    if not request.launcher.scatters or len({stage.island for stage in layout.stages}) > 1:
        return placed
    pricing = pricings[layout.stages[0].island]
    least = objective_value(request, layout, placed.cost)
    glances: list[tuple[float, HeatProblem]] = []
    orders = scattered_orders(layout, pricing)
    for order in orders:
        if until.late():
            break
        until.spend(_glance_s(layout))
        problem = heat_problem(pricings, layout, order=order)
        # Heat takes pace and gives none: what is slower without it is slower with it.
        if request.objective is not Objective.TIME or float(problem.step.times.total_s[0]) < least:
            glances.append((_glance(request, problem), problem))
    glances.sort(key=lambda glance: glance[0])
    kept = len(glances) if layout.gpus <= SMALL else MOST_PLACED
    tried = [(place_layout(request, pricings, layout, until, problem), problem) for _, problem in glances[:kept]]
    found = [one for one, _ in tried]
    if split:
        near = sorted(tried, key=lambda pair: objective_value(request, layout, pair[0].cost))[:MOST_SPLIT]
        found += [place_with_splits(request, pricings, layout, until, problem) for _, problem in near]
    # Without a placement there was no time for one: the price is that of ranks elsewhere than in order.
    found = [placed, *(one for one in found if one.placement)]
    best = min(found, key=lambda one: objective_value(request, one.layout, one.cost))
    if orders and layout.gpus > SMALL:
        other = _exchanged(request, pricings, best, pricing.island.node.gpus, until)
        best = min(best, other, key=lambda one: objective_value(request, one.layout, one.cost))
    if best is not placed:
        known = placed.in_order if best.layout == layout else None
        best = replace(best, in_order=known or price_layout_with_heat(pricings, best.layout))
    return replace(best, cut=placed.cut or until.late())


def _glance_s(layout: Layout) -> float:
    """Counted work of a glance at an order of ranks [s]."""
    return LAYOUT_S + HEAT_S + PLACE_S * MOST_GLANCES * layout.gpus


def _glance(request: PlanRequest, problem: HeatProblem) -> float:
    """The least value of some placements of an order of ranks, roughly."""
    settled = settle(problem, placed_maps(problem, first_placements(board_of(problem))[:MOST_GLANCES]), ROUGH)
    return float(objective_values(request, problem.layout, settled.step_s, settled.mean_w()).min())


def _exchanged(
    request: PlanRequest, pricings: Sequence[Pricing], placed: PlacedLayout, per_node: int, until: Until
) -> PlacedLayout:
    """Exchange two units between nodes, again and again, while a glance says that it is better; then place well.

    Only where nodes are unlike: orders in turns share like ones out as well.
    """
    layout = placed.layout
    order = (placed.placement.order if placed.placement else ()) or tuple(range(layout.gpus))
    unit = next(
        (one for one in _units(layout, per_node) if _pairs(layout.gpus, per_node, one) <= MOST_EXCHANGES), per_node
    )
    problem, exchanges = heat_problem(pricings, layout, order=order), _exchanges(order, per_node, unit)
    if all(bool((heat.kind == heat.kind[0]).all()) for heat in problem.heats):
        return placed
    least = _glance(request, problem)
    for _ in range(MOST_EXCHANGES):
        other = next(exchanges, None)
        if other is None or until.late():
            break
        until.spend(_glance_s(layout))
        tried = heat_problem(pricings, layout, order=other)
        value = _glance(request, tried)
        if value < least * (1.0 - SAME):
            least, problem, exchanges = value, tried, _exchanges(other, per_node, unit)
    if problem.order == order:
        return placed
    found = place_layout(request, pricings, layout, until, problem)
    return found if found.placement else placed


def _exchanges(order: Order, per_node: int, unit: int) -> Iterator[Order]:
    """The orders with two units of different nodes exchanged."""
    units = [order[first : first + unit] for first in range(0, len(order), unit)]
    each = per_node // unit
    for one, other in combinations(range(len(units)), 2):
        if one // each != other // each:
            moved = list(units)
            moved[one], moved[other] = units[other], units[one]
            yield tuple(chain.from_iterable(moved))


def _pairs(ranks: int, per_node: int, unit: int) -> int:
    """How many orders these are."""
    return ranks * (ranks - per_node) // (2 * unit * unit)


def _units(layout: Layout, per_node: int) -> list[int]:
    """Ranks that may stay together on a node: one, a tensor-parallel group, one with the context-parallel around it."""
    sizes = dict.fromkeys((1, layout.first.tp, layout.first.tp * layout.first.cp))
    return [unit for unit in sizes if per_node % unit == 0]


def scattered_orders(layout: Layout, pricing: Pricing) -> tuple[Order, ...]:
    """List the orders of ranks worth a price.

    Parameters
    ----------
    layout : Layout
        On one island. Its ranks move in units that stay together on a node: single ranks where all ways to share them
        out are few, else tensor-parallel groups, else those with the context-parallel groups around them.
    pricing : Pricing
        Of the island.

    Returns
    -------
    tuple of tuple of int
        Rank of every place, in order on each node: which ranks share a node counts, not where on it they are, and not
        which node it is; without the ranks in order. None for ranks that are counted in another order, for unlike
        grids, for ranks that do not fill their nodes, and inside a fabric that is no switch or spans nodes.
    """
    per_node, inner = pricing.island.node.gpus, pricing.tiers[0]
    grids = {grid_of(run.strategy) for stage in layout.stages for run in stage.strategies}
    unlike = layout.rank_order is not RankOrder.DP_INSIDE or len(grids) > 1 or layout.gpus % per_node
    if unlike or inner.links or inner.axes or inner.gpus != per_node:
        return ()
    units = _units(layout, per_node)
    for unit in units:
        count, each = layout.gpus // unit, per_node // unit
        if _ways(count, each) <= MOST_ORDERS:
            every = (_ranks(chain.from_iterable(shares), unit) for shares in _shares(tuple(range(count)), each))
            return tuple(every)[1:]  # the first is in order
    own = tuple(range(layout.gpus))
    turns = (_ranks(order, units[-1]) for order in _turns(layout, units[-1]))
    return tuple(order for order in dict.fromkeys(turns) if order != own)[:MOST_ORDERS]


def _ways(count: int, each: int) -> int:
    """Ways to share ``count`` things out over nodes of ``each``, whichever node is which."""
    nodes = count // each
    return factorial(count) // (factorial(each) ** nodes * factorial(nodes)) if count <= 64 else MOST_ORDERS + 1


def _shares(left: Sequence[int], each: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All of these ways, that in order first."""
    if not left:
        yield ()
        return
    for others in combinations(left[1:], each - 1):
        rest = [one for one in left[1:] if one not in others]
        yield from (((left[0], *others), *shares) for shares in _shares(rest, each))


def _turns(layout: Layout, unit: int) -> Iterator[list[int]]:
    """Stages that take turns, some units each; neighbours, or a stage of the first half with one of the second."""
    per_stage, pp = layout.first.gpus // unit, layout.pp
    half = (pp + 1) // 2
    folded = [stage for pair in range(half) for stage in (pair, pair + half) if stage < pp]
    mirrored = [stage for pair in range(half) for stage in dict.fromkeys((pair, pp - 1 - pair))]
    for stages in (list(range(pp)), folded, mirrored):
        for few in (few for few in range(1, per_stage + 1) if per_stage % few == 0):
            yield [
                stage * per_stage + chunk * few + place
                for chunk in range(per_stage // few)
                for stage in stages
                for place in range(few)
            ]


def _ranks(units: Iterable[int], unit: int) -> Order:
    return tuple(number * unit + rank for number in units for rank in range(unit))
