"""Rules of Megatron-LM against verdicts and layers of its own parser in each version; how options are read."""

import re
from pathlib import Path

import pytest
from megatron_reference import (
    OPTION_CASES,
    SIZES,
    TABLE,
    VERSION_CASES,
    launch_of,
    options_of,
    words_in,
    words_of,
)

from hardware.errors import InputError
from planner.ingest.megatron import layers_file, option_facts, schedule_facts
from planner.ingest.megatron.arguments import judge, layout_of, parse_megatron
from planner.ingest.megatron.layer_pattern import moe_pattern
from planner.ingest.megatron.option_facts import schedule_notes
from planner.ingest.options import megatron_options
from planner.request import Framework
from planner.rules import all_rules, rules_for
from planner.rules.table import NEWEST

ENDS, VIRTUAL = "pipeline-num-layers", "--num-virtual-stages-per-pipeline-rank"


# ---------------------------------------------------------------------------------- verdicts of the real parser
@pytest.mark.parametrize("case", TABLE["case"], ids=lambda case: f"{case['name']} {case.get('core', '')}")
def test_verdict_and_layers_are_those_of_megatron(case):
    verdict = judge(parse_megatron(words_of(case), world=case["world"], version=case.get("core")))
    assert verdict.accepted == case["accepted"]
    assert [violation.rule for violation in verdict.violations] == case["rules"]
    assert verdict.legal == (not case["rules"])
    if "layers" in case:
        assert [list(chunks) for chunks in verdict.layers_per_stage] == case["layers"]


@pytest.mark.parametrize("case", VERSION_CASES["case"], ids=lambda case: f"{case['core']} {case['args'][-60:]}")
def test_verdict_and_layers_are_those_of_each_version(case):
    words = words_in(options_of(VERSION_CASES, case))
    verdict = judge(parse_megatron(words, world=case["world"], version=case["core"]))
    assert verdict.accepted == case["accepted"], verdict.violations
    if "layers" in case:
        assert " ".join("/".join(map(str, chunks)) for chunks in verdict.layers_per_stage) == case["layers"]


@pytest.mark.parametrize("case", OPTION_CASES["case"], ids=lambda case: case["rule"])
def test_a_rule_on_options_is_broken_alone_as_the_parser_says(case):
    given = options_of(OPTION_CASES, case)
    verdict = judge(parse_megatron(words_in(given), world=8))
    assert [violation.rule for violation in verdict.violations] == [case["rule"]]
    assert verdict.accepted == case["accepted"]
    (rule,) = (rule for rule in all_rules() if rule.id == case["rule"])
    measured = {name.partition(":")[0] for name in rule.conditions if name.endswith((":number", ":billionths"))}
    values = [" ".join(given[name]) for name in measured & given.keys()]
    assert all(value in verdict.violations[0].message for value in values)  # the user's numbers are told


def test_every_rule_on_options_has_a_case_and_asks_for_options_that_exist():
    shown = {case["rule"] for case in OPTION_CASES["case"]}
    newest = [rule for rule in rules_for(Framework.MEGATRON, NEWEST[Framework.MEGATRON]) if rule.needs_options]
    assert {rule.id for rule in newest} == shown
    texts = [
        Path(module.__file__).read_text(encoding="utf-8") for module in (option_facts, schedule_facts, layers_file)
    ]
    derived = re.findall(r'"(--[a-z-]+)"', "".join(texts))
    known = {*megatron_options("0.13"), *megatron_options("0.16"), *megatron_options("0.19"), *derived}
    words = {name for rule in all_rules() for name in (*rule.conditions, *rule.fields) if name.startswith("--")}
    asked = {re.split("[=:]", name)[0] for name in words}
    assert asked <= known


def test_options_are_judged_by_what_older_versions_say_too():
    words = (
        "--num-layers 8 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
    )
    ramp = [
        *words.split(),
        *["--micro-batch-size", "1", "--global-batch-size", "64", "--bf16", "--rampup-batch-size", "5", "3", "100"],
    ]
    ramp += ["--train-samples", "6400"]
    old = judge(parse_megatron(ramp, world=8, version="0.13"))  # core 0.18 and later ignore the ramp
    assert {violation.rule for violation in old.violations} == {"megatron-ramp-steps", "megatron-first-batch"}
    assert judge(parse_megatron(ramp, world=8)).legal


