"""What measurements say against the cost models: logarithms of predicted over measured under a profile, with noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.profile import Profile
from costmodels.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """N measurements.

    Attributes
    ----------
    names : tuple of str
        Of each, for the report.
    noise : ndarray
        Standard deviation of the logarithm that the cost models and the clocks leave [1], shape (N,).
    log_ratios : callable
        From a profile to logarithms of predicted over measured [1], shape (N,).
    """

    names: tuple[str, ...]
    noise: Floats
    log_ratios: Callable[[Profile], Floats]

    def __len__(self) -> int:
        """Return N."""
        return len(self.names)


def joined(parts: Sequence[Observations]) -> Observations:
    """Put observations one after the other."""

    def log_ratios(profile: Profile) -> Floats:
        return np.concatenate([np.zeros(0), *(part.log_ratios(profile) for part in parts)])

    return Observations(
        names=tuple(name for part in parts for name in part.names),
        noise=np.concatenate([np.zeros(0), *(part.noise for part in parts)]),
        log_ratios=log_ratios,
    )


def shared_noise(noise: float, rows: int, worth: int) -> Floats:
    """Noise of rows of one table that err together: all of them count as ``worth`` rows at most; shape (rows,)."""
    return np.full(rows, noise * max(1.0, rows / worth) ** 0.5)
