"""From samples to what each accelerator does under load."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from hardware.importers.source_text import SourceText, read_source
from hardware.importers.telemetry import amd_smi, dcgm, nvidia_smi, rocm_smi
from hardware.importers.telemetry.samples import QUANTITIES, Sample, possible, shown

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
    """What a file says: readings by host and index, which tool wrote it, and what was assumed or left out.

    ``gpus`` is the least number of accelerators of a node that has all indices seen, idle ones included.
    """

    where: str
    tool: str
    readings: tuple[DeviceReading, ...]
    gpus: int
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
    stated, left_out = read(source)
    samples, odd = _possible(stated)
    if not any(_tells(sample) for sample in samples):
        but = f" ({'; '.join(odd)})" if odd else ""
        raise source.wrong(f"no clock, temperature or draw in this output of {tool}{but}", allowed=_ask())
    assumed = [f"{source.where}: {left_out} lines or records break off and are left out"] if left_out else []
    assumed += [f"{source.where}: {words}" for words in odd]
    busy = _under_load(samples, assumed, source)
    by_device: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in busy:
        by_device[sample.host, sample.gpu].append(sample)
    told = {(sample.host, sample.gpu) for sample in samples if _tells(sample)}
    mute = [sample for sample in samples if (sample.host, sample.gpu) not in told]
    if mute:
        assumed.append(f"{source.where}: no clock, temperature or draw of {_gpus(mute)}: as the model has it")
    idle = told - set(by_device)
    if idle:
        assumed.append(f"{source.where}: {len(idle)} of {len(idle) + len(by_device)} accelerators idle: as their like")
    readings = tuple(
        _reading(*seat, by_device[seat]) for seat in sorted(by_device, key=lambda seat: (host_order(seat[0]), seat[1]))
    )
    gpus = 1 + max(sample.gpu for sample in samples)
    return Telemetry(where=source.where, tool=tool, readings=readings, gpus=gpus, assumed=tuple(assumed))


def _possible(samples: Sequence[Sample]) -> tuple[list[Sample], list[str]]:
    """Return samples without values that no device shows, and what those were."""
    odd: dict[str, list[tuple[Sample, float]]] = defaultdict(list)
    kept = []
    for sample in samples:
        values = {name: getattr(sample, name) for name in QUANTITIES}
        wrong = {name: value for name, value in values.items() if value is not None and not possible(name, value)}
        for name, value in wrong.items():
            odd[name].append((sample, value))
        kept.append(_without(sample, wrong) if wrong else sample)
    words = [
        f"{shown(name, found[0][1])} of {_gpus(sample for sample, _ in found)} is nothing that a device shows: "
        f"{len(found)} such values are not used"
        for name, found in odd.items()
    ]
    return kept, words


def _without(sample: Sample, names: Iterable[str]) -> Sample:
    nothing: dict[str, Any] = dict.fromkeys(names)
    return replace(sample, **nothing)


def _gpus(samples: Iterable[Sample]) -> str:
    """Name the accelerators of samples, the first three of many."""
    seats = sorted({(sample.host, sample.gpu) for sample in samples})
    names = ", ".join(f"{host} GPU {gpu}".strip() for host, gpu in seats[:3])
    return f"{names} and {len(seats) - 3} more" if len(seats) > 3 else names


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
    """Return the samples with work: by the stated load, where none is stated by the draw.

    An accelerator that states neither in any sample counts in all of them: nothing says that it idles.
    """
    unstated = [sample for sample in samples if sample.load is None]
    least_w = _least_busy_w(samples)
    telling = {(sample.host, sample.gpu) for sample in samples if sample.load is not None or sample.power_w}
    silent = [sample for sample in unstated if (sample.host, sample.gpu) not in telling and _tells(sample)]
    drawing = [sample for sample in unstated if sample.power_w]
    if drawing:
        of = "" if len(unstated) == len(samples) else f" of {_gpus(drawing)}"
        assumed.append(f"{source.where}: no utilization{of}; samples from {BUSY_POWER:.0%} of the highest draw count")
    if silent:
        of = "" if len(silent) == len(samples) else f" of {_gpus(silent)}"
        assumed.append(f"{source.where}: neither utilization nor draw{of}; all its samples count as under load")
    busy = [sample for sample in samples if _busy(sample, least_w, (sample.host, sample.gpu) in telling)]
    if not busy or (telling and not any((sample.host, sample.gpu) in telling for sample in busy)):
        raise source.wrong("every accelerator is idle", allowed="a series taken while the job trains")
    return busy


def _least_busy_w(samples: Sequence[Sample]) -> float:
    """Draw from which a sample without utilization counts [W].

    Where every stated utilization is an idle one, the highest draw may be idle too: work draws twice as much as that.
    """
    highest_w = max((sample.power_w for sample in samples if sample.power_w), default=0.0)
    told = [sample for sample in samples if sample.load is not None]
    if any(sample.load >= BUSY_LOAD for sample in told if sample.load is not None):
        return BUSY_POWER * highest_w
    idle_w = max((sample.power_w for sample in told if sample.power_w), default=0.0)
    return max(BUSY_POWER * highest_w, idle_w / BUSY_POWER)


def _busy(sample: Sample, least_w: float, telling: bool) -> bool:
    if sample.load is not None:
        return sample.load >= BUSY_LOAD
    if sample.power_w:
        return sample.power_w >= least_w
    return not telling and _tells(sample)


def _tells(sample: Sample) -> bool:
    """Whether a sample has anything that is laid on a device."""
    return bool(sample.clock_hz or sample.temperature_c or sample.power_w)


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
