"""Ops outside the layers: embedding, final norm, head and loss, and multi-token prediction."""

from dataclasses import replace
from functools import lru_cache

from costmodels.workload.block import norm_op, whole_product
from costmodels.workload.kernels import FP32_BYTES, MASK_ELEMENTS, Kernels
from costmodels.workload.linear_loss import LinearLoss
from costmodels.workload.model import LayerKind, ModelSpec
from costmodels.workload.op import Op, OpKind, Split
from costmodels.workload.streams import end_ops, spread_op

_TOKEN_ID_BYTES = 8.0
# Two-byte elements read and written per logit. Separate kernels: cast to fp32 (1 + 2), maximum (2), subtract (2 + 2),
# exponential (2 + 2), sum (2), division (2 + 2). Fused: statistics (1), gradient in place (1 + 1).
_LOSS_TRAFFIC = 19.0
_FUSED_LOSS_TRAFFIC = 3.0
# Backward over forward. Separate kernels: the kept softmax times the gradient of the loss (2 + 2), cast (2 + 1). Fused:
# the gradient is there already and is scaled (1 + 1). Megatron-core tensor_parallel/cross_entropy.py; Transformer
# Engine triton/cross_entropy.py.
_LOSS_BACKWARD = 7.0 / 19.0
_FUSED_LOSS_BACKWARD = 2.0 / 3.0
LOGITS = "logits"
"""Name of the product with the output matrix."""
_KERNEL_COLUMNS = 8  # columns that kernels handle together: 16 bytes of 16-bit elements


