"""What plan sweep prints: progress while it works, the table when it is done."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hardware.nouns import count
from planner.report.console import console_on, section, show
from planner.report.layout_text import labelled
from planner.report.tables import ruled_table
from planner.report.words import digits
from planner.sweeps.sweep import Row, SweepResult

MOST_ROWS: Final = 40
_ASKED: Final = (
    "model", "cluster", "global_batch", "seq", "precision", "framework", "power_cap_w", "software", "offload", "loss",
    "lora_rank", "lora_targets", "images", "freeze",
)  # fmt: skip
_FILES: Final = (".toml", ".json")
_LEFT: Final = (
    "model", "cluster", "precision", "framework", "software", "offload", "loss", "lora_targets", "images", "freeze",
    "layout", "status",
)  # fmt: skip


@contextmanager
def sweep_progress(title: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many points are done, on standard error, when someone looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console_on(sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)


def print_sweep(console: Console, title: str, result: SweepResult) -> None:
    """Print the rows of a sweep; what is asked alike in all rows is left out."""
    rows = result.rows
    varied = [name for name in _ASKED if len({row[name] for row in rows}) > 1] or ["model", "cluster"]
    table = ruled_table()
    for name in (*varied, "layout", "step s", "tok/s/GPU", "MFU %", "GiB", "status"):
        table.add_column(name.replace("_", " "), justify="left" if name in _LEFT else "right", overflow="fold")
    shown = rows[:MOST_ROWS]
    failures = dict.fromkeys(str(row["reason"]) for row in shown if row["reason"])  # alike ones are said once
    reasons = {reason: number for number, reason in enumerate(failures, start=1)}
    short = {name: short_names({_asked(row[name]) for row in rows}) for name in varied}
    for row in shown:
        table.add_row(*(short[name][_asked(row[name])] for name in varied), *_answer(row, reasons))
    failed = sum(row["status"] != "ok" for row in rows)
    words = f"{count(len(rows), 'point')}, {failed:,} without a layout, {result.kept:,} kept from before"
    more = (
        [Text(f"The first {MOST_ROWS} of {len(rows):,} rows; all are in the table.")] if len(rows) > MOST_ROWS else []
    )
    why = [section("Why points have no layout", labelled([(f"[{number}]", text) for text, number in reasons.items()]))]
    show(console, section(title, table), *more, *(why if reasons else []), Text(f"{words}\nWritten: {result.table}"))


def short_names(names: Collection[str]) -> dict[str, str]:
    """Return each name, those of files without the folders that nothing needs to tell them apart."""
    parts = {name: PurePath(name).parts if PurePath(name).suffix in _FILES else (name,) for name in names}
    most = max(map(len, parts.values()), default=1)
    ends = ({name: str(PurePath(*own[-kept:])) for name, own in parts.items()} for kept in range(1, most + 1))
    return next(
        (short for short in ends if len(set(short.values())) == len(parts)), dict(zip(names, names, strict=True))
    )


def _asked(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _answer(row: Row, reasons: Mapping[str, int]) -> tuple[str, ...]:
    """Cells of a row; of one that failed the number under which its reason stands below the table."""
    if row["status"] != "ok":
        number = reasons.get(str(row["reason"]))
        return "", "", "", "", "", f"{row['status']} [{number}]" if number else str(row["status"])
    return (
        str(row["layout"]),
        digits(float(str(row["step_time_s"]))),
        digits(float(str(row["tokens_per_s_per_gpu"]))),
        f"{100.0 * float(str(row['mfu'])):.1f}",
        f"{float(str(row['memory_gib'])):.1f}",
        str(row["verdict"]),
    )
