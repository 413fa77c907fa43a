"""Step time of layouts: stage times, the schedule's makespan, exchanges of the step, optimizer, jitter.

``T = makespan(stages) + exposed gradient and weight exchange + optimizer + jitter``. The breakdown is that of the
busiest
stage: its compute, its visible exchanges, and the rest of the makespan as its bubble; the parts sum to the total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.compute import optimizer_step_s
from costmodels.exchange import boundary_send_s, state_exchange, tied_embedding_s
from costmodels.layer_costs import COMPUTE_WORKS, EXCHANGE_WORKS, PartCosts, Work
from costmodels.memory.states import LocalParameters
from costmodels.overlap import exposed_s
from costmodels.pipeline.schedules import positions
from costmodels.pipeline.simulate import makespan
from costmodels.positions import Contents
from costmodels.pricing import Pricing
from costmodels.reliability import jitter_s
from costmodels.results import StepTime
from costmodels.table import Floats, Ints, StrategyTable

WEIGHT_GRADIENT_SHARE: Final = 0.5
"""Share of the products of a backward pass that make gradients of weights: one of two equal products."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageWork:
    """Time of one micro-batch on every stage of R layouts, by kind of work.

    Attributes
    ----------
    forward_s, backward_s : ndarray
        Shape (len(Work), R, pp, vpp).
    dense_parameters, expert_parameters : ndarray
        Parameters on one rank before ZeRO sharding, by strategy, shape (R, J, pp).
    """

    forward_s: Floats
    backward_s: Floats
    dense_parameters: Floats
    expert_parameters: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """Step times of R layouts in seconds, and their parts; arrays of shape (R,) unless said otherwise.

    ``works_s`` is the time of one micro-batch by kind of work on the busiest stage, shape (len(Work), R); ``stage_s``
    of all kinds on
    every stage, shape (R, pp).
    """

    total_s: Floats
    makespan_s: Floats
    busiest: Ints
    works_s: Floats
    stage_s: Floats
    send_s: Floats
    reduce_exposed_s: Floats
    gather_exposed_s: Floats
    optimizer_s: Floats
    sync_s: Floats
    num_microbatches: int

    def breakdown(self, row: int) -> StepTime:
        """Breakdown of one layout; its parts sum to the total."""
        m = self.num_microbatches
        works = self.works_s[:, row]
        pipeline_compute = m * float(works[list(COMPUTE_WORKS)].sum())
        pipeline_exchange = m * float(works[list(EXCHANGE_WORKS)].sum())
        optimizer, sync = float(self.optimizer_s[row]), float(self.sync_s[row])
        states = float(self.reduce_exposed_s[row] + self.gather_exposed_s[row])
        bubble = float(self.makespan_s[row]) - pipeline_compute - pipeline_exchange
        details = [(work.name.lower(), m * float(works[work])) for work in Work]
        return StepTime(
            compute_s=pipeline_compute + optimizer,
            exposed_comm_s=pipeline_exchange + states,
            bubble_s=bubble,
            sync_s=sync,
            io_s=0.0,
            details=(
                *details,
                ("gradient_reduction", float(self.reduce_exposed_s[row])),
                ("weight_gather", float(self.gather_exposed_s[row])),
                ("optimizer", optimizer),
                ("send", float(self.send_s[row])),
            ),
        )


def rows_of_work(work: StageWork, rows: Ints) -> StageWork:
    """Some of the layouts of a stage work."""
    return replace(
        work,
        forward_s=work.forward_s[:, rows],
        backward_s=work.backward_s[:, rows],
        dense_parameters=work.dense_parameters[rows],
        expert_parameters=work.expert_parameters[rows],
    )


