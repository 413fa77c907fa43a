"""What plan explain prints: the waterfall from peak to achieved, memory, what to change, why the next one is slower."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from costmodels.results import Verdict
from planner.advice.explain import Crossing, TimeLoss, clock_share, crossings, differences, falls, waterfall
from planner.advice.heat import HeatAdvice
from planner.advice.remedies import Remedies, Remedy
from planner.advice.what_if import WhatIf
from planner.infeasible.refused_savings import Refused
from planner.plan_report import PlanReport, RankedLayout
from planner.report.console import NARROW, bars, section, show
from planner.report.heat_text import heat_sections
from planner.report.layout_text import bullets, facts, job_line, labelled, refusals, stages, strategies
from planner.report.ranking import STYLES
from planner.report.stage_text import stage_sections
from planner.report.tables import WholeTable, ruled_table
from planner.report.traffic_text import traffic_sections
from planner.report.words import digits, gib, layout_text, percent, recompute_text, seconds
from planner.request import PlanRequest
from planner.rules import broken_rules
from planner.traffic import traffic_of
from planner.traffic.sensitivity import Sensitivity

MOST_REMEDIES: Final = 8
FALL_BAR: Final = 22
NARROW_FALL_BAR: Final = 6
SAME_PRICE: Final = 1e-6
MOST_DIFFERENCES: Final = 6


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is priced around a layout: fabrics, circumstances, accelerators, and savings that are refused."""

    fabrics: Sequence[Sensitivity] = ()
    what_ifs: Sequence[WhatIf] = ()
    heat: HeatAdvice | None = None
    refused: Sequence[Refused] = ()


def print_explanation(
    console: Console,
    report: PlanReport,
    rank: int,
    changes: Remedies,
    more: Surroundings | None = None,
) -> None:
    """Print where the time and memory of one layout of a report go.

    Parameters
    ----------
    console : Console
        Where to.
    report : PlanReport
        With at least ``rank`` layouts.
    rank : int
        From 1.
    changes : Remedies
        Priced neighbours of the layout.
    more : Surroundings, optional
        The layout on other fabrics and under other circumstances, its accelerators, what its framework refuses.
    """
    ranked = report.layouts[rank - 1]
    broken = broken_rules(ranked.layout, report.request)
    more = more or Surroundings()
    show(
        console,
        job_line(report.request),
        facts(f"Rank {rank}", ranked, report.request, broken),
        *refusals(broken, report.request),
        section("From peak to the step as it is", _waterfall(ranked, report.request, console)),
        *strategies(ranked),
        *(stage_sections(ranked, report.request) or [section("Stages", stages(ranked))]),
        section("Memory of the heaviest GPU", _memory(ranked)),
        *_groups(crossings(ranked, report.request.cluster)),
        *traffic_sections(traffic_of(report.request, ranked), console.width),
        *(heat_sections(more.heat) if more.heat else ()),
        *_fabrics(ranked, more.fabrics),
        *_what_ifs(ranked, more.what_ifs),
        *saving_sections(changes, more.refused),
        *_faster(changes),
        *_next_one(report, rank),
    )


def print_change(console: Console, saved: RankedLayout, now: RankedLayout) -> None:
    """Say so when the cost models price a layout otherwise than its report did."""
    then_s, now_s = saved.cost.step.total_s, now.cost.step.total_s
    if abs(now_s / then_s - 1.0) > SAME_PRICE:
        console.print()
        text = (
            f"The cost models have changed since this report was made: it says {seconds(then_s)}, not {seconds(now_s)}."
        )
        show(console, Text(text))


def _waterfall(ranked: RankedLayout, request: PlanRequest, console: Console) -> RenderableType:
    """Rows from the peak (MFU 100 %) to the step's own MFU, each with the MFU that is left after it."""
    step_s = ranked.cost.step.total_s
    drawn = replace(bars(console), width=FALL_BAR if console.width >= NARROW else NARROW_FALL_BAR)
    table = WholeTable.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row("", "time", "of step", "MFU left", "", style="dim")
    for number, fall in enumerate(falls(waterfall(ranked.cost, clock_share(ranked, request.cluster)))):
        value_s = fall.loss.value_s
        mark = "" if number == 0 else "+ " if value_s >= 0.0 else "- "
        low, high = sorted((fall.end_s - value_s, fall.end_s))
        table.add_row(
            f"  {mark}{fall.loss.name}",
            seconds(abs(value_s)),
            percent(value_s / step_s),
            percent(fall.mfu),
            drawn.draw(low / step_s, high / step_s),
        )
    table.add_row("  = step", seconds(step_s), percent(1.0), percent(ranked.cost.mfu), "")
    return table


def _memory(ranked: RankedLayout) -> RenderableType:
    use = ranked.cost.heaviest
    table = WholeTable.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for name, size in sorted(use.components, key=lambda item: -item[1]):
        if size > 0.0:
            table.add_row(f"  {name}", f"{gib(size):.2f} GiB", percent(size / use.usable_bytes))
    table.add_row("  total", f"{gib(use.total_bytes):.2f} GiB", percent(use.total_bytes / use.usable_bytes))
    table.add_row("  usable", f"{gib(use.usable_bytes):.2f} GiB", f"{use.verdict}")
    return table


