"""Rows that say nothing about a model, by the reason, so that none vanishes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why rows were left out, and which: ``runs.csv: id``, in the order of their files."""

    reason: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.rows)}: {self.reason} ({rows_in_words(self.rows)})"


def left_out(pairs: Iterable[tuple[str, str]]) -> tuple[LeftOut, ...]:
    """Group pairs of a reason and a row by reason, that of most rows first, then by the reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for reason, row in pairs:
        found[reason].append(row)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(LeftOut(reason=reason, rows=tuple(rows)) for reason, rows in ordered)


def rows_in_words(rows: tuple[str, ...], most: int = 3) -> str:
    """List rows; of many the first ``most``. A file is named once for rows of it that follow each other."""
    told: list[str] = []
    before = ""
    for row in rows[:most]:
        file, _, name = row.partition(": ")
        told.append(name if name and file == before else row)
        before = file
    rest = f" and {len(rows) - most:,} more" if len(rows) > most else ""
    return ", ".join(told) + rest
