"""Heat of the GPUs of a node: steady temperatures by slot, bursts, and the clock that heat leaves.

``T = T_inlet + R P + sum(h P_upstream)``: a GPU sits behind those of the earlier rows in the same column of the air
stream. Constants of machines that are not characterised: ``thermal.toml``; equations and checks: ``docs/power.md``.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np

from costmodels.power import PowerModel, StepPower, Work, step_power
from costmodels.table import Floats
from hardware.cluster import NodeType


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
    limit_c: float
    fast_share: float
    fast_s: float
    slow_s: float
    characterised: bool

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return sum(len(row) for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class ThermalState:
    """Balance of power, clock and heat; arrays of shape (..., G).

    ``temperature_c`` exceeds the limit only where even the least clock is too hot.
    """

    power: StepPower
    temperature_c: Floats


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
    listed = {gpu for row in cooling.rows for gpu in row}
    rest = tuple(gpu for gpu in range(node.gpus) if gpu not in listed)
    return ThermalModel(
        rows=((*cooling.rows[0], *rest), *cooling.rows[1:]) if cooling.rows else (rest,),
        inlet_c=cooling.inlet_c,
        resistance_c_per_w=cooling.resistance_c_per_w or kind["rise_at_limit_c"]["value"] / limit_w,
        coupling_c_per_w=cooling.coupling_c_per_w or kind["upstream_rise_at_limit_c"]["value"] / limit_w,
        limit_c=accelerator.slowdown_c,
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
    arriving = model.coupling_c_per_w * watts @ _upstream(model).T
    degrees: Floats = model.inlet_c + model.resistance_c_per_w * watts + arriving
    return degrees


def burst_c(model: ThermalModel, watts: Floats, *, burst_w: Floats | float, burst_s: float) -> Floats:
    """Highest temperatures when each GPU draws ``burst_w`` for ``burst_s`` on top of a steady mean.

    Parameters
    ----------
    model : ThermalModel
        Cooling.
    watts : array
        Mean draw per GPU, shape (..., G) [W].
    burst_w : array or float
        Draw during the burst [W].
    burst_s : float
        Length of the burst [s].

    Returns
    -------
    array
        Degrees Celsius, shape (..., G): die and heat sink each follow with their own time constant.
    """
    fast = model.fast_share * -np.expm1(-burst_s / model.fast_s)
    slow = (1.0 - model.fast_share) * -np.expm1(-burst_s / model.slow_s)
    above = np.asarray(burst_w) - np.asarray(watts, dtype=np.float64)
    degrees: Floats = temperatures_c(model, watts) + model.resistance_c_per_w * (fast + slow) * above
    return degrees


def quadratic_c(watts: Floats, *, ambient_c: float, ambient_c_per_w: float, case_c_per_w2: float) -> Floats:
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


def steady_state(
    model: ThermalModel, power: PowerModel, seconds: Mapping[Work, Floats | float], *, limit_w: Floats | float = 0.0
) -> ThermalState:
    """Solve clocks, draws and temperatures of the GPUs of a node together.

    Heat flows down the rows only, so a row's clocks are settled by its own draw and by rows that are settled already:
    one pass over the rows is exact, without iteration between them.

    Parameters
    ----------
    model : ThermalModel
        Cooling.
    power : PowerModel
        Power constants.
    seconds : mapping of Work to array
        Time of a step per kind of work at the highest clock [s], scalars or shape (..., G).
    limit_w : array or float
        Power limit per GPU [W], scalar or shape (..., G); 0.0: the accelerator's own.

    Returns
    -------
    ThermalState
        Arrays of shape (..., G).
    """
    spent = np.broadcast_arrays(*(seconds.get(work, 0.0) for work in Work), limit_w, np.zeros(model.gpus))
    times, limits = spent[:-2], spent[-2]
    upstream = model.coupling_c_per_w * _upstream(model)
    watts = np.zeros(times[0].shape)
    parts: dict[int, tuple[StepPower, int]] = {}
    for row in model.rows:
        members = list(row)
        arriving = watts @ upstream[members].T
        room_w = (model.limit_c - model.inlet_c - arriving) / model.resistance_c_per_w
        heat_w = room_w if model.limit_c > 0.0 else np.full(arriving.shape, np.inf)
        row_seconds = {work: times[index][..., members] for index, work in enumerate(Work)}
        state = step_power(power, row_seconds, limit_w=limits[..., members], heat_w=heat_w)
        watts[..., members] = state.mean_w
        parts.update({gpu: (state, column) for column, gpu in enumerate(members)})
    return ThermalState(power=_joined(parts, model.gpus), temperature_c=temperatures_c(model, watts))


def _joined(parts: Mapping[int, tuple[StepPower, int]], gpus: int) -> StepPower:
    """Join the rows' states in local order of the GPUs."""
    names = ("clock", "mean_w", "peak_w", "slowdown", "power_limited", "heat_limited")
    arrays: dict[str, Any] = {}
    for name in names:
        arrays[name] = np.stack([getattr(parts[gpu][0], name)[..., parts[gpu][1]] for gpu in range(gpus)], axis=-1)
    return StepPower(**arrays)


def _upstream(model: ThermalModel) -> Floats:
    """Matrix (G, G): 1 where the column's GPU blows on the row's GPU, the same place in every earlier row."""
    matrix = np.zeros((model.gpus, model.gpus))
    for level, row in enumerate(model.rows):
        for place, gpu in enumerate(row):
            for earlier in model.rows[:level]:
                matrix[gpu, earlier[place * len(earlier) // len(row)]] = 1.0
    return matrix


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = resources.files("costmodels").joinpath("thermal.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))
