"""What plan search prints: the ranking, the best layout in words, why the others lose, and how sure that is."""

import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from planner.plan_report import PlanReport, SearchProof
from planner.report.console import bars, section, show
from planner.report.layout_text import breakdown, facts, job_line, labelled
from planner.report.ranking import ranking
from planner.report.words import count, layout_text, listed, percent, seconds
from planner.request import Framework, Objective

MOST_REASONS: Final = 3
_EXPORTABLE: Final = (Framework.MEGATRON, Framework.NONE)


def print_search(
    console: Console,
    report: PlanReport,
    saved: str = "",
    written: Sequence[str] = (),
    more: Sequence[RenderableType] = (),
) -> None:
    """Print the answer of a search.

    Parameters
    ----------
    console : Console
        Where to.
    report : PlanReport
        With layouts, or with the reason why there are none.
    saved : str
        Path of the JSON report, for what to do next; empty when none was written.
    written : sequence of str
        Files that were written.
    more : sequence of renderables
        Sections to show before what to do next.
    """
    if not report.layouts:
        show(console, job_line(report.request), *_infeasible(report), *_proof(report), *saved_lines(written))
        return
    best = report.layouts[0]
    show(
        console,
        job_line(report.request),
        ranking(report.layouts, console.width, sequences=report.request.model.hidden > 0),
        facts("Best", best, report.request),
        breakdown(best.cost.step, bars(console)),
        *_losses(report),
        *_proof(report),
        *more,
        *_next(report, saved),
        *saved_lines(written),
    )


def _losses(report: PlanReport) -> Sequence[RenderableType]:
    rows = [
        (f"{rank}", f"{layout_text(ranked.layout)}: {ranked.why}")
        for rank, ranked in enumerate(report.layouts, start=1)
        if ranked.why
    ]
    if not rows:
        return ()
    return (section("What each loses to the one before it", labelled(rows)),)


def _proof(report: PlanReport) -> Sequence[RenderableType]:
    rows = [("searched", counts_words(report.search))]
    if report.layouts:
        rows.append(("proof", proof_words(report)))
    if report.unconstrained_s and report.layouts:
        rows.append(("constraint", _constraint_words(report)))
    rows += [("refused", f"{number:,}: {reason}") for reason, number in report.rejected[:MOST_REASONS]]
    rest = len(report.rejected) - MOST_REASONS
    rows += [("", f"and {count(rest, 'further reason')}; --json lists all")] if rest > 0 else []
    rows += [("note", note) for note in report.notes]
    return (section("How sure", labelled(rows)),)


def counts_words(search: SearchProof) -> str:
    """Say how many candidates there were and what became of them."""
    pruned = sum(number for _, number in search.pruned)
    bounds = ", ".join(
        f"{number:,} by {name}" for name, number in sorted(search.pruned, key=lambda item: -item[1]) if number
    )
    return (
        f"{search.enumerated:,} grids enumerated; of them and their variants {pruned:,} pruned"
        + (f" ({bounds})" if bounds else "")
        + f", {search.solved:,} priced in full; {search.wall_s:.1f} s"
    )


def proof_words(report: PlanReport) -> str:
    """Say what the search proves."""
    search, best = report.search, report.layouts[0]
    if report.request.objective is not Objective.TIME:
        return f"the bounds are on time, not on {report.request.objective}: best of what was priced"
    if search.proven_optimal:
        return "no layout of the space is faster than the first, under the cost models"
    return (
        f"not proven: nothing of the space is below {seconds(search.lower_bound_s)}; "
        f"the first, {seconds(best.cost.step.total_s)}, is at most {percent(search.gap)} above the best"
    )


def _constraint_words(report: PlanReport) -> str:
    best = report.layouts[0].cost.step.total_s
    cost = best / report.unconstrained_s - 1.0
    framework = report.request.framework
    if cost < 0.0005:
        return f"what {framework} cannot do costs nothing here"
    return f"what {framework} cannot do costs {percent(cost)} ({seconds(report.unconstrained_s)} without)"


def _infeasible(report: PlanReport) -> Sequence[RenderableType]:
    why = report.infeasible
    if why is None:
        return (Text("Nothing feasible.", style="bold"),)
    rows = [("because", why.constraint), ("nearest", why.nearest_change)]
    return (section("Nothing feasible", labelled(rows)),)


def _next(report: PlanReport, saved: str) -> Sequence[RenderableType]:
    file = shlex.quote(saved) if saved and saved != "-" else "plan.json"
    steps = [f"plan explain {file} --rank 1"]
    if report.request.framework in _EXPORTABLE:
        steps.append(f"plan export {file} --rank 1 --to megatron -o launch")
    how = "" if saved else " (add --json plan.json to this search)"
    return (section(f"Next{how}", Text("\n".join(f"  {step}" for step in steps))),)


def saved_lines(paths: Sequence[str]) -> Sequence[RenderableType]:
    """Say which files were written, if any were."""
    return (Text(f"Written: {listed(paths)}"),) if paths else ()
