"""Power and clock of accelerators: draw at a clock, clock under a limit, and the balance of a training step.

``P(x) = static + dynamic * activity * max(floor, 1 - slope * (1 - x))^2 * x`` with ``x`` the clock over the highest
clock; the voltage follows the clock down to a floor. Constants: ``power.toml``; equations, errors: ``docs/power.md``.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from costmodels.efficiency import names_part
from costmodels.table import Bools, Floats
from hardware.cluster import Accelerator

_BISECTIONS: Final = 26  # the clock is exact to 2^-26 of the range
_EXACT: Final = 1e-7  # clocks nearer than this are equal


class Work(StrEnum):
    """What an accelerator does; decides its draw and how its time follows the clock."""

    GEMM = "gemm"
    ATTENTION = "attention"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    IDLE = "idle"


@dataclass(frozen=True, kw_only=True)
class PowerModel:
    """Constants of one accelerator.

    Attributes
    ----------
    static_w : float
        Draw that no clock changes [W].
    dynamic_w : float
        Draw of matrix products at the highest clock above ``static_w`` [W]; may exceed any limit.
    voltage_floor, voltage_slope : float
        Least voltage over that of the highest clock, and how voltage follows the clock above it [1].
    least_clock : float
        Lowest clock over the highest one [1].
    limit_w : float
        Default power limit [W]; 0.0 where the vendor states none: then nothing is limited.
    activity, clock_bound : mapping
        Per kind of work: dynamic draw over that of matrix products, and the share of time that follows the clock [1].
    """

    static_w: float
    dynamic_w: float
    voltage_floor: float
    voltage_slope: float
    least_clock: float
    limit_w: float
    activity: Mapping[Work, float]
    clock_bound: Mapping[Work, float]


@dataclass(frozen=True, kw_only=True)
class StepPower:
    """Balance of a step; arrays of one shape.

    ``clock`` is over the highest clock; ``mean_w`` over the whole step, ``peak_w`` of the most demanding work in it;
    ``slowdown`` the step's time over its time at the highest clock; the masks say what holds the clock down.
    """

    clock: Floats
    mean_w: Floats
    peak_w: Floats
    slowdown: Floats
    power_limited: Bools
    heat_limited: Bools


def power_model(accelerator: Accelerator) -> PowerModel:
    """Return the power constants of an accelerator: its own where measured, else scaled to its limit and idle draw.

    Parameters
    ----------
    accelerator : Accelerator
        ``tdp_w`` and ``idle_w`` set the scale.

    Returns
    -------
    PowerModel
        The constants.
    """
    table = _table()
    row: dict[str, Any] = dict(table["default"])
    for part in table["part"]:
        if names_part(tuple(part["match"]), accelerator.name):
            row.update(part)
    limit_w = accelerator.tdp_w
    idle_w = accelerator.idle_w or _value(row, "idle_share") * limit_w
    static_w = _value(row, "static_w") or idle_w
    gemm_w = _value(row, "gemm_w") or _value(row, "gemm_over_limit") * limit_w
    return PowerModel(
        static_w=static_w,
        dynamic_w=max(gemm_w - static_w, 0.0),
        voltage_floor=_value(row, "voltage_floor"),
        voltage_slope=_value(row, "voltage_slope"),
        least_clock=_value(row, "least_clock"),
        limit_w=limit_w,
        activity=_by_work(table["activity"]),
        clock_bound=_by_work(table["clock_bound"]),
    )


def power_w(model: PowerModel, activity: Floats | float, clock: Floats | float) -> Floats:
    """Draw at a clock.

    Parameters
    ----------
    model : PowerModel
        Constants.
    activity : array or float
        Dynamic draw over that of matrix products [1].
    clock : array or float
        Clock over the highest clock [1].

    Returns
    -------
    array
        Watts; rises with activity and with the clock.

    References
    ----------
    Dynamic power of CMOS, ``C V^2 f``, with the voltage curve of Perseus' fits; ``docs/power.md``.
    """
    drawn: Floats = model.static_w + model.dynamic_w * np.asarray(activity) * _v2f(model, np.asarray(clock))
    return drawn


def clock_under(model: PowerModel, activity: Floats | float, limit_w: Floats | float) -> Floats:
    """Highest clock whose draw stays within a limit.

    Parameters
    ----------
    model : PowerModel
        Constants.
    activity : array or float
        Dynamic draw over that of matrix products [1].
    limit_w : array or float
        Limit [W]; below what the least clock draws, the least clock is the answer.

    Returns
    -------
    array
        Clock over the highest clock [1], never below ``least_clock``; rises with the limit.
    """
    activity, limit_w = np.broadcast_arrays(np.asarray(activity, dtype=float), np.asarray(limit_w, dtype=float))
    low, high = np.full(activity.shape, model.least_clock), np.ones(activity.shape)
    return _highest(lambda clock: power_w(model, activity, clock) <= limit_w, low, high)


def time_factor(clock: Floats | float, clock_bound: Floats | float) -> Floats:
    """Time at a clock over time at the highest clock: ``(1 - u) + u / x``.

    Parameters
    ----------
    clock : array or float
        Clock over the highest clock [1].
    clock_bound : array or float
        Share ``u`` of the time that follows the clock [1].

    Returns
    -------
    array
        Factor of at least one [1].
    """
    factor: Floats = (1.0 - np.asarray(clock_bound)) + np.asarray(clock_bound) / np.asarray(clock)
    return factor


def step_power(
    model: PowerModel,
    seconds: Mapping[Work, Floats | float],
    *,
    limit_w: Floats | float = 0.0,
    heat_w: Floats | float = np.inf,
    highest_clock: Floats | float = 1.0,
) -> StepPower:
    """Solve clock and draw of a step that spends ``seconds`` on each kind of work at the highest clock.

    The limiter sees the mean over the time that is not idle: kernels and exchanges alternate faster than it reacts,
    while idle phases of a pipeline do not. Heat follows the mean over the whole step. Both means rise with the clock
    (proof in ``docs/power.md``), so the highest clock within both limits is found by bisection.

    Parameters
    ----------
    model : PowerModel
        Constants.
    seconds : mapping of Work to array
        Time per kind of work at the highest clock [s]; shapes broadcast.
    limit_w : array or float
        Power limit per accelerator [W]; 0.0: the accelerator's own.
    heat_w : array or float
        Mean draw that cooling can carry [W].
    highest_clock : array or float
        Clock that may not be exceeded (locked clocks), over the highest clock [1].

    Returns
    -------
    StepPower
        Clock, mean and peak draw, slowdown, and what limits.
    """
    limit_w = np.where(np.asarray(limit_w) > 0.0, limit_w, model.limit_w or np.inf)
    every = (*(seconds.get(work, 0.0) for work in Work), highest_clock, limit_w, heat_w)
    *spent, ceiling, limit, heat = (np.array(value, dtype=np.float64) for value in np.broadcast_arrays(*every))
    times = np.stack(spent)
    idle = list(Work).index(Work.IDLE)
    times[idle] = np.where(times.sum(axis=0) > 0.0, times[idle], 1.0)  # no work at all: an idle step
    busy = times.copy()
    busy[idle] = 0.0
    floor = np.minimum(np.full(ceiling.shape, model.least_clock), ceiling)
    by_power = _highest(lambda x: _mean_w(model, busy, x) <= limit, floor, ceiling)
    clock = _highest(lambda x: _mean_w(model, times, x) <= heat, floor, by_power)
    stretched = _stretched(model, times, clock).sum(axis=0)
    draws = np.stack([power_w(model, model.activity[work], clock) for work in Work])
    return StepPower(
        clock=clock,
        mean_w=_mean_w(model, times, clock),
        peak_w=np.where(times > 0.0, draws, 0.0).max(axis=0),
        slowdown=stretched / times.sum(axis=0),
        power_limited=(by_power < ceiling - _EXACT) & (clock >= by_power - _EXACT),
        heat_limited=clock < by_power - _EXACT,
    )


def _v2f(model: PowerModel, clock: Floats) -> Floats:
    voltage = np.maximum(model.voltage_floor, 1.0 - model.voltage_slope * (1.0 - clock))
    product: Floats = voltage * voltage * clock
    return product


def _stretched(model: PowerModel, times: Floats, clock: Floats) -> Floats:
    """Times per kind of work, shape (works, ...), at a clock."""
    bound = np.array([model.clock_bound[work] for work in Work]).reshape(-1, *([1] * clock.ndim))
    stretched: Floats = times * time_factor(clock, bound)
    return stretched


def _mean_w(model: PowerModel, times: Floats, clock: Floats) -> Floats:
    stretched = _stretched(model, times, clock)
    activity = np.array([model.activity[work] for work in Work]).reshape(-1, *([1] * clock.ndim))
    total = stretched.sum(axis=0)
    weighted = (stretched * activity).sum(axis=0)
    mean = np.divide(weighted, total, out=np.zeros_like(total), where=total > 0.0)
    return power_w(model, mean, clock)


def _highest(within: Callable[[Floats], Bools], low: Floats, high: Floats) -> Floats:
    """Highest clock in [low, high] up to which a condition holds; ``low`` where it holds nowhere."""
    bottom, top = np.where(within(high), high, low), high
    if np.array_equal(bottom, top):
        return bottom
    for _ in range(_BISECTIONS):
        middle = 0.5 * (bottom + top)
        holds = within(middle)
        bottom, top = np.where(holds, middle, bottom), np.where(holds, top, middle)
    return bottom


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = resources.files("costmodels").joinpath("power.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


def _value(row: Mapping[str, Any], name: str) -> float:
    value, _source = row[name]
    return float(value)


def _by_work(row: Mapping[str, Any]) -> Mapping[Work, float]:
    return MappingProxyType({work: _value(row, work.value) for work in Work})
