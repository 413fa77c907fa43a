"""Power and clock of accelerators: draw at a clock, clock under a limit, and the balance of a training step.

``P(x) = static + dynamic * activity * max(floor, 1 - slope * (1 - x))^2 * x`` with ``x`` the clock over the highest
clock; the voltage follows the clock down to a floor. Constants: ``power.toml``; equations, errors: ``docs/power.md``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from costmodels.efficiency import names_part
from costmodels.table import Bools, Floats
from hardware.cluster import Accelerator
from hardware.package_table import package_table

_ROUNDS: Final = 90  # thirty halvings at least; eight rounds are usual
_EXACT: Final = 1e-8  # clocks are found within this
_EQUAL: Final = 1e-7  # clocks nearer than this are equal


class Work(StrEnum):
    """What an accelerator does; decides its draw and how its time follows the clock."""

    GEMM = "gemm"
    ATTENTION = "attention"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    SPIN = "spin"  # a kernel of an exchange polls for a peer that is late
    IDLE = "idle"


WAITS: Final = (Work.SPIN, Work.IDLE)
"""What is no work: the power limiter does not see it, and its length is what the step leaves."""


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
    sensor_s : float
        Time over which a power sensor averages [s].
    """

    static_w: float
    dynamic_w: float
    voltage_floor: float
    voltage_slope: float
    least_clock: float
    limit_w: float
    activity: Mapping[Work, float]
    clock_bound: Mapping[Work, float]
    sensor_s: float


@dataclass(frozen=True, kw_only=True)
class StepPower:
    """Balance of work without pauses; arrays of one shape.

    ``clock`` is over the highest clock; ``mean_w`` the draw; ``slowdown`` the time over that at the highest clock;
    ``power_limited`` says whether the limit holds the clock down.
    """

    clock: Floats
    mean_w: Floats
    slowdown: Floats
    power_limited: Bools


@dataclass(frozen=True, kw_only=True, eq=False)
class StepLoad:
    """The work of a step as a function of the clock x; arrays of one shape.

    It takes ``fixed_s + clocked_s / x`` seconds, and the integral of its activity over them is
    ``fixed_active_s + clocked_active_s / x``: each kind of work k adds ``t_k ((1 - u_k) + u_k / x)``, times
    1 and times ``a_k``.
    """

    fixed_s: Floats
    clocked_s: Floats
    fixed_active_s: Floats
    clocked_active_s: Floats

    def busy_s(self, clock: Floats | float) -> Floats:
        """Seconds of work at a clock over the highest clock."""
        return np.asarray(self.fixed_s + self.clocked_s / clock)

    def activity(self, clock: Floats | float) -> Floats:
        """Mean activity of the work [1]; 0 without work."""
        busy = self.busy_s(clock)
        active = self.fixed_active_s + self.clocked_active_s / clock
        return np.divide(active, busy, out=np.zeros(np.shape(busy)), where=busy > 0.0)

    def take(self, index: Any) -> "StepLoad":
        """Entries ``index`` of every array, as numpy indexes them."""
        return StepLoad(**{entry.name: getattr(self, entry.name)[index] for entry in fields(self)})

    def where(self, condition: Bools) -> "StepLoad":
        """Every array where a condition holds, and no work elsewhere."""
        return StepLoad(**{entry.name: np.where(condition, getattr(self, entry.name), 0.0) for entry in fields(self)})

    def broadcast(self, shape: tuple[int, ...]) -> "StepLoad":
        """Every array with a shape."""
        return StepLoad(**{entry.name: np.broadcast_to(getattr(self, entry.name), shape) for entry in fields(self)})


@lru_cache(maxsize=64)
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
        if names_part(tuple(part["match"]), accelerator.known_as):
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
        sensor_s=_value(table["peak"], "sensor_s"),
    )


@dataclass(frozen=True, kw_only=True)
class NodeConstants:
    """What a node draws besides accelerators and processors: per adapter [W], and for fans as a share of the rest."""

    nic_w: float
    fan_share: float


def node_constants() -> NodeConstants:
    """Return the constants that all nodes share."""
    row = _table()["node"]
    return NodeConstants(nic_w=_value(row, "nic_w"), fan_share=_value(row, "fan_share"))


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
    return highest_within(lambda clock: power_w(model, activity, clock) - limit_w, low, high)


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


def step_load(model: PowerModel, seconds: Mapping[Work, Floats | float]) -> StepLoad:
    """Return the work of a step as a function of the clock.

    Parameters
    ----------
    model : PowerModel
        Constants.
    seconds : mapping of Work to array
        Time per kind of work at the highest clock [s]; shapes broadcast. Waits (:data:`WAITS`) are no work.

    Returns
    -------
    StepLoad
        Arrays of the broadcast shape.
    """
    works = [work for work in Work if work not in WAITS]
    times = np.stack(np.broadcast_arrays(*(np.asarray(seconds.get(work, 0.0), dtype=np.float64) for work in works)))
    bound = np.array([model.clock_bound[work] for work in works]).reshape(-1, *([1] * (times.ndim - 1)))
    activity = np.array([model.activity[work] for work in works]).reshape(bound.shape)
    fixed, clocked = times * (1.0 - bound), times * bound
    return StepLoad(
        fixed_s=fixed.sum(axis=0),
        clocked_s=clocked.sum(axis=0),
        fixed_active_s=(fixed * activity).sum(axis=0),
        clocked_active_s=(clocked * activity).sum(axis=0),
    )


