"""Heat of the GPUs of a node: steady temperatures by slot, bursts, and the clock that heat leaves.

``T = T_inlet + R P + sum(h P_upstream)``: a GPU sits behind those of the earlier rows in the same column of the air
stream. Constants of machines that are not characterised: ``thermal.toml``; equations and checks: ``docs/power.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from costmodels.power.accelerator import PowerModel, StepLoad, Work, busy_w, highest_within, power_w
from costmodels.table import Bools, Floats, Ints
from hardware.cluster import NodeType
from hardware.package_table import package_table

CLOCK_TOLERANCE: Final = 1e-6
"""Clocks over the highest clock that differ by less are equal."""


@dataclass(frozen=True, kw_only=True)
class ThermalModel:
    """Cooling of one node.

    Attributes
    ----------
    rows : tuple of tuple of int
        Local GPU indices from the air inlet (or coolant supply) on; every GPU stands in one row.
    inlet_c : float
        Temperature of what cools [degree C].
    resistance_c_per_w, coupling_c_per_w : float
        Rise per watt of the GPU itself, and per watt of each GPU upstream of it [degree C / W].
    quadratic_c_per_w2 : float
        Rise per squared watt of the GPU itself, of the form ``T + P R_ja + P^2 R_jc`` [degree C / W^2].
    limit_c : float
        Temperature that the clock is lowered to hold [degree C]; 0.0: none is known, nothing is limited.
    fast_share, fast_s, slow_s : float
        Share of the resistance between die and heat sink [1], and the time constants of both parts [s].
    characterised : bool
        False when the resistances are the defaults of the kind of cooling.
    """

    rows: tuple[tuple[int, ...], ...]
    inlet_c: float
    resistance_c_per_w: float
    coupling_c_per_w: float
    quadratic_c_per_w2: float
    limit_c: float
    fast_share: float
    fast_s: float
    slow_s: float
    characterised: bool

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return sum(len(row) for row in self.rows)

    def upstream_c(self, watts: Floats) -> Floats:
        """Rise of the air at every GPU by what those upstream give [degree C], shape (..., G)."""
        degrees: Floats = self.coupling_c_per_w * watts @ _upstream(self).T
        return degrees

    def own_rise_c(self, watts: Floats | float) -> Floats:
        """Rise of a die over the arriving air by its own draw [degree C], any shape."""
        return quadratic_c(
            watts, ambient_c=0.0, ambient_c_per_w=self.resistance_c_per_w, case_c_per_w2=self.quadratic_c_per_w2
        )


@dataclass(frozen=True, kw_only=True)
class ThermalState:
    """Balance of power, clock and heat; arrays of shape (..., G).

    ``clock`` is over the highest clock; ``busy_w`` the draw while there is work, ``mean_w`` that over the whole step.
    ``temperature_c`` is that of the die in the mean over a step, ``busy_c`` at the end of its busy part; this exceeds
    the limit only where even the least clock is too hot. ``heat_limited`` says whether heat holds the clock below what
    the power limit leaves.
    """

    clock: Floats
    busy_w: Floats
    mean_w: Floats
    temperature_c: Floats
    busy_c: Floats
    heat_limited: Bools

    def take(self, index: Ints) -> "ThermalState":
        """Entries ``index`` of the first axis."""
        return ThermalState(**{entry.name: getattr(self, entry.name)[index] for entry in fields(self)})


def thermal_model(node: NodeType) -> ThermalModel:
    """Return the cooling of a node: its own where characterised, else the default of its kind of cooling.

    Parameters
    ----------
    node : NodeType
        The node; GPUs that no row lists form one row of their own, at the inlet.

    Returns
    -------
    ThermalModel
        The constants.
    """
    cooling, accelerator = node.cooling, node.accelerator
    table = _table()
    kind = table[cooling.kind.value]
    limit_w = accelerator.tdp_w or accelerator.max_power_limit_w or 1.0
    kept = tuple(tuple(gpu for gpu in row if gpu < node.gpus) for row in cooling.rows)
    rows = tuple(row for row in kept if row)
    listed = {gpu for row in rows for gpu in row}
    rest = tuple(gpu for gpu in range(node.gpus) if gpu not in listed)
    return ThermalModel(
        rows=((*rows[0], *rest), *rows[1:]) if rows else (rest,),
        inlet_c=cooling.inlet_c,
        resistance_c_per_w=cooling.resistance_c_per_w or kind["rise_at_limit_c"]["value"] / limit_w,
        coupling_c_per_w=cooling.coupling_c_per_w or kind["upstream_rise_at_limit_c"]["value"] / limit_w,
        quadratic_c_per_w2=cooling.quadratic_c_per_w2,
        limit_c=accelerator.max_operating_c or accelerator.slowdown_c,
        fast_share=table["fast_share"]["value"],
        fast_s=table["fast_s"]["value"],
        slow_s=table["slow_s"]["value"],
        characterised=cooling.resistance_c_per_w > 0.0,
    )


def temperatures_c(model: ThermalModel, watts: Floats) -> Floats:
    """Steady temperatures of all GPUs of a node.

    Parameters
    ----------
    model : ThermalModel
        Cooling.
    watts : array
        Draw per GPU, shape (..., G) in local order [W].

    Returns
    -------
    array
        Degrees Celsius, shape (..., G).
    """
    watts = np.asarray(watts, dtype=np.float64)
    degrees: Floats = model.inlet_c + model.own_rise_c(watts) + model.upstream_c(watts)
    return degrees


def burst_rise_c(model: ThermalModel, above_w: Floats | float, burst_s: Floats | float) -> Floats:
    """Rise of a die after a burst, die and heat sink each with its own lag.

    Parameters
    ----------
    model : ThermalModel
        Cooling.
    above_w : array or float
        Draw of the burst above what went before [W].
    burst_s : array or float
        Its length [s].

    Returns
    -------
    array
        Degrees Celsius above the temperature before the burst.
    """
    length = np.asarray(burst_s, dtype=np.float64)
    fast = model.fast_share * -np.expm1(-length / model.fast_s)
    slow = (1.0 - model.fast_share) * -np.expm1(-length / model.slow_s)
    return np.asarray(model.resistance_c_per_w * (fast + slow) * above_w)


def quadratic_c(watts: Floats | float, *, ambient_c: float, ambient_c_per_w: float, case_c_per_w2: float) -> Floats:
    """Temperature by the quadratic form ``T_amb + P R_ja + P^2 R_jc``.

    Parameters
    ----------
    watts : array
        Draw [W].
    ambient_c : float
        Ambient temperature [degree C].
    ambient_c_per_w : float
        Linear coefficient [degree C / W].
    case_c_per_w2 : float
        Quadratic coefficient [degree C / W^2].

    Returns
    -------
    array
        Degrees Celsius.
    """
    watts = np.asarray(watts, dtype=np.float64)
    degrees: Floats = ambient_c + watts * ambient_c_per_w + watts * watts * case_c_per_w2
    return degrees


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """GPUs of nodes with their work in steps of a given length; arrays that broadcast to (..., G).

    Attributes
    ----------
    load : StepLoad
        Work of a step; a GPU without any is idle, one with some polls while it waits.
    step_s : array
        Length of the step [s].
    inlet_c : array
        Inlet temperature [degree C].
    highest_clock : array
        Clock that the power limit leaves, over the highest clock [1].
    fixed : array of bool
        GPUs that hold this clock whatever the temperature, because it was measured.
    """

    load: StepLoad
    step_s: Floats
    inlet_c: Floats
    highest_clock: Floats
    fixed: Bools

    def broadcast(self, shape: tuple[int, ...]) -> "Slots":
        """All arrays with a shape."""
        arrays = {name: np.broadcast_to(getattr(self, name), shape) for name in _SLOT_ARRAYS}
        return Slots(load=self.load.broadcast(shape), **arrays)

    def take(self, members: list[int]) -> "Slots":
        """Those at some places of the node."""
        arrays = {name: getattr(self, name)[..., members] for name in _SLOT_ARRAYS}
        return Slots(load=self.load.take((..., members)), **arrays)

    @property
    def busy(self) -> Bools:
        """Which have work."""
        return np.asarray(self.load.busy_s(1.0) > 0.0)

    def mean_w(self, power: PowerModel, clock: Floats) -> Floats:
        """Mean draw over the step."""
        return self._over_wait(power, clock, np.minimum(self.load.busy_s(clock) / self.step_s, 1.0))

    def sink_w(self, model: ThermalModel, power: PowerModel, clock: Floats) -> Floats:
        """Draw that heat sinks follow, at the end of the busy part of a step that repeats.

        Of a square wave through a first-order lag: ``(1 - exp(-b / tau)) / (1 - exp(-T / tau))`` of its height.

        Parameters
        ----------
        model : ThermalModel
            Its slow lag counts.
        power : PowerModel
            Power constants.
        clock : array
            Clock over the highest clock [1].
        """
        busy_s = np.minimum(self.load.busy_s(clock), self.step_s)
        share = np.expm1(-busy_s / model.slow_s) / np.expm1(-self.step_s / model.slow_s)
        return self._over_wait(power, clock, share)

    def own_c(self, model: ThermalModel, power: PowerModel, clock: Floats) -> Floats:
        """Rise of the die over the arriving air at the end of the busy part: the die follows the work at once.

        Parameters
        ----------
        model : ThermalModel
            Cooling.
        power : PowerModel
            Power constants.
        clock : array
            Clock over the highest clock [1].
        """
        sink = self.sink_w(model, power, clock)
        work = np.where(self.busy, busy_w(power, self.load, clock), sink)
        return model.own_rise_c(sink + model.fast_share * (work - sink))

    def _over_wait(self, power: PowerModel, clock: Floats, share: Floats) -> Floats:
        """Draw between waiting (0) and working (1)."""
        wait = np.where(self.busy, power.activity[Work.SPIN], power.activity[Work.IDLE])
        waiting = power_w(power, wait, clock)
        return np.asarray(waiting + (busy_w(power, self.load, clock) - waiting) * share)


_SLOT_ARRAYS: Final = ("step_s", "inlet_c", "highest_clock", "fixed")


def steady_state(model: ThermalModel, power: PowerModel, slots: Slots) -> ThermalState:
    """Solve clocks, draws and temperatures of the GPUs of a node together, for a given length of the step.

    Heat flows down the rows only, so a row's clocks are settled by its own draw and by rows that are settled already:
    one pass over the rows is exact, without iteration between them. In a row the temperature rises with the clock, so
    the highest clock that holds the limit is one root.

    Parameters
    ----------
    model : ThermalModel
        Cooling.
    power : PowerModel
        Power constants.
    slots : Slots
        The GPUs of nodes and their work, shape (..., G).

    Returns
    -------
    ThermalState
        Arrays of shape (..., G).
    """
    arrays = (slots.load.fixed_s, *(getattr(slots, name) for name in _SLOT_ARRAYS))
    shape = np.broadcast_shapes((model.gpus,), *(np.shape(array) for array in arrays))
    every = slots.broadcast(shape)
    upstream = model.coupling_c_per_w * _upstream(model)
    clock, arriving, sink = np.array(every.highest_clock, dtype=np.float64), np.zeros(shape), np.zeros(shape)
    for row in model.rows:
        members = list(row)
        those = every.take(members)
        arriving[..., members] = sink @ upstream[members].T
        if model.limit_c > 0.0:
            clock[..., members] = _held_clock(model, power, those, model.limit_c - arriving[..., members])
        sink[..., members] = those.sink_w(model, power, clock[..., members])
    mean_w = every.mean_w(power, clock)
    return ThermalState(
        clock=clock,
        busy_w=busy_w(power, every.load, clock),
        mean_w=mean_w,
        temperature_c=every.inlet_c + mean_w @ upstream.T + model.own_rise_c(mean_w),
        busy_c=every.inlet_c + arriving + every.own_c(model, power, clock),
        heat_limited=clock < every.highest_clock - CLOCK_TOLERANCE,
    )


def _held_clock(model: ThermalModel, power: PowerModel, slots: Slots, limit_c: Floats) -> Floats:
    """Highest clock at which inlet and own draw keep to a limit."""
    room_c = limit_c - slots.inlet_c
    lowest = np.where(slots.fixed, slots.highest_clock, np.minimum(power.least_clock, slots.highest_clock))
    return highest_within(lambda clock: slots.own_c(model, power, clock) - room_c, lowest, slots.highest_clock)


def _upstream(model: ThermalModel) -> Floats:
    """Matrix (G, G): 1 where the column's GPU blows on the row's GPU, the same place in every earlier row."""
    matrix = np.zeros((model.gpus, model.gpus))
    for level, row in enumerate(model.rows):
        for place, gpu in enumerate(row):
            for earlier in model.rows[:level]:
                matrix[gpu, earlier[place * len(earlier) // len(row)]] = 1.0
    return matrix


def _table() -> Mapping[str, Any]:
    return package_table("costmodels.power", "thermal.toml")
