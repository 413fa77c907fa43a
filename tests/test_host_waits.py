"""How a device and the host that starts its kernels share a pass."""

import numpy as np
import pytest

from costmodels.host_waits import BESIDE, IN_TURN, MEETING, host_of_wait_s, host_wait_s, pass_s

DEVICE_S, HOST_S = np.array([3.0, 3.0, 4.0]), np.array([1.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("exponent", "together"),
    [(BESIDE, [244.0**0.2, 1267.0**0.2, 1267.0**0.2]), (MEETING, [10.0**0.5, 5.0, 5.0]), (IN_TURN, [4.0, 7.0, 7.0])],
)
def test_a_pass_is_nearly_the_longer_or_the_root_or_the_sum(exponent: float, together: list[float]) -> None:
    assert pass_s(DEVICE_S, HOST_S, exponent) == pytest.approx(np.array(together))


@pytest.mark.parametrize("exponent", [BESIDE, MEETING, IN_TURN])
def test_the_host_follows_from_what_it_makes_the_device_wait(exponent: float) -> None:
    wait_s = host_wait_s(DEVICE_S, HOST_S, exponent)
    assert host_wait_s(DEVICE_S, host_of_wait_s(DEVICE_S, wait_s, exponent), exponent) == pytest.approx(wait_s)


def test_layers_of_a_measured_model_wait_where_host_and_device_take_alike() -> None:
    """Milliseconds of a GPT layer on A100 with tp 1, forward and backward (from vTrain's published steps)."""
    host_s = np.array([1.20, 1.70])
    device_s = np.array([[0.39, 0.71], [0.70, 1.26], [0.84, 1.74], [1.56, 3.06]])  # two widths, one and two sequences
    measured_s = np.array([2.998, 3.161, 3.237, 4.759])
    beside = pass_s(device_s, host_s, BESIDE).sum(axis=1) / measured_s - 1.0
    longer = np.maximum(device_s, host_s).sum(axis=1) / measured_s - 1.0
    assert abs(beside).max() < 0.06
    assert abs(longer).max() > 0.08
    assert abs(beside).mean() < 0.5 * abs(longer).mean()


def test_nothing_to_do_takes_nothing() -> None:
    assert pass_s(np.zeros(1), np.zeros(1), BESIDE) == 0.0
    assert host_of_wait_s(np.zeros(1), np.zeros(1), BESIDE) == 0.0


def test_the_more_they_wait_for_each_other_the_longer_a_pass() -> None:
    beside, meeting, in_turn = (pass_s(DEVICE_S, HOST_S, exponent) for exponent in (BESIDE, MEETING, IN_TURN))
    assert (beside < meeting).all()
    assert (meeting < in_turn).all()
