"""Numbers and layouts as short text. The only places where bytes become GiB are this module and the JSON report."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from costmodels.layout import Granularity, Layout, Strategy
from costmodels.results import MemoryUse
from planner.layouts.splits import runs_of
from planner.plan_report import RankedLayout
from planner.variants import CP_COMM, SCHEDULE

BYTES_PER_GIB: Final = 2.0**30
GIGA: Final = 1e9
NOTHING_S: Final = 1e-9
_LARGE: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def gib(size_bytes: float) -> float:
    """Return bytes as GiB."""
    return size_bytes / BYTES_PER_GIB


def seconds(value_s: float) -> str:
    """Return a duration with four significant digits and its unit, such as ``12.35 s`` or ``3.21 ms``.

    What is less than :data:`NOTHING_S` is what sums leave, and 0.
    """
    if abs(value_s) < NOTHING_S:
        return "0 us"
    per_second, unit = _unit(value_s)
    return f"{digits(value_s * per_second)} {unit}"


def interval(low_s: float, high_s: float) -> str:
    """Return two durations in the unit of the longer one, such as ``1.31 to 1.84 ms``."""
    per_second, unit = _unit(high_s)
    return f"{digits(low_s * per_second)} to {digits(high_s * per_second)} {unit}"


def _unit(value_s: float) -> tuple[float, str]:
    """Return how many of the unit that suits a duration are a second, and its name."""
    if abs(value_s) >= 0.1:
        return 1.0, "s"
    return (1e3, "ms") if abs(value_s) >= 1e-4 else (1e6, "us")


def duration(value_s: float) -> str:
    """Return a long time with two significant digits in the unit that a person would use, such as ``3.1 h``."""
    for unit_s, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if value_s >= 2.0 * unit_s:
            return f"{digits(value_s / unit_s, 2)} {unit}"
    return f"{digits(value_s, 2)} s"


def digits(value: float, significant: int = 4) -> str:
    """Return a number with so many significant digits, without exponent, with thousands separated.

    Below 1 the nought before the point counts as one of them, noughts after it do not: 0.153, 0.00153.
    """
    if value == 0.0:
        return "0"
    whole = len(str(int(abs(value))))
    decimals = significant - whole if abs(value) >= 1.0 else significant - 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def percent(share: float, decimals: int = 1) -> str:
    """Return a share as a percentage, such as ``12.3 %``."""
    return f"{share * 100.0:.{decimals}f} %"


def large(value: float) -> str:
    """Return a large count with an SI prefix, such as ``70.55G``."""
    for size, prefix in _LARGE:
        if abs(value) >= size:
            return f"{digits(value / size)}{prefix}"
    return digits(value)


def layout_text(layout: Layout) -> str:
    """Return the degrees of a layout, such as ``TP4 PP8 DP2`` or ``PP4 DP16 EP8 ZeRO3``.

    TP, PP and DP always stand; the others where they are not 1. ZeRO stands where it is not 1, the usual sharding of
    the optimizer; ``ZeRO3/8`` shards over groups of 8 ranks. A star marks layers that use further strategies.
    """
    first = layout.first
    parts = [f"TP{first.tp}", f"PP{layout.pp}"]
    parts += [f"CP{first.cp}"] if first.cp > 1 else []
    parts += [f"DP{first.dp}"]
    parts += [f"EP{first.ep}"] if first.ep > 1 else []
    parts += [f"ETP{first.etp}"] if first.etp > 1 else []
    parts += [_zero(first)] if (first.zero != 1 or first.shard_group) and first.dp * first.cp > 1 else []
    return " ".join(parts) + ("" if uniform(layout) else " *")


def ranked_text(ranked: RankedLayout) -> str:
    """Return a layout as :func:`layout_text` does, with what was tried behind it."""
    return " ".join(filter(None, (layout_text(ranked.layout), choices_text(ranked))))


def choices_text(ranked: RankedLayout) -> str:
    """Return what was tried as a layout has it, such as ``zbv compiled=off``; what it has no use for is left out."""
    idle = {SCHEDULE: ranked.layout.pp == 1, CP_COMM: ranked.layout.first.cp == 1}
    told = [(name, value) for name, value in ranked.choices if not idle.get(name, False)]
    return " ".join(value if name in idle else f"{name}={value}" for name, value in told)


def strategy_text(strategy: Strategy) -> str:
    """Return the strategy of a layer, such as ``TP2 DP16 ZeRO2, recompute full``."""
    named = (("TP", strategy.tp), ("CP", strategy.cp), ("DP", strategy.dp), ("EP", strategy.ep), ("ETP", strategy.etp))
    degrees = [f"{name}{degree}" for name, degree in named if degree > 1 or name in ("TP", "DP")]
    degrees += [_zero(strategy)] if strategy.dp * strategy.cp > 1 else []
    plain = strategy.recompute.granularity is Granularity.NONE
    return " ".join(degrees) + ("" if plain else f", recompute {strategy.recompute}")


def _zero(strategy: Strategy) -> str:
    return f"ZeRO{strategy.zero}/{strategy.shard_group}" if strategy.shard_group else f"ZeRO{strategy.zero}"


def uniform(layout: Layout) -> bool:
    """Whether all layers share one grid (they may differ in recompute)."""
    return len({_grid(run.strategy) for stage in layout.stages for run in stage.strategies}) == 1


def _grid(strategy: Strategy) -> tuple[int, ...]:
    return (strategy.tp, strategy.cp, strategy.dp, strategy.ep, strategy.etp, strategy.zero, strategy.shard_group)


def layers_text(layout: Layout) -> str:
    """Return the layers of each stage, chunks apart by ``/``: ``10x8``, ``21,21,19,19`` or ``5/5x4``."""
    return runs_of("/".join(map(str, chunks)) for chunks in layout.layers_per_stage)


def layers_words(layout: Layout) -> str:
    """Return the layers of each stage for people, chunks counted: ``20x4, in 10 chunks of 2``."""
    if layout.vpp == 1:
        return layers_text(layout)
    sizes = [chunk for chunks in layout.layers_per_stage for chunk in chunks]
    each = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return f"{stage_layers_text(layout)}, in {layout.vpp} chunks of {each}"


def stage_layers_text(layout: Layout) -> str:
    """Return the layers of each stage with its chunks added up: ``10x8``."""
    return runs_of(stage.layers for stage in layout.stages)


def islands_text(layout: Layout) -> str:
    """Return the islands that hold the stages, in the order of the stages: ``1`` or ``0,1,2``."""
    return ",".join(str(island) for island, _ in groupby(stage.island for stage in layout.stages))


def recompute_text(layout: Layout) -> str:
    """Return what a layout recomputes; ``full 12/80`` when only some layers do."""
    layers: dict[str, int] = {}
    for stage in layout.stages:
        for run in stage.strategies:
            layers[str(run.strategy.recompute)] = layers.get(str(run.strategy.recompute), 0) + run.count
    named = [(name, number) for name, number in layers.items() if name != "none" and number]
    if not named:
        return "none"
    return " + ".join(name if number == layout.layers else f"{name} {number}/{layout.layers}" for name, number in named)


def memory_text(use: MemoryUse) -> str:
    """Return the memory of a rank and its verdict, such as ``61.2 fits``."""
    return f"{gib(use.total_bytes):.1f} {use.verdict}"


def grids_text(layout: Layout) -> str:
    """Return both grids of a layout with experts side by side; only the dense grid without."""
    first = layout.first
    dense = f"tp {first.tp} x cp {first.cp} x dp {first.dp}"
    if first.ep == 1 and first.etp == 1:
        return dense
    return f"attention {dense}, experts etp {first.etp} x ep {first.ep} x edp {first.edp}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return names as a list in a sentence: ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
