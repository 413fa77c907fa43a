"""A layer as ops: the one list that time, memory and recompute derive from.

The kept tensors are documented op by op in ``docs/models.md``.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from costmodels.workload.alternating import added_ops, correct_ops, low_rank_ops, predict_ops
from costmodels.workload.attention import attention_ops, cross_ops
from costmodels.workload.block import encoder_end_ops, norm_op, norm_width, repeated_norm_parameters, residual_op
from costmodels.workload.ends import embedding_ops, head_ops, mtp_entry_ops, padded_vocab, side_ops
from costmodels.workload.feedforward import dense_ops, moe_ops
from costmodels.workload.kernels import Kernels, Softmax
from costmodels.workload.linear_loss import LinearLoss
from costmodels.workload.model import (
    Attention,
    DeltaNet,
    DenseFfn,
    Ffn,
    LayerKind,
    ModelSpec,
    OneMixer,
    OpaqueLayer,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from costmodels.workload.op import Op, OpKind, Split
from costmodels.workload.scans import convolution_ops, delta_ops, lightning_ops, mamba_ops, selective_ops
from costmodels.workload.streams import read_ops, write_op

__all__ = ["embedding_ops", "head_ops", "layer_ops", "mtp_ops", "padded_vocab"]

_KEPT: Final = 256  # lists of ops that are remembered: several prices of every layout ask for the same ones


@lru_cache(maxsize=_KEPT)
def layer_ops(
    kind: LayerKind | OpaqueLayer,
    model: ModelSpec,
    *,
    flash_attention: bool = True,
    dropout: bool = False,
    fused_kernels: bool = True,
    softmax: Softmax = Softmax.FUSED,
) -> tuple[Op, ...]:
    """Return the ops of one layer in forward order.

    Parameters
    ----------
    kind : LayerKind or OpaqueLayer
        The layer.
    model : ModelSpec
        The model that it belongs to: width, causality.
    flash_attention : bool
        Attention never writes its matrix to memory.
    dropout : bool
        Dropout is on: attention and both residual branches keep masks.
    fused_kernels : bool
        Norms, activations, rotary and bias-dropout-add are one kernel each.
    softmax : Softmax
        What attention makes of its scores where it is not fused.

    Returns
    -------
    tuple of Op
        Quantities per token (an opaque layer: per sample) before any division over the mesh.

    References
    ----------
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198: for a GPT
    layer with dropout and without fused attention the kept bytes sum to ``s b h (34 + 5 a s / h)``.
    """
    if isinstance(kind, OpaqueLayer):
        return (_opaque_op(kind),)
    kernels = Kernels(flash_attention=flash_attention, dropout=dropout, fused=fused_kernels, softmax=softmax)
    return _block_ops(kind, model, kernels)


@lru_cache(maxsize=_KEPT)
def mtp_ops(
    model: ModelSpec,
    *,
    vocab: int = 0,
    flash_attention: bool = True,
    fused_loss: bool = False,
    linear_loss: LinearLoss | None = None,
    fused_kernels: bool = True,
) -> tuple[Op, ...]:
    """Return the ops of one multi-token-prediction layer with its own final norm, logits and loss; none without MTP.

    The embedding table and the output matrix belong to the model and are not counted again.

    Parameters
    ----------
    model : ModelSpec
        The model.
    vocab : int
        Columns of the logits; 0: the tokenizer's size.
    flash_attention, fused_loss, linear_loss, fused_kernels
        As in :func:`layer_ops` and :func:`head_ops`.

    Returns
    -------
    tuple of Op
        In forward order, of one of ``model.mtp_layers`` equal layers.
    """
    if not model.mtp_layers or model.mtp_kind is None:
        return ()
    kernels = Kernels(flash_attention=flash_attention, fused=fused_kernels)
    return (
        *mtp_entry_ops(model, fused_kernels=fused_kernels),
        *_block_ops(model.mtp_kind, model, kernels),
        *head_ops(
            model,
            vocab=vocab,
            fused_loss=fused_loss,
            linear_loss=linear_loss,
            fused_kernels=fused_kernels,
            shared_weights=True,
        ),
    )


def _block_ops(kind: LayerKind, model: ModelSpec, kernels: Kernels) -> tuple[Op, ...]:
    """Norm, mixer, norm, residual; norm, feed-forward part, norm, residual: what the kind has of it."""
    hidden, width = model.hidden, norm_width(kind)
    parts = (kind.mixer is not None) + (kind.ffn is not None) + (kind.cross is not None)
    before = min(kind.norm_count, parts)
    after = kind.norm_count - before
    shares_norm = before < parts  # one norm feeds both parts of a parallel block
    ops: list[Op] = [*predict_ops(model, kernels)]
    if kind.mixer is not None:
        mixer_norm = norm_op("mixer_norm", hidden, width, kernels)
        ops.extend(read_ops("mixer", model))
        ops.append(_first_norm(replace(mixer_norm, parameters=width + repeated_norm_parameters(kind)), model))
        ops.extend(_mixer_ops(kind, model, kernels))
        if after:
            ops.append(norm_op("mixer_post_norm", hidden, width, kernels))
        ops.extend(low_rank_ops(kind.low_rank, hidden, width, kernels))
        if not kind.parallel:
            ops.append(_residual("mixer", kind, model, kernels))
    if kind.cross is not None:
        ops.append(norm_op("cross_norm", hidden, width, kernels))
        ops.extend(cross_ops(kind.cross, hidden, kernels))
        ops.append(residual_op("cross_residual", hidden, 1, kernels))
    if kind.ffn is not None:
        if not shares_norm:
            ops.extend(read_ops("ffn", model))
            ops.append(_first_norm(norm_op("ffn_norm", hidden, width, kernels, input_is_kept=kind.parallel), model))
        ops.extend(_ffn_ops(kind.ffn, hidden, kernels, input_is_kept=shares_norm))
        if after > (kind.mixer is not None):
            ops.append(norm_op("ffn_post_norm", hidden, width, kernels))
        further = after - (kind.mixer is not None) - 1  # of parts inside the feed-forward part (Gemma 4)
        ops.extend(norm_op(f"ffn_norm_{number}", hidden, width, kernels) for number in range(further))
        ops.append(_residual("ffn", kind, model, kernels))
    ends = (*side_ops(kind, hidden, width, kernels), *added_ops(model), *encoder_end_ops(kind, hidden, kernels))
    return (*ops, *correct_ops(model, kernels), *ends)


def _first_norm(norm: Op, model: ModelSpec) -> Op:
    """The norm before a part; its input is made of the streams, where there are several, and can be made again."""
    return replace(norm, dropped_by=("mhc",)) if model.mixed else norm


def _residual(part: str, kind: LayerKind, model: ModelSpec, kernels: Kernels) -> Op:
    """What adds the output of a part to the residual, of a parallel block both outputs, or writes it to the streams."""
    if model.mixed:
        return write_op(part, model, kernels)
    if part == "mixer":
        return residual_op("mixer_residual", model.hidden, len(kind.mixers) + (kind.low_rank > 0), kernels)
    return residual_op("residual" if kind.parallel else "ffn_residual", model.hidden, 1 + kind.parallel, kernels)


def _mixer_ops(kind: LayerKind, model: ModelSpec, kernels: Kernels) -> Iterator[Op]:
    """Ops of the mixers; of those side by side the first keeps the normed input of all."""
    for number, mixer in enumerate(kind.mixers):
        for op in _ops_of(mixer, model, kernels):
            reads_kept_input = number and op.k == model.hidden and op.saved_elements_per_token
            yield _sharing_input(op) if reads_kept_input and op.split is Split.COLUMN else op


def _sharing_input(op: Op) -> Op:
    """A product whose input another op of the layer keeps."""
    return replace(op, saved_elements_per_token=0.0, shared_input_elements_per_token=op.saved_elements_per_token)


def _ops_of(mixer: OneMixer, model: ModelSpec, kernels: Kernels) -> tuple[Op, ...]:
    if isinstance(mixer, Attention):
        return attention_ops(mixer, model.hidden, kernels, causal=model.causal)
    if isinstance(mixer, StateSpace):
        return mamba_ops(mixer, model.hidden)
    if isinstance(mixer, SelectiveScan):
        return selective_ops(mixer, model.hidden)
    if isinstance(mixer, ShortConvolution):
        return convolution_ops(mixer)
    return delta_ops(mixer, model.hidden) if isinstance(mixer, DeltaNet) else lightning_ops(mixer, model.hidden)


def _ffn_ops(ffn: Ffn, hidden: int, kernels: Kernels, *, input_is_kept: bool) -> tuple[Op, ...]:
    if isinstance(ffn, DenseFfn):
        return dense_ops(ffn, hidden, kernels, input_is_kept=input_is_kept)
    return moe_ops(ffn, hidden, kernels, input_is_kept=input_is_kept)


def _opaque_op(layer: OpaqueLayer) -> Op:
    """One op per layer; "per token" is per sample. Weights are read once per micro-batch, on top of this traffic."""
    traffic = layer.forward_bytes_per_sample or layer.activation_bytes_per_sample + layer.output_bytes_per_sample
    return Op(
        name=layer.name,
        module="opaque",
        kind=OpKind.OPAQUE,
        split=Split.TENSOR if "tp" in layer.shardable else Split.REPLICATED,
        flops_per_token=layer.forward_flops_per_sample,
        traffic_bytes_per_token=traffic,
        saved_bytes_per_token=layer.activation_bytes_per_sample,
        parameters=layer.parameters,
    )
