"""Exchanges of weights and gradients: per micro-batch under ZeRO stages 2 and 3, and once per step."""

from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from costmodels.exchange.placed import Call, Exchanged, Often, PlacedTable
from costmodels.job import TrainingJob
from costmodels.memory.states import LocalParameters, reduced_bytes, reduced_once
from costmodels.mesh import Axis
from costmodels.table import Bools, Floats

_LEAST_BUCKET_PARAMETERS_PER_RANK: Final = 1e6  # Megatron-LM grows its gradient buckets with the data-parallel group


@dataclass(frozen=True, kw_only=True, eq=False)
class StateExchange:
    """Exchanges of gradients and weights once per step; arrays of the shape of the parameters.

    ``reduce_load`` and ``gather_load``, with a first axis of T - 1 outer tiers, are the shares of a rank's part of each
    tier that are in use meanwhile. ``owned_parameters`` are those that the rank's optimizer updates;
    ``last_bucket_share`` the part of a reduction (gather) that is its last (first) bucket. ``calls`` have flat rows;
    those of the gather count as forward ones.
    """

    reduce_s: Floats
    gather_s: Floats
    reduce_bytes: Floats
    gather_bytes: Floats
    reduce_load: Floats
    gather_load: Floats
    owned_parameters: Floats
    last_bucket_share: Floats
    calls: tuple[Call, ...]


def weight_exchange(parameters: LocalParameters, job: TrainingJob, placed: PlacedTable, products: int = 1) -> Exchanged:
    """ZeRO-3 gathers the weights of a part forward and backward; stages 2 and 3 scatter (or all-reduce) its gradients.

    Gradients that wait for the last micro-batch (:func:`costmodels.memory.states.reduced_once`) are no part of it.

    Parameters
    ----------
    parameters : LocalParameters
        Of the part on a rank before ZeRO, shape (S,).
    job : TrainingJob
        Precision, software.
    placed : PlacedTable
        S strategies on their hierarchy.
    products : int
        Products of the part, whose weights ``Software.gather_parameters`` may gather apart.

    Returns
    -------
    Exchanged
    """
    zero = placed.table.zero
    each = (zero >= 2) & ~reduced_once(job, placed.table)
    whole = (zero == 2) & job.software.whole_reductions
    reduce_bytes = reduced_bytes(job)
    calls: list[Call] = []
    for count, axis in ((parameters.dense, Axis.SHARD), (parameters.expert, Axis.EXPERT_SHARD)):
        weights, gradients = count * job.precision.gather_bytes, count * (job.trained_share * reduce_bytes)
        pieces = _pieces(count, job, products)
        calls += [
            placed.call("all_gather", axis, weights / pieces, Often(forward=pieces, backward=pieces), zero == 3),
            placed.call("reduce_scatter", axis, gradients, Often(forward=0.0, backward=1.0), each & ~whole),
            placed.call("all_reduce", axis, gradients, Often(forward=0.0, backward=1.0), each & whole),
        ]
    return placed.add_up(calls)


def _pieces(parameters: Floats, job: TrainingJob, products: int) -> Floats:
    """Messages in which each strategy gathers the weights of a part."""
    at_once = job.software.gather_parameters
    if not at_once or products < 1:
        return np.ones_like(parameters)
    return np.clip(parameters / at_once, 1.0, products)


