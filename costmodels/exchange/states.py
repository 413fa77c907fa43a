"""Exchanges of weights and gradients: per micro-batch under ZeRO stages 2 and 3, and once per step."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.collectives import NetworkConstants, all_gather_s, all_reduce_s, reduce_scatter_s
from costmodels.collectives.algorithms import Collective
from costmodels.exchange.placed import Exchanged, PlacedTable
from costmodels.job import TrainingJob
from costmodels.memory.states import LocalParameters
from costmodels.mesh import Axis
from costmodels.table import Bools, Floats, Ints, StrategyTable
from hardware.tiers import Tier

_LEAST_BUCKET_PARAMETERS_PER_RANK: Final = 1e6  # Megatron-LM grows its gradient buckets with the data-parallel group


@dataclass(frozen=True, kw_only=True, eq=False)
class StateExchange:
    """Exchanges of gradients and weights once per step; arrays of the shape of the parameters.

    ``owned_parameters`` are those that the rank's optimizer updates; ``last_bucket_share`` the part of a reduction
    (gather) that is its last (first) bucket.
    """

    reduce_s: Floats
    gather_s: Floats
    reduce_bytes: Floats
    gather_bytes: Floats
    owned_parameters: Floats
    last_bucket_share: Floats


def weight_exchange(parameters: LocalParameters, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """ZeRO-3 gathers the weights of a part forward and backward; stages 2 and 3 scatter its gradients."""
    zero = placed.table.zero
    gather, scatter, sent = (np.zeros(len(placed.table)) for _ in range(3))
    reduce_bytes = reduced_bytes(job)
    for count, axis in ((parameters.dense, Axis.SHARD), (parameters.expert, Axis.EXPERT_SHARD)):
        weights, gradients = count * job.precision.gather_bytes, count * (job.trained_share * reduce_bytes)
        gather += placed.seconds(all_gather_s, axis, weights, zero == 3)
        scatter += placed.seconds(reduce_scatter_s, axis, gradients, zero >= 2)
        size = placed.group(axis).size
        sent += (np.where(zero == 3, 2.0 * weights, 0.0) + np.where(zero >= 2, gradients, 0.0)) * (size - 1) / size
    return Exchanged(forward_s=gather, backward_s=gather + scatter, hidden_s=np.zeros_like(gather), sent_bytes=sent)


def reduced_bytes(job: TrainingJob) -> float:
    """Bytes per parameter in a gradient reduction; software that accumulates in fewer bytes reduces in fewer."""
    own = job.software.gradient_bytes
    return min(own, job.precision.reduce_bytes) if own else job.precision.reduce_bytes


def state_exchange(
    parameters: LocalParameters,
    job: TrainingJob,
    table: StrategyTable,
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
    bucket_bytes: float,
) -> StateExchange:
    """Price the gradient reduction and the weight gather at the end of a step.

    Parameters
    ----------
    parameters : LocalParameters
        Parameters of a rank before ZeRO, shape (S,) or (S, N) for N stages of the same strategy.
    job : TrainingJob
        Precision and software.
    table : StrategyTable
        S strategies.
    tiers : tuple of Tier
        Hierarchy from the inside out.
    constants : NetworkConstants
        Constants of the communication model.
    bucket_bytes : float
        Gradients are reduced in messages of this size, longer ones over large groups [byte].

    Returns
    -------
    StateExchange
        Of the shape of the parameters. Stage 0 all-reduces gradients over dp x cp (experts: over expert data
        parallelism); stage 1 reduce-scatters them over the shard group and gathers the new weights; stages 2 and 3 have
        scattered theirs with every micro-batch, and stage 3 gathers weights when they are needed
        (:func:`layer_exchange`). Hybrid sharding all-reduces each shard over its replicas.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054; Megatron-core's distributed optimizer and its optimizer instances; PyTorch
    FSDP's hybrid sharding.
    """
    trained = (job.trained_share * np.asarray(count) for count in (parameters.dense, parameters.expert))
    counts = np.stack(np.broadcast_arrays(*trained)).astype(np.float64)
    shape = counts.shape[1:]
    flat = counts.reshape(2, -1)
    placed = PlacedTable(table, tiers, constants).repeated(int(np.prod(shape[1:], dtype=np.int64)))
    axes = ((Axis.DP_CP, Axis.SHARD, Axis.REPLICA), (Axis.EDP, Axis.EXPERT_SHARD, Axis.EXPERT_REPLICA))
    parts = [_states_of(count, group, job, placed, bucket_bytes) for count, group in zip(flat, axes, strict=True)]
    sums = [np.reshape(first + second, shape) for first, second in zip(*parts, strict=True)]
    least = np.reshape(np.minimum(bucket_bytes / np.maximum(flat.sum(axis=0) * reduced_bytes(job), 1.0), 1.0), shape)
    return StateExchange(
        reduce_s=sums[0],
        gather_s=sums[1],
        reduce_bytes=sums[2],
        gather_bytes=sums[3],
        owned_parameters=sums[4],
        last_bucket_share=least,
    )


def _states_of(
    count: Floats, axes: tuple[Axis, Axis, Axis], job: TrainingJob, placed: PlacedTable, bucket_bytes: float
) -> tuple[Floats, ...]:
    """Seconds of reduction and gather, bytes sent in each, parameters owned, for dense or expert parameters."""
    whole, shard, replica = axes
    zero, shards = placed.table.zero, placed.group(shard).size
    gradients, weights = count * reduced_bytes(job), count * job.precision.gather_bytes
    sharded = zero >= 1

    def bucketed(collective: Collective, axis: Axis, message: Floats, rows: Bools) -> Floats:
        size = placed.group(axis).size
        bucket = np.maximum(bucket_bytes, _LEAST_BUCKET_PARAMETERS_PER_RANK * reduced_bytes(job) * size)
        piece = np.minimum(message, bucket)
        pieces: Floats = message / np.maximum(piece, 1e-9)
        return pieces * placed.seconds(collective, axis, piece, rows)

    reduce = bucketed(all_reduce_s, whole, gradients, ~sharded)
    reduce = reduce + bucketed(reduce_scatter_s, shard, gradients, zero == 1)
    reduce = reduce + bucketed(all_reduce_s, replica, gradients / shards, sharded)
    gather = bucketed(all_gather_s, shard, weights, sharded & (zero < 3))
    once, twice = (_leaving(placed.group(axis).size) for axis in (shard, replica))
    reduce_sent = np.where(sharded, np.where(zero == 1, once, 0.0) + 2.0 * twice / shards, 0.0)
    reduce_sent = gradients * np.where(sharded, reduce_sent, 2.0 * _leaving(placed.group(whole).size))
    gather_sent = weights * np.where(sharded & (zero < 3), once, 0.0)
    return reduce, gather, reduce_sent, gather_sent, np.where(sharded, count / shards, count)


def _leaving(size: Ints) -> Floats:
    """Share of a vector that a rank sends in one round of a ring."""
    share: Floats = (size - 1) / size
    return share
