"""Weights, gradients and optimizer states of a rank, under tensor and expert parallelism and ZeRO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.table import Bools, Floats, StrategyTable
from costmodels.workload.op import Op, Split

EXPERT_SPLITS = frozenset({Split.EXPERT_COLUMN, Split.EXPERT_ROW, Split.EXPERT_TENSOR, Split.EXPERT_TOKENS})
_TENSOR_SPLITS = frozenset({Split.COLUMN, Split.ROW, Split.HEADS, Split.TENSOR})
_MOMENTS: Final = 2.0  # of Adam


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalParameters:
    """Parameters of one tensor-, expert- and pipeline-parallel rank, before ZeRO; shape (S,)."""

    dense: Floats
    expert: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StateBytes:
    """Bytes of the model's states on a rank; shape (S,).

    ``host`` is what the host holds for the rank, ``copies`` what exchanges hold beside the states (a whole copy of the
    weights as they are gathered), ``step`` what only the optimizer's step needs, ``passing`` the gradients of one
    micro-batch until they are added to the sum, ``unreduced`` what whole gradients that wait for the last micro-batch
    take beyond ``gradients``, ``fresh`` what of ``gradients`` there is only from a backward pass to the optimizer's
    step, ``left_whole`` gathered weights that stay from a backward pass to the next forward pass.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    host: Floats
    copies: Floats
    step: Floats
    passing: Floats
    unreduced: Floats
    fresh: Floats
    left_whole: Floats


@dataclass(frozen=True, kw_only=True)
class ParameterBytes:
    """Bytes of the states per parameter, before sharding."""

    weights: float
    gradients: float
    optimizer: float


def parameter_bytes(job: TrainingJob) -> ParameterBytes:
    """Bytes per parameter of weights, gradients and optimizer.

    Software whose optimizer works on the model's own parameters (``main_params_in_optimizer`` false: FSDP, autocast)
    holds them in the width of the master copy and makes the working copy when it is needed. Weights that are not
    trained need no copy for an optimizer: only what products read is held.
    """
    precision, software = job.precision, job.software
    gradients = software.gradient_bytes or precision.gradient_bytes
    optimizer = job.optimizer_bytes + software.shard_gradient_bytes
    weights = precision.weight_bytes + precision.extra_weight_bytes
    if software.main_params_in_optimizer:
        optimizer += precision.master_bytes
    else:
        weights = max(precision.weight_bytes, precision.master_bytes)
    frozen = weights if precision.weight_bytes <= precision.gather_bytes else precision.gather_bytes
    if precision.extra_weight_bytes and precision.weight_bytes >= precision.activation_bytes:
        frozen = precision.extra_weight_bytes  # both copies that products read
    if not software.transposed_weights and frozen == weights and precision.weight_bytes < precision.activation_bytes:
        frozen = precision.weight_bytes
    weights = job.trained_share * weights + (1.0 - job.trained_share) * frozen
    return ParameterBytes(weights=weights, gradients=gradients, optimizer=optimizer)


def local_parameters(ops: Sequence[Op], table: StrategyTable) -> LocalParameters:
    """Parameters that a rank holds of a list of ops.

    Parameters
    ----------
    ops : sequence of Op
        Ops with the parameters that they own.
    table : StrategyTable
        Strategies, shape (S,).

    Returns
    -------
    LocalParameters
        Weights split over tp (columns, rows, heads) or over ``ep * etp`` (experts); others are repeated on every rank.
    """
    split = sum(op.parameters for op in ops if op.split in _TENSOR_SPLITS)
    expert = sum(op.parameters for op in ops if op.split in EXPERT_SPLITS)
    whole = sum(op.parameters for op in ops) - split - expert
    return LocalParameters(dense=whole + split / table.tp, expert=expert / (table.ep * table.etp))


def largest_parameters(ops: Sequence[Op], table: StrategyTable) -> Floats:
    """Parameters that a rank holds of the op that has most, before ZeRO; shape (S,). Arguments as above."""
    largest = np.zeros(len(table), dtype=np.float64)
    for op in ops:
        held = local_parameters([op], table)
        largest = np.maximum(largest, held.dense + held.expert)
    return largest


