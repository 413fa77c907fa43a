"""Context-parallel exchanges of token mixers: ring, gathered keys and values, all-to-all."""

import numpy as np

from costmodels.collectives import all_gather_s, all_to_all_s, reduce_scatter_s, send_receive_s
from costmodels.exchange.placed import Exchanged, PlacedTable
from costmodels.exchange.volumes import ContextWidths
from costmodels.job import TrainingJob
from costmodels.mesh import Axis
from costmodels.table import Floats
from hardware.errors import InputError


def context_exchange(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Context parallelism in the form that the software uses; scans always trade tokens for heads."""
    forms = {
        "p2p": _ring_attention,
        "a2a": _head_exchange,
        "allgather": _gathered_attention,
    }
    if job.software.cp_comm not in forms:
        raise InputError(f"software.cp_comm is '{job.software.cp_comm}'", allowed=", ".join(forms))
    form = forms[job.software.cp_comm] if widths.ring else _head_exchange
    if not widths.before:
        return Exchanged.nothing(len(placed.table))
    return form(widths, job, placed)


def _keys_values_bytes(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Floats:
    """Keys and values of one rank's tokens; a rank has at least one key-value head."""
    heads = np.maximum(widths.key_value_heads / placed.table.tp, 1.0)
    width = widths.keys_values / widths.key_value_heads * heads
    return placed.tokens(job) * width * job.precision.activation_bytes


def _ring_attention(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Keys and values pass to the neighbour cp - 1 times; backward their gradients travel with them."""
    size = _keys_values_bytes(widths, job, placed)
    steps = placed.table.cp - 1
    forward = steps * placed.seconds(send_receive_s, Axis.CP, size)
    backward = steps * placed.seconds(send_receive_s, Axis.CP, 2.0 * size)
    return Exchanged(
        forward_s=forward, backward_s=backward, hidden_s=np.zeros_like(forward), sent_bytes=3.0 * steps * size
    )


def _gathered_attention(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Keys and values are gathered forward and again backward; their gradients are reduce-scattered."""
    size = _keys_values_bytes(widths, job, placed) * placed.table.cp
    gather = placed.seconds(all_gather_s, Axis.CP, size)
    scatter = placed.seconds(reduce_scatter_s, Axis.CP, size)
    sent = 3.0 * size * (placed.table.cp - 1) / placed.table.cp
    return Exchanged(forward_s=gather, backward_s=gather + scatter, hidden_s=np.zeros_like(gather), sent_bytes=sent)


def _head_exchange(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """All-to-all from tokens to heads before the mixer and back after it; the same backward (Ulysses)."""
    token_bytes = placed.tokens(job) * job.precision.activation_bytes / placed.table.tp
    time = placed.seconds(all_to_all_s, Axis.CP, token_bytes * widths.before)
    time = time + placed.seconds(all_to_all_s, Axis.CP, token_bytes * widths.after)
    sent = 2.0 * token_bytes * (widths.before + widths.after) * (placed.table.cp - 1) / placed.table.cp
    return Exchanged(forward_s=time, backward_s=time, hidden_s=np.zeros_like(time), sent_bytes=sent)
