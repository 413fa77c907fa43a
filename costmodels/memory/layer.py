"""Memory of one layer, and of the parts at the ends of the model, for many strategies at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Granularity
from costmodels.memory.activations import (
    dummy_gradient_bytes,
    input_bytes,
    kept_bytes,
    listed_bytes,
    scattered_bytes,
    working_bytes,
)
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.offloaded import away_bytes
from costmodels.memory.states import (
    LocalParameters,
    largest_parameters,
    local_parameters,
    reduced_bytes,
    state_bytes,
)
from costmodels.memory.tokens import TokenShares, sample_shares, token_shares
from costmodels.table import Floats, StrategyTable
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops
from costmodels.workload.model import LayerKind, ModelSpec, OpaqueLayer
from costmodels.workload.op import Op, Split

_FP32_BYTES = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMemory:
    """Bytes of one layer (or end of the model) on a rank; every array has shape (S,).

    Attributes
    ----------
    weights, gradients, optimizer : ndarray
        States on the device.
    host : ndarray
        States that the host holds for the rank (offloaded optimizer).
    kept : ndarray
        Activations kept for backward, per micro-batch in flight.
    working : ndarray
        What comes and goes while the layer runs: gradients of activations, tensors computed again, logits.
    gathered : ndarray
        Whole weights and gradients of the layer while it runs under ZeRO-3; not in ``working``.
    whole : ndarray
        All weights of the part as ZeRO-3 gathers them; 0 where it does not.
    once : ndarray
        Held once per stage, however many such layers it has.
    copies : ndarray
        What exchanges of the states hold beside them.
    step : ndarray
        What only the optimizer's step needs, when no activations are held.
    passing : ndarray
        Gradients of one micro-batch that stand until its backward pass is done; the token table's are in ``working``.
        What a vision tower needs beside them in its own pass.
    unreduced : ndarray
        What whole gradients that wait for the last micro-batch take beyond ``gradients``, until the optimizer steps.
    fresh : ndarray
        What of ``gradients`` there is only from the step's backward pass on.
    left_whole : ndarray
        Gathered weights that stay from a backward pass to the next forward pass.
    away : ndarray
        What waits in host memory, per micro-batch in flight (``offload_modules``); not in ``kept``.
    late : ndarray
        Whole inputs of reduce-scatters over tp, per micro-batch: free for reuse only once the device has sent them.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    host: Floats
    kept: Floats
    working: Floats
    gathered: Floats
    whole: Floats
    once: Floats
    copies: Floats
    step: Floats
    passing: Floats
    unreduced: Floats
    fresh: Floats
    left_whole: Floats
    away: Floats
    late: Floats

    @property
    def states(self) -> Floats:
        """Weights, gradients and optimizer states on the device, with whole gradients that wait [B]."""
        return self.weights + self.gradients + self.optimizer + self.unreduced


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """What every part of a model is priced under: job, strategies, constants."""

    model: ModelSpec
    job: TrainingJob
    table: StrategyTable
    constants: MemoryConstants

    def ops(self, build: Callable[[bool], Sequence[Op]]) -> Sequence[Op]:
        """Ops that ``build`` makes for fused kernels (true) or separate ones, norms as the software has them."""
        software = self.job.software
        if software.fused_kernels or software.compiled:
            return build(True)
        separate = build(False)
        if not software.fused_norms:
            return separate
        pairs = zip(build(True), separate, strict=True)
        return [fused if fused.module == "layernorm" else plain for fused, plain in pairs]


