"""What a layout sends over which link, what shares the link, and how far more accelerators help."""

from planner.traffic.ledger import StepCall, step_calls
from planner.traffic.networks import NetworkRanking, network_rankings
from planner.traffic.report import AxisTraffic, Resource, Sharing, Traffic, traffic_of
from planner.traffic.scaling import ScalePoint, Scaling, scaling_of

__all__ = [
    "AxisTraffic",
    "NetworkRanking",
    "Resource",
    "ScalePoint",
    "Scaling",
    "Sharing",
    "StepCall",
    "Traffic",
    "network_rankings",
    "scaling_of",
    "step_calls",
    "traffic_of",
]
