"""Number formats, layers that run again and options without a price in launches of torchtitan.

Expectations are what torchtitan 0.2.2 and 0.3.0 and torchao do with the same words: ``components/quantization``,
``distributed/activation_checkpoint.py``, ``config/job_config.py``.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from launch_words import priced_launch

from costmodels.compute.machine import lacking_format, recipes_on
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, TITAN_SELECTIVE
from costmodels.precision import precision
from costmodels.workload.presets import model
from hardware.catalog import accelerator
from hardware.errors import InputError
from planner.advice.neighbours import neighbours
from planner.export.torchtitan import launch_arguments
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import LaunchReport, check_launch, read_launch
from planner.launches.porting import port, recipe_of_launch
from planner.question import LaunchQuestion, PortQuestion, Question, job_of
from planner.request import Framework

OLD = (
    "--model.name",
    "llama3",
    "--model.flavor",
    "8B",
    "--training.seq_len",
    "8192",
    "--training.local_batch_size",
    "2",
)
FLOAT8 = ("--model.converters", "quantize.linear.float8")
MX = ("--model.converters", "quantize.linear.mx")
GATHER = "--quantize.linear.float8.enable_fsdp_float8_all_gather"
ROWWISE = ("--quantize.linear.float8.recipe_name", "rowwise")
APART = "--activation_checkpoint.selective_ac_option"
PP = ("--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule", "1F1B")


def old(*words: str, world: int = 8) -> JudgedLaunch:
    return read_launch(LaunchQuestion(framework="torchtitan", arguments=(*OLD, *words), world=world))


def asked(*words: str, cluster: str) -> LaunchQuestion:
    return LaunchQuestion(framework="torchtitan", arguments=(*OLD, *words), world=8, cluster=cluster)


def priced(*words: str, cluster: str = "dgx-h100:1") -> LaunchReport:
    return priced_launch(asked(*words, cluster=cluster))


def asking(cluster: str) -> PortQuestion:
    words = {"model": "", "precision": "", "framework": "torchtitan", "global_batch": 0, "seq": 0}
    return PortQuestion(file=Path("launch"), asked=Question(cluster=cluster, time_limit_s=1.0, **words))


def told(judged: JudgedLaunch) -> str:
    return "\n".join(judged.notes)


# ------------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ((), "bf16"),
        (FLOAT8, "fp8-cs"),
        ((*FLOAT8, *ROWWISE), "fp8-cs"),
        (("--model.converters=float8", "--float8.recipe_name", "tensorwise"), "fp8-cs"),
        (("--float8.enable_float8_linear",), "fp8-cs"),
        (("--float8.no_enable_float8_linear",), "bf16"),
        (MX, "mxfp8"),
        (("--model.converters", "mx"), "mxfp8"),
        ((*FLOAT8, "--model.converters", ""), "bf16"),  # the last one counts
        ((*FLOAT8, "--quantize.linear.float8.emulate"), "bf16"),
        (ROWWISE, "bf16"),  # settings of a converter that is not on
    ],
)
def test_converters_are_the_precision(words, recipe):
    judged = old(*words)
    assert judged.legal, judged.violations
    assert judged.precision == recipe
    assert not {"--model.converters", "--float8.enable_float8_linear"} & set(judged.unjudged)


@pytest.mark.parametrize(
    ("words", "by_row", "gathers_8_bits"),
    [
        (FLOAT8, False, True),  # one scale per tensor: the default of 0.2
        ((*FLOAT8, *ROWWISE), True, False),
        ((*FLOAT8, "--quantize.linear.float8.recipe_name", "tensorwise"), False, True),
        ((), True, False),  # what it says of products in 8 bits is of none
    ],
)
def test_scales_of_old_releases_are_read(words, by_row, gathers_8_bits):
    software = check_launch(
        LaunchQuestion(framework="torchtitan", arguments=(*OLD, *words), world=8, cluster="dgx-h100:1")
    ).request.job.software
    assert (software.row_scales, software.low_precision_gathers) == (by_row, gathers_8_bits)


def test_gradients_of_weights_may_stay_in_16_bits():
    words = (*FLOAT8, "--quantize.linear.float8.recipe_name", "rowwise_with_gw_hp")
    wide, narrow = priced(*words), priced(*FLOAT8, *ROWWISE)
    assert wide.request.job.software.wide_weight_gradients
    assert wide.ranked.cost.step.total_s != narrow.ranked.cost.step.total_s


def test_a_scale_per_row_costs_more_than_one_per_tensor():
    by_tensor, by_row = (priced(*FLOAT8, *words).ranked.cost.step.total_s for words in ((), ROWWISE))
    assert 1.05 * by_tensor < by_row < 1.5 * by_tensor


def test_converters_of_a_toml(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["quantize.linear.float8"]\n'
        '[quantize.linear.float8]\nrecipe_name = "rowwise"\n[activation_checkpoint]\nmode = "full"\n'
    )
    question = LaunchQuestion(framework="torchtitan", file=file, world=8)
    assert read_launch(question).precision == "fp8-cs"
    start = recipe_of_launch(question)
    moved = port(start, asking("dgx-a100:1"))
    assert [change.what for change in moved.forced] == ["precision fp8-cs -> bf16"]
    assert moved.report.request.job.precision.name == "bf16-fsdp"


@pytest.mark.parametrize(
    ("words", "cluster", "lacks"),
    [
        (FLOAT8, "dgx-a100:1", "fp8"),  # torchao: SM89 or later
        (FLOAT8, "dgx-h100:1", ""),
        (MX, "dgx-h100:1", "mxfp8"),  # torchao: SM100 or later
        (MX, "dgx-b200:1", ""),
    ],
)
def test_parts_without_the_format_give_no_price(words, cluster, lacks):
    report = check_launch(asked(*words, cluster=cluster))
    assert (report.ranked is None) == bool(lacks)
    assert f"does not compute in {lacks}" in report.unpriced if lacks else not report.unpriced


@pytest.mark.parametrize(
    ("part", "recipes"),
    [
        ("a100-sxm-80gb", ()),
        ("l40s-48gb", ("fp8-cs",)),
        ("rtx-4090", ("fp8-cs",)),
        ("h100-nvl-94gb", ("fp8-cs", "fp8-blockwise")),
        ("gh200-96gb", ("fp8-cs", "fp8-blockwise")),
        ("rtx-5080", ("fp8-cs", "fp8-blockwise")),
        ("rtx-pro-6000-max-q", ("fp8-cs", "fp8-blockwise")),
        ("gb10", ("fp8-cs", "fp8-blockwise")),
        ("mi325x", ("fp8-cs", "fp8-blockwise")),
        ("gb300", ("fp8-cs", "fp8-blockwise", "mxfp8")),
        ("mi355x", ("fp8-cs", "fp8-blockwise", "mxfp8")),
    ],
)
def test_scales_of_fp8_that_each_generation_takes(part, recipes):
    """Transformer Engine's ``check_recipe_support``: fp8 from 8.9, 1x128 from 9.0, MXFP8 on 10.x; gfx942, gfx950."""
    asked = ("fp8-cs", "fp8-blockwise", "mxfp8")
    assert tuple(name for name in asked if not lacking_format(accelerator(part), precision(name))) == recipes
    assert set(recipes) == set(asked) & set(recipes_on(accelerator(part)))


