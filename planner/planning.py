"""The door: ``plan(request) -> PlanReport`` and ``estimate(request, layout) -> RankedLayout``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from costmodels.layout import Layout
from costmodels.placement import Placement
from costmodels.power.node import capped_island
from costmodels.price import price_layout
from costmodels.pricing import Constants, Pricing
from costmodels.results import LayoutCost, Verdict
from hardware.cluster import Island
from hardware.segments import in_segments
from planner.evidence.nearness import evidence_for
from planner.evidence.profile_use import profile_notes
from planner.infeasible.reasons import explain_infeasible
from planner.layouts.request_notes import request_notes
from planner.placement import (
    PlacedLayout,
    in_order,
    on_islands,
    one_order_each,
    place_all,
    place_layout,
    place_nodes,
    placed_as_given,
    rank_orders,
    rank_places,
    scatter,
    scatter_best,
)
from planner.placement.order import places_in_order
from planner.placement.slow_devices import SlowDevice, slow_devices, without_slow_nodes
from planner.plan_report import PlanReport, RankedLayout, RankPlace, SearchProof
from planner.request import Framework, Objective, PlanRequest
from planner.sayable import EVERYTHING
from planner.search.effort import Stopwatch, Taken, Until, from_now
from planner.search.every_island import ANY_FIT, Look, distinct, search_island, search_islands, shown
from planner.search.larger_chunks import with_larger_chunks
from planner.search.merge import Answer, is_safe, limit_s, merged
from planner.search.objective import check_objective, objective_value, why_slower
from planner.search.refine import with_best_split
from planner.search.spans import RANKS_CUT, spans
from planner.search.stage_ilp import StageShape
from planner.search.tally import Tally
from planner.search.two_level import PER_LAYER, mixed_plans
from planner.search.uniform import Aim

MOST_STAGE_GPUS: Final = 64
UNCONSTRAINED_LIMIT_S: Final = 5.0  # for a number that informs and decides nothing
UNCONSTRAINED_LEAST_S: Final = 1.0  # it is not begun with less time left
MOST_WANTED: Final = 320  # grids that a search with heat keeps
PLACED_SHARE: Final = 0.85  # of the time until layouts are placed well; those left are placed roughly then
LEAN_SHARE: Final = 0.2  # of the time for layouts without the nodes of slow devices
THRIFTY_AMONG: Final = 4  # times as many of the fastest grids are looked at where the ranking is not by time


def pricings_of(request: PlanRequest, constants: Constants | None = None) -> tuple[Pricing, ...]:
    """Return what stays fixed while the candidates of a request vary, one for every island."""
    shared, profile = constants or Constants(), request.profile
    return tuple(
        Pricing(
            model=request.model,
            job=request.job,
            island=in_segments(capped_island(request.cluster, island)),
            constants=profile.over(shared, island.node.accelerator.name, request.job.software.framework)
            if profile
            else shared,
        )
        for island in request.cluster.islands
    )


def plan(request: PlanRequest, constants: Constants | None = None, until: Until | None = None) -> PlanReport:
    """Find the best layouts for a request.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job, framework and limits.
    constants : Constants, optional
        Constants of the cost models; default: those that ship.
    until : Until, optional
        Its end, where it is one of several searches; default: the time limit of the request from now on.

    Returns
    -------
    PlanReport
        Ranked layouts with prices, counts, bounds; or why nothing is feasible.

    Raises
    ------
    InputError
        The request contradicts itself.
    """
    check_objective(request)
    until = from_now(request.time_limit_s) if until is None else until
    if request.variants:
        return _of_variants(request, constants, until)
    return _searched(request, constants, until)[0]


def fastest(
    request: PlanRequest, constants: Constants | None, until: Until, accepted: tuple[Verdict, ...]
) -> RankedLayout | None:
    """Find the fastest layout on a machine of which all nodes are needed, without bounds on what is not found.

    Parameters
    ----------
    request : PlanRequest
        Fewer of several nodes than its cluster has are not looked at.
    constants : Constants or None
        Of the cost models.
    until : Until
        The end of the search.
    accepted : tuple of Verdict
        What may fit, in this order, until something is found.
    """
    layouts = _searched(request, constants, until, _Before(accepted=accepted, explain=False, alone=True))[0].layouts
    return layouts[0] if layouts else None


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What is known before a search: a time [s] beyond which nothing is wanted, and what may fit, in this order.

    ``explain``: say why nothing is feasible, if nothing is. ``alone``: only the fastest layout counts.
    """

    limit_s: float = float("inf")
    accepted: tuple[Verdict, ...] = ANY_FIT
    explain: bool = True
    alone: bool = False

    def look(self, until: Until, wanted: int, *, placed: bool) -> Look:
        """How to search with what is known."""
        return Look(
            until=until,
            aim=Aim(wanted=wanted, limit_s=self.limit_s, on_all=self.alone),
            placed=placed,
            accepted=self.accepted,
        )


