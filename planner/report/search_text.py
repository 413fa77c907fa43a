"""What plan search prints: the ranking, the best layout in words, why the others lose, and how sure that is."""

import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from costmodels.job import Dispatcher
from costmodels.results import Evidence
from hardware.errors import InputError
from hardware.nouns import count
from planner.plan_report import PlanReport, SearchProof
from planner.report.console import bars, section, show
from planner.report.launch import launch_of, launchable, launchable_words
from planner.report.layout_text import breakdown, facts, job_line, labelled
from planner.report.ranking import ranking
from planner.report.stage_text import uneven_sections
from planner.report.target import Target
from planner.report.trainer_text import trainer_steps
from planner.report.words import gib, interval, listed, percent, ranked_text, seconds
from planner.request import Framework, Objective
from planner.rules import broken_rules
from planner.search.spans import BY_CLOCK, cut_in_words

MOST_REASONS: Final = 3
_FLEXIBLE: Final = (
    Framework.MEGATRON,
    Framework.BRIDGE,
    Framework.NEMO,
    Framework.NONE,
)  # the flex dispatcher of the core
_LEGEND: Final = "mb: micro-batch; vpp: virtual chunks a stage; GiB: memory of the fullest GPU"


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
    best, (not_launched, rank) = report.layouts[0], _not_launched(report)
    request = report.request_of(best)
    show(
        console,
        job_line(report.request),
        Group(
            ranking(report.layouts, console.width, report.request),
            Text(f"{proof_words(report)}."),
            *roomier_lines(report),
            Text(_LEGEND, style="dim"),
        ),
        facts("Best", best, request, broken_rules(best.layout, request)),
        *uneven_sections(best, request),
        *_proof(report, not_launched),
        breakdown(best.cost.step, bars(console)),
        *_losses(report),
        *more,
        *_next(report, saved, rank=rank),
        *saved_lines(written),
    )


def _losses(report: PlanReport) -> Sequence[RenderableType]:
    rows = [
        (f"{rank}", f"{ranked_text(ranked)}: {ranked.why}")
        for rank, ranked in enumerate(report.layouts, start=1)
        if ranked.why
    ]
    if not rows:
        return ()
    return (section("What each loses to the one before it", labelled(rows)),)


def _proof(report: PlanReport, not_launched: str = "") -> Sequence[RenderableType]:
    rows = [("prediction", _prediction_words(ranked.evidence)) for ranked in report.layouts[:1]]
    rows.append(("search", counts_words(report.search)))
    cut = [cut_in_words(what, number) for what, number in report.search.cut]
    rows += [("time limit", f"{words}; a longer --time-limit does") for words in cut]
    if report.search.by_clock:
        rows.append(("time limit", BY_CLOCK))
    if report.unconstrained_s and report.layouts:
        rows.append(("constraint", _constraint_words(report)))
    rows += [("experts", words) for words in _dispatcher_words(report)]
    rows += [("launch", not_launched)] if not_launched else []
    rows += [("refused", f"{number:,}: {reason}") for reason, number in report.rejected[:MOST_REASONS]]
    rest = len(report.rejected) - MOST_REASONS
    rows += [("", f"and {count(rest, 'further reason')}; --json lists all")] if rest > 0 else []
    rows += [("note", note) for note in report.notes]
    return (section("How sure", labelled(rows)),)


def _dispatcher_words(report: PlanReport) -> Sequence[str]:
    """Name the search over dispatchers, where experts could be spread and the plain one was all that was looked at."""
    request = report.request
    tried = any(name == "dispatcher" for variant in request.variants for name, _ in variant.choices)
    plain = request.job.software.dispatcher is Dispatcher.ALLTOALL
    if not report.layouts or not request.model.has_experts or tried or not plain or request.framework not in _FLEXIBLE:
        return ()
    return ("exchanged by alltoall alone; --try dispatcher=alltoall,deepep ranks layouts of both",)


def counts_words(search: SearchProof) -> str:
    """Say how many candidates there were and what became of them."""
    fates = {"cannot be faster": 0, "cannot fit the memory": 0, "not reached in the time limit": 0}
    for bound, number in search.pruned:
        fates[_fate(bound)] += number
    ruled_out = ", ".join(f"{number:,} {fate}" for fate, number in fates.items() if number)
    return (
        f"{count(search.enumerated, 'grid')}; {search.solved:,} of their variants priced in full"
        + (f"; of grids and variants {ruled_out}" if ruled_out else "")
        + f"; {search.wall_s:.1f} s"
    )


