"""What an accelerator waits for the host that starts its kernels.

How the two share a pass is the exponent of the norm of their seconds that the pass takes.
"""

from typing import Final

import numpy as np

from costmodels.table import Floats

BESIDE: Final = 5.0
"""The host runs ahead of the device, or the device waits for it: the longer of both where one is far shorter.

Where they are alike each waits for the other now and then: 1.15 times either. Fitted to 405 steps of GPT on A100 with
tp 1 that wait for their hosts (mean error 2.9 % in place of 4.6 % for the longer of both, 4.3 % at 3, 3.0 % at 4, 3.7 %
at 8); held out, eight of the vendors' runs 4.5 % in place of 6.2 %. Range 4 to 6."""
MEETING: Final = 2.0
"""They wait for each other within a layer: the root of the sum of squares, beside exchanges in which hosts run on."""
IN_TURN: Final = 1.0
"""Every launch waits for its kernel: the sum."""
_LEAST_S: Final = 1e-30  # against a division by zero where neither has anything to do


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
    longer_s = np.maximum(device_s, host_s)
    share = np.minimum(device_s, host_s) / np.maximum(longer_s, _LEAST_S)
    return np.asarray(longer_s * (1.0 + share**exponent) ** (1.0 / np.asarray(exponent)))


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
        Seconds.
    """
    whole_s = np.asarray(device_s + wait_s)
    share = device_s / np.maximum(whole_s, _LEAST_S)
    return np.asarray(whole_s * np.maximum(1.0 - share**exponent, 0.0) ** (1.0 / np.asarray(exponent)))