@pytest.mark.parametrize(
    ("ramp", "more", "rules"),
    [
        # what the calculator and the parser of core 0.13 and 0.15.3 said, asked on a CPU at every stage of the growth
        ("16 16 1000", "--train-samples 6400", []),
        ("16 24 1000", "--train-samples 6400", []),
        ("16 48 1000", "--train-samples 6400", []),
        ("16 12 1000", "--train-samples 6400", ["megatron-batches-between"]),
        ("16 12 1000", "--train-samples 6400 --decrease-batch-size-if-needed", []),
        ("16 32 1000", "--train-samples 6400", ["megatron-ramp-steps"]),
        ("16 16 0", "--train-samples 6400", ["megatron-ramp-positive"]),
        ("16 16 1000", "--train-iters 10", ["megatron-ramp-iterations"]),
    ],
)
def test_a_batch_that_grows_divides_at_every_stage(ramp, more, rules):
    words = (
        "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --bf16 "
        f"--micro-batch-size 1 --global-batch-size 64 --rampup-batch-size {ramp} {more}"
    )
    for version in ("0.13", "0.15"):
        told = judge(parse_megatron(words.split(), world=8, version=version))
        assert [violation.rule for violation in told.violations] == rules


def test_a_ramp_that_a_version_ignores_is_remarked():
    words = (
        "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --bf16"
    )
    read = parse_megatron(
        [*words.split(), *["--global-batch-size", "280", "--rampup-batch-size", "32", "32", "100"]], world=8
    )
    (note,) = schedule_notes(read.arguments, "0.19")
    assert "--rampup-batch-size 32 32 100 and ignores it" in note
    assert schedule_notes(read.arguments, "0.17") == ()


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        # what get_optimizer_param_scheduler of megatron-core 0.19.2 said
        ("--train-iters 10 --lr-warmup-iters 10", "megatron-warmup-late"),
        ("--train-iters 10 --lr-warmup-iters 9", ""),
        ("--train-iters 10 --lr-decay-iters 5 --lr-warmup-iters 5", "megatron-warmup-late"),
        ("--train-iters 10 --lr-decay-iters 0", "megatron-warmup-late"),
        ("--train-iters 10 --lr-warmup-fraction 1.0", "megatron-warmup-late"),
        ("--train-samples 640 --lr-warmup-samples 640", "megatron-warmup-late"),
        ("--train-iters 10 --lr-decay-style WSD --lr-wsd-decay-iters 2", ""),
        ("--train-samples 640 --lr-decay-style WSD --lr-wsd-decay-iters 2", "megatron-annealing"),
        ("--train-iters 10 --lr-warmup-init 1e-4", ""),
        ("--train-iters 10 --lr-warmup-init 1e-3", "megatron-warmup-start"),
        ("--train-iters 0 --lr-warmup-samples 10", ""),
        ("--train-samples 0 --lr-warmup-iters 10", ""),
    ],
)
def test_the_learning_rate_has_a_course_that_the_scheduler_takes(more, rule):
    words = (
        "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --bf16 "
        f"--micro-batch-size 1 --global-batch-size 64 --lr 1e-4 {more}"
    )
    told = judge(parse_megatron(words.split(), world=8))
    assert [violation.rule for violation in told.violations] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (f"{VIRTUAL} -1", "megatron-virtual-positive"),
        ("--num-layers-per-virtual-pipeline-stage -2", "megatron-chunk-size"),
        ("--decoder-last-pipeline-num-layers -3", "megatron-ends-positive"),
        (f"--decoder-first-{ENDS} 4 --decoder-last-{ENDS} 4 {VIRTUAL} 2", "megatron-ends-vpp-alone"),
        ("--num-experts 8 --moe-layer-freq [2]*8", "megatron-moe-freq"),
    ],
)
def test_splits_that_the_parser_takes_and_the_build_refuses(args, rule):
    words = (
        "--num-layers 8 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
    )
    grid = "--micro-batch-size 1 --global-batch-size 64 --bf16 --disable-bias-linear --pipeline-model-parallel-size 2"
    verdict = judge(parse_megatron([*words.split(), *grid.split(), *args.split()], world=8))
    assert [violation.rule for violation in verdict.violations] == [rule]
    assert not verdict.accepted


def test_of_two_counts_for_one_stage_the_last_one_counts():
    words = (
        "--num-layers 6 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
    )
    ends = "--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 6"
    rest = "--micro-batch-size 1 --global-batch-size 64 --bf16"
    assert judge(parse_megatron([*words.split(), *ends.split(), *rest.split()], world=8)).layers_per_stage == ((6,),)


def test_every_case_that_launches_becomes_a_layout_with_the_same_layers():
    launched = [case for case in TABLE["case"] if case["accepted"]]
    assert len(launched) >= 20
    for case in launched:
        layout = layout_of(parse_megatron(words_of(case), world=case["world"], version=case.get("core")))
        assert [list(stage) for stage in layout.layers_per_stage] == case["layers"]
        assert layout.gpus == case["world"]
        assert all(sum(run.count for run in stage.strategies) == stage.layers for stage in layout.stages)


