"""Host lists as SLURM writes them: ``node[01-08,10],login1``."""

import re
from typing import Final

from hardware.importers.source_text import SourceText

MOST_HOSTS: Final = 50_000
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?$")


def expand_hosts(text: str, source: SourceText, line: int = 0) -> tuple[str, ...]:
    """Return the hosts of a list.

    Parameters
    ----------
    text : str
        Names separated by commas, each with any number of ranges in brackets; leading zeros keep the width.
    source : SourceText
        For messages.
    line : int
        For messages.

    Raises
    ------
    InputError
        Brackets that do not close, ranges that are none, more than ``MOST_HOSTS`` hosts.
    """
    hosts: list[str] = []
    for part in _split(text, source, line):
        hosts += _expand(part, source, line, MOST_HOSTS - len(hosts))
    return tuple(hosts)


def _split(text: str, source: SourceText, line: int) -> list[str]:
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise source.wrong(f"brackets of '{text[:40]}'", line, "node[1-8]")
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    if depth:
        raise source.wrong(f"'{text[:40]}' lacks a closing bracket", line, "node[1-8]")
    return [part.strip() for part in (*parts, current) if part.strip()]


def _expand(part: str, source: SourceText, line: int, most: int) -> list[str]:
    names = [""]
    for piece in re.split(r"(\[[^\[\]]*\])", part):
        values = [piece] if not piece.startswith("[") else _numbers(piece[1:-1], source, line, most)
        if len(names) * len(values) > most:
            raise source.wrong(f"'{part[:40]}' names too many hosts", line, f"up to {MOST_HOSTS} in a file")
        names = [name + value for name in names for value in values]
    return names


def _numbers(text: str, source: SourceText, line: int, most: int) -> list[str]:
    found: list[str] = []
    for piece in text.split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise source.wrong(f"'{piece[:40]}' is no range", line, "1-8 or 01-08 or 7")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < most - len(found):
            raise source.wrong(f"range '{piece[:40]}'", line, f"upwards, up to {MOST_HOSTS} hosts in a file")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
