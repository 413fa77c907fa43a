"""Context-parallel exchanges of token mixers: ring, gathered keys and values, all-to-all."""

import numpy as np

from costmodels.exchange.placed import Exchanged, Often, PlacedTable
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
        return placed.add_up(())
    return form(widths, job, placed)


def _keys_values_bytes(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Floats:
    """Keys and values of one rank's tokens; a rank has at least one key-value head."""
    heads = np.maximum(widths.key_value_heads / placed.table.tp, 1.0)
    width = widths.keys_values / widths.key_value_heads * heads
    return placed.tokens(job) * width * job.precision.activation_bytes


def _ring_attention(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Keys and values pass to the neighbour cp - 1 times; backward their gradients travel with them."""
    size = _keys_values_bytes(widths, job, placed)
    steps = np.asarray(placed.table.cp - 1.0, dtype=np.float64)
    forward = placed.call("sendrecv", Axis.CP, size, Often(forward=steps, backward=0.0))
    backward = placed.call("sendrecv", Axis.CP, 2.0 * size, Often(forward=0.0, backward=steps))
    return placed.add_up([forward, backward])


def _gathered_attention(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Keys and values are gathered forward and again backward; their gradients are reduce-scattered."""
    size = _keys_values_bytes(widths, job, placed) * placed.table.cp
    gather = placed.call("all_gather", Axis.CP, size, Often(forward=1.0, backward=1.0))
    scatter = placed.call("reduce_scatter", Axis.CP, size, Often(forward=0.0, backward=1.0))
    return placed.add_up([gather, scatter])


def _head_exchange(widths: ContextWidths, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """All-to-all from tokens to heads before the mixer and back after it; the same backward (Ulysses)."""
    token_bytes = placed.tokens(job) * job.precision.activation_bytes / placed.table.tp
    once = Often(forward=1.0, backward=1.0)
    sizes = (token_bytes * widths.before, token_bytes * widths.after)
    return placed.add_up([placed.call("alltoall", Axis.CP, size, once) for size in sizes])
