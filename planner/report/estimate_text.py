"""What plan estimate prints: one layout, priced and judged."""

from collections.abc import Sequence

from rich.console import Console, RenderableType

from planner.plan_report import RankedLayout
from planner.report.console import section, show
from planner.report.layout_text import breakdown, bullets, facts, job_line, stages
from planner.request import PlanRequest
from planner.rules import Violation


def print_estimate(console: Console, request: PlanRequest, ranked: RankedLayout, broken: Sequence[Violation]) -> None:
    """Print a priced layout and the rules that it breaks."""
    ascii_only = not console.encoding.lower().startswith("utf")
    show(
        console,
        job_line(request),
        facts("Estimate", ranked, request),
        breakdown(ranked.cost.step, ascii_only=ascii_only),
        *([section("Stages", stages(ranked))] if ranked.layout.pp > 1 else []),
        *_broken(request, broken),
    )


def _broken(request: PlanRequest, broken: Sequence[Violation]) -> Sequence[RenderableType]:
    if not broken:
        return ()
    lines = [f"{violation.message} ({violation.rule})" for violation in broken]
    return (section(f"{request.framework} does not run this layout", bullets(lines)),)
