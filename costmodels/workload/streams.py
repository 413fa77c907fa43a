"""Hyper-connections: several residual streams, which parts of a layer read from and write to by weights of a token.

Before a part, its input is a weighted sum of the streams; behind it, every stream is a mix of all streams plus a
weighted part of the output. The weights come from a projection of all streams of the token (Xie et al., arXiv
2512.24880).
"""

from dataclasses import replace
from typing import Final

from costmodels.workload.alternating import first_op, last_op
from costmodels.workload.kernels import FP32_BYTES, Kernels
from costmodels.workload.model import ModelSpec
from costmodels.workload.op import Op, OpKind, Split

_SCALES: Final = 3  # learned factors of what is read, written and mixed
_GRADIENT_SUMS: Final = 6.0
"""Elements moved to add up a stream's gradients: three ops read the streams of a part, so two sums (2 + 1 each)."""


def read_ops(part: str, model: ModelSpec) -> tuple[Op, ...]:
    """Return the ops that make the input of a part from the streams; none of a model with one stream.

    Parameters
    ----------
    part : str
        Name of the part, which names of ops begin with.
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Op
        The projection to the weights, which keeps the streams, and the weighted sum, which recompute of ``mhc`` runs
        again. Sinkhorn's iterations on the weights are left out: 2 % of the time of the ops in one fused kernel.

    References
    ----------
    Megatron-core ``transformer/hyper_connection.py`` (``HyperConnectionModule``): mappings are not recomputed.
    """
    streams, hidden = model.streams, model.hidden
    if not model.mixed:
        return ()
    weights = streams * (streams + 2)
    mapped = _map(f"{part}_streams_map", model, weights, weights + _SCALES)
    return (replace(mapped, saved_bytes_per_token=FP32_BYTES * weights), _sum(f"{part}_streams_sum", streams, hidden))


def write_op(part: str, model: ModelSpec, kernels: Kernels) -> Op:
    """Return the op that mixes the streams and adds the output of a part to each; it keeps that output.

    Parameters
    ----------
    part : str
        Name of the part.
    model : ModelSpec
        The model.
    kernels : Kernels
        Fused: one kernel reads streams and output and writes the streams. Else mixed streams, spread output and their
        sum are written one after the other.
    """
    streams, hidden = model.streams, model.hidden
    moved = 2.0 * streams + 1.0 if kernels.fused else 6.0 * streams + 1.0
    return Op(
        name=f"{part}_streams_write",
        module="mhc",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=moved * hidden,
        # gradient, streams and output read, gradients of streams and output written
        backward_traffic=(3.0 * streams + 2.0) / (2.0 * streams + 1.0),
        saved_elements_per_token=float(hidden),
    )


def spread_op(model: ModelSpec) -> tuple[Op, ...]:
    """Return the op that copies the embedding into every stream, or makes streams of it; none with one stream."""
    if model.alternating:
        return (first_op(model),)
    if model.streams == 1:
        return ()
    return (
        Op(
            name="streams_spread",
            module="embedding",
            kind=OpKind.MEMORY,
            split=Split.SEQUENCE,
            traffic_elements_per_token=(1.0 + model.streams) * model.hidden,
        ),
    )


def end_ops(model: ModelSpec) -> tuple[Op, ...]:
    """Return the ops that make one stream of all behind the last layer; none of a model with one stream."""
    streams = model.streams
    if model.alternating:
        return (last_op(model),)
    if streams == 1:
        return ()
    mapped = _map("end_streams_map", model, streams, streams + 1)
    summed = _sum("end_streams_sum", streams, model.hidden)
    return tuple(replace(op, module="head", dropped_by=()) for op in (mapped, summed))


def _map(name: str, model: ModelSpec, weights: int, further: int) -> Op:
    """The projection of all streams of a token to its weights: so few columns that memory bounds it."""
    return Op(
        name=name,
        module="residual",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=float(model.residual),
        backward_traffic=2.0
        + _GRADIENT_SUMS,  # streams read, their gradient written, the gradients of three readers added
        saved_elements_per_token=float(model.residual),
        dropped_by=("mhc",),
        parameters=model.residual * weights + further,
    )


def _sum(name: str, streams: int, hidden: int) -> Op:
    return Op(
        name=name,
        module="mhc",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=(streams + 1.0) * hidden,
        backward_traffic=(2.0 * streams + 1.0) / (streams + 1.0),
    )
