"""What an accelerator waits for the host that starts its kernels.

How the two share a pass is the exponent of the norm of their seconds that the pass takes.
"""

import math
from typing import Final

import numpy as np

from costmodels.table import Floats

BESIDE: Final = math.inf
"""The host runs ahead of the device, or the device waits for it: the longer of both."""
MEETING: Final = 2.0
"""They wait for each other within a layer: the root of the sum of squares."""
IN_TURN: Final = 1.0
"""Every launch waits for its kernel: the sum."""


def pass_s(device_s: Floats, host_s: Floats, exponent: Floats | float) -> Floats:
    """Return what device and host take together for a pass.

    Parameters
    ----------
    device_s, host_s : array
        Seconds of device and host for the same pass.
    exponent : array or float
        ``BESIDE``, ``MEETING`` or ``IN_TURN``; shapes broadcast.

    Returns
    -------
    array
        Seconds.

    References
    ----------
    ``docs/compute.md``, section "The host".
    """
    together = np.where(exponent == IN_TURN, device_s + host_s, np.hypot(device_s, host_s))
    return np.asarray(np.where(exponent == BESIDE, np.maximum(device_s, host_s), together))


def host_wait_s(device_s: Floats, host_s: Floats, exponent: Floats | float) -> Floats:
    """Return what a pass takes beyond its device seconds.

    Parameters
    ----------
    device_s, host_s : array
        As in :func:`pass_s` [s].
    exponent : array or float
        As there.

    Returns
    -------
    array
        Seconds.
    """
    return np.asarray(pass_s(device_s, host_s, exponent) - device_s)


def host_of_wait_s(device_s: Floats, wait_s: Floats, exponent: Floats | float) -> Floats:
    """Return the seconds of the host from what it makes a device wait: the inverse of :func:`host_wait_s`.

    Parameters
    ----------
    device_s, wait_s : array
        Seconds of the device, and what it waits beyond them.
    exponent : array or float
        As there.

    Returns
    -------
    array
        Seconds; where the host runs ahead and nothing waits, 0, the least that it may take.
    """
    whole = device_s + wait_s
    met = np.sqrt(np.maximum(whole**2 - device_s**2, 0.0))
    together = np.where(exponent == IN_TURN, wait_s, met)
    return np.asarray(np.where(exponent == BESIDE, np.where(wait_s > 0.0, whole, 0.0), together))