def test_float8_is_faster_by_what_its_products_save():
    narrow, wide = (priced(*words, "--compile.enable").ranked.cost.step.total_s for words in (FLOAT8, ()))
    assert 0.5 < narrow / wide < 0.95


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*FLOAT8, *ROWWISE, GATHER), "rowwise with enable_fsdp_float8_all_gather"),
        ((*FLOAT8, "--quantize.linear.float8.recipe_name", "blockwise"), "'blockwise' is unknown"),
        (("--model.converters", "quantize.linear.float9"), "nearest"),
        (("--model.converters", "quantize.linear.float8,quantize.grouped_mm.mx"), "cannot be combined"),
        (("--model.converters", "quantize.linear.float8,quantize.grouped_mm.float8", *PP), "pipeline parallelism 2"),
        ((*MX, "--compile.enable", "--parallelism.tensor_parallel_degree", "2"), "over tp"),
    ],
)
def test_what_0_2_refuses_of_converters(words, message):
    judged = old(*words)
    assert {violation.rule for violation in judged.violations} == {"torchtitan-converters"}
    assert message in judged.violations[0].message


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        ((*FLOAT8, GATHER), "gathers in float8"),
        ((*FLOAT8, "--quantize.linear.float8.filter_fqns", "output,attention.wk"), "attention.wk stays in 16 bits"),
        ((*FLOAT8, "--quantize.linear.float8.emulate"), "emulated float8"),
        (("--model.converters", "quantize.grouped_mm.float8"), "experts alone"),
        (("--model.converters", "own.converter"), "own.converter"),
    ],
)
def test_what_is_priced_otherwise_is_told(words, remark):
    assert remark in told(old(*words))


