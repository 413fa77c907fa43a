"""What many ranks cost beyond one: the expected slowest of them.

Synchronous training waits for the slowest rank. With independent normal jitter of coefficient of variation ``cv``,
the expected maximum of n ranks exceeds the mean by ``cv * e(n)``, where e(n) is the expected maximum of n standard
normals.
"""

import numpy as np

from costmodels.table import Floats, Ints

STEP_JITTER_CV = 0.0015
"""Coefficient of variation of one rank's time over whole iterations.

Fitted on the per-iteration medians of the profiles published with Perseus (arXiv 2312.06902; A100 and A40, eleven
models:
0.0001 to 0.005, one outlier at 0.03); range of use: 1 to 20,000 ranks."""


def expected_maximum(ranks: Ints | Floats | int) -> Floats:
    """Expected maximum of ``ranks`` independent standard normals, any shape.

    Blom's approximation, ``Phi^-1((n - 0.375) / (n + 0.25))`` for the largest order statistic: 4.5 % above it for two,
    within 1.5 % from five and 0.5 % from twenty on.

    References
    ----------
    Blom, Statistical Estimates and Transformed Beta-Variables, 1958; Abramowitz and Stegun, 26.2.23 for the quantile.
    """
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    tail = 0.625 / (n + 0.25)  # probability above the quantile
    return np.where(n <= 1.0, 0.0, _upper_quantile(np.minimum(tail, 0.5)))


def _upper_quantile(tail: Floats) -> Floats:
    """Return z with P(Z > z) = tail for tail in (0, 0.5], by the rational form of Abramowitz and Stegun 26.2.23."""
    t = np.sqrt(-2.0 * np.log(tail))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    return np.asarray(np.maximum(0.0, t - top / bottom), dtype=np.float64)


def jitter_s(step_s: Floats, ranks: Ints) -> Floats:
    """Seconds by which the slowest of ``ranks`` exceeds the mean step, same shape as the inputs."""
    share = STEP_JITTER_CV * expected_maximum(ranks)
    return np.where(share > 0.0, step_s, 0.0) * share  # a single rank waits for nobody, however long its step