# ------------------------------------------------------------------------------------------------ single options
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--num-layers", "1000000000"),
        ("--global-batch-size", "9" * 30),
        ("--tensor-model-parallel-size", "99999999"),
        ("--num-virtual-stages-per-pipeline-rank", "1000000"),
        ("--num-experts", "1000000000"),
    ],
)
def test_absurd_sizes_are_faults_and_cost_nothing(name, value):
    verdict = judge(parse_megatron([name, value], world=8))
    assert not verdict.legal
    assert any(
        found.message.startswith(f"option {name} got '{value}'; allowed: a whole") for found in verdict.violations
    )
    assert verdict.layers_per_stage is None


def test_absurd_jobs_are_refused():
    with pytest.raises(InputError, match="--world-size 1000000000000"):
        parse_megatron([], world=10**12)


@pytest.mark.parametrize(
    ("given", "fine"),
    [  # as megatron-core 0.19.2 answers
        ("--window-size (127,0)", True),
        ("--window-size x", False),
        ("--window-size -1,-1", False),  # begins like an option, so that the parser sees no value
        ("--window-attn-skip-freq -2", True),
        ("--window-attn-skip-freq [1,0]*6", True),
        ("--window-attn-skip-freq [1, 0]", False),
        ("--no-rope-freq half", False),
        ("--lr -1e-4", True),
    ],
)
def test_options_with_types_of_their_own_take_what_the_parser_takes(given, fine):
    name, value = given.split(" ", 1)
    words = [*SIZES.split(), "--num-layers", "12", "--micro-batch-size", "1", name, value]
    assert [fault.argument for fault in parse_megatron(words, world=8).faults][:1] == ([] if fine else [name])


def test_encoder_sizes_stand_for_the_models_where_they_are_alone():
    words = "--hidden-size 2048 --num-attention-heads 32 --max-position-embeddings 4096 --micro-batch-size 1 --bf16"
    alone = [*words.split(), "--encoder-num-layers", "12", "--encoder-seq-length", "4096"]
    assert judge(parse_megatron(alone, world=8)).layers_per_stage == ((12,),)
    assert judge(parse_megatron(alone, world=8)).accepted
    both = judge(parse_megatron([*alone, "--num-layers", "12"], world=8))
    assert [violation.rule for violation in both.violations] == ["megatron-encoder-layers"]


def test_a_negative_period_of_expert_layers_is_that_of_its_size():
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 --num-experts 8 --moe-layer-freq"
    there, back = (parse_megatron([*words.split(), period], world=8) for period in ("-3", "3"))
    assert not there.faults
    assert moe_pattern("-3", 12) == moe_pattern("3", 12) == (True, False, False) * 4
    assert there.proposal.model == back.proposal.model


@pytest.mark.parametrize(
    ("version", "more", "microbatches"),
    [("0.13", "", 7), ("0.17", "", 7), ("0.19", "", None), ("0.19", "--eval-global-batch-size 64", 7)],
)
def test_a_batch_is_lowered_where_the_parser_lowers_it(version, more, microbatches):
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 --global-batch-size 63 {more}"
    launch = parse_megatron([*words.split(), "--decrease-batch-size-if-needed"], world=8, version=version)
    assert [v.rule for v in judge(launch).violations] == ([] if microbatches else ["batch"])
    assert microbatches is None or layout_of(launch).num_microbatches == microbatches


