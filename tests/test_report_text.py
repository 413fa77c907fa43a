"""What a search prints."""

import io
import random
import re
from dataclasses import replace

import plan_samples as samples
import pytest
from rich.console import Console

from costmodels.layout import FULL_RECOMPUTE, StrategyRun
from costmodels.results import StepTime, Verdict
from hardware.cluster import DeviceState
from planner.advice.explain import crossings, waterfall
from planner.advice.remedies import Remedies, Remedy
from planner.question import Question, request_of
from planner.report.console import PIPED_WIDTH, console_on, show, text_console, working
from planner.report.estimate_text import print_estimate
from planner.report.explain_text import Surroundings, print_explanation
from planner.report.json_report import report_to_json
from planner.report.layout_text import memory_words
from planner.report.search_text import print_search, proof_words
from planner.report.tables import Pieces, ruled_table
from planner.report.words import choices_text, digits, layout_text
from planner.request import Framework, Objective, Variant
from planner.rules import broken_rules, verdict
from planner.traffic.sensitivity import Sensitivity

ESCAPE = "\x1b"


def printed(width: int, work, *arguments) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    work(console, *arguments)
    return stream.getvalue()


def search_text(width: int = 100, report=None, *more) -> str:
    return printed(width, print_search, report or samples.report(), *more)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_search_text_keeps_to_the_width_without_control_codes_or_trailing_spaces(width):
    text = search_text(width)
    assert ESCAPE not in text
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_layout_stands_on_one_line_of_the_table(width):
    lines = search_text(width).splitlines()
    for name, step in (("TP4 PP8 DP2", "8.750"), ("TP4 PP4 DP4", "9.000"), ("TP2 PP1 CP2 DP16 ZeRO3", "11.50")):
        assert [line for line in lines if name in line and step in line], name


def test_wide_tables_show_layers_and_narrow_ones_say_what_is_common():
    assert "21,21,19,19" in search_text(140)
    assert "21,21,19,19" not in search_text(80)
    report = samples.report()
    same = tuple(replace(ranked, layout=report.layouts[0].layout) for ranked in report.layouts)
    narrow = search_text(80, replace(report, layouts=same))
    assert "In all: micro-batch 1, vpp 2 and recompute none." in narrow


def test_a_peak_above_the_limit_says_what_it_means():
    best, *others = samples.report().layouts
    for peak_w, words in (
        (690.0, "(peak 690) at"),
        (812.0, "(peak 812 for tenths of a second, before the limit of 700 W takes hold) at"),
    ):
        power = replace(best.cost.power, peak_gpu_w=peak_w)
        layouts = (replace(best, cost=replace(best.cost, power=power)), *others)
        assert words in " ".join(search_text(160, replace(samples.report(), layouts=layouts)).split())


def test_search_text_answers_the_questions():
    text = " ".join(search_text().split())
    for words in (
        "llama3_70b (70.55 billion parameters, 80 layers) on dgx-h100:8 (64 x h100-sxm-80gb)",
        "batch 128 sequences of 8,192 tokens, bf16, for megatron",
        "The first 2 lie within 3 % of each other",
        "Best: TP4 PP8 DP2, fits",
        "8.750 s (likely 7.875 to 9.625); 119,837 tokens/s, 1,872 per GPU; MFU 50.0 % of the dense bf16 peak",
        "10x8, in 2 chunks of 5, 80 in all; recompute none",
        "a GPU of stage 0 holds 61.2 of 79.0 GiB: fits; activations 17.2, gradients 17.0",
        "612 W per GPU (peak 690) at 1,755 MHz, power limits the clock",
        "interpolated: llama3_70b on 64 H100",
        "pipeline bubble 0.957 s 10.9 %",
        "2 TP4 PP4 DP4: +2.9 %: bubble +0.2 s",
        "four of five runs like it take 7.875 to 9.625 s",
        "12,345 grids; 1,000 of their variants priced in full",
        "of grids and variants 9,000 cannot be faster, 2,345 cannot fit the memory",
        "Proven best: under the cost models no layout is faster than the first.",
        "321: tp 16 does not divide 8 key-value heads",
        "prices are those of the list",
    ):
        assert words in text, words


def test_optimal_is_said_only_when_proven():
    assert "Not proven" in proof_words(samples.report(proven=False))
    assert "at most 2.9 %" in proof_words(samples.report(proven=False))
    report = samples.report()
    energy = replace(report, request=replace(report.request, objective=Objective.ENERGY))
    assert "faster than the first" not in proof_words(energy)


