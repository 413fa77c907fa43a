"""The answers to the variants of a request as one: layouts ranked together, counts added, bounds that hold for all.

A layout in which nothing differs that a choice is about, such as one without context parallelism under another exchange
of it, has the same price in several variants. It is named once, with the first of them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from costmodels.layout import Layout
from costmodels.results import LayoutCost, Verdict
from planner.plan_report import PlanReport, RankedLayout
from planner.request import Objective, PlanRequest, Variant
from planner.search.objective import objective_value, why_slower
from planner.variants import SCHEDULE, notes_of


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the search of one variant found."""

    variant: Variant
    report: PlanReport


def ranked_together(request: PlanRequest, answers: Sequence[Answer]) -> list[RankedLayout]:
    """Rank the layouts of some answers, each with the choices that it is made with.

    Parameters
    ----------
    request : PlanRequest
        States the objective.
    answers : sequence of Answer
        In the order of the variants.

    Returns
    -------
    list of RankedLayout
        Ties keep the order of the variants and of their rankings. Those that fit with risk are left out where any fits
        safely.
    """
    found: dict[tuple[Layout, LayoutCost], RankedLayout] = {}
    for answer in answers:
        for ranked in answer.report.layouts:
            chosen = replace(ranked, choices=_made(answer.variant, ranked.layout))
            found.setdefault((ranked.layout, ranked.cost), chosen)
    safe = [ranked for ranked in found.values() if is_safe(ranked)]
    return sorted(safe or found.values(), key=lambda ranked: objective_value(request, ranked.layout, ranked.cost))


def is_safe(ranked: RankedLayout) -> bool:
    """Whether a layout fits its memory without risk."""
    return ranked.cost.heaviest.verdict is Verdict.FITS


def limit_s(request: PlanRequest, answers: Sequence[Answer]) -> float:
    """Time [s] beyond which another variant has nothing to add: that of the last layout wanted; infinite without one.

    Bounds are on time, so a ranking by something else has no limit; nor has one that fits with risk alone.
    """
    pool = [ranked for ranked in ranked_together(request, answers) if is_safe(ranked)]
    if request.objective is not Objective.TIME or len(pool) < request.top:
        return float("inf")
    return pool[request.top - 1].cost.step.total_s


def merged(request: PlanRequest, answers: Sequence[Answer]) -> PlanReport:
    """Return the answer to a request from those to its variants.

    Parameters
    ----------
    request : PlanRequest
        With its variants.
    answers : sequence of Answer
        One for each, in their order.

    Returns
    -------
    PlanReport
        Its proof is that of the first variant.
    """
    layouts = _with_reasons(ranked_together(request, answers)[: request.top])
    reports = [answer.report for answer in answers]
    notes = [note for report in reports for note in report.notes]
    notes += [note for answer in answers for note in notes_of(answer.variant.choices, request.framework)]
    return PlanReport(
        request=request,
        layouts=layouts,
        search=reports[0].search,
        rejected=_added(report.rejected for report in reports),
        unconstrained_s=_unconstrained_s(answers, layouts[0]) if layouts else 0.0,
        notes=tuple(dict.fromkeys(notes)),
    )


def _unconstrained_s(answers: Sequence[Answer], best: RankedLayout) -> float:
    """What a choice per layer would take [s], as the answer says that the best layout is of; 0.0 where none asked."""
    found = (one.report for one in answers if _made(one.variant, best.layout) == best.choices)
    return next(found).unconstrained_s


def _with_reasons(layouts: Sequence[RankedLayout]) -> tuple[RankedLayout, ...]:
    """Say anew what each layout loses to the one before it, which may be of another variant."""
    before = (None, *layouts)
    return tuple(
        replace(ranked, why=why_slower(better.cost, ranked.cost) if better else "")
        for better, ranked in zip(before, layouts, strict=False)
    )


def _added(counts: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    """Add up counts by name, the largest first."""
    total: Counter[str] = Counter()
    for some in counts:
        total.update(dict(some))
    return tuple(total.most_common())


def _made(variant: Variant, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Choices of a variant as a layout has them: of schedules that were searched together, its own."""
    return tuple((name, layout.schedule.value if name == SCHEDULE else value) for name, value in variant.choices)
