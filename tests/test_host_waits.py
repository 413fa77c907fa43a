"""How a device and the host that starts its kernels share a pass."""

import numpy as np
import pytest

from costmodels.host_waits import BESIDE, IN_TURN, MEETING, host_of_wait_s, host_wait_s, pass_s

DEVICE_S, HOST_S = np.array([3.0, 3.0, 4.0]), np.array([1.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("exponent", "together"),
    [(BESIDE, [3.0, 4.0, 4.0]), (MEETING, [10.0**0.5, 5.0, 5.0]), (IN_TURN, [4.0, 7.0, 7.0])],
)
def test_a_pass_is_the_longer_the_root_or_the_sum(exponent: float, together: list[float]) -> None:
    assert pass_s(DEVICE_S, HOST_S, exponent) == pytest.approx(np.array(together))


@pytest.mark.parametrize("exponent", [BESIDE, MEETING, IN_TURN])
def test_the_host_follows_from_what_it_makes_the_device_wait(exponent: float) -> None:
    wait_s = host_wait_s(DEVICE_S, HOST_S, exponent)
    assert host_wait_s(DEVICE_S, host_of_wait_s(DEVICE_S, wait_s, exponent), exponent) == pytest.approx(wait_s)


def test_the_more_they_wait_for_each_other_the_longer_a_pass() -> None:
    beside, meeting, in_turn = (pass_s(DEVICE_S, HOST_S, exponent) for exponent in (BESIDE, MEETING, IN_TURN))
    assert (beside < meeting).all()
    assert (meeting < in_turn).all()
