"""What plan estimate prints: one layout, priced and judged."""

from collections.abc import Sequence

from rich.console import Console, RenderableType

from planner.advice.remedies import Remedies
from planner.evidence.profile_use import profile_notes
from planner.layouts.request_notes import request_notes
from planner.plan_report import RankedLayout
from planner.report.console import bars, section, show
from planner.report.explain_text import saving_sections
from planner.report.layout_text import breakdown, bullets, facts, job_line, refusals, strategies
from planner.report.search_text import saved_lines
from planner.report.stage_text import memory_sections, stage_sections
from planner.request import PlanRequest
from planner.rules import Violation


def print_estimate(
    console: Console,
    request: PlanRequest,
    ranked: RankedLayout,
    broken: Sequence[Violation] = (),
    changes: Remedies | None = None,
    written: Sequence[str] = (),
) -> None:
    """Print a priced layout, the rules that it breaks, what saves memory where it needs to, and the files written."""
    show(
        console,
        job_line(request),
        facts("Estimate", ranked, request, broken),
        breakdown(ranked.cost.step, bars(console)),
        *strategies(ranked),
        *stage_sections(ranked, request),
        *memory_sections(ranked, request),
        *(saving_sections(changes) if changes is not None else ()),
        *refusals(broken, request),
        *_notes(request),
        *saved_lines(written),
    )


def _notes(request: PlanRequest) -> Sequence[RenderableType]:
    notes = (*profile_notes(request), *request_notes(request))
    return (section("Note", bullets(notes)),) if notes else ()