def ranked_by(objective: Objective, *, electricity: float = 0.0):
    """Two layouts, the second 10 % slower on 2 % more energy."""
    report = samples.report()
    first = report.layouts[0]
    power = replace(
        first.cost.power,
        energy_j_per_token=1.02 * first.cost.power.energy_j_per_token,
        node_energy_j_per_token=1.02 * first.cost.power.node_energy_j_per_token,
    )
    step = replace(first.cost.step, compute_s=first.cost.step.compute_s + 0.1 * first.cost.step.total_s)
    cost = replace(first.cost, step=step, power=power, tokens_per_s=first.cost.tokens_per_s / 1.1)
    cluster = replace(report.request.cluster, electricity_per_kwh=electricity, currency="EUR")
    return replace(
        report,
        request=replace(report.request, objective=objective, cluster=cluster),
        layouts=(first, replace(first, cost=cost)),
    )


def test_the_table_shows_what_layouts_are_ranked_by():
    text = search_text(100, ranked_by(Objective.ENERGY))
    joules = ranked_by(Objective.ENERGY).layouts[0].cost.power.energy_j_per_token
    assert "J/tok" in text
    assert f"{joules:#.4g}" in text
    assert f"{1.02 * joules:#.4g}" in text
    assert "The first 2 lie within 3 % of each other in energy" in text
    assert "EUR/Gtok" in search_text(100, ranked_by(Objective.COST, electricity=0.2))
    by_time = search_text(100, ranked_by(Objective.TIME))
    assert "J/tok" not in by_time
    assert "lie within" not in by_time


def test_a_ranking_that_ends_in_a_tie_says_that_it_may_go_on():
    report = ranked_by(Objective.ENERGY)
    more = "layouts below these may too (--top shows more)"
    assert more not in " ".join(search_text(100, report).split())
    ended = replace(report, request=replace(report.request, top=len(report.layouts)))
    assert more in " ".join(search_text(100, ended).split())


def test_next_steps_name_the_report():
    assert "plan export out/p.json --rank 1 --to megatron" in search_text(100, None, "out/p.json")
    assert "plan explain 'my plan.json' --rank 1" in search_text(100, None, "my plan.json")
    assert "once --json plan.json is added" in search_text()
    assert "plan export plan.json --rank 1" in search_text(100, None, "-")
    report = samples.report()
    other = replace(report, request=samples.request(framework="bridge"))
    assert "--to bridge" in search_text(100, other)


def test_a_step_that_leaves_out_heat_says_so():
    best, *others = samples.layouts()
    hot = replace(best, cost=replace(best.cost, power=replace(best.cost.power, limited_by="heat")))
    report = replace(samples.report(), layouts=(hot, *others))
    assert "does not count that heat lowers the clock" in search_text(100, report)
    assert "does not count" not in search_text(100, replace(report, request=replace(report.request, thermal=True)))
    assert "does not count" not in search_text()


def test_measured_clocks_and_temperatures_are_said_as_such():
    report = samples.report()
    best, *others = report.layouts
    power = replace(best.cost.power, limited_by="measured", max_temp_c=64.0)
    devices = (
        DeviceState(node=0, gpu=0, temperature_c=70.0, power_w=650.0),
        DeviceState(node=0, gpu=3, clock_hz=1.2e9, temperature_c=84.0, power_w=690.0),
    )
    island = replace(report.request.cluster.islands[0], devices=devices)
    request = replace(report.request, cluster=replace(report.request.cluster, islands=(island,)))
    layouts = (replace(best, cost=replace(best.cost, power=power)), *others)
    text = " ".join(search_text(100, replace(report, request=request, layouts=layouts)).split())
    assert "MHz of the slowest, as measured, hottest die 64 C at these draws" in text
    assert "C at these draws (measured: up to 84 C, at 690 W)" in text
    assert "power limits the clock" not in text.partition("Best:")[2].partition("long runs")[0]
    assert "measured: up to" not in search_text()


def test_constraint_cost_is_said():
    assert "what megatron cannot do costs 2.9 %" in search_text(100, replace(samples.report(), unconstrained_s=8.5))
    assert "costs nothing here" in search_text(100, replace(samples.report(), unconstrained_s=8.75))


def test_infeasible_text_has_constraint_and_change():
    text = search_text(100, samples.infeasible_report())
    assert "91.3 GiB on the heaviest GPU, 79.0 GiB usable" in text
    assert "16 GPUs instead of 8" in text
    assert "Best" not in text


