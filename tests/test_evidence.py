"""Intervals around predictions: their arithmetic, their labels, and whether they are honest."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.evidence import COVERAGE, distances, evidence_for, log_interval, shipped_runs, traits_of
from planner.explicit import ExplicitLayout, layout_of
from planner.planning import estimate, pricings_of
from planner.question import Question, request_of
from planner.traits import RunTraits


def asked(**more):
    question = {"model": "llama3_70b", "cluster": "dgx-h100:8", "global_batch": 128, "seq": 8192} | more
    return request_of(Question(**question))


def traits_of_row(row):
    table = shipped_runs()
    return RunTraits(
        **{
            f.name: str(table.texts[f.name][row]) if f.name in table.texts else float(table.sizes[f.name][row])
            for f in fields(RunTraits)
        }
    )


def test_interval_of_equal_errors_is_that_error_with_the_least_width():
    low, high = log_interval(np.full(50, 0.1), np.zeros(50))
    assert low == pytest.approx(0.1 - 0.03)
    assert high == pytest.approx(0.1 + 0.03)


def test_interval_follows_the_nearest_runs():
    values = np.concatenate([np.full(60, -0.2), np.full(60, 0.5)])
    distance = np.concatenate([np.zeros(60), np.full(60, 9.0)])
    low, high = log_interval(values, distance)
    assert low < -0.2 < high < 0.0


def test_a_run_is_nearest_to_itself():
    table = shipped_runs()
    for row in (0, len(table) // 2, len(table) - 1):
        distance = distances(table, traits_of_row(row))
        assert distance[row] == 0.0
        assert distance.min() == 0.0


def test_what_is_unlike_anything_measured_is_called_extrapolated():
    request = asked(cluster="tpu-v5p-pod:16", model="llama3_8b", global_batch=256)
    layout = layout_of(request, ExplicitLayout(tp=1, pp=1, zero=3))
    assert estimate(request, layout).evidence.label == "extrapolated"


def test_a_well_measured_kind_of_run_is_called_measured_and_its_interval_holds_the_prediction_or_corrects_it():
    request = asked()
    layout = layout_of(request, ExplicitLayout(tp=4, pp=4, vpp=5))
    ranked = estimate(request, layout)
    step_s = ranked.cost.step.total_s
    assert ranked.evidence.label == "measured"
    assert 0.5 * step_s < ranked.evidence.low_s < ranked.evidence.high_s < 2.0 * step_s


def test_intervals_scale_with_the_prediction():
    request = asked()
    pricing = pricings_of(request)[0]
    layout = layout_of(request, ExplicitLayout(tp=4, pp=4))
    once, twice = (evidence_for(pricing, layout, step_s) for step_s in (1.0, 2.0))
    assert twice.low_s == pytest.approx(2.0 * once.low_s)
    assert twice == replace(once, low_s=twice.low_s, high_s=pytest.approx(2.0 * once.high_s))
    assert traits_of(pricing, layout).generation == "hopper"


def test_four_of_five_runs_of_studies_left_out_fall_inside():
    table = shipped_runs()
    rows = np.random.default_rng(0).choice(len(table), 250, replace=False)
    inside = 0
    for row in rows:
        distance = distances(table, traits_of_row(row))
        others = table.study != table.study[row]
        low, high = log_interval(table.log_ratio[others], distance[others])
        inside += low <= table.log_ratio[row] <= high
    assert abs(inside / len(rows) - COVERAGE) < 0.08
