"""Traffic reports as plain data."""

from collections.abc import Sequence
from dataclasses import asdict

from planner.traffic import NetworkRanking, Scaling, Traffic


def traffic_to_json(traffic: Traffic) -> dict[str, object]:
    """Return a traffic report as plain data; times in seconds, sizes in bytes."""
    return {
        "stage": traffic.stage,
        "bottleneck": traffic.bottleneck,
        "axes": [asdict(row) for row in traffic.axes],
        "links": [{**asdict(link), "users": dict(link.users)} for link in traffic.resources],
        "sharing": asdict(traffic.sharing),
        "adapters": list(traffic.adapters),
        "uneven": [
            {"axis": flow.axis.value, "pattern": flow.pattern.value, "speed": flow.speed, "link": flow.link}
            for flow in traffic.uneven
        ],
    }


def networks_to_json(networks: Sequence[NetworkRanking]) -> list[dict[str, object]]:
    """Return rankings on other networks as plain data."""
    return [{"factor": item.factor, "order": list(item.order), "step_s": list(item.step_s)} for item in networks]


def scaling_to_json(scaling: Scaling) -> dict[str, object]:
    """Return curves over the number of accelerators as plain data."""
    return {
        "fixed_batch": [asdict(point) for point in scaling.fixed],
        "scaled_batch": [asdict(point) for point in scaling.scaled],
        "helps_until_gpus": scaling.helps_until,
    }
