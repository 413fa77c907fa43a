"""``rocm-smi ... --json``, once or in a loop."""

import re
from collections.abc import Mapping
from typing import Any, Final

from hardware.importers.source_text import SourceText
from hardware.importers.telemetry.json_series import json_values
from hardware.importers.telemetry.samples import MOST_SAMPLES, Sample, clock_hz, quantity, share

ASK: Final = "rocm-smi --showtemp --showpower --showclocks --showuse --json"
_CARD: Final = re.compile(r"card(\d{1,4})$")
_TEMPERATURES: Final = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")
_POWERS: Final = (
    "current socket graphics package power (w)",
    "average graphics package power (w)",
    "current socket power (w)",
)
_NAMES: Final = ("card series", "device name", "card model")
_CLOCKS: Final = ("sclk clock speed:", "sclk clock speed")


def looks_like(text: str) -> bool:
    """Whether a text holds a JSON object of cards."""
    return re.search(r'\{\s*"card\d', text[:100_000]) is not None


def read_samples(source: SourceText) -> tuple[list[Sample], int]:
    """Read one JSON object or several in a row; warnings may stand between.

    Parameters
    ----------
    source : SourceText
        The file.

    Returns
    -------
    list of Sample, int
        Samples in order, and the number of objects that break off.
    """
    values, broken = json_values(source, "{", r'\{\s*"card', ASK)
    found = [sample for value in values for sample in _samples(value)]
    if len(found) > MOST_SAMPLES:
        raise source.wrong("too many cards", allowed=f"up to {MOST_SAMPLES}")
    return found, broken


def _samples(whole: object) -> list[Sample]:
    if not isinstance(whole, Mapping):
        return []
    cards = ((match, card) for name, card in whole.items() if (match := _CARD.match(str(name))))
    return [_sample(int(match[1]), card) for match, card in cards if isinstance(card, Mapping)]


def _sample(gpu: int, card: Mapping[str, Any]) -> Sample:
    plain = {key.casefold().strip(): str(value) for key, value in card.items()}
    clock = _first(plain, _CLOCKS)
    return Sample(
        host="",
        gpu=gpu,
        device=_first(plain, _NAMES),
        temperature_c=quantity(_first(plain, _TEMPERATURES), "c"),
        clock_hz=clock_hz(clock),
        power_w=quantity(_first(plain, _POWERS), "w"),
        load=share(plain.get("gpu use (%)", "")),
    )


def _first(plain: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the first of several values that is a measurement."""
    return next((plain[name] for name in names if plain.get(name, "N/A").casefold() not in ("n/a", "", "none")), "")