def stage_work(costs: Sequence[PartCosts], contents: Contents) -> StageWork:
    """Add up the parts of every position.

    Parameters
    ----------
    costs : sequence of PartCosts
        Part times on each island.
    contents : Contents
        What every position holds.

    Returns
    -------
    StageWork
    """
    spec = contents.spec
    place = positions(spec.schedule, spec.pp, spec.vpp)
    forward = np.empty((len(Work), len(contents.rows), spec.pp, spec.vpp))
    backward = np.empty_like(forward)
    dense = np.empty((len(contents.rows), contents.rows.shape[1], spec.pp))
    expert = np.empty_like(dense)
    for island in sorted(set(contents.islands)):
        stages = np.flatnonzero(np.array(contents.islands) == island)
        counts = contents.counts[:, place[stages]]  # (R, stages, vpp, J, K)
        cost = costs[island]
        forward[:, :, stages] = np.einsum(
            "rscjk,wkrj->wrsc", counts, cost.forward_s[:, :, contents.rows], optimize=True
        )
        backward[:, :, stages] = np.einsum(
            "rscjk,wkrj->wrsc", counts, cost.backward_s[:, :, contents.rows], optimize=True
        )
        held = counts.sum(axis=2)
        dense[:, :, stages] = np.einsum("rsjk,krj->rjs", held, cost.dense_parameters[:, contents.rows], optimize=True)
        expert[:, :, stages] = np.einsum("rsjk,krj->rjs", held, cost.expert_parameters[:, contents.rows], optimize=True)
    if contents.reshard_s is not None:
        forward[Work.RESHARD] += contents.reshard_s[:, place]
        backward[Work.RESHARD] += contents.reshard_s[:, place]
    return StageWork(forward_s=forward, backward_s=backward, dense_parameters=dense, expert_parameters=expert)


def staircase_bound_s(work: StageWork, contents: Contents) -> Floats:
    """Lower bound on the makespan of given stages, much cheaper than the schedule; shape (R,).

    Stage i works ``m t_i``, begins after the first chunks of the stages before it and ends before their backwards:
    ``T >= m t_i + sum_{j<i} (f_j0 + b_j0)``. Holds for every schedule that fills forwards from stage 0.
    """
    both = work.forward_s.sum(axis=0) + work.backward_s.sum(axis=0)
    before = np.cumsum(both[:, :, 0], axis=1) - both[:, :, 0]
    bound: Floats = (contents.spec.num_microbatches * both.sum(axis=2) + before).max(axis=1)
    return bound


def price_steps(
    pricings: Sequence[Pricing],
    costs: Sequence[PartCosts],
    table: StrategyTable,
    contents: Contents,
    work: StageWork | None = None,
) -> StepTimes:
    """Price R layouts that share a pipeline shape.

    Parameters
    ----------
    pricings, costs : sequences of Pricing and PartCosts
        One of each per island.
    table : StrategyTable
        The strategies that ``contents.rows`` point into.
    contents : Contents
        What every position holds.
    work : StageWork, optional
        Of the same contents, when it is known already.

    Returns
    -------
    StepTimes
        Arrays of shape (R,).
    """
    spec = contents.spec
    work = stage_work(costs, contents) if work is None else work
    forward, backward = work.forward_s.sum(axis=0), work.backward_s.sum(axis=0)
    first = table.take(contents.rows[:, 0])
    send = _send_s(pricings, first, contents)
    weight_grad = None
    if spec.schedule.splits_backward:
        weight_grad = WEIGHT_GRADIENT_SHARE * work.backward_s[Work.GEMM]
        backward = backward - weight_grad
    time = makespan(spec, forward, backward, send, weight_grad)
    stage_s = (forward + backward).sum(axis=2)
    busiest = stage_s.argmax(axis=1)
    each = np.arange(len(busiest))
    works = (work.forward_s + work.backward_s).sum(axis=3)[:, each, busiest]
    reduce, gather, optimizer = _state_times(pricings, table, contents, work)
    # Stages that end early reduce gradients while the others still work; those that begin late gather as long.
    idle_after = time.makespan_s[:, None] - time.finish_s
    reduce_s = np.maximum(reduce - idle_after, 0.0).max(axis=1) + _tied_s(pricings, first)
    gather_s = np.maximum(gather - time.start_s, 0.0).max(axis=1)
    optimizer_s = optimizer.max(axis=1)
    steady = time.makespan_s + reduce_s + gather_s + optimizer_s
    sync = jitter_s(steady, first.tp * first.cp * first.dp * spec.pp)
    return StepTimes(
        total_s=steady + sync,
        makespan_s=time.makespan_s,
        busiest=busiest,
        works_s=works,
        stage_s=stage_s,
        send_s=send.sum(axis=1),
        reduce_exposed_s=reduce_s,
        gather_exposed_s=gather_s,
        optimizer_s=optimizer_s,
        sync_s=sync,
        num_microbatches=spec.num_microbatches,
    )


