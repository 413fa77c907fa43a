"""Accelerators one by one, and micro-batches beside the one in use, as tables."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from costmodels.results import Verdict
from planner.advice.heat import HeatAdvice, MicroBatchChange, hottest
from planner.report.console import section
from planner.report.ranking import STYLES
from planner.report.tables import ruled_table
from planner.report.words import percent, seconds

MOST_ROWS: Final = 32
SAME: Final = 1e-3  # shares of step and peak that say nothing
WATTS: Final = (
    "  far fewer watts at full utilisation: a rank that waits in an exchange or for data\n"
    "  the same share of the limit whatever the limit is: a policy of chassis or power supply"
)


def heat_sections(advice: HeatAdvice) -> Sequence[RenderableType]:
    """Return the tables of an advice; nothing for parts whose power is not modelled."""
    return (*_slots(advice), *_micro_batches(advice))


def _slots(advice: HeatAdvice) -> Sequence[RenderableType]:
    shown = hottest(advice.slots, MOST_ROWS)
    if not any(slot.mean_w > 0.0 for slot in shown):
        return ()
    table = ruled_table()
    islands = len({slot.island for slot in shown}) > 1
    for title in (*(("island",) if islands else ()), "node", "GPU", "stage", "W", "peak W", "MHz", "C", "peak C"):
        table.add_column(title, justify="right")
    table.add_column("limited by")
    for slot in shown:
        table.add_row(
            *([str(slot.island)] if islands else []),
            str(slot.node),
            str(slot.gpu),
            str(slot.stage),
            f"{slot.mean_w:.0f}",
            f"{slot.peak_w:.0f}",
            f"{slot.clock_hz / 1e6:,.0f}",
            f"{slot.temperature_c:.0f}",
            f"{slot.peak_c:.0f}",
            "" if slot.limited_by == "none" else slot.limited_by,
        )
    rest = len(advice.slots) - len(shown)
    title = f"Accelerators, the hottest {len(shown)} of {len(advice.slots):,}" if rest else "Accelerators"
    return (section(title, table, Text(WATTS, style="dim")),)


def _micro_batches(advice: HeatAdvice) -> Sequence[RenderableType]:
    if not any(change.before_w > 0.0 for change in advice.micro_batches):
        return ()
    table = ruled_table()
    for title in ("micro-batch", "step", "bubble", "peak W", "hottest die"):
        table.add_column(title, justify="right")
    table.add_column("memory")
    for change in advice.micro_batches:
        table.add_row(
            str(change.micro_batch),
            _signed(change.step_s),
            _signed(change.bubble_s),
            f"{change.peak_w:+.0f} W",
            f"{change.hottest_c:+.1f} C",
            Text(change.verdict.value, style=STYLES[change.verdict]),
        )
    words = Text("\n".join(f"  {line}" for change in advice.micro_batches for line in _worth(change)), style="dim")
    return (section("What another micro-batch would change", table, words),)


def _worth(change: MicroBatchChange) -> Iterator[str]:
    """What a micro-batch that may fit is good for; nothing where step and peak hardly change."""
    saved, least = -change.step_s / change.before_s, -change.peak_w / change.before_w
    if change.verdict is Verdict.OOM or max(abs(saved), abs(least)) < SAME:
        return
    pace = f"{seconds(abs(change.step_s))} ({percent(abs(saved))}) {'faster' if saved > 0.0 else 'slower'}"
    peaks = f"peaks {abs(change.peak_w):.0f} W {'lower' if least > 0.0 else 'higher'}"
    use = {
        (True, False): ": where supplies and cooling bear them",
        (False, True): ": where supplies or cooling are short",
        (False, False): ": nothing speaks for it",
    }.get((saved > 0.0, least > 0.0), "")
    memory = f", {change.verdict.value} in memory" if change.verdict is not Verdict.FITS else ""
    yield f"micro-batch {change.micro_batch}: {pace}, {peaks}{memory}{use}"


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0.0 else '+'}{seconds(abs(value_s))}"
