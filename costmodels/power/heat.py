"""A step with heat: clocks, draws and temperatures of every accelerator, and the step time that they leave.

Synchronous training goes at the pace of the slowest accelerator of a stage. How long the step takes decides how much
every accelerator waits, hence how warm it gets and how fast it may run: a fixed point in one number, the step time. A
longer step leaves cooler dies and faster clocks, so the step that follows from a length falls with it: it crosses the
length once, and halving the bracket ends (``docs/power.md``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.explicit_step import PricedStep, priced_step
from costmodels.host_waits import host_of_wait_s, host_wait_s
from costmodels.layer_costs import power_seconds
from costmodels.layout import Layout
from costmodels.network_loads import seated
from costmodels.placement import UNUSED, Placement, ranks_of_stages, stage_map
from costmodels.power.accelerator import PowerModel, StepLoad, Work, power_model, step_load, time_factor
from costmodels.power.thermal import Slots, ThermalModel, ThermalState, steady_state, temperatures_c, thermal_model
from costmodels.pricing import Pricing
from costmodels.step import StageWork, StepTimes, shared_with_hosts_s
from costmodels.table import Floats, Ints
from costmodels.works import DEVICE_WORKS
from costmodels.works import Work as LayerWork
from hardware.cluster import Island

ROUNDS: Final = 48  # sixteen halvings at least; a few suffice
TOLERANCE: Final = 1e-5  # of the step time
_MOST_KEYS: Final = 1 << 62  # what a key of a node may count up to


@dataclass(frozen=True, kw_only=True, eq=False)
class IslandHeat:
    """One island of a layout: its stages' loads and its accelerators; arrays over stages (p,) or places (nodes, G).

    Attributes
    ----------
    stages : ndarray of int
        Stages on the island, shape (p,).
    load, device : StepLoad
        Work of a step at the highest clock, with exchanges and without, shape (p,).
    sustained_clock : float
        What the power limit leaves, over the highest clock; stage times hold at it.
    inlet_c, clock, speed : ndarray
        Inlet temperature, measured clock over the highest one (0.0: not measured), pace at equal clock, (nodes, G).
    kind : ndarray of int
        Nodes of one kind have the same of all three, shape (nodes,).
    """

    island: int
    stages: Ints
    power: PowerModel
    cooling: ThermalModel
    load: StepLoad
    device: StepLoad
    sustained_clock: float
    inlet_c: Floats
    clock: Floats
    speed: Floats
    kind: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled:
    """R placements of one layout in balance.

    Attributes
    ----------
    step_s : ndarray
        Step times, shape (R,).
    stretch : ndarray
        Time of a stage's compute over that at the sustained clock, shape (R, pp).
    states : tuple of ThermalState
        Per island used, arrays of shape (R, nodes, G).
    maps : tuple of ndarray of int
        Per island used, the stage of every accelerator, shape (R, nodes, G).
    rounds : int
        Evaluations that the balance took.
    """

    step_s: Floats
    stretch: Floats
    states: tuple[ThermalState, ...]
    maps: tuple[Ints, ...]
    rounds: int

    def take(self, index: Ints) -> "Settled":
        """Rows ``index``."""
        return Settled(
            step_s=self.step_s[index],
            stretch=self.stretch[index],
            states=tuple(state.take(index) for state in self.states),
            maps=tuple(used[index] for used in self.maps),
            rounds=self.rounds,
        )

    def mean_w(self) -> Floats:
        """Mean draw over the accelerators in use and the step [W], shape (R,)."""
        drawn = sum(
            np.where(used != UNUSED, state.mean_w, 0.0).sum(axis=(1, 2))
            for state, used in zip(self.states, self.maps, strict=True)
        )
        count = sum((used != UNUSED).sum(axis=(1, 2)) for used in self.maps)
        return np.asarray(drawn / count)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeatProblem:
    """A layout at the clock that the power limit leaves, and what its islands need for heat.

    ``order`` is that of :class:`costmodels.placement.Placement`: exchanges are priced with each rank in its place.
    """

    step: PricedStep
    layout: Layout
    heats: tuple[IslandHeat, ...]
    order: tuple[int, ...] = ()

    def stages_of_places(self, island: int) -> Ints:
        """Stage of the rank of every place of an island, shape (ranks,)."""
        stages = ranks_of_stages(self.layout, island)
        return stages[np.array(self.order)] if self.order else stages


def heat_problem(
    pricings: Sequence[Pricing], layout: Layout, like: HeatProblem | None = None, order: tuple[int, ...] = ()
) -> HeatProblem:
    """Price a layout without heat and gather what heat needs, one :class:`IslandHeat` per island used.

    Parameters
    ----------
    pricings, layout
        As in :func:`costmodels.explicit_step.priced_step`, which raises what is wrong.
    like : HeatProblem, optional
        Of a layout with the same strategies on the same islands: its parts cost the same, its ranks have the same
        places.
    order : tuple of int
        Rank of every place, of a layout on one island; empty: in order. Not asked where there is one that is ``like``.

    Returns
    -------
    HeatProblem
    """
    if like:
        pricings, order = like.step.pricings, like.order
    elif order:
        (island,) = {stage.island for stage in layout.stages}
        there = seated(pricings[island], layout, order)
        pricings = [there if number == island else pricing for number, pricing in enumerate(pricings)]
    step = priced_step(pricings, layout, like.step if like else None)
    heats = tuple(_island_heat(step, layout, island) for island in step.islands)
    return HeatProblem(step=step, layout=layout, heats=heats, order=order)


def _island_heat(step: PricedStep, layout: Layout, number: int) -> IslandHeat:
    pricing = step.pricings[number]
    model = power_model(pricing.accelerator)
    stages = np.array([index for index, stage in enumerate(layout.stages) if stage.island == number])
    clock = float(step.costs[number].clock.min())
    seconds = power_seconds(step.stage_works_s()[:, stages])
    seconds[Work.MEMORY] = seconds[Work.MEMORY] + step.times.optimizer_s[0]
    exchanged = step.times.reduce_exposed_s[0] + step.times.gather_exposed_s[0]
    seconds[Work.COMMUNICATION] = seconds[Work.COMMUNICATION] + exchanged
    # Compute was stretched to the sustained clock; exchanges are priced as they are.
    full = {
        work: time if work is Work.COMMUNICATION else time / time_factor(clock, model.clock_bound[work])
        for work, time in seconds.items()
    }
    inlet, measured, speed = device_arrays(pricing)
    _, kind = np.unique(np.concatenate([inlet, measured, speed], axis=1), axis=0, return_inverse=True)
    return IslandHeat(
        island=number,
        stages=stages,
        power=model,
        cooling=thermal_model(pricing.island.node),
        load=step_load(model, full),
        device=step_load(model, {work: time for work, time in full.items() if work is not Work.COMMUNICATION}),
        sustained_clock=clock,
        inlet_c=inlet,
        clock=measured,
        speed=speed,
        kind=np.asarray(kind.reshape(-1), dtype=np.int64),
    )


def inlets_c(island: Island) -> Floats:
    """Inlet temperature of every node [degree C], shape (nodes,): as stated, else by its place in the rack."""
    cooling = island.node.cooling
    place = np.arange(island.nodes) % cooling.rack_nodes if cooling.rack_nodes else np.zeros(island.nodes)
    degrees = cooling.inlet_c + cooling.rack_rise_c * place
    stated = np.array(island.inlets_c[: island.nodes])
    degrees[: len(stated)] = stated
    return np.asarray(degrees, dtype=np.float64)


def device_arrays(pricing: Pricing) -> tuple[Floats, Floats, Floats]:
    """Return inlet, measured clock over the highest one (0.0: none) and speed, each of shape (nodes, G).

    A measured temperature becomes an inlet of the device's own: what it is warmer than the model has it at the measured
    draws, or at the power limit where no draw was measured. A measured clock holds as it is.
    """
    island = pricing.island
    shape = (island.nodes, island.node.gpus)
    inlet = np.repeat(inlets_c(island)[:, None], shape[1], axis=1)
    clock, speed = np.zeros(shape), np.ones(shape)
    if not island.devices:
        return inlet, clock, speed
    highest_hz = pricing.accelerator.max_clock_hz or pricing.accelerator.peak_clock_hz
    cooling = thermal_model(island.node)
    watts = np.full(shape, pricing.power_limit_w)
    seen = np.full(shape, np.nan)
    for device in island.devices:
        place = device.node, device.gpu
        if place[0] >= shape[0]:
            continue
        speed[place] = device.speed
        clock[place] = min(device.clock_hz / highest_hz, 1.0) if highest_hz else 0.0
        watts[place] = device.power_w or watts[place]
        seen[place] = device.temperature_c or np.nan
    expected = temperatures_c(replace(cooling, inlet_c=0.0), watts)
    return np.where(np.isnan(seen), inlet, seen - expected), clock, speed


def identity_maps(problem: HeatProblem) -> tuple[Ints, ...]:
    """Stage of every accelerator with the places in order, per island used, shape (1, nodes, G)."""
    maps = []
    for heat in problem.heats:
        island = problem.step.pricings[heat.island].island
        flat = np.full(island.gpus, UNUSED, dtype=np.int64)
        stages = problem.stages_of_places(heat.island)
        held = min(len(flat), len(stages))  # measured runs on unlike machines may not say which of them holds what
        flat[:held] = stages[:held]
        maps.append(flat.reshape(1, island.nodes, island.node.gpus))
    return tuple(maps)


def placed_maps(problem: HeatProblem, placements: Sequence[Placement]) -> tuple[Ints]:
    """Stage of every accelerator under placements of a layout on one island, shape (R, nodes, G).

    Their ranks have the places that the problem says.
    """
    (heat,) = problem.heats
    stages = problem.stages_of_places(heat.island)
    island = problem.step.pricings[heat.island].island
    return (np.stack([stage_map(placement, stages, island) for placement in placements]),)


def settle(problem: HeatProblem, maps: Sequence[Ints], tolerance: float = TOLERANCE) -> Settled:
    """Find the step times at which clocks, draws and temperatures are in balance.

    Parameters
    ----------
    problem : HeatProblem
        The layout.
    maps : sequence of array of int
        Per island used, the stage of every accelerator under R placements, shape (R, nodes, G).
    tolerance : float
        Share of the step time within which the balance is wanted [1].

    Returns
    -------
    Settled
        Its step times lie within the tolerance of the fixed point, or there were :data:`ROUNDS` rounds.
    """
    settled = once(problem, maps)
    start = np.full(len(maps[0]), float(problem.step.times.total_s[0]))
    guess = settled.step_s
    over = guess - start  # of the step that follows over the length: falls as the length grows
    low, over_low = np.where(over >= 0.0, start, guess), np.maximum(over, 0.0)
    high, over_high = np.where(over >= 0.0, guess, start), np.minimum(over, 0.0)
    for rounds in range(2, ROUNDS + 2):
        if (np.abs(over) <= tolerance * guess).all():
            break
        settled = replace(_after(problem, maps, guess), rounds=rounds)
        over = settled.step_s - guess
        longer = over >= 0.0
        low, over_low = np.where(longer, guess, low), np.where(longer, over, over_low)
        high, over_high = np.where(longer, high, guess), np.where(longer, over_high, over)
        slope = np.where(over_low > over_high, over_low - over_high, 1.0)
        share = np.where(rounds % 3 == 1, 0.5, over_low / slope)
        guess = np.where(np.abs(over) <= tolerance * guess, guess, low + (high - low) * share)
    return settled


def once(problem: HeatProblem, maps: Sequence[Ints]) -> Settled:
    """Return clocks, draws and temperatures in steps as long as without heat, and the step times that follow."""
    return _after(problem, maps, np.full(len(maps[0]), float(problem.step.times.total_s[0])))


def _after(problem: HeatProblem, maps: Sequence[Ints], length_s: Floats) -> Settled:
    """Return clocks, draws and temperatures in steps of given lengths, and the step times that follow."""
    step, heats = problem.step, problem.heats
    states = tuple(_state(heat, placed, length_s) for heat, placed in zip(heats, maps, strict=True))
    stretch = np.ones((len(length_s), step.contents.spec.pp))
    for heat, placed, state in zip(heats, maps, states, strict=True):
        stretch[:, heat.stages] = stage_stretch(heat, placed, state.clock)
    distinct, index = np.unique(stretch, axis=0, return_inverse=True)
    unchanged = len(distinct) == 1 and bool((distinct == 1.0).all())
    times = step.times if unchanged else step.times_of(stretched(step.work, distinct))
    return Settled(step_s=times.total_s[index.reshape(-1)], stretch=stretch, states=states, maps=tuple(maps), rounds=1)


def _state(heat: IslandHeat, placed: Ints, length_s: Floats) -> ThermalState:
    """Balance of the accelerators of an island in steps of given lengths (R,); nodes that are alike are solved once."""
    first, every = _alike_nodes(heat, placed, length_s)
    rows, nodes = np.divmod(first, len(heat.kind))
    held = placed[rows, nodes]
    used = held != UNUSED
    local = np.searchsorted(heat.stages, np.where(used, held, heat.stages[0]))
    clock = heat.clock[nodes]
    measured = clock > 0.0
    slots = Slots(
        load=heat.load.take(local).where(used),
        step_s=length_s[rows, None],
        inlet_c=heat.inlet_c[nodes],
        highest_clock=np.where(measured, clock, heat.sustained_clock),
        fixed=measured,
    )
    return steady_state(heat.cooling, heat.power, slots).take(every)


def hottest_c(heat: IslandHeat, length_s: float) -> Floats:
    """Temperatures that no placement exceeds in steps of a length, at the clock that the power limit leaves.

    Parameters
    ----------
    heat : IslandHeat
        The island.
    length_s : float
        Length of the step [s].

    Returns
    -------
    array, shape (nodes, G)
        Degrees Celsius: the hottest work of any stage behind accelerators whose heat sinks give most.
    """
    slots = Slots(
        load=heat.load,
        step_s=np.array(length_s),
        inlet_c=np.array(0.0),
        highest_clock=np.array(heat.sustained_clock),
        fixed=np.array(False),
    )
    clock = np.full(heat.stages.shape, heat.sustained_clock)
    own_c = slots.own_c(heat.cooling, heat.power, clock).max()
    sink_w = slots.sink_w(heat.cooling, heat.power, clock).max()
    degrees: Floats = heat.inlet_c + own_c + heat.cooling.upstream_c(np.full(heat.cooling.gpus, sink_w))
    return degrees


def _alike_nodes(heat: IslandHeat, placed: Ints, length_s: Floats) -> tuple[Ints, Ints]:
    """Return the first node of each sort, and the sort of every node, shape (R, nodes).

    A sort is a kind of node with the same stages on its accelerators in a step of the same length. The first nodes are
    counted through all placements, shape (D,).
    """
    _, length = np.unique(length_s, return_inverse=True)
    shape = placed.shape[:2]
    columns = [np.broadcast_to(length.reshape(-1, 1), shape), np.broadcast_to(heat.kind, shape)]
    columns += [placed[:, :, gpu] - UNUSED for gpu in range(placed.shape[2])]
    key = np.zeros(shape, dtype=np.int64)
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if int(key.max(initial=0)) > _MOST_KEYS // values:
            key = np.unique(key, return_inverse=True)[1].reshape(shape)
        key = key * values + column
    _, first, sort = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(first), np.asarray(sort.reshape(shape))


def stage_stretch(heat: IslandHeat, placed: Ints, clock: Floats) -> Floats:
    """Time of each stage's compute over that at the sustained clock: that of its slowest accelerator.

    Parameters
    ----------
    heat : IslandHeat
        The island.
    placed : array of int
        Stage of every accelerator, shape (R, nodes, G).
    clock : array
        Clocks over the highest clock, same shape.

    Returns
    -------
    array, shape (R, p)
        1.0 for stages without compute.
    """
    used = placed != UNUSED
    local = np.searchsorted(heat.stages, np.where(used, placed, heat.stages[0]))
    base = heat.device.busy_s(heat.sustained_clock)
    taken = heat.device.take(local).busy_s(clock) / heat.speed
    usual = base[local]
    ratio = np.where(used & (usual > 0.0), taken / np.where(usual > 0.0, usual, 1.0), 0.0)
    rows, stages = len(placed), len(heat.stages)
    slowest = np.zeros(rows * stages)
    place = local + stages * np.arange(rows)[:, None, None]
    np.maximum.at(slowest, place.reshape(-1), ratio.reshape(-1))
    return np.where(slowest > 0.0, slowest, 1.0).reshape(rows, stages)


def stretched(work: StageWork, stretch: Floats) -> StageWork:
    """Return R copies of the work of one layout, its stages' compute ``stretch`` times as long, shape (R, pp)."""
    rows = len(stretch)
    return replace(
        work,
        forward_s=_stretched(work.forward_s, stretch, work),
        backward_s=_stretched(work.backward_s, stretch, work),
        dense_parameters=np.repeat(work.dense_parameters, rows, axis=0),
        expert_parameters=np.repeat(work.expert_parameters, rows, axis=0),
        forward_links_s=np.repeat(work.forward_links_s, rows, axis=1),
        backward_links_s=np.repeat(work.backward_links_s, rows, axis=1),
        host_exponent=np.repeat(work.host_exponent, rows, axis=0),
        hosts_run_on=np.repeat(work.hosts_run_on, rows, axis=0),
    )


def _stretched(works_s: Floats, stretch: Floats, work: StageWork) -> Floats:
    """Seconds of a pass of ``work``, shape (len(Work), R, pp, vpp): a slower device waits less for its host."""
    found = np.repeat(works_s, len(stretch), axis=1)
    host_exponent = work.host_exponent[:, :, None]
    busy_s = shared_with_hosts_s(found, work.hosts_run_on)
    host_s = host_of_wait_s(busy_s, found[LayerWork.LAUNCH], host_exponent)
    more_s = found[list(DEVICE_WORKS)].sum(axis=0) * (stretch[:, :, None] - 1.0)
    found[list(DEVICE_WORKS)] *= stretch[None, :, :, None]
    found[LayerWork.LAUNCH] = host_wait_s(busy_s + more_s, host_s, host_exponent)
    return found


def times_of_row(problem: HeatProblem, settled: Settled, row: int) -> StepTimes:
    """Step times of one settled placement with their parts.

    Parameters
    ----------
    problem : HeatProblem
        The layout.
    settled : Settled
        Placements in balance.
    row : int
        Which of them.
    """
    return problem.step.times_of(stretched(problem.step.work, settled.stretch[row : row + 1]))
