"""Closed forms and bounds of pipelines against the simulation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_specs import specs

from costmodels.pipeline.bounds import alpa_form, counted_paths, equal_stages, gpipe_form, lower_bound, paths_of
from costmodels.pipeline.graph import Transfers
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.pipeline.simulate import makespan

OVERLAPPED, BLOCKING = Transfers.OVERLAPPED, Transfers.BLOCKING
ROUNDING = 1.0 + 1e-12


@given(specs(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_schedule_beats_its_lower_bound(spec, seed, p2p, blocking):
    transfers = BLOCKING if blocking and spec.schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) else OVERLAPPED
    rng = np.random.default_rng(seed)
    forward, backward, weight = rng.exponential(1.0, (3, 20, spec.pp, spec.vpp))
    crossing = p2p * rng.exponential(1.0, (20, spec.pp))
    bound = lower_bound(spec, forward, backward, crossing, weight, transfers)
    simulated = makespan(spec, forward, backward, crossing, weight, transfers)
    exact = simulated.makespan_s
    assert (bound <= exact * ROUNDING).all()
    assert (bound >= simulated.busy_s.max(axis=1) / ROUNDING).all()  # at least the busiest stage's work
    assert (lower_bound(spec, forward, backward, crossing, weight) <= exact * ROUNDING).all()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved"])
@pytest.mark.parametrize("m", [8, 16, 64])
def test_lower_bound_is_exact_for_equal_stages(name, m):
    spec = PipelineSpec(schedule=Schedule(name), pp=8, num_microbatches=m, vpp=3 if name == "interleaved" else 1)
    exact = makespan(spec, 1.0, 1.5, 0.0, 0.5, OVERLAPPED).makespan_s
    assert lower_bound(spec, 1.0, 1.5, 0.0, 0.5) == pytest.approx(exact)


def test_lower_bound_is_tight_for_uneven_1f1b():
    rng = np.random.default_rng(0)
    spec = PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=8, num_microbatches=32)
    forward = rng.uniform(0.8, 1.2, (200, 8))
    for transfers in Transfers:
        exact = makespan(spec, forward, 2.0 * forward, 0.02, transfers=transfers).makespan_s
        bound = lower_bound(spec, forward, 2.0 * forward, 0.02, transfers=transfers)
        assert (bound > 0.98 * exact).all()


@given(specs(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_paths_of_many_microbatches_are_those_of_few_continued(spec, blocking):
    transfers = BLOCKING if blocking and spec.schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) else OVERLAPPED
    group = spec.round
    many = replace(spec, num_microbatches=spec.num_microbatches + 4 * spec.pp // group * group + 2 * group)
    assert np.array_equal(paths_of(many, transfers), counted_paths(many, transfers))


@given(st.sampled_from(Schedule), st.integers(1, 7), st.integers(2, 4), st.integers(0, 30), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_equal_stages_have_a_closed_form(schedule, pp, vpp, extra, seed):
    """Where :func:`equal_stages` says that it is exact, in sizes and in times."""
    pp = max(pp, 2) if schedule.loops else pp
    least = {Schedule.GPIPE: 1, Schedule.ONE_F_ONE_B: 1, Schedule.ZB_H1: pp, Schedule.DUALPIPEV: 2 * pp}
    m = (pp if schedule.loops else least.get(schedule, 2 * pp - 1)) + extra
    group = 0
    if schedule in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB) and m % pp:
        group = m  # one group takes all
    spec = PipelineSpec(schedule=schedule, pp=pp, num_microbatches=m, vpp=schedule.fixed_vpp or vpp, group_size=group)
    rng = np.random.default_rng(seed)
    forward, backward = rng.integers(1, 9, 2).astype(float)
    weight = float(rng.integers(0, min(forward, backward) + 1))
    if schedule.is_v:
        backward = weight = forward
    exact = makespan(spec, forward, backward, 0.0, weight, OVERLAPPED).makespan_s[0]
    assert equal_stages(spec, forward, backward, weight) == exact


@given(st.integers(1, 8), st.integers(1, 24), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_gpipe_form_is_exact_for_gpipe_and_bounds_1f1b(pp, m, seed):
    rng = np.random.default_rng(seed)
    forward, backward = rng.exponential(1.0, (2, 30, pp))
    p2p = rng.exponential(0.3, (30, pp))
    gpipe = PipelineSpec(schedule=Schedule.GPIPE, pp=pp, num_microbatches=m)
    exact = makespan(gpipe, forward, backward, p2p, transfers=OVERLAPPED).makespan_s
    assert gpipe_form(forward, backward, m, p2p[:, :-1]) == pytest.approx(exact, rel=1e-12)
    one = makespan(replace(gpipe, schedule=Schedule.ONE_F_ONE_B), forward, backward, transfers=OVERLAPPED).makespan_s
    assert (one <= gpipe_form(forward, backward, m) * ROUNDING).all()


@given(st.integers(1, 8), st.integers(1, 24), st.floats(0.1, 10.0), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_alpa_form_is_what_its_docstring_says(pp, m, ratio, seed):
    rng = np.random.default_rng(seed)
    forward, backward = rng.exponential(1.0, (2, 30, pp))
    spec = PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=pp, num_microbatches=m)
    even = makespan(spec, forward, ratio * forward, transfers=OVERLAPPED).makespan_s
    form = alpa_form((1.0 + ratio) * forward, m)
    assert (form >= even / ROUNDING).all()
    assert (form <= 1.5 * even).all()
    forward[:, -1] = forward.max(axis=1)  # the last stage is the slowest
    last = makespan(spec, forward, ratio * forward, transfers=OVERLAPPED).makespan_s
    assert alpa_form((1.0 + ratio) * forward, m) == pytest.approx(last)
    gpipe = makespan(replace(spec, schedule=Schedule.GPIPE), forward, backward, transfers=OVERLAPPED).makespan_s
    assert (alpa_form(forward + backward, m) <= gpipe * ROUNDING).all()


def test_alpa_form_is_no_bound_when_backward_ratios_differ():
    """Stage 0 is all forward and stage 2 all backward: 1F1B runs them one after the other."""
    spec = PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=3, num_microbatches=2)
    forward, backward = np.array([0.0, 4.0, 0.0]), np.array([4.0, 0.0, 0.0])
    exact = makespan(spec, forward, backward, transfers=OVERLAPPED).makespan_s[0]
    assert exact == 16.0
    assert alpa_form(forward + backward, 2) == 12.0