def test_idle_gpus_are_said():
    report = samples.report()
    layout = samples.layout(samples.Strategy(tp=4, dp=2, zero=1), ((20,),) * 4)
    text = search_text(100, replace(report, layouts=(samples.ranked(layout, 9.0, 60.0),)))
    assert "32 of 64; the others stay idle" in text


def test_a_placement_is_said():
    assert "nodes in another order, for the network" in search_text(100, samples.placed_report())
    assert "placement" not in search_text()


def test_models_without_tokens_count_samples():
    report = samples.report()
    model = request_of(Question(model="wide_resnet_1b", cluster="p3-16xlarge:1", global_batch=64))
    text = search_text(100, replace(report, request=model))
    assert "smp/s/GPU" in text
    assert "samples/s" in text
    assert "J per sample" in text
    assert "tok" not in text


def test_streams_that_cannot_say_blocks_get_other_characters():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_search(console_on(stream), samples.report())
    show(console_on(stream), "Ångström")
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "####" in text
    assert "?ngstr?m" in text


def test_the_moment_of_failure_is_said():
    use = samples.memory_use(0, 91.5, Verdict.OOM)
    first = samples.layouts()[0]
    first = replace(first, cost=replace(first.cost, memory=(use,)))
    assert "each GPU holds 91.5 of 79.0 GiB: does not fit (fails at backward)" in memory_words(first)
    sure = replace(first.evidence, low_peak_bytes=88.0 * 2.0**30, high_peak_bytes=95.0 * 2.0**30)
    assert "91.5 of 79.0 GiB (likely 88.0 to 95.0): does not" in memory_words(replace(first, evidence=sure))


def remedies() -> Remedies:
    ranked = samples.layouts()[1]
    saving = Remedy(
        change="recompute selective:mlp", layout=ranked.layout, cost=ranked.cost, lost_s=0.25, saved_bytes=2**31
    )
    faster = replace(saving, change="one layer from stage 7 to stage 0", lost_s=-0.5, saved_bytes=-(2.0**30))
    return Remedies(saving=(saving,), faster=(faster,))


@pytest.mark.parametrize("width", [80, 100, 140])
def test_explanation(width):
    fabrics = (Sensitivity(fabric="network", factor=0.5, step_s=10.5),)
    text = printed(width, print_explanation, samples.report(), 1, remedies(), Surroundings(fabrics=fabrics))
    assert all(len(line) <= width for line in text.splitlines())
    assert ESCAPE not in text
    words = " ".join(text.split())
    assert "the model's FLOPs at peak 4.375 s 50.0 %" in words
    assert "= step 8.750 s 100.0 % 50.0 %" in words
    assert "total 61.25 GiB" in words
    assert "tp 4 inside one scale-up domain" in words
    assert "recompute selective:mlp 9.000 +2.9 % 70.5 +2.0 +1.43 fits" in words
    assert "one layer from stage 7 to stage 0 9.000 -5.3 % 70.5 -1.0 fits" in words
    assert "network x 0.5 10.50 s, +20.0 %" in words
    assert "Rank 2, TP4 PP4 DP4, takes 0.250 s more" in words
    assert "matrix products +0.125 s" in words


def test_rules_are_judged_once_for_each_text(monkeypatch):
    judged = []
    inner = verdict.check_layout
    monkeypatch.setattr(verdict, "check_layout", lambda *words, **more: judged.append(1) or inner(*words, **more))
    printed(100, print_explanation, samples.report(), 1, remedies())
    assert len(judged) == 1
    printed(100, print_search, samples.report(), "", ())
    assert len(judged) == 2
    printed(
        100,
        print_estimate,
        samples.request(),
        samples.layouts()[1],
        broken_rules(samples.layouts()[1].layout, samples.request()),
    )
    assert len(judged) == 3


def test_the_last_rank_has_no_next_one():
    text = printed(100, print_explanation, samples.report(), 3, Remedies(saving=(), faster=()))
    assert "Rank 4" not in text
    assert "no single change saves any" in text


