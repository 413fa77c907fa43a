"""What plan calibrate prints: the factors with what they mean, the errors before and after, and what it left out."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from hardware.nouns import count
from planner.calibrate.calibration import Calibration
from planner.profile import FittedRun, MachineProfile
from planner.report.console import section, show
from planner.report.layout_text import bullets, labelled
from planner.report.left_out_text import left_out_rows, other_units
from planner.report.tables import ruled_table
from planner.report.words import gib, listed, percent

LABELS: Final = MappingProxyType(
    {
        "matrix": "rate of matrix products",
        "fp8": "products in fp8, times that",
        "fp4": "products in fp4, times that",
        "attention": "attention kernels, times that",
        "memory_rate": "rate of memory-bound kernels",
        "scale_up": "rate of links inside a node",
        "scale_out": "rate of the network",
        "scale_up_latency": "latency inside a node",
        "scale_out_latency": "latency of the network",
        "host": "host time of a kernel",
        "activations": "memory of activations",
    }
)


def print_calibration(console: Console, found: Calibration, place: Path) -> None:
    """Print a calibration.

    Parameters
    ----------
    console : Console
        Where to.
    found : Calibration
        Profile, distrusted runs, rows that could not be used.
    place : Path
        File that the profile was written to.
    """
    profile = found.profile
    rows = [("on", f"{profile.accelerator}{_frameworks(profile)}")]
    rows += [(file.kind, f"{file.name}: {count(file.used, 'row')} used") for file in profile.files]
    parts: list[RenderableType] = [
        section("Profile of a machine", labelled(rows)),
        section("Factors on the published constants", labelled(_factors(profile))),
    ]
    if profile.runs or profile.memory.runs:
        parts.append(section("Errors", _errors(profile)))
    parts += other_units((run.id, math.exp(-run.before)) for run in profile.runs)
    parts += _left_out(found)
    if not profile.learned:
        parts.append(
            Text("The measurements say nothing that the published constants do not: the profile changes nothing.")
        )
    show(console, *parts, Text(f"Written: {place}; use it with --profile {place}"))


def _frameworks(profile: MachineProfile) -> str:
    return f", under {listed(profile.frameworks)}" if profile.frameworks else ""


def _factors(profile: MachineProfile) -> list[tuple[str, str]]:
    """Say every factor that moved; the others are named in one line."""
    rows = [(f"{getattr(profile.factors, name):.3f}", LABELS[name]) for name in profile.learned if name in LABELS]
    if "memory_offset_bytes" in profile.learned:
        rows.append((f"{gib(profile.factors.memory_offset_bytes):+.2f} GiB", "memory beyond the equations"))
    rest = [label for name, label in LABELS.items() if name not in profile.learned]
    return [*rows, ("1", f"{listed(rest)}: the measurements do not tell")] if rest else rows


def _errors(profile: MachineProfile) -> RenderableType:
    table = ruled_table()
    for title in ("", "runs", "published constants", "with the profile", "each left out"):
        table.add_column(title, justify="left" if not title else "right")
    trusted = profile.trusted
    if trusted:
        for name, share in (("step time, median", 0.5), ("step time, 90th percentile", 0.9)):
            cells = (percent(_size(trusted, field, share)) for field in ("before", "after", "left_out"))
            table.add_row(name, f"{len(trusted):,}", *cells)
    memory = profile.memory
    if memory.runs:
        cells = (percent(value) for value in (memory.before, memory.after, memory.left_out))
        table.add_row("peak memory, median", f"{memory.runs:,}", *cells)
    return table


def _size(runs: Sequence[FittedRun], field: str, share: float) -> float:
    """Quantile of the absolute relative errors."""
    return float(np.quantile([abs(math.expm1(getattr(run, field))) for run in runs], share))


def _left_out(found: Calibration) -> list[RenderableType]:
    """Name runs that were distrusted, rows that could not be used, columns that are not read, and what is assumed."""
    lines = [
        f"{run.id}: {math.exp(run.after):.2f} times the measured step under the fit of the others; not used"
        for run in found.profile.runs
        if run.distrusted
    ]
    lines += [f"{name}: its peak memory fits no other run; not used" for name in found.distrusted_memory]
    parts: list[RenderableType] = [section("Distrusted", bullets(lines))] if lines else []
    parts += [section("Columns", bullets(found.unread))] if found.unread else []
    parts += [section("Assumed", left_out_rows(found.assumed))] if found.assumed else []
    return [*parts, section("Not usable", left_out_rows(found.skipped))] if found.skipped else parts