def reduced_bytes(job: TrainingJob) -> float:
    """Bytes per parameter in a gradient reduction; software that accumulates in fewer bytes reduces in fewer."""
    if job.software.reduce_bytes:
        return job.software.reduce_bytes
    own = job.software.gradient_bytes
    return min(own, job.precision.reduce_bytes) if own else job.precision.reduce_bytes


def reduced_once(job: TrainingJob, table: StrategyTable) -> Bools:
    """Where gradients of several micro-batches wait whole for the last one, which reduces their sum; shape (S,).

    References
    ----------
    PyTorch FSDP's ``no_sync`` (torch/distributed/fsdp/_runtime_utils.py, ``_post_backward_hook``) and FSDP2's
    ``set_requires_gradient_sync(False)`` (_fully_shard/_fsdp_param_group.py, ``post_backward``): weights are gathered
    and freed with every micro-batch all the same, gradients are left whole. FSDP2 holds them in the width in which it
    reduces (_fsdp_param.py, ``to_accumulated_grad_if_needed``), FSDP1 in that of the gathered weights. Stages of
    torch.distributed.pipelining (stage.py, ``backward_maybe_with_nosync`` and ``perform_reduce_grad``) do so with every
    backward pass, the last one as well, and reduce behind it.
    """
    several = job.global_batch > table.dp * table.micro_batch
    piped = job.software.pipelines_reduce_once & (table.pp > 1)
    return np.asarray(several & (not job.software.sync_each_batch) | piped)


def _left_whole_bytes(whole: Floats, job: TrainingJob, table: StrategyTable) -> Floats:
    """Weights that ZeRO-3 gathered for a backward pass and that stay for the forward pass behind it, shape (S,).

    References
    ----------
    torch/distributed/pipelining/stage.py, ``backward_maybe_with_nosync``: ``set_reshard_after_backward(False)``.
    """
    stays = job.software.pipelines_reduce_once & (table.pp > 1) & (table.zero == 3)
    return np.where(stays, job.precision.gather_bytes * whole, 0.0)


def _unreduced_bytes(whole: Floats, held: Floats, job: TrainingJob, table: StrategyTable) -> Floats:
    """What whole gradients take beyond those that are held, shape (S,); a rank alone is a shard of one as well."""
    sharded = (table.zero >= 2) | (table.dp * table.cp == 1)
    waiting = reduced_bytes(job) * job.trained_share * whole
    return np.where(reduced_once(job, table) & sharded, np.maximum(waiting - held, 0.0), 0.0)


def _fresh_bytes(held: Floats, job: TrainingJob, table: StrategyTable) -> Floats:
    """What of the gradients that are held there is no tensor of when a step's only backward pass begins, shape (S,).

    Steps of several micro-batches reach their peak beside the gradients of the first one; buckets of plain replicas
    (DistributedDataParallel) stay.

    References
    ----------
    ``torch.optim.Optimizer.zero_grad`` sets gradients to None (PyTorch 2.0 and later). Shards are what reduce-scatters
    put out, on a stream of their own: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_reduce``;
    FSDP1's _runtime_utils.py, ``_post_backward_hook``.
    """
    own = (table.zero >= 2) & (table.zero_group > 1) | (table.dp * table.cp == 1)
    single = (table.pp == 1) & (job.global_batch <= table.dp * table.micro_batch)
    return np.where(job.software.fresh_gradients & own & single, held, 0.0)


def _step_bytes(job: TrainingJob) -> float:
    """Bytes per parameter of the optimizer's shard that exist while it steps alone; none where it steps in the host.

    The largest of the recipe's, of the copy of the gradient with what it is made from, and of Adam's temporaries.
    """
    software = job.software
    temporaries = software.step_moment_copies * job.optimizer_bytes / _MOMENTS
    most = max(job.precision.step_bytes, software.step_gradient_bytes + software.step_flat_bytes, temporaries)
    return (1.0 - software.share_in_host) * most


