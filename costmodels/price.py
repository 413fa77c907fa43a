"""The price of one explicit layout: time, memory, power, throughput. The batch forms share every function below it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels import power
from costmodels.exchange.reshard import reshard_s
from costmodels.layer_costs import PartCosts, power_seconds, price_parts
from costmodels.layout import Layout
from costmodels.memory import stage_memory
from costmodels.positions import Contents, contents_of, strategy_changes
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, MemoryUse, PowerState
from costmodels.step import StepTimes, price_steps
from costmodels.thermal import steady_state, thermal_model
from costmodels.workload.counts import flops_per_token

HEAT_ROUNDS: Final = 8
HEAT_TOLERANCE: Final = 1e-4


def price_layout(pricings: Sequence[Pricing], layout: Layout) -> LayoutCost:
    """Price one layout in full.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island of the cluster; they share model and job.
    layout : Layout
        Its layers must be those of the model.

    Returns
    -------
    LayoutCost

    Raises
    ------
    InputError
        The schedule cannot run with the layout's sizes, or an accelerator lacks the job's number format.
    """
    aligned, contents, times = _steps(pricings, layout)
    step = times.breakdown(0)
    total_s = step.total_s
    model, job = pricings[0].model, pricings[0].job
    tokens = float(job.global_batch * (job.seq if model.hidden else 1))
    return LayoutCost(
        step=step,
        memory=_memory(pricings, layout),
        power=_power(pricings, aligned, contents.islands, times, tokens, layout.gpus),
        stage_times_s=tuple(float(t) for t in times.stage_s[0]),
        tokens_per_s=tokens / total_s,
        mfu=tokens * flops_per_token(model, job.seq) / (total_s * _peak_flops_per_s(pricings, layout)),
    )


def step_time_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Step time of one layout [s], without memory and power: what a fit asks for many times.

    Parameters are as in :func:`price_layout`, whose total it equals.
    """
    _, _, times = _steps(pricings, layout)
    return float(times.total_s[0])


def _steps(pricings: Sequence[Pricing], layout: Layout) -> tuple[list[PartCosts], Contents, StepTimes]:
    """Price the step of one layout: the costs of its parts on every island, what lies where, and the times."""
    contents, table = contents_of(layout, pricings[0].model)
    changes = strategy_changes(layout)
    if changes.any():
        contents = replace(contents, reshard_s=changes.astype(float)[None, :] * _reshard_s(pricings, layout))
    used = sorted(set(contents.islands))
    costs = [price_parts(pricing, table) if island in used else None for island, pricing in enumerate(pricings)]
    priced = [cost for cost in costs if cost is not None]
    aligned = [cost if cost is not None else priced[0] for cost in costs]
    return aligned, contents, price_steps(pricings, aligned, table, contents)


def price_layout_with_heat(pricings: Sequence[Pricing], layout: Layout) -> LayoutCost:
    """Price one layout at the clock that its hottest GPU can hold.

    Synchronous training waits for the slowest GPU, so its clock bounds all of them. A lower clock draws less, so the
    clocks of the iteration fall towards the balance and never pass it; it ends when one is held.

    Parameters
    ----------
    pricings, layout
        As in :func:`price_layout`.
    """
    cost = price_layout(pricings, layout)
    for _ in range(HEAT_ROUNDS):
        if cost.power.limited_by != "heat":
            break
        held = [_at_clock(pricing, cost.power.clock_hz) for pricing in pricings]
        again = price_layout(held, layout)
        if again.step.total_s <= cost.step.total_s * (1.0 + HEAT_TOLERANCE):
            break
        cost = again
    return cost


def _at_clock(pricing: Pricing, clock_hz: float) -> Pricing:
    highest_hz = pricing.accelerator.max_clock_hz or pricing.accelerator.peak_clock_hz
    return replace(pricing, clock=min(pricing.clock, clock_hz / highest_hz)) if highest_hz else pricing


def _reshard_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Seconds of one change of the layout of activations, on the slowest island used."""
    shape = (layout.micro_batch * layout.first.dp, layout.first.gpus)
    used = [pricings[island] for island in sorted({stage.island for stage in layout.stages})]
    return max(reshard_s(p.model, p.job, shape, p.tiers, p.constants.network) for p in used)


def _peak_flops_per_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Peak rate of the GPUs in use, at the number format of the layers' products."""
    return sum(
        stage.gpus * float(getattr(pricings[stage.island].accelerator.peak, pricings[stage.island].job.precision.gemm))
        for stage in layout.stages
    )


def _memory(pricings: Sequence[Pricing], layout: Layout) -> tuple[MemoryUse, ...]:
    """Memory of every stage, each with the device of its island."""
    model, job = pricings[0].model, pricings[0].job
    by_island = {
        island: stage_memory(
            layout, model, job, pricings[island].accelerator, constants=pricings[island].constants.memory
        )
        for island in sorted({stage.island for stage in layout.stages})
    }
    return tuple(by_island[stage.island][number] for number, stage in enumerate(layout.stages))


def _power(
    pricings: Sequence[Pricing],
    costs: Sequence[PartCosts],
    islands: tuple[int, ...],
    times: StepTimes,
    tokens: float,
    gpus: int,
) -> PowerState:
    """Draw, clock and temperature of a node of the busiest stage, with the rest of its step as idle time.

    All GPUs of a node are taken to do the busiest stage's work; the clock of the step is that of the slowest of them.
    """
    island = islands[int(times.busiest[0])]
    pricing, clock = pricings[island], float(costs[island].clock.min())
    model = power.power_model(pricing.accelerator)
    works_s = times.works_s[:, 0] * times.num_microbatches
    idle_s = max(float(times.total_s[0] - works_s.sum()), 0.0)
    at_full_clock = {
        work: seconds / power.time_factor(clock, model.clock_bound[work])
        for work, seconds in power_seconds(works_s, idle_s).items()
    }
    state = steady_state(thermal_model(pricing.island.node), model, at_full_clock, limit_w=pricing.power_limit_w)
    mean_w = float(state.power.mean_w.mean())
    slowest = min(float(state.power.clock.min()), clock)
    hot = bool(state.power.heat_limited.any())
    highest_hz = pricing.accelerator.max_clock_hz or pricing.accelerator.peak_clock_hz
    return PowerState(
        gpu_w=mean_w,
        peak_gpu_w=float(state.power.peak_w.max()),
        clock_hz=slowest * highest_hz,
        limited_by="heat" if hot else "power" if slowest < 1.0 - 1e-6 else "none",
        energy_j_per_token=mean_w * gpus * float(times.total_s[0]) / tokens,
        max_temp_c=float(state.temperature_c.max()),
    )