def state_exchange(
    parameters: LocalParameters,
    job: TrainingJob,
    placed: PlacedTable,
    bucket_bytes: float,
    tensors: Floats | None = None,
) -> StateExchange:
    """Price the gradient reduction and the weight gather at the end of a step.

    Parameters
    ----------
    parameters : LocalParameters
        Parameters of a rank before ZeRO, shape (S,) or (S, N) for N stages of the same strategy.
    job : TrainingJob
        Precision and software.
    placed : PlacedTable
        S strategies on their hierarchy.
    bucket_bytes : float
        Gradients are reduced in messages of this size, longer ones over large groups [byte].
    tensors : array, optional
        Tensors on a rank, of the same shape, which owners may send (``broadcast_weights``); else weights are gathered.

    Returns
    -------
    StateExchange
        Of the shape of the parameters. Stage 0 all-reduces gradients over dp x cp (experts: over expert data
        parallelism); stage 1 reduce-scatters them over the shard group and gathers the new weights; stages 2 and 3 have
        scattered theirs with every micro-batch, unless these wait for the last one, and stage 3 gathers weights when
        they are needed
        (:func:`layer_exchange`). Hybrid sharding all-reduces each shard over its replicas. Software with
        ``whole_reductions`` all-reduces under stages 1 and 2 as well.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054; Megatron-core's distributed optimizer and its optimizer instances; PyTorch
    FSDP's hybrid sharding.
    """
    counts = _trained(parameters, job)
    shape, flat = counts.shape[1:], counts.reshape(2, -1)
    placed = placed.repeated(int(np.prod(shape[1:], dtype=np.int64)))
    axes = ((Axis.DP_CP, Axis.SHARD, Axis.REPLICA), (Axis.EDP, Axis.EXPERT_SHARD, Axis.EXPERT_REPLICA))
    parts = 2 if flat[1].any() else 1  # no group is placed for experts that are not there
    held = list(zip(flat, axes, strict=True))[:parts]
    owners = None if tensors is None or not job.software.broadcast_weights else np.asarray(tensors).reshape(-1)
    calls = [_state_calls(count, group, job, placed, bucket_bytes, owners) for count, group in held]
    reduce, gather = (placed.add_up(list(chain.from_iterable(each))) for each in zip(*calls, strict=True))
    sharded = placed.table.zero >= 1
    owned = sum(count / np.where(sharded, placed.group(group[1]).size, 1) for count, group in held)
    least = np.minimum(bucket_bytes / np.maximum(flat.sum(axis=0) * reduced_bytes(job), 1.0), 1.0)
    return StateExchange(
        reduce_s=np.reshape(reduce.backward_s, shape),
        gather_s=np.reshape(gather.forward_s, shape),
        reduce_bytes=np.reshape(reduce.sent_bytes, shape),
        gather_bytes=np.reshape(gather.sent_bytes, shape),
        reduce_load=np.reshape(reduce.load(placed.tiers), (-1, *shape)),
        gather_load=np.reshape(gather.load(placed.tiers), (-1, *shape)),
        owned_parameters=np.reshape(owned, shape),
        last_bucket_share=np.reshape(least, shape),
        calls=(*reduce.calls, *gather.calls),
    )


def _trained(parameters: LocalParameters, job: TrainingJob) -> Floats:
    """Dense and expert parameters that are trained, shape (2, ...) with that of the parameters."""
    trained = (job.trained_share * np.asarray(count) for count in (parameters.dense, parameters.expert))
    return np.stack(np.broadcast_arrays(*trained)).astype(np.float64)


def _state_calls(
    count: Floats,
    axes: tuple[Axis, Axis, Axis],
    job: TrainingJob,
    placed: PlacedTable,
    bucket_bytes: float,
    owners: Floats | None,
) -> tuple[list[Call], list[Call]]:
    """Calls of the gradient reduction and of the weight gather, for dense or expert parameters.

    With ``owners``, tensors that belong to one rank each, every rank that owns some broadcasts them after the others.
    """
    whole, shard, replica = axes
    zero, shards = placed.table.zero, placed.group(shard).size
    gradients, weights = count * reduced_bytes(job), count * job.precision.gather_bytes
    sharded = zero >= 1
    late = reduced_once(job, placed.table) & (zero >= 2)
    whole_rows = ((zero == 1) | (late & (zero == 2))) & job.software.whole_reductions
    parts = sharded & ~whole_rows

    def bucketed(collective: str, axis: Axis, message: Floats, rows: Bools) -> Call:
        size = placed.group(axis).size
        bucket = np.maximum(bucket_bytes, _LEAST_BUCKET_PARAMETERS_PER_RANK * reduced_bytes(job) * size)
        piece = np.minimum(message, bucket)
        pieces: Floats = message / np.maximum(piece, 1e-9)
        gathers = collective == "all_gather"
        often = Often(forward=pieces if gathers else 0.0, backward=0.0 if gathers else pieces)
        return placed.call(collective, axis, piece, often, rows)

    reduce = [
        bucketed("all_reduce", whole, gradients, ~parts),
        bucketed("reduce_scatter", shard, gradients, parts & ((zero == 1) | late)),
        bucketed("all_reduce", replica, gradients / shards, parts),
    ]
    kept = sharded & (zero < 3)
    if owners is None:
        return reduce, [bucketed("all_gather", shard, weights, kept)]
    senders = np.maximum(np.minimum(owners, shards), 1.0)
    return reduce, [placed.call("broadcast", shard, weights / senders, Often(forward=senders, backward=0.0), kept)]
