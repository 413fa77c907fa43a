"""What an import found, said on standard error: the cluster file has standard output, or its own place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.report.console import console_on

if TYPE_CHECKING:
    from planner.calibrate.link_rates import LinkRate


def print_import(title: str, stated: Sequence[str], assumed: Sequence[str], place: Path | None) -> None:
    """Print what files state, what was assumed, and where the cluster file went."""
    console = console_on(sys.stderr)
    console.print(title)
    for heading, texts in (("Stated:", stated), ("Assumed, for no file states it:", assumed)):
        if texts:
            console.print(heading)
        for text in texts:
            console.print(f"  {text}", soft_wrap=True)
    if place is not None:
        console.print(f"Wrote {place}")


def rate_lines(rates: Sequence[LinkRate]) -> tuple[str, ...]:
    """Return a line for each measured link."""
    return tuple(
        f"{rate.where}: {rate.collective} of {rate.ranks} ranks, bus bandwidth {rate.bus_bytes_per_s / 1e9:.4g} GB/s: "
        f"{rate.link} {rate.before_bytes_per_s / 1e9:.4g} -> {rate.after_bytes_per_s / 1e9:.4g} GB/s"
        + (f" ({rate.note})" if rate.note else "")
        for rate in rates
    )
