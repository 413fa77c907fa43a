"""Which accelerators are slower than their like, and clusters without the nodes that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.power.accelerator import clock_under, power_model
from costmodels.power.heat import device_arrays
from costmodels.pricing import Pricing
from costmodels.table import Floats
from hardware.cluster import Cluster, DeviceState, Island
from hardware.resized import without_nodes

SLOW: Final = 0.97
"""Pace of a device over the median of its island below which it counts as slow."""


@dataclass(frozen=True, kw_only=True)
class SlowDevice:
    """One slow accelerator: ``node`` over all islands, and its pace over the median."""

    node: int
    gpu: int
    pace: float


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
        pace = np.where(clock > 0.0, clock / usual_clock(pricing, clock), 1.0) * speed
        found += [
            SlowDevice(node=first + int(node), gpu=int(gpu), pace=float(pace[node, gpu]))
            for node, gpu in np.argwhere(pace < SLOW)
        ]
        first += pricing.island.nodes
    return tuple(sorted(found, key=lambda device: (device.pace, device.node, device.gpu)))


def usual_clock(pricing: Pricing, clock: Floats) -> float:
    """Clock that measured ones are held against, over the highest.

    Parameters
    ----------
    pricing : Pricing
        Of an island.
    clock : array
        Measured clocks over the highest one, 0.0 where not measured.

    Returns
    -------
    float
        The median where most of an island is measured. Where less is, those that are measured may be the slow ones:
        then at least the clock of matrix products under the power limit, below which no work is slowed by it.
    """
    measured = clock[clock > 0.0]
    median = float(np.median(measured)) if measured.size else 1.0
    if 2 * measured.size > clock.size:
        return median
    limit_w = pricing.power_limit_w or np.inf
    return max(median, float(clock_under(power_model(pricing.accelerator), 1.0, limit_w)))


def with_like_devices(cluster: Cluster, pricings: Sequence[Pricing]) -> Cluster:
    """Return a cluster whose slow devices are like the others of their island: as most were measured, else as modelled.

    Parameters
    ----------
    cluster : Cluster
        With the devices.
    pricings : sequence of Pricing
        One per island of it.
    """
    slow = {(device.node, device.gpu) for device in slow_devices(pricings)}
    islands: list[Island] = []
    first = 0
    for island, pricing in zip(cluster.islands, pricings, strict=True):
        _, clock, _ = device_arrays(pricing)
        known = 2 * np.count_nonzero(clock) > clock.size
        highest_hz = pricing.accelerator.max_clock_hz or pricing.accelerator.peak_clock_hz
        usual_hz = usual_clock(pricing, clock) * highest_hz
        devices = [device for device in island.devices if (first + device.node, device.gpu) not in slow]
        if known:
            others = [device for device in island.devices if (first + device.node, device.gpu) in slow]
            devices += [DeviceState(node=device.node, gpu=device.gpu, clock_hz=usual_hz) for device in others]
        islands.append(replace(island, devices=tuple(devices)))
        first += island.nodes
    return replace(cluster, islands=tuple(islands))


def without_slow_nodes(cluster: Cluster, slow: Sequence[SlowDevice]) -> Cluster | None:
    """Return a cluster without the nodes that hold slow devices; None where an island would be left without nodes.

    Parameters
    ----------
    cluster : Cluster
        With the devices.
    slow : sequence of SlowDevice
        Of that cluster.
    """
    islands: list[Island] = []
    first = 0
    for island in cluster.islands:
        own = {device.node - first for device in slow if first <= device.node < first + island.nodes}
        if len(own) == island.nodes:
            return None
        islands.append(without_nodes(island, own))
        first += island.nodes
    return replace(cluster, islands=tuple(islands))