def layer_memory(
    kind: LayerKind | OpaqueLayer,
    model: ModelSpec,
    job: TrainingJob,
    table: StrategyTable,
    constants: MemoryConstants | None = None,
) -> LayerMemory:
    """Memory of one layer of a kind under every strategy.

    Parameters
    ----------
    kind : LayerKind or OpaqueLayer
        The layer.
    model : ModelSpec
        The model that it belongs to.
    job : TrainingJob
        Sequence length, precision, software.
    table : StrategyTable
        Strategies, shape (S,).
    constants : MemoryConstants, optional
        Default: :func:`costmodels.memory.constants.default_memory`.

    Returns
    -------
    LayerMemory
        Arrays of shape (S,).
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = scope.ops(partial(_layer_ops, kind, scope))
    parameters = local_parameters(ops, table)
    if isinstance(kind, OpaqueLayer):
        shares = sample_shares(kind, table)
        kept_input = kind.output_bytes_per_sample * shares.tokens
        return _block(scope, ops, parameters, _Activations(shares, kept_input, 2.0 * kept_input))
    shares = token_shares(job, table)
    kept_input = input_bytes(model.residual, job, shares)
    gather_buffer = np.where(shares.sequence > 1, model.hidden * job.precision.activation_bytes, 0.0) * shares.tokens
    # beside the widest op: the gradient of the residual stream, and the buffer that gathers over tp, which stays
    working = working_bytes(ops, job, shares) + kept_input + gather_buffer
    memory = _block(scope, ops, parameters, _Activations(shares, kept_input, working))
    memory = _with_modules_away(scope, ops, memory)
    if job.software.late_frees:
        memory = replace(memory, late=scattered_bytes(ops, job, shares))
    return replace(memory, once=dummy_gradient_bytes(ops, job, shares)) if job.software.dummy_gradients else memory


def _with_modules_away(scope: Scope, ops: Sequence[Op], memory: LayerMemory) -> LayerMemory:
    """A layer of which modules keep their activations in host memory; as it is where the software has none."""
    if not scope.job.software.offload_modules:
        return memory
    away = scope.constants.activation_scale * away_bytes(ops, scope.job, scope.table)
    return replace(memory, kept=memory.kept - away, away=away)


def _layer_ops(kind: LayerKind | OpaqueLayer, scope: Scope, fused: bool) -> Sequence[Op]:
    software = scope.job.software
    return layer_ops(
        kind,
        scope.model,
        flash_attention=software.flash_attention,
        dropout=software.dropout,
        fused_kernels=fused,
        softmax=software.softmax,
    )


@dataclass(frozen=True, eq=False)
class _Activations:
    """Token shares, the layer's input and the gradients around its widest op."""

    shares: TokenShares
    kept_input: Floats
    working: Floats


def _block(scope: Scope, ops: Sequence[Op], parameters: LocalParameters, what: _Activations) -> LayerMemory:
    """Memory of a layer that may be recomputed."""
    table, job = scope.table, scope.job
    everything = kept_bytes(ops, job, what.shares)
    sizes = []
    for recompute in table.recomputes:
        if recompute.granularity is Granularity.FULL:
            sizes.append(np.minimum(what.kept_input, everything))
        elif recompute.per_op:
            sizes.append(np.minimum(what.kept_input + listed_bytes(ops, job, what.shares, table.ep > 1), everything))
        elif recompute.granularity is Granularity.SELECTIVE:
            sizes.append(kept_bytes(ops, job, what.shares, recompute.modules))
        else:
            sizes.append(everything)
    kept = np.stack(sizes)[table.recompute, np.arange(len(table))]
    return _with_states(scope, ops, parameters, kept, what.working + everything - kept)


def _with_states(
    scope: Scope, ops: Sequence[Op], parameters: LocalParameters, kept: Floats, working: Floats
) -> LayerMemory:
    """Activations with the states of ``parameters``, which ``ops`` own."""
    states = state_bytes(parameters, scope.job, scope.table)
    precision = scope.job.precision
    # the whole gradient of what runs, and its copy where it is reduced in another width
    reduced = reduced_bytes(scope.job)
    copy = reduced if reduced != precision.activation_bytes else 0.0
    gathered = _gathered(scope, ops, parameters, (precision.activation_bytes + copy) * scope.job.trained_share)
    sharded = (scope.table.zero >= 3) & (scope.table.zero_group > 1)
    return LayerMemory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        host=states.host,
        kept=scope.constants.activation_scale * kept,
        working=scope.constants.activation_scale * working,
        gathered=np.where(sharded, gathered, 0.0),
        whole=np.where(sharded, precision.gather_bytes * (parameters.dense + parameters.expert), 0.0),
        once=np.zeros_like(kept),
        copies=states.copies,
        step=states.step,
        passing=states.passing,
        unreduced=states.unreduced,
        fresh=states.fresh,
        left_whole=states.left_whole,
        away=np.zeros_like(kept),
        late=np.zeros_like(kept),
    )


def _gathered(scope: Scope, ops: Sequence[Op], parameters: LocalParameters, gradient_bytes: float) -> Floats:
    """Whole weights at hand under ZeRO-3 and the gradient of what runs: by layer, or up to a number of parameters."""
    layer = parameters.dense + parameters.expert
    weights, running = scope.constants.gathered_weight_layers * layer, layer
    if scope.job.software.live_parameters:
        running = largest_parameters(ops, scope.table)
        weights = np.minimum(weights, np.maximum(scope.job.software.live_parameters, running))
    return np.asarray(weights * scope.job.precision.gather_bytes + running * gradient_bytes)


