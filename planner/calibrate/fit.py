"""The most probable factors given measurements and priors, robust against single bad measurements.

Factors are counted in widths of their prior, ``z``, so that the prior is a standard normal::

    minimise  sum_i rho(r_i(z) / s_i) + |z|^2 / 2,      r_i = log(predicted / measured)

with Huber's ``rho``, by damped Gauss-Newton steps on reweighted rows. The noise ``s_i`` is at least the stated one,
more where the rows scatter more. Rows farther than :data:`DISTRUST` noises from the fit are left out of a second round.
A factor stays at no change where the rows say little about it (:data:`LEAST_TOLD`), or where they cannot tell it apart
from others (:data:`LEAST_APART`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.table import Bools, Floats

HUBER: Final = 1.0
"""Noises beyond which a residual pulls no harder; low, since what counts is the usual error, not the largest."""
DISTRUST: Final = 4.0
"""Noises from the fit beyond which a row is taken for a bad measurement."""
MOST_DISTRUSTED: Final = 1.0 / 3.0
"""Share of the rows that may be bad; beyond it the rows scatter, and none is left out."""
LEAST_TOLD: Final = 0.1
"""Least share of a prior's variance that rows take away from a factor that moves, if it moved alone."""
LEAST_APART: Final = 0.7
"""Least part of that share which is left when the other factors may move as well."""
LEAST_SCATTERED: Final = 4
"""Rows from which on their scatter says what their noise is."""
MOST_ROUNDS: Final = 12
SLOPE_STEP: Final = 0.05  # widths
FARTHEST_MOVE: Final = 2.0  # widths in one step
SMALL_MOVE: Final = 1e-3  # widths
SCATTER: Final = 1.4826  # standard deviation of a normal over its median absolute deviation

