"""Unlike devices in words: what slow ones cost, and whether placing a running layout anew pays."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, RenderableType

from planner.devices.rebalance import Rebalance
from planner.devices.stragglers import Stragglers
from planner.placement.slow_devices import SlowDevice
from planner.plan_report import RankedLayout
from planner.report.console import section, show
from planner.report.layout_text import facts, job_line, labelled, refusals
from planner.report.search_text import saved_lines
from planner.report.words import digits, duration, layers_words, listed, percent, seconds
from planner.request import PlanRequest
from planner.rules import broken_rules

MOST_SHOWN: Final = 4


def straggler_section(found: Stragglers) -> RenderableType:
    """Return what the slow devices of a cluster cost as they are, placed anew, and left out."""
    nodes = listed([f"node {node}" for node in found.left_out[:MOST_SHOWN]])
    more = f" and {len(found.left_out) - MOST_SHOWN} more" if len(found.left_out) > MOST_SHOWN else ""
    like = "rank 1 above" if found.cut else "the best layout"
    if found.without_s:
        without = f"{_against(found.without_s, found.healthy_s)}: without {nodes}{more}"
    elif found.cut:
        without = f"not searched without {nodes}{more} in the time limit; a longer --time-limit does"
    else:
        without = f"nothing fits without {nodes}{more}"
    rows = [
        ("slow", _slow(found.devices)),
        ("all healthy", f"{seconds(found.healthy_s)}: {like} if the slow devices were like the others"),
        ("as it is", f"{_against(found.as_is_s, found.healthy_s)}: that layout, ranks in order"),
        ("planned anew", f"{_against(found.replanned_s, found.healthy_s)}: rank 1 above"),
        ("left out", without),
    ]
    return section("Slow devices", labelled(rows))


def _slow(devices: Sequence[SlowDevice]) -> str:
    shown = [f"node {device.node} GPU {device.gpu} at {percent(device.pace, 0)}" for device in devices[:MOST_SHOWN]]
    more = len(devices) - MOST_SHOWN
    return ", ".join(shown) + (f", and {more} more" if more > 0 else "") + " of the usual pace"


def _against(step_s: float, healthy_s: float) -> str:
    return f"{seconds(step_s)} ({100.0 * (step_s / healthy_s - 1.0):+.1f} %)"


def print_rebalance(
    console: Console, request: PlanRequest, change: tuple[RankedLayout, Rebalance], written: Sequence[str] = ()
) -> None:
    """Print the proposed split and placement of a running layout (the first of the pair), and when it has paid."""
    running, found = change
    broken = broken_rules(found.best.layout, request)
    show(
        console,
        job_line(request),
        facts("Proposed", found.best, request, broken),
        *refusals(broken, request),
        section("The change", _change(running, found)),
        *saved_lines(written),
    )


def _change(running: RankedLayout, change: Rebalance) -> RenderableType:
    if not change.payback_steps:
        text = f"{seconds(change.now_s)} a step: no other split or placement of these degrees is faster"
        return labelled([("as it runs", text)])
    best = change.best
    steps = f"{digits(change.payback_steps, 3)} steps ({duration(change.payback_steps * best.cost.step.total_s)})"
    rows = [
        ("as it runs", f"{seconds(change.now_s)} a step"),
        ("gain", f"{percent(change.gain)}: {seconds(best.cost.step.total_s)} a step"),
        ("layers", f"{layers_words(running.layout)} -> {layers_words(best.layout)}"),
        ("ranks", "placed by pace; plan export writes who runs where" if best.placement else "in order"),
        ("pays after", f"{steps}; checkpoint, restart and reading take {duration(change.restart_s)}"),
    ]
    return labelled(rows)
