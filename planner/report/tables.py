"""Tables whose numbers and words stay whole: one that does not fit its console is wider than it."""

import re
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_UNBOUND: Final = 100_000
"""Columns of a console on which nothing needs to break."""


class WholeTable(Table):
    """A table that breaks lines between words alone, so that no number and no name is cut in two.

    ``Table`` takes what a narrow console lacks from all columns alike, also from those that are one number wide.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with no column narrower than what must stay in one line."""
        spans, beside = self._spans()
        widths = _shares(spans, options.max_width - beside)
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options.update(width=max(options.max_width, beside + sum(widths))))

    def least_width(self) -> int:
        """Columns that it needs at least, below which it is wider than its console."""
        spans, beside = self._spans()
        return beside + sum(span.minimum for span in spans)

    def _spans(self) -> tuple[list[Measurement], int]:
        """What every column needs at least and at most, and what stands between them."""
        console = Console(width=_UNBOUND)
        for column in self.columns:
            column.width = None
        spans = [_span(column, console, headed=self.show_header) for column in self.columns]
        whole = Measurement.get(console, console.options, self).maximum
        return spans, whole - sum(span.maximum for span in spans)


def ruled_table() -> WholeTable:
    """Return an empty table with a rule below its head and two spaces between its columns."""
    return WholeTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), show_edge=False)


def _shares(spans: list[Measurement], room: int) -> list[int]:
    """Columns for each: what is too much is taken from the widest that can be narrower."""
    widths = [span.maximum for span in spans]
    while sum(widths) > room:
        yielding = [number for number, span in enumerate(spans) if widths[number] > span.minimum]
        if not yielding:
            break
        widths[max(yielding, key=widths.__getitem__)] -= 1
    return widths


def _span(column: Column, console: Console, *, headed: bool) -> Measurement:
    """Columns of the longest word, or of the longest cell in one of numbers, which keep their units; and of all."""
    cells = [Measurement.get(console, console.options, cell) for cell in column.cells]
    head = [Measurement.get(console, console.options, column.header)] if headed else []
    whole = column.no_wrap or column.justify == "right"
    least = [*(span.minimum for span in head), *(span.maximum if whole else span.minimum for span in cells)]
    return Measurement(max(least, default=0), max((span.maximum for span in (*head, *cells)), default=0))


@dataclass(frozen=True)
class Pieces:
    """Text that breaks behind commas and plus signs alone, so that no number and no name is cut in two."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Width of the longest piece, and of all of them in one line."""
        return Measurement(max(map(len, self._pieces()), default=0), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines that fit the width, as many pieces in each as it has room for."""
        lines = [""]
        for piece in self._pieces():
            if lines[-1] and len(lines[-1]) + len(piece) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(lines), overflow="fold")

    def _pieces(self) -> list[str]:
        return re.findall(r"[^,+]+[,+]?|[,+]", self.text)
