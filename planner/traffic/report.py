"""The traffic of a layout: what is sent over which tier for each axis, how busy shared links are, the busiest one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.explicit_step import priced_step
from costmodels.goodput import goodput
from costmodels.layout import Layout
from costmodels.network_loads import FlowSpeed, on_graph, seated, uneven_flows
from costmodels.pricing import Constants, Pricing, in_rank_order
from costmodels.results import LayoutCost
from costmodels.shared_links import pair_speeds
from costmodels.step import price_steps
from hardware.sharing import binding_link, nic_sharing
from hardware.tiers import Tier
from planner.placement import placement_of
from planner.plan_report import RankedLayout
from planner.planning import by_device, pricings_of
from planner.request import PlanRequest
from planner.traffic.ledger import Purpose, StepCall, step_calls

EXPOSED: Final = tuple(purpose for purpose in Purpose if purpose is not Purpose.SEND)
"""Purposes whose visible part the details of a step state; that of sends is inside the bubble."""


@dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """One kind of collective along one axis, of a rank of the busiest stage.

    Attributes
    ----------
    message_bytes : float
        The largest message.
    count : float
        Collectives of a step.
    tier : str
        Outermost tier that a group needs.
    busy_s : float
        Their time alone in a step.
    slow_bytes_per_token : float
        What all accelerators send over the innermost network tier, over the tokens of a step.
    exposed_share : float or None
        Part of the time of this purpose's collectives that no compute hides; None for sends, which show as bubble.
    """

    purpose: str
    axis: str
    collective: str
    algorithm: str
    ranks: int
    domains: int
    message_bytes: float
    count: float
    tier: str
    busy_s: float
    slow_bytes_per_token: float
    exposed_share: float | None


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A link that ranks share: the part of a step for which one rank's share of it is in use, and by what."""

    name: str
    tier: str
    busy_s: float
    share: float
    users: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What transfers of one phase cost each other.

    ``step_s`` is what the step would save without; ``sends``, ``reduction`` and ``gather`` are times over those alone;
    ``waits_s`` what exchanges of the busiest stage lose. ``checkpoint`` is the time of an exchange between nodes over
    its time alone while a checkpoint is written, 1.0 where it shares no link.
    """

    step_s: float
    sends: float
    reduction_s: float
    gather_s: float
    waits_s: float
    checkpoint: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Traffic report of a layout; ``resources`` are sorted, the bottleneck first.

    ``uneven`` are the exchanges that go at another pace on the topology graph than shares of the tiers give.
    """

    stage: int
    axes: tuple[AxisTraffic, ...]
    resources: tuple[Resource, ...]
    sharing: Sharing
    adapters: tuple[str, ...]
    uneven: tuple[FlowSpeed, ...] = ()

    @property
    def bottleneck(self) -> str:
        """Name of the busiest shared link; empty where nothing is exchanged."""
        return self.resources[0].name if self.resources and self.resources[0].busy_s > 0.0 else ""


def traffic_of(request: PlanRequest, ranked: RankedLayout, constants: Constants | None = None) -> Traffic:
    """Report the traffic of a priced layout.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    ranked : RankedLayout
        The layout and its price.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    Traffic
        Of a rank of the stage that takes longest.
    """
    layout, cost = ranked.layout, ranked.cost
    pricings = pricings_of(request, constants)
    if len(pricings) == 1 and ranked.placement:
        pricings = (_placed(request, pricings[0], ranked),)
    uneven: tuple[FlowSpeed, ...] = ()
    if len(pricings) == 1 and not by_device(request):
        uneven, pricings = uneven_flows(pricings[0], layout), (on_graph(pricings[0], layout),)
    pricings = in_rank_order(pricings, layout)
    stage = int(np.argmax(cost.stage_times_s))
    pricing = pricings[layout.stages[stage].island]
    calls = step_calls(pricing, layout, stage)
    tokens = float(request.job.global_batch * (request.job.seq if request.model.hidden else 1))
    paces = {(call.axis, call.speed) for call in calls if any(call.leaving_bytes)}
    uneven = tuple(flow for flow in uneven if (flow.axis, flow.speed) in paces)
    resources = tuple(_on_graph(link, uneven) for link in _resources(calls, pricing, cost.step.total_s))
    return Traffic(
        stage=stage,
        axes=_axes(calls, pricing.tiers, cost, layout.gpus / tokens),
        resources=resources,
        sharing=_sharing(pricings, layout, _beside_checkpoint(request, layout, calls, pricing)),
        adapters=nic_sharing(pricing.island.node) if len(pricing.tiers) > 1 else (),
        uneven=uneven,
    )


def _placed(request: PlanRequest, pricing: Pricing, ranked: RankedLayout) -> Pricing:
    """The pricing of an island that knows where the ranks of a placed layout are."""
    placement = placement_of(ranked.placement, request.cluster, ranked.layout, "placement", request.launcher)
    there = replace(pricing, nodes=placement.nodes)
    return seated(there, ranked.layout, placement.order) if placement.order else there


def _on_graph(link: Resource, uneven: Sequence[FlowSpeed]) -> Resource:
    """The link with the name of the one of its kind that binds the slowest uneven flow."""
    kind = link.name.partition(" towards")[0].replace("uplinks of the", "uplinks of")
    slowest = min(
        (flow for flow in uneven if flow.link.startswith(f"{kind} ")), key=lambda flow: flow.speed, default=None
    )
    return replace(link, name=slowest.link) if slowest and link.name.startswith("uplinks") else link


