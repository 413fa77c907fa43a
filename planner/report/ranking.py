"""The table of ranked layouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from costmodels.layout import Layout
from costmodels.results import Verdict
from planner.plan_report import REPEAT_NOISE, RankedLayout
from planner.report.console import NARROW
from planner.report.tables import Pieces, WholeTable, ruled_table
from planner.report.words import (
    choices_text,
    digits,
    islands_text,
    layout_text,
    listed,
    memory_text,
    percent,
    recompute_text,
    stage_layers_text,
)
from planner.request import Objective, PlanRequest
from planner.search.objective import objective_value, run_cost

STYLES: Final = MappingProxyType({Verdict.FITS: "green", Verdict.RISKY: "yellow", Verdict.OOM: "red"})
_SHORT_MODULES: Final = MappingProxyType(
    {"layernorm": "norm", "mla_up_proj": "mla", "moe_act": "act", "core_attn": "attn", "shared_experts": "shared"}
)
_LONGEST_LAYERS: Final = 18


@dataclass(frozen=True)
class _Column:
    title: str
    value: Callable[[RankedLayout], str]
    in_words: str = ""  # how to say it once for all rows; empty: the column always stands
    left: bool = False
    wide: bool = False  # left out of narrow tables
    needed: Callable[[Sequence[RankedLayout]], bool] | None = None  # stands where the rows need it


def _of_choices(layouts: Sequence[RankedLayout]) -> bool:
    """Whether some of the layouts are told by what was tried."""
    return any(choices_text(ranked) for ranked in layouts)


def _beyond_first(layouts: Sequence[RankedLayout]) -> bool:
    """Whether islands tell the layouts apart; they then take the room of MFU, which mixes unlike peaks there."""
    return any(stage.island for ranked in layouts for stage in ranked.layout.stages)


_COLUMNS: Final = (
    _Column("layout", lambda ranked: layout_text(ranked.layout), left=True),
    _Column("island", lambda ranked: islands_text(ranked.layout), needed=_beyond_first),
    _Column("tried", choices_text, left=True, needed=_of_choices),
    _Column("mb", lambda ranked: str(ranked.layout.micro_batch), "micro-batch {}"),
    _Column("vpp", lambda ranked: str(ranked.layout.vpp), "vpp {}"),
    _Column("recompute", lambda ranked: _short_recompute(ranked.layout), "recompute {}", left=True),
    _Column("step s", lambda ranked: digits(ranked.cost.step.total_s)),
    _Column("tok/s/GPU", lambda ranked: digits(ranked.cost.tokens_per_s / ranked.layout.gpus)),
    _Column(
        "MFU %", lambda ranked: f"{100.0 * ranked.cost.mfu:.1f}", wide=True, needed=lambda rows: not _beyond_first(rows)
    ),
    _Column("GiB", lambda ranked: memory_text(ranked.cost.heaviest), left=True),
    _Column("layers", lambda ranked: _short_layers(ranked.layout), left=True, wide=True),
)


def objective_column(request: PlanRequest) -> tuple[str, Callable[[RankedLayout], str]] | None:
    """Title and cell of what layouts are ranked by; None for the step time, which every table has."""
    noun = "tok" if request.model.hidden else "smp"
    if request.objective is Objective.ENERGY:
        return f"J/{noun}", lambda ranked: f"{ranked.cost.power.energy_j_per_token:#.4g}"
    if request.objective is Objective.COST:
        title = f"{request.cluster.currency}/G{noun}"
        return title, lambda ranked: digits(run_cost(request, ranked.layout, ranked.cost, 1e9).money)
    return None


def ranking(layouts: Sequence[RankedLayout], width: int, request: PlanRequest) -> RenderableType:
    """Return the table of ranked layouts.

    Parameters
    ----------
    layouts : sequence of RankedLayout
        At least one, best first.
    width : int
        Columns of the console. Where they do not do for every column, some are left out, and those that are equal in
        all rows are said once below the table; a table that needs more even so is wider than the console.
    request : PlanRequest
        Says what layouts are ranked by, and whether the model reads tokens; else throughput is in samples.

    Returns
    -------
    RenderableType
        Table and remarks.
    """
    columns = [
        column
        for column in _COLUMNS
        if (column.needed is None or column.needed(layouts)) and (column.title != "tried" or len(request.variants) > 1)
    ]
    ranked_by = objective_column(request)
    if ranked_by is not None:
        columns.insert(_place_of_step(columns), _Column(*ranked_by))
    table = _table(columns, layouts, request)
    said: list[str] = []
    if width < NARROW or table.least_width() > width:
        columns, said = _without_dispensable(columns, layouts)
        table = _table(columns, layouts, request)
    remarks = [f"In all: {listed(said)}."] if said else []
    return Group(table, *[Text(line) for line in (*remarks, *_ties(layouts, request))])


def _without_dispensable(
    columns: Sequence[_Column], layouts: Sequence[RankedLayout]
) -> tuple[list[_Column], list[str]]:
    """The columns that a narrow table has, and in words what the others have in common in all rows."""
    kept: list[_Column] = []
    said: list[str] = []
    for column in columns:
        values = {column.value(ranked) for ranked in layouts} if column.in_words else set()
        if len(values) == 1 and len(layouts) > 1:
            said.append(column.in_words.format(values.pop()))
        elif not column.wide:
            kept.append(column)
    return kept, said


def _table(columns: Sequence[_Column], layouts: Sequence[RankedLayout], request: PlanRequest) -> WholeTable:
    table = ruled_table()
    table.add_column("#", justify="right")
    for column in columns:
        whole = column.title in ("layout", "tried")
        title = column.title if request.model.hidden else column.title.replace("tok", "smp")
        table.add_column(title, justify="left" if column.left else "right", overflow="fold", no_wrap=whole)
    for rank, ranked in enumerate(layouts, start=1):
        cells = [_cell(column, ranked) for column in columns]
        table.add_row(str(rank), *cells, style="bold" if rank == 1 else "")
    return table


def _short_recompute(layout: Layout) -> str:
    """Return what is recomputed, as short as a column wants it; the words below the table have the full names."""
    text = recompute_text(layout).replace("selective:", "")
    for module, short in _SHORT_MODULES.items():
        text = text.replace(module, short)
    return text


def _short_layers(layout: Layout) -> str:
    """Return the layers of each stage, cut where they alternate for long; ``plan explain`` lists every stage."""
    text = stage_layers_text(layout)
    if len(text) <= _LONGEST_LAYERS:
        return text
    return text[: _LONGEST_LAYERS - len("...")].rpartition(",")[0] + ",..."


def _cell(column: _Column, ranked: RankedLayout) -> RenderableType:
    if column.title in ("recompute", "layers"):
        return Pieces(column.value(ranked))
    style = STYLES[ranked.cost.heaviest.verdict] if column.title == "GiB" else ""
    return Text(column.value(ranked), style=style)


def _place_of_step(columns: Sequence[_Column]) -> int:
    return [column.title for column in columns].index("step s")


def _ties(layouts: Sequence[RankedLayout], request: PlanRequest) -> list[str]:
    """Say how flat the top is, in what the layouts are ranked by."""
    values = [objective_value(request, ranked.layout, ranked.cost) for ranked in layouts]
    near = len(list(takewhile(lambda value: value <= values[0] * (1.0 + REPEAT_NOISE), values)))
    if near < 2:
        return []
    by = "" if request.objective is Objective.TIME else f" in {request.objective}"
    noise = percent(REPEAT_NOISE, 0)
    more = "; layouts below these may too (--top shows more)" if near == len(layouts) == request.top else ""
    return [f"The first {near} lie within {noise} of each other{by}, as near as runs of one layout repeat{more}."]
