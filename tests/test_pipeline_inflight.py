"""Activations in flight against counting, and against the closed forms of the schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_specs import specs

from costmodels.pipeline.inflight import in_flight, in_flight_total, peak_activation_bytes
from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, operations


def count_bytes(spec, stage, activation, weight):
    """Walk a stage's order and add up what it holds after every operation; return the peak."""
    held = peak = 0.0
    for kind, chunk, _ in operations(spec)[stage]:
        kept = weight[stage, chunk] if spec.schedule.splits_backward else 0.0
        if kind is Kind.FORWARD:
            held += activation[stage, chunk]
        elif kind is Kind.BACKWARD:
            held -= activation[stage, chunk] - kept
        else:
            held -= kept
        peak = max(peak, held)
    assert held == 0.0
    return peak


@given(specs(), st.integers(0, 2**32 - 1))
@settings(max_examples=120, deadline=None)
def test_peak_bytes_by_counting(spec, seed):
    rng = np.random.default_rng(seed)
    activation = rng.integers(0, 9, (3, spec.pp, spec.vpp)).astype(float)
    weight = np.floor(activation * rng.uniform(0.0, 1.0, activation.shape))
    peak = peak_activation_bytes(spec, activation, weight)
    all_kept = peak_activation_bytes(spec, activation)
    for candidate in range(3):
        for stage in range(spec.pp):
            expected = count_bytes(spec, stage, activation[candidate], weight[candidate])
            assert peak[candidate, stage] == expected
            assert all_kept[candidate, stage] == count_bytes(spec, stage, activation[candidate], activation[candidate])


@given(specs())
@settings(max_examples=80, deadline=None)
def test_counts_by_counting(spec):
    ones = np.ones((spec.pp, spec.vpp))
    for stage in range(spec.pp):
        assert in_flight_total(spec)[stage] == count_bytes(spec, stage, ones, ones)
        for chunk in range(spec.vpp):
            only = np.zeros_like(ones)
            only[stage, chunk] = 1.0
            assert in_flight(spec)[stage, chunk] == count_bytes(spec, stage, only, only)


@given(specs())
@settings(max_examples=80, deadline=None)
def test_closed_forms(spec):
    pp, m, stage = spec.pp, spec.num_microbatches, np.arange(spec.pp)
    total = in_flight_total(spec)
    if spec.schedule.holds_all:
        assert (total == m * spec.vpp).all()
    elif spec.schedule is Schedule.ONE_F_ONE_B:
        assert total.tolist() == np.minimum(m, pp - stage).tolist()
    elif spec.schedule is Schedule.INTERLEAVED:
        warmup = 2 * (pp - stage - 1) + (spec.vpp - 1) * spec.group
        assert total.tolist() == np.minimum(m * spec.vpp, warmup + 1).tolist()
    elif spec.schedule is Schedule.INTERLEAVED_ZB:
        most = (spec.vpp - 1) * spec.group + pp
        assert total.tolist() == np.minimum(m * spec.vpp, most + 0 * stage).tolist()
    elif spec.schedule is Schedule.DUALPIPEV:
        assert (total == 2 * pp + 1).all()  # DeepSeek-AI, DualPipe README: as many as positions, and one
    else:
        most = {Schedule.ZB_H1: pp, Schedule.ZB_2P: 2 * pp - 1, Schedule.ZBV: 2 * pp}[spec.schedule]
        assert (total <= most).all()
        assert m < 2 * pp - 1 or total[0] == most


def test_interleaving_costs_the_published_share_of_memory():
    """Korthikanti et al., arXiv 2205.05198, section 4.2.3: stage 0 holds 1 + (p - 1) / (p m) times as much as 1F1B."""
    for pp, vpp in ((8, 2), (8, 3), (12, 8)):
        plain = PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=pp, num_microbatches=4 * pp)
        chunked = replace(plain, schedule=Schedule.INTERLEAVED, vpp=vpp)
        ratio = peak_activation_bytes(chunked, np.full(pp, 1.0 / vpp)) / peak_activation_bytes(plain, np.ones(pp))
        assert ratio[0, 0] == pytest.approx(1.0 + (pp - 1) / (pp * vpp))


def test_microbatches_beyond_the_steady_state_hold_nothing_new():
    spec = PipelineSpec(schedule=Schedule.INTERLEAVED, pp=4, num_microbatches=4_000_000, vpp=2)
    assert in_flight_total(spec).tolist() == [11, 9, 7, 5]
    assert peak_activation_bytes(spec, [[1.0] * 4] * 2).tolist() == [[11.0, 9.0, 7.0, 5.0]] * 2


def test_unequal_chunks_do_not_peak_together():
    """Stage 0 of a V holds many micro-batches of its first chunk and one of its last."""
    spec = PipelineSpec(schedule=Schedule.ZBV, pp=4, num_microbatches=16, vpp=2)
    assert in_flight(spec)[0].tolist() == [8, 1]
    assert in_flight_total(spec)[0] == 8
    heavy_end = np.array([[[1.0, 9.0]] + [[1.0, 1.0]] * 3])
    assert peak_activation_bytes(spec, heavy_end, heavy_end)[0, 0] == 7.0 + 9.0


def test_wrong_bytes_are_refused():
    spec = PipelineSpec(schedule=Schedule.ZB_H1, pp=4, num_microbatches=8)
    with pytest.raises(ValueError, match="do not fit"):
        peak_activation_bytes(spec, np.ones(3))
    with pytest.raises(ValueError, match="must not exceed"):
        peak_activation_bytes(spec, np.ones(4), 2.0 * np.ones(4))
