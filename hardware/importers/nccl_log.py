"""Logs of nccl-tests and rccl-tests, of all their versions."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hardware.importers.source_text import SourceText, read_source

MOST_ROWS: Final = 20_000
COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "sendrecv",
    "reduce",
    "gather",
    "scatter",
    "hypercube",
)
_PROGRAM: Final = re.compile(r"\b(" + "|".join(COLLECTIVES) + r")_perf\b")
_IN_NAME: Final = tuple((name.replace("_", ""), name) for name in COLLECTIVES)
_RANK: Final = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S{1,255})\s+device\s+(\d{1,4})\s+\[[^\]]{1,40}\]\s*(.{0,120})"
)
_ROW: Final = re.compile(r"(?:^|[\s:>|\]])(\d{1,16})\s+(\d{1,16})\s+([a-z][a-z0-9_]{2,20})\s+(\S.*)$")
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?(?:e[+-]?[0-9]{1,2})?$", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{1,16}$")
_ROOT: Final = re.compile(r"-?\d{1,7}$")
_HEADER: Final = re.compile(r"#\s+size\s+count\s+type\b(.*)")


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """One message size: out of place, and in place where that was measured (else 0.0).

    ``bytes`` is the size column, ``time_s`` in seconds, bandwidths in bytes per second; ``wrong`` is the number of
    wrong values of either, 0 where they were not counted.
    """

    bytes: int
    count: int
    data_type: str
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    in_place_time_s: float = 0.0
    in_place_bus_bytes_per_s: float = 0.0
    wrong: int = 0

    @property
    def best_bus_bytes_per_s(self) -> float:
        """Bus bandwidth of the faster of both."""
        return max(self.bus_bytes_per_s, self.in_place_bus_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """A log: rows in order, and what its head states of the ranks.

    ``ranks`` is 0, ``hosts`` and ``device`` empty where the log lacks its head. ``complete`` is whether the summary at
    the end is there; without it the run was aborted or the log cut short. ``skipped`` counts rows without a message
    and rows that break off.
    """

    where: str
    collective: str
    rows: tuple[LogRow, ...]
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    device: str = ""
    complete: bool = True
    skipped: int = 0


def read_nccl_log(path: str | Path) -> NcclLog:
    """Read a log of nccl-tests or rccl-tests.

    Parameters
    ----------
    path : str or Path
        What ``all_reduce_perf`` and the like printed: with or without the columns ``redop`` and ``root``, with
        ``error`` or ``#wrong``, with one or two halves (out of place, in place), with prefixes of launchers and
        lines of the library between rows, whole or cut short.

    Returns
    -------
    NcclLog
        At least one row.

    Raises
    ------
    InputError
        No rows, rows whose columns do not fit, or several collectives in one file.
    """
    source = read_source(path)
    lines = source.lines()
    rows: list[LogRow] = []
    skipped, roots = 0, _columns_before_time(lines)
    for number, line in enumerate(lines, start=1):
        match = None if line.lstrip().startswith("#") else _ROW.search(line)
        if match is None:
            continue
        row = _row(match, roots)
        if row is None or row.bytes == 0:
            skipped += 1
            continue
        _check_row(source, row, number)
        rows.append(row)
        if len(rows) > MOST_ROWS:
            raise source.wrong("too many rows", number, f"up to {MOST_ROWS}")
    if not rows:
        raise source.wrong(
            "no row with a size, a count, a type, a time and two bandwidths", allowed="an nccl-tests log"
        )
    seats = {int(match[1]): (match[2], match[4].strip()) for line in lines if (match := _RANK.search(line))}
    devices = Counter(device for _, device in seats.values())
    return NcclLog(
        where=source.where,
        collective=_collective(source, lines, rows),
        rows=tuple(rows),
        ranks=len(seats),
        hosts=tuple(seats[rank][0] for rank in sorted(seats)),
        device=devices.most_common(1)[0][0] if devices else "",
        complete=any("Avg bus bandwidth" in line for line in lines),
        skipped=skipped,
    )


def _columns_before_time(lines: Sequence[str]) -> int | None:
    """Return how many words stand between type and time by the header; None without a header."""
    for line in lines:
        match = _HEADER.search(line)
        if match:
            words = match[1].split()
            return words.index("time") if "time" in words else None
    return None


def _row(match: re.Match[str], before_time: int | None) -> LogRow | None:
    """Return the row of a line, or None if it breaks off."""
    words = match[4].split()
    start = before_time if before_time is not None else _guess_start(words)
    first = _half(words[start : start + 4])
    if first is None:
        return None
    second = _half(words[start + 4 : start + 8]) or (0.0, 0.0, 0.0, 0)
    return LogRow(
        bytes=int(match[1]),
        count=int(match[2]),
        data_type=match[3],
        time_s=first[0] * 1e-6,
        algorithm_bytes_per_s=first[1] * 1e9,
        bus_bytes_per_s=first[2] * 1e9,
        in_place_time_s=second[0] * 1e-6,
        in_place_bus_bytes_per_s=second[2] * 1e9,
        wrong=first[3] + second[3],
    )


def _guess_start(words: list[str]) -> int:
    """Return where the time stands: after the reduction's name and the root, which is a whole number."""
    start = 0
    if words and not _NUMBER.match(words[0]) and not _ROOT.match(words[0]):
        start = 1
    if len(words) > start and _ROOT.match(words[start]) and (len(words) - start) % 4 == 1:
        start += 1
    return start


