"""How many parts of the experts a token needs: what dispatchers send only once is decided by where its experts lie."""

from dataclasses import dataclass

import numpy as np

from costmodels.reliability import expected_maximum
from costmodels.table import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How tokens choose experts.

    Each token takes ``top_k`` of ``experts`` distinct ones: any with equal chance; only from ``group_top_k`` of
    ``groups`` equal neighbouring groups where ``groups`` is set (node-limited routing, DeepSeek-AI, arXiv 2412.19437,
    section 2.1.2); or, ``consecutive``, the ``top_k`` that follow those of the token before it, as benchmarks with a
    stand-in for the router do (NeMo AutoModel ``components/moe/layers.py``, ``FakeBalancedGate``).
    """

    experts: int
    top_k: int
    groups: int = 0
    group_top_k: int = 0
    consecutive: bool = False


def busiest_load(routing: Routing, ranks: Ints | int, tokens: Floats | float, spread: float) -> Floats:
    """Expected copies of tokens on the busiest of the ranks that share the experts, over the mean.

    Parameters
    ----------
    routing : Routing
        Experts and how many a token takes.
    ranks : array or int
        Ranks that the experts are spread over, equally many on each.
    tokens : array or float
        Tokens that each of the ranks routes at a time.
    spread : float
        Standard deviation of the experts' loads over their mean, as the router leaves it [1].

    Returns
    -------
    array
        ``1 + e(n) sqrt(1/(tokens top_k) + spread^2 n/(E - 1))`` for n ranks and E experts, with e(n) the expected
        maximum of n standard normals: copies are drawn at random, E/n experts share a rank, and what one rank gets
        above the mean the others get below it [1].

    References
    ----------
    Variance of a mean drawn without replacement: Cochran, Sampling Techniques, 1977, section 2.6.
    """
    n = np.asarray(ranks, dtype=np.float64)
    drawn = 1.0 / (np.asarray(tokens, dtype=np.float64) * routing.top_k)
    kept = spread**2 * n / max(routing.experts - 1, 1)
    return np.asarray(1.0 + expected_maximum(n) * np.sqrt(drawn + kept))


def spread_of(violation: float, experts: int) -> float:
    """Return the spread of loads under which the busiest of all experts exceeds the mean by ``violation``.

    Parameters
    ----------
    violation : float
        Load of the busiest expert over the mean, less one (MaxVio) [1].
    experts : int
        Experts of a layer.

    Returns
    -------
    float
        Standard deviation over the mean [1].
    """
    return violation / float(expected_maximum(experts)) if experts > 1 else 0.0


def hit_probability(experts: int, top_k: int, part: Ints | Floats) -> Floats:
    """Probability that a token needs some expert of a part, under uniform routing without replacement.

    Parameters
    ----------
    experts, top_k : int
        Experts in all, and distinct ones per token.
    part : array
        Experts of the part (fractions interpolate).

    Returns
    -------
    array
        ``1 - prod_i (1 - part / (experts - i))`` over i < top_k, within [0, 1].
    """
    missed = np.ones(np.shape(part))
    for drawn in range(min(top_k, experts)):
        missed = missed * np.clip(1.0 - np.asarray(part) / (experts - drawn), 0.0, 1.0)
    return 1.0 - missed


def needed_share(routing: Routing, part: Ints | Floats) -> Floats:
    """Share of tokens that need some expert of a part of neighbouring experts.

    Parameters
    ----------
    routing : Routing
        How tokens choose.
    part : array
        Experts of each part (fractions interpolate).

    Returns
    -------
    array
        Within [0, 1]; times the number of parts it is the mean number of parts that a token needs.
    """
    size = np.asarray(part, dtype=np.float64)
    if routing.consecutive:
        return np.minimum(_consecutive_parts(routing.top_k, size) * size / routing.experts, 1.0)
    if routing.groups and routing.group_top_k:
        return _limited_share(routing, size)
    return hit_probability(routing.experts, routing.top_k, size)


def _consecutive_parts(top_k: int, part: Floats) -> Floats:
    """Parts that ``top_k`` neighbours lie in on average, when runs start at every multiple of ``top_k``."""
    step = np.gcd(top_k, np.maximum(part.astype(np.int64), 1))
    return np.asarray(1.0 + (top_k - step) / np.maximum(part, 1.0))


def _limited_share(routing: Routing, part: Floats) -> Floats:
    """Share of tokens that need a part when they choose groups first.

    A part within one group asks that the group be chosen. A part of several whole groups holds j of the chosen ones
    with hypergeometric probability; it misses a token whose experts all lie in the others.
    """
    groups, chosen = routing.groups, min(routing.group_top_k, routing.groups)
    group_size = routing.experts / groups
    open_experts = round(chosen * group_size)
    inside = chosen / groups * hit_probability(open_experts, routing.top_k, np.minimum(part, group_size))
    share = np.zeros(part.shape)
    held = np.clip(np.rint(part / group_size), 1, groups).astype(np.int64)
    hit = hit_probability(open_experts, routing.top_k, group_size * np.arange(chosen + 1, dtype=np.float64))
    for count in np.unique(held):
        share[held == count] = float(_chosen_inside(groups, chosen, int(count)) @ hit)
    return np.where(part <= group_size, inside, share)


def _chosen_inside(groups: int, chosen: int, held: int) -> Floats:
    """Probability that j of ``chosen`` groups are among ``held`` of ``groups`` ones, shape (chosen + 1,)."""
    weights = np.zeros(chosen + 1)
    weights[0] = 1.0
    inside = np.arange(chosen + 1)
    for drawn in range(chosen):
        hit = np.clip((held - inside) / (groups - drawn), 0.0, 1.0)
        weights = weights * (1.0 - hit) + np.concatenate(([0.0], (weights * hit)[:-1]))
    return weights
