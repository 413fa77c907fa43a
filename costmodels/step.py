"""Step time of layouts: stage times, the schedule's makespan, exchanges of the step, optimizer, jitter.

``T = makespan(stages) + exposed gradient and weight exchange + optimizer + jitter``. The breakdown is that of the
busiest stage: its compute, its visible exchanges, and the rest of the makespan as its bubble; the parts sum to the
total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.compute import optimizer_step_s
from costmodels.exchange import state_exchange
from costmodels.host_waits import host_of_wait_s
from costmodels.layer_costs import PartCosts
from costmodels.memory.states import LocalParameters
from costmodels.overlap import Overlap, exposed_s
from costmodels.pipeline.graph import Transfers
from costmodels.pipeline.schedules import PipelineSpec, positions
from costmodels.pipeline.simulate import default_transfers, makespan
from costmodels.positions import Contents, added_up
from costmodels.pricing import Pricing
from costmodels.reliability import jitter_s
from costmodels.results import StepTime
from costmodels.shared_links import Exchanging, beside
from costmodels.table import Bools, Floats, Ints, StrategyTable
from costmodels.works import COMPUTE_WORKS, EXCHANGE_WORKS, Work

ROUNDING: Final = 1e-9  # of a makespan; a difference of sums below it is none
WEIGHT_GRADIENT_SHARE: Final = 0.5
"""Share of the products of a backward pass that make gradients of weights: one of two equal products."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageWork:
    """Time of one micro-batch on every stage of R layouts, by kind of work.

    Attributes
    ----------
    forward_s, backward_s : ndarray
        Shape (len(Work), R, pp, vpp).
    dense_parameters, expert_parameters, weight_tensors : ndarray
        Parameters on one rank before ZeRO sharding, and their tensors, by strategy, shape (R, J, pp).
    forward_links_s, backward_links_s : ndarray
        Seconds on outer tiers as in :class:`costmodels.layer_costs.PartCosts`, shape (T, R, pp, vpp) for the largest
        number of tiers T of any island.
    host_exponent : ndarray
        How host and device share the passes of a stage, as in :mod:`costmodels.host_waits`, shape (R, pp).
    hosts_run_on : ndarray
        Where hosts run on in all tensor-parallel exchanges of a stage, shape (R, pp).
    """

    forward_s: Floats
    backward_s: Floats
    dense_parameters: Floats
    expert_parameters: Floats
    weight_tensors: Floats
    forward_links_s: Floats
    backward_links_s: Floats
    host_exponent: Floats
    hosts_run_on: Bools

    @cached_property
    def forward_all_s(self) -> Floats:
        """Seconds of all kinds of work forward, shape (R, pp, vpp)."""
        return np.asarray(self.forward_s.sum(axis=0))

    @cached_property
    def backward_all_s(self) -> Floats:
        """Seconds of all kinds of work backward, shape (R, pp, vpp)."""
        return np.asarray(self.backward_s.sum(axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """Step times of R layouts in seconds, and their parts; arrays of shape (R,) unless said otherwise.

    ``works_s`` is the time of one micro-batch by kind of work on the busiest stage, shape (len(Work), R); ``stage_s``
    of all kinds on every stage, shape (R, pp).
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
        makespan = float(self.makespan_s[row])
        bubble = makespan - pipeline_compute - pipeline_exchange
        bubble = bubble if bubble > ROUNDING * makespan else 0.0  # one stage has none: equal sums but for their order
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
        weight_tensors=work.weight_tensors[rows],
        forward_links_s=work.forward_links_s[:, rows],
        backward_links_s=work.backward_links_s[:, rows],
        host_exponent=work.host_exponent[rows],
        hosts_run_on=work.hosts_run_on[rows],
    )


def shared_with_hosts_s(works_s: Floats, hosts_run_on: Bools) -> Floats:
    """Return what devices share with their hosts: all but waits for these and exchanges in which they run on.

    Parameters
    ----------
    works_s : ndarray
        Seconds by work, shape (len(Work), R, pp, vpp).
    hosts_run_on : ndarray
        As of :class:`StageWork`, shape (R, pp).

    Returns
    -------
    ndarray
        Seconds, shape (R, pp, vpp).
    """
    return np.asarray(works_s.sum(axis=0) - works_s[Work.LAUNCH] - hosts_run_on[:, :, None] * works_s[Work.TP])


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
    layouts, strategies = contents.rows.shape
    tiers = max(len(cost.forward_links_s) for cost in costs)
    passes = np.empty((2, len(Work), layouts, spec.pp, spec.vpp))
    links = np.zeros((2, tiers, *passes.shape[2:]))
    held = np.zeros((3, layouts, strategies, spec.pp))
    host_exponent, hosts_run_on = np.empty((layouts, spec.pp)), np.empty((layouts, spec.pp), dtype=np.bool_)
    for island, stages in contents.by_island:
        counts = contents.distinct_counts[:, place[stages]]  # (R or 1, stages, vpp, J, K)
        cost = costs[island]
        found = added_up(counts, cost.added_up[contents.rows])
        passes[:, :, :, stages] = found[: 2 * len(Work)].reshape(2, len(Work), *found.shape[1:])
        of_island = found[2 * len(Work) :].reshape(2, -1, *found.shape[1:])
        links[:, : of_island.shape[1], :, stages] = of_island
        of_stage = counts.sum(axis=2)
        host_exponent[:, stages] = cost.host_exponent.min(axis=0)[contents.rows].min(axis=1, keepdims=True)
        hosts_run_on[:, stages] = cost.hosts_run_on[contents.rows].all(axis=1, keepdims=True)
        for number, parameters in enumerate((cost.dense_parameters, cost.expert_parameters)):
            if parameters.any():
                held[number][:, :, stages] = np.einsum("rsjk,rjk->rjs", of_stage, parameters.T[contents.rows])
        held[2][:, :, stages] = (of_stage @ cost.weight_tensors).swapaxes(1, 2)
    if contents.reshard_s is not None:
        passes[:, Work.RESHARD] += contents.reshard_s[:, place]
    work = StageWork(
        forward_s=passes[0],
        backward_s=passes[1],
        dense_parameters=held[0],
        expert_parameters=held[1],
        weight_tensors=held[2],
        forward_links_s=links[0],
        backward_links_s=links[1],
        host_exponent=host_exponent,
        hosts_run_on=hosts_run_on,
    )
    return _with_turns(work, costs, contents) if costs[contents.islands[0]].software.hosts_in_turn else work


def _with_turns(work: StageWork, costs: Sequence[PartCosts], contents: Contents) -> StageWork:
    """Stage work of pipelines over several nodes whose hosts start the exchanges of their group one after the other.

    A pass takes no less than a host needs for its own kernels and for the turns of all hosts of its group.
    """
    spec, rows = contents.spec, contents.rows[:, 0]
    place = positions(spec.schedule, spec.pp, spec.vpp)
    turns_s = np.zeros((2, *work.forward_s.shape[1:]))
    for island, stages in contents.by_island:
        counts = contents.distinct_counts[:, place[stages]]
        turns_s[:, :, stages] = added_up(counts, costs[island].turns_s.transpose(2, 0, 1)[contents.rows])
    placed = costs[contents.islands[0]].placed
    ranks = placed.table.gpus[rows] * spec.pp
    apart = (ranks > placed.tiers[0].gpus) & (spec.pp > 1)
    passes = []
    for works_s, turn_s in zip((work.forward_s, work.backward_s), turns_s, strict=True):
        found_s, whole_s = works_s.copy(), works_s.sum(axis=0)
        shared_s = shared_with_hosts_s(works_s, work.hosts_run_on)
        host_s = host_of_wait_s(shared_s, works_s[Work.LAUNCH], work.host_exponent[:, :, None])
        found_s[Work.LAUNCH] += apart[:, None, None] * np.maximum(host_s + turn_s - whole_s, 0.0)
        passes.append(found_s)
    return replace(work, forward_s=passes[0], backward_s=passes[1])


def staircase_bound_s(work: StageWork, spec: PipelineSpec) -> Floats:
    """Lower bound on the makespan of given stages, much cheaper than the schedule; shape (R,).

    Stage i works ``m t_i``, begins after the first chunks of the stages before it and ends before their backwards:
    ``T >= m t_i + sum_{j<i} (f_j0 + b_j0)``. Holds for every schedule that fills forwards from stage 0 and does not
    split the backward pass: where it does, what is left of a stage's runs beside those of the stages before it,
    ``T >= m t_i``.
    """
    both = work.forward_all_s + work.backward_all_s
    if spec.schedule.splits_backward:
        return np.asarray(spec.num_microbatches * both.sum(axis=2).max(axis=1))
    before = np.cumsum(both[:, :, 0], axis=1) - both[:, :, 0]
    bound: Floats = (spec.num_microbatches * both.sum(axis=2) + before).max(axis=1)
    return bound


def price_steps(
    pricings: Sequence[Pricing],
    costs: Sequence[PartCosts],
    contents: Contents,
    work: StageWork | None = None,
) -> StepTimes:
    """Price R layouts that share a pipeline shape.

    Parameters
    ----------
    pricings, costs : sequences of Pricing and PartCosts
        One of each per island.
    contents : Contents
        What every position holds; its rows are strategies of the costs.
    work : StageWork, optional
        Of the same contents, when it is known already.

    Returns
    -------
    StepTimes
        Arrays of shape (R,).
    """
    spec = contents.spec
    work = stage_work(costs, contents) if work is None else work
    sends = _sends(costs, contents)
    work, send = _beside_sends(work, contents, sends)
    forward, backward = work.forward_all_s, work.backward_all_s
    weight_grad = None
    if spec.schedule.splits_backward:
        weight_grad = WEIGHT_GRADIENT_SHARE * work.backward_s[Work.GEMM]
        backward = backward - weight_grad
    time = makespan(spec, forward, backward, send, weight_grad, sends.transfers)
    stage_s = (forward + backward).sum(axis=2)
    busiest = stage_s.argmax(axis=1)
    every = np.arange(len(busiest))
    works = (work.forward_s[:, every, busiest] + work.backward_s[:, every, busiest]).sum(axis=2)
    reduce, gather, optimizer = _state_times(pricings, costs, contents, work, sends)
    late = pricings[0].job.software.late_validation and spec.schedule.splits_backward
    pipeline_s = time.span_s if late else time.makespan_s
    # Stages that end early reduce gradients while the others still work; those that begin late gather as long.
    idle_after = pipeline_s[:, None] - time.finish_s + (time.start_s if late else 0.0)
    reduce_s = np.maximum(reduce - idle_after, 0.0).max(axis=1) + _tied_s(costs, contents)
    table, first = costs[0].placed.table, contents.rows[:, 0]
    gather_s = np.maximum(gather + _sliced_s(pricings[0], table, contents, work) - time.start_s, 0.0).max(axis=1)
    optimizer_s = optimizer.max(axis=1)
    steady = pipeline_s + reduce_s + gather_s + optimizer_s
    sync = jitter_s(steady, table.gpus[first] * spec.pp)
    return StepTimes(
        total_s=steady + sync,
        makespan_s=pipeline_s,
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


def _tied_s(costs: Sequence[PartCosts], contents: Contents) -> Floats:
    """Seconds in which first and last stage add up the gradients of a shared embedding, at the end; shape (R,)."""
    slower = min((costs[contents.islands[end]] for end in (0, -1)), key=_outer_bytes_per_s)
    return slower.boundaries.tied_s[contents.rows[:, 0]]


def _outer_bytes_per_s(costs: PartCosts) -> float:
    """Rate of an island's outermost tier."""
    return costs.placed.tiers[-1].bytes_per_s


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sends:
    """Seconds to move one tensor over each boundary alone, shape (R, pp), and loads of outer tiers, (T - 1, R, pp).

    The last boundary closes the ring of virtual chunks. ``transfers`` says whether stages wait for them.
    """

    seconds: Floats
    loads: Floats
    transfers: Transfers


def _sends(costs: Sequence[PartCosts], contents: Contents) -> _Sends:
    """Price the boundaries between stages, each on the slower of its two islands."""
    pp, rows = contents.spec.pp, contents.rows[:, 0]
    send = np.zeros((len(rows), pp))
    loads = np.zeros((max(len(cost.boundaries.load) for cost in costs), *send.shape))
    whole = len(set(contents.islands)) == 1
    for stage in range(pp if pp > 1 else 0):
        ends = contents.islands[stage], contents.islands[(stage + 1) % pp]
        slower = min(ends, key=lambda island: _outer_bytes_per_s(costs[island]))
        found = costs[slower].boundaries
        at = slice(None) if whole else slice(stage, stage + 1)
        send[:, at] = found.send.forward_s[rows][:, None]
        loads[: len(found.load), :, at] = found.load[:, rows, None]
        if whole:
            break
    buffered = costs[contents.islands[0]].software.buffered_sends
    return _Sends(seconds=send, loads=loads, transfers=default_transfers(contents.spec, buffered=buffered))


def _beside_sends(work: StageWork, contents: Contents, sends: _Sends) -> tuple[StageWork, Floats]:
    """Stage work and send times where sends run beside exchanges that leave through the same adapters and uplinks.

    Every micro-batch sends once forward and once backward for each chunk of a stage.
    """
    spec = contents.spec
    overlapped = spec.pp > 1 and sends.transfers is Transfers.OVERLAPPED
    meet = sends.loads.any() and (work.forward_links_s[1:].any() or work.backward_links_s[1:].any())
    if contents.alone or not overlapped or not meet:
        return work, sends.seconds
    span_s = work.forward_all_s + work.backward_all_s
    others = _exchanging(span_s, work.forward_links_s + work.backward_links_s)
    each = np.broadcast_to(sends.seconds[:, :, None], span_s.shape)
    found = beside(2.0 * each, np.broadcast_to(sends.loads[..., None], others.loads.shape), others)
    of_forward = work.forward_links_s[0] / np.maximum(others.active_s, 1e-30)
    work = replace(work, forward_s=work.forward_s.copy(), backward_s=work.backward_s.copy())
    work.forward_s[Work.SHARED] += found.delay_s * of_forward
    work.backward_s[Work.SHARED] += found.delay_s * (1.0 - of_forward)
    return work, np.asarray((found.finish_s / 2.0).max(axis=2))


def _exchanging(span_s: Floats, links_s: Floats) -> Exchanging:
    """Exchanges of a span from their seconds on outer tiers, shape (T, ...)."""
    loads = np.minimum(links_s[1:] / np.maximum(links_s[0], 1e-30), 1.0)
    return Exchanging(span_s=span_s, active_s=links_s[0], loads=loads)


def _sliced_s(pricing: Pricing, table: StrategyTable, contents: Contents, work: StageWork) -> Floats:
    """Host seconds to cut gradients and weights into the shards of their ZeRO group one by one, shape (R, pp)."""
    sliced = np.zeros((len(contents.rows), contents.spec.pp))
    if not pricing.job.software.sliced_states:
        return sliced
    for j in range(contents.rows.shape[1]):
        rows = table.take(contents.rows[:, j])
        shards = np.where((rows.zero >= 1) & (rows.zero_group > 1), rows.zero_group, 0)
        sliced += pricing.constants.overlap.slice_s * shards[:, None] * work.weight_tensors[:, j]
    return sliced


def _state_times(
    pricings: Sequence[Pricing], costs: Sequence[PartCosts], contents: Contents, work: StageWork, sends: _Sends
) -> tuple[Floats, Floats, Floats]:
    """Gradient reduction and weight gather that no compute hides, and the optimizer, per stage: shapes (R, pp)."""
    shape = (len(contents.rows), contents.spec.pp)
    states_s = np.zeros((2, *shape))  # reduction, gather
    busy_s = np.zeros((2, *sends.loads.shape))
    optimizer, last = np.zeros(shape), np.zeros(shape)
    owned = pricings[0].job.software.broadcast_weights
    for island, stages in contents.by_island:
        pricing = pricings[island]
        buckets = np.zeros_like(last[:, stages])
        for j in range(contents.rows.shape[1]):
            placed = costs[island].placed.take(contents.rows[:, j])
            held, of = _unlike_stages(work.dense_parameters[:, j, stages], work.expert_parameters[:, j, stages])
            bucket_bytes = pricing.constants.overlap.bucket_bytes
            tensors = work.weight_tensors[:, j, stages][:, np.unique(of, return_index=True)[1]] if owned else None
            exchange = state_exchange(held, pricing.job, placed, bucket_bytes, tensors)
            pairs = ((exchange.reduce_s, exchange.reduce_load), (exchange.gather_s, exchange.gather_load))
            for number, (seconds, load) in enumerate(pairs):
                states_s[number][:, stages] += seconds[:, of]
                busy_s[number][: len(load), :, stages] += (seconds * load)[:, :, of]
            owned_s = optimizer_step_s(
                exchange.owned_parameters,
                pricing.job,
                pricing.accelerator,
                efficiency=pricing.constants.efficiency,
                node=pricing.island.node,
            )
            optimizer[:, stages] += owned_s[:, of]
            buckets += np.where(held.dense + held.expert > 0.0, 1.0 / exchange.last_bucket_share, 0.0)[:, of]
        last[:, stages] = 1.0 / np.maximum(buckets, 1.0)
    loads = np.minimum(busy_s / np.maximum(states_s[:, None], 1e-30), 0.0 if contents.alone else 1.0)
    software = pricings[0].job.software
    zero = costs[0].placed.table.zero[contents.rows[:, :1]]
    hidden = software.hides_reduction(zero, contents.spec.pp), np.full(zero.shape, software.param_overlap)
    for number, rows in enumerate(hidden):
        if rows.any():
            window = _window(contents, work, sends, backward=number == 0)
            overlap = pricings[0].constants.overlap
            exposed = _states_exposed_s(states_s[number], loads[number], window, last, overlap)
            states_s[number] = np.where(rows, exposed, states_s[number])
    return states_s[0], states_s[1], optimizer


def _unlike_stages(dense: Floats, expert: Floats) -> tuple[LocalParameters, Ints]:
    """Parameters (R, pp) of the stages that do not hold what the one before them does, and which of these each is."""
    changes = (np.diff(dense, axis=1) != 0.0) | (np.diff(expert, axis=1) != 0.0)
    unlike = np.append(True, changes.any(axis=0))
    return LocalParameters(dense=dense[:, unlike], expert=expert[:, unlike]), np.cumsum(unlike) - 1


def _states_exposed_s(transfer_s: Floats, loads: Floats, window: Exchanging, last: Floats, overlap: Overlap) -> Floats:
    """Seconds that a reduction or gather adds to the passes beside it, with what both lose on shared links."""
    span_s = window.span_s
    delay_s = np.zeros_like(transfer_s)
    if loads.any() and window.loads.any():
        found = beside(transfer_s, loads, window)
        transfer_s, delay_s = found.finish_s, found.delay_s
    return delay_s + exposed_s(
        transfer_s, span_s + delay_s, overlap.window_share, least_share=last, contention=overlap.contention
    )


def _window(contents: Contents, work: StageWork, sends: _Sends, *, backward: bool) -> Exchanging:
    """Passes beside the reduction of gradients (or the gather of weights), with the exchanges and sends in them."""
    passes = _window_passes(contents)
    works = work.backward_all_s if backward else work.forward_all_s
    links = (work.backward_links_s if backward else work.forward_links_s).sum(axis=3)
    span_s = passes * works.sum(axis=2)
    if contents.spec.pp > 1 and sends.loads.any() and sends.transfers is Transfers.OVERLAPPED:
        sent_s = contents.spec.vpp * sends.seconds
        crossing = np.concatenate([(sends.loads[:1] > 0.0).astype(np.float64), sends.loads])
        links = links + crossing * sent_s
    return _exchanging(span_s, passes * links)


def _window_passes(contents: Contents) -> float:
    """Passes of one micro-batch over a stage that run while its gradients (weights) are reduced (gathered) in turn.

    The last micro-batch's own pass; with virtual chunks the gradients of the last chunk are ready ``(v - 1) p`` passes
    over a chunk before the end, and weights of later chunks are needed as much later.
    """
    pp, vpp = contents.spec.pp, contents.spec.vpp
    return 1.0 + (pp - 1) * (vpp - 1) / vpp