def test_a_configuration_brings_its_numbers():
    found = {}
    for module, config in (("llama3", "llama3_8b_mxfp8"), ("deepseek_v3", "deepseek_v3_671b_float8")):
        words = ("--module", module, "--config", config, "--parallelism.expert_parallel_degree", "1")
        found[config] = read_launch(LaunchQuestion(framework="torchtitan", arguments=words, world=8)).precision
    assert found == {"llama3_8b_mxfp8": "mxfp8", "deepseek_v3_671b_float8": "fp8-cs"}
    words = ("--module", "llama3", "--config", "llama3_8b_first_85_pct_layers_nvfp4")
    unknown = read_launch(LaunchQuestion(framework="torchtitan", arguments=words, world=8, model="llama3_8b"))
    assert (unknown.precision, "nvfp4 is priced as bf16" in told(unknown)) == ("bf16", True)


@pytest.mark.parametrize(
    ("name", "recipe", "config"),
    [
        ("llama31_405b", "fp8-cs", "llama3_405b"),
        ("llama3_8b", "mxfp8", "llama3_8b_mxfp8"),
        ("llama3_8b", "bf16", "llama3_8b"),
        ("llama31_405b", "bf16", ""),
        ("llama3_8b", "fp8-cs", ""),
    ],
)
def test_a_plan_is_exported_to_the_configuration_of_its_numbers(name, recipe, config):
    layout = old("--activation_checkpoint.mode", "full").layout
    job = job_of(Framework.TORCHTITAN, recipe, global_batch=16, seq=8192)
    if not config:
        with pytest.raises(InputError, match=f"no {precision(recipe).gemm}.* configuration of the sizes of {name}"):
            launch_arguments(model(name), job, layout, layout.first)
        return
    words = launch_arguments(model(name), job, layout, layout.first)
    assert words[:4] == ("--module", "llama3", "--config", config)
    assert read_launch(LaunchQuestion(framework="torchtitan", arguments=words, world=8)).precision == recipe


# ---------------------------------------------------------------------------------------------- layers that run again
def wrapped(layers: int, apart: int) -> list[bool]:
    """As ``_apply_layer_sac`` counts the layers of one rank."""
    return [not apart or count % apart == 0 for count in range(1, layers + 1)]


def in_order(judged: JudgedLaunch, stage: int) -> list[bool]:
    runs = judged.layout.stages[stage].strategies
    return [run.strategy.recompute == FULL_RECOMPUTE for run in runs for _ in range(run.count)]


@pytest.mark.parametrize(
    ("words", "apart"),
    [((), 2), (("--activation_checkpoint.mode", "selective"), 2), ((APART, "3"), 3), ((APART, "0"), 0)],
)
def test_every_so_many_layers_of_a_rank_run_again(words, apart):
    judged = old(*words, *PP, "--training.global_batch_size", "8")
    assert judged.legal, judged.violations
    for stage, (layers,) in enumerate(judged.layout.layers_per_stage):
        assert in_order(judged, stage) == wrapped(layers, apart)


def test_other_words_of_selective_checkpointing():
    assert old(APART, "op").layout.first.recompute == TITAN_SELECTIVE
    assert old("--activation_checkpoint.mode", "none", APART, "2").layout.first.recompute == NO_RECOMPUTE
    refused = old(APART, "some")
    assert [violation.values["argument"] for violation in refused.violations] == [APART]
    newer = ("--module", "llama3", "--config", "llama3_8b")
    plain = read_launch(LaunchQuestion(framework="torchtitan", arguments=newer, world=8))
    assert plain.layout.first.recompute == TITAN_SELECTIVE


