"""Rows that say nothing about a model, by the reason, so that none vanishes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = re.compile(r"(?<![\w'.-])\d[\d,.]*(?![\w'-])")
"""Numbers of a reason, which those of names (``h100``, ``'12b'``) are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why rows were left out, and which: ``runs.csv: id``, in the order of their files."""

    reason: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.rows)}: {self.reason} ({rows_in_words(self.rows)})"


def left_out(pairs: Iterable[tuple[str, str]]) -> tuple[LeftOut, ...]:
    """Group pairs of a reason and a row by reason, that of most rows first, then by the reason.

    Reasons that differ in their numbers alone are one, told with the numbers of its first row.
    """
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for reason, row in pairs:
        found[_NUMBER.sub("#", reason)].append((reason, row))
    told = [LeftOut(reason=_words(group), rows=tuple(row for _, row in group)) for group in found.values()]
    return tuple(sorted(told, key=lambda one: (-len(one.rows), one.reason)))


def _words(group: Sequence[tuple[str, str]]) -> str:
    first = group[0][0]
    others = sum(reason != first for reason, _ in group)
    return f"{first}; {others:,} with other numbers" if others else first


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
