"""What plan estimate prints: one layout, priced and judged."""

from collections.abc import Sequence

from rich.console import Console, RenderableType

from planner.advice.remedies import Remedies
from planner.evidence.profile_use import profile_notes
from planner.layouts.request_notes import request_notes
from planner.plan_report import RankedLayout
from planner.report.console import bars, section, show
from planner.report.explain_text import saving_sections
from planner.report.layout_text import breakdown, bullets, facts, job_line, strategies
from planner.report.search_text import saved_lines
from planner.report.stage_text import memory_sections, stage_sections
from planner.request import PlanRequest
from planner.rules import Violation


def print_estimate(
    console: Console,
    request: PlanRequest,
    ranked: RankedLayout,
    broken: Sequence[Violation],
    changes: Remedies | None = None,
    written: Sequence[str] = (),
) -> None:
    """Print a priced layout, the rules that it breaks, what saves memory where it needs to, and the files written."""
    show(
        console,
        job_line(request),
        facts(f"Estimate, not legal for {request.framework}" if broken else "Estimate", ranked, request),
        breakdown(ranked.cost.step, bars(console)),
        *strategies(ranked),
        *stage_sections(ranked, request),
        *memory_sections(ranked, request),
        *(saving_sections(changes) if changes is not None else ()),
        *_broken(request, broken),
        *_notes(request),
        *saved_lines(written),
    )


def _notes(request: PlanRequest) -> Sequence[RenderableType]:
    notes = (*profile_notes(request), *request_notes(request))
    return (section("Note", bullets(notes)),) if notes else ()


def _broken(request: PlanRequest, broken: Sequence[Violation]) -> Sequence[RenderableType]:
    if not broken:
        return ()
    lines = [f"{violation.message} ({violation.rule})" for violation in broken]
    return (section(f"{request.framework} does not run this layout", bullets(lines)),)
