"""Robust non-linear least squares for a handful of constants (Levenberg-Marquardt inside reweighting)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def fit(residuals: Callable[[Vector], Vector], start: list[float], *, floor: float = 0.05, rounds: int = 6) -> Vector:
    """Minimise the sum of absolute residuals approximately.

    Parameters
    ----------
    residuals : callable
        Residuals of a parameter vector, shape (N,).
    start : list of float
        First guess; parameters should be of order one.
    floor : float
        Residual below which weights stop growing, so that the sum is smooth.
    rounds : int
        Reweighting rounds.

    Returns
    -------
    array
        Parameters.
    """
    parameters = np.array(start, dtype=np.float64)
    weights = np.ones_like(residuals(parameters))
    for _ in range(rounds):
        parameters = _levenberg_marquardt(_weighted(residuals, weights), parameters)
        weights = 1.0 / np.sqrt(np.maximum(np.abs(residuals(parameters)), floor))
    return parameters


def _weighted(residuals: Callable[[Vector], Vector], weights: Vector) -> Callable[[Vector], Vector]:
    return lambda parameters: residuals(parameters) * weights


def _levenberg_marquardt(residuals: Callable[[Vector], Vector], start: Vector) -> Vector:
    parameters, damping = start.copy(), 1e-2
    current = residuals(parameters)
    for _ in range(60):
        jacobian = _jacobian(residuals, parameters)
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ current
        for _ in range(12):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            trial = residuals(parameters + step)
            if np.isfinite(trial).all() and trial @ trial < current @ current:
                break
            damping *= 4.0
        else:
            return parameters
        gain = 1.0 - (trial @ trial) / (current @ current)
        parameters, current, damping = parameters + step, trial, max(damping / 4.0, 1e-8)
        if gain < 1e-7:
            return parameters
    return parameters


def _jacobian(residuals: Callable[[Vector], Vector], parameters: Vector) -> NDArray[np.float64]:
    columns = []
    for index in range(len(parameters)):
        step = np.zeros_like(parameters)
        step[index] = 1e-4 * max(1.0, abs(parameters[index]))
        columns.append((residuals(parameters + step) - residuals(parameters - step)) / (2.0 * step[index]))
    return np.stack(columns, axis=1)