def _host_gradient_bytes(job: TrainingJob) -> float:
    """Bytes per parameter of the gradient that an optimizer in the host steps with, there.

    It is as wide as the parameter that it updates: DeepSpeed's fp32 gradients of a partition; Megatron-core's
    ``HybridDeviceOptimizer`` copies gradients into page-locked tensors of the type of its fp32 parameters
    (``cpu_copy_map_grad`` in megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py, ``param_update_in_fp32``).
    """
    precision, software = job.precision, job.software
    width = precision.master_bytes or precision.weight_bytes
    return max(software.step_gradient_bytes, width - software.shard_gradient_bytes)


def most_step_bytes(job: TrainingJob, table: StrategyTable) -> Floats:
    """Return what the optimizer's step alone holds at most, where it takes a part of the parameters at a time.

    DeepSpeed's ZeRO-3 steps over ``sub_group_size`` parameters. Arguments as of :func:`state_bytes`.

    Returns
    -------
    ndarray
        Bytes, shape (S,); infinite where a rank's parameters are taken at once.
    """
    most = job.software.step_parameters
    in_parts = (table.zero == 3) & (most > 0.0)
    return np.where(in_parts, _step_bytes(job) * most, np.inf)


def state_bytes(parameters: LocalParameters, job: TrainingJob, table: StrategyTable) -> StateBytes:
    """Bytes of the states of a rank's parameters.

    Parameters
    ----------
    parameters : LocalParameters
        Parameters of the rank, shape (S,).
    job : TrainingJob
        Precision, optimizer and software.
    table : StrategyTable
        Strategies, shape (S,).

    Returns
    -------
    StateBytes
        ZeRO stage 1 shards the optimizer's states, 2 the gradients as well, 3 the weights as well: dense ones over
        the ZeRO group (dp x cp, or ``shard_group`` of it), those of experts over the ranks of that group that hold the
        same experts, ``tp * group / (ep * etp)``. States that are offloaded count as host memory. Buckets beside the
        gradients (``gradient_copy_bytes``) exist where plain replicas are (no ZeRO), and count as gradients.

    References
    ----------
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054,
    section 5; Megatron-core's distributed optimizer shards expert states over expert data parallelism.
    """
    per = parameter_bytes(job)
    dense_group, expert_group = table.zero_group, table.expert_zero_group

    def held(stage: int) -> Floats:
        dense, expert = (np.where(table.zero >= stage, group, 1) for group in (dense_group, expert_group))
        return parameters.dense / dense + parameters.expert / expert

    software, trained = job.software, job.trained_share
    copied = np.where((table.dp * table.cp > 1) & (table.zero == 0), software.gradient_copy_bytes, 0.0)
    gathered = np.where((table.zero >= 1) & (dense_group > 1), software.gather_copy_bytes, 0.0)
    whole = parameters.dense + parameters.expert
    # without shards that are gathered, low-precision weights are copies of 16-bit ones (Megatron-LM's validate_args)
    low = software.main_params_in_optimizer and job.precision.weight_bytes < job.precision.activation_bytes
    beside = np.where(table.zero == 0, job.precision.activation_bytes * trained if low else 0.0, 0.0)
    weights = (per.weights + beside) * held(3)
    gradients = (per.gradients + copied) * trained * held(2)
    optimizer = per.optimizer * trained * held(1)
    nothing = np.zeros_like(optimizer)
    summed = _host_gradient_bytes(job) * trained * held(1)
    on_host = software.share_in_host * (optimizer + summed)
    if software.state_offload:
        on_host = weights + np.maximum(gradients, summed) + optimizer
        weights = gradients = nothing
    return StateBytes(
        weights=weights,
        gradients=gradients,
        optimizer=(1.0 - software.share_in_host) * optimizer,
        host=on_host,
        copies=gathered * whole,
        step=_step_bytes(job) * trained * held(1),
        passing=software.passing_gradient_bytes * trained * whole,
        unreduced=_unreduced_bytes(whole, np.asarray(gradients), job, table),
        fresh=_fresh_bytes(np.asarray(gradients), job, table),
        left_whole=_left_whole_bytes(whole, job, table),
    )
