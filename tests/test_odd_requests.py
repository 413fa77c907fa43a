"""Requests that nobody should make, and what they end with."""

import warnings

import numpy as np
import pytest

from costmodels.reliability import jitter_s
from costmodels.step import StepTimes
from costmodels.workload.files import read_model
from costmodels.works import Work
from hardware.errors import InputError
from planner import Question, plan, request_of


def test_experts_of_a_dense_model_are_infeasible_not_a_defect():
    report = plan(
        request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=16, seq=2048, fixed=("ep=2",)))
    )
    assert not report.layouts
    assert report.infeasible.nearest_change.startswith("free ep")


def test_a_single_rank_waits_for_nobody_however_long_its_step():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jitter_s(np.array([np.inf, 1.0]), np.array([1, 1])).tolist() == [0.0, 0.0]


TRANSFORMER = "[transformer]\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 100\nffn = 256\n"
SIZES = "forward_gflops_per_sample = 1.0\nparameters = 1\nactivation_mb_per_sample = 1.0\noutput_mb_per_sample = 1.0\n"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (TRANSFORMER + "vocab_multiple = 0\n", "vocab_multiple"),
        ('[[layer]]\nname = "a"\ncount = 100000\n' + SIZES, "count"),
    ],
)
def test_numbers_that_make_no_model_are_refused(tmp_path, text, field):
    path = tmp_path / "model.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=field):
        read_model(path)


@pytest.mark.parametrize(("beyond_s", "bubble_s"), [(-1e-15, 0.0), (1e-16, 0.0), (8e-15, 0.0), (1e-3, 1e-3)])
def test_one_stage_has_no_bubble_not_even_one_of_a_rounding(beyond_s, bubble_s):
    works = np.full((len(Work), 1), 0.1)
    once = np.zeros(1)
    times = StepTimes(
        total_s=once,
        makespan_s=np.array([3.0 * works.sum() + beyond_s]),
        busiest=np.zeros(1, dtype=np.int64),
        works_s=works,
        stage_s=works.sum(axis=0)[None, :],
        send_s=once,
        reduce_exposed_s=once,
        gather_exposed_s=once,
        optimizer_s=once,
        sync_s=once,
        num_microbatches=3,
    )
    assert times.breakdown(0).bubble_s == pytest.approx(bubble_s, rel=1e-9, abs=0.0)


@pytest.mark.parametrize(
    ("cluster", "remark"), [("gb200-nvl72:2", True), ("gb200-nvl72:18", False), ("dgx-h100:1", False)]
)
def test_a_part_of_a_large_scale_up_domain_is_said_to_be_one(cluster, remark):
    report = plan(request_of(Question(model="llama32_1b", cluster=cluster, global_batch=72, seq=2048)))
    assert any("8 of the 72 GPUs of a scale-up domain" in note for note in report.notes) == remark
