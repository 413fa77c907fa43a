"""From samples to what each accelerator does under load."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from hardware.importers.source_text import SourceText, read_source
from hardware.importers.telemetry import amd_smi, dcgm, nvidia_smi, rocm_smi
from hardware.importers.telemetry.samples import Sample

BUSY_LOAD: Final = 0.5
"""Share of time with work from which a sample counts as under load."""
BUSY_POWER: Final = 0.5
"""Where no load is stated: share of the highest draw of the whole file from which a sample counts."""
OFTEN: Final = 0.1
"""Share of the samples under load from which a reason for a low clock is reported."""
WARM_UP: Final = 0.2
"""Share of a series under load that is left out at its start where it is long enough: heat sinks take minutes."""
LONG: Final = 20  # samples under load


@dataclass(frozen=True, kw_only=True)
class DeviceReading:
    """One accelerator under load: medians over its samples; 0.0 where the tool did not say.

    ``host`` is empty where the file does not name it. ``samples`` under load went into the medians. ``hottest_c``
    is the highest temperature seen. ``reasons`` lists what held the clock down in at least ``OFTEN`` of them.
    """

    host: str
    gpu: int
    device: str
    samples: int
    clock_hz: float
    temperature_c: float
    hottest_c: float
    power_w: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What a file says: readings by host and index, which tool wrote it, and what was assumed or left out."""

    where: str
    tool: str
    readings: tuple[DeviceReading, ...]
    assumed: tuple[str, ...] = ()


def read_telemetry(path: str | Path) -> Telemetry:
    """Read a series of a monitoring tool.

    Parameters
    ----------
    path : str or Path
        What ``nvidia-smi --query-gpu=... --format=csv``, ``dcgmi dmon``, dcgm-exporter, ``rocm-smi --json`` or
        ``amd-smi metric --json`` printed.

    Returns
    -------
    Telemetry
        A reading for every accelerator seen under load.

    Raises
    ------
    InputError
        The file is none of these, or no accelerator was under load in it.
    """
    source = read_source(path)
    tool, read = _tool(source)
    samples, left_out = read(source)
    if not any(told for sample in samples for told in (sample.clock_hz, sample.temperature_c, sample.power_w)):
        raise source.wrong(f"no clock, temperature or draw in this output of {tool}", allowed=_ask())
    assumed = [f"{source.where}: {left_out} lines or records break off and are left out"] if left_out else []
    busy = _under_load(samples, assumed, source)
    by_device: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in busy:
        by_device[sample.host, sample.gpu].append(sample)
    idle = {(sample.host, sample.gpu) for sample in samples} - set(by_device)
    if idle:
        assumed.append(f"{source.where}: {len(idle)} of {len(idle) + len(by_device)} accelerators idle: as their like")
    readings = tuple(
        _reading(*seat, by_device[seat]) for seat in sorted(by_device, key=lambda seat: (host_order(seat[0]), seat[1]))
    )
    return Telemetry(where=source.where, tool=tool, readings=readings, assumed=tuple(assumed))


def host_order(host: str) -> list[tuple[int, str]]:
    """Return a key that sorts hosts by the numbers in their names: n2 before n10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.findall(r"[0-9]{1,18}|[^0-9]+", host)]


def _tool(source: SourceText) -> tuple[str, Callable[[SourceText], tuple[list[Sample], int]]]:
    if rocm_smi.looks_like(source.text):
        return "rocm-smi --json", rocm_smi.read_samples
    if amd_smi.looks_like(source.text):
        return "amd-smi metric --json", amd_smi.read_samples
    for line in source.lines():
        if nvidia_smi.is_header(line):
            return "nvidia-smi --query-gpu", nvidia_smi.read_samples
        if dcgm.is_table_header(line):
            return "dcgmi dmon", dcgm.read_table
        if dcgm.is_metric(line):
            return "dcgm-exporter", dcgm.read_metrics
    raise source.wrong("not the output of a known monitoring tool, or its header is missing", allowed=_ask())


def _ask() -> str:
    return f"the output under load of {nvidia_smi.ASK}; {dcgm.ASK}; dcgm-exporter; {rocm_smi.ASK}; {amd_smi.ASK}"


def _under_load(samples: Sequence[Sample], assumed: list[str], source: SourceText) -> list[Sample]:
    """Return the samples with work: by the stated load, else by the draw, else all of them."""
    if any(sample.load is not None for sample in samples):
        busy = [sample for sample in samples if sample.load is not None and sample.load >= BUSY_LOAD]
        if not busy:
            raise source.wrong("every accelerator is idle", allowed="a series taken while the job trains")
        return busy
    draws = [sample.power_w for sample in samples if sample.power_w]
    if draws:
        assumed.append(f"{source.where}: no utilization; samples from {BUSY_POWER:.0%} of the highest draw count")
        return [sample for sample in samples if sample.power_w and sample.power_w >= BUSY_POWER * max(draws)]
    assumed.append(f"{source.where}: neither utilization nor draw; all samples count as under load")
    return list(samples)


def _reading(host: str, gpu: int, samples: Sequence[Sample]) -> DeviceReading:
    if len(samples) >= LONG:
        samples = samples[int(WARM_UP * len(samples)) :]
    named = [reason for sample in samples for reason in sorted(sample.reasons)]
    often = sorted(reason for reason in set(named) if named.count(reason) >= OFTEN * len(samples))
    temperatures = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
    return DeviceReading(
        host=host,
        gpu=gpu,
        device=next((sample.device for sample in samples if sample.device), ""),
        samples=len(samples),
        clock_hz=_middle([sample.clock_hz for sample in samples]),
        temperature_c=_middle(temperatures),
        hottest_c=max(temperatures, default=0.0),
        power_w=_middle([sample.power_w for sample in samples]),
        reasons=tuple(often),
    )


def _middle(values: Sequence[float | None]) -> float:
    told = [value for value in values if value is not None]
    return median(told) if told else 0.0


def on_host(telemetry: Telemetry, host: str) -> Telemetry:
    """Return the telemetry with ``host`` for the readings of a file that names none."""
    named = (replace(reading, host=reading.host or host) for reading in telemetry.readings)
    return replace(telemetry, readings=tuple(named))