def _fate(bound: str) -> str:
    """What became of the candidates that a bound, as the search names it, kept from being priced."""
    if "time limit" in bound:
        return "not reached in the time limit"
    return "cannot fit the memory" if "memory" in bound else "cannot be faster"


def _prediction_words(evidence: Evidence) -> str:
    """Say how far to trust the step time of the best layout."""
    if evidence.high_s <= 0.0:
        return "no interval is known"
    return f"four of five runs like it take {interval(evidence.low_s, evidence.high_s)}"


def proof_words(report: PlanReport) -> str:
    """Say what the search proves."""
    search, best = report.search, report.layouts[0]
    if report.request.objective is not Objective.TIME:
        objective = report.request.objective
        return f"Not proven best: bounds are on time, not on {objective}; the first is the best that was priced"
    if search.proven_optimal:
        return "Proven best: under the cost models no layout is faster than the first"
    if search.lower_bound_s <= 0.0:
        return "Not proven best: the time limit ended the search before every machine was looked at"
    return (
        f"Not proven best: a layout of {seconds(search.lower_bound_s)} cannot be ruled out, "
        f"so the first, {seconds(best.cost.step.total_s)}, is at most {percent(search.gap)} above the best"
    )


def roomier_lines(report: PlanReport) -> Sequence[Text]:
    """Name the layout that is nearly as fast as the first and takes far less memory; nothing where there is none."""
    near = report.roomier
    if near is None:
        return ()
    use = report.layouts[near.rank - 1].cost.heaviest
    room = f"{gib(near.freed_bytes):.1f} GiB less on its fullest GPU ({gib(use.total_bytes):.1f} of"
    words = f"layout {near.rank}, {percent(near.slower)} slower, takes {room} {gib(use.usable_bytes):.1f})"
    return (Text(f"Nearly as fast with more room: {words}."),)


def _constraint_words(report: PlanReport) -> str:
    best = report.layouts[0].cost.step.total_s
    cost = best / report.unconstrained_s - 1.0
    program = report.request.program
    if cost < 0.0005:
        return f"what {program} cannot do costs nothing here"
    return f"what {program} cannot do costs {percent(cost)} ({seconds(report.unconstrained_s)} without)"


def _infeasible(report: PlanReport) -> Sequence[RenderableType]:
    why = report.infeasible
    if why is None:
        return (Text("Nothing feasible.", style="bold"),)
    rows = [("because", why.constraint), ("nearest", why.nearest_change)]
    return (section("Nothing feasible", labelled(rows)),)


def _exported_to(report: PlanReport) -> Framework:
    framework = report.request.framework
    return Framework.MEGATRON if framework is Framework.NONE else framework


def _not_launched(report: PlanReport) -> tuple[str, int]:
    """Why the best layout cannot be exported, and the first rank that can: empty and 1 where the best can, 0: none."""
    if report.request.sayable.program:
        return "", 0  # told in its own options
    target = Target(format=str(_exported_to(report)))
    try:
        launch_of(report.request_of(report.layouts[0]), report.layouts[0], target)
    except InputError as error:
        others = launchable(report, target)
        if not others:
            return f"no launch can be written: {error.what}{_instead(error)}", 0
        return f"no launch can be written of the first: {error.what}; {launchable_words(report, others)} can", others[0]
    return "", 1


def _instead(error: InputError) -> str:
    """What an exporter takes in place of what it refuses."""
    return f"; allowed: {error.allowed}" if error.allowed else ""


def _next(report: PlanReport, saved: str, *, rank: int) -> Sequence[RenderableType]:
    file = shlex.quote(saved) if saved and saved != "-" else "plan.json"
    launched = f"plan export {file} --rank {rank} --to {_exported_to(report)} -o launch    # the launch files"
    bare = f"plan export {file} --rank 1 --to json    # the layout, without any framework's words"
    steps = [
        f"plan explain {file} --rank 1    # where the time goes, what to change",
        launched if rank else bare,
        *trainer_steps(report.request, report.layouts[0]),
    ]
    how = "" if saved and saved != "-" else ", once --json plan.json is added to this search"
    return (section(f"Next{how}", Text("\n".join(f"  {step}" for step in steps))),)


def saved_lines(paths: Sequence[str]) -> Sequence[RenderableType]:
    """Say which files were written, if any were."""
    return (Text(f"Written: {listed(paths)}"),) if paths else ()