def test_half_of_the_layers_cost_half_of_the_time_and_of_the_memory():
    none, full, half = (
        priced("--compile.enable", *words).ranked.cost
        for words in (("--activation_checkpoint.mode", "none"), ("--activation_checkpoint.mode", "full"), (APART, "2"))
    )
    middle = (none.step.total_s + full.step.total_s) / 2
    assert half.step.total_s == pytest.approx(middle, rel=0.01)
    assert none.step.total_s < 0.95 * full.step.total_s
    held = [cost.heaviest.total_bytes for cost in (full, half, none)]
    assert held[0] < held[1] < held[2]
    assert held[1] == pytest.approx((held[0] + held[2]) / 2, rel=0.05)


def test_a_change_of_the_grid_keeps_the_layers_that_run_again_or_says_what_becomes_of_them():
    report = priced(APART, "2", *PP, "--training.local_batch_size", "4", "--training.global_batch_size", "16")
    layout = report.ranked.layout
    request = replace(report.request, framework=Framework.NONE)
    found = {one.change: one.layout for one in neighbours(request, layout, report.ranked.cost)}
    kept = found["ZeRO-3"]
    assert [run.strategy.recompute for run in kept.stages[0].strategies] == [NO_RECOMPUTE, FULL_RECOMPUTE] * 8
    moved = {change: other for change, other in found.items() if "instead of" in change}
    assert moved
    for change, other in moved.items():
        mixed = len({run.strategy.recompute for stage in other.stages for run in stage.strategies}) > 1
        assert mixed != change.endswith("no recompute"), change


def test_0_3_has_no_word_for_some_layers_so_a_port_changes_them():
    start = recipe_of_launch(LaunchQuestion(framework="torchtitan", arguments=(*OLD, APART, "2"), world=8))
    moved = port(start, asking("dgx-h100:1"))
    assert [change.what for change in moved.forced] == ["recompute of some layers -> selective:per_op in all"]
    assert moved.carried.layout.first == replace(start.layout.first, recompute=TITAN_SELECTIVE)


# ------------------------------------------------------------------------------------------------ options without price
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--parallelism.tensor_parallel_degree", "2", "--parallelism.disable_loss_parallel"), "disable_loss_parallel"),
        (("--parallelism.context_parallel_degree", "2", "--parallelism.context_parallel_rotate_method", "alltoall"),
         "rotate_method alltoall"),
        (("--optimizer.early_step_in_backward",), "early_step_in_backward true"),
        (("--optimizer.implementation", "foreach"), "implementation foreach"),
        (("--compile.enable", "--compile.backend", "aot_eager"), "backend aot_eager"),
        (("--compile.enable", "--compile.components", "model"), "components without loss"),
        (("--fault_tolerance.enable",), "fault_tolerance.enable true"),
        (("--debug.deterministic",), "debug.deterministic true"),
        (("--experimental.custom_import", "own.code"), "custom_import own.code"),
    ],
)  # fmt: skip
def test_options_that_cost_and_have_no_price_are_told(words, option):
    judged = old(*words)
    assert option in told(judged)
    assert not any(word in judged.unjudged for word in words)


def test_defaults_are_not_told():
    plain = old("--optimizer.implementation", "fused", "--debug.no_deterministic", "--optimizer.lr", "1e-4")
    assert "no price" not in told(plain)
    assert plain.unjudged == ("--optimizer.lr",)


def test_a_section_of_0_2_without_a_named_model_is_of_0_2_and_unknown_to_0_3():
    words = ("--training.seq_len", "8192", "--activation_checkpoint.mode", "selective")
    judged = read_launch(LaunchQuestion(framework="torchtitan", arguments=words, world=8, model="llama3_8b"))
    assert (judged.title, judged.layout.stages[0].strategies[1].strategy.recompute) == (
        "torchtitan 0.2",
        FULL_RECOMPUTE,
    )
    words = ("--module", "llama3", "--config", "llama3_8b", *FLOAT8)
    newer = read_launch(LaunchQuestion(framework="torchtitan", arguments=words, world=8))
    assert (newer.unknown, newer.precision) == (("--model.converters",), "bf16")
    words = (
        *words[:4],
        "--compile.enable",
        "activation-checkpoint:memory-budget",
        "--activation-checkpoint.memory-budget",
    )
    budget = read_launch(LaunchQuestion(framework="torchtitan", arguments=(*words, "0.3"), world=8))
    assert (budget.legal, budget.unjudged) == (True, ())
    assert "memory-budget is priced as selective" in told(budget)
