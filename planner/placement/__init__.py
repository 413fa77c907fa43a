"""Which accelerator gets which rank, which node which stage, and how many layers each, by the pace heat leaves."""

from planner.placement.choose import one_order_each, place_all, scatter_best
from planner.placement.island_splits import place_and_split
from planner.placement.joint import SAME, PlacedLayout, place_layout, place_with_splits, placed_as_given
from planner.placement.nodes import node_orders, place_nodes
from planner.placement.order import in_order, placement_of, rank_places, stated_placement
from planner.placement.rank_orders import rank_orders
from planner.placement.scattered import scatter
from planner.placement.stage_islands import on_islands

__all__ = [
    "SAME",
    "PlacedLayout",
    "in_order",
    "node_orders",
    "on_islands",
    "one_order_each",
    "place_all",
    "place_and_split",
    "place_layout",
    "place_nodes",
    "place_with_splits",
    "placed_as_given",
    "placement_of",
    "rank_orders",
    "rank_places",
    "scatter",
    "scatter_best",
    "stated_placement",
]
