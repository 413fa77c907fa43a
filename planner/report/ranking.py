"""The table of ranked layouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from costmodels.results import Verdict
from planner.plan_report import RankedLayout
from planner.report.console import NARROW
from planner.report.words import digits, gib, layout_text, listed, percent, recompute_text, stage_layers_text

STYLES: Final = {Verdict.FITS: "green", Verdict.RISKY: "yellow", Verdict.OOM: "red"}
REPEAT_NOISE: Final = 0.03
"""Runs of one layout differ by about this share in time (median over repeated published runs): nearer is a tie."""


@dataclass(frozen=True)
class _Column:
    title: str
    value: Callable[[RankedLayout], str]
    in_words: str = ""  # how to say it once for all rows; empty: the column always stands
    left: bool = False


_COLUMNS: Final = (
    _Column("layout", lambda ranked: layout_text(ranked.layout), left=True),
    _Column("mb", lambda ranked: str(ranked.layout.micro_batch), "micro-batch {}"),
    _Column("vpp", lambda ranked: str(ranked.layout.vpp), "{} virtual chunks a stage"),
    _Column("recompute", lambda ranked: recompute_text(ranked.layout), "recompute {}", left=True),
    _Column("step s", lambda ranked: digits(ranked.cost.step.total_s)),
    _Column("tok/s/GPU", lambda ranked: digits(ranked.cost.tokens_per_s / ranked.layout.gpus)),
    _Column("MFU %", lambda ranked: f"{100.0 * ranked.cost.mfu:.1f}"),
    _Column("GiB", lambda ranked: f"{gib(ranked.cost.heaviest.total_bytes):.1f}"),
    _Column("memory", lambda ranked: ranked.cost.heaviest.verdict.value, "memory {}", left=True),
)
_WIDE_COLUMNS: Final = (_Column("layers", lambda ranked: stage_layers_text(ranked.layout), left=True),)


def ranking(layouts: Sequence[RankedLayout], width: int) -> RenderableType:
    """Return the table of ranked layouts.

    Parameters
    ----------
    layouts : sequence of RankedLayout
        At least one, best first.
    width : int
        Columns of the console. In a narrow one, columns that are equal in all rows are said once below the table.

    Returns
    -------
    RenderableType
        Table and remarks.
    """
    columns = list(_COLUMNS) + (list(_WIDE_COLUMNS) if width >= NARROW else [])
    said = []
    if width < NARROW and len(layouts) > 1:
        for column in [column for column in columns if column.in_words]:
            values = {column.value(ranked) for ranked in layouts}
            if len(values) == 1:
                columns.remove(column)
                said.append(column.in_words.format(values.pop()))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("#", justify="right")
    for column in columns:
        table.add_column(column.title, justify="left" if column.left else "right", overflow="fold")
    for rank, ranked in enumerate(layouts, start=1):
        cells = [_cell(column, ranked) for column in columns]
        table.add_row(str(rank), *cells, style="bold" if rank == 1 else "")
    remarks = [f"In all: {listed(said)}."] if said else []
    return Group(table, *[Text(line) for line in (*remarks, *_ties(layouts))])


def _cell(column: _Column, ranked: RankedLayout) -> Text:
    style = STYLES[ranked.cost.heaviest.verdict] if column.title == "memory" else ""
    return Text(column.value(ranked), style=style)


def _ties(layouts: Sequence[RankedLayout]) -> list[str]:
    """Say how flat the top is."""
    best = layouts[0].cost.step.total_s
    near = sum(ranked.cost.step.total_s <= best * (1.0 + REPEAT_NOISE) for ranked in layouts)
    if near < 2:
        return []
    return [
        f"The first {near} lie within {percent(REPEAT_NOISE, 0)} of each other, as near as runs of one layout repeat."
    ]
