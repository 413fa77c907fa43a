"""Which accelerators are slower than their like, and clusters without the nodes that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.power.heat import device_arrays
from costmodels.pricing import Pricing
from hardware.cluster import Cluster, Island
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
        usual = float(np.median(clock[clock > 0.0])) if (clock > 0.0).any() else 1.0
        pace = np.where(clock > 0.0, clock / usual, 1.0) * speed
        found += [
            SlowDevice(node=first + int(node), gpu=int(gpu), pace=float(pace[node, gpu]))
            for node, gpu in np.argwhere(pace < SLOW)
        ]
        first += pricing.island.nodes
    return tuple(sorted(found, key=lambda device: (device.pace, device.node, device.gpu)))


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
