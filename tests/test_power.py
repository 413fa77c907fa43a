"""Power and clock: closed forms, monotonicity, published curves."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.power.accelerator import (
    WAITS,
    PowerModel,
    Work,
    busy_w,
    clock_under,
    peak_w,
    power_model,
    power_w,
    step_load,
    step_power,
    time_factor,
)
from costmodels.power.node import capped_island, gpu_share_w, node_w
from hardware.catalog import accelerator, accelerator_names, cluster
from hardware.cluster import Cluster, CoolingKind
from hardware.errors import InputError
from planner.question import Question, request_of

A100 = power_model(accelerator("a100-sxm-80gb"))
H100 = power_model(accelerator("h100-sxm-80gb"))
STAGE = {Work.GEMM: 0.7, Work.ATTENTION: 0.1, Work.MEMORY: 0.2}

SHARES = st.fixed_dictionaries({work: st.floats(0.0, 5.0) for work in Work})
CLOCKS = st.floats(0.15, 1.0)


def test_draw_at_full_clock_is_static_and_dynamic() -> None:
    assert float(power_w(A100, 1.0, 1.0)) == pytest.approx(A100.static_w + A100.dynamic_w)
    assert float(power_w(A100, 0.0, 0.5)) == A100.static_w


def test_below_the_knee_the_clock_follows_the_limit_linearly() -> None:
    limit_w = 200.0
    expected = (limit_w - A100.static_w) / (A100.dynamic_w * A100.voltage_floor**2)
    assert float(clock_under(A100, 1.0, limit_w)) == pytest.approx(expected, abs=1e-6)


def test_time_follows_the_clock_bound_share() -> None:
    np.testing.assert_allclose(time_factor(np.array([1.0, 0.5]), 0.8), [1.0, 0.2 + 1.6])


@given(activity=st.floats(0.01, 1.0), low=CLOCKS, high=CLOCKS)
def test_draw_rises_with_the_clock(activity: float, low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    assert power_w(H100, activity, low) <= power_w(H100, activity, high)


@given(activity=st.floats(0.01, 1.0), low=st.floats(50.0, 1500.0), high=st.floats(50.0, 1500.0))
def test_clock_rises_with_the_limit_and_keeps_it(activity: float, low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    clocks = clock_under(H100, activity, np.array([low, high]))
    assert clocks[0] <= clocks[1]
    drawn = power_w(H100, activity, clocks)
    assert ((drawn <= np.array([low, high])) | (clocks == H100.least_clock)).all()


@given(seconds=SHARES, low=st.floats(100.0, 1200.0), high=st.floats(100.0, 1200.0))
def test_a_higher_limit_is_never_slower(seconds: dict[Work, float], low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    state = step_power(H100, seconds, limit_w=np.array([low, high]))
    assert state.clock[0] <= state.clock[1]
    assert state.slowdown[0] >= state.slowdown[1] - 1e-12


@given(seconds=SHARES, low=CLOCKS, high=CLOCKS)
def test_the_mean_draw_rises_with_the_clock(seconds: dict[Work, float], low: float, high: float) -> None:
    """The property that makes the bisection exact; docs/power.md proves it."""
    low, high = min(low, high), max(low, high)
    state = step_power(H100, seconds, limit_w=1e9, highest_clock=np.array([low, high]))
    assert state.mean_w[0] <= state.mean_w[1] + 1e-9


@given(seconds=SHARES, clock=CLOCKS)
def test_a_load_is_the_sum_of_its_kinds(seconds: dict[Work, float], clock: float) -> None:
    load = step_load(H100, seconds)
    busy_s = sum(
        seconds[work] * float(time_factor(clock, H100.clock_bound[work])) for work in Work if work not in WAITS
    )
    assert float(load.busy_s(clock)) == pytest.approx(busy_s)


@given(seconds=SHARES, clock=CLOCKS, passes=st.lists(st.floats(0.0, 2.0), min_size=2, max_size=2))
def test_peaks_rise_with_the_length_of_a_pass(seconds: dict[Work, float], clock: float, passes: list[float]) -> None:
    load = step_load(H100, seconds)
    short, long = (float(peak_w(H100, load, clock, length)) for length in sorted(passes))
    assert float(busy_w(H100, load, clock)) - 1e-9 <= short <= long + 1e-9
    assert long <= float(busy_w(H100, load, 1.0)) + 1e-9


def test_what_limits() -> None:
    free = step_power(H100, {Work.MEMORY: 1.0})
    capped = step_power(H100, {Work.GEMM: 1.0})
    assert (bool(free.power_limited), bool(capped.power_limited)) == (False, True)
    assert float(free.clock) == 1.0
    assert float(capped.mean_w) == pytest.approx(700.0, abs=0.1)


def test_waits_are_no_work() -> None:
    busy = step_power(H100, {Work.GEMM: 1.0})
    half = step_power(H100, {Work.GEMM: 1.0, Work.IDLE: 1.0, Work.SPIN: 1.0})
    assert float(half.clock) == float(busy.clock)
    assert float(half.slowdown) == float(busy.slowdown)
    assert float(step_power(H100, {}).slowdown) == 1.0


# Published curves: throughput kept when the limit falls to a share of the draw without a limit (A100: locked clocks of
# pipeline stages, Perseus, SOSP 2024) or of the highest limit (V100 PCIe: limits, Zeus, NSDI 2023); medians.
@pytest.mark.parametrize(
    ("name", "highest_w", "kept"),
    [
        ("a100-sxm-80gb", 0.0, (0.96, 0.92, 0.87, 0.82, 0.68)),
        ("v100-pcie-32gb", 250.0, (0.98, 0.94, 0.90, 0.84, 0.70)),
    ],
)
def test_throughput_under_limits(name: str, highest_w: float, kept: tuple[float, ...]) -> None:
    model = power_model(accelerator(name))
    highest_w = highest_w or float(step_power(model, STAGE, limit_w=1e9).mean_w)
    shares = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    slowdown = step_power(model, STAGE, limit_w=shares * highest_w).slowdown
    np.testing.assert_allclose(slowdown[0] / slowdown[1:], kept, atol=0.03)


# Where stages and jobs took the least energy in published sweeps: A100 SXM at 1065 to 1080 of 1410 MHz (GPT-3 and BLOOM
# stages, Perseus, SOSP 2024), V100 PCIe at limits of 125 to 150 W of 250 W, in steps of 25 W (BERT, Zeus, NSDI 2023):
# share of the highest draw or limit, energy and throughput over those there, each from least to most.
@pytest.mark.parametrize(
    ("name", "highest_w", "limits", "energies", "throughputs"),
    [
        ("a100-sxm-80gb", 0.0, (0.54, 0.60), (0.68, 0.74), (0.80, 0.83)),
        ("v100-pcie-32gb", 250.0, (0.45, 0.65), (0.70, 0.85), (0.70, 0.87)),
    ],
)
def test_a_sweep_of_limits_finds_the_published_energy_optimum(
    name: str,
    highest_w: float,
    limits: tuple[float, float],
    energies: tuple[float, float],
    throughputs: tuple[float, float],
) -> None:
    model = power_model(accelerator(name))
    highest_w = highest_w or float(step_power(model, STAGE, limit_w=1e9).mean_w)
    shares = np.linspace(0.3, 1.0, 71)
    state = step_power(model, STAGE, limit_w=shares * highest_w)
    energy, throughput = state.mean_w * state.slowdown, state.slowdown[-1] / state.slowdown
    best = int(energy.argmin())
    assert limits[0] <= shares[best] <= limits[1]
    assert energies[0] <= energy[best] / energy[-1] <= energies[1]
    assert throughputs[0] <= throughput[best] <= throughputs[1]
    assert (np.diff(energy[:best]) < 0.0).all()  # one valley: a sweep cannot end in another
    assert (np.diff(energy[best:]) >= 0.0).all()  # level where the limit no longer holds
    knee = 1.0 - (1.0 - model.voltage_floor) / model.voltage_slope
    assert float(state.clock[best]) == pytest.approx(knee, abs=0.02)  # below it a slower clock lowers no voltage


@pytest.mark.parametrize(
    ("name", "limit_w", "share"),
    # Large bf16 products under the default limit over products at full clock: github.com/ai-dynamo/aiconfigurator
    # (H200 0.87, B200 0.86, GB200 0.84), github.com/oracle-quickstart/oci-gpu-scanner (H100 16384^3: 0.81).
    [
        ("h200-sxm-141gb", 700.0, 0.87),
        ("h100-sxm-80gb", 700.0, 0.81),
        ("b200-sxm-180gb", 1000.0, 0.86),
        ("gb200", 1200.0, 0.84),
    ],
)
def test_products_under_the_default_limit(name: str, limit_w: float, share: float) -> None:
    state = step_power(power_model(accelerator(name)), {Work.GEMM: 1.0}, limit_w=limit_w)
    assert 1.0 / float(state.slowdown) == pytest.approx(share, abs=0.05)


def test_cards_without_measurements_of_their_own_keep_what_a_sweep_measured() -> None:
    """Products on two RTX PRO 6000 server cards at limits of 300 to 450 W over 500 W; nothing was fitted to them.

    github.com/local-inference-lab/rtx6kpro, power-limit sweep.
    """
    state = step_power(
        power_model(accelerator("rtx-pro-6000")),
        {Work.GEMM: 1.0},
        limit_w=np.array([500.0, 300.0, 350.0, 400.0, 450.0]),
    )
    kept = np.mean([[0.790, 0.858, 0.9115, 0.9623], [0.787, 0.8521, 0.9136, 0.9598]], axis=0)
    np.testing.assert_allclose(state.slowdown[0] / state.slowdown[1:], kept, atol=0.035)


def test_b200_at_1000_w_against_gb200_at_1200_w() -> None:
    """The same silicon, published medians of large products: bf16 1387 and 1513 TFLOPS, nvfp4 3855 and 4087."""
    rates = []
    for name, limit_w in (("b200-sxm-180gb", 1000.0), ("gb200", 1200.0)):
        part = accelerator(name)
        state = step_power(power_model(part), {Work.GEMM: 1.0}, limit_w=limit_w)
        rates.append(part.max_clock_hz * part.multiprocessors / float(state.slowdown))
    assert rates[0] / rates[1] == pytest.approx(1387 / 1513, abs=0.03)
    assert rates[0] / rates[1] == pytest.approx(3855 / 4087, abs=0.03)


def test_h100_at_400_w_keeps_what_the_same_silicon_reaches_on_a_board_of_400_w() -> None:
    """Products: 488.5 TFLOPS on H100 NVL (132 multiprocessors, 400 W), 794.5 to 821.2 on three H100 SXM at 700 W.

    github.com/stas00/ml-engineering compute/accelerator/benchmarks. Nothing of the SXM part was fitted below 690 W.
    """
    state = step_power(H100, {Work.GEMM: 1.0}, limit_w=np.array([400.0, 700.0]))
    assert float(state.slowdown[1] / state.slowdown[0]) == pytest.approx(
        488.5 / np.mean([794.5, 807.1, 821.2]), abs=0.03
    )


def with_caps(node_w: float = 0.0, rack_w: float = 0.0, cluster_w: float = 0.0) -> Cluster:
    machine = cluster("dgx-h100:4")
    (island,) = machine.islands
    node = replace(island.node, power_cap_w=node_w, cooling=replace(island.node.cooling, rack_nodes=2))
    return replace(machine, power_cap_w=cluster_w, islands=(replace(island, node=node, rack_power_cap_w=rack_w),))


@pytest.mark.parametrize("caps", [{"node_w": 8000.0}, {"rack_w": 16000.0}, {"cluster_w": 32000.0}])
def test_caps_of_node_rack_and_cluster_are_shared(caps: dict[str, float]) -> None:
    machine = with_caps(**caps)
    (island,) = machine.islands
    share_w = capped_island(machine, island).node.gpu_power_cap_w
    assert 500.0 < share_w < 700.0
    assert node_w(island.node, 8 * share_w) == pytest.approx(8000.0)
    assert gpu_share_w(island.node, 8000.0) == pytest.approx(share_w)


def test_what_a_node_draws_beside_its_accelerators() -> None:
    """Adapters of 20 W and the larger of rest and load of the processors; fans take 15 % of all of it in air alone."""
    node = cluster("dgx-h100:4").islands[0].node
    for idle_w, cpu_w in ((300.0, 900.0), (900.0, 300.0)):
        hosted = replace(node, host=replace(node.host, idle_w=idle_w, cpu_w=cpu_w))
        inside_w = 5000.0 + 900.0 + 20.0 * node.nics.count
        assert node_w(hosted, 5000.0) == pytest.approx(1.15 * inside_w)
        cooled = replace(hosted, cooling=replace(node.cooling, kind=CoolingKind.LIQUID))
        assert node_w(cooled, 5000.0) == pytest.approx(inside_w)
        assert gpu_share_w(cooled, inside_w) == pytest.approx(5000.0 / 8)


def test_the_lowest_cap_counts_and_high_ones_do_not() -> None:
    free = with_caps(node_w=20000.0, rack_w=40000.0, cluster_w=80000.0)
    assert capped_island(free, free.islands[0]) == free.islands[0]
    tight = with_caps(node_w=9000.0, rack_w=16000.0)
    assert capped_island(tight, tight.islands[0]).node.gpu_power_cap_w == gpu_share_w(tight.islands[0].node, 8000.0)


def test_a_cap_that_leaves_too_little_is_refused() -> None:
    machine = with_caps(node_w=2500.0)
    with pytest.raises(InputError, match=r"power_cap_w of the node: 2500 W a node leaves"):
        capped_island(machine, machine.islands[0])


@pytest.mark.parametrize(("field", "nodes"), [("node_w", 1), ("rack_w", 2), ("cluster_w", 4)])
def test_the_least_cap_that_is_named_is_one_of_the_same_field_and_will_do(field: str, nodes: int) -> None:
    machine = with_caps(**{field: 2500.0 * nodes})
    with pytest.raises(InputError, match=r"2500 W a node leaves") as caught:
        capped_island(machine, machine.islands[0])
    found = re.search(r"at least (\d+) W", caught.value.allowed)
    assert found is not None
    least_w = float(found[1])
    enough = with_caps(**{field: least_w})
    assert capped_island(enough, enough.islands[0]).node.gpu_power_cap_w == pytest.approx(200.0, rel=1e-3)
    short = with_caps(**{field: least_w - 1.0})
    with pytest.raises(InputError):
        capped_island(short, short.islands[0])


def test_caps_of_a_file_are_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "cold.toml"
    file.write_text('power_cap_w = 100\n[[island]]\nnode = "dgx-h100"\nnodes = 2\n')
    with pytest.raises(InputError, match=r"cold.toml: power_cap_w of the cluster: 100 W for 2 nodes, 50 W a node"):
        request_of(Question(model="llama3_8b", cluster=str(file), global_batch=8, seq=512))


def test_every_accelerator_has_a_model() -> None:
    for name in accelerator_names():
        model: PowerModel = power_model(accelerator(name))
        assert model.static_w > 0.0, name
        assert model.dynamic_w > 0.0, name
        assert float(step_power(model, STAGE).clock) > 0.5, name


def test_constants_name_their_sources() -> None:
    path = Path(__file__).parent.parent / "costmodels" / "power" / "power.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [table["default"], table["activity"], table["clock_bound"], table["peak"], table["node"], *table["part"]]
    used = {value[1] for row in rows for name, value in row.items() if name != "match"}
    assert used == set(table["sources"])