def padded_vocab(model: ModelSpec, tp: int) -> int:
    """Return the vocabulary as training frameworks pad it: up to a multiple of ``vocab_multiple * tp``.

    Parameters
    ----------
    model : ModelSpec
        The model; 0 when it has no vocabulary.
    tp : int
        Tensor-parallel degree.

    Returns
    -------
    int
        Rows of the embedding and columns of the logits, all tp ranks together.
    """
    multiple = model.vocab_multiple * tp
    return -(-model.vocab // multiple) * multiple


@lru_cache(maxsize=64)
def embedding_ops(
    model: ModelSpec, *, vocab: int = 0, flash_attention: bool = True, dropout: bool = False, fused_kernels: bool = True
) -> tuple[Op, ...]:
    """Return the ops of the input embedding; none for a model of opaque layers.

    The table is owned by the lookup, whose rows divide over tp (``Split.COLUMN``). Learned positions and an embedding
    norm are repeated on every tp rank.

    Parameters
    ----------
    model : ModelSpec
        The model.
    vocab : int
        Rows of the table, such as :func:`padded_vocab`; 0: the tokenizer's size.
    flash_attention, dropout, fused_kernels : bool
        As in :func:`costmodels.workload.layers.layer_ops`.

    Returns
    -------
    tuple of Op
        In forward order.
    """
    if not model.vocab:
        return ()
    kernels = Kernels(flash_attention=flash_attention, dropout=dropout, fused=fused_kernels)
    ops = [
        Op(
            name="embedding",
            module="embedding",
            kind=OpKind.MEMORY,
            split=Split.COLUMN,
            traffic_elements_per_token=2.0 * model.hidden,
            saved_bytes_per_token=_TOKEN_ID_BYTES,
            saved_split=Split.REPLICATED,
            parameters=(vocab or model.vocab) * model.hidden,
        )
    ]
    if model.learned_positions or dropout:
        ops.append(
            Op(
                name="positions",
                module="embedding",
                kind=OpKind.MEMORY,
                split=Split.SEQUENCE,
                traffic_elements_per_token=(3.0 + (2.0 + MASK_ELEMENTS if dropout else 0.0)) * model.hidden,
                saved_bytes_per_token=float(model.hidden) if dropout else 0.0,
                parameters=model.learned_positions * model.hidden,
            )
        )
    if model.embedding_norm_parameters:
        ops.append(norm_op("embedding_norm", model.hidden, model.embedding_norm_parameters, kernels))
    return (*ops, *_side_embedding_ops(model, vocab or model.vocab, kernels), *spread_op(model))


def _side_embedding_ops(model: ModelSpec, vocab: int, kernels: Kernels) -> tuple[Op, ...]:
    """One table for the layers' own embeddings, and a projection of the token's embedding that is added to them."""
    width = model.side_width
    if not width:
        return ()
    table = Op(
        name="side_embedding",
        module="embedding",
        kind=OpKind.MEMORY,
        split=Split.COLUMN,
        traffic_elements_per_token=2.0 * width,
        saved_split=Split.REPLICATED,
        parameters=(model.side_vocab or vocab) * width,
    )
    return (
        table,
        whole_product("side_projection", "embedding", model.hidden, width),
        norm_op("side_norm", width, model.side_norm_parameters, kernels),
    )


def side_ops(kind: LayerKind, hidden: int, norm: int, kernels: Kernels) -> tuple[Op, ...]:
    """Return the ops that gate a layer's own embedding into the residual: down, gate, up, norm; none without one.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    hidden : int
        Width of the model.
    norm : int
        Parameters of a norm over it.
    kernels : Kernels
        Options of the kernels.

    Returns
    -------
    tuple of Op
        In forward order; whole on every tp rank.

    References
    ----------
    ``transformers`` models/gemma3n and gemma4: ``per_layer_input_gate``, ``per_layer_projection`` and its norm.
    """
    if not kind.side_width:
        return ()
    return (
        whole_product("side_gate", "side", hidden, kind.side_width),
        whole_product("side_up", "side", kind.side_width, hidden),
        norm_op("side_post_norm", hidden, norm, kernels),
    )


@lru_cache(maxsize=64)
def head_ops(
    model: ModelSpec,
    *,
    vocab: int = 0,
    fused_loss: bool = False,
    linear_loss: LinearLoss | None = None,
    fused_kernels: bool = True,
    shared_weights: bool = False,
) -> tuple[Op, ...]:
    """Return the ops of the final norm, the logits and the loss; none for a model of opaque layers.

    The loss keeps the softmax in fp32 (Megatron-core's vocabulary-parallel cross-entropy), or, fused, one copy of the
    logits in activation precision that turns into their gradient. While the loss runs, the unfused form holds both.

    Parameters
    ----------
    model : ModelSpec
        The model.
    vocab : int
        Columns of the logits, such as :func:`padded_vocab`; 0: the tokenizer's size.
    fused_loss : bool
        Whether cross-entropy is one kernel without a second copy of the logits.
    linear_loss : LinearLoss, optional
        A loss that makes the logits part by part and keeps none of them for the backward pass.
    fused_kernels : bool
        As in :func:`costmodels.workload.layers.layer_ops`.
    shared_weights : bool
        True when the output matrix is owned elsewhere (multi-token prediction).

    Returns
    -------
    tuple of Op
        In forward order.
    """
    if not model.vocab:
        return ()
    columns = vocab or model.vocab
    return (
        *end_ops(model),
        norm_op("final_norm", model.hidden, model.final_norm_parameters, Kernels(fused=fused_kernels)),
        _logits(model, columns, shared_weights=shared_weights),
        _loss(columns, fused=fused_loss, linear=linear_loss),
    )


def _loss(columns: int, *, fused: bool, linear: LinearLoss | None) -> Op:
    """The loss on logits of so many columns."""
    whole = Op(
        name="loss",
        module="head",
        kind=OpKind.MEMORY,
        split=Split.TENSOR,
        traffic_elements_per_token=(_FUSED_LOSS_TRAFFIC if fused else _LOSS_TRAFFIC) * columns,
        backward_traffic=_FUSED_LOSS_BACKWARD if fused else _LOSS_BACKWARD,
        saved_elements_per_token=columns * float(fused),
        saved_bytes_per_token=FP32_BYTES * columns * (not fused),
    )
    if linear is None:
        return whole
    parts = replace(whole, saved_elements_per_token=0.0, saved_bytes_per_token=0.0)
    if linear.own_kernels:
        return parts
    each_pass = linear.logit_traffic_bytes / 2.0  # which pass moves it makes no difference: one follows the other
    moved = each_pass * columns
    return replace(parts, traffic_elements_per_token=0.0, traffic_bytes_per_token=moved, backward_traffic=1.0)


def _logits(model: ModelSpec, columns: int, *, shared_weights: bool) -> Op:
    owned = 0 if shared_weights or model.tied_embeddings else columns * model.hidden
    return Op(
        name=LOGITS,
        module="head",
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=model.hidden,
        n=columns,
        saved_elements_per_token=float(model.hidden),
        saved_split=Split.SEQUENCE,
        parameters=owned + (columns if model.head_bias and not shared_weights else 0),
        low_precision=False,
        padded=model.vocab_multiple % _KERNEL_COLUMNS == 0,
    )


def mtp_entry_ops(model: ModelSpec, *, fused_kernels: bool = True) -> tuple[Op, ...]:
    """Return the ops that join hidden states and the next token's embedding into the input of an MTP layer.

    Parameters
    ----------
    model : ModelSpec
        The model.
    fused_kernels : bool
        As in :func:`costmodels.workload.layers.layer_ops`.

    Returns
    -------
    tuple of Op
        Two norms and a projection from twice the width (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    hidden = model.hidden
    kernels = Kernels(fused=fused_kernels)
    norms = (norm_op(name, hidden, hidden, kernels) for name in ("embedding_norm", "hidden_norm"))
    projection = Op(
        name="mtp_proj",
        module="mtp",
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=2 * hidden,
        n=hidden,
        saved_elements_per_token=2.0 * hidden,
        saved_split=Split.SEQUENCE,
        dropped_by=("layernorm",),
        parameters=2 * hidden * hidden,
    )
    return (*norms, *_joined_streams(projection, model)) if model.mixed else (*norms, projection)


def _joined_streams(projection: Op, model: ModelSpec) -> tuple[Op, Op]:
    """The embedding's product, and that of every residual stream with one matrix (``e_proj``, ``h_proj``)."""
    hidden, square = model.hidden, model.hidden * model.hidden
    own = replace(projection, k=hidden, saved_elements_per_token=float(hidden), parameters=square)
    residual = float(model.residual)
    streams = replace(own, name="mtp_streams_proj", n=model.residual, saved_elements_per_token=residual)
    return own, streams