def _axes(
    calls: Sequence[StepCall], tiers: Sequence[Tier], cost: LayoutCost, gpus_per_token: float
) -> tuple[AxisTraffic, ...]:
    """Rows of the report: calls of one purpose, axis, collective and algorithm together."""
    keys = list(dict.fromkeys(_key(call) for call in calls))
    rows = []
    for key in keys:
        some = [call for call in calls if _key(call) == key]
        first = some[0]
        rows.append(
            AxisTraffic(
                purpose=first.purpose.value,
                axis=first.axis,
                collective=first.collective,
                algorithm=first.algorithm,
                ranks=first.ranks,
                domains=max(call.domains for call in some),
                message_bytes=max(call.message_bytes for call in some),
                count=sum(call.count for call in some),
                tier=tiers[max(call.tier for call in some)].name,
                busy_s=_busy_s(some),
                slow_bytes_per_token=gpus_per_token * sum(call.count * sum(call.leaving_bytes[:1]) for call in some),
                exposed_share=_exposed(first.purpose, calls, cost),
            )
        )
    return tuple(rows)


def _key(call: StepCall) -> tuple[str, str, str, str]:
    return call.purpose.value, call.axis, call.collective, call.algorithm


def _busy_s(calls: Iterable[StepCall]) -> float:
    return sum(call.count * call.seconds for call in calls)


def _exposed(purpose: Purpose, calls: Sequence[StepCall], cost: LayoutCost) -> float | None:
    alone_s = _busy_s(call for call in calls if call.purpose is purpose)
    shown_s = dict(cost.step.details).get(purpose.value)
    if purpose not in EXPOSED or shown_s is None or alone_s <= 0.0:
        return None
    return min(shown_s / alone_s, 1.0)


def _resources(calls: Sequence[StepCall], pricing: Pricing, step_s: float) -> tuple[Resource, ...]:
    """How long a rank's share of every tier is in use, the busiest first."""
    tiers = pricing.tiers
    found = []
    for number, tier in enumerate(tiers):
        by_user: dict[str, float] = {}
        for call in calls:
            over = call.leaving_bytes[number - 1] if number else _inside_bytes(call)
            if over > 0.0:
                # A group that has the link to itself goes faster than the share that all ranks together leave it.
                each_s = min(over / (tier.bytes_per_s * (call.speed if number else 1.0)), call.seconds)
                by_user[call.purpose.value] = by_user.get(call.purpose.value, 0.0) + call.count * each_s
        busy_s = sum(by_user.values())
        users = tuple(sorted(((name, time / busy_s) for name, time in by_user.items()), key=lambda user: -user[1]))
        name = _link_name(tiers, number, pricing)
        found.append(Resource(name=name, tier=tier.name, busy_s=busy_s, share=busy_s / step_s, users=users))
    return tuple(sorted(found, key=lambda resource: -resource.busy_s))


def _inside_bytes(call: StepCall) -> float:
    """What a rank sends inside its domain; nothing where its neighbours are all outside."""
    return max(call.sent_bytes - sum(call.leaving_bytes[:1]), 0.0)


def _link_name(tiers: Sequence[Tier], number: int, pricing: Pricing) -> str:
    """Name what a rank has a share of when it crosses a tier."""
    node, tier = pricing.island.node, tiers[number]
    if number == 0 or tier.name == "node":
        return f"{tier.kind.value} of the {tier.name} domain"
    if number == 1 or tiers[number - 1].name == "node":
        return binding_link(node)
    return f"uplinks of the {tiers[number - 1].name} towards the {tier.name}"


def _sharing(pricings: Sequence[Pricing], layout: Layout, checkpoint: float) -> Sharing:
    """Price the layout with and without what transfers cost each other."""
    step = priced_step(pricings, layout)
    together, alone = step.times, price_steps(step.pricings, step.costs, replace(step.contents, alone=True))
    sends = float(together.send_s[0] / alone.send_s[0]) if alone.send_s[0] > 0.0 else 1.0
    waits = dict(together.breakdown(0).details)["shared"]
    return Sharing(
        step_s=max(float(together.total_s[0] - alone.total_s[0]), 0.0),
        sends=sends,
        reduction_s=float(together.reduce_exposed_s[0] - alone.reduce_exposed_s[0]),
        gather_s=float(together.gather_exposed_s[0] - alone.gather_exposed_s[0]),
        waits_s=waits,
        checkpoint=checkpoint,
    )


def _beside_checkpoint(request: PlanRequest, layout: Layout, calls: Sequence[StepCall], pricing: Pricing) -> float:
    """Time of an exchange between nodes beside the writes of an asynchronous checkpoint, over its time alone.

    Every node writes an equal part through its adapters; the exchange that uses them most is taken.
    """
    rates = [tier.bytes_per_s for tier in pricing.tiers[1:]]
    loads = [
        call.leaving_bytes[0] / (rates[0] * call.seconds) for call in calls if rates and call.leaving_bytes[0] > 0.0
    ]
    if not loads:
        return 1.0
    found = goodput(request.model, request.job, request.cluster, layout.gpus)
    written = found.checkpoint_bytes / found.write_s / (layout.gpus * rates[0])
    mine, _ = pair_speeds(np.array([[min(max(loads), 1.0)]]), np.array([[min(written, 1.0)]]))
    return 1.0 / float(mine[0])
