"""Accuracy gates: errors against a table of measured runs must not grow.

The table spans every study, accelerator, number format and kind of model of the runs that the project knows
(``benchmarks/sample_runs.py`` chooses evenly, whatever the errors). Limits stand a little above the errors at the time
of writing; docs/accuracy.md has the errors over all runs. Lower them when the models improve; do not raise them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from costmodels.pricing import Pricing
from planner.evidence.nearness import evidence_for
from planner.evidence.runs import question_of
from planner.evidence.validate import Prediction, validate

RUNS = Path(__file__).parent / "reference" / "measured_runs.csv"
MULTI_NODE_RUNS = RUNS.with_name("multi_node_runs.csv")
OTHER_STACKS = RUNS.with_name("other_stacks.csv")
GIB = 2.0**30


@pytest.fixture(scope="module")
def predictions() -> tuple[Prediction, ...]:
    return validate([RUNS])


def sizes(predictions: Iterable[Prediction]) -> np.ndarray:
    return np.array([abs(p.error) for p in predictions if p.error is not None and p.run.status == "ok"])


def numbered(prediction: Prediction) -> bool:
    return re.match(r"R\d", prediction.run.id) is not None


def is_moe(prediction: Prediction) -> bool:
    return (prediction.run.number("ep") or 0) > 1 or (prediction.run.number("experts") or 0) > 0


def test_every_run_of_the_table_is_priced(predictions):
    skipped = [(p.run.id, p.skipped) for p in predictions if p.skipped]
    assert len(skipped) <= 0.03 * len(predictions), skipped


def test_step_time(predictions):
    found = sizes(predictions)
    assert len(found) > 200
    assert np.median(found) < 0.058
    assert np.quantile(found, 0.9) < 0.215


def test_step_time_of_vendors_tables(predictions):
    found = sizes(filter(numbered, predictions))
    assert len(found) > 80
    assert np.median(found) < 0.048
    assert np.quantile(found, 0.9) < 0.16


def test_step_time_of_mixtures_of_experts(predictions):
    found = sizes(filter(is_moe, predictions))
    assert len(found) > 40
    assert np.median(found) < 0.054


def test_steps_of_one_study_on_many_nodes():
    """Steps of vTrain's multi-node study; its own model errs by 14.7 %, Calculon by 15.3 % (mean over 109 of them)."""
    found = sizes(validate([MULTI_NODE_RUNS]))
    assert len(found) == 41
    assert found.mean() < 0.07
    assert np.median(found) < 0.055


@pytest.mark.parametrize("hardware", ["A100", "H100", "B200", "GB200", "GB300"])
def test_no_accelerator_is_systematically_off(predictions, hardware):
    mine = [p for p in predictions if re.match(rf"{hardware}(?!\d)", p.run.text("hardware"))]
    ratios = [p.error + 1.0 for p in mine if p.error is not None and p.run.status == "ok"]
    assert len(ratios) >= 10
    assert 0.95 < np.median(ratios) < 1.05


def test_peak_memory(predictions):
    pairs = [
        (p.peak_mem_bytes / GIB, p.run.peak_mem_gib)
        for p in predictions
        if p.peak_mem_bytes and p.run.peak_mem_gib and p.run.status in ("ok", "memory_only")
    ]
    errors = np.array([abs(predicted / measured - 1.0) for predicted, measured in pairs])
    assert len(errors) > 40
    assert np.median(errors) < 0.055
    assert np.quantile(errors, 0.9) < 0.2


def test_verdicts(predictions):
    judged = [(p.run.status, p.verdict) for p in predictions if p.verdict and p.run.status in ("ok", "oom")]
    failed = [verdict for status, verdict in judged if status == "oom"]
    ran = [verdict for status, verdict in judged if status == "ok"]
    assert len(failed) >= 10
    assert sum(verdict != "fits" for verdict in failed) >= 0.9 * len(failed)
    assert sum(verdict == "oom" for verdict in ran) <= 0.05 * len(ran)


