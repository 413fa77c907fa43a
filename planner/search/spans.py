"""When the phases of a search end, so that all of them together keep its time limit.

A phase that is cut goes on with what it has: grids that were not reached stay open, layouts keep the splits of the grid
search, ranks stay in order. Ends are counted in work (:mod:`planner.search.effort`), so that a cut depends on the
request alone.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from planner.search.effort import UNENDING, Until

SEARCH_SHARE: Final = 0.9  # of the time, until all islands are searched
SEARCH_SHARE_PLACED: Final = 0.6  # the same where accelerators are placed one by one after that
GRIDS_SHARE: Final = 0.85  # of an island's time, until its grids are searched
GRIDS_SHARE_MIXED: Final = 0.5  # the same where each layer may have a strategy of its own
SPLITS_SHARE_MIXED: Final = 0.7  # until the layers of the best grids are split, then

BY_CLOCK: Final = "by the clock, before the work counted for it was done: another run may find something else"
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
    """The ends of the phases of the search of one island: its grids, the splits of the best of them, all of it.

    An end that never comes cuts nothing.
    """

    grids: Until = UNENDING
    splits: Until = UNENDING
    end: Until = UNENDING


def spans(until: Until, count: int, *, placed: bool, mixed: bool) -> tuple[Span, ...]:
    """Spans of searches that follow each other from now on, and time left for placement after them.

    Parameters
    ----------
    until : Until
        The end of all.
    count : int
        Searches.
    placed : bool
        Whether accelerators are placed one by one after them, which takes long.
    mixed : bool
        Whether each search goes on with strategies for single layers.
    """
    share = (SEARCH_SHARE_PLACED if placed else SEARCH_SHARE) / count
    grids, splits = (GRIDS_SHARE_MIXED, SPLITS_SHARE_MIXED) if mixed else (GRIDS_SHARE, 1.0)

    def end(number: int, part: float) -> Until:
        return until.part(share * (number + part))

    return tuple(
        Span(grids=end(number, grids), splits=end(number, splits), end=end(number, 1.0)) for number in range(count)
    )