def embedding_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of the input embedding; ``working`` is the table's dense gradient in activation precision.

    Parameters and result are as in :func:`layer_memory`; a model without a vocabulary has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = scope.ops(lambda fused: embedding_ops(model, dropout=job.software.dropout, fused_kernels=fused))
    trained = job.trained_share == 1.0  # adapters leave the table as it is
    gradient = padded_rows(model, table) * model.hidden * job.precision.activation_bytes * trained
    kept = kept_bytes(ops, job, token_shares(job, table))
    memory = _with_states(scope, ops, _embedding_parameters(scope, ops), kept, gradient)
    return replace(memory, passing=np.zeros_like(gradient))


def ops_memory(
    ops: Sequence[Op], model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants
) -> LayerMemory:
    """Memory of ops that are never recomputed, such as the ends of a tower, with the states of what they own.

    Parameters
    ----------
    ops : sequence of Op
        The ops.
    model, job, table, constants
        As in :func:`layer_memory`.

    Returns
    -------
    LayerMemory
        Arrays of shape (S,).
    """
    scope = Scope(model=model, job=job, table=table, constants=constants)
    shares = token_shares(job, table)
    parameters = local_parameters(ops, table)
    return _with_states(scope, ops, parameters, kept_bytes(ops, job, shares), working_bytes(ops, job, shares))


def table_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of a further copy of the token table, which keeps no activations.

    Parameters and result are as in :func:`layer_memory`.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = [op for op in embedding_ops(model) if op.name == "embedding"]
    nothing = np.zeros(len(table), dtype=np.float64)
    return _with_states(scope, ops, _embedding_parameters(scope, ops), nothing, nothing)


def _embedding_parameters(scope: Scope, ops: Sequence[Op]) -> LocalParameters:
    """Parameters of the input embedding with the padding of the vocabulary."""
    model, table = scope.model, scope.table
    parameters = local_parameters(ops, table)
    padding = (padded_rows(model, table) - model.vocab / table.tp) * model.hidden
    return LocalParameters(dense=parameters.dense + padding, expert=parameters.expert)


def head_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of the final norm, the output matrix and the loss; a tied output matrix counts nothing here.

    Parameters and result are as in :func:`layer_memory`; a model without a vocabulary has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    software = job.software
    kernels = partial(head_ops, model, fused_loss=software.fused_loss, linear_loss=software.linear_loss)
    ops = scope.ops(lambda fused: kernels(fused_kernels=fused))
    shares = token_shares(job, table)
    parameters = local_parameters(ops, table)
    if model.vocab and not model.tied_embeddings:
        extra = (padded_rows(model, table) - model.vocab / table.tp) * model.hidden
        parameters = LocalParameters(dense=parameters.dense + extra, expert=parameters.expert)
    memory = _with_states(scope, ops, parameters, _head_kept(scope, ops, shares), _loss_working(scope, shares))
    return replace(memory, whole=table_memory(model, job, table, constants).whole) if model.tied_embeddings else memory


def mtp_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of one multi-token-prediction layer with its logits, without the embedding and output matrix it shares.

    Parameters and result are as in :func:`layer_memory`; a model without such layers has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = scope.ops(partial(_mtp_ops, scope))
    shares = token_shares(job, table)
    head = [op for op in ops if op.module == "head"]
    body = [op for op in ops if op.module != "head"]
    kept_input = input_bytes(2.0 * model.hidden, job, shares)
    what = _Activations(shares, kept_input, working_bytes(body, job, shares))
    memory = _with_modules_away(scope, body, _block(scope, body, local_parameters(ops, table), what))
    if not head:
        return memory
    scale = scope.constants.activation_scale
    return replace(
        memory,
        kept=memory.kept + scale * _head_kept(scope, head, shares),
        working=np.maximum(memory.working, scale * _loss_working(scope, shares)),
    )


def padded_rows(model: ModelSpec, table: StrategyTable) -> Floats:
    """Rows of the padded embedding table (columns of the logits) on one tp rank, shape (S,)."""
    multiple = max(1, model.vocab_multiple) * table.tp
    return np.ceil(model.vocab / multiple) * max(1, model.vocab_multiple)