def test_estimate_text_names_broken_rules():
    ranked, request = samples.layouts()[1], samples.request()
    odd = replace(request, job=replace(request.job, seq=request.job.seq + 1))
    text = printed(100, print_estimate, odd, ranked, broken_rules(ranked.layout, odd))
    assert "Estimate, not legal for megatron" in text
    assert "megatron does not run this layout" in text
    assert f"sequence {odd.job.seq:,}".replace(",", "") in " ".join(text.replace(",", "").split())
    assert re.search(r"^0 +21 +", text, re.MULTILINE)
    legal = printed(100, print_estimate, request, ranked, broken_rules(ranked.layout, request))
    assert "does not run" not in legal
    assert "not legal" not in legal


def test_layers_that_differ_are_listed():
    base = samples.layouts()[1]
    runs = (
        StrategyRun(strategy=base.layout.first, count=11),
        StrategyRun(strategy=replace(base.layout.first, recompute=FULL_RECOMPUTE), count=10),
    )
    stages = (replace(base.layout.stages[0], strategies=runs), *base.layout.stages[1:])
    mixed = replace(base, layout=replace(base.layout, stages=stages))
    text = " ".join(printed(100, print_estimate, samples.request(), mixed).split())
    assert "stage 0 11 x TP4 DP4 ZeRO1, recompute selective:mlp; 10 x TP4 DP4 ZeRO1, recompute full" in text
    assert "Layers in order" not in printed(100, print_estimate, samples.request(), base)


def test_layouts_on_other_islands_are_told_apart():
    request = samples.request()
    two = replace(request.cluster, islands=request.cluster.islands * 2, inter_island_bytes_per_s=1e9)
    first, second, *_ = samples.layouts()
    stages = tuple(replace(stage, island=1) for stage in second.layout.stages)
    other = replace(second, layout=replace(second.layout, stages=stages))
    asked = replace(request, cluster=two)
    text = search_text(100, replace(samples.report(), request=asked, layouts=(other, first)))
    assert re.search(r"layout +island +mb", text)
    assert f"stages 0 to {len(stages) - 1} on island 1 (h100-sxm-80gb)" in " ".join(text.split())
    assert "island" not in search_text()


def test_a_step_of_milliseconds_has_its_interval_in_them():
    base = samples.layouts()[0]
    step = StepTime(compute_s=8e-3, exposed_comm_s=1e-3, bubble_s=0.0, sync_s=0.0, io_s=0.0)
    evidence = replace(base.evidence, low_s=8e-3, high_s=12e-3)
    quick = replace(base, cost=replace(base.cost, step=step), evidence=evidence)
    text = search_text(100, replace(samples.report(), layouts=(quick,)))
    said = re.search(r"step +([\d.]+) ms \(likely ([\d.]+) to ([\d.]+)\)", text)
    step_ms, low_ms, high_ms = map(float, said.groups())
    assert low_ms < step_ms < high_ms
    assert re.search(r"runs like it take [\d.]+ to [\d.]+ ms", text)


def test_crossings_tell_inside_from_across():
    found = {crossing.axis: crossing for crossing in crossings(samples.layouts()[0], samples.request().cluster)}
    assert found["tp"].domains == 1
    assert found["dp x cp"].domains == 1
    assert found["pp"].domains == 8
    assert "cp" not in found


def test_waterfall_starts_at_peak_and_ends_at_the_step():
    cost = samples.layouts()[0].cost
    losses = waterfall(cost)
    assert losses[0].value_s == pytest.approx(cost.mfu * cost.step.total_s)
    assert sum(loss.value_s for loss in losses) == pytest.approx(cost.step.total_s)