def test_interleaved_rotation_and_its_fusion_exclude_each_other_in_core_013_whatever_the_positions():
    words = [*f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16".split(), "--rotary-interleaved"]
    old, new = (judge(parse_megatron(words, world=8, version=version)) for version in ("0.13", "0.14"))
    assert ([v.rule for v in old.violations], new.legal) == (["megatron-interleaved-fusion"], True)


def test_a_message_shows_the_value_of_an_option_as_it_was_written():
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --lr 1e-4 --min-lr 1e-3 --log-memory-interval 30 --bf16"
    told = [v.message for v in judge(parse_megatron(words.split(), world=8)).violations]
    assert told == [
        "--min-lr 1e-3 is above --lr 1e-4; allowed: a --min-lr up to 1e-4",
        "--log-memory-interval 30 is no multiple of --log-interval 100; allowed: a multiple of 100",
    ]


def test_a_misspelt_option_is_named_with_the_one_meant():
    (violation,) = judge(launch_of("misspelt option")).violations
    assert violation.message.endswith("did you mean --pipeline-model-parallel-layout?")


def test_options_that_nobody_knows_are_all_named_and_the_rest_is_judged():
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 --foo 1 --global-batch-size 63 --ckpt-fromat torch"
    verdict = judge(parse_megatron(words.split(), world=8))
    told = [(violation.rule, violation.values.get("argument", "")) for violation in verdict.violations]
    unknown = "megatron-unknown-option"
    assert told == [(unknown, "--foo"), (unknown, "--ckpt-fromat"), ("batch", "")]
    assert "did you mean" not in verdict.violations[0].message  # no option has a name like it but for the dashes
    assert verdict.violations[1].message.endswith("did you mean --ckpt-format?")
    assert (verdict.accepted, verdict.layers_per_stage) == (False, ((12,),))


def test_beside_a_value_that_is_wrong_stands_what_is_broken_whatever_it_would_be():
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 --global-batch-size 63 --seed x --foo"
    verdict = judge(parse_megatron(words.split(), world=8))
    wrong = {"megatron-option-value", "megatron-unknown-option"}
    assert {violation.rule for violation in verdict.violations} == {*wrong, "batch"}
    assert (verdict.accepted, verdict.layers_per_stage) == (False, None)

    def found(more):
        given = judge(parse_megatron(f"{SIZES} --micro-batch-size 1 --bf16 {more}".split(), world=8))
        return {violation.rule for violation in given.violations} - {"megatron-option-value"}

    assert found("--num-layers 12 --tensor-model-parallel-size x --pipeline-model-parallel-size 5") == {
        "megatron-layers-pp"
    }
    assert found("--num-layers x --pipeline-model-parallel-size 2") == set()  # it may divide
    split = "--num-layers 12 --pipeline-model-parallel-size 8"
    assert found(split) == {"megatron-layers-pp"}
    sharded = {"megatron-param-gather-needs", "megatron-param-gather-reduce"}  # a layout without a text may fit
    assert found(f"{split} --pipeline-model-parallel-layout --overlap-param-gather") == sharded
    none = judge(
        parse_megatron(f"{SIZES} --num-layers 12 --micro-batch-size 0 --overlap-param-gather".split(), world=8)
    )
    assert none.violations[0].message == "--micro-batch-size 0 is below 1; allowed: integers from 1"
    assert "megatron-param-gather-needs" in {violation.rule for violation in none.violations}


def test_modules_that_are_not_known_are_named():
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 --recompute-granularity selective --recompute-modules"
    launch = parse_megatron([*words.split(), "attention", "core_attn", "gdn_norm_out"], world=8, version="0.17")
    (violation,) = judge(launch).violations
    assert violation.message.startswith("--recompute-modules does not know attention, gdn_norm_out; allowed: core_attn")


def test_an_empty_pipeline_layout_is_refused():
    words = [*f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16".split(), "--pipeline-model-parallel-layout", ""]
    (violation,) = judge(parse_megatron(words, world=8)).violations  # the parser finds no embedding in it
    assert violation.message.startswith("option --pipeline-model-parallel-layout is empty; allowed: stages such as")


@pytest.mark.parametrize(
    ("option", "versions"),
    [
        ("--use-custom-fsdp", "0.13"),
        ("--use-megatron-fsdp", "0.14 0.15 0.16 0.17 0.18 0.19"),
        ("--linear-attention-freq", "0.16 0.17 0.18 0.19"),
        ("--hybrid-layer-pattern", "0.17 0.18 0.19"),
        ("--cuda-graph-modules", "0.18 0.19"),
        ("--yarn-original-max-position-embeddings", "0.19"),
    ],
)
def test_options_are_those_of_each_version(option, versions):
    """Read from the parsers of tags core_v0.13.0 to 0.18.2 and of megatron-core 0.19.2."""
    every = ("0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19")
    assert " ".join(version for version in every if option in megatron_options(version)) == versions
    sizes = (503, 515, 576, 681, 736, 786, 846)
    assert tuple(len(megatron_options(version)) for version in every) == sizes
    assert megatron_options("0.20") == megatron_options("0.19")
    assert megatron_options("0.15.2") == megatron_options("0.15")


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ("--encoder-tensor-model-parallel-size 2", {"megatron-encoder-tp"}),
        ("--encoder-tensor-model-parallel-size 3 --tensor-model-parallel-size 4", {"megatron-encoder-heads"}),
        ("--encoder-tensor-model-parallel-size 2 --tensor-model-parallel-size 2", set()),
        ("--encoder-pipeline-model-parallel-size 0", set()),
        ("--encoder-pipeline-model-parallel-size 1", {"megatron-encoder-stages"}),
    ],
)
def test_degrees_of_an_encoder_are_judged_in_core_013(more, rules):
    words = f"{SIZES} --num-layers 12 --micro-batch-size 1 --bf16 {more}".split()
    verdict = judge(parse_megatron(words, world=8, version="0.13"))
    assert {violation.rule for violation in verdict.violations} == rules
    later = judge(parse_megatron(words, world=8, version="0.14"))
    assert {violation.rule for violation in later.violations} == {"megatron-unknown-option"}
