"""Memory of one layer, and of the parts at the ends of the model, for many strategies at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Granularity
from costmodels.memory.activations import input_bytes, kept_bytes, working_bytes
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.states import LocalParameters, local_parameters, state_bytes
from costmodels.memory.tokens import TokenShares, sample_shares, token_shares
from costmodels.table import Floats, StrategyTable
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops
from costmodels.workload.model import Attention, AttentionKind, LayerKind, ModelSpec, OpaqueLayer
from costmodels.workload.op import Op, Split


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
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    host: Floats
    kept: Floats
    working: Floats
    gathered: Floats

    @property
    def states(self) -> Floats:
        """Weights, gradients and optimizer states on the device [B]."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
    """What every part of a model is priced under: job, strategies, constants."""

    model: ModelSpec
    job: TrainingJob
    table: StrategyTable
    constants: MemoryConstants

    @property
    def kernels(self) -> dict[str, bool]:
        """Options of the op lists."""
        software = self.job.software
        return {
            "flash_attention": software.flash_attention,
            "fused_kernels": software.fused_kernels or software.compiled,
        }


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
    ops = layer_ops(kind, model, dropout=job.software.dropout, **scope.kernels)
    parameters = local_parameters(ops, table)
    if isinstance(kind, OpaqueLayer):
        shares = sample_shares(kind, table)
        kept_input = kind.output_bytes_per_sample * shares.tokens
        return _block(scope, ops, parameters, _Activations(shares, kept_input, 2.0 * kept_input))
    shares = token_shares(job, table)
    parameters = _with_repeated_keys(kind, model, parameters, table)
    kept_input = input_bytes(model.hidden, job, shares)
    working = working_bytes(ops, job, shares) + kept_input  # and the gradient of the residual stream
    return _block(scope, ops, parameters, _Activations(shares, kept_input, working))


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
        elif recompute.granularity is Granularity.SELECTIVE:
            sizes.append(kept_bytes(ops, job, what.shares, recompute.modules))
        else:
            sizes.append(everything)
    kept = sizes[0] if len(sizes) == 1 else np.choose(table.recompute, sizes)
    return _with_states(scope, parameters, kept, what.working + everything - kept)


def _with_states(scope: Scope, parameters: LocalParameters, kept: Floats, working: Floats) -> LayerMemory:
    """Activations with the states of ``parameters``."""
    states = state_bytes(parameters, scope.job, scope.table)
    constants = scope.constants
    whole = parameters.dense + parameters.expert
    gathered = whole * (
        scope.job.precision.weight_bytes * constants.gathered_weight_layers + constants.gathered_gradient_bytes
    )
    sharded = (scope.table.zero >= 3) & (scope.table.zero_group > 1)
    return LayerMemory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        host=states.host,
        kept=kept,
        working=working,
        gathered=np.where(sharded, gathered, 0.0),
    )


def _with_repeated_keys(
    kind: LayerKind, model: ModelSpec, parameters: LocalParameters, table: StrategyTable
) -> LocalParameters:
    """Add the key and value weights that tp ranks repeat when there are fewer key heads than ranks."""
    mixer = kind.mixer
    if not isinstance(mixer, Attention) or mixer.kind is not AttentionKind.GROUPED:
        return parameters
    columns = mixer.kv_heads * (mixer.qk_dim + mixer.v_dim)
    repeats = np.maximum(1.0, table.tp / mixer.kv_heads) - 1.0
    return LocalParameters(
        dense=parameters.dense + model.hidden * columns * repeats / table.tp, expert=parameters.expert
    )


def embedding_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of the input embedding; ``working`` is the table's dense gradient in activation precision.

    Parameters and result are as in :func:`layer_memory`; a model without a vocabulary has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = embedding_ops(model, dropout=job.software.dropout, **scope.kernels)
    shares = token_shares(job, table)
    parameters = local_parameters(ops, table)
    extra = (padded_rows(model, table) - model.vocab / table.tp) * model.hidden
    parameters = LocalParameters(dense=parameters.dense + extra, expert=parameters.expert)
    gradient = padded_rows(model, table) * model.hidden * job.precision.activation_bytes
    return _with_states(scope, parameters, kept_bytes(ops, job, shares), gradient)


def head_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of the final norm, the output matrix and the loss; a tied output matrix counts nothing here.

    Parameters and result are as in :func:`layer_memory`; a model without a vocabulary has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = head_ops(model, fused_loss=job.software.fused_loss, fused_kernels=scope.kernels["fused_kernels"])
    shares = token_shares(job, table)
    parameters = local_parameters(ops, table)
    if model.vocab and not model.tied_embeddings:
        extra = (padded_rows(model, table) - model.vocab / table.tp) * model.hidden
        parameters = LocalParameters(dense=parameters.dense + extra, expert=parameters.expert)
    return _with_states(scope, parameters, _head_kept(scope, ops, shares), _loss_working(scope, shares))


def mtp_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> LayerMemory:
    """Memory of one multi-token-prediction layer with its logits, without the embedding and output matrix it shares.

    Parameters and result are as in :func:`layer_memory`; a model without such layers has none.
    """
    scope = Scope(model=model, job=job, table=table, constants=constants or default_memory())
    ops = mtp_ops(model, fused_loss=job.software.fused_loss, **scope.kernels)
    shares = token_shares(job, table)
    head = [op for op in ops if op.module == "head"]
    body = [op for op in ops if op.module != "head"]
    kept_input = input_bytes(2.0 * model.hidden, job, shares)
    what = _Activations(shares, kept_input, working_bytes(body, job, shares))
    memory = _block(scope, body, local_parameters(ops, table), what)
    if not head:
        return memory
    return LayerMemory(
        weights=memory.weights,
        gradients=memory.gradients,
        optimizer=memory.optimizer,
        host=memory.host,
        kept=memory.kept + _head_kept(scope, head, shares),
        working=np.maximum(memory.working, _loss_working(scope, shares)),
        gathered=memory.gathered,
    )


def padded_rows(model: ModelSpec, table: StrategyTable) -> Floats:
    """Rows of the padded embedding table (columns of the logits) on one tp rank, shape (S,)."""
    multiple = max(1, model.vocab_multiple) * table.tp
    return np.ceil(model.vocab / multiple) * max(1, model.vocab_multiple)


def _head_kept(scope: Scope, ops: Sequence[Op], shares: TokenShares) -> Floats:
    """Inputs of norm and logits, and what the loss keeps, with the padding of the vocabulary."""
    model, table = scope.model, scope.table
    inputs = kept_bytes([op for op in ops if op.name != "loss"], scope.job, shares)
    loss = kept_bytes([op for op in ops if op.name == "loss"], scope.job, shares)
    return inputs + (loss * padded_rows(model, table) * table.tp / model.vocab if model.vocab else loss)


def _loss_working(scope: Scope, shares: TokenShares) -> Floats:
    """Logits and their copies beyond what the loss keeps, and the gathered input of the output matrix."""
    constants, model = scope.constants, scope.model
    if not model.vocab:
        return np.zeros_like(shares.tokens)
    fused = scope.job.software.fused_loss
    width = scope.job.precision.activation_bytes
    at_peak = constants.fused_loss_bytes_per_logit if fused else constants.loss_bytes_per_logit
    kept = width if fused else 4.0
    per_token = padded_rows(model, scope.table) * max(0.0, at_peak - kept)
    gathered = np.where(shares.sequence > 1, model.hidden * width, 0.0)
    residual = model.hidden * width * shares.share(Split.SEQUENCE)
    return (per_token + gathered + residual) * shares.tokens
