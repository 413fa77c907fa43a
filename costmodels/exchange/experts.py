"""Expert-parallel exchanges: dispatch and combine by dispatcher, and the experts' own tensor parallelism."""

from dataclasses import replace

import numpy as np

from costmodels.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from costmodels.collectives.dispatch import TokenTraffic, combine_s, copies_per_token, dispatch_s
from costmodels.collectives.routing import Routing
from costmodels.exchange.placed import Exchanged, PlacedTable
from costmodels.job import Dispatcher, TrainingJob
from costmodels.mesh import Axis
from costmodels.table import Floats
from costmodels.workload.model import ModelSpec, MoeFfn


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
        routing=_routing(ffn, model, job),
        imbalance=job.software.capacity_factor or job.software.routing_imbalance,
        etp=table.etp,
    )
    joint = Axis.EP if dispatcher is Dispatcher.ALLTOALL else Axis.ETP_EP
    over = _moved_s(traffic, dispatcher, joint, placed)
    if not own.all():
        over = np.where(own, over, _moved_s(replace(traffic, etp=1), dispatcher, Axis.EP, placed))
    copies = traffic.copies_bytes
    if dispatcher is Dispatcher.ALLTOALL:
        gathered = copies * table.etp
        over = over + placed.seconds(all_gather_s, Axis.ETP, gathered, own)
        over = over + placed.seconds(reduce_scatter_s, Axis.ETP, gathered, own)
    partial = traffic.tokens * traffic.token_bytes
    over = over + placed.seconds(all_reduce_s, Axis.ETP, partial, ~own)
    sent = 4.0 * _dispatched_bytes(traffic, dispatcher, placed)
    return Exchanged(forward_s=over, backward_s=over, hidden_s=np.zeros_like(over), sent_bytes=sent)


def _routing(ffn: MoeFfn, model: ModelSpec, job: TrainingJob) -> Routing:
    """How the model's router chooses, or what the software puts in its place."""
    details = model.known_details
    return Routing(
        experts=ffn.experts,
        top_k=ffn.top_k,
        groups=details.router_groups,
        group_top_k=details.router_group_top_k,
        consecutive=job.software.consecutive_routing,
    )


def _moved_s(traffic: TokenTraffic, dispatcher: Dispatcher, axis: Axis, placed: PlacedTable) -> Floats:
    """Dispatch and combine over the ranks of an axis."""
    group = placed.group(axis)
    out = dispatch_s(traffic, group, dispatcher, placed.tiers, placed.constants)
    return out + combine_s(traffic, group, dispatcher, placed.tiers, placed.constants)


def _dispatched_bytes(traffic: TokenTraffic, dispatcher: Dispatcher, placed: PlacedTable) -> Floats:
    """Bytes that leave a rank in one dispatch."""
    table = placed.table
    if dispatcher is Dispatcher.ALLTOALL:
        return traffic.copies_bytes * (table.ep - 1) / table.ep
    token_bytes = traffic.tokens * traffic.token_bytes
    group = placed.group(Axis.ETP_EP)
    if dispatcher is Dispatcher.ALLGATHER:
        return token_bytes * (group.size - 1)
    return token_bytes * copies_per_token(traffic, group, -1)
