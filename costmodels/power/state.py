"""What the accelerators of a layout draw, how fast and how warm they are: a summary, and one row for each."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.placement import UNUSED
from costmodels.power.accelerator import peak_w
from costmodels.power.heat import HeatProblem, IslandHeat, Settled
from costmodels.power.node import node_w
from costmodels.power.thermal import CLOCK_TOLERANCE, burst_rise_c
from costmodels.results import PowerState, SlotState
from costmodels.table import Bools, Floats, Ints

MOST_SLOTS: Final = 16_384
"""Accelerators that are listed one by one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Used:
    """Accelerators of an island that are in use, arrays of shape (n,) in the order of their places."""

    stage: Ints
    place: Ints  # node * G + gpu
    mean_w: Floats
    busy_w: Floats
    peak_w: Floats
    clock: Floats
    temperature_c: Floats
    peak_c: Floats
    heat_limited: Bools
    measured: Bools


def power_state(problem: HeatProblem, settled: Settled, row: int, *, by_slot: bool = False) -> PowerState:
    """Sum up one settled placement.

    Parameters
    ----------
    problem : HeatProblem
        The layout.
    settled : Settled
        Its placements in balance.
    row : int
        Which of them.
    by_slot : bool
        Whether to list every accelerator, up to :data:`MOST_SLOTS`.

    Returns
    -------
    PowerState
    """
    step = problem.step
    found = [_used(problem, settled, index, row) for index in range(len(problem.heats))]
    model, job = step.pricings[0].model, step.pricings[0].job
    tokens = float(job.global_batch * (job.seq if model.hidden else 1))
    length_s = float(settled.step_s[row])
    drawn_w = sum(float(used.mean_w.sum()) for used in found)
    count = sum(len(used.stage) for used in found)
    clocks_hz = [
        _highest_hz(problem, heat) * float(used.clock.min()) for heat, used in zip(problem.heats, found, strict=True)
    ]
    return PowerState(
        gpu_w=drawn_w / count,
        peak_gpu_w=max(float(used.peak_w.max()) for used in found),
        clock_hz=min(clocks_hz),
        limited_by=_limits(found, int(np.argmin(clocks_hz))),
        energy_j_per_token=drawn_w * length_s / tokens,
        max_temp_c=max(float(used.peak_c.max()) for used in found),
        node_energy_j_per_token=_nodes_w(problem, found) * length_s / tokens,
        slots=_slots(problem, found) if by_slot and count <= MOST_SLOTS else (),
    )


def _highest_hz(problem: HeatProblem, heat: IslandHeat) -> float:
    accelerator = problem.step.pricings[heat.island].accelerator
    return accelerator.max_clock_hz or accelerator.peak_clock_hz


def _used(problem: HeatProblem, settled: Settled, index: int, row: int) -> _Used:
    heat, state, placed = problem.heats[index], settled.states[index], settled.maps[index][row].reshape(-1)
    place = np.flatnonzero(placed != UNUSED)
    stage = placed[place]
    local = np.searchsorted(heat.stages, stage)
    clock, busy, mean, degrees, busy_c, hot = (
        getattr(state, name)[row].reshape(-1)[place]
        for name in ("clock", "busy_w", "mean_w", "temperature_c", "busy_c", "heat_limited")
    )
    pass_s = problem.step.work.backward_s.sum(axis=0)[0].max(axis=1)[stage] * settled.stretch[row, stage]
    peak = peak_w(heat.power, heat.load.take(local), clock, pass_s)
    return _Used(
        stage=stage,
        place=place,
        mean_w=mean,
        busy_w=busy,
        peak_w=peak,
        clock=clock,
        temperature_c=degrees,
        peak_c=busy_c + burst_rise_c(heat.cooling, peak - busy, np.minimum(pass_s, heat.power.sensor_s)),
        heat_limited=hot,
        measured=(heat.clock > 0.0).reshape(-1)[place],
    )


def _nodes_w(problem: HeatProblem, found: list[_Used]) -> float:
    """Draw of the nodes in use with hosts and fans [W]; accelerators that no rank uses are left out."""
    total = 0.0
    for heat, used in zip(problem.heats, found, strict=True):
        node = problem.step.pricings[heat.island].island.node
        nodes = len(np.unique(used.place // node.gpus))
        total += nodes * node_w(node, float(used.mean_w.sum()) / nodes)
    return total


def _slots(problem: HeatProblem, found: list[_Used]) -> tuple[SlotState, ...]:
    """One row per accelerator, by stage and place."""
    rows = []
    for heat, used in zip(problem.heats, found, strict=True):
        gpus = problem.step.pricings[heat.island].island.node.gpus
        highest_hz = _highest_hz(problem, heat)
        for index, place in enumerate(used.place.tolist()):
            node, gpu = divmod(place, gpus)
            rows.append(
                SlotState(
                    island=heat.island,
                    node=node,
                    gpu=gpu,
                    stage=int(used.stage[index]),
                    mean_w=float(used.mean_w[index]),
                    busy_w=float(used.busy_w[index]),
                    peak_w=float(used.peak_w[index]),
                    clock_hz=float(used.clock[index]) * highest_hz,
                    temperature_c=float(used.temperature_c[index]),
                    peak_c=float(used.peak_c[index]),
                    limited_by=_limit(used, index),
                )
            )
    return tuple(rows)


def _limits(found: list[_Used], slowest: int) -> str:
    """What limits the clocks of all: heat anywhere, else that the slowest one, of an island, is as measured."""
    if any(bool(used.heat_limited.any()) for used in found):
        return "heat"
    if found[slowest].measured[int(found[slowest].clock.argmin())]:
        return "measured"
    slow = any(bool((used.clock < 1.0 - CLOCK_TOLERANCE)[~used.measured].any()) for used in found)
    return "power" if slow else "none"


def _limit(used: _Used, index: int) -> str:
    if used.measured[index]:
        return "measured"
    if used.heat_limited[index]:
        return "heat"
    return "power" if used.clock[index] < 1.0 - CLOCK_TOLERANCE else "none"
