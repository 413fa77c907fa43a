"""The dependency graph of an order: operations, and transfers that block.

A node starts when its (at most two) predecessors have ended, a latency later where a tensor crosses stages. Boundary
``s`` lies between stages ``s`` and ``s + 1``; boundary ``pp - 1`` leads from the last stage back to the first, which
only interleaved schedules use.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, order, positions
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
    return _Blocking(spec).graph()


def hops(spec: PipelineSpec) -> Ints:
    """Boundary that a tensor crosses between position ``v`` and ``v + 1``; -1 when it stays on its stage."""
    table = positions(spec.schedule, spec.pp, spec.vpp)
    stage = np.empty(spec.pp * spec.vpp, dtype=np.int64)
    stage[table.ravel()] = np.repeat(np.arange(spec.pp), spec.vpp)
    here, there = stage[:-1], stage[1:]
    boundary = here if spec.schedule is Schedule.INTERLEAVED else np.minimum(here, there)
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
    """Node that makes the tensor of each node on another stage, and the boundary it crosses; -1 when there is none.

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
    return producer, boundary


class _Tensor(NamedTuple):
    """A tensor that crosses a boundary: an activation (of a forward) or its gradient (of a backward)."""

    kind: int
    boundary: int
    microbatch: int


@dataclass(slots=True)
class _Blocking:
    """Builds the graph whose transfers block; every stage has one chunk.

    Between two operations a stage sends, then receives, and waits for both. A send and a receive over the same boundary
    are posted together, as Megatron-LM's ``send_forward_recv_backward`` and ``send_backward_recv_forward`` do; others
    one after the other, as its ``send_forward`` and ``recv_forward``.
    """

    spec: PipelineSpec
    transfers: dict[_Tensor, int] = field(default_factory=dict)
    posts: list[list[int]] = field(default_factory=list)  # per transfer: what each side runs before it

    def graph(self) -> Graph:
        """Operations and transfers; two transfers that always run together are one node."""
        table = order(self.spec).tolist()
        waits = [wait for stage, ops in enumerate(table) for wait in self._stage(stage, ops)]
        total = len(waits)
        rename = list(range(total))
        merged: dict[tuple[int, ...], int] = {}
        for tensor, posts in zip(self.transfers, self.posts, strict=True):
            rename.append(total + merged.setdefault((tensor.boundary, *posts), len(merged)))
        preds = waits + [(posts[0], posts[1]) for _, *posts in merged]
        first, second = (
            np.array([rename[n] if n != NONE else NONE for n in side]) for side in zip(*preds, strict=True)
        )
        boundary = np.array([NONE] * total + [key[0] for key in merged])
        op = np.array([op for ops in table for op in ops] + [[NONE] * 3] * len(merged))
        stage = np.concatenate([np.arange(total) // len(table[0]), boundary[total:]])
        return Graph(stage=stage, op=op, first=first, second=second, latency=np.full(len(op), NONE), boundary=boundary)

    def _stage(self, stage: int, ops: list[list[int]]) -> list[tuple[int, int]]:
        """Predecessors of each operation of a stage; posts its transfers."""
        waits = []
        send: _Tensor | None = None
        previous = NONE
        for index, (kind, _, microbatch) in enumerate(ops):
            receive = self._tensor(kind, stage - 1 if kind == Kind.FORWARD else stage, microbatch)
            sent = self._post(send, previous)
            together = send is not None and receive is not None and send.boundary == receive.boundary
            received = self._post(receive, previous if together else sent)
            waits.append((received, sent if together else NONE))
            previous = stage * len(ops) + index
            send = self._tensor(kind, stage if kind == Kind.FORWARD else stage - 1, microbatch)
        self._post(send, previous)
        return waits

    def _tensor(self, kind: int, boundary: int, microbatch: int) -> _Tensor | None:
        """Tensor over a boundary; None at the ends of the pipeline."""
        return _Tensor(kind, boundary, microbatch) if 0 <= boundary < self.spec.pp - 1 else None

    def _post(self, tensor: _Tensor | None, after: int) -> int:
        """Post one side of a transfer after a node; return the node that ends it."""
        if tensor is None:
            return after
        index = self.transfers.setdefault(tensor, len(self.transfers))
        if index == len(self.posts):
            self.posts.append([])
        self.posts[index].append(after)
        return self.spec.pp * len(order(self.spec)[0]) + index