_NOTHING_BEFORE: Final = _Before()


def _of_variants(request: PlanRequest, constants: Constants | None, until: Until) -> PlanReport:
    """Search the variants of a request one after the other, each in its share of the time that is left."""
    watch = Stopwatch(until)
    answers, tallies = list[Answer](), list[Tally]()
    for number, variant in enumerate(request.variants):
        share = until.part(1.0 / (len(request.variants) - number))
        safe = any(is_safe(ranked) for answer in answers for ranked in answer.report.layouts)
        accepted = ANY_FIT[:1] if safe else ANY_FIT
        before = _Before(limit_s=limit_s(request, answers), accepted=accepted, explain=False)
        report, tally = _searched(request.of(variant), constants, share, before)
        tallies.append(tally)
        answers.append(Answer(variant=variant, report=report))
    report = merged(request, answers)
    every = Tally(accepted=Verdict.FITS, wanted=request.top)
    for tally in tallies:
        every.absorb(tally)
    if not report.layouts:
        first = request.of(request.variants[0])
        why = explain_infeasible(first, pricings_of(first, constants), every, until)
        report = replace(report, infeasible=why, notes=answers[0].report.notes)
    return replace(report, search=_proof(every, report.layouts, watch.taken()))


def _searched(
    request: PlanRequest, constants: Constants | None, until: Until, before: _Before = _NOTHING_BEFORE
) -> tuple[PlanReport, Tally]:
    """Search for the layouts of a request without variants; with what was seen."""
    watch = Stopwatch(until)
    pricings = pricings_of(request, constants)
    placing = until.part(PLACED_SHARE)
    wanted = shown(request) * (1 if request.objective is Objective.TIME else THRIFTY_AMONG)
    slow = slow_devices(pricings)
    lean = _without_slow_nodes(request, constants, slow, Look(until=until.part(LEAN_SHARE), aim=Aim(wanted=wanted)))
    priced: list[tuple[Layout, LayoutCost]] = []
    cool: dict[Layout, PlacedLayout] = {}
    placed: dict[Layout, PlacedLayout] = {}
    kin: dict[Layout, Layout] = {}  # layouts with larger chunks, and those they were made of
    while True:
        tally, found = search_islands(request, pricings, before.look(until, wanted, placed=by_device(request)))
        priced = distinct([*priced, *found])  # a later round that the time limit cuts may find fewer
        new = [pair for pair in (*priced, *lean) if pair[0] not in cool]
        new, likes = _with_larger_chunks(request, pricings, new) if slow else (new, {})
        kin |= likes
        cool |= _in_best_orders(request, pricings, new, until)
        placed = place_all(request, pricings, cool, placed, placing) if by_device(request) else cool
        if _covered(request, tally, found, placed) or placing.late():
            break
        wanted *= 2
    if by_device(request):
        placed = scatter_best(request, pricings, placed, until)
    if placing.late():
        tally.cut[RANKS_CUT] += sum(layout not in placed or placed[layout].cut for layout in cool)
    ranked = _ranked(request, pricings, one_order_each(request, placed, kin))
    infeasible = None if ranked or not before.explain else explain_infeasible(request, pricings, tally, until)
    unconstrained_s = 0.0 if before.alone else _unconstrained_s(request, pricings, ranked, until)
    report = PlanReport(
        request=request,
        layouts=ranked,
        search=_proof(tally, ranked, watch.taken()),
        rejected=tuple(tally.rejected.most_common()),
        infeasible=infeasible,
        unconstrained_s=unconstrained_s,
        notes=_notes(request, pricings),
    )
    return report, tally


def _covered(
    request: PlanRequest,
    tally: Tally,
    priced: Sequence[tuple[Layout, LayoutCost]],
    placed: Mapping[Layout, PlacedLayout],
) -> bool:
    """Whether no grid that was not kept can win: heat takes pace and gives none, so what is slower without it is too.

    Said of searches for time on one island; others are not searched again.
    """
    if not by_device(request) or request.objective is not Objective.TIME or len(request.cluster.islands) > 1:
        return True
    if len(tally.best) < tally.wanted or tally.wanted >= MOST_WANTED:
        return True
    slowest_s = max(cost.step.total_s for _, cost in priced)
    return min(one.cost.step.total_s for one in placed.values()) <= slowest_s


