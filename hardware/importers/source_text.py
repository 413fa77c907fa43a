"""Text of files that nobody vouches for: bounded, decoded, without control codes of terminals."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from hardware.errors import InputError
from hardware.text_file import read_text_file

MOST_BYTES: Final = 16 * 2**20
"""Of any file: an InfiniBand fabric of 16,384 adapters prints about 10 MiB."""
MOST_LINE: Final = 100_000
MOST_LINES: Final = 200_000
_LINE_ENDS: Final = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_CONTROL_CODES: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


@dataclass(frozen=True)
class SourceText:
    """The text of a file and its name for messages."""

    where: str
    text: str

    def lines(self) -> tuple[str, ...]:
        """Return the lines; InputError for one of absurd length. They are split once, however often they are read."""
        return self._split

    @cached_property
    def _split(self) -> tuple[str, ...]:
        found = tuple(self.text.splitlines())
        for number, line in enumerate(found, start=1):
            if len(line) > MOST_LINE:
                raise self.wrong(f"a line of {len(line)} characters", number, f"lines up to {MOST_LINE}")
        return found

    def check_size(self, most: int, allowed: str) -> None:
        """Raise InputError for a text of more characters than files of a form ever have."""
        if len(self.text) > most:
            raise self.wrong(f"more than {most} characters", allowed=allowed)

    def wrong(self, what: str, line: int = 0, allowed: str = "") -> InputError:
        """Return an error at a place of this file.

        Parameters
        ----------
        what : str
            What is wrong.
        line : int
            Where, from 1; 0 is the file as a whole.
        allowed : str
            What would be accepted.
        """
        return InputError(what, allowed=allowed, where=f"{self.where}: line {line}" if line else self.where)


def read_source(path: str | Path) -> SourceText:
    """Read a file, or what a pipe brings (``/dev/stdin``, ``<(command)``), of at most ``MOST_BYTES``.

    Parameters
    ----------
    path : str or Path
        The file, UTF-8.

    Raises
    ------
    InputError
        It cannot be read, is a device or a pipe that nobody writes into, is too large, or no text.
    """
    where = str(path)
    text = read_text_file(Path(path), allowed="a file with the tool's output", most_bytes=MOST_BYTES)
    text = _CONTROL_CODES.sub("", text) if "\x1b" in text else text
    if not text.strip():
        raise InputError("the file is empty", allowed="the tool's output", where=where)
    if "\x00" in text:
        raise InputError("not text: it holds zero bytes", allowed="a text file", where=where)
    source = SourceText(where=where, text=text)
    if sum(map(text.count, _LINE_ENDS)) - text.count("\r\n") > MOST_LINES:
        raise source.wrong("too many lines", MOST_LINES, f"up to {MOST_LINES}")
    return source
