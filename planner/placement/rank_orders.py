"""Which orders of its ranks a layout can have where it will run, and in which of them its groups may lie better."""

from dataclasses import replace

from costmodels.layout import Layout, RankOrder
from costmodels.pricing import Pricing
from planner.request import PlanRequest
from planner.rules import broken_rules
from planner.rules.proposal import grid_of


def rank_orders(request: PlanRequest, pricing: Pricing, layout: Layout) -> tuple[Layout, ...]:
    """Return the layout with its ranks in the other orders that its framework can launch and that can matter.

    Parameters
    ----------
    request : PlanRequest
        States the framework.
    pricing : Pricing
        Of the layout's island.
    layout : Layout
        With its ranks in the usual order.

    Returns
    -------
    tuple of Layout
        Empty without stages or replicas, inside one fast domain, and where layers have unlike grids. Where the domain
        is a partial mesh or a torus, whose rates depend on which members meet, ranks keep their order unless their
        blocks fill it, so that the same members meet; under Megatron FSDP (ZeRO 2 and 3), which makes its own mesh of
        ranks, they always do.
    """
    first = layout.first
    strategies = [run.strategy for stage in layout.stages for run in stage.strategies]
    inner = pricing.tiers[0]
    if layout.pp == 1 or first.dp == 1 or inner.gpus >= layout.gpus:
        return ()
    if (inner.links or inner.axes) and (first.tp * first.cp) % inner.gpus:
        return ()
    if first.zero > 1 or len({grid_of(strategy) for strategy in strategies}) > 1:
        return ()
    turned = replace(layout, rank_order=RankOrder.PP_INSIDE)
    broken = broken_rules(turned, request)
    return () if broken else (turned,)
