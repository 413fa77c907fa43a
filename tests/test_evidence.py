"""Intervals around predictions: their arithmetic, their labels, and whether they are honest."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from costmodels.profile import UNCHANGED
from hardware import catalog
from planner.evidence.nearness import (
    COVERAGE,
    ENOUGH,
    KIN,
    PEAK_MEMORY,
    SIMILAR,
    STEP_TIME,
    EvidenceTable,
    distances,
    evidence_for,
    fitted_runs,
    log_interval,
    shipped_runs,
    traits_of,
    widened,
)
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate, pricings_of
from planner.profile import FittedRun, MachineProfile, MemoryErrors
from planner.question import Question, request_of
from planner.report.layout_text import nearness
from planner.traits import RunTraits


def asked(**more):
    question = {"model": "llama3_70b", "cluster": "dgx-h100:8", "global_batch": 128, "seq": 8192} | more
    return request_of(Question(**question))


def traits_of_row(row, table):
    return RunTraits(
        **{
            f.name: str(table.texts[f.name][row]) if f.name in table.texts else float(table.sizes[f.name][row])
            for f in fields(RunTraits)
        }
    )


def made_up(ratios, studies):
    """A table of runs that differ in their errors alone."""
    return EvidenceTable(
        texts={},
        sizes={},
        log_ratio=np.array(ratios),
        study=np.array(studies),
        run=np.array([str(number) for number in range(len(ratios))]),
    )


def test_interval_of_equal_errors_is_that_error_with_the_least_width():
    low, high = log_interval(made_up([0.1] * 50, [str(number) for number in range(50)]), np.zeros(50), STEP_TIME)
    assert low == pytest.approx(0.1 - 0.03)
    assert high == pytest.approx(0.1 + 0.03)


def test_interval_follows_the_nearest_runs():
    table = made_up([-0.2] * 60 + [0.5] * 60, [str(number) for number in range(120)])
    low, high = log_interval(table, np.concatenate([np.zeros(60), np.full(60, 9.0)]), STEP_TIME)
    assert low < -0.2 < high < 0.0


def test_no_study_decides_alone():
    table = made_up([0.0] * 60 + [0.3] * 30, ["large"] * 60 + [str(number) for number in range(30)])
    low, high = log_interval(table, np.zeros(90), replace(STEP_TIME, widening=1.0))
    assert low == pytest.approx(0.0, abs=0.03)
    assert high > 0.3


def test_runs_at_an_infinite_distance_do_not_count():
    table = made_up([0.0] * 5 + [0.3] * 5, ["one"] * 5 + ["two"] * 5)
    low, high = log_interval(table, np.array([0.0] * 5 + [np.inf] * 5), STEP_TIME)
    assert high == pytest.approx(0.03)
    assert low == pytest.approx(-0.03)


def test_a_run_is_nearest_to_itself():
    table = shipped_runs(STEP_TIME)
    for row in (0, len(table) // 2, len(table) - 1):
        distance = distances(table, traits_of_row(row, table))
        assert distance[row] == 0.0
        assert distance.min() == 0.0


def test_what_is_unlike_anything_measured_is_called_extrapolated():
    request = asked(cluster="tpu-v5p-pod:16", model="llama3_8b", global_batch=256)
    layout = layout_of(request, ExplicitLayout(tp=1, pp=1, zero=3))
    assert estimate(request, layout).evidence.label == "extrapolated"


def test_a_part_that_nobody_measured_is_named_has_wider_ranges_and_is_never_called_measured():
    layout = ExplicitLayout(tp=4, pp=4, vpp=5)
    known = asked()
    part = catalog.accelerator("h100-sxm-94gb")
    island = known.cluster.islands[0]
    node = replace(island.node, accelerator=replace(island.node.accelerator, name=part.name))
    unknown = replace(known, cluster=replace(known.cluster, islands=(replace(island, node=node),)))
    of_known, of_unknown = (estimate(each, layout_of(each, layout)) for each in (known, unknown))
    assert of_known.cost.step.total_s == pytest.approx(of_unknown.cost.step.total_s)
    assert (of_known.evidence.label, of_unknown.evidence.label) == ("measured", "near")
    assert (of_known.evidence.unmeasured, of_unknown.evidence.unmeasured) == ("", "h100-sxm-94gb")
    assert "no run on h100-sxm-94gb was measured" in nearness(of_unknown.evidence)

    def width(evidence, low, high):
        return math.log(getattr(evidence, high) / getattr(evidence, low))

    for ends in (("low_s", "high_s"), ("low_peak_bytes", "high_peak_bytes")):
        assert width(of_unknown.evidence, *ends) > 1.15 * width(of_known.evidence, *ends)


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
    once, twice = (evidence_for(pricing, layout, scale, 1e9 * scale) for scale in (1.0, 2.0))
    for end in ("low_s", "high_s", "low_peak_bytes", "high_peak_bytes"):
        assert getattr(twice, end) == pytest.approx(2.0 * getattr(once, end))
    assert once.low_peak_bytes < 1e9 < once.high_peak_bytes
    assert traits_of(pricing, layout).generation == "hopper"


def inside(table, quantity, row, column):
    """Whether a run is inside what others say of it, and whether they hold enough runs of its kind."""
    traits = traits_of_row(row, table)
    left_out = table.study == table.study[row]
    if column != "study":
        left_out |= table.texts[column] == table.texts[column][row]
    distance = np.where(left_out, np.inf, distances(table, traits))
    low, high = log_interval(table, distance, widened(quantity, table, distance, traits))
    alike = np.all([table.texts[name] == table.texts[name][row] for name in quantity.kind], axis=0)
    return low <= table.log_ratio[row] <= high, (alike & ~left_out).sum() >= ENOUGH


def shares_of(quantity, column):
    """Share of runs inside with each study or part left out: of kinds that others measured, and of others."""
    table = shipped_runs(quantity)
    names = table.study if column == "study" else table.texts[column]
    known, unknown = [], []
    for name in sorted(set(names)):
        rows = np.flatnonzero(names == name)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(12, len(rows))).round().astype(int))]
        found = [inside(table, quantity, row, column) for row in rows]
        for enough in (True, False):
            some = [within for within, measured in found if measured == enough]
            if some:
                (known if enough else unknown).append(np.mean(some))
    return known, unknown


@pytest.mark.parametrize("column", ["study", "hardware"])
@pytest.mark.parametrize("quantity", [STEP_TIME, PEAK_MEMORY], ids=lambda quantity: quantity.column)
def test_four_of_five_runs_left_out_fall_inside_where_others_measured_their_kind(quantity, column):
    known, unknown = shares_of(quantity, column)
    assert len(known) >= 8
    assert abs(np.mean(known) - COVERAGE) < 0.08
    assert np.mean(unknown) > COVERAGE


def test_a_kind_of_stack_that_nobody_measured_has_wider_ranges_the_fewer_runs_there_are_of_it():
    request = asked()
    layout = layout_of(request, ExplicitLayout(tp=4, pp=4))
    traits = traits_of(pricings_of(request)[0], layout)
    for quantity in (STEP_TIME, PEAK_MEMORY):
        table = shipped_runs(quantity)
        distance = distances(table, traits)
        assert widened(quantity, table, distance, traits) == quantity
        strange = replace(traits, framework="of-nobody")
        assert widened(quantity, table, distance, strange).widening == quantity.widening_unlike
        alike = np.flatnonzero(np.all([table.texts[name] == getattr(traits, name) for name in quantity.kind], axis=0))
        on_part = alike[table.texts["hardware"][alike] == traits.hardware]
        few = np.full(len(table), np.inf)
        few[on_part[:4]] = 1.0
        between = 0.4 * quantity.widening + 0.6 * quantity.widening_unlike
        assert widened(quantity, table, few, traits).widening == pytest.approx(between)


def test_software_that_nobody_measured_on_such_a_part_is_said_and_is_never_called_measured():
    ranked = {}
    for gpus in ("dgx-h100:8", "dgx-a100-80gb:8"):
        request = asked(cluster=gpus, framework="torchtitan")
        ranked[gpus] = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=1, zero=3))).evidence
    many, few = ranked.values()
    assert (many.few_runs, few.few_runs) == ("", "6 runs of torchtitan with dense models on ampere")
    assert few.label == "near"
    assert "measured: 6 runs of torchtitan with dense models on ampere, hence wide ranges" in nearness(few)


def test_the_interval_of_a_profile_widens_to_that_of_published_runs_as_its_own_runs_are_less_alike():
    request = asked()
    pricing = pricings_of(request)[0]
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2, dp=4))
    mine = traits_of(pricing, layout)

    def half(traits):
        runs = tuple(
            FittedRun(id=str(number), traits=traits, before=0.3, after=0.0, left_out=0.04) for number in range(9)
        )
        profile = MachineProfile(
            accelerator=pricing.accelerator.name,
            frameworks=("megatron",),
            factors=UNCHANGED,
            learned=(),
            runs=runs,
            files=(),
            memory=MemoryErrors(runs=0, before=0.0, after=0.0, left_out=0.0),
        )
        found = evidence_for(pricing, layout, 1.0, 1e9, profile)
        return np.log(found.high_s / found.low_s) / 2.0

    published = evidence_for(pricing, layout, 1.0, 1e9)
    widest = np.log(published.high_s / published.low_s) / 2.0
    alike, kin, strange = mine, replace(mine, moe="other"), replace(mine, moe="other", generation="other")
    assert half(alike) == pytest.approx(0.04)
    assert half(strange) == pytest.approx(widest)
    far = distances(fitted_runs([FittedRun(id="", traits=kin, before=0.0, after=0.0, left_out=0.0)]), mine)[0]
    assert SIMILAR < far < KIN
    assert half(kin) == pytest.approx(0.04 + (far - SIMILAR) / (KIN - SIMILAR) * (widest - 0.04))