def _groups(found: Sequence[Crossing]) -> Sequence[RenderableType]:
    if not found:
        return ()
    table = WholeTable.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for crossing in found:
        where = f"inside one {crossing.tier} domain"
        if crossing.domains > 1:
            where = f"across {crossing.domains} fast domains, within the {crossing.tier}"
        table.add_row(f"  {crossing.axis} {crossing.size}", where)
    return (section("Where the groups lie", table),)


def _fabrics(ranked: RankedLayout, found: Sequence[Sensitivity]) -> Sequence[RenderableType]:
    step_s = ranked.cost.step.total_s
    rows = [
        (f"{item.fabric} x {item.factor:g}", f"{seconds(item.step_s)}, {100.0 * (item.step_s / step_s - 1.0):+.1f} %")
        for item in found
    ]
    return (section("If a fabric were slower or faster", labelled(rows)),) if rows else ()


def _what_ifs(ranked: RankedLayout, found: Sequence[WhatIf]) -> Sequence[RenderableType]:
    step_s = ranked.cost.step.total_s
    rows = [(item.words, f"{seconds(item.step_s)}, {100.0 * (item.step_s / step_s - 1.0):+.1f} %") for item in found]
    return (section("If circumstances were different", labelled(rows)),) if rows else ()


def saving_sections(changes: Remedies, refused: Sequence[Refused] = ()) -> Sequence[RenderableType]:
    """Return the changes that save memory, cheapest first, and those that the framework refuses."""
    title = "To save memory, in the order of time lost for each GiB"
    body: RenderableType = Text("  no single change saves any")
    if changes.saving:
        body = Group(_changes(changes.saving[:MOST_REMEDIES], by_memory=True), *_mending(changes))
    lines = [f"{item.saving}: {item.message} ({item.rule})" for item in refused]
    return (section(title, body), *((section("Refused here", bullets(lines)),) if lines else ()))


def _mending(changes: Remedies) -> Sequence[RenderableType]:
    """Say which change alone makes a layout fit, and what several make of it; nothing where it fits as it is."""
    fitting = [remedy for remedy in changes.saving if remedy.verdict is not Verdict.OOM]
    if len(fitting) == len(changes.saving):
        return ()
    rows = [("alone", "none of them makes it fit")]
    if fitting:
        best = min(fitting, key=lambda remedy: remedy.lost_s)
        rows = [("alone", f"{best.change}: {_as_it_is(best)}")]
    if changes.together:
        last = changes.together[-1]
        layout = f"{layout_text(last.layout)}, micro-batch {last.layout.micro_batch}"
        rows.append(("together", f"{layout}, recompute {recompute_text(last.layout)}: {_as_it_is(last)}"))
    return (labelled([*rows, ("next", "plan search finds the fastest layout that fits")]),)


def _as_it_is(remedy: Remedy) -> str:
    use = remedy.cost.heaviest
    return f"{seconds(remedy.cost.step.total_s)} a step, {gib(use.total_bytes):.1f} GiB {use.verdict}"


def _faster(changes: Remedies) -> Sequence[RenderableType]:
    if not changes.faster:
        return ()
    return (section("Faster, one change away", _changes(changes.faster[:MOST_REMEDIES], by_memory=False)),)


def _changes(found: Sequence[Remedy], *, by_memory: bool) -> RenderableType:
    """Return priced changes as a table; ``by_memory`` adds the column that orders those that save memory."""
    table = ruled_table()
    order = ("% per GiB",) if by_memory else ()
    for title in ("change", "step s", "time", "GiB", "saves GiB", *order, "memory"):
        table.add_column(title, justify="left" if title in ("change", "memory") else "right")
    for remedy in found:
        lost = remedy.lost_s / (remedy.cost.step.total_s - remedy.lost_s)
        saved = gib(remedy.saved_bytes)
        table.add_row(
            remedy.change + (f" ({gib(host):,.0f} GiB a node)" if (host := remedy.host_bytes_per_node) else ""),
            digits(remedy.cost.step.total_s),
            f"{100.0 * lost:+.1f} %",
            f"{gib(remedy.cost.heaviest.total_bytes):.1f}",
            f"{saved:+.1f}",
            *([f"{100.0 * lost / saved:+.2f}"] if by_memory else []),
            Text(remedy.verdict.value, style=STYLES[remedy.verdict]),
        )
    return table


def _next_one(report: PlanReport, rank: int) -> Sequence[RenderableType]:
    if rank >= len(report.layouts):
        return ()
    this, other = report.layouts[rank - 1], report.layouts[rank]
    found = differences(this.cost.step, other.cost.step)
    total = other.cost.step.total_s - this.cost.step.total_s
    table = WholeTable.grid(padding=(0, 2))
    for justify in ("left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for loss in _largest(found):
        sign = "+" if loss.value_s >= 0.0 else "-"
        table.add_row(f"  {loss.name}", f"{sign}{seconds(abs(loss.value_s))}")
    title = (
        f"Rank {rank + 1}, {layout_text(other.layout)}, takes {seconds(abs(total))} {'more' if total >= 0 else 'less'}"
    )
    return (section(title, table),)


def _largest(found: Sequence[TimeLoss]) -> list[TimeLoss]:
    """Keep the differences that matter, in falling order; the rest is one row."""
    by_size = sorted(found, key=lambda loss: -abs(loss.value_s))
    kept = sorted(by_size[:MOST_DIFFERENCES], key=lambda loss: -loss.value_s)
    rest = sum(loss.value_s for loss in by_size[MOST_DIFFERENCES:])
    return [*kept, TimeLoss(name="everything else", value_s=rest)] if rest else kept
