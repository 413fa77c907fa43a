"""Tensor-parallel exchanges: column- and row-parallel GEMMs, the loss on split logits, opaque layers."""

from typing import Final

import numpy as np

from costmodels.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from costmodels.exchange.placed import Exchanged, PlacedTable
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
    forward, backward, hidden, volume = (np.zeros(len(placed.table)) for _ in range(4))
    for width in gathers.keys() | reductions.keys():
        ins, outs = gathers.get(width, 0), reductions.get(width, 0)
        size = token_bytes * width
        gather = placed.seconds(all_gather_s, Axis.TP, size, split)
        scatter = placed.seconds(reduce_scatter_s, Axis.TP, size, split)
        reduce = placed.seconds(all_reduce_s, Axis.TP, size, ~split)
        beside = ins * (scatter + again * gather + reduce)
        forward += ins * gather + outs * (scatter + reduce)
        backward += outs * gather + beside
        hidden += beside
        rounds = np.where(split, (2.0 + again) * ins + 2.0 * outs, 2.0 * (ins + outs))
        volume += size * rounds * (placed.table.tp - 1) / placed.table.tp
    return Exchanged(forward_s=forward, backward_s=backward, hidden_s=hidden, sent_bytes=volume)


def _counted(widths: tuple[int, ...]) -> dict[int, int]:
    return {width: widths.count(width) for width in widths}


def opaque_exchange(layer: OpaqueLayer, placed: PlacedTable) -> Exchanged:
    """All-reduce of what the layer states, forward and backward."""
    if "tp" not in layer.shardable:
        return Exchanged.nothing(len(placed.table))
    size = placed.table.micro_batch * layer.tp_exchange_bytes_per_sample / placed.table.cp
    time = placed.seconds(all_reduce_s, Axis.TP, size)
    volume = 4.0 * size * (placed.table.tp - 1) / placed.table.tp
    return Exchanged(forward_s=time, backward_s=time, hidden_s=np.zeros_like(time), sent_bytes=volume)


def loss_exchange(model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Loss on each rank's columns: three all-reduces of one fp32 number per token; else the logits are gathered."""
    tokens = placed.tokens(job)
    zero = np.zeros(len(placed.table))
    share = (placed.table.tp - 1) / placed.table.tp
    if job.software.parallel_loss:
        time = _LOSS_REDUCTIONS * placed.seconds(all_reduce_s, Axis.TP, tokens * _FP32_BYTES)
        sent = _LOSS_REDUCTIONS * 2.0 * share * tokens * _FP32_BYTES
        return Exchanged(forward_s=time, backward_s=zero, hidden_s=zero, sent_bytes=sent)
    size = tokens * (logits_width(model) * job.precision.activation_bytes)
    return Exchanged(
        forward_s=placed.seconds(all_gather_s, Axis.TP, size), backward_s=zero, hidden_s=zero, sent_bytes=size * share
    )
