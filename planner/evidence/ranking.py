"""How well layouts that were measured side by side are put in order."""

from dataclasses import dataclass

import numpy as np

from costmodels.table import Floats


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well one group of layouts was ordered.

    Attributes
    ----------
    group : str
        Name of the group.
    size : int
        Its layouts.
    spearman : float
        Spearman's coefficient of the predicted and the measured order; 0 where either has one time only.
    regret : float
        What the layout that is predicted fastest took beyond the one that was, over the latter.
    """

    group: str
    size: int
    spearman: float
    regret: float


def ranking_of(group: str, predicted_s: Floats, measured_s: Floats) -> Ranking:
    """Compare two orders of the same layouts.

    Parameters
    ----------
    group : str
        Name of the group.
    predicted_s, measured_s : array
        Seconds of a step, shape (N,), N at least 1.

    Returns
    -------
    Ranking
    """
    orders = [_ranks(values) - _ranks(values).mean() for values in (predicted_s, measured_s)]
    spread = float(np.sqrt((orders[0] ** 2).sum() * (orders[1] ** 2).sum()))
    regret = float(measured_s[int(predicted_s.argmin())] / measured_s.min() - 1.0)
    spearman = float((orders[0] * orders[1]).sum() / spread) if spread else 0.0
    return Ranking(group=group, size=len(measured_s), spearman=spearman, regret=regret)


def _ranks(values: Floats) -> Floats:
    """Ranks with ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])