def test_errors_are_not_of_the_table_alone(predictions):
    """A model that knows nothing but one efficiency per accelerator and format must do much worse."""
    groups: dict[tuple[str, str], list[float]] = {}
    for p in predictions:
        rate = p.run.step_time_s and p.cost and p.error is not None and p.cost.mfu * p.cost.step.total_s
        if rate:
            groups.setdefault((p.run.text("hardware"), p.run.text("precision")), []).append(rate / p.run.step_time_s)
    naive = [abs(float(np.median(values)) / value - 1.0) for values in groups.values() for value in values]
    assert np.median(naive) > np.median(sizes(predictions))


@pytest.fixture(scope="module")
def other_stacks() -> tuple[Prediction, ...]:
    """Published runs of software and hardware that the other tables lack; ``fitted``: a rate was read off the row."""
    found = validate([OTHER_STACKS])
    assert len(found) == 141
    assert not [(p.run.id, p.skipped) for p in found if p.skipped]
    return found


def test_step_time_of_stacks_that_no_preset_was_made_for(other_stacks):
    """At their first prediction, with assumed rates of TPU, Ascend and MI250X: mean 19.4 %, median 14.0 % of 82."""
    held_out = sizes(p for p in other_stacks if not p.run.text("fitted"))
    assert len(held_out) > 95
    assert held_out.mean() < 0.131
    assert np.median(held_out) < 0.095
    assert np.quantile(held_out, 0.9) < 0.29


@pytest.mark.parametrize(
    ("software", "limit"),
    [
        ("MaxText", 0.1),
        ("Megatron-DeepSpeed", 0.065),
        ("MindFormers", 0.058),
        ("Primus", 0.115),
        ("torchtune", 0.075),
        ("Kempner", 0.162),
    ],
)
def test_step_time_of_a_stack_that_no_preset_was_made_for(other_stacks, software, limit):
    assert sizes(p for p in other_stacks if p.run.text("framework").startswith(software)).mean() < limit


def test_peaks_of_a_stack_that_reduces_gradients_once(other_stacks):
    """Whole fp32 gradients and gathered logits: without them its dense models were priced a quarter to 73 % short.

    Pipelines, whose output matrix is not split there, and packed experts hold what has no form here.
    """
    dense = [
        p for p in other_stacks if p.run.id.startswith("kempner") and "pp" not in p.run.id and "moe" not in p.run.id
    ]
    errors = np.abs([p.peak_mem_bytes / GIB / p.run.peak_mem_gib - 1.0 for p in dense])
    assert len(errors) == 17
    assert errors.mean() < 0.06
    assert errors.max() < 0.12


def test_peaks_of_a_stack_whose_output_outlives_the_loss(other_stacks):
    """prime-rl's model output holds fp32 logits through the backward pass: without them its peaks were 0.78 to 0.89."""
    found = [p for p in other_stacks if p.run.id.startswith("prime")]
    ratios = np.array([p.peak_mem_bytes / GIB / p.run.peak_mem_gib for p in found])
    assert len(ratios) == 8
    assert np.abs(ratios - 1.0).max() < 0.05


def test_intervals_hold_on_stacks_that_nobody_measured(other_stacks):
    """Four of five as the mean over software.

    The widening was chosen on the first predictions of all but KempnerForge (83 %), which was priced once after it.
    """
    inside = defaultdict(list)
    for p in other_stacks:
        asked = question_of(p.run)
        pricing = Pricing(model=asked.model, job=asked.job, island=asked.cluster.islands[0])
        told = evidence_for(pricing, asked.layout, p.step_time_s, p.peak_mem_bytes)
        inside[p.run.text("framework")].append(told.low_s <= p.run.step_time_s <= told.high_s)
    shares = {name: np.mean(each) for name, each in inside.items()}
    assert 0.76 < np.mean(list(shares.values())) < 0.92
    assert shares["KempnerForge (PyTorch FSDP2)"] > 0.7
