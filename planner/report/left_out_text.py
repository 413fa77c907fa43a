"""Rows that were left out: how many, why, and which."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType

from planner.evidence.left_out import LeftOut, rows_in_words
from planner.report.layout_text import labelled

MOST_REASONS: Final = 8


def left_out_rows(found: Sequence[LeftOut]) -> RenderableType:
    """Return a line for each reason; of many reasons the rest is counted."""
    rows = [(f"{len(one.rows):6,}", f"{one.reason} ({rows_in_words(one.rows)})") for one in found[:MOST_REASONS]]
    rest = [name for one in found[MOST_REASONS:] for name in one.rows]
    return labelled([*rows, (f"{len(rest):6,}", f"for other reasons ({rows_in_words(tuple(rest))})")] if rest else rows)
