"""What slow accelerators cost: as the job runs, split and placed anew, and without the nodes that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.heat import device_arrays
from costmodels.price import price_layout_with_heat
from costmodels.pricing import Pricing
from hardware.cluster import Cluster, Island
from planner.plan_report import PlanReport
from planner.planning import plan, pricings_of
from planner.request import PlanRequest

SLOW: Final = 0.97
"""Pace of a device over the median of its island below which it counts as slow."""


@dataclass(frozen=True, kw_only=True)
class SlowDevice:
    """One slow accelerator: ``node`` over all islands, and its pace over the median."""

    node: int
    gpu: int
    pace: float


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """Step times with and without slow devices; 0.0 where there is none.

    Attributes
    ----------
    devices : tuple of SlowDevice
        Slowest first.
    healthy_s : float
        The best layout if all devices were like their kind [s].
    as_is_s : float
        That layout, ranks in order, on the cluster as it is [s].
    replanned_s : float
        The best layout found for the cluster as it is, layers and ranks placed anew [s].
    left_out : tuple of int
        Nodes without which the cluster has no slow device.
    without_s : float
        The best layout without those nodes [s]; 0.0 where nothing fits or no node is left.
    """

    devices: tuple[SlowDevice, ...]
    healthy_s: float
    as_is_s: float
    replanned_s: float
    left_out: tuple[int, ...]
    without_s: float


def slow_devices(pricings: Sequence[Pricing]) -> tuple[SlowDevice, ...]:
    """List the accelerators that are slower than most of their island, by speed and measured clock.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island.

    Returns
    -------
    tuple of SlowDevice
        Slowest first; ties by node and accelerator.
    """
    found: list[SlowDevice] = []
    first = 0
    for pricing in pricings:
        _, clock, speed = device_arrays(pricing)
        usual = float(np.median(clock[clock > 0.0])) if (clock > 0.0).any() else 1.0
        pace = np.where(clock > 0.0, clock / usual, 1.0) * speed
        found += [
            SlowDevice(node=first + int(node), gpu=int(gpu), pace=float(pace[node, gpu]))
            for node, gpu in np.argwhere(pace < SLOW)
        ]
        first += pricing.island.nodes
    return tuple(sorted(found, key=lambda device: (device.pace, device.node, device.gpu)))


def stragglers(report: PlanReport) -> Stragglers | None:
    """Say what the slow devices of a report's cluster cost, and what can be done.

    Parameters
    ----------
    report : PlanReport
        Of a search; its first layout is the answer to the cluster as it is.

    Returns
    -------
    Stragglers or None
        None where no device is slow or nothing fits.
    """
    request = report.request
    pricings = pricings_of(request)
    slow = slow_devices(pricings)
    if not slow or not report.layouts:
        return None
    healthy = plan(replace(request, cluster=_healthy(request.cluster), top=1))
    if not healthy.layouts:
        return None
    as_is = price_layout_with_heat(pricings, healthy.layouts[0].layout)
    left_out = tuple(sorted({device.node for device in slow}))
    return Stragglers(
        devices=slow,
        healthy_s=healthy.layouts[0].cost.step.total_s,
        as_is_s=as_is.step.total_s,
        replanned_s=report.layouts[0].cost.step.total_s,
        left_out=left_out,
        without_s=_without_s(request, left_out),
    )


def _healthy(cluster: Cluster) -> Cluster:
    return replace(cluster, islands=tuple(replace(island, devices=()) for island in cluster.islands))


def _without_s(request: PlanRequest, left_out: Sequence[int]) -> float:
    """Step time of the best layout without some nodes; 0.0 where there is none."""
    islands: list[Island] = []
    first = 0
    for island in request.cluster.islands:
        own = {node - first for node in left_out if first <= node < first + island.nodes}
        if island.nodes > len(own):
            islands.append(without_nodes(island, own))
        first += island.nodes
    if not islands:
        return 0.0
    fewer = plan(replace(request, cluster=replace(request.cluster, islands=tuple(islands)), top=1))
    return fewer.layouts[0].cost.step.total_s if fewer.layouts else 0.0


def without_nodes(island: Island, left_out: set[int]) -> Island:
    """Return an island without some of its nodes; the others keep their order, devices and inlets.

    Parameters
    ----------
    island : Island
        With more nodes than are left out.
    left_out : set of int
        Nodes, from 0.
    """
    kept = [node for node in range(island.nodes) if node not in left_out]
    place = {node: number for number, node in enumerate(kept)}
    devices = (replace(device, node=place[device.node]) for device in island.devices if device.node in place)
    inlets = tuple(island.inlets_c[node] for node in kept if node < len(island.inlets_c))
    return replace(island, nodes=len(kept), devices=tuple(devices), inlets_c=inlets)
