"""Tensor-parallel exchanges: column- and row-parallel GEMMs, the loss on split logits, opaque layers."""

from typing import Final

from costmodels.exchange.placed import Call, Exchanged, Often, PlacedTable
from costmodels.exchange.volumes import TensorWidths, logits_width
from costmodels.job import TrainingJob
from costmodels.mesh import Axis
from costmodels.workload.model import ModelSpec, OpaqueLayer

_FP32_BYTES: Final = 4.0
_LOSS_REDUCTIONS: Final = 3  # maximum, logit of the target, sum of exponentials


def tensor_exchange(widths: TensorWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Column- and row-parallel GEMMs.

    Under sequence parallelism a pair costs an all-gather and a reduce-scatter forward; backward the gradient of the
    output is gathered, and beside GEMMs the input is gathered again (it was kept sharded) and its gradient
    reduce-scattered. Without it: one all-reduce forward, one backward beside the weight-gradient GEMM.
    """
    split = placed.table.sequence_parallel
    token_bytes = placed.tokens(job) * job.precision.activation_bytes
    gathers, reductions = (_counted(part) for part in (widths.gathers, widths.reductions))
    again = 0.0 if job.software.gathered_inputs_kept else 1.0
    calls: list[Call] = []
    for width in gathers.keys() | reductions.keys():
        ins, outs = float(gathers.get(width, 0)), float(reductions.get(width, 0))
        size = token_bytes * width
        gather = Often(forward=ins, backward=outs + again * ins, hidden=again * ins)
        reduce = Often(forward=outs, backward=ins, hidden=ins)
        calls += [
            placed.call("all_gather", Axis.TP, size, gather, split),
            placed.call("reduce_scatter", Axis.TP, size, reduce, split),
            placed.call("all_reduce", Axis.TP, size, reduce, ~split),
        ]
    return placed.add_up(calls)


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
