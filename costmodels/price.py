"""The price of one explicit layout: time, memory, power, throughput. The batch forms share every function below it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodels import power
from costmodels.exchange.reshard import reshard_s
from costmodels.layer_costs import PartCosts, power_seconds, price_parts
from costmodels.layout import Layout
from costmodels.memory import stage_memory
from costmodels.positions import contents_of, strategy_changes
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, MemoryUse, PowerState
from costmodels.step import StepTimes, price_steps
from costmodels.workload.counts import flops_per_token


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
    contents, table = contents_of(layout, pricings[0].model)
    changes = strategy_changes(layout)
    if changes.any():
        contents = replace(contents, reshard_s=(changes * _reshard_s(pricings, layout))[None, :])
    used = sorted(set(contents.islands))
    costs = [price_parts(pricing, table) if island in used else None for island, pricing in enumerate(pricings)]
    priced = [cost for cost in costs if cost is not None]
    aligned = [cost if cost is not None else priced[0] for cost in costs]
    times = price_steps(pricings, aligned, table, contents)
    step = times.breakdown(0)
    total_s = step.total_s
    model, job = pricings[0].model, pricings[0].job
    tokens = float(job.global_batch * (job.seq if model.hidden else 1))
    return LayoutCost(
        step=step,
        memory=_memory(pricings, layout),
        power=_power(pricings, aligned, contents.islands, times, tokens),
        stage_times_s=tuple(float(t) for t in times.stage_s[0]),
        tokens_per_s=tokens / total_s,
        mfu=tokens * flops_per_token(model, job.seq) / (total_s * _peak_flops_per_s(pricings, layout)),
    )


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
) -> PowerState:
    """Mean and peak draw over the step on the busiest stage, with the rest of its step as idle time."""
    island = islands[int(times.busiest[0])]
    pricing, clock = pricings[island], costs[island].clock
    model = power.power_model(pricing.accelerator)
    works_s = times.works_s[:, :1] * times.num_microbatches
    idle_s = np.maximum(times.total_s[:1] - works_s.sum(axis=0), 0.0)
    seconds = power_seconds(works_s, idle_s)
    state = power.step_power(model, seconds, limit_w=pricing.power_limit_w, highest_clock=float(clock.min()))
    mean_w, peak_w = float(state.mean_w[0]), float(state.peak_w[0])
    gpus = sum(p.island.gpus for p in pricings)
    held_down = float(clock.min()) < 1.0 - 1e-6
    return PowerState(
        gpu_w=mean_w,
        peak_gpu_w=peak_w,
        clock_hz=float(clock.min()) * (pricing.accelerator.max_clock_hz or pricing.accelerator.peak_clock_hz),
        limited_by="power" if held_down and pricing.power_limit_w > 0.0 else "none",
        energy_j_per_token=mean_w * gpus * float(times.total_s[0]) / tokens,
        max_temp_c=0.0,
    )
