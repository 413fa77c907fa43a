"""``plan explain``: where a layout's time and memory go, and what to change."""

import io
from dataclasses import replace

import plan_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from costmodels.layout import FULL_RECOMPUTE, Strategy
from costmodels.results import SlotState, StepTime, Verdict
from costmodels.works import Work
from planner.advice.explain import differences, named_parts, waterfall
from planner.advice.heat import HeatAdvice, MicroBatchChange, heat_advice
from planner.advice.neighbours import neighbours
from planner.advice.remedies import LEAST_GAIN, LEAST_SAVING_BYTES, mended, remedies
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.question import Question, request_of
from planner.report.explain_text import saving_sections
from planner.report.heat_text import heat_sections
from planner.report.words import layout_text
from planner.rules import check_layout
from planner.traffic.sensitivity import sensitivities

SECONDS = st.floats(0.0, 100.0)
NAMES = st.sampled_from(
    ["gemm", "attention", "memory", "recompute", "tp", "cp", "ep", "weights", "gradient_reduction", "send", "new"]
)


@st.composite
def steps(draw):
    parts = [draw(SECONDS) for _ in range(5)]
    details = draw(st.dictionaries(NAMES, SECONDS))
    return StepTime(
        compute_s=parts[0] + 1e-3,
        exposed_comm_s=parts[1],
        bubble_s=parts[2],
        sync_s=parts[3],
        io_s=parts[4],
        details=tuple(details.items()),
    )


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


@given(steps(), st.floats(0.0, 1.0))
def test_waterfall_adds_up_to_the_step_whatever_the_details_say(step, mfu):
    cost = replace(samples.layouts()[0].cost, step=step, mfu=mfu)
    assert sum(loss.value_s for loss in waterfall(cost)) == close(step.total_s)


@given(steps())
def test_named_parts_add_up_to_the_step(step):
    assert sum(value for _, value in named_parts(step)) == close(step.total_s)


@pytest.mark.parametrize("work", list(Work))
def test_every_work_of_a_rank_has_a_name_among_the_parts(work):
    asked = StepTime(
        compute_s=7.0, exposed_comm_s=7.0, bubble_s=0.0, sync_s=0.0, io_s=0.0, details=((work.name.lower(), 3.0),)
    )
    assert 3.0 in [value for _, value in named_parts(asked)]


@given(steps(), steps())
def test_differences_add_up_and_fall(better, worse):
    found = differences(better, worse)
    assert sum(loss.value_s for loss in found) == close(worse.total_s - better.total_s)
    assert list(found) == sorted(found, key=lambda loss: -loss.value_s)


def test_uneven_stages_are_a_loss_of_their_own():
    cost = replace(samples.layouts()[0].cost, stage_times_s=(1.0, 1.0, 1.0, 2.0))
    named = {loss.name: loss.value_s for loss in waterfall(cost)}
    matrix_s = cost.step.total_s * (0.5 + 0.125)
    assert named["uneven stages"] == pytest.approx(matrix_s * 0.375)


def priced(layout, model="llama3_70b", **more):
    request = request_of(Question(model=model, cluster="dgx-h100:8", global_batch=128, seq=8192, **more))
    return request, estimate(request, layout)


def printed(changes):
    console = Console(width=100)
    with console.capture() as shown:
        console.print(*saving_sections(changes))
    return shown.get()


DENSE = samples.layout(Strategy(tp=4, dp=4, zero=1, sequence_parallel=True), ((20,),) * 4)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama3_70b", DENSE),
        ("llama3_70b", samples.layout(Strategy(tp=4, dp=4, zero=1, sequence_parallel=True), ((10, 10),) * 4)),
        ("mixtral_8x7b", samples.layout(Strategy(tp=2, dp=8, ep=8, zero=1, sequence_parallel=True), ((8,),) * 4)),
    ],
)
def test_neighbours_are_legal_complete_and_different(model, layout):
    request, ranked = priced(layout, model)
    found = neighbours(request, layout, ranked.cost)
    assert len({neighbour.layout for neighbour in found}) == len(found) > 8
    for neighbour in found:
        other = neighbour.layout
        assert other != layout
        assert other.layers == layout.layers
        assert other.gpus == layout.gpus
        assert other.num_microbatches * other.micro_batch * other.first.dp == 128
        assert not check_layout(other, request.model, request.job, framework=request.framework)


