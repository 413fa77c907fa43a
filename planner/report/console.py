"""Where text goes: a terminal gets colour and its own width, a pipe gets plain text of a fixed width."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.progress import track
from rich.text import Text

PIPED_WIDTH: Final = 100
NARROW: Final = 96
"""Columns below which tables drop what a reader can do without."""
WIDE_BAR: Final = 30
NARROW_BAR: Final = 14


def console_on(stream: TextIO) -> Console:
    """Return a console on a stream.

    Parameters
    ----------
    stream : TextIO
        Standard output or error. ``NO_COLOR`` and ``TERM=dumb`` are honoured; a stream that is no terminal gets no
        control codes and :data:`PIPED_WIDTH` columns, or ``COLUMNS``.

    Returns
    -------
    Console
        Prints text as it is: no markup, no highlighting.
    """
    width = None if stream.isatty() else _columns() or PIPED_WIDTH
    return Console(
        file=stream, width=width, markup=False, emoji=False, highlight=False, force_terminal=stream.isatty() or False
    )


def text_console(*, json_on_stdout: bool = False) -> Console:
    """Return the console for people: standard output, or standard error when JSON has standard output to itself."""
    return console_on(sys.stderr if json_on_stdout else sys.stdout)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on standard error that work goes on, when someone looks at it."""
    if not sys.stderr.isatty():
        yield
        return
    with console_on(sys.stderr).status(what):
        yield


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars in text: a share of the whole is drawn as so many blocks of ``width``."""

    width: int = WIDE_BAR
    block: str = "█"

    def draw(self, low: float, high: float) -> str:
        """Return blocks from one share of the whole to another, with spaces before them."""
        start, end = round(max(0.0, low) * self.width), round(max(0.0, high) * self.width)
        return " " * start + self.block * max(0, end - start)


_Item = TypeVar("_Item")


def counted(items: Iterable[_Item], total: int) -> Iterable[_Item]:
    """Pass items on and show on standard error how many of ``total`` are done, when someone looks at it."""
    if not sys.stderr.isatty():
        return items
    return track(items, description="predicting", total=total, console=console_on(sys.stderr), transient=True)


def show(console: Console, *parts: RenderableType) -> None:
    """Print parts with one empty line between them; without trailing spaces where nobody sees them."""
    if console.is_terminal:
        _print(console, parts)
        return
    with console.capture() as captured:
        _print(console, parts)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    console.file.write(text.encode(console.encoding, "replace").decode(console.encoding))
    console.file.flush()  # a reader that has gone shows here, where it can be handled


def _print(console: Console, parts: tuple[RenderableType, ...]) -> None:
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, crop=False)  # a table may be wider: better than one with its end cut off


def bars(console: Console) -> Bars:
    """Return how bars are drawn on a console: so wide that words have room, of ``#`` where blocks cannot be said."""
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    return Bars(width=WIDE_BAR if console.width >= NARROW else NARROW_BAR, block=block)


def section(title: str, *body: RenderableType) -> RenderableType:
    """Return a heading with what belongs under it."""
    return Group(Text(title, style="bold"), *body)


def write_stdout(text: str) -> None:
    """Write machine-readable text to standard output as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and len(text) <= 4 and 20 <= int(text) <= 1000 else 0