def _without_slow_nodes(
    request: PlanRequest, constants: Constants | None, slow: Sequence[SlowDevice], look: Look
) -> list[tuple[Layout, LayoutCost]]:
    """Layouts that leave the nodes of slow devices idle, as many as are looked at; nothing where no device is slow."""
    fewer = without_slow_nodes(request.cluster, slow) if slow else None
    if fewer is None:
        return []
    lean = replace(request, cluster=fewer)
    pricings = pricings_of(lean, constants)
    mixed = request.framework in PER_LAYER
    parts = spans(look.until, len(pricings), placed=False, mixed=mixed)
    return [pair for number, part in enumerate(parts) for pair in search_island(lean, pricings, number, part, look)[1]]


def _with_larger_chunks(
    request: PlanRequest, pricings: Sequence[Pricing], priced: Sequence[tuple[Layout, LayoutCost]]
) -> tuple[list[tuple[Layout, LayoutCost]], dict[Layout, Layout]]:
    """Layouts and their likes with larger chunks, each once with its price; and which layout a like was made of."""
    known, likes, kin = dict(priced), dict[Layout, LayoutCost](), dict[Layout, Layout]()
    for given, cost in known.items():
        for like, price in with_larger_chunks(request, pricings, given, cost):
            if like not in known:
                likes[like], kin[like] = price, given
    return [*priced, *likes.items()], kin


def _in_best_orders(
    request: PlanRequest, pricings: Sequence[Pricing], priced: Sequence[tuple[Layout, LayoutCost]], until: Until
) -> dict[Layout, PlacedLayout]:
    """Layouts with the orders of ranks and nodes that are best for the network; for single devices the others too."""
    found = {}
    for layout, cost in priced:
        others = rank_orders(request, pricings[0], layout) if len(pricings) == 1 else ()
        if not by_device(request):
            # a split is best for one order: exchanges that show on the first stage may be hidden in another
            splits = [with_best_split(request, pricings[0], other, until)[0] for other in others]
            found[layout] = place_nodes(pricings, layout, cost, tuple(dict.fromkeys((*others, *splits))), until)
            continue
        best = place_nodes(pricings, layout, cost, others, until)
        found[best.layout] = best
        for other in (layout, *others):
            if other == layout or not until.late():
                found.setdefault(other, PlacedLayout(layout=other, cost=price_layout(pricings, other)))
    return found


def by_device(request: PlanRequest) -> bool:
    """Whether the accelerators of a request are priced one by one: with heat, or where some are unlike the others."""
    return request.thermal or any(island.devices for island in request.cluster.islands)


def _notes(request: PlanRequest, pricings: Sequence[Pricing]) -> tuple[str, ...]:
    """What the prices take for granted about how the job is allocated, and where a profile does not hold."""
    notes = [*profile_notes(request), *request_notes(request)]
    for island, pricing in zip(request.cluster.islands, pricings, strict=True):
        segment = pricing.island.node.scale_up.domain_gpus
        if segment != island.node.scale_up.domain_gpus:
            nodes = segment // island.node.gpus
            notes.append(
                f"allocate in segments of {nodes} nodes ({segment} GPUs of one domain; SLURM --segment={nodes})"
            )
        notes += _part_of_a_domain(island)
    return tuple(notes)


def _part_of_a_domain(island: Island) -> list[str]:
    """A remark on machines whose scale-up domain spans many nodes, of which the cluster has only some."""
    node, domain = island.node, island.node.scale_up.domain_gpus
    if domain <= node.gpus or island.gpus >= domain or island.domains:
        return []
    nodes = domain // node.gpus
    return [f"{island.gpus} of the {domain} GPUs of a scale-up domain: a node has {node.gpus}, {nodes} make one"]


def _unconstrained_s(
    request: PlanRequest, pricings: Sequence[Pricing], ranked: Sequence[RankedLayout], until: Until
) -> float:
    """Step time when every layer of the winner's pipeline may have a strategy of its own; 0.0 when it is not asked.

    Not asked of frameworks that allow it anyway, and of stages with more GPUs than the ILP is meant for; given up
    after a few seconds.
    """
    if not ranked or request.framework in PER_LAYER or len(pricings) > 1 or request.always_piped:
        return 0.0
    if until.late(UNCONSTRAINED_LEAST_S):
        return 0.0
    best = ranked[0]
    if best.layout.stages[0].gpus > MOST_STAGE_GPUS or not request.model.hidden:
        return 0.0
    free = replace(request, framework=Framework.NONE, sayable=EVERYTHING)
    limit = until.within(until.after(UNCONSTRAINED_LIMIT_S, inf))
    plans = mixed_plans(free, pricings[0], [shape_of(best)], limit)
    if not plans:
        return 0.0
    return min([best.cost.step.total_s, *(plan.cost.step.total_s for plan in plans)])


