"""When a search ends: by the work that it has done, which is counted, and only as a last resort by the clock.

The same request does the same work on every machine, so an end by counted work leaves the same plan. Work is counted in
seconds of a slow machine; one that is faster, or has nothing else to do, reaches the end of the work before that of the
time. Where the clock ends a search first, its report says so: another run may find something else then.
"""

import time
from dataclasses import dataclass, field
from math import inf
from typing import Final

# Seconds of one core of a shared virtual machine, times 1.5, as measured in searches of Llama-3 8B and 70B, GPT-3 and
# DeepSeek-V3 on 16 to 16,384 accelerators: their counted work was 1.5 to 3 times the CPU seconds that they took.
GRID_S: Final = 40e-6  # to enumerate a grid, to ask the rules about it and to bound it
REFINED_S: Final = 20e-6  # a full bound of a grid under one option
REFINED_OPTION_S: Final = 6e-3  # what that costs an option whatever the number of grids
PARTS_S: Final = 40e-6  # the parts of a grid under one option, with all exchanges
EXPANDED_S: Final = 100e-6  # kernels and memory of a row of a block
GROUP_S: Final = 8e-3  # a pipeline shape of a block
OPERATION_S: Final = 0.2e-6  # an operation of a schedule in a row of it
OPEN_S: Final = 50e-6  # the bound over every split of a row that stays open
OPEN_BLOCK_S: Final = 70e-3  # what that costs a block
LAYOUT_S: Final = 8e-3  # the full price of a layout
SPLITS_S: Final = 15e-3  # the splits that the partitioner finds for a layout
STRATEGY_S: Final = 100e-6  # a strategy of a stage whose layers may differ
STAGE_S: Final = 15e-3  # the best strategies of the layers of a stage
ISLAND_ROW_S: Final = 60e-6  # a strategy over several islands with its bounds
ISLAND_SPLIT_S: Final = 8e-3  # the split of one of these
HEAT_S: Final = 3e-3  # placements of a layout in balance
PLACE_S: Final = 0.5e-6  # an accelerator of one of them


@dataclass(kw_only=True)
class Meter:
    """The work that one request has done so far [s], and whether the clock has cut any of it."""

    work_s: float = 0.0
    by_clock: bool = False


@dataclass(frozen=True, kw_only=True)
class Until:
    """An end, in counted work and of the clock; what never ends counts nothing.

    Attributes
    ----------
    work_s : float
        Of the meter.
    clock_s : float
        Of ``time.monotonic``.
    meter : Meter or None
        What has been counted.
    """

    work_s: float = inf
    clock_s: float = inf
    meter: Meter | None = field(default=None, compare=False)

    def spend(self, work_s: float) -> None:
        """Count work that is done."""
        if self.meter is not None:
            self.meter.work_s += work_s

    def late(self, ahead_s: float = 0.0) -> bool:
        """Whether the end has come, or comes within so many seconds, so that work is left out.

        The meter notes when only the clock says so.
        """
        if not self.near(ahead_s):
            return False
        if self.meter is not None and self._done_s < self.work_s - ahead_s:
            self.meter.by_clock = True
        return True

    def near(self, ahead_s: float) -> bool:
        """Whether the end comes within so many seconds; nothing is left out for it, so nothing is noted."""
        return self._done_s >= self.work_s - ahead_s or time.monotonic() > self.clock_s - ahead_s

    @property
    def left_s(self) -> float:
        """Counted work that is left [s]; nothing after the end."""
        return max(self.work_s - self._done_s, 0.0)

    def part(self, share: float) -> "Until":
        """The end of a part of what is left from now on."""
        return self.after(share * self.left_s, share * max(self.clock_s - time.monotonic(), 0.0))

    def after(self, work_s: float, clock_s: float | None = None) -> "Until":
        """An end so many seconds from now, whether or not that is after this one; default: of the clock as of work."""
        clock_s = work_s if clock_s is None else clock_s
        return Until(work_s=self._done_s + work_s, clock_s=time.monotonic() + clock_s, meter=self.meter)

    def within(self, other: "Until") -> "Until":
        """The earlier of two ends of one search."""
        return Until(work_s=min(self.work_s, other.work_s), clock_s=min(self.clock_s, other.clock_s), meter=self.meter)

    def beyond(self, other: "Until") -> "Until":
        """The later of two ends of one search."""
        return Until(work_s=max(self.work_s, other.work_s), clock_s=max(self.clock_s, other.clock_s), meter=self.meter)

    @property
    def _done_s(self) -> float:
        return 0.0 if self.meter is None else self.meter.work_s


UNENDING: Final = Until()


def from_now(limit_s: float, clock_s: float | None = None) -> Until:
    """The end of a request that begins now.

    Parameters
    ----------
    limit_s : float
        Its time limit [s].
    clock_s : float, optional
        That of the clock [s]; default: the same.
    """
    return Until(work_s=limit_s, meter=Meter()).after(limit_s, clock_s)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a search has taken: seconds of the clock, counted work [s], and whether the clock has cut any of it."""

    wall_s: float
    work_s: float
    by_clock: bool


class Stopwatch:
    """Tells what a search has taken since it began.

    Parameters
    ----------
    until : Until
        Its end.
    """

    def __init__(self, until: Until) -> None:
        self._meter = until.meter or Meter()
        self._begun_s = time.monotonic()
        self._before_s = self._meter.work_s

    def taken(self) -> Taken:
        """What has been taken until now."""
        return Taken(
            wall_s=time.monotonic() - self._begun_s,
            work_s=self._meter.work_s - self._before_s,
            by_clock=self._meter.by_clock,
        )