def _tied_s(pricings: Sequence[Pricing], table: StrategyTable) -> Floats:
    """Seconds in which first and last stage add up the gradients of a shared embedding, at the end; shape (R,)."""
    slowest = min(pricings, key=lambda pricing: pricing.tiers[-1].bytes_per_s)
    return tied_embedding_s(slowest.model, slowest.job, table, slowest.tiers, slowest.constants.network)


def _send_s(pricings: Sequence[Pricing], table: StrategyTable, contents: Contents) -> Floats:
    """Seconds to move one tensor over each boundary, shape (R, pp); the last one closes the ring of virtual chunks."""
    pp = contents.spec.pp
    send = np.zeros((len(table), pp))
    if pp == 1:
        return send
    for stage in range(pp):
        here, there = contents.islands[stage], contents.islands[(stage + 1) % pp]
        slower = max((pricings[here], pricings[there]), key=lambda pricing: -pricing.tiers[-1].bytes_per_s)
        seconds = boundary_send_s(
            slower.model,
            slower.job,
            table,
            slower.tiers,
            slower.constants.network,
            scatter_gather=slower.job.software.scatter_gather,
        )
        send[:, stage] = seconds
        if here == there and stage == 0 and len(set(contents.islands)) == 1:
            send[:] = seconds[:, None]
            break
    return send


def _state_times(
    pricings: Sequence[Pricing], table: StrategyTable, contents: Contents, work: StageWork
) -> tuple[Floats, Floats, Floats]:
    """Gradient reduction and weight gather that no compute hides, and the optimizer, per stage: shapes (R, pp)."""
    shape = (len(contents.rows), contents.spec.pp)
    reduce, gather, optimizer = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    forward_s = work.forward_s.sum(axis=(0, 3))
    backward_s = work.backward_s.sum(axis=(0, 3))
    for island in sorted(set(contents.islands)):
        pricing = pricings[island]
        stages = np.flatnonzero(np.array(contents.islands) == island)
        overlap, software = pricing.constants.overlap, pricing.job.software
        buckets = np.zeros((len(contents.rows), len(stages)))
        for j in range(contents.rows.shape[1]):
            rows = table.take(contents.rows[:, j])
            held = LocalParameters(
                dense=work.dense_parameters[:, j, stages], expert=work.expert_parameters[:, j, stages]
            )
            exchange = state_exchange(
                held, pricing.job, rows, pricing.tiers, pricing.constants.network, overlap.bucket_bytes
            )
            reduce[:, stages] += exchange.reduce_s
            gather[:, stages] += exchange.gather_s
            optimizer[:, stages] += optimizer_step_s(
                exchange.owned_parameters, pricing.job, pricing.accelerator, efficiency=pricing.constants.efficiency
            )
            buckets += np.where(held.dense + held.expert > 0.0, 1.0 / exchange.last_bucket_share, 0.0)
        last = 1.0 / np.maximum(buckets, 1.0)
        window = _window_passes(contents) * overlap.window_share
        for states_s, passes_s, hides in (
            (reduce, backward_s, software.grad_overlap),
            (gather, forward_s, software.param_overlap),
        ):
            beside = passes_s[:, stages] if hides else np.zeros_like(passes_s[:, stages])
            states_s[:, stages] = exposed_s(
                states_s[:, stages], beside, window, least_share=last, contention=overlap.contention if hides else 0.0
            )
    return reduce, gather, optimizer


def _window_passes(contents: Contents) -> float:
    """Passes of one micro-batch over a stage that run while its gradients (weights) are reduced (gathered) in turn.

    The last micro-batch's own pass; with virtual chunks the gradients of the last chunk are ready ``(v - 1) p`` passes
    over a chunk before the end, and weights of later chunks are needed as much later.
    """
    pp, vpp = contents.spec.pp, contents.spec.vpp
    return 1.0 + (pp - 1) * (vpp - 1) / vpp