def shape_of(ranked: RankedLayout) -> tuple[StageShape, float]:
    """Pipeline shape and step time of a uniform layout."""
    layout, first = ranked.layout, ranked.layout.first
    shape = StageShape(
        gpus=first.gpus,
        samples=layout.micro_batch * first.dp,
        pp=layout.pp,
        num_microbatches=layout.num_microbatches,
        shard_group=first.shard_group,
    )
    return shape, ranked.cost.step.total_s


def estimate(
    request: PlanRequest, layout: Layout, constants: Constants | None = None, placement: Placement | None = None
) -> RankedLayout:
    """Price one explicit layout as the search would.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    layout : Layout
        What to price.
    constants : Constants, optional
        Of the cost models; default: those that ship.
    placement : Placement, optional
        Where its ranks run; default: as well as launchers allow, by heat and single accelerators where they count, else
        by the network.
    """
    pricings = pricings_of(request, constants)
    if placement is not None:
        return as_ranked(request, pricings, placed_as_given(pricings, layout, placement))
    if by_device(request):
        return as_ranked(request, pricings, scatter(request, pricings, place_layout(request, pricings, layout)))
    return as_ranked(request, pricings, place_nodes(pricings, layout, price_layout(pricings, layout)))


def over_islands(request: PlanRequest, layout: Layout, constants: Constants | None = None) -> Layout:
    """Return a layout that names no islands on those of the request where it is fastest; see :func:`on_islands`."""
    return on_islands(pricings_of(request, constants), layout)


def as_ranked(
    request: PlanRequest, pricings: Sequence[Pricing], placed: PlacedLayout, before: LayoutCost | None = None
) -> RankedLayout:
    """Return a placed layout with its evidence, and why it is slower than the one before it."""
    layout, cost = placed.layout, placed.cost
    return RankedLayout(
        layout=layout,
        cost=cost,
        evidence=evidence_for(
            pricings[layout.stages[0].island], layout, cost.step.total_s, cost.heaviest.total_bytes, request.profile
        ),
        why=why_slower(before, cost) if before else "",
        placement=_places(request, placed),
        in_order=in_order(placed),
    )


def _places(request: PlanRequest, placed: PlacedLayout) -> tuple[RankPlace, ...]:
    """Where the ranks run; empty where they are in order."""
    if placed.by_island:
        return places_in_order(placed.layout, request.cluster, placed.by_island)
    if placed.placement is None:
        return ()
    return rank_places(placed.placement, request.cluster, placed.layout.stages[0].island)


def _ranked(
    request: PlanRequest, pricings: Sequence[Pricing], found: Sequence[PlacedLayout]
) -> tuple[RankedLayout, ...]:
    """Sort by the objective; ties keep the order of the search."""
    placed = sorted(found, key=lambda one: objective_value(request, one.layout, one.cost))
    ranked: list[RankedLayout] = []
    for one in placed[: request.top]:
        ranked.append(as_ranked(request, pricings, one, ranked[-1].cost if ranked else None))
    return tuple(ranked)


def _proof(tally: Tally, ranked: Sequence[RankedLayout], taken: Taken) -> SearchProof:
    """Bounds hold for the step time: nothing is proven of a ranking by energy or by money."""
    best_s = min((layout.cost.step.total_s for layout in ranked), default=0.0)
    bound_s = min(tally.open_bound_s, best_s)
    by_time = bool(ranked) and ranked[0].cost.step.total_s == best_s
    return SearchProof(
        enumerated=tally.enumerated,
        pruned=tuple(sorted((reason, count) for reason, count in tally.pruned.items() if count)),
        solved=tally.solved,
        lower_bound_s=bound_s,
        gap=(best_s - bound_s) / best_s if best_s else 0.0,
        proven_optimal=by_time and bound_s >= best_s * (1.0 - 1e-9),
        wall_s=taken.wall_s,
        work_s=taken.work_s,
        by_clock=taken.by_clock,
        cut=tuple((what, count) for what, count in sorted(tally.cut.items()) if count),
    )
