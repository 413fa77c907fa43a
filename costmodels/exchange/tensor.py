"""Tensor-parallel exchanges: column- and row-parallel GEMMs, the loss on split logits, opaque layers."""

from typing import Final

import numpy as np

from costmodels.exchange.placed import Call, Exchanged, Often, PlacedTable
from costmodels.exchange.volumes import TensorWidths, logits_width
from costmodels.job import TrainingJob
from costmodels.mesh import Axis
from costmodels.table import Floats
from costmodels.workload.model import ModelSpec, OpaqueLayer

_BYTE: Final = 1.0
_ENDS: Final = ("embedding", "head")
_FP32_BYTES: Final = 4.0
_LOSS_REDUCTIONS: Final = 3  # maximum, logit of the target, sum of exponentials


def gathered_bytes(name: str, job: TrainingJob) -> float:
    """Bytes of an element that tensor-parallel ranks of a part gather: products of the ends stay in 16 bits."""
    low = job.software.low_precision_gathers and job.precision.scaled and name not in _ENDS
    return _BYTE if low else job.precision.activation_bytes


def tensor_exchange(
    widths: TensorWidths, job: TrainingJob, placed: PlacedTable, element_bytes: float | None = None
) -> Exchanged:
    """Column- and row-parallel GEMMs; gathers move elements of ``element_bytes``, by default as wide as activations.

    Under sequence parallelism a pair costs an all-gather and a reduce-scatter forward; backward the gradient of the
    output is gathered, and beside GEMMs the input is gathered again (it was kept sharded) and its gradient
    reduce-scattered. Without it: one all-reduce forward, one backward beside the weight-gradient GEMM.
    """
    split = placed.table.sequence_parallel
    tokens, activation_bytes = placed.tokens(job), job.precision.activation_bytes
    gathers, reductions, further = map(_counted, (widths.gathers, widths.reductions, widths.further_gradients))
    again = 0.0 if job.software.gathered_inputs_kept else 1.0
    calls: list[Call] = []
    for width in gathers.keys() | reductions.keys():
        ins, outs = float(gathers.get(width, 0)), float(reductions.get(width, 0))
        size = tokens * (activation_bytes * width)
        gathered = tokens * ((element_bytes or activation_bytes) * width)
        gather = Often(forward=ins, backward=outs + again * ins, hidden=again * ins)
        gradients = ins + further.get(width, 0)
        reduce = Often(forward=outs, backward=gradients, hidden=gradients)
        calls += [
            placed.call("all_gather", Axis.TP, gathered, gather, split),
            placed.call("reduce_scatter", Axis.TP, size, reduce, split),
            placed.call("all_reduce", Axis.TP, size, reduce, ~split),
        ]
    return placed.add_up(calls)


def copied_bytes(
    widths: TensorWidths, job: TrainingJob, placed: PlacedTable, element_bytes: float
) -> tuple[Floats, Floats]:
    """Bytes that a forward and a backward pass read and write to lay out what tensor-parallel exchanges move, (S,).

    Collectives gather and scatter along the first dimension. Where tokens of a sequence are the second one, pieces of
    the ranks are joined anew behind every gather, and cut apart before every reduce-scatter: each reads and writes the
    whole tensor.

    Parameters
    ----------
    widths : TensorWidths
        Exchanges of a part.
    job : TrainingJob
        Sequence, precision, software: nothing is copied without ``copied_exchanges``.
    placed : PlacedTable
        S strategies.
    element_bytes : float
        Of an element that is gathered.

    Returns
    -------
    tuple of ndarray
        Forward and backward, 0 without sequence parallelism.

    References
    ----------
    PyTorch ``torch/distributed/_functional_collectives.py``, ``all_gather_tensor`` and ``reduce_scatter_tensor``.
    """
    table = placed.table
    copied = job.software.copied_exchanges & table.sequence_parallel & (table.tp > 1)
    once = np.where(copied, 2.0 * placed.tokens(job), 0.0)
    ins, outs = float(sum(widths.gathers)), float(sum(widths.reductions))
    again = 0.0 if job.software.gathered_inputs_kept else ins
    reduced = job.precision.activation_bytes
    forward = once * (element_bytes * ins + reduced * outs)
    return forward, once * (element_bytes * (outs + again) + reduced * (ins + sum(widths.further_gradients)))


def _counted(widths: tuple[int, ...]) -> dict[int, int]:
    return {width: widths.count(width) for width in widths}


def opaque_exchange(layer: OpaqueLayer, placed: PlacedTable) -> Exchanged:
    """All-reduce of what the layer states, forward and backward."""
    if "tp" not in layer.shardable:
        return placed.add_up(())
    size = placed.table.micro_batch * layer.tp_exchange_bytes_per_sample / placed.table.cp
    return placed.add_up([placed.call("all_reduce", Axis.TP, size, Often(forward=1.0, backward=1.0))])


def loss_exchange(model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Loss on each rank's columns: three all-reduces of one fp32 number per token; else the logits are gathered."""
    tokens = placed.tokens(job)
    if job.software.parallel_loss:
        often = Often(forward=float(_LOSS_REDUCTIONS), backward=0.0)
        return placed.add_up([placed.call("all_reduce", Axis.TP, tokens * _FP32_BYTES, often)])
    size = tokens * (logits_width(model) * job.precision.activation_bytes)
    return placed.add_up([placed.call("all_gather", Axis.TP, size, Often(forward=1.0, backward=0.0))])
