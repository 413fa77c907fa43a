"""The peak of a stage's heaviest rank: named components, verdict, moment of failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.job import TrainingJob
from costmodels.memory.constants import MemoryConstants
from costmodels.results import MemoryUse, Moment, Verdict
from costmodels.table import Bools, Floats
from hardware.cluster import Accelerator

Strings = NDArray[np.str_]

_LOSS, _END = 1, 2  # of the moments of ``_moments_of``: the loss, the embedding's backward
_OF_MOMENTS: Final = ("activations", "working", "gathered", "logits", "step", "unreduced", "gradients")
_COMES, _GOES = 0, 5  # of those, what comes and goes within a micro-batch or a step
_GATHERED, _GRADIENTS = _OF_MOMENTS.index("gathered"), _OF_MOMENTS.index("gradients")
OUTSIDE = ("communicators", "context")  # what the framework's own allocator does not see


@dataclass(frozen=True, kw_only=True, eq=False)
class StageSums:
    """What the parts of a stage add up to on its heaviest rank; arrays of one common shape.

    Attributes
    ----------
    weights, gradients, optimizer, host : ndarray
        States on the device, and those that the host holds for it [B].
    activations : ndarray
        Kept by all micro-batches in flight at the peak [B].
    one_microbatch : ndarray
        Kept by one micro-batch [B].
    working, gathered : ndarray
        Largest layer: what comes and goes, and what ZeRO-3 gathers [B].
    head_gathered : ndarray
        Of the head, what ZeRO-3 gathers for its backward pass, with its whole gradient [B]; 0 on stages without it.
    head_whole : ndarray
        Its weights alone, gathered from its forward pass to its backward pass [B].
    step : ndarray
        What only the optimizer's step needs [B].
    loss : ndarray
        What comes and goes around the logits [B]; 0 on stages without the head.
    passing : ndarray
        Gradients of one micro-batch, whole, that are added to the sum when its backward pass is done [B].
    unreduced : ndarray or None
        What whole gradients that wait for the last micro-batch take beyond ``gradients`` until the optimizer steps
        [B]; None where the software reduces with every micro-batch.
    fresh : ndarray
        What of ``gradients`` there is only from the step's backward pass on [B].
    fresh_apart : ndarray
        Of those, what a stream of its own makes, whose blocks no other may use [B].
    one_layer : ndarray
        Kept by one micro-batch of the largest layer [B].
    left_whole : ndarray
        Gathered weights that stay from a backward pass to the next forward pass [B].
    late : ndarray
        Freed, but not reusable until the device has run what the host queued [B].
    embedding_gradient : ndarray
        Dense gradient of the embedding table in activation precision [B]; 0 on stages without it.
    buffers : ndarray
        Buffers of the pipeline's exchanges and of bucketed reductions, and what a stage holds once [B].
    groups : ndarray
        Communicators with more than one rank.
    """

    weights: Floats
    gradients: Floats
    optimizer: Floats
    host: Floats
    activations: Floats
    one_microbatch: Floats
    working: Floats
    gathered: Floats
    head_gathered: Floats
    head_whole: Floats
    step: Floats
    loss: Floats
    passing: Floats
    unreduced: Floats | None
    fresh: Floats
    fresh_apart: Floats
    one_layer: Floats
    left_whole: Floats
    late: Floats
    embedding_gradient: Floats
    buffers: Floats
    groups: Floats


def components(sums: StageSums, usable_bytes: float, constants: MemoryConstants) -> Mapping[str, Floats]:
    """Name the parts of the peak, which come to the total when they are added.

    The peak is the largest of the moments of :func:`_moments_of`.

    Parameters
    ----------
    sums : StageSums
        Parts of every stage, any shape.
    usable_bytes : float
        Memory of the device that a process can get [B].
    constants : MemoryConstants
        Context, communicators, workspace, reserve.

    Returns
    -------
    mapping of str to ndarray
        Bytes in the shape of ``sums``: ``weights``, ``gradients``, ``optimizer``; ``activations`` of the micro-batches
        in flight; ``working`` (gradients of activations, tensors computed again), ``gathered`` (ZeRO-3), ``logits`` and
        ``step`` (the optimizer's), those that belong to the moment of the peak, others 0; ``unreduced`` where the
        software lets gradients wait; ``buffers``, ``communicators``, ``context``, ``reserve``.
    """
    named, least, wanted = _uncached(sums, constants)
    live = total_bytes(named)
    # giving cached blocks back waits for the device, which leaves nothing late
    late = np.where(live + wanted + sums.late > usable_bytes, 0.0, sums.late)
    reserve = np.maximum(least, np.minimum(wanted + late, usable_bytes - live))
    return MappingProxyType({**named, "reserve": reserve})


def emptied(sums: StageSums, usable_bytes: float, constants: MemoryConstants) -> Bools:
    """Where the allocator gives its cache back for what is late: the memory has been full.

    Parameters
    ----------
    sums, usable_bytes, constants
        As in :func:`components`.

    Returns
    -------
    ndarray of bool
        In the shape of ``sums``.
    """
    named, _, wanted = _uncached(sums, constants)
    return np.asarray((sums.late > 0.0) & (total_bytes(named) + wanted + sums.late > usable_bytes))


def _uncached(sums: StageSums, constants: MemoryConstants) -> tuple[dict[str, Floats], Floats, Floats]:
    """Name the parts of the peak but the reserve; the least reserve, and what it would be but for ``late`` [B]."""
    nothing = np.zeros_like(sums.weights)
    each = _moments_of(sums)
    sizes = np.stack([sum(moment, nothing) for moment in each])
    at = np.argmax(sizes, axis=0)
    parts = dict(zip(_OF_MOMENTS, (np.choose(at, part) for part in zip(*each, strict=True)), strict=True))
    unreduced = parts.pop("unreduced")
    gradients = parts.pop("gradients")
    named = {
        "weights": sums.weights,
        "gradients": gradients,
        "optimizer": sums.optimizer,
        **({} if sums.unreduced is None else {"unreduced": unreduced}),
        **parts,
        "buffers": sums.buffers + constants.workspace_bytes,
        "communicators": sums.groups * constants.group_bytes,
        "context": np.full_like(sums.weights, constants.context_bytes),
    }
    cached = _cached(each, sums)
    moving = np.max([sum(moment[_COMES:_GOES], nothing) for moment in cached], axis=0)
    # the allocator gives cached blocks back before it fails: the reserve shrinks when memory runs short
    least = constants.least_reserve_share * moving
    # no cached block is as large as the table's gradient: it gets memory of its own
    wanted = constants.reserve_share * moving + np.where(at == _END, 0.0, sums.embedding_gradient)
    return named, least, wanted + _held(sums, cached) - sizes.max(axis=0)


def _moments_of(sums: StageSums) -> tuple[tuple[Floats, ...], ...]:
    """What comes and goes at each moment that may be the peak, in the order of ``_OF_MOMENTS``.

    Five moments: the backward of the widest layer, the loss (logits, beside the head's weights), the end of the
    backward (a micro-batch's activations are gone, the embedding's dense gradient and weights that stay gathered are
    there), the optimizer's step (no activations, and no gradients that wait to be reduced), and the head's backward
    behind the loss (what it gathers, and its whole gradient). Gradients that are fresh are there at the end and at the
    step alone; then a sixth counts: the backward of the first layer, beside the gradients of all behind it. In between
    activations go and gradients come at even rates, so that no moment between exceeds both ends.
    """
    nothing = np.zeros_like(sums.weights)
    ending = sums.activations - sums.one_microbatch
    waiting = nothing if sums.unreduced is None else sums.unreduced
    early, whole = sums.gradients - sums.fresh, sums.gradients
    moments: tuple[tuple[Floats, ...], ...] = (
        (sums.activations, sums.working, sums.gathered, nothing, nothing, waiting, early),
        (sums.activations, nothing, sums.head_whole, sums.loss, nothing, waiting, early),
        (ending, sums.embedding_gradient + sums.passing, sums.left_whole, nothing, nothing, waiting, whole),
        (nothing, nothing, nothing, nothing, sums.step, nothing, whole),
        (sums.activations, nothing, sums.head_gathered, nothing, nothing, waiting, early),
    )
    if not sums.fresh.any():
        return moments
    first = ending + np.minimum(sums.one_layer, sums.one_microbatch)
    return (*moments, (first, sums.working, sums.gathered, nothing, nothing, waiting, whole))


def _cached(moments: tuple[tuple[Floats, ...], ...], sums: StageSums) -> tuple[tuple[Floats, ...], ...]:
    """Moments as the caching allocator sees them: at the loss it holds what the head's backward pass gathers as well.

    Gathers and reductions run on streams of their own, whose blocks the stream of the loss may not use.
    """
    loss = list(moments[_LOSS])
    loss[_GATHERED] = sums.head_gathered
    return (*moments[:_LOSS], tuple(loss), *moments[_LOSS + 1 :])


def _held(sums: StageSums, cached: tuple[tuple[Floats, ...], ...]) -> Floats:
    """What the allocator holds at its largest of the moments that it sees, with blocks of fresh gradients [B].

    Only the stream that reduces gradients may use their blocks again: a pool beside the largest of all else.
    """
    nothing = np.zeros_like(sums.weights)
    reduced = sums.fresh_apart > 0.0
    others = [sum(moment, nothing) - np.where(reduced, moment[_GRADIENTS], 0.0) for moment in cached]
    return np.asarray(np.max(others, axis=0) + np.where(reduced, sums.gradients, 0.0))


def usable_memory(accelerator: Accelerator) -> float:
    """Memory that processes on a device can get [B]."""
    return accelerator.allocatable_bytes or accelerator.memory_bytes


def total_bytes(named: Mapping[str, Floats]) -> Floats:
    """Sum of all components [B], in their shape."""
    return np.asarray(sum(named.values()))


def verdicts(named: Mapping[str, Floats], usable_bytes: float, constants: MemoryConstants) -> Strings:
    """Verdict of every stage, as values of :class:`costmodels.results.Verdict`, in the shape of the components.

    The reserve in ``named`` has shrunk as far as it can (:func:`components`): what still exceeds the memory fails.
    """
    total = total_bytes(named)
    risky = np.where(total > constants.risky_share * usable_bytes, Verdict.RISKY.value, Verdict.FITS.value)
    return np.where(total > usable_bytes, Verdict.OOM.value, risky)


def moments(named: Mapping[str, Floats], job: TrainingJob, usable_bytes: float) -> Strings:
    """When each stage would fail, as values of :class:`costmodels.results.Moment`; ``NONE`` where all of it fits.

    Memory is taken in this order: weights and gradient buffers; the optimizer's master weights; activations and logits
    of the first forward; what the first backward needs; Adam's states, which are made in the first step when the
    activations are gone; the forward and the backward of the second step, beside those states. What fits at first and
    fails beside them fails in a forward or backward all the same.
    """
    share = 0.0
    if job.software.main_params_in_optimizer:
        share = job.precision.master_bytes / max(1.0, job.precision.master_bytes + job.optimizer_bytes)
    states = named["context"] + named["communicators"] + named["weights"] + named["gradients"]
    running = named["activations"] + named["logits"] + named["buffers"]
    backward = named["working"] + named["gathered"] + named["reserve"] + named.get("unreduced", 0.0)
    created = states + share * named["optimizer"]
    whole = states + named["optimizer"]
    stepping = named["buffers"] + named["step"]
    order = (
        (Moment.LOAD, states),
        (Moment.OPTIMIZER, created),
        (Moment.FORWARD, created + running),
        (Moment.BACKWARD, created + running + backward),
        (Moment.FIRST_STEP, whole + stepping),
        (Moment.FORWARD, whole + running),
        (Moment.BACKWARD, whole + running + backward),
    )
    return np.select(
        [size > usable_bytes for _, size in order], [moment.value for moment, _ in order], default=Moment.NONE.value
    )


def allocated_bytes(use: MemoryUse) -> float:
    """Bytes of live tensors at the peak, as ``torch.cuda.max_memory_allocated`` counts them."""
    return sum(size for name, size in use.components if name not in (*OUTSIDE, "reserve"))


def reserved_bytes(use: MemoryUse) -> float:
    """Bytes that the caching allocator holds, as ``torch.cuda.max_memory_reserved`` counts them."""
    return sum(size for name, size in use.components if name not in OUTSIDE)
