"""A difference to a measured step is laid to the part that was made slower; what repeats differ by is laid to none."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from costmodels.layout import Layout, Strategy
from costmodels.placement import identity
from hardware.cluster import DeviceState
from hardware.errors import InputError
from planner.advice.explain import clock_share, falls, waterfall
from planner.advice.gap import GROUPS, Gap, explain_gap, part_seconds, term_errors
from planner.advice.measured_step import measured_step_s
from planner.advice.what_if import slow_device_for, what_ifs
from planner.layouts.build import uniform_layout
from planner.planning import estimate
from planner.question import Question, request_of
from planner.report.gap_text import print_gap
from planner.request import PlanRequest
from planner.traffic.sensitivity import on_scaled_fabrics


def asked(model: str, cluster: str, batch: int = 128, seq: int = 4096) -> PlanRequest:
    return request_of(Question(model=model, cluster=cluster, global_batch=batch, seq=seq))


def layout(strategy: Strategy, stages: tuple[int, ...], batch: int = 128, micro_batch: int = 1) -> Layout:
    split = tuple((count,) for count in stages)
    passes = batch // (strategy.dp * micro_batch)
    return uniform_layout(strategy, split, micro_batch=micro_batch, num_microbatches=passes)


def first(gap: Gap) -> str:
    return gap.suspects[0].group


DP = layout(Strategy(tp=1, dp=64, zero=3), (32,))
TP = layout(Strategy(tp=8, dp=1, zero=0, sequence_parallel=True), (32,))
LONG_TP = layout(Strategy(tp=8, dp=1, zero=0, sequence_parallel=True), (32,), micro_batch=8)
"""Its passes are long enough that the exchange, not the host, is what they wait for."""
EP = layout(Strategy(tp=1, dp=32, ep=32, zero=1), (48,))


@pytest.mark.parametrize(
    ("request_", "chosen", "group"),
    [
        (asked("llama3_8b", "p4d:8"), DP, "states"),
        (asked("llama3_8b", "dgx-h100:1"), LONG_TP, "tp"),
        (asked("qwen3_30b_a3b", "p4d:4"), EP, "experts"),
    ],
    ids=["network", "scale-up", "experts"],
)
def test_half_the_fabric_is_laid_to_its_exchange(request_, chosen, group):
    slow = on_scaled_fabrics(request_, chosen, 0.5).cost.step.total_s
    gap = explain_gap(request_, chosen, slow)
    assert gap.value_s > 0.0
    assert first(gap) == group
    assert gap.suspects[0].needed == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("rate", [1 / 20, 1 / 128], ids=["a port instead of eight", "Ethernet of 25 Gb/s"])
def test_a_network_that_is_not_found_is_laid_to_the_exchange_not_to_products_eight_times_slower(rate):
    request = asked("qwen25_32b", "dgx-h100:2", batch=16, seq=8192)
    chosen = layout(Strategy(tp=1, dp=16, zero=3), (64,), batch=16)
    slow = on_scaled_fabrics(request, chosen, rate).cost.step.total_s
    assert slow > 3.0 * estimate(request, chosen).cost.step.total_s
    gap = explain_gap(request, chosen, slow)
    assert first(gap) == "states"
    assert gap.suspects[0].needed == pytest.approx(1.0 / rate, rel=0.05)
    assert gap.suspects[0].share > 0.5


def test_slow_products_are_laid_to_products():
    request = asked("llama3_8b", "dgx-h100:1")
    chosen = layout(Strategy(tp=1, dp=8, zero=1), (32,))
    step = estimate(request, chosen).cost.step
    parts = part_seconds(step)
    gap = explain_gap(request, chosen, step.total_s + 0.2 * parts["products"])
    assert first(gap) == "products"
    assert gap.suspects[0].needed == pytest.approx(1.2, rel=1e-3)


def test_a_faster_run_points_the_other_way():
    request = asked("llama3_8b", "dgx-h100:1")
    chosen = layout(Strategy(tp=1, dp=8, zero=1), (32,))
    gap = explain_gap(request, chosen, 0.9 * estimate(request, chosen).cost.step.total_s)
    assert gap.value_s < 0.0
    assert first(gap) == "products"
    assert 0.8 < gap.suspects[0].needed < 1.0


def test_shares_add_up_and_fall():
    gap = explain_gap(asked("llama3_8b", "dgx-h100:1"), TP, 100.0)
    shares = [suspect.share for suspect in gap.suspects]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)


def test_runs_repeat_within_a_few_percent():
    request = asked("llama3_8b", "dgx-h100:1")
    assert explain_gap(request, TP, 1.02 * estimate(request, TP).cost.step.total_s).suspects == ()


def test_a_time_in_another_unit_is_laid_to_no_part():
    request = asked("llama3_8b", "dgx-h100:1")
    ranked = estimate(request, TP)
    console = Console(file=io.StringIO(), width=200)
    print_gap(console, explain_gap(request, TP, 1000.0 * ranked.cost.step.total_s), ranked.evidence)
    assert "1,000 times the prediction is no matter of speed. Look at the unit" in console.file.getvalue()
    assert "Most likely" not in console.file.getvalue()


def test_a_run_faster_than_the_peak_rate_is_laid_to_no_part():
    request = asked("llama3_8b", "dgx-h100:1")
    cost = estimate(request, TP).cost
    gap = explain_gap(request, TP, 0.99 * cost.mfu * cost.step.total_s)
    assert gap.impossible
    assert gap.suspects == ()
    console = Console(file=io.StringIO(), width=200)
    print_gap(console, gap, estimate(request, TP).evidence)
    assert "No run is as fast" in console.file.getvalue()
    possible = explain_gap(request, TP, 1.01 * cost.mfu * cost.step.total_s)
    assert not possible.impossible
    assert possible.suspects


@pytest.mark.parametrize("measured_s", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_is_refused(measured_s):
    with pytest.raises(InputError, match="--measured-s"):
        explain_gap(asked("llama3_8b", "dgx-h100:1"), TP, measured_s)


HEAD = "id,hardware,n_gpus,seq_len,global_batch_size,micro_batch_size,tp,pp,dp,step_time_s,status"
RUN = "mine,H100,8,4096,128,1,8,1,1,9.5,ok"


@pytest.mark.parametrize("row", ["mine", ""], ids=["named", "the only one of the layout"])
def test_a_row_of_runs_states_the_measured_step(tmp_path, row):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEAD, RUN, "other,H100,8,4096,128,1,4,1,2,9.9,ok"]) + "\n", encoding="utf-8")
    assert measured_step_s(path, row, TP, 4096) == 9.5


@pytest.mark.parametrize(
    ("runs", "row", "message"),
    [
        ([RUN], "mime", r"runs.csv: --row 'mime' is not there; nearest: 'mine'"),
        ([RUN.replace(",8,1,1,", ",4,1,2,")], "mine", r"row mine is another run: tp 4, not 8, dp 2, not 1"),
        ([RUN.replace("4096", "8192")], "mine", r"seq_len 8192, not 4096"),
        ([RUN.replace("9.5,ok", ",oom")], "mine", r"row mine states no step time"),
        ([RUN, RUN.replace("mine", "again")], "", r"2 rows have the layout's degrees.*\(mine, again\)"),
        ([RUN.replace("4096", "8192")], "", r"0 rows have .*\(none\)"),
        ([RUN.replace(",8,1,1,", ",8,,,")], "mine", r"layout not stated"),
        ([RUN.replace("9.5", "-9.5")], "mine", r"row mine: step_time_s: '-9.5' is not accepted; allowed: seconds"),
    ],
    ids=["unknown", "another layout", "another sequence", "failed", "several", "none", "half a layout", "no time"],
)
def test_a_row_that_is_not_the_layout_is_refused(tmp_path, runs, row, message):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEAD, *runs]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        measured_step_s(path, row, TP, 4096)


def test_every_group_has_an_error_and_every_detail_a_group():
    assert set(term_errors()) == set(GROUPS)
    assert all(0.02 <= value <= 3.0 for value in term_errors().values())
    step = estimate(asked("llama3_8b", "dgx-h100:1"), TP).cost.step
    grouped = {name for names in GROUPS.values() for name in names}
    assert {name for name, _ in step.details} - {"send"} <= grouped


@pytest.mark.parametrize(("model", "cluster", "chosen"), [("llama3_8b", "p4d:8", DP), ("llama3_8b", "dgx-h100:1", TP)])
def test_the_fall_begins_at_peak_and_ends_at_the_utilization_of_the_step(model, cluster, chosen):
    request = asked(model, cluster)
    ranked = estimate(request, chosen)
    clock = clock_share(ranked, request.cluster)
    found = falls(waterfall(ranked.cost, clock))
    assert found[0].mfu == 1.0
    assert found[-1].mfu == pytest.approx(ranked.cost.mfu, rel=1e-9)
    assert found[-1].end_s == pytest.approx(ranked.cost.step.total_s, rel=1e-12)
    names = [fall.loss.name for fall in found]
    assert ("clock below its highest" in names) == (clock < 1.0)
    slower = replace(ranked, cost=replace(ranked.cost, power=replace(ranked.cost.power, clock_hz=0.0)))
    assert clock_share(slower, request.cluster) == 1.0


def test_one_slow_accelerator_is_named_with_how_slow_it_would_be():
    """Found again from the step that it makes, between and beyond those that are listed; a faster run has none."""
    request = asked("llama3_8b", "dgx-h100:2")
    ranked = estimate(request, layout(Strategy(tp=8, dp=1, zero=0, sequence_parallel=True), (16, 16)))
    predicted_s, found = ranked.cost.step.total_s, what_ifs(request, ranked)
    island = request.cluster.islands[0]
    for slower in (0.04, 0.2):
        slow = replace(island, devices=(DeviceState(node=1, gpu=0, speed=1.0 - slower),))
        there = replace(request, cluster=replace(request.cluster, islands=(slow,)))
        step_s = estimate(there, ranked.layout, None, identity(16, 8)).cost.step.total_s
        assert slow_device_for(step_s, predicted_s, found) == pytest.approx(slower, rel=0.25)
    assert slow_device_for(0.9 * predicted_s, predicted_s, found) == 0.0
    assert slow_device_for(1.1 * predicted_s, predicted_s, ()) == 0.0
    assert slow_device_for(50.0 * predicted_s, predicted_s, found) == 0.0
    stream = io.StringIO()
    gap = explain_gap(request, ranked.layout, 1.06 * predicted_s)
    print_gap(Console(file=stream, width=100), gap, ranked.evidence, 0.0625)
    assert "One GPU alone would hold it were it 6.2 % slower" in " ".join(stream.getvalue().split())


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("factor", [0.8, 1.01, 1.05, 1.6])
def test_the_words_say_how_much_where_and_what_to_look_at(width, factor):
    request = asked("llama3_8b", "dgx-h100:1")
    ranked = estimate(request, TP)
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    print_gap(console, explain_gap(request, TP, factor * ranked.cost.step.total_s), ranked.evidence)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    text = " ".join(stream.getvalue().split())
    assert ("more" if factor > 1.0 else "less") + " than predicted" in text
    assert ("nothing to look for" in text) == (factor == 1.01)
    assert ("look at" in text) == (factor != 1.01)
