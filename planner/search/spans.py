"""When the phases of a search end, so that all of them together keep its time limit.

A phase that is cut goes on with what it has: grids that were not reached stay open, layouts keep the splits of the grid
search, ranks stay in order. Where no phase is cut, nothing depends on time.
"""

import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

SEARCH_SHARE: Final = 0.9  # of the time, until all islands are searched
SEARCH_SHARE_PLACED: Final = 0.6  # the same where accelerators are placed one by one after that
GRIDS_SHARE: Final = 0.85  # of an island's time, until its grids are searched
GRIDS_SHARE_MIXED: Final = 0.5  # the same where each layer may have a strategy of its own
SPLITS_SHARE_MIXED: Final = 0.7  # until the layers of the best grids are split, then

SPLITS_CUT: Final = "grids kept the split of their layers"
RANKS_CUT: Final = "layouts were not placed as well as possible"
_SINGLE: Final = MappingProxyType(
    {SPLITS_CUT: "grid kept the split of its layers", RANKS_CUT: "layout was not placed as well as possible"}
)


def cut_in_words(what: str, number: int) -> str:
    """Say how many grids or layouts the time limit cut, such as ``1 layout was not placed as well as possible``."""
    return f"{number:,} {_SINGLE.get(what, what) if number == 1 else what}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The time of the search of one island; moments of ``time.monotonic``.

    Attributes
    ----------
    start_s, end_s : float
        An infinite end cuts nothing.
    mixed : bool
        Whether strategies for single layers follow the grids.
    """

    start_s: float
    end_s: float
    mixed: bool = False

    @property
    def grids_s(self) -> float:
        """When the search of the grids ends."""
        return self._at(GRIDS_SHARE_MIXED if self.mixed else GRIDS_SHARE)

    @property
    def splits_s(self) -> float:
        """When the search of splits ends."""
        return self._at(SPLITS_SHARE_MIXED) if self.mixed else self.end_s

    def _at(self, share: float) -> float:
        return self.start_s + share * (self.end_s - self.start_s)


def spans(start_s: float, end_s: float, count: int, *, placed: bool, mixed: bool) -> tuple[Span, ...]:
    """Spans of searches that follow each other, and time left for placement after them.

    Parameters
    ----------
    start_s, end_s : float
        Of all, of ``time.monotonic``.
    count : int
        Searches.
    placed : bool
        Whether accelerators are placed one by one after them, which takes long.
    mixed : bool
        Whether each search goes on with strategies for single layers.
    """
    length_s = (SEARCH_SHARE_PLACED if placed else SEARCH_SHARE) * (end_s - start_s) / count
    starts = [start_s + number * length_s for number in range(count)]
    return tuple(Span(start_s=start, end_s=start + length_s, mixed=mixed) for start in starts)


def late(end_s: float) -> bool:
    """Whether a moment of ``time.monotonic`` has passed."""
    return time.monotonic() > end_s
