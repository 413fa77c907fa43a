"""What an accelerator waits for the host that starts its kernels."""

import numpy as np

from costmodels.table import Bools, Floats


def host_wait_s(device_s: Floats, host_s: Floats, meets: Bools) -> Floats:
    """Return what a pass takes beyond its device seconds.

    Parameters
    ----------
    device_s, host_s : array
        Seconds of device and host for the same pass.
    meets : array of bool
        Where the two wait for each other within a layer.

    Returns
    -------
    array
        Seconds: up to the end of the longer one, or, where both meet, of the root of the sum of squares.

    References
    ----------
    ``docs/compute.md``, section "The host".
    """
    whole = np.where(meets, np.hypot(device_s, host_s), np.maximum(device_s, host_s))
    return np.asarray(whole - device_s)


def host_of_wait_s(device_s: Floats, wait_s: Floats, meets: Bools) -> Floats:
    """Return the seconds of the host from what it makes a device wait: the inverse of :func:`host_wait_s`.

    Parameters
    ----------
    device_s, wait_s : array
        Seconds of the device, and what it waits beyond them.
    meets : array of bool
        As there.

    Returns
    -------
    array
        Seconds; where both do not meet and nothing waits, 0, the least that the host may take.
    """
    whole = device_s + wait_s
    met = np.sqrt(np.maximum(whole**2 - device_s**2, 0.0))
    return np.asarray(np.where(meets, met, np.where(wait_s > 0.0, whole, 0.0)))
