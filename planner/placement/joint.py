"""Placement and split of a layout together.

For given layers per stage the placements are priced in balance (:mod:`costmodels.power.heat`): all of them where they
are few, else from some starts by steps to better neighbours. Each pace of the stages that a good placement leaves is a
problem for the partitioner, whose splits are placed in turn. The identity placement is always among those priced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layout import Layout
from costmodels.placement import Placement, identity, stage_map
from costmodels.power.heat import (
    HeatProblem,
    IslandHeat,
    Settled,
    heat_problem,
    hottest_c,
    identity_maps,
    once,
    placed_maps,
    settle,
)
from costmodels.power.thermal import ThermalState
from costmodels.price import memory_of, placed_cost, price_layout_with_heat
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict, heaviest
from costmodels.table import Floats
from hardware.cluster import Island
from planner.layouts.build import on_island
from planner.layouts.expand import splits_freely
from planner.placement.candidates import Board, board_of, every_placement, first_placements, near
from planner.request import Objective, PlanRequest
from planner.rules import broken_rules
from planner.search.effort import HEAT_S, PLACE_S, SPLITS_S, UNENDING, Until
from planner.search.objective import objective_value, objective_values
from planner.search.uneven import uneven_layouts

MOST_GPUS: Final = 32_768  # of layouts that are placed otherwise than in order
MOST_STEPS: Final = 6  # to better neighbours
MOST_PACES: Final = 3  # paces of the stages that the partitioner is asked about
ROUGH: Final = 2e-3  # share of the step time within which all placements are priced, and then the best of them well
SAME: Final = 1e-4  # values that differ by less are equal: the balance is known to 1e-5


@dataclass(frozen=True, kw_only=True)
class PlacedLayout:
    """A layout with its best placement.

    Attributes
    ----------
    cost : LayoutCost
        With the placement.
    placement : Placement or None
        None where the ranks stay in order: no heat, very many accelerators; and over several islands.
    by_island : tuple of (int, Placement)
        Of a layout over several islands, where its ranks on each of them run; empty where all stay in order.
    in_order : LayoutCost or None
        With the ranks in order; None where no other placement was looked for, and where :func:`place_layout` was told
        another order of the ranks.
    complete : bool
        Whether all placements with consecutive ranks on every node were priced.
    cut : bool
        Whether the time ended before no better placement or split was found.
    """

    layout: Layout
    cost: LayoutCost
    placement: Placement | None = None
    in_order: LayoutCost | None = None
    complete: bool = False
    cut: bool = False
    by_island: tuple[tuple[int, Placement], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Priced:
    """Placements of one layout in balance, the identity and the best, and which is best."""

    problem: HeatProblem
    placements: tuple[Placement, ...]
    settled: Settled
    values: Floats
    best: int
    complete: bool

    @property
    def value(self) -> float:
        return float(self.values[self.best])


def place_layout(
    request: PlanRequest,
    pricings: Sequence[Pricing],
    layout: Layout,
    until: Until = UNENDING,
    like: HeatProblem | None = None,
) -> PlacedLayout:
    """Place the ranks of a layout on nodes, and on the accelerators of each.

    Parameters
    ----------
    request : PlanRequest
        Its objective decides what is best.
    pricings : sequence of Pricing
        One per island.
    layout : Layout
        Its layers per stage stay as they are.
    until : Until
        After it ranks stay in order, or as well placed as they are.
    like : HeatProblem, optional
        As in :func:`costmodels.power.heat.heat_problem`; default: consecutive ranks share a node.

    Returns
    -------
    PlacedLayout
        The identity placement where no other is better by more than the balance's tolerance.
    """
    problem = heat_problem(pricings, layout, like)
    until.spend(_heat_s(problem))
    if len(problem.heats) > 1 and layout.gpus <= MOST_GPUS and not until.late():
        return _over_islands(request, problem, until)
    if len(problem.heats) > 1 or layout.gpus > MOST_GPUS or until.late():
        cost = placed_cost(problem, settle(problem, identity_maps(problem)), 0)
        return PlacedLayout(layout=layout, cost=cost, cut=until.late())
    return replace(_placed(request, _best(request, problem, until)), cut=until.late())


def _over_islands(request: PlanRequest, problem: HeatProblem, until: Until) -> PlacedLayout:
    """Place the ranks on every island in turn, those on the others as they are, until no island gains any more."""
    layout, heats = problem.layout, problem.heats
    maps = list(identity_maps(problem))
    usual = settle(problem, maps)
    chosen: list[Placement | None] = [None] * len(heats)
    slowed = [_slows(request, heat, state) for heat, state in zip(heats, usual.states, strict=True)]
    for _ in range(MOST_STEPS):
        before = list(chosen)
        for number in np.flatnonzero(slowed).tolist():
            if until.late():
                break
            board = board_of(problem, number)
            options = every_placement(board) or first_placements(board)
            stages = problem.stages_of_places(heats[number].island)
            island = problem.step.pricings[heats[number].island].island
            there = np.concatenate([maps[number], [stage_map(option, stages, island) for option in options]])
            tried = [
                there if other == number else np.repeat(maps[other], len(there), axis=0) for other in range(len(maps))
            ]
            until.spend(_heat_s(problem, len(there)))
            settled = settle(problem, tried)
            values = objective_values(request, layout, settled.step_s, settled.mean_w())
            best = _least(values, settled.step_s * settled.mean_w())
            if values[best] < values[0] * (1.0 - SAME):
                chosen[number], maps[number] = options[best - 1], there[best : best + 1]
        if chosen == before:
            break
    in_order = placed_cost(problem, usual, 0)
    if not any(chosen):
        return PlacedLayout(layout=layout, cost=in_order, in_order=in_order, cut=until.late())
    return PlacedLayout(
        layout=layout,
        cost=placed_cost(problem, settle(problem, maps), 0),
        in_order=in_order,
        cut=until.late(),
        by_island=tuple((heat.island, place) for heat, place in zip(heats, chosen, strict=True) if place is not None),
    )


def _slows(request: PlanRequest, heat: IslandHeat, state: ThermalState) -> bool:
    """Whether placing ranks on an island may gain something."""
    unlike = bool((heat.clock > 0.0).any() or (heat.speed < 1.0).any())
    return unlike or request.objective is not Objective.TIME or bool(state.heat_limited.any())


def placed_as_given(pricings: Sequence[Pricing], layout: Layout, placement: Placement) -> PlacedLayout:
    """Price a layout on one island with its ranks where the user wants them, and with its ranks in order."""
    in_order, cost = (price_layout_with_heat(pricings, layout, place) for place in (None, placement))
    return PlacedLayout(layout=layout, cost=cost, placement=placement, in_order=in_order)


def placed_roughly(request: PlanRequest, pricings: Sequence[Pricing], layouts: Sequence[Layout]) -> list[PlacedLayout]:
    """Price layouts in order and on the coolest nodes, for want of time; the best, as many as the request wants."""
    found: list[tuple[float, int, HeatProblem, _Priced | None]] = []
    for number, layout in enumerate(layouts):
        problem = heat_problem(pricings, layout)
        if len(problem.heats) > 1:
            settled = settle(problem, identity_maps(problem))
            (value,) = objective_values(request, layout, settled.step_s, settled.mean_w())
            found.append((float(value), number, problem, None))
            continue
        board = board_of(problem)
        usual = identity(layout.gpus, len(board.slots[0].coolness))
        coolest = replace(usual, nodes=board.coolness[: len(usual.nodes)])
        priced = _price(request, problem, (usual, coolest), complete=False)
        found.append((priced.value, number, problem, priced))
    best = sorted(found, key=lambda one: one[:2])[: request.top]
    return [
        replace(_placed(request, priced), cut=True)
        if priced is not None
        else PlacedLayout(
            layout=problem.layout, cost=placed_cost(problem, settle(problem, identity_maps(problem)), 0), cut=True
        )
        for _, _, problem, priced in best
    ]


def place_with_splits(
    request: PlanRequest,
    pricings: Sequence[Pricing],
    layout: Layout,
    until: Until = UNENDING,
    like: HeatProblem | None = None,
) -> PlacedLayout:
    """Place the ranks of a layout and choose its layers per stage together.

    Parameters
    ----------
    request, pricings
        As in :func:`place_layout`; splits must be legal in the framework and no riskier than the layout's own.
    layout : Layout
        Where to start from; the result is never worse than it, wherever its ranks are placed.
    until : Until
        No other split or placement is priced after it.
    like : HeatProblem, optional
        As in :func:`place_layout`.
    """
    problem = heat_problem(pricings, layout, like)
    if len(problem.heats) > 1 or layout.gpus > MOST_GPUS or until.late():
        return place_layout(request, pricings, layout, until, like)
    best = _best(request, problem, until)
    tried = {layout}
    while not until.late():
        until.spend(MOST_PACES * SPLITS_S)
        others = [other for other in _splits(request, pricings, best) if other not in tried]
        tried.update(others)
        found = [_best(request, heat_problem(pricings, other, problem), until) for other in others if not until.late()]
        better = min(found, key=lambda priced: priced.value, default=best)
        if better.value >= best.value * (1.0 - SAME):
            break
        best = better
    return replace(_placed(request, best), cut=until.late())


def _placed(request: PlanRequest, priced: _Priced) -> PlacedLayout:
    """The best of the placements with its price: on the network too, where the order of nodes matters there."""
    problem, order = priced.problem, priced.placements[priced.best].nodes
    in_order = placed_cost(problem, priced.settled, 0)
    best, cost = priced.best, in_order
    if order != priced.placements[0].nodes and network_minds(problem.step.pricings[problem.heats[0].island].island):
        there = replace(priced.placements[priced.best], order=problem.order)
        moved = placed_on_network(problem.step.pricings, problem.layout, there)
        if objective_value(request, problem.layout, moved) < priced.values[0]:
            cost = moved
        else:  # heat gains less than the network loses: nodes stay in order
            stay = [
                row for row, placement in enumerate(priced.placements) if placement.nodes == priced.placements[0].nodes
            ]
            best = stay[int(np.argmin(priced.values[stay]))]
            cost = placed_cost(problem, priced.settled, best)
    elif best:
        cost = placed_cost(problem, priced.settled, best)
    return PlacedLayout(
        layout=problem.layout,
        cost=cost,
        placement=replace(priced.placements[best], order=problem.order),
        in_order=None if problem.order else in_order,
        complete=priced.complete and not problem.order,
    )


def network_minds(island: Island) -> bool:
    """Whether the order of nodes matters to the network: several switches, or racks of one fast domain."""
    node = island.node
    rack = node.gpus < node.scale_up.domain_gpus < island.gpus
    return rack or any(len({tier.group_of(each) for each in range(island.nodes)}) > 1 for tier in island.fabric)


def placed_on_network(pricings: Sequence[Pricing], layout: Layout, placement: Placement) -> LayoutCost:
    """Price of a layout on one island with heat, its nodes where the placement has them on the network."""
    number = layout.stages[0].island
    rest = [node for node in range(pricings[number].island.nodes) if node not in set(placement.nodes)]
    there = list(pricings)
    there[number] = replace(pricings[number], nodes=(*placement.nodes, *rest))
    moved = heat_problem(there, layout, order=placement.order)
    return placed_cost(moved, settle(moved, placed_maps(moved, (placement,))), 0)


def _best(request: PlanRequest, problem: HeatProblem, until: Until) -> _Priced:
    """Price the placements of a layout on one island; the first of those priced is the identity."""
    board = board_of(problem)
    if _unhindered(request, problem):
        alone = (identity(problem.layout.gpus, len(board.slots[0].coolness)),)
        return _price(request, problem, alone, complete=True)
    every = every_placement(board)
    if every is not None:
        until.spend(_heat_s(problem, len(every)))
        return _price(request, problem, every, complete=True)
    first = first_placements(board)
    until.spend(_heat_s(problem, len(first)))
    priced = _price(request, problem, first, complete=False)
    for _ in range(MOST_STEPS):
        better = None if until.late() else _step(request, priced, board, until)
        if better is None:
            break
        priced = better
    return priced


def _heat_s(problem: HeatProblem, placements: int = 1) -> float:
    """Counted work of bringing some placements into balance [s]."""
    return HEAT_S + PLACE_S * placements * problem.layout.gpus


def _unhindered(request: PlanRequest, problem: HeatProblem) -> bool:
    """Whether ranks in order cannot be bettered: nothing slows any accelerator.

    That settles the time. An accelerator that heat slows draws less, though, and may save energy where others set the
    pace; so of other objectives it is said only where no placement is warm enough for that.
    """
    (heat,) = problem.heats
    if (heat.clock > 0.0).any() or (heat.speed < 1.0).any():
        return False
    if request.objective is Objective.TIME:
        (state,) = once(problem, identity_maps(problem)).states
        return not bool(state.heat_limited.any())
    limit_c = heat.cooling.limit_c
    return not limit_c or bool((hottest_c(heat, float(problem.step.times.total_s[0])) <= limit_c).all())


def _step(request: PlanRequest, priced: _Priced, board: Board, until: Until) -> _Priced | None:
    """Price the neighbours of the best placement; None where none is better."""
    now = priced.placements[priced.best]
    around = (priced.placements[0], now, *near(board, now))
    until.spend(_heat_s(priced.problem, len(around)))
    found = _price(request, priced.problem, around, complete=False)
    return found if found.value < priced.value * (1.0 - SAME) else None


def _price(request: PlanRequest, problem: HeatProblem, placements: tuple[Placement, ...], *, complete: bool) -> _Priced:
    (maps,) = placed_maps(problem, placements)
    distinct, first, index = np.unique(maps, axis=0, return_index=True, return_inverse=True)
    rough = settle(problem, (distinct,), ROUGH)
    values = objective_values(request, problem.layout, rough.step_s, rough.mean_w())
    # The identity, and every placement that can be the best once the balance is known well; each way once.
    hopeful = np.flatnonzero(values <= values.min() * (1.0 + 4.0 * ROUGH))
    kept = sorted({0, *first[hopeful].tolist()})
    settled = settle(problem, (distinct[index.reshape(-1)[kept]],))
    values = objective_values(request, problem.layout, settled.step_s, settled.mean_w())
    return _Priced(
        problem=problem,
        placements=tuple(placements[row] for row in kept),
        settled=settled,
        values=values,
        best=_least(values, settled.step_s * settled.mean_w()),
        complete=complete,
    )


def _least(values: Floats, energy: Floats) -> int:
    """Least value; among equal ones no worse than the first the least energy, among equal ones the first."""
    good = np.flatnonzero(values <= min(values.min() * (1.0 + SAME), values[0]))
    good = good[energy[good] <= energy[good].min() * (1.0 + SAME)]
    return int(good[0])


def _splits(request: PlanRequest, pricings: Sequence[Pricing], priced: _Priced) -> Iterator[Layout]:
    """Splits for the paces of some placements: the best one, the one in order, and those next to the best."""
    layout = priced.problem.layout
    if layout.pp == 1 or not splits_freely(request):
        return
    verdict = heaviest(memory_of(pricings, layout)).verdict
    (heat,) = priced.problem.heats
    order = dict.fromkeys((priced.best, 0, *np.argsort(priced.values, kind="stable").tolist()))
    paces = list(dict.fromkeys(tuple(np.round(priced.settled.stretch[row], 4).tolist()) for row in order))
    seen = {layout}
    for split in uneven_layouts(pricings[heat.island], layout, paces[:MOST_PACES]):
        other = on_island(split, heat.island)
        if other not in seen and as_safe(request, pricings, other, verdict):
            yield other
        seen.add(other)


def as_safe(request: PlanRequest, pricings: Sequence[Pricing], split: Layout, verdict: Verdict) -> bool:
    """Whether a split is legal in the framework, and fits or is no riskier than one with this verdict."""
    if broken_rules(split, request):
        return False
    return heaviest(memory_of(pricings, split)).verdict in (Verdict.FITS, verdict)