def test_remedies_are_ordered_by_what_a_byte_costs():
    request, ranked = priced(DENSE)
    found = remedies(request, ranked.layout, ranked.cost)
    costs = [remedy.lost_s_per_byte for remedy in found.saving]
    assert costs == sorted(costs)
    assert all(remedy.saved_bytes > LEAST_SAVING_BYTES for remedy in found.saving)
    assert any("recompute full" in remedy.change for remedy in found.saving)
    least_s = LEAST_GAIN * ranked.cost.step.total_s  # a smaller gain would be written 0.0 %
    assert all(remedy.lost_s < -least_s and remedy.verdict is not Verdict.OOM for remedy in found.faster)
    assert found == remedies(request, ranked.layout, ranked.cost)


def test_gradients_that_wait_whole_are_named_with_what_frees_them():
    question = Question(
        model="llama3_8b",
        cluster="dgx-h100:1",
        global_batch=64,
        seq=4096,
        framework="torchtitan",
        software=("sync_each_batch=off",),
    )
    request = request_of(question)
    layout = layout_of(request, ExplicitLayout(zero=3, micro_batch=1, recompute="full"))
    cost = estimate(request, layout).cost
    assert max(cost.heaviest.components, key=lambda item: item[1])[0] == "unreduced"
    remedy = next(one for one in remedies(request, layout, cost).saving if "sync_each_batch" in one.change)
    assert remedy.saved_bytes == pytest.approx(4.0 * 8.03e9 * 7 / 8, rel=0.1)  # all but the shard, and its reserve
    assert remedy.lost_s > 0.0
    synced = request_of(replace(question, software=()))
    assert not [one for one in remedies(synced, layout, remedy.cost).saving if "sync_each_batch" in one.change]


def test_changes_upon_one_another_make_a_layout_fit():
    large = replace(DENSE, micro_batch=8, num_microbatches=DENSE.num_microbatches * DENSE.micro_batch // 8)
    request, ranked = priced(large)
    assert ranked.cost.heaviest.verdict is Verdict.OOM
    found = mended(request, remedies(request, large, ranked.cost))
    *before, last = found.together
    assert before
    assert last.verdict is not Verdict.OOM
    assert all(remedy.verdict is Verdict.OOM for remedy in before)
    text = " ".join(printed(found).split())
    assert f"together {layout_text(last.layout)}, micro-batch {last.layout.micro_batch}, recompute" in text
    assert text.endswith("next plan search finds the fastest layout that fits")
    alone = [remedy for remedy in found.saving if remedy.verdict is not Verdict.OOM]
    best = min(alone, key=lambda remedy: remedy.lost_s, default=None)
    assert (f"alone {best.change}: " if best else "alone none of them makes it fit") in text
    none = replace(found, saving=tuple(remedy for remedy in found.saving if remedy.verdict is Verdict.OOM), together=())
    assert "alone none of them makes it fit" in " ".join(printed(none).split())


def test_a_layout_that_many_changes_do_not_mend_stays_without():
    request, ranked = priced(DENSE)
    saving = remedies(request, DENSE, ranked.cost)
    assert not mended(request, replace(saving, saving=())).together
    fits = next(remedy for remedy in saving.saving if remedy.verdict is not Verdict.OOM)
    assert not mended(request, replace(saving, saving=(fits,))).together  # one suffices
    assert "alone" not in printed(replace(saving, saving=(fits,)))


def test_full_recompute_saves_most_of_the_recompute_choices():
    request, ranked = priced(DENSE)
    found = {remedy.change: remedy for remedy in remedies(request, ranked.layout, ranked.cost).saving}
    recomputed = {change: remedy.saved_bytes for change, remedy in found.items() if change.startswith("recompute")}
    assert max(recomputed, key=lambda change: recomputed[change]) == "recompute full in all layers"


def test_core_attention_is_never_offered():
    request, ranked = priced(DENSE)
    assert not any("core_attn" in neighbour.change for neighbour in neighbours(request, DENSE, ranked.cost))


def test_a_faster_fabric_never_slows_a_step_and_matters_where_it_is_used():
    request, ranked = priced(DENSE)
    found = {(item.fabric, item.factor): item.step_s for item in sensitivities(request, ranked.layout)}
    step_s = ranked.cost.step.total_s
    for fabric in ("scale-up", "network"):
        assert found[fabric, 2.0] <= step_s * 1.0000001 <= found[fabric, 0.5] * 1.000001
    assert found["scale-up", 0.5] > 1.01 * step_s


def test_one_node_has_no_network():
    request = request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=32, seq=4096))
    layout = samples.layout(Strategy(tp=2, dp=4, zero=1, sequence_parallel=True), ((32,),), batch=32)
    assert {item.fabric for item in sensitivities(request, layout)} == {"scale-up"}


def test_layouts_with_some_recompute_can_drop_it():
    strategy = Strategy(tp=4, dp=4, zero=1, sequence_parallel=True, recompute=FULL_RECOMPUTE)
    request, ranked = priced(samples.layout(strategy, ((20,),) * 4))
    changes = [neighbour.change for neighbour in neighbours(request, ranked.layout, ranked.cost)]
    assert "no recompute" in changes
    assert "recompute full in all layers" not in changes