def test_piped_text_has_a_fixed_width_that_columns_changes(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_on(io.StringIO()).width == PIPED_WIDTH
    monkeypatch.setenv("COLUMNS", "77")
    assert console_on(io.StringIO()).width == 77
    monkeypatch.setenv("COLUMNS", "many")
    assert console_on(io.StringIO()).width == PIPED_WIDTH


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_unless_told_not_to(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    print_search(console_on(coloured), samples.report())
    monkeypatch.setenv("NO_COLOR", "1")
    print_search(console_on(plain), samples.report())
    assert "\x1b[32m" in coloured.getvalue()
    assert not re.search("\x1b\\[(3[0-9]|9[0-9])m", plain.getvalue())


def test_progress_is_silent_where_nobody_looks(capsys):
    with working("searching"):
        pass
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_text_goes_to_standard_error_beside_json(capsys):
    show(text_console(json_on_stdout=True), "words")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "words\n")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_no_number_and_no_unit_of_a_ranking_leaves_its_line_however_long_the_names(width):
    report = samples.report()
    tried = (("schedule", "interleavedzerobubble"), ("compiled", "off"), ("fused_cross_entropy", "off"))
    layouts = tuple(replace(ranked, choices=tried) for ranked in report.layouts)
    variant = Variant(
        choices=tried, software=report.request.job.software, optimizer_bytes=8.0, schedule=None, recompute="auto"
    )
    request = replace(report.request, variants=(variant, variant))
    told = search_text(width, replace(report, layouts=layouts, request=request))
    table = told[told.index("#  layout") :].splitlines()
    for title in ("layout", "tried", "tok/s/GPU", "GiB"):
        assert title in table[0].split(), title
    for ranked in layouts:
        cells = (layout_text(ranked.layout), choices_text(ranked), digits(ranked.cost.step.total_s))
        assert [line for line in table if all(cell in line for cell in cells)], cells


@pytest.mark.parametrize("seed", range(20))
def test_tables_break_between_words_alone(seed):
    rng = random.Random(seed)
    table = ruled_table()
    columns, width = rng.randint(2, 9), rng.randint(20, 120)
    for number in range(columns):
        title = f"{rng.choice(['tok/s/GPU', 'MFU %', 'recompute'])} {number}"
        table.add_column(title, justify=rng.choice(["left", "right"]))
    words = ["12,345.6", "interleavedzerobubble", "TP4", "3.266", "s", "selective:core_attn"]
    for _ in range(4):
        table.add_row(*(" ".join(rng.choices(words, k=rng.randint(1, 3))) for _ in range(columns)))
    whole = printed(2000, lambda console: show(console, table)).split()
    told = printed(width, lambda console: show(console, table))
    assert set(told.split()) - set(whole) <= {"\u2500" * max(map(len, told.splitlines()))}
    assert max(map(len, told.splitlines())) <= max(width, table.least_width())


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (11, ["11,12,12,11"]),
        (10, ["11,12,12,", "11"]),
        (7, ["11,12,", "12,11"]),
        (3, ["11,", "12,", "12,", "11"]),
    ],
)
def test_no_number_of_layers_is_cut_in_two(width: int, lines: list[str]) -> None:
    told = printed(width, lambda console: console.print(Pieces("11,12,12,11")))
    assert told.split() == lines


@pytest.mark.parametrize(
    ("slower", "freed_gib", "told"),
    [(0.008, 23.0, True), (0.008, 7.0, False), (0.04, 23.0, False), (0.0, 10.0, True)],
)
def test_a_layout_that_is_nearly_as_fast_with_far_more_room_is_named(slower, freed_gib, told):
    report = samples.report()
    first, second, *others = report.layouts
    use = replace(first.cost.heaviest, components=(("weights", first.cost.heaviest.total_bytes - freed_gib * 2.0**30),))
    step = replace(first.cost.step, compute_s=first.cost.step.compute_s + slower * first.cost.step.total_s)
    near = replace(second, cost=replace(second.cost, step=step, memory=(use,) * second.layout.pp))
    report = replace(report, layouts=(first, near, *others))
    text = " ".join(search_text(100, report).split())
    assert ("Nearly as fast with more room: layout 2" in text) == told
    assert (f"takes {freed_gib:.1f} GiB less on its fullest GPU" in text) == told
    found = report_to_json(report).get("roomier")
    assert (found is not None) == told
    if told:
        assert found == {"rank": 2, "slower": pytest.approx(slower), "freed_gib": pytest.approx(freed_gib)}
    by_energy = replace(report, request=replace(report.request, objective=Objective.ENERGY))
    assert by_energy.roomier is None


def test_a_search_with_experts_names_the_search_over_dispatchers():
    said = "exchanged by alltoall alone; --try dispatcher=alltoall,deepep ranks layouts of both"
    assert said not in " ".join(search_text(160).split())
    asked = Question(model="mixtral_8x7b", cluster="dgx-h100:8", global_batch=256, seq=4096)
    mixture = replace(samples.report(), request=request_of(asked))
    assert said in " ".join(search_text(160, mixture).split())
    job, choices = mixture.request.job, (("dispatcher", "deepep"),)
    deepep = Variant(choices=choices, software=job.software, optimizer_bytes=12.0, schedule=None, recompute="auto")
    tried = replace(mixture.request, variants=(deepep,))
    assert said not in " ".join(search_text(160, replace(mixture, request=tried)).split())
    elsewhere = replace(mixture.request, framework=Framework.GALVATRON)
    assert said not in " ".join(search_text(160, replace(mixture, request=elsewhere)).split())
