"""Heat: closed forms, monotonicity, published readings."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodels.power.accelerator import PowerModel, Work, power_model, power_w, step_load, step_power
from costmodels.power.thermal import (
    Slots,
    ThermalModel,
    ThermalState,
    burst_rise_c,
    quadratic_c,
    steady_state,
    temperatures_c,
    thermal_model,
)
from costmodels.table import Floats
from hardware.catalog import node_type
from hardware.cluster import CoolingKind

NODE = node_type("dgx-h100")
POWER = power_model(NODE.accelerator)
AIR = thermal_model(NODE)
STEP = {Work.GEMM: 0.7, Work.ATTENTION: 0.1, Work.MEMORY: 0.1, Work.COMMUNICATION: 0.1}


def two_rows(inlet_c: float = 25.0, coupling_c_per_w: float = 0.014) -> ThermalModel:
    return replace(AIR, rows=((0, 1), (2, 3)), inlet_c=inlet_c, coupling_c_per_w=coupling_c_per_w)


def test_temperature_by_slot() -> None:
    model = two_rows()
    watts = np.array([700.0, 600.0, 500.0, 400.0])
    own = 25.0 + model.resistance_c_per_w * watts
    behind = np.array([0.0, 0.0, 0.014 * 700.0, 0.014 * 600.0])
    np.testing.assert_allclose(temperatures_c(model, watts), own + behind)


def test_three_rows_gather_the_heat_of_both_before() -> None:
    model = replace(AIR, rows=((2,), (0,), (1,)), coupling_c_per_w=0.01)
    np.testing.assert_allclose(
        temperatures_c(model, np.array([100.0, 100.0, 100.0])) - 25.0 - 100.0 * model.resistance_c_per_w,
        [1.0, 2.0, 0.0],
        atol=1e-9,
    )


def test_quadratic_form() -> None:
    degrees = quadratic_c(np.array([0.0, 100.0]), ambient_c=30.0, ambient_c_per_w=0.1, case_c_per_w2=1e-4)
    np.testing.assert_allclose(degrees, [30.0, 41.0])


def test_a_long_burst_ends_at_its_steady_temperature() -> None:
    model = two_rows(coupling_c_per_w=0.0)
    mean = np.full(4, 300.0)
    above = 700.0 - mean
    np.testing.assert_allclose(burst_rise_c(model, above, 0.0), 0.0)
    steady = temperatures_c(model, np.full(4, 700.0)) - temperatures_c(model, mean)
    np.testing.assert_allclose(burst_rise_c(model, above, 3600.0), steady, rtol=1e-6)


def test_a_burst_of_a_second_swings_as_measured() -> None:
    # H200 between 136 W and 548 W about every second: 12 to 14 C (Virginia Tech ARC documentation).
    swing = burst_rise_c(AIR, np.full(8, 548.0 - 136.0), 1.07)
    assert 10.0 < swing[0] < 16.0


def test_front_and_rear_rows_of_h100() -> None:
    # github.com/oracle-quickstart/oci-gpu-scanner, health-check sample: rows 65.4 C at 699 W and 74.6 C at 691 W.
    watts = np.array([698.1, 698.8, 699.8, 675.9, 699.3, 691.8, 696.6, 699.0])
    measured = np.array([63.0, 73.75, 65.0, 75.0, 65.5, 74.5, 75.0, 68.0])
    np.testing.assert_allclose(temperatures_c(AIR, watts), measured, atol=3.5)


def test_liquid_cooling_has_constants_of_its_own() -> None:
    """Eight MI355X under load, coolant taken as 30 C (OCI guide of BM.GPU.MI355X)."""
    node = node_type("mi355x-8")
    node = replace(node, cooling=replace(node.cooling, kind=CoolingKind.LIQUID, inlet_c=30.0))
    watts = np.array([1224.0, 1231.0, 1219.0, 1249.0, 1275.0, 1267.0, 1273.0, 1317.0])
    measured = np.array([54.0, 54.0, 55.0, 56.0, 52.0, 56.0, 54.0, 54.0])
    np.testing.assert_allclose(temperatures_c(thermal_model(node), watts), measured, atol=3.5)


def test_what_a_node_states_of_its_cooling_counts() -> None:
    """T + P R_ja + P^2 R_jc and the heat of the row before, of a node that states all of them."""
    stated = replace(
        NODE.cooling, inlet_c=22.0, resistance_c_per_w=0.03, coupling_c_per_w=0.01, quadratic_c_per_w2=5e-5
    )
    model = thermal_model(replace(NODE, cooling=stated))
    front, rear = NODE.cooling.rows[0][0], NODE.cooling.rows[1][0]
    found = temperatures_c(model, np.full(8, 600.0))
    own_c = 22.0 + 600.0 * 0.03 + 600.0**2 * 5e-5
    assert (found[front], found[rear]) == (pytest.approx(own_c), pytest.approx(own_c + 6.0))
    assert model.characterised


def balance(
    model: ThermalModel, seconds: dict[Work, Floats | float], step_s: float, power: PowerModel = POWER
) -> ThermalState:
    """Balance in steps of a length, under the power limit."""
    slots = Slots(
        load=step_load(power, seconds),
        step_s=np.array(step_s),
        inlet_c=np.array(model.inlet_c),
        highest_clock=step_power(power, seconds).clock,
        fixed=np.array(False),
    )
    return steady_state(model, power, slots)


def test_cool_machines_are_limited_by_power_only() -> None:
    state = balance(AIR, STEP, 1.2)
    assert not state.heat_limited.any()
    assert state.temperature_c.max() < AIR.limit_c
    np.testing.assert_allclose(state.busy_w, POWER.limit_w, atol=0.1)


def test_without_waits_the_die_is_at_its_steady_temperature() -> None:
    clock = float(step_power(POWER, STEP).clock)
    state = balance(AIR, STEP, float(step_load(POWER, STEP).busy_s(clock)))
    np.testing.assert_allclose(state.temperature_c, temperatures_c(AIR, state.mean_w))
    np.testing.assert_allclose(state.mean_w, state.busy_w)


def test_heat_slows_the_rear_row_first() -> None:
    state = balance(two_rows(inlet_c=39.0), STEP, 1.0)
    assert state.heat_limited.tolist() == [False, False, True, True]
    np.testing.assert_allclose(state.temperature_c[2:], AIR.limit_c, atol=0.01)
    assert (state.clock[2:] < state.clock[:2]).all()


def test_the_limit_is_the_highest_operating_temperature() -> None:
    assert AIR.limit_c == NODE.accelerator.max_operating_c < NODE.accelerator.slowdown_c


def test_unequal_work_per_gpu() -> None:
    light = {work: np.array([seconds, seconds, 0.2 * seconds, 0.0]) for work, seconds in STEP.items()}
    state = balance(two_rows(), light, 1.2)
    assert state.temperature_c[3] < state.temperature_c[2] < state.temperature_c[0]
    assert state.mean_w[3] == power_w(POWER, POWER.activity[Work.IDLE], state.clock[3])


def test_measured_clocks_hold() -> None:
    slots = Slots(
        load=step_load(POWER, STEP),
        step_s=np.array(1.2),
        inlet_c=np.array(60.0),
        highest_clock=np.array([0.8, 0.9, 0.8, 0.8]),
        fixed=np.array([False, True, False, False]),
    )
    state = steady_state(two_rows(), POWER, slots)
    assert state.clock[1] == 0.9
    assert state.clock[0] < 0.8


GEMM = st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4)


@given(inlet_c=st.floats(15.0, 60.0), coupling=st.floats(0.0, 0.03), gemm=GEMM)
@example(inlet_c=36.0, coupling=0.0234375, gemm=[0.0, 2.0, 0.0, 2.0])
@settings(max_examples=50, deadline=None)
def test_the_solution_holds_the_limit_or_the_least_clock(inlet_c: float, coupling: float, gemm: list[float]) -> None:
    state = balance(two_rows(inlet_c, coupling), {Work.GEMM: np.array(gemm)}, 3.0)
    least = np.isclose(state.clock, POWER.least_clock)
    assert ((state.busy_c <= AIR.limit_c + 0.01) | least).all()
    assert (state.temperature_c <= state.busy_c + 1e-6).all()  # the mean of a step that also waits
    assert (np.abs(state.busy_c[state.heat_limited & ~least] - AIR.limit_c) < 0.1).all()


@given(
    inlet_c=st.floats(30.0, 60.0),
    coupling=st.floats(0.0, 0.03),
    gemm=GEMM,
    lengths=st.lists(st.floats(2.2, 40.0), min_size=2, max_size=2),
)
@settings(max_examples=50, deadline=None)
def test_a_longer_step_leaves_faster_clocks(
    inlet_c: float, coupling: float, gemm: list[float], lengths: list[float]
) -> None:
    """What makes the step time a fixed point that halving finds: the step that follows falls with the length."""
    short, long = (
        balance(two_rows(inlet_c, coupling), {Work.GEMM: np.array(gemm)}, length) for length in sorted(lengths)
    )
    assert (long.clock >= short.clock - 1e-6).all()


@given(inlet_c=st.floats(15.0, 60.0), more_c=st.floats(0.0, 20.0), gemm=GEMM)
@settings(max_examples=30, deadline=None)
def test_a_warmer_inlet_never_helps_the_first_row(inlet_c: float, more_c: float, gemm: list[float]) -> None:
    cool, warm = (balance(two_rows(inlet), {Work.GEMM: np.array(gemm)}, 3.0) for inlet in (inlet_c, inlet_c + more_c))
    assert (warm.clock[:2] <= cool.clock[:2] + 1e-6).all()


def test_defaults_say_so_and_unlisted_gpus_stand_at_the_inlet() -> None:
    assert not AIR.characterised
    known = replace(NODE, cooling=replace(NODE.cooling, resistance_c_per_w=0.07, coupling_c_per_w=0.02))
    assert thermal_model(known).characterised
    assert thermal_model(known).resistance_c_per_w == 0.07
    bare = thermal_model(replace(NODE, cooling=replace(NODE.cooling, rows=())))
    assert bare.rows == (tuple(range(8)),)
