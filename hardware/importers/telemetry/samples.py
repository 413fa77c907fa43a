"""One look of a monitoring tool at one accelerator."""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

MOST_SAMPLES: Final = 2_000_000
POWER_CAP: Final = "power cap"
HEAT: Final = "heat"
POWER_BRAKE: Final = "power brake"
HARDWARE: Final = "hardware slowdown"
# Bits of clocks_event_reasons.active that slow a device (nvml.h); 0x8 stands beside 0x40 and 0x80.
_REASON_BITS: Final = ((0x4, POWER_CAP), (0x8, HARDWARE), (0x20, HEAT), (0x40, HEAT), (0x80, POWER_BRAKE))
_QUANTITY: Final = re.compile(
    r"\(?\s*(-?\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,2})?)\s*([A-Za-z%°]{0,4})\s*\)?$", re.IGNORECASE
)
_BLANK: Final = 2_147_483_632.0  # DCGM_INT32_BLANK (dcgm_structs.h); blanks of other types are larger
_POSSIBLE: Final = MappingProxyType(
    {"temperature_c": (-40.0, 200.0), "power_w": (0.0, 100_000.0), "clock_hz": (0.0, 20e9), "load": (0.0, 1.0)}
)
_SHOWN: Final = MappingProxyType(
    {
        "temperature_c": ("temperature", 1.0, "C"),
        "power_w": ("draw", 1.0, "W"),
        "clock_hz": ("clock", 1e-6, "MHz"),
        "load": ("utilization", 100.0, "%"),
    }
)
QUANTITIES: Final = tuple(_POSSIBLE)
"""What is measured, as attributes of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What a tool saw of one accelerator at one moment; None where it said nothing.

    ``gpu`` is the local index, ``host`` empty where the file does not name it. ``load`` is the share of time with work,
    0 to 1. ``reasons`` says what held the clock down.
    """

    host: str
    gpu: int
    device: str = ""
    temperature_c: float | None = None
    clock_hz: float | None = None
    power_w: float | None = None
    load: float | None = None
    reasons: frozenset[str] = frozenset()


def quantity(text: str, unit: str) -> float | None:
    """Return a number as a tool prints it, or None for what is no measurement.

    Parameters
    ----------
    text : str
        Such as ``612.34 W``, ``1755``, ``(1700Mhz)``, ``[N/A]``.
    unit : str
        ``c``, ``w``, ``mhz`` or ``%``; a number with another unit, or what DCGM prints for blank, is no measurement.
    """
    match = _QUANTITY.match(text.strip())
    if match is None or match[2].casefold().lstrip("°") not in ("", unit):
        return None
    value = float(match[1])
    return value if abs(value) < _BLANK else None


def possible(name: str, value: float) -> bool:
    """Whether a device can show a value of one of :data:`QUANTITIES` [SI units]."""
    low, high = _POSSIBLE[name]
    return low <= value <= high


def shown(name: str, value: float) -> str:
    """Return a value of one of :data:`QUANTITIES` in words: ``clock 99999 MHz``."""
    noun, scale, unit = _SHOWN[name]
    return f"{noun} {value * scale:.0f} {unit}"


def clock_hz(text: str) -> float | None:
    """Return a clock in hertz from a text in MHz, or None; a clock of 0 is none."""
    value = quantity(text, "mhz")
    return value * 1e6 if value else None


def share(text: str) -> float | None:
    """Return a percentage as a share, or None."""
    value = quantity(text, "%")
    return None if value is None else value / 100.0


def reasons_of(mask: str) -> frozenset[str]:
    """Return what a bit mask of clock events names, such as ``0x0000000000000004``; nothing where it is none."""
    try:
        bits = int(mask.strip(), 0)
    except ValueError:
        return frozenset()
    found = {name for bit, name in _REASON_BITS if bits & bit}
    return frozenset(found - {HARDWARE} if found & {HEAT, POWER_BRAKE} else found)
