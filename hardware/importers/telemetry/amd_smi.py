"""``amd-smi metric --json``, once or in a loop."""

import re
from collections.abc import Mapping
from typing import Any, Final

from hardware.importers.source_text import SourceText
from hardware.importers.telemetry.json_series import json_values
from hardware.importers.telemetry.samples import MOST_SAMPLES, Sample, clock_hz, possible, quantity, share

ASK: Final = "amd-smi metric --usage --power --clock --temperature --json"
_TEMPERATURES: Final = (("temperature", "hotspot"), ("temperature", "edge"))
_POWERS: Final = (("power", "socket_power"), ("power", "average_socket_power"), ("power", "current_socket_power"))
_CLOCK: Final = re.compile(r"gfx(_\d{1,3})?$")


def looks_like(text: str) -> bool:
    """Whether a text holds JSON objects of GPUs with their usage, power, clock or temperature."""
    return re.search(r'\{\s*"gpu"\s*:\s*\d{1,4}\s*,\s*"(usage|power|clock|temperature)"', text[:100_000]) is not None


def read_samples(source: SourceText) -> tuple[list[Sample], int]:
    """Read one JSON value or several in a row: a list of GPUs, or an object that holds it (``gpu_data``).

    Parameters
    ----------
    source : SourceText
        The file.

    Returns
    -------
    list of Sample, int
        Samples in order, and the number of values that break off.
    """
    values, broken = json_values(source, "[{", r'\{\s*"gpu"', ASK)
    found: list[Sample] = []
    for value in values:
        rows = value.get("gpu_data", [value]) if isinstance(value, Mapping) else value
        found += [_sample(row) for row in rows if isinstance(row, Mapping) and _index(row) is not None]
        if len(found) > MOST_SAMPLES:
            raise source.wrong("too many GPUs", allowed=f"up to {MOST_SAMPLES}")
    return found, broken


def _index(row: Mapping[str, Any]) -> int | None:
    number = row.get("gpu")
    return number if type(number) is int and 0 <= number < 10_000 else None


def _sample(row: Mapping[str, Any]) -> Sample:
    clocks = row.get("clock")
    names = [name for name in clocks if _CLOCK.match(str(name))] if isinstance(clocks, Mapping) else []
    found = [clock_hz(_text(row, ("clock", name, "clk"))) for name in names]
    told = [clock for clock in found if clock]
    odd = [clock for clock in told if not possible("clock_hz", clock)]  # left to be named, not hidden in a mean
    return Sample(
        host="",
        gpu=_index(row) or 0,
        temperature_c=_first(row, _TEMPERATURES, "c"),
        clock_hz=odd[0] if odd else sum(told) / len(told) if told else None,  # of the compute dies
        power_w=_first(row, _POWERS, "w"),
        load=share(_text(row, ("usage", "gfx_activity"))),
    )


def _first(row: Mapping[str, Any], paths: tuple[tuple[str, ...], ...], unit: str) -> float | None:
    values = (quantity(_text(row, path), unit) for path in paths)
    return next((value for value in values if value is not None), None)


def _text(row: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Value of a field with its unit, as ``rocm-smi`` would print it; empty where it is not stated."""
    found: Any = row
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, Mapping):
        return f"{found.get('value', '')} {found.get('unit', '')}".strip()
    return "" if found is None else str(found)
