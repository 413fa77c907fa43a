"""The parts of a model: their names in row order, and their ops under the kernels of a job's software."""

from collections.abc import Sequence
from typing import Final

from costmodels.job import Dispatcher
from costmodels.pricing import Pricing
from costmodels.workload.expert_kernels import with_expert_kernels
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops, padded_vocab
from costmodels.workload.op import Op

EMBEDDING: Final = "embedding"
HEAD: Final = "head"
MTP: Final = "mtp"


def part_names(pricing: Pricing) -> tuple[str, ...]:
    """Names of the model's parts in row order."""
    model = pricing.model
    ends = (EMBEDDING, HEAD) if model.hidden else ()
    return (*(kind.name for kind in model.kinds()), *ends, *((MTP,) if model.mtp_layers else ()))


def part_ops(pricing: Pricing) -> tuple[tuple[Op, ...], ...]:
    """Return the ops of every part of a model, in the order of :func:`part_names`.

    Parameters
    ----------
    pricing : Pricing
        Model, and job with its software.

    Returns
    -------
    tuple of tuple of Op
    """
    software = pricing.job.software
    if software.fused_kernels or software.compiled:
        return _ops_of(pricing, fused=True)
    separate = _ops_of(pricing, fused=False)
    if not software.fused_norms:
        return separate
    pairs = zip(_ops_of(pricing, fused=True), separate, strict=True)
    return tuple(tuple(_with_fused_norms(*parts)) for parts in pairs)


def _with_fused_norms(fused: Sequence[Op], separate: Sequence[Op]) -> list[Op]:
    both = zip(fused, separate, strict=True)
    return [one if one.module == "layernorm" else other for one, other in both]


def _ops_of(pricing: Pricing, *, fused: bool) -> tuple[tuple[Op, ...], ...]:
    model, software = pricing.model, pricing.job.software
    kernels = {"flash_attention": software.flash_attention, "fused_kernels": fused}
    dropout, softmax = software.dropout, software.softmax
    ops = [layer_ops(kind, model, dropout=dropout, softmax=softmax, **kernels) for kind in model.kinds()]
    if software.expert_kernels_apart:
        wide, details = software.dispatcher is not Dispatcher.ALLTOALL, model.known_details
        ops = [with_expert_kernels(each, details.activation, wide=wide) for each in ops]
    if model.hidden:
        ops.append(embedding_ops(model, fused_kernels=fused))
        vocab = padded_vocab(model, 1)
        fused_loss, linear = software.fused_loss, software.linear_loss
        ops.append(head_ops(model, vocab=vocab, fused_loss=fused_loss, linear_loss=linear, fused_kernels=fused))
    if model.mtp_layers:
        ops.append(mtp_ops(model, fused_loss=software.fused_loss, linear_loss=software.linear_loss, **kernels))
    return tuple(ops)
