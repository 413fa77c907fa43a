"""Where each factor of a profile may lie before anything is measured; widths and sources are in ``priors.toml``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from costmodels.profile import UNCHANGED, Profile
from costmodels.table import Floats
from hardware.package_table import package_table

MEMORY_FACTORS = ("activations", "memory_offset_bytes")
"""What peaks of memory tell; every other factor is told by times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The prior of one factor: normal around no change, ``width`` in logarithms (of bytes for the offset)."""

    name: str
    width: float
    logarithmic: bool

    def value(self, steps: float) -> float:
        """Return the factor that lies ``steps`` widths from no change; an offset of memory is never negative."""
        moved = self.width * steps
        return math.exp(moved) if self.logarithmic else max(moved, 0.0)


@lru_cache(maxsize=1)
def priors() -> tuple[Prior, ...]:
    """Return the priors of ``priors.toml`` in the order of :class:`costmodels.profile.Profile`."""
    table = package_table("planner.calibrate", "priors.toml")
    return tuple(
        Prior(name=name, width=float(table[name]["width"]), logarithmic=table[name]["unit"] == "log")
        for name in (field.name for field in fields(Profile))
    )


def time_priors() -> tuple[Prior, ...]:
    """Return the priors of factors on times."""
    return tuple(prior for prior in priors() if prior.name not in MEMORY_FACTORS)


def memory_priors() -> tuple[Prior, ...]:
    """Return the priors of factors on memory."""
    return tuple(prior for prior in priors() if prior.name in MEMORY_FACTORS)


def profile_at(chosen: Sequence[Prior], steps: Floats, base: Profile = UNCHANGED) -> Profile:
    """Return a profile with factors ``steps`` widths from no change, shape (len(chosen),); the others as ``base``."""
    return replace(base, **{prior.name: prior.value(float(step)) for prior, step in zip(chosen, steps, strict=True)})