Residuals = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A fit of K factors to N rows.

    Attributes
    ----------
    steps : ndarray
        Factors in widths of their prior, shape (K,); 0.0 where a factor stays at no change.
    learned : ndarray
        Which factors the rows tell, shape (K,).
    narrowed : ndarray
        Share of the prior's variance that the rows take away, shape (K,).
    residuals : ndarray
        Logarithm of predicted over measured under the fit, shape (N,).
    distrusted : ndarray
        Rows that were left out, shape (N,).
    noise : ndarray
        Standard deviation that each row was given, shape (N,).
    slopes : ndarray
        Derivatives of the residuals by the steps at the fit, shape (N, K).
    """

    steps: Floats
    learned: Bools
    narrowed: Floats
    residuals: Floats
    distrusted: Bools
    noise: Floats
    slopes: Floats


def fit(residuals: Residuals, factors: int, noise: Floats) -> Fit:
    """Find the most probable factors.

    Parameters
    ----------
    residuals : callable
        From steps (K,) to logarithms of predicted over measured (N,).
    factors : int
        K.
    noise : ndarray
        Least standard deviation of each residual [1], shape (N,).

    Returns
    -------
    Fit
        All factors at no change when there are no rows.
    """
    count = len(noise)
    none = np.zeros(count, dtype=np.bool_)
    problem = _Problem(residuals, noise, none, np.ones(factors, dtype=np.bool_))
    found = _settled(problem, _start(problem, factors))
    scatter = SCATTER * float(np.median(np.abs(found.residuals / noise))) if count >= LEAST_SCATTERED else 1.0
    problem = replace(problem, noise=noise * max(1.0, scatter))
    bad = np.abs(found.residuals) > DISTRUST * problem.noise
    if bad.any() and bad.sum() <= MOST_DISTRUSTED * count:
        problem = replace(problem, left_out=bad)
    if bad.any() or scatter > 1.0:
        found = _settled(problem, found)
    return _only_learned(problem, found)


def left_out_steps(found: Fit, row: int) -> Floats:
    """Return the factors without one row: one step from the fit, with the slopes at the fit; shape (K,)."""
    weights = _weights(found.residuals, found.noise, found.distrusted)
    weights[row] = 0.0
    target = found.residuals - found.slopes @ found.steps
    return _solved(found.slopes, target, weights, found.learned)


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    residuals: Residuals
    noise: Floats
    left_out: Bools
    free: Bools

    def loss(self, residuals: Floats, steps: Floats) -> float:
        size = np.abs(residuals[~self.left_out]) / self.noise[~self.left_out]
        near = np.minimum(size, HUBER)
        return float((near * (size - 0.5 * near)).sum() + 0.5 * (steps @ steps))


def _weights(residuals: Floats, noise: Floats, left_out: Bools) -> Floats:
    size = np.abs(residuals) / noise
    return np.where(left_out, 0.0, 1.0 / (np.maximum(size / HUBER, 1.0) * noise * noise))


def _solved(slopes: Floats, target: Floats, weights: Floats, free: Bools) -> Floats:
    """Steps that minimise the weighted squares of ``target + slopes @ steps`` and the prior; fixed ones are 0."""
    steps = np.zeros(slopes.shape[1])
    if free.any():
        used = slopes[:, free]
        steps[free] = np.linalg.solve(_information(used, weights), -(used.T @ (weights * target)))
    return steps


def _information(slopes: Floats, weights: Floats) -> Floats:
    return np.asarray(slopes.T @ (weights[:, None] * slopes) + np.eye(slopes.shape[1]))


def _slopes(problem: _Problem, steps: Floats, residuals: Floats) -> Floats:
    """Derivatives by finite differences; those of fixed factors are 0."""
    slopes = np.zeros((len(residuals), len(steps)))
    for index in np.flatnonzero(problem.free):
        moved = steps.copy()
        moved[index] += SLOPE_STEP
        slopes[:, index] = (problem.residuals(moved) - residuals) / SLOPE_STEP
    return slopes


def _start(problem: _Problem, factors: int) -> Fit:
    """No change, with its slopes."""
    steps = np.zeros(factors)
    residuals = problem.residuals(steps)
    return _described(problem, steps, residuals, _slopes(problem, steps, residuals))


def _settled(problem: _Problem, start: Fit) -> Fit:
    """Gauss-Newton from a start until the steps no longer move; slopes are renewed while they move much."""
    steps, residuals, slopes = np.where(problem.free, start.steps, 0.0), start.residuals, start.slopes
    if (steps != start.steps).any():
        residuals = problem.residuals(steps)
    slopes = slopes * problem.free
    since = np.zeros_like(steps)
    for _ in range(MOST_ROUNDS):
        weights = _weights(residuals, problem.noise, problem.left_out)
        wanted = _solved(slopes, residuals - slopes @ steps, weights, problem.free)
        move = np.clip(wanted - steps, -FARTHEST_MOVE, FARTHEST_MOVE)
        before, taken = problem.loss(residuals, steps), False
        for share in (1.0, 0.5, 0.25):
            trial = problem.residuals(steps + share * move)
            if problem.loss(trial, steps + share * move) <= before:
                steps, residuals, taken = steps + share * move, trial, True
                since = since + share * move
                break
        if not taken or np.abs(move).max(initial=0.0) < SMALL_MOVE:
            break
        if np.abs(since).max() > 0.5:
            slopes, since = _slopes(problem, steps, residuals), np.zeros_like(steps)
    return _described(problem, steps, residuals, slopes)


def _described(problem: _Problem, steps: Floats, residuals: Floats, slopes: Floats) -> Fit:
    weights = _weights(residuals, problem.noise, problem.left_out)
    narrowed = np.zeros(len(steps))
    if problem.free.any():
        variance = np.diag(np.linalg.inv(_information(slopes[:, problem.free], weights)))
        narrowed[problem.free] = 1.0 - variance
    return Fit(
        steps=steps,
        learned=problem.free,
        narrowed=narrowed,
        residuals=residuals,
        distrusted=problem.left_out,
        noise=problem.noise,
        slopes=slopes,
    )


def _only_learned(problem: _Problem, found: Fit) -> Fit:
    """Fix factors that the rows do not tell, the least told first, and fit the others again."""
    weights = _weights(found.residuals, problem.noise, problem.left_out)
    alone = 1.0 - 1.0 / (1.0 + (weights[:, None] * found.slopes**2).sum(axis=0))
    free = problem.free & (alone >= LEAST_TOLD)
    while free.any():
        told = 1.0 - np.diag(np.linalg.inv(_information(found.slopes[:, free], weights)))
        if (told >= LEAST_APART * alone[free]).all():
            break
        free[np.flatnonzero(free)[int(np.argmin(told))]] = False
    if (free == problem.free).all():
        return found
    return _settled(replace(problem, free=free), found)
