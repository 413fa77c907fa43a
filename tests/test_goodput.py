"""Failures and checkpoints: Daly's forms against simulation and brute force, published runs, and the report."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_requests import asked

from costmodels.goodput import checkpoint_bytes, goodput, optimal_interval_s, useful_share
from costmodels.workload import presets
from hardware import catalog
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.report.console import text_console
from planner.report.estimate_text import print_estimate
from planner.report.json_report import layout_to_json


def simulated_share(interval_s: float, write_s: float, restart_s: float, failure_interval_s: float) -> float:
    """Run 4,000 intervals with exponential failures at any moment, restarts included."""
    draw = random.Random(7)
    wall_s = 0.0
    for _ in range(4000):
        left_s = interval_s + write_s
        while True:
            fails_s = draw.expovariate(1.0 / failure_interval_s)
            if fails_s >= left_s:
                wall_s += left_s
                break
            wall_s += fails_s
            while (again_s := draw.expovariate(1.0 / failure_interval_s)) < restart_s:  # fails while it restarts
                wall_s += again_s
            wall_s += restart_s
    return 4000 * interval_s / wall_s


@pytest.mark.parametrize(
    ("interval_s", "write_s", "restart_s", "failure_interval_s"),
    [(1200.0, 30.0, 600.0, 10_000.0), (300.0, 100.0, 200.0, 900.0), (3000.0, 5.0, 60.0, 4000.0)],
)
def test_share_equals_a_simulation(
    interval_s: float, write_s: float, restart_s: float, failure_interval_s: float
) -> None:
    expected = simulated_share(interval_s, write_s, restart_s, failure_interval_s)
    assert useful_share(interval_s, write_s, restart_s, failure_interval_s) == pytest.approx(expected, rel=0.03)


@given(write_s=st.floats(0.1, 1e4), failure_interval_s=st.floats(60.0, 1e7), restart_s=st.floats(0.0, 1e3))
def test_interval_is_the_best(write_s: float, failure_interval_s: float, restart_s: float) -> None:
    def share(interval_s: float) -> float:
        return useful_share(interval_s, write_s, restart_s, failure_interval_s)

    chosen = share(optimal_interval_s(write_s, failure_interval_s))
    tried = [failure_interval_s * 10.0 ** (power / 20.0) for power in range(-140, 60)]
    slack = 0.998 if write_s < failure_interval_s else 0.9
    assert chosen >= slack * max(share(interval_s) for interval_s in tried)


@given(
    interval_s=st.floats(1.0, 1e6), write_s=st.floats(0.0, 1e5), restart_s=st.floats(0.0, 1e5), mean=st.floats(1.0, 1e8)
)
def test_share_is_a_share_and_falls_with_every_loss(
    interval_s: float, write_s: float, restart_s: float, mean: float
) -> None:
    share = useful_share(interval_s, write_s, restart_s, mean)
    assert 0.0 <= share <= 1.0
    assert useful_share(interval_s, write_s + 1.0, restart_s, mean) <= share
    assert useful_share(interval_s, write_s, restart_s + 1.0, mean) <= share
    assert useful_share(interval_s, write_s, restart_s, mean * 2.0) >= share


def test_without_failures_only_writing_is_lost() -> None:
    assert useful_share(900.0, 100.0, 600.0, 1e12) == pytest.approx(0.9, rel=1e-6)


def test_checkpoint_of_bloom() -> None:
    """2.3 TB (bigscience-workshop, BLOOM training chronicles); no more is stated than two digits."""
    assert checkpoint_bytes(presets.model("bloom_176b"), asked().job) == pytest.approx(2.3e12, rel=0.1)


def test_effective_time_of_a_published_run() -> None:
    """More than 90 % effective training time on 16,384 GPUs (arXiv 2407.21783), every three hours a failure."""
    cluster = replace(catalog.cluster("dgx-h100:2048"), storage_bytes_per_s=2e12)  # the storage states 2 TB/s sustained
    found = goodput(presets.model("llama31_405b"), asked().job, cluster, 16_384)
    assert 2.5 < found.failure_interval_s / 3600.0 < 4.0
    assert 0.90 < found.share < 0.97


def test_more_devices_fail_more_often_and_slow_storage_costs() -> None:
    model, small, large = presets.model("llama3_70b"), catalog.cluster("dgx-h100:8"), catalog.cluster("dgx-h100:128")
    few, many = (goodput(model, asked().job, cluster, cluster.gpus) for cluster in (small, large))
    assert few.failure_interval_s == pytest.approx(16.0 * many.failure_interval_s)
    assert few.share > many.share
    slow = goodput(model, asked().job, replace(large, storage_bytes_per_s=1e9), large.gpus)
    assert slow.share < many.share
    assert not slow.storage_assumed
    assert many.storage_assumed


def test_a_restart_reads_what_was_written() -> None:
    """2 bytes of weights and 12 of fp32 states a parameter, through a storage of 10 GB/s, after ten minutes."""
    model, job = presets.model("llama3_70b"), asked().job
    machine = replace(catalog.cluster("dgx-h100:8"), storage_bytes_per_s=10e9)
    found = goodput(model, job, machine, 64)
    assert found.write_s == pytest.approx(14.0 * 70.55e9 / 10e9, rel=1e-3)
    assert found.restart_s == pytest.approx(600.0 + found.write_s)


def test_young_is_the_limit_of_rare_failures() -> None:
    assert optimal_interval_s(10.0, 1e9) == pytest.approx(math.sqrt(2.0 * 10.0 * 1e9), rel=1e-3)


def test_a_report_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    request = asked(cluster="dgx-a100:2")
    layout = estimate(request, layout_of(request, ExplicitLayout(tp=2)))
    told = layout_to_json(layout, request)["goodput"]
    assert isinstance(told, dict)
    found = goodput(request.model, request.job, request.cluster, 16)
    assert told["share"] == found.share
    assert told["tokens_per_s"] == pytest.approx(found.share * layout.cost.tokens_per_s)
    print_estimate(text_console(), request, layout)
    shown = capsys.readouterr().out
    assert "of the time is useful" in " ".join(shown.split())
    assert "assumed" in shown
