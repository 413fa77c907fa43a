"""Rows that were left out: how many, why, and which; and rows whose times are in another unit."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import RenderableType

from planner.evidence.left_out import LeftOut, rows_in_words
from planner.report.console import section
from planner.report.layout_text import bullets, labelled

MOST_REASONS: Final = 8
OTHER_UNIT: Final = 100.0  # times the prediction from which on a time is taken to be in another unit


def left_out_rows(found: Sequence[LeftOut]) -> RenderableType:
    """Return a line for each reason; of many reasons the rest is counted."""
    rows = [(f"{len(one.rows):6,}", f"{one.reason} ({rows_in_words(one.rows)})") for one in found[:MOST_REASONS]]
    rest = [name for one in found[MOST_REASONS:] for name in one.rows]
    return labelled([*rows, (f"{len(rest):6,}", f"for other reasons ({rows_in_words(tuple(rest))})")] if rest else rows)


def other_units(times: Iterable[tuple[str, float]]) -> list[RenderableType]:
    """Return a section on rows whose times are no matter of speed; nothing where there are none.

    Parameters
    ----------
    times : iterable of (str, float)
        Rows, and their measured over their predicted step times.
    """
    rows = tuple(row for row, ratio in times if ratio > OTHER_UNIT)
    if not rows:
        return []
    text = (
        f"{rows_in_words(rows)}: more than {OTHER_UNIT:.0f} times the prediction, which is no matter of speed: "
        "step_time_s is in seconds; look at the batch, the sequence, the model and the GPUs too"
    )
    return [section("In another unit?", bullets([text]))]
