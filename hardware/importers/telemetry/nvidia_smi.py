"""``nvidia-smi --query-gpu=... --format=csv``, with or without ``nounits``, once or in a loop."""

import csv
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hardware.importers.source_text import SourceText
from hardware.importers.telemetry import samples
from hardware.importers.telemetry.samples import MOST_SAMPLES, Sample, clock_hz, quantity, reasons_of, share

ASK: Final = (
    "nvidia-smi --query-gpu=timestamp,index,name,temperature.gpu,power.draw,clocks.sm,utilization.gpu,"
    "clocks_event_reasons.active --format=csv -l 1"
)
_UNIT: Final = re.compile(r"\s*\[[^\]]{1,12}\]$")
_CLOCKS: Final = ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr")
_POWER: Final = ("power.draw.average", "power.draw", "power.draw.instant")
_MASKS: Final = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_NAMED: Final = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_EVENT: Final = re.compile(r"clocks_(?:event|throttle)_reasons\.(\w+)$")
_FLAGS: Final = MappingProxyType(
    {
        "sw_power_cap": samples.POWER_CAP,
        "sw_thermal_slowdown": samples.HEAT,
        "hw_thermal_slowdown": samples.HEAT,
        "hw_power_brake_slowdown": samples.POWER_BRAKE,
    }
)


def is_header(line: str) -> bool:
    """Whether a line names columns of ``--query-gpu``."""
    columns = _columns(line)
    return "temperature.gpu" in columns or any(name in columns for name in (*_CLOCKS, *_POWER))


def read_samples(source: SourceText) -> tuple[list[Sample], int]:
    """Read a CSV file.

    Parameters
    ----------
    source : SourceText
        The file; headers may repeat, other lines may stand between.

    Returns
    -------
    list of Sample, int
        Samples in order, and the number of lines that break off.

    Raises
    ------
    InputError
        No column tells the devices apart though they differ, or nothing was measured.
    """
    found: list[Sample] = []
    columns: Sequence[str] = ()
    seats: dict[str, int] = {}
    skipped = 0
    for number, line in enumerate(source.lines(), start=1):
        if is_header(line):
            columns = _columns(line)
            continue
        cells = _cells(line)
        if not columns or len(cells) < 2:
            continue
        if len(cells) != len(columns):
            skipped += 1
            continue
        row = dict(zip(columns, cells, strict=True))
        found.append(_sample(row, _seat(source, row, seats, number)))
        if len(found) > MOST_SAMPLES:
            raise source.wrong("too many rows", number, f"up to {MOST_SAMPLES}")
    return found, skipped


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]


def _columns(line: str) -> list[str]:
    return [_UNIT.sub("", cell.casefold()) for cell in _cells(line)]


def _seat(source: SourceText, row: Mapping[str, str], seats: dict[str, int], line: int) -> int:
    """Return the local index: as stated, else by the order in which identities first appear."""
    name = next((key for key in _NAMED if key in row), "")
    if not name:
        return 0
    if name == "index":
        if not row[name].isdecimal() or len(row[name]) > 4:
            raise source.wrong(f"index '{row[name][:40]}'", line, "a whole number from 0")
        return int(row[name])
    return seats.setdefault(row[name], len(seats))


def _sample(row: Mapping[str, str], gpu: int) -> Sample:
    power = next((row[key] for key in _POWER if key in row), "")
    clock = next((row[key] for key in _CLOCKS if key in row), "")
    mask = next((row[key] for key in _MASKS if key in row), "")
    flags = {
        _FLAGS[match[1]]
        for key, value in row.items()
        if (match := _EVENT.match(key)) and match[1] in _FLAGS and value.casefold() == "active"
    }
    return Sample(
        host="",
        gpu=gpu,
        device=row.get("name", row.get("gpu_name", "")),
        temperature_c=quantity(row.get("temperature.gpu", ""), "c"),
        clock_hz=clock_hz(clock),
        power_w=quantity(power, "w"),
        load=share(row.get("utilization.gpu", "")),
        reasons=reasons_of(mask) | flags,
    )
