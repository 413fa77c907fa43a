"""Expert-parallel exchanges: dispatch and combine by dispatcher, and the experts' own tensor parallelism."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives import sent_share
from costmodels.collectives.dispatch import TokenTraffic, combine_s, copies_per_token, dispatch_s
from costmodels.collectives.leaving import pairs_leaving, ring_leaving
from costmodels.collectives.routing import Routing
from costmodels.exchange.placed import Call, Exchanged, Often, PlacedTable
from costmodels.job import Dispatcher, TrainingJob
from costmodels.mesh import Axis, PlacedGroup
from costmodels.table import Bools, Floats
from costmodels.workload.model import ModelSpec, MoeFfn

_FORWARDED: Final = ("dispatch", "combine")
_COLLECTIVES: Final = MappingProxyType(
    {
        Dispatcher.ALLTOALL: ("alltoall", "alltoall"),
        Dispatcher.ALLGATHER: ("all_gather", "reduce_scatter"),
        Dispatcher.DEEPEP: _FORWARDED,
        Dispatcher.HYBRIDEP: _FORWARDED,
    }
)


def expert_exchange(ffn: MoeFfn, model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Dispatch and combine; backward moves the same bytes the other way.

    Where sequence parallelism (or etp 1) leaves every rank its own tokens, all ranks of ``etp x ep`` exchange; the
    all-to-all dispatcher moves copies over ep and gathers them over etp. Where tp ranks hold the same tokens, each
    dispatches over ep alone and the experts' partial outputs are all-reduced over etp.
    """
    table, dispatcher = placed.table, job.software.dispatcher
    own = table.sequence_parallel | (table.etp == 1)
    width = ffn.latent or model.hidden
    traffic = TokenTraffic(
        tokens=placed.tokens(job) / table.sequence_split,
        token_bytes=width * job.precision.activation_bytes,
        routing=routing_of(ffn, model, job),
        imbalance=job.software.capacity_factor or job.software.routing_imbalance,
        etp=table.etp,
    )
    joint = Axis.EP if dispatcher is Dispatcher.ALLTOALL else Axis.ETP_EP
    calls = _moved(traffic, dispatcher, joint, placed, own)
    if not own.all():
        calls += _moved(replace(traffic, etp=1), dispatcher, Axis.EP, placed, ~own)
    once = Often(forward=1.0, backward=1.0)
    if dispatcher is Dispatcher.ALLTOALL:
        gathered = traffic.copies_bytes * table.etp
        calls.append(placed.call("all_gather", Axis.ETP, gathered, once, own))
        calls.append(placed.call("reduce_scatter", Axis.ETP, gathered, once, own))
    calls.append(placed.call("all_reduce", Axis.ETP, traffic.tokens * traffic.token_bytes, once, ~own))
    return placed.add_up(calls)


def routing_of(ffn: MoeFfn, model: ModelSpec, job: TrainingJob) -> Routing:
    """Return how the model's router chooses, or what the software puts in its place.

    Parameters
    ----------
    ffn : MoeFfn
        Experts of a layer.
    model : ModelSpec
        Groups that its router is limited to.
    job : TrainingJob
        Its software may route by turns.
    """
    details = model.known_details
    return Routing(
        experts=ffn.experts,
        top_k=ffn.top_k,
        groups=details.router_groups,
        group_top_k=details.router_group_top_k,
        consecutive=job.software.consecutive_routing,
    )


def _moved(traffic: TokenTraffic, dispatcher: Dispatcher, axis: Axis, placed: PlacedTable, rows: Bools) -> list[Call]:
    """Dispatch and combine over the ranks of an axis, on some rows."""
    group = placed.group(axis)
    some = rows & (group.size > 1)
    message, sent, leaving = _dispatched_bytes(traffic, dispatcher, group)
    return [
        Call(
            collective=_COLLECTIVES[dispatcher][number],
            axis=axis,
            message_bytes=np.where(some, message, 0.0),
            seconds=np.where(some, seconds(traffic, group, dispatcher, placed.tiers, placed.constants), 0.0),
            sent_bytes=np.where(some, sent, 0.0),
            leaving_bytes=np.where(some, leaving, 0.0),
            forward=1.0,
            backward=1.0,
            pace=group.pace(_COLLECTIVES[dispatcher][number]),
        )
        for number, seconds in enumerate((dispatch_s, combine_s))
    ]


def _dispatched_bytes(
    traffic: TokenTraffic, dispatcher: Dispatcher, group: PlacedGroup
) -> tuple[Floats, Floats, Floats]:
    """Message of one dispatch and bytes that leave a rank in it, shapes (S,), and over each outer tier, (T - 1, S)."""
    outer = range(group.domains.shape[1] - 1)
    if dispatcher is Dispatcher.ALLTOALL:
        copies = traffic.copies_bytes
        return copies, copies * sent_share("alltoall", group), pairs_leaving(copies, group)
    token_bytes = traffic.tokens * traffic.token_bytes
    if dispatcher is Dispatcher.ALLGATHER:
        gathered = token_bytes * group.size
        return gathered, token_bytes * (group.size - 1), ring_leaving(gathered, group)
    sent = token_bytes * copies_per_token(traffic, group, -1)
    none = np.zeros((0, len(token_bytes)))
    crossing = [token_bytes * copies_per_token(traffic, group, tier) for tier in outer]
    return sent, sent, np.stack(crossing) if crossing else none
