"""Changes of a request that may make it feasible, in the order of what they cost a user."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from hardware.cluster import Cluster
from hardware.nouns import count
from hardware.resized import with_nodes
from planner.layouts.grids import enumerate_grids
from planner.request import PlanRequest
from planner.rules import request_mask
from planner.search.effort import Until

DOUBLINGS: Final = 7  # of the number of nodes
SHORTEST_SEQ: Final = 512


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another request, and in words what is different."""

    words: str
    request: PlanRequest


def choices(request: PlanRequest) -> Iterator[Change]:
    """Yield the request with one pin less each, with recompute left free, and with all of that free."""
    for name, value in request.fixed:
        rest = tuple(item for item in request.fixed if item[0] != name)
        yield Change(words=f"free {name} (pinned to {value})", request=replace(request, fixed=rest))
    if request.recompute != "auto":
        yield Change(words="recompute auto", request=replace(request, recompute="auto"))
    if len(request.fixed) + (request.recompute != "auto") > 1:
        yield Change(words=_all_free(request), request=_freed(request))


def batches(request: PlanRequest) -> Iterator[Change]:
    """Yield the nearest global batches that the GPUs, or pinned dp and micro-batch, divide."""
    pinned = (request.fixed_degree("dp") or 1) * (request.fixed_degree("micro_batch") or 1)
    batch, steps = request.job.global_batch, {pinned, request.cluster.gpus}
    near = {size for step in steps for size in (batch // step * step, -(-batch // step) * step) if size}
    for size in sorted(near - {batch}, key=lambda size: (abs(size - batch), size)):
        job = replace(request.job, global_batch=size)
        yield Change(words=f"a global batch of {size}", request=replace(request, job=job))


def fewer_nodes(request: PlanRequest, until: Until) -> Iterator[Change]:
    """Yield the request on ever fewer nodes of its first island, where some grid over them multiplies out and is legal.

    Ends with the search.
    """
    first = request.cluster.islands[0]
    for nodes in range(first.nodes - 1, 0, -1):
        if until.late():
            return
        machine = _resized(request.cluster, nodes)
        grids = enumerate_grids(request, machine.islands[0].gpus)
        if request_mask(request, grids.table).ok.any():
            words = f"at most {nodes:,} of its {count(first.nodes, 'node')} ({count(machine.gpus, 'GPU')})"
            yield Change(words=words, request=replace(request, cluster=machine))


def more_nodes(request: PlanRequest, nodes: int) -> Change:
    """Return the request on so many nodes of its first island."""
    machine = _resized(request.cluster, nodes)
    words = f"{count(machine.nodes, 'node')} ({count(machine.gpus, 'GPU')})"
    return Change(words=words, request=replace(request, cluster=machine))


def and_more_sequences(request: PlanRequest, nodes: int) -> Change:
    """Return the request on so many nodes of its first island, with at least a sequence for every GPU."""
    change = more_nodes(request, nodes)
    job = replace(request.job, global_batch=max(request.job.global_batch, change.request.cluster.gpus))
    return Change(
        words=f"{change.words} and a global batch of {job.global_batch}", request=replace(change.request, job=job)
    )


def _resized(cluster: Cluster, nodes: int) -> Cluster:
    first, *others = cluster.islands
    return replace(cluster, islands=(with_nodes(first, nodes), *others))


def without_choices(request: PlanRequest) -> Change | None:
    """Return the request with nothing pinned; None when nothing is."""
    free = _freed(request)
    return None if free == request else Change(words=_all_free(request), request=free)


def shorter(request: PlanRequest) -> Iterator[Change]:
    """Yield the request with shorter sequences, each half as long as the one before.

    The first is the longest that the model has positions for where it has fewer, and a power of two for an odd length.
    """
    longest, seq = request.model.max_positions, request.job.seq
    lengths = [longest] if 0 < longest < seq else []
    seq = min(longest or seq, seq)
    while request.model.hidden and seq > SHORTEST_SEQ:
        seq = seq // 2 if seq % 2 == 0 else 1 << (seq.bit_length() - 1)
        lengths.append(seq)
    for length in lengths:
        job = replace(request.job, seq=length)
        yield Change(words=f"sequences of {length:,} tokens", request=replace(request, job=job))


def _freed(request: PlanRequest) -> PlanRequest:
    return replace(request, fixed=(), recompute="auto")


def _all_free(request: PlanRequest) -> str:
    pins = "free all pins" if request.fixed else ""
    recompute = "recompute auto" if request.recompute != "auto" else ""
    return ", ".join(filter(None, (pins, recompute)))