def logits_bytes(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> tuple[Floats, Floats]:
    """Size of the logits of one micro-batch on a rank of the stage with the head.

    Parameters
    ----------
    model : ModelSpec
        The model.
    job : TrainingJob
        Sequence length, precision, software.
    table : StrategyTable
        Strategies, shape (S,).
    constants : MemoryConstants, optional
        Default: :func:`costmodels.memory.constants.default_memory`.

    Returns
    -------
    tuple of ndarray
        One tensor of them in the precision of activations, and all that the loss holds of them at its peak: with
        their fp32 copy, softmax and gradient; of a loss that makes them part by part, those of a part. Shapes (S,), 0
        for a model without a vocabulary [B].
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    logits = _logits_at_once(scope, token_shares(job, table)) if model.vocab else np.zeros(len(table))
    return logits * job.precision.activation_bytes, logits * _loss_bytes_at_peak(scope)


def _mtp_ops(scope: Scope, fused: bool) -> Sequence[Op]:
    software = scope.job.software
    return mtp_ops(
        scope.model,
        flash_attention=software.flash_attention,
        fused_loss=software.fused_loss,
        linear_loss=software.linear_loss,
        fused_kernels=fused,
    )


def _loss_columns(scope: Scope) -> Floats:
    """Columns of the logits that the loss of one rank works on, shape (S,)."""
    rows = padded_rows(scope.model, scope.table)
    return rows if scope.job.software.parallel_loss else rows * scope.table.tp


def _logits_at_once(scope: Scope, shares: TokenShares) -> Floats:
    """Logits of one rank that exist at the same time, in elements, shape (S,)."""
    columns, linear = _loss_columns(scope), scope.job.software.linear_loss
    if linear is None:
        return columns * shares.tokens
    return linear.part_of_logits(shares.tokens, columns, scope.model.hidden)


def _head_kept(scope: Scope, ops: Sequence[Op], shares: TokenShares) -> Floats:
    """Inputs of norm and logits, and what the loss keeps of every column that it works on."""
    inputs = kept_bytes([op for op in ops if op.name != "loss"], scope.job, shares)
    return inputs + _loss_kept_per_logit(scope) * _loss_columns(scope) * shares.tokens


def _loss_kept_per_logit(scope: Scope) -> float:
    """Softmax in fp32; a fused loss keeps the logits' gradient in activation precision, one in parts nothing."""
    if scope.job.software.linear_loss is not None:
        return 0.0
    return scope.job.precision.activation_bytes if scope.job.software.fused_loss else _FP32_BYTES


def _loss_bytes_at_peak(scope: Scope) -> Floats:
    """Bytes per logit while the loss runs: the logits and what the loss makes of them; shape (S,)."""
    software, tp = scope.job.software, scope.table.tp
    if software.linear_loss is not None and not software.linear_loss.own_kernels:
        return np.full(tp.shape, software.linear_loss.logit_bytes)
    if software.fused_loss:
        return np.full(tp.shape, scope.constants.fused_loss_bytes_per_logit)
    whole = software.loss_bytes_per_logit or scope.constants.loss_bytes_per_logit
    return np.where(tp > 1, software.split_loss_bytes_per_logit or whole, whole)


def _loss_working(scope: Scope, shares: TokenShares) -> Floats:
    """Logits and their copies beyond what the loss keeps, and the gathered input of the output matrix."""
    constants, model, software = scope.constants, scope.model, scope.job.software
    if not model.vocab:
        return np.zeros_like(shares.tokens)
    width = scope.job.precision.activation_bytes
    logits = np.maximum(0.0, _loss_bytes_at_peak(scope) - _loss_kept_per_logit(scope)) * _logits_at_once(scope, shares)
    if not (software.parallel_loss or software.loss_bytes_per_logit):  # else the bytes are those of the whole loss
        columns = _loss_columns(scope)
        logits = logits + np.where(shares.tp > 1, constants.gathered_logit_bytes * columns, 0.0) * shares.tokens
    gathered = np.where(shares.sequence > 1, model.hidden * width, 0.0)
    residual = model.hidden * width * shares.share(Split.SEQUENCE)
    return logits + (gathered + residual) * shares.tokens + _in_parts_bytes(scope, shares)


def _in_parts_bytes(scope: Scope, shares: TokenShares) -> Floats:
    """What a loss in parts holds of the gradients of hidden states and output matrix while it runs, shape (S,)."""
    linear, model = scope.job.software.linear_loss, scope.model
    if linear is None:
        return np.zeros_like(shares.tokens)
    matrix = padded_rows(model, scope.table) * model.hidden if scope.job.trained_share == 1.0 else 0.0
    return model.hidden * linear.hidden_bytes * shares.tokens + linear.weight_bytes * matrix
