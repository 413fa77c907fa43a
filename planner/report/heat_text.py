"""Accelerators one by one, and micro-batches beside the one in use, as tables."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from planner.advice.heat import HeatAdvice, hottest
from planner.report.console import section
from planner.report.ranking import STYLES, ruled_table
from planner.report.words import seconds

MOST_ROWS: Final = 32
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
    if not advice.micro_batches:
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
    return (section("What another micro-batch would change", table),)


def _signed(value_s: float) -> str:
    return f"{'-' if value_s < 0.0 else '+'}{seconds(abs(value_s))}"