def busy_w(model: PowerModel, load: StepLoad, clock: Floats | float) -> Floats:
    """Mean draw over the work of a step; rises with the clock (proof in ``docs/power.md``).

    Parameters
    ----------
    model : PowerModel
        Constants.
    load : StepLoad
        Work of the step.
    clock : array or float
        Clock over the highest clock [1].

    Returns
    -------
    array
        Watts, of the load's shape.
    """
    return power_w(model, load.activity(clock), clock)


def peak_w(model: PowerModel, load: StepLoad, clock: Floats | float, pass_s: Floats | float) -> Floats:
    """Highest draw that a sensor shows: the head of a burst, before the limiter has lowered the clock.

    A pass over a stage that follows a wait begins at the highest clock, since the limiter saw little draw before. What
    the sensor's mean shows of that grows with the length of the pass, hence with the micro-batch and with the layers of
    a stage, up to the draw at the highest clock.

    Parameters
    ----------
    model : PowerModel
        Constants.
    load : StepLoad
        Work of the step.
    clock : array or float
        Sustained clock over the highest clock [1].
    pass_s : array or float
        Longest work without a wait: the backward pass of a micro-batch [s].

    Returns
    -------
    array
        Watts, at least the mean of the work at the sustained clock.

    References
    ----------
    Overshoot of limiters and means of sensors: Yang et al., arXiv 2312.02741.
    """
    sustained = busy_w(model, load, clock)
    seen = -np.expm1(-np.asarray(pass_s) / model.sensor_s)
    return np.asarray(sustained + (busy_w(model, load, 1.0) - sustained) * seen)


def step_power(
    model: PowerModel,
    seconds: Mapping[Work, Floats | float],
    *,
    limit_w: Floats | float = 0.0,
    highest_clock: Floats | float = 1.0,
) -> StepPower:
    """Solve clock and draw of work without pauses that spends ``seconds`` on each kind of work at the highest clock.

    Kernels and exchanges alternate faster than the power limiter reacts, so it sees their mean; idle phases of a
    pipeline are longer, so they do not raise the clock. The mean rises with the clock, so the highest clock within the
    limit is one root.

    Parameters
    ----------
    model : PowerModel
        Constants.
    seconds : mapping of Work to array
        Time per kind of work at the highest clock [s]; shapes broadcast.
    limit_w : array or float
        Power limit per accelerator [W]; 0.0: the accelerator's own.
    highest_clock : array or float
        Clock that may not be exceeded (locked clocks), over the highest clock [1].

    Returns
    -------
    StepPower
        Clock, mean draw, slowdown, and whether the limit holds the clock down.
    """
    load = step_load(model, seconds)
    limit_w = np.where(np.asarray(limit_w) > 0.0, limit_w, model.limit_w or np.inf)
    every = np.broadcast_arrays(np.asarray(highest_clock, dtype=np.float64), limit_w, load.fixed_s)
    ceiling, limit = np.array(every[0]), every[1]
    floor = np.minimum(np.full(ceiling.shape, model.least_clock), ceiling)
    clock = highest_within(lambda x: busy_w(model, load, x) - limit, floor, ceiling)
    full_s = load.busy_s(1.0)
    return StepPower(
        clock=clock,
        mean_w=busy_w(model, load, clock),
        slowdown=np.divide(load.busy_s(clock), full_s, out=np.ones(clock.shape), where=full_s > 0.0),
        power_limited=clock < ceiling - _EQUAL,
    )


def _v2f(model: PowerModel, clock: Floats) -> Floats:
    voltage = np.maximum(model.voltage_floor, 1.0 - model.voltage_slope * (1.0 - clock))
    product: Floats = voltage * voltage * clock
    return product


def highest_within(excess: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Highest clock in [low, high] up to which a rising quantity is not above 0; ``low`` where it always is.

    Parameters
    ----------
    excess : callable
        What rises with the clock, minus its limit; of the arrays' shape.
    low, high : array
        Clocks over the highest clock [1].

    Returns
    -------
    array
        From below, within 1e-8: by false position (the Illinois rule), with a halving in every third round, so that the
        bracket ends whatever the curve.
    """
    over_high, over_low = excess(high), excess(low)
    between = (over_high > 0.0) & (over_low <= 0.0)
    bottom, top = np.where(over_high <= 0.0, high, low), np.where(between, high, low)
    for number in range(_ROUNDS):
        open_ = between & (top - bottom > _EXACT)
        if not open_.any():
            break
        slope = np.where(open_, over_high - over_low, 1.0)
        guess = bottom - over_low * (top - bottom) / slope
        middle = 0.5 * (bottom + top)
        guess = np.where((guess > bottom) & (guess < top) & (number % 3 < 2), guess, middle)
        over = excess(np.where(open_, guess, bottom))
        holds = over <= 0.0
        # The end that stays counts half, so that the next guess falls on its side.
        over_high = np.where(holds, 0.5 * over_high, over)
        over_low = np.where(holds, over, 0.5 * over_low)
        bottom, top = np.where(open_ & holds, guess, bottom), np.where(open_ & ~holds, guess, top)
    return bottom


def _table() -> Mapping[str, Any]:
    return package_table("costmodels.power", "power.toml")


def _value(row: Mapping[str, Any], name: str) -> float:
    value, _source = row[name]
    return float(value)


def _by_work(row: Mapping[str, Any]) -> Mapping[Work, float]:
    return MappingProxyType({work: _value(row, work.value) for work in Work})
