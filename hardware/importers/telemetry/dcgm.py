"""``dcgmi dmon`` tables and the text that dcgm-exporter serves."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final

from hardware.importers.source_text import SourceText
from hardware.importers.telemetry.samples import MOST_SAMPLES, Sample, clock_hz, quantity, reasons_of, share

MOST_DEVICES: Final = 50_000
ASK: Final = "dcgmi dmon -e 150,155,100,203,112 (temperature, power, SM clock, utilization, clock events)"


def _fraction(text: str) -> float | None:
    """Return a share printed as 0 to 1."""
    return quantity(text, "%")


# Field: attribute and reader. Short names of dcgmi dmon and long names of the exporter (dcgm_fields.h).
_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        "TMPTR": ("temperature_c", lambda text: quantity(text, "c")),
        "GPUTMP": ("temperature_c", lambda text: quantity(text, "c")),
        "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", lambda text: quantity(text, "c")),
        "POWER": ("power_w", lambda text: quantity(text, "w")),
        "DCGM_FI_DEV_POWER_USAGE": ("power_w", lambda text: quantity(text, "w")),
        "SMCLK": ("clock_hz", clock_hz),
        "DCGM_FI_DEV_SM_CLOCK": ("clock_hz", clock_hz),
        "GPUTL": ("load", share),
        "DCGM_FI_DEV_GPU_UTIL": ("load", share),
        "GRACT": ("load", _fraction),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("load", _fraction),
        "DVCCTR": ("reasons", reasons_of),
        "CLEVT": ("reasons", reasons_of),
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("reasons", reasons_of),
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("reasons", reasons_of),
    }
)
_HEADER: Final = re.compile(r"#\s*Entity\b(.*)$", re.IGNORECASE)
_ROW: Final = re.compile(r"(?:^|\s)GPU[ :]\s*(\d{1,4})\s+(\S.*)$")
_METRIC: Final = re.compile(r"\s*(DCGM_FI_[A-Z0-9_]{1,60})\{(.{0,4000})\}\s+(\S{1,40})(?:\s+\d{1,20})?\s*$")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,60})="((?:[^"\\]|\\.){0,400})"')


def is_table_header(line: str) -> bool:
    """Whether a line heads a table of ``dcgmi dmon``."""
    return _HEADER.match(line.lstrip()) is not None


def is_metric(line: str) -> bool:
    """Whether a line is a metric of dcgm-exporter."""
    return _METRIC.match(line) is not None


def read_table(source: SourceText) -> tuple[list[Sample], int]:
    """Read a table of ``dcgmi dmon``; headers may repeat.

    Parameters
    ----------
    source : SourceText
        The file.

    Returns
    -------
    list of Sample, int
        Samples in order, and the number of lines that break off.
    """
    found: list[Sample] = []
    columns: list[str] = []
    skipped = 0
    for number, line in enumerate(source.lines(), start=1):
        header = _HEADER.match(line.lstrip())
        if header:
            columns = header[1].split()
            continue
        row = _ROW.search(line)
        if row is None or not columns:
            continue
        cells = row[2].split()
        if len(cells) != len(columns):
            skipped += 1
            continue
        values = _values(zip(columns, cells, strict=True))
        found.append(Sample(host="", gpu=int(row[1]), **values))
        if len(found) > MOST_SAMPLES:
            raise source.wrong("too many rows", number, f"up to {MOST_SAMPLES}")
    return found, skipped


def read_metrics(source: SourceText) -> tuple[list[Sample], int]:
    """Read scrapes of dcgm-exporter, one after the other: the n-th value of each metric of a device makes a sample.

    Parameters
    ----------
    source : SourceText
        The file; lines that are no metric of DCGM are passed over.

    Returns
    -------
    list of Sample, int
        Samples by device, and the number of metrics of device partitions (MIG), which are left out.
    """
    series: dict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    devices: dict[tuple[str, int], str] = {}
    left_out = 0
    for number, line in enumerate(source.lines(), start=1):
        match = _METRIC.match(line)
        if match is None or match[1] not in _FIELDS:
            continue
        labels = dict(_LABEL.findall(match[2]))
        if "GPU_I_ID" in labels:
            left_out += 1
            continue
        if not labels.get("gpu", "").isdecimal() or len(labels["gpu"]) > 4:
            raise source.wrong(f"metric {match[1]} without a label gpu", number, 'a label such as gpu="0"')
        seat = (labels.get("Hostname", ""), int(labels["gpu"]))
        devices[seat] = labels.get("modelName", "")
        series[seat][match[1]].append(match[3])
        if len(series) > MOST_DEVICES:
            raise source.wrong(f"more than {MOST_DEVICES} accelerators", number, "those of one cluster")
    found: list[Sample] = []
    for (host, gpu), fields in series.items():
        for values in zip_longest(*fields.values(), fillvalue=""):
            told = _values(zip(fields, values, strict=True))
            found.append(Sample(host=host, gpu=gpu, device=devices[host, gpu], **told))
    return found, left_out


def _values(pairs: Any) -> dict[str, Any]:
    """Attributes of a sample from (field, text); fields that say nothing are absent."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        attribute, read = _FIELDS.get(name, ("", None))
        told = read(text) if read else None
        if told is not None and not (attribute == "load" and attribute in values):
            values[attribute] = told
    return values
