"""The dependency graph of an order: operations, and transfers that block.

A node starts when its (at most two) predecessors have ended, a latency later where a tensor crosses stages. Boundary
``s`` lies between stages ``s`` and ``s + 1``; boundary ``pp - 1`` leads from the last stage back to the first, which
only schedules that loop use.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, leaving, order, positions
from hardware.errors import InputError

Ints = NDArray[np.int64]

NONE: Final = -1  # no predecessor, no boundary
BLOCKING_SCHEDULES: Final = frozenset({Schedule.GPIPE, Schedule.ONE_F_ONE_B})


class Transfers(StrEnum):
    """How stages exchange tensors.

    ``overlapped``: a tensor arrives a latency after it was made and nobody waits for the send. ``blocking``: sender and
    receiver both wait until the tensor has moved, and a transfer starts when both are there.
    """

    OVERLAPPED = "overlapped"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Graph:
    """Nodes: operations stage by stage in their order, then transfers.

    ``op`` has the columns kind, chunk, micro-batch and is -1 for transfers. ``latency`` is the boundary crossed by the
    tensor that comes from ``second``; ``boundary`` is the boundary that a transfer node occupies.
    """

    stage: Ints
    op: Ints
    first: Ints
    second: Ints
    latency: Ints
    boundary: Ints


def build_graph(spec: PipelineSpec, transfers: Transfers) -> Graph:
    """Dependency graph of the order of ``spec``.

    Raises
    ------
    InputError
        When transfers block in a schedule that the frameworks only run with overlapped transfers.
    """
    if transfers is Transfers.OVERLAPPED:
        return _overlapped(spec)
    if spec.schedule not in BLOCKING_SCHEDULES:
        allowed = " or ".join(sorted(BLOCKING_SCHEDULES))
        raise InputError(f"blocking transfers with schedule {spec.schedule}", allowed=f"schedule {allowed}")
    return _blocking(spec)


def hops(spec: PipelineSpec) -> Ints:
    """Boundary that a tensor crosses between position ``v`` and ``v + 1``; -1 when it stays on its stage."""
    table = positions(spec.schedule, spec.pp, spec.vpp)
    stage = np.empty(spec.pp * spec.vpp, dtype=np.int64)
    stage[table.ravel()] = np.repeat(np.arange(spec.pp), spec.vpp)
    here, there = stage[:-1], stage[1:]
    boundary = here if spec.schedule.loops else np.minimum(here, there)
    return np.where(here == there, NONE, boundary)


def _overlapped(spec: PipelineSpec) -> Graph:
    """One node per operation; it waits for its stage, and for its tensor a latency after that was made."""
    op = order(spec).reshape(-1, 3).astype(np.int64)
    count = len(op) // spec.pp
    node = np.arange(len(op))
    producer, boundary = _producers(spec)
    return Graph(
        stage=node // count,
        op=op,
        first=np.where(node % count == 0, NONE, node - 1),
        second=producer,
        latency=boundary,
        boundary=np.full(len(op), NONE),
    )


def _producers(spec: PipelineSpec) -> tuple[Ints, Ints]:
    """Node whose end sends the tensor of each node from another stage, and the boundary it crosses; -1: there is none.

    Tensors made on the same stage need no edge: the order of a stage runs their producer first, which is checked here.
    """
    table = order(spec)
    kind, chunk, microbatch = table.reshape(-1, 3).T
    node = np.arange(len(kind))
    position = positions(spec.schedule, spec.pp, spec.vpp)[node // table.shape[1], chunk]
    last = spec.pp * spec.vpp - 1
    where = np.full((len(Kind), last + 1, spec.num_microbatches), NONE, dtype=np.int64)
    where[kind, position, microbatch] = node
    hop = hops(spec)
    producer, boundary = np.full((2, len(node)), NONE, dtype=np.int64)
    forward, backward = kind == Kind.FORWARD, kind == Kind.BACKWARD
    for mask, source, step in (
        (forward & (position > 0), Kind.FORWARD, -1),
        (backward & (position < last), Kind.BACKWARD, 1),
        (backward & (position == last), Kind.FORWARD, 0),
        (kind == Kind.WEIGHT, Kind.BACKWARD, 0),
    ):
        at = position[mask]
        producer[mask] = where[source, at + step, microbatch[mask]]
        if step:
            boundary[mask] = hop[np.minimum(at, at + step)]
    local = (producer != NONE) & (boundary == NONE)
    if np.any(producer[local] >= node[local]):
        raise ValueError(f"{spec}: an operation runs before its producer")
    producer[local] = NONE
    leaves = leaving(spec) + np.arange(spec.pp)[:, None] * table.shape[1]
    return np.where(producer == NONE, NONE, leaves.ravel()[producer]), boundary


def _blocking(spec: PipelineSpec) -> Graph:
    """Operations and transfers that block; every stage has one chunk.

    Between two operations a stage sends, then receives, and waits for both. A send and a receive over the same boundary
    are posted together, as Megatron-LM's ``send_forward_recv_backward`` and ``send_backward_recv_forward`` do; others
    one after the other, as its ``send_forward`` and ``recv_forward``. Two transfers that always run together are one
    node.
    """
    op = order(spec).reshape(-1, 3).astype(np.int64)
    node, count = np.arange(len(op)), len(op) // spec.pp
    stage = node // count
    before = np.where(node % count == 0, NONE, node - 1)
    forward = op[:, 0] == Kind.FORWARD
    made = _transfer(spec, op, np.where(forward, stage, stage - 1))
    taken = _transfer(spec, op, np.where(forward, stage - 1, stage))
    sent = np.where(before == NONE, NONE, made[before])
    together = (taken != NONE) & (sent != NONE) & (_boundary(spec, taken) == _boundary(spec, sent))
    sending = np.where(sent == NONE, before, len(op) + sent)  # what a stage has done when its send is over
    posted = np.where(together, before, sending)
    posts = np.full((2, 2 * (spec.pp - 1) * spec.num_microbatches), NONE)  # what each side of a transfer runs before it
    seen = np.zeros_like(posts)  # and when the stage posts it
    for transfer, after, turn in ((made, node, 2 * node + 2), (taken, posted, 2 * node + 1)):
        some = transfer != NONE
        side = (stage[some] != _boundary(spec, transfer[some])).astype(np.int64)
        posts[side, transfer[some]], seen[side, transfer[some]] = after[some], turn[some]
    rename, kept = _merged(_boundary(spec, np.arange(posts.shape[1])), posts, seen[0])
    rename = np.concatenate([node, len(op) + rename, [NONE]])  # the last for what has no predecessor
    received = np.where(taken == NONE, sending, len(op) + taken)
    boundary = np.concatenate([np.full(len(op), NONE), _boundary(spec, kept)])
    return Graph(
        stage=np.concatenate([stage, boundary[len(op) :]]),
        op=np.concatenate([op, np.full((len(kept), 3), NONE)]),
        first=rename[np.concatenate([received, posts[0, kept]])],
        second=rename[np.concatenate([np.where(together, len(op) + sent, NONE), posts[1, kept]])],
        latency=np.full(len(boundary), NONE),
        boundary=boundary,
    )


def _transfer(spec: PipelineSpec, op: Ints, boundary: Ints) -> Ints:
    """Number of the transfer of each operation's tensor over a boundary; -1 at the ends of the pipeline."""
    number = (boundary * 2 + op[:, 0]) * spec.num_microbatches + op[:, 2]
    return np.where((boundary >= 0) & (boundary < spec.pp - 1), number, NONE)


def _boundary(spec: PipelineSpec, transfer: Ints) -> Ints:
    """Boundary of a transfer."""
    return transfer // (2 * spec.num_microbatches)


def _merged(boundary: Ints, posts: Ints, seen: Ints) -> tuple[Ints, Ints]:
    """Number of the node of each transfer, and the first transfer of each node, in the order in which they are seen."""
    by_time = np.argsort(seen)
    keys = np.concatenate([boundary[None], posts])[:, by_time]
    _, first, node = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    rename = np.empty(len(seen), dtype=np.int64)
    rename[by_time] = rank[node.reshape(-1)]
    return rename, by_time[np.sort(first)]
