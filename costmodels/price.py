"""The price of one explicit layout: time, memory, power, throughput. The batch forms share every function below it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodels.explicit_step import priced_step
from costmodels.layout import Layout
from costmodels.memory import stage_memory
from costmodels.placement import Placement
from costmodels.power.heat import (
    HeatProblem,
    Settled,
    heat_problem,
    identity_maps,
    once,
    placed_maps,
    settle,
    times_of_row,
)
from costmodels.power.state import power_state
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, MemoryUse, PowerState, StepTime, Verdict
from costmodels.step import StageWork, StepTimes
from costmodels.table import Bools
from costmodels.tower import tower_flops
from costmodels.workload.counts import flops_per_token
from costmodels.works import Work


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
    problem = heat_problem(pricings, layout)
    found = once(problem, identity_maps(problem))
    return _cost(problem, problem.step.times, power_state(problem, found, 0))


def step_time_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Step time of one layout [s], without memory and power: what a fit asks for many times.

    Parameters are as in :func:`price_layout`, whose total it equals.
    """
    return float(priced_step(pricings, layout).times.total_s[0])


def price_layout_with_heat(
    pricings: Sequence[Pricing], layout: Layout, placement: Placement | None = None
) -> LayoutCost:
    """Price one layout with the clocks that heat leaves, its ranks placed on given accelerators.

    Parameters
    ----------
    pricings, layout
        As in :func:`price_layout`.
    placement : Placement, optional
        Of a layout on one island; default: ranks in order.

    Returns
    -------
    LayoutCost
        Its power names every accelerator in use.
    """
    problem = heat_problem(pricings, layout, order=placement.order if placement else ())
    maps = identity_maps(problem) if placement is None else placed_maps(problem, [placement])
    return placed_cost(problem, settle(problem, maps), 0)


def placed_cost(problem: HeatProblem, settled: Settled, row: int) -> LayoutCost:
    """Price one of several settled placements of a layout in full.

    Parameters
    ----------
    problem : HeatProblem
        The layout.
    settled : Settled
        Placements in balance.
    row : int
        Which of them.
    """
    state = power_state(problem, settled, row, by_slot=True)
    return _cost(problem, times_of_row(problem, settled, row), state)


def _cost(problem: HeatProblem, times: StepTimes, power: PowerState) -> LayoutCost:
    pricings, layout = problem.step.pricings, problem.layout
    memory = memory_of(pricings, layout, behind=_behind(problem.step.work, pricings, layout))
    full = any(use.verdict is not Verdict.FITS for use in memory)
    polled = _with_polls(times.breakdown(0), pricings[0], layout, full=full)
    breakdown = _with_retries(polled, pricings[0], layout, full=full)
    total_s = breakdown.total_s
    model, job = pricings[0].model, pricings[0].job
    tokens = float(job.global_batch * (job.seq if model.hidden else 1))
    flops = tokens * flops_per_token(model, job.seq, frozen=job.trained_share < 1.0)
    flops += job.global_batch * tower_flops(model, job.images)
    return LayoutCost(
        step=breakdown,
        memory=memory,
        power=power,
        stage_times_s=tuple(float(t) for t in times.stage_s[0]),
        tokens_per_s=tokens / total_s,
        mfu=flops / (total_s * _peak_flops_per_s(pricings, layout)),
    )


def _with_polls(step: StepTime, pricing: Pricing, layout: Layout, *, full: bool) -> StepTime:
    """Add the polls of every micro-batch, and those of the fill and the drain.

    A stage waits for each of its exchanges in turn: two per micro-batch at the ends of a pipeline, four between.
    Filling and draining pass every boundary once more in each direction.
    """
    software, pp = pricing.job.software, len(layout.stages)
    if pp == 1 or not (software.polled_exchanges or (software.polled_when_full and full)):
        return step
    in_a_row = 2 * min(pp - 1, 2) * layout.num_microbatches + 2 * (pp - 1)
    polled_s = in_a_row * pricing.constants.overlap.poll_s
    return replace(step, exposed_comm_s=step.exposed_comm_s + polled_s, details=(*step.details, ("polls", polled_s)))


def _with_retries(step: StepTime, pricing: Pricing, layout: Layout, *, full: bool) -> StepTime:
    """Add what the allocator takes to free and to map memory again in every layer, where it is full."""
    if not (full and layout.pp == 1 and pricing.job.software.retries_when_full):
        return step
    retried_s = layout.layers * layout.num_microbatches * pricing.constants.overlap.retry_s
    return replace(step, compute_s=step.compute_s + retried_s, details=(*step.details, ("retries", retried_s)))


def _peak_flops_per_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Peak rate of the GPUs in use, at the number format of the layers' products."""
    return sum(
        stage.gpus * float(getattr(pricings[stage.island].accelerator.peak, pricings[stage.island].job.precision.gemm))
        for stage in layout.stages
    )


def memory_of(pricings: Sequence[Pricing], layout: Layout, *, behind: Bools | None = None) -> tuple[MemoryUse, ...]:
    """Memory of every stage, each with the device of its island.

    Parameters
    ----------
    pricings, layout
        As in :func:`price_layout`.
    behind : ndarray, optional
        As of :func:`costmodels.memory.layout.stage_memory`, shape (pp,).

    Returns
    -------
    tuple of MemoryUse
        In stage order.
    """
    model, job = pricings[0].model, pricings[0].job
    by_island = {
        island: stage_memory(
            layout,
            model,
            job,
            pricings[island].accelerator,
            constants=pricings[island].constants.memory,
            behind=behind,
        )
        for island in sorted({stage.island for stage in layout.stages})
    }
    return tuple(by_island[stage.island][number] for number, stage in enumerate(layout.stages))


def _behind(work: StageWork, pricings: Sequence[Pricing], layout: Layout) -> Bools:
    """Stages whose devices need longer for a forward pass than their hosts to start its kernels, shape (pp,).

    Seen of tensor-parallel groups inside a node alone; wider ones never are so.
    """
    waited_s, all_s = work.forward_s[Work.LAUNCH, 0].sum(axis=-1), work.forward_all_s[0].sum(axis=-1)
    inside = [
        max(run.strategy.tp for run in stage.strategies) <= pricings[stage.island].island.node.gpus
        for stage in layout.stages
    ]
    return np.asarray(inside & (waited_s <= pricings[0].constants.memory.waited_share * all_s))
