"""Which node gets which block of ranks for the network's sake: what comes to lie below one leaf or in one domain.

Blocks of a node's ranks stay together, as launchers start them. Nodes in order keep the groups of a stage together,
stage after stage; stages that take turns bring pipeline neighbours below one switch; and where an allocation has unlike
parts of the groups, larger parts first or last let whole stages fit below one. Each order is priced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from costmodels.layout import Layout
from costmodels.network_loads import on_graph
from costmodels.placement import Placement, identity
from costmodels.price import price_layout, step_time_s
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost
from hardware.cluster import Island
from planner.placement.joint import PlacedLayout
from planner.search.effort import LAYOUT_S, UNENDING, Until

WORTH: Final = 1e-3
"""Part of the step that another order than that of the nodes has to save."""
MOST_ORDERS: Final = 6


def place_nodes(
    pricings: Sequence[Pricing],
    layout: Layout,
    cost: LayoutCost,
    others: Sequence[Layout] = (),
    until: Until = UNENDING,
) -> PlacedLayout:
    """Choose the order of nodes of a layout, and of its ranks.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island; only layouts on one island are placed.
    layout : Layout
        Whose blocks of ranks are placed.
    cost : LayoutCost
        Its price with the nodes in order.
    others : sequence of Layout
        The same with its ranks in other orders.
    until : Until
        No further order is priced after it.

    Returns
    -------
    PlacedLayout
        With the fastest orders; those given where no others save :data:`WORTH` of the step.
    """
    placed = PlacedLayout(layout=layout, cost=cost)
    pricing = pricings[0]
    if len(pricings) > 1 or layout.gpus % pricing.island.node.gpus:
        return placed
    limit_s = cost.step.total_s * (1.0 - WORTH)
    best: tuple[Layout, tuple[int, ...]] = (layout, ())
    orders = node_orders(layout, pricing.island)
    for one in (layout, *others):
        for nodes in orders if one is layout else ((), *orders):
            if until.late():
                return replace(_placed(pricing, placed, *best), cut=True)
            until.spend(LAYOUT_S)
            other_s = step_time_s([replace(pricing, nodes=nodes)], one)
            if other_s < limit_s:
                limit_s, best = other_s, (one, nodes)
    return _on_graph(pricing, placed, _placed(pricing, placed, *best))


def _placed(pricing: Pricing, given: PlacedLayout, layout: Layout, nodes: tuple[int, ...]) -> PlacedLayout:
    """Price a layout in full on nodes in some order; the one given is priced already."""
    if layout is given.layout and not nodes:
        return given
    per_node = pricing.island.node.gpus
    gpus = identity(layout.gpus, per_node).gpus
    return PlacedLayout(
        layout=layout,
        cost=price_layout([replace(pricing, nodes=nodes)], layout),
        placement=Placement(nodes=nodes[: layout.gpus // per_node], gpus=gpus) if nodes else None,
    )


def _on_graph(pricing: Pricing, given: PlacedLayout, found: PlacedLayout) -> PlacedLayout:
    """Price the orders found, and those given, with the paces of exchanges on the topology graph; the faster wins."""
    priced = []
    for one in (found, given) if found is not given else (given,):
        known = on_graph(replace(pricing, nodes=one.placement.nodes if one.placement else ()), one.layout)
        priced.append(replace(one, cost=price_layout([known], one.layout)) if known.speeds else one)
    return min(priced, key=lambda one: one.cost.step.total_s)


def node_orders(layout: Layout, island: Island) -> tuple[tuple[int, ...], ...]:
    """Return the orders of nodes worth pricing besides their own: the node of every block of ranks.

    Parameters
    ----------
    layout : Layout
        On one island, in whole nodes.
    island : Island
        Its network; none where all nodes are alike to each other.
    """
    spans = [tier for tier in island.fabric if 0 < tier.nodes < island.nodes]
    domain = max(island.domains, default=island.node.scale_up.domain_gpus // island.node.gpus)
    if not spans and not 1 < domain < island.nodes:
        return ()
    blocks = layout.gpus // island.node.gpus
    own = tuple(range(blocks))
    inner = domain if domain > 1 else spans[0].nodes
    bases = [tuple(range(island.nodes)), *_by_size(island)]
    orders = [base[:blocks] for base in bases]
    orders += [tuple(base[place] for place in turn) for base in bases for turn in _turns(layout, blocks, inner)]
    return tuple(order for order in dict.fromkeys(orders) if order != own)[:MOST_ORDERS]


def _by_size(island: Island) -> Iterator[tuple[int, ...]]:
    """Nodes with those of the largest parts of the innermost uneven domains or groups first, and last."""
    tier = next((tier for tier in island.fabric if tier.groups), None)
    if island.domains:
        held = {node: island.domains[island.domain_of(node)] for node in range(island.nodes)}
    elif tier is not None:
        held = {node: tier.groups[tier.group_of(node)] for node in range(island.nodes)}
    else:
        return
    for sign in (-1, 1):
        yield tuple(node for _, node in sorted((sign * nodes, node) for node, nodes in held.items()))


def _turns(layout: Layout, blocks: int, inner: int) -> Iterator[tuple[int, ...]]:
    """Places of blocks when stages take turns, a few nodes each: one, or as many as fill a switch with all stages."""
    pp = layout.pp
    per_stage = blocks // pp
    if pp == 1 or blocks % pp or per_stage < 2 or any(stage.gpus != layout.stages[0].gpus for stage in layout.stages):
        return
    for few in dict.fromkeys((1, inner // pp)):
        if 0 < few < per_stage and per_stage % few == 0:
            yield tuple(
                (chunk * pp + stage) * few + place
                for stage in range(pp)
                for chunk in range(per_stage // few)
                for place in range(few)
            )