@pytest.mark.parametrize(
    ("step_s", "peak_w", "verdict", "words"),
    [
        (0.4, 30.0, Verdict.FITS, "micro-batch 2: 0.400 s (4.0 %) slower, peaks 30 W higher: nothing speaks for it"),
        (
            -0.4,
            30.0,
            Verdict.FITS,
            "2: 0.400 s (4.0 %) faster, peaks 30 W higher: where supplies and cooling bear them",
        ),
        (-0.4, 30.0, Verdict.RISKY, "faster, peaks 30 W higher, risky in memory: where supplies"),
        (0.4, -30.0, Verdict.FITS, "slower, peaks 30 W lower: where supplies or cooling are short"),
        (-0.4, -30.0, Verdict.FITS, "faster, peaks 30 W lower"),
        (0.4, 30.0, Verdict.OOM, ""),
        (1e-4, 0.1, Verdict.FITS, ""),
    ],
)
def test_what_another_micro_batch_is_good_for(step_s: float, peak_w: float, verdict: Verdict, words: str) -> None:
    change = MicroBatchChange(
        micro_batch=2,
        before_s=10.0,
        before_w=800.0,
        step_s=step_s,
        bubble_s=0.0,
        peak_w=peak_w,
        hottest_c=0.0,
        verdict=verdict,
    )
    console = Console(width=120, file=io.StringIO())
    console.print(*heat_sections(HeatAdvice(slots=(), micro_batches=(change,))))
    text = console.file.getvalue()
    assert words in text
    assert bool(words) == ("micro-batch 2:" in text)


def test_the_table_names_what_limits_each_accelerator() -> None:
    """One row for each: place, stage, mean and peak draw, clock, mean and highest temperature, limit."""
    hot = SlotState(
        island=0, node=1, gpu=2, stage=3, mean_w=611.4, busy_w=702.0, peak_w=905.6, clock_hz=1.6004e9,
        temperature_c=84.4, peak_c=89.6, limited_by="heat",
    )  # fmt: skip
    cool = replace(hot, gpu=0, peak_c=71.2, temperature_c=66.3, clock_hz=1.7506e9, limited_by="power")
    free = replace(cool, gpu=1, limited_by="none")
    console = Console(width=120, file=io.StringIO())
    console.print(*heat_sections(HeatAdvice(slots=(free, hot, cool), micro_batches=())))
    rows = [line.split() for line in console.file.getvalue().splitlines() if line.split()[:1] == ["1"]]
    assert rows == [
        ["1", "0", "3", "611", "906", "1,751", "66", "71", "power"],
        ["1", "1", "3", "611", "906", "1,751", "66", "71"],
        ["1", "2", "3", "611", "906", "1,600", "84", "90", "heat"],
    ]


def test_another_micro_batch_names_bubble_peak_and_temperature() -> None:
    changes = (
        MicroBatchChange(
            micro_batch=4, before_s=10.0, before_w=800.0, step_s=0.25, bubble_s=0.5, peak_w=31.4, hottest_c=0.83,
            verdict=Verdict.RISKY,
        ),
    )  # fmt: skip
    console = Console(width=120, file=io.StringIO())
    console.print(*heat_sections(HeatAdvice(slots=(), micro_batches=changes)))
    (row,) = [line.split() for line in console.file.getvalue().splitlines() if line.split()[:1] == ["4"]]
    assert row == ["4", "+0.250", "s", "+0.500", "s", "+31", "W", "+0.8", "C", "risky"]


def test_other_micro_batches_are_not_told_where_power_is_not_modelled() -> None:
    change = MicroBatchChange(
        micro_batch=2,
        step_s=0.5,
        before_s=4.0,
        bubble_s=0.1,
        peak_w=0.0,
        before_w=0.0,
        hottest_c=0.0,
        verdict=Verdict.FITS,
    )
    assert not heat_sections(HeatAdvice(slots=(), micro_batches=(change,)))


def test_larger_micro_batches_of_a_deep_pipeline_only_throttle_more() -> None:
    question = Question(model="gpt3-175b", cluster="h200-thermal-study", global_batch=128, seq=2048, thermal=True)
    request = request_of(question)
    layout = layout_of(request, ExplicitLayout(tp=2, pp=16, recompute="full"))
    (change,) = heat_advice(request, estimate(request, layout)).micro_batches  # there is no half of one sequence
    assert (change.micro_batch, change.verdict) == (2, Verdict.FITS)
    assert change.step_s > 0.0
    assert change.peak_w > 0.0