def _half(words: list[str]) -> tuple[float, float, float, int] | None:
    """Return time [us], two bandwidths [GB/s] and wrong values; None where they are not measured or not all there."""
    if len(words) < 3 or not all(_NUMBER.match(word) for word in words[:3]):
        return None
    wrong = int(words[3]) if len(words) > 3 and _COUNT.match(words[3]) else 0
    return float(words[0]), float(words[1]), float(words[2]), wrong


def _check_row(source: SourceText, row: LogRow, number: int) -> None:
    """Refuse a row whose algorithm bandwidth is not size over time: then its columns are others than they seem."""
    if row.time_s <= 0.0:
        raise source.wrong(f"time {row.time_s}", number, "a time above 0")
    rate = row.bytes / row.time_s
    if abs(rate - row.algorithm_bytes_per_s) > 0.02 * rate + 0.011e9:
        what = f"{row.bytes} bytes in {row.time_s * 1e6:g} us are not {row.algorithm_bytes_per_s / 1e9:.2f} GB/s"
        raise source.wrong(what, number, "columns time, algbw, busbw as nccl-tests prints them")


def _collective(source: SourceText, lines: Sequence[str], rows: list[LogRow]) -> str:
    """Return the collective: the program's name in the log, else in the file's name, else what the columns tell."""
    programs = {match[1] for line in lines for match in _PROGRAM.finditer(line)}
    if len(programs) > 1:
        raise source.wrong(f"several programs: {', '.join(sorted(programs))}", allowed="one log in a file")
    if programs:
        return programs.pop()
    plain = re.sub(r"[^a-z0-9]", "", Path(source.where).name.casefold())
    named = next((name for mark, name in _IN_NAME if mark in plain), "")
    if named:
        return named
    largest = max(rows, key=lambda row: row.bytes)
    factor = largest.bus_bytes_per_s / largest.algorithm_bytes_per_s if largest.algorithm_bytes_per_s else 0.0
    if factor > 1.05:
        return "all_reduce"
    raise source.wrong("nothing says which collective this is", allowed="a file name such as all_gather.log")


def ranks_of(log: NcclLog) -> int:
    """Return the number of ranks: of the head, else by bus over algorithm bandwidth of an all-reduce; 0 if unknown.

    The ratio is 2 (n - 1) / n (nccl-tests, ``doc/PERFORMANCE.md``); two decimals of GB/s tell n up to some hundreds.
    """
    if log.ranks:
        return log.ranks
    largest = max(log.rows, key=lambda row: row.algorithm_bytes_per_s)
    if log.collective != "all_reduce" or largest.algorithm_bytes_per_s < 50e9:
        return 0
    rest = 2.0 - largest.bus_bytes_per_s / largest.algorithm_bytes_per_s
    return round(2.0 / rest) if rest > 1e-3 else 0
