"""Rules of legality against verdicts of the real parser, closed forms, and one form of judging against the other."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Layout, Stage, Strategy, StrategyRun
from costmodels.table import table_of
from costmodels.workload.model import Attention, DenseFfn, LayerKind, LayerRun, ModelSpec, MoeFfn
from hardware.errors import InputError
from planner.ingest import option_facts
from planner.ingest.layer_pattern import moe_pattern
from planner.ingest.megatron import judge, layout_of, parse_megatron
from planner.ingest.options import megatron_options
from planner.request import Framework
from planner.rules import (
    ModelFacts,
    Proposal,
    Split,
    Switches,
    accepted_at_launch,
    all_rules,
    check,
    check_layout,
    legal_mask,
    nearest_legal,
    rules_for,
)
from planner.rules.checks import CHECKS
from planner.rules.columns import proposal_columns
from planner.rules.table import NEWEST, SPLIT_CHECK
from planner.rules.verdict import option_columns

TABLE = tomllib.loads((Path(__file__).parent / "reference" / "megatron_cases.toml").read_text(encoding="utf-8"))
OPTION_CASES = tomllib.loads(
    (Path(__file__).parent / "reference" / "megatron_option_cases.toml").read_text(encoding="utf-8")
)
SIZES = "--hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
ENDS, VIRTUAL = "pipeline-num-layers", "--num-virtual-stages-per-pipeline-rank"
LLAMA = ModelFacts(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)


def precision(name: str = "bf16") -> Precision:
    sizes = dict.fromkeys(("weight_bytes", "activation_bytes", "gemm_activation_bytes", "gather_bytes"), 2.0)
    rest = dict.fromkeys(("gradient_bytes", "master_bytes", "reduce_bytes"), 4.0)
    return Precision(name=name, gemm="bf16", attention="bf16", extra_weight_bytes=0.0, **sizes, **rest)


def job(global_batch: int = 256, seq: int = 8192) -> TrainingJob:
    software = Software(name="megatron-core", framework="megatron")
    return TrainingJob(global_batch=global_batch, seq=seq, precision=precision(), software=software)


def model(*, layers: int = 80, heads: int = 64, kv: int = 8, experts: int = 0, ffn: int = 28672) -> ModelSpec:
    attention = Attention(heads=heads, kv_heads=kv, qk_dim=128, v_dim=128)
    wide = DenseFfn(hidden=ffn, gated=True)
    sparse = MoeFfn(experts=experts, top_k=2, hidden=2048, gated=True)
    kind = LayerKind(name="block", mixer=attention, ffn=sparse if experts else wide, norm_parameters=2 * heads * 128)
    runs = (LayerRun(kind=kind, count=layers),)
    return ModelSpec(name="test", family="llama", hidden=heads * 128, vocab=32000, runs=runs)


def uniform(strategy: Strategy, split: tuple[tuple[int, ...], ...], *, micro: int = 1, batch: int = 256) -> Layout:
    stages = tuple(
        Stage(layers_per_chunk=chunks, strategies=(StrategyRun(strategy=strategy, count=sum(chunks)),))
        for chunks in split
    )
    return Layout(stages=stages, micro_batch=micro, num_microbatches=batch // (micro * strategy.dp))


def words_of(case: dict) -> list[str]:
    return " ".join((TABLE["models"][case["model"]], TABLE["common"], case["args"])).split()


# ------------------------------------------------------------------------------------------------ the rule tables
@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_every_rule_uses_columns_that_exist_and_has_a_source(rule):
    asked = Proposal(world=8, options=(("--bf16", ()),))
    columns = {**proposal_columns(asked), **option_columns([rule], asked)}
    assert rule.source
    if rule.check == SPLIT_CHECK:
        return
    fields = {name for name in rule.fields if not name.startswith("--")}
    names = {*rule.arguments, *fields, *(condition.removeprefix("!") for condition in rule.when)}
    assert names <= set(columns)
    assert CHECKS[rule.check](columns, rule.arguments).shape == (1,)


def test_every_framework_has_the_rules_of_arithmetic():
    wanted = {"world-grid", "heads-tp", "batch", "layers-sum", "world-expert-grid", "ffn-tp"}
    for framework in Framework:
        experts = "layer-experts-ep" if framework in (Framework.BRIDGE, Framework.NEMO) else "experts-ep"
        assert {*wanted, experts} <= {rule.id for rule in rules_for(framework, NEWEST[framework])}


# ---------------------------------------------------------------------------------- verdicts of the real parser
@pytest.mark.parametrize("case", TABLE["case"], ids=lambda case: f"{case['name']} {case.get('core', '')}")
def test_verdict_and_layers_are_those_of_megatron(case):
    verdict = judge(parse_megatron(words_of(case), world=case["world"], version=case.get("core")))
    assert verdict.accepted == case["accepted"]
    assert [violation.rule for violation in verdict.violations] == case["rules"]
    assert verdict.legal == (not case["rules"])
    if "layers" in case:
        assert [list(chunks) for chunks in verdict.layers_per_stage] == case["layers"]


@pytest.mark.parametrize("case", OPTION_CASES["case"], ids=lambda case: case["rule"])
def test_a_rule_on_options_is_broken_alone_as_the_parser_says(case):
    text = OPTION_CASES["models"][case["model"]] + " " + case["args"]
    given = {}
    for word in shlex.split(text):
        if word.startswith("--"):
            given[name := word] = []
        else:
            given[name].append(word)
    words = [word for option in given if option not in case.get("without", ()) for word in (option, *given[option])]
    verdict = judge(parse_megatron(words, world=8))
    assert [violation.rule for violation in verdict.violations] == [case["rule"]]
    assert verdict.accepted == case["accepted"]


def test_every_rule_on_options_has_a_case_and_asks_for_options_that_exist():
    shown = {case["rule"] for case in OPTION_CASES["case"]}
    newest = [rule for rule in rules_for(Framework.MEGATRON, NEWEST[Framework.MEGATRON]) if rule.needs_options]
    assert {rule.id for rule in newest} == shown
    derived = re.findall(r'"(--[a-z-]+)"', Path(option_facts.__file__).read_text(encoding="utf-8"))
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
    old = judge(parse_megatron(ramp, world=8, version="0.13"))  # core 0.18 and later ignore the ramp
    assert {violation.rule for violation in old.violations} == {"megatron-ramp-steps", "megatron-first-batch"}
    assert judge(parse_megatron(ramp, world=8)).legal


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (f"{VIRTUAL} -1", "megatron-virtual-positive"),
        ("--num-layers-per-virtual-pipeline-stage -2", "megatron-chunk-size"),
        ("--decoder-last-pipeline-num-layers -3", "megatron-ends-positive"),
        (f"--decoder-first-{ENDS} 4 --decoder-last-{ENDS} 4 {VIRTUAL} 2", "megatron-ends-vpp-alone"),
        ("--num-experts 8 --moe-layer-freq [2]*8", "megatron-option-value"),
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


# ------------------------------------------------------------------------------------------------ single rules
def broken(proposal: Proposal, framework: Framework = Framework.MEGATRON, version: str | None = None) -> set[str]:
    return {violation.rule for violation in check(proposal, framework, version)}


def test_message_tells_the_users_numbers():
    (violation,) = check(
        Proposal(world=24, tp=24, model=ModelFacts(heads=64, layers=2), global_batch=8), Framework.NONE
    )
    assert violation.rule == "heads-tp"
    assert violation.message == "64 attention heads do not divide by tp 24; allowed: a tp that divides 64"
    assert violation.values == {"heads": 64, "tp": 24}


@pytest.mark.parametrize(("tp", "kv", "old", "new"), [(4, 8, True, True), (16, 8, False, True), (12, 8, False, False)])
def test_key_value_heads_by_version(tp, kv, old, new):
    proposal = Proposal(world=tp, tp=tp, model=ModelFacts(layers=1, heads=48, kv_heads=kv, ffn=48))
    assert (not broken(proposal, version="0.13")) == old
    assert (not broken(proposal, version="0.19")) == new
    assert (not broken(proposal, Framework.TORCHTITAN)) == old


@pytest.mark.parametrize("seq", [8192, 8200, 8184, 8208])
def test_sequence_parallelism_and_context_parallelism_divide_the_sequence(seq):
    proposal = Proposal(
        world=64, tp=8, cp=8, seq=seq, sequence_parallel=True, model=ModelFacts(heads=64, kv_heads=64), global_batch=4
    )
    expected = {"seq-cp"} if seq % 16 else set()
    expected |= {"seq-tp"} if (seq // 8) % 8 else set()
    assert broken(proposal) == expected


def test_a_rule_of_the_forward_pass_is_accepted_at_launch():
    violations = check(
        Proposal(world=2, tp=2, global_batch=8, model=ModelFacts(heads=8, experts=8, top_k=2, expert_ffn=64)),
        Framework.MEGATRON,
    )
    assert [violation.rule for violation in violations] == ["megatron-moe-tp-sp"]
    assert accepted_at_launch(violations)


@given(pp=st.integers(2, 6), count=st.integers(1, 40), group=st.integers(0, 12))
def test_interleaving_wants_whole_groups(pp, count, group):
    g = group or pp
    allowed = pp <= g <= count and (count % g == 0 or count % g >= pp)
    proposal = Proposal(
        world=pp, pp=pp, vpp=2, global_batch=count, model=ModelFacts(layers=2 * pp), split=Split(virtual_stages=2)
    )
    proposal = Proposal(
        **{
            **{f: getattr(proposal, f) for f in proposal.__dataclass_fields__},
            "switches": Switches(microbatch_group=group),
        }
    )
    assert (not broken(proposal)) == allowed


def test_degrees_below_one_hide_the_rest():
    assert broken(Proposal(world=8, tp=0, model=LLAMA)) == {"degrees-positive"}


def test_old_and_unreadable_versions_are_input_errors():
    with pytest.raises(InputError, match=r"0\.12 is older"):
        check(Proposal(world=1), Framework.MEGATRON, "0.12")
    with pytest.raises(InputError, match="not understood"):
        check(Proposal(world=1), Framework.MEGATRON, "new")


@pytest.mark.parametrize(
    ("framework", "change", "rule"),
    [
        (Framework.TORCHTITAN, {"zero": 1}, "torchtitan-zero-1"),
        (Framework.DEEPSPEED, {"zero": 2, "pp": 2, "dp": 4}, "deepspeed-zero-pp"),
        (Framework.DEEPSPEED, {"pp": 2, "dp": 4, "vpp": 2}, "deepspeed-vpp"),
        (Framework.GALVATRON, {"zero": 1}, "galvatron-zero-1"),
    ],
)
def test_other_frameworks(framework, change, rule):
    strategy = Strategy(dp=change.get("dp", 8), zero=change.get("zero", 0))
    pp, vpp = change.get("pp", 1), change.get("vpp", 1)
    layout = uniform(strategy, ((40 // pp // vpp,) * vpp,) * pp)
    spec = model(layers=40)
    assert {v.rule for v in check_layout(layout, spec, job(), framework=framework)} == {rule}
    assert not check_layout(layout, spec, job(), framework=Framework.NONE)


# ------------------------------------------------------------------------------------------------ layouts
def test_a_layout_must_hold_every_layer_once():
    strategy = Strategy(tp=8, dp=1, sequence_parallel=True)
    right = uniform(strategy, ((21,), (21,), (19,), (19,)))
    wrong = uniform(strategy, ((21,), (21,), (19,), (18,)))
    assert not check_layout(right, model(), job(), framework=Framework.MEGATRON)
    (violation,) = check_layout(wrong, model(), job(), framework=Framework.MEGATRON)
    assert violation.message.startswith("the stages hold 79 layers, the model has 80")


def test_unlike_stages_are_for_frameworks_that_can():
    mixed = Layout(
        stages=(
            Stage(layers_per_chunk=(40,), strategies=(StrategyRun(strategy=Strategy(tp=4, dp=2), count=40),)),
            Stage(layers_per_chunk=(40,), strategies=(StrategyRun(strategy=Strategy(tp=2, dp=4), count=40),)),
        ),
        micro_batch=1,
        num_microbatches=64,
    )
    assert not check_layout(mixed, model(), job(), framework=Framework.NONE)
    assert not check_layout(mixed, model(), job(), framework=Framework.GALVATRON)
    assert {v.rule for v in check_layout(mixed, model(), job(), framework=Framework.MEGATRON)} == {"megatron-one-grid"}


def test_recompute_may_differ_between_layers():
    plain = Strategy(tp=8, dp=1, sequence_parallel=True)
    runs = (
        StrategyRun(strategy=Strategy(tp=8, dp=1, sequence_parallel=True, recompute=FULL_RECOMPUTE), count=3),
        StrategyRun(strategy=plain, count=77),
    )
    layout = Layout(stages=(Stage(layers_per_chunk=(80,), strategies=runs),), micro_batch=1, num_microbatches=256)
    assert not check_layout(layout, model(), job(), framework=Framework.MEGATRON)


# ------------------------------------------------------------------------------------------------ many at once
DEGREE = st.sampled_from([1, 2, 3, 4, 8, 16])


@st.composite
def candidates(draw):
    size = draw(st.integers(1, 12))
    columns = {name: draw(st.lists(DEGREE, min_size=size, max_size=size)) for name in ("tp", "cp", "dp", "ep", "etp")}
    rows = [
        Strategy(
            **{name: values[index] for name, values in columns.items()},
            zero=draw(st.integers(0, 3)),
            sequence_parallel=draw(st.booleans()),
        )
        for index in range(size)
    ]
    pp = draw(st.lists(DEGREE, min_size=size, max_size=size))
    micro = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=size, max_size=size))
    vpp = draw(st.lists(st.sampled_from([1, 2, 5]), min_size=size, max_size=size))
    return rows, pp, micro, vpp


@settings(max_examples=60, deadline=None)
@given(
    drawn=candidates(),
    framework=st.sampled_from(list(Framework)),
    experts=st.sampled_from([0, 8, 64]),
    batch=st.sampled_from([32, 96, 256]),
)
def test_the_mask_agrees_with_judging_one_by_one(drawn, framework, experts, batch):
    rows, pp, micro, vpp = drawn
    spec, task = model(experts=experts, heads=32, layers=80), job(global_batch=batch, seq=4096)
    table = table_of(rows, pp=pp, micro_batch=micro)
    mask = legal_mask(framework, table, spec, task, vpp=np.array(vpp))
    assert sum(count for _, count in mask.counts) == int((~mask.ok).sum()) == sum(n for _, n in mask.reasons)
    for index, strategy in enumerate(rows):
        layout = uniform(strategy, ((1,) * vpp[index],) * pp[index], micro=micro[index], batch=batch)
        found = check_layout(layout, spec, task, framework=framework)
        rules = [violation for violation in found if violation.rule != "layers-sum"]
        assert bool(mask.ok[index]) == (not rules), rules


def test_the_mask_judges_a_hundred_thousand_candidates_and_counts_reasons():
    rng = np.random.default_rng(7)
    size = 100_000
    tp, pp, dp, ep = (rng.choice([1, 2, 4, 8, 16, 24], size) for _ in range(4))
    ones = np.ones(size, dtype=np.int64)
    table = table_of([Strategy()], pp=[1], micro_batch=[1]).take(np.zeros(size, dtype=np.int64))
    table = type(table)(
        **{
            **{f: getattr(table, f) for f in table.__dataclass_fields__},
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "ep": ep,
            "etp": ones,
        }
    )
    mask = legal_mask(Framework.MEGATRON, table, model(experts=64), job())
    reasons = dict(mask.reasons)
    assert reasons["64 attention heads do not divide by tp 24; allowed: a tp that divides 64"] > 10_000
    legal = (64 % tp == 0) & ((8 % tp == 0) | (tp % 8 == 0)) & (64 % ep == 0) & (tp * dp % ep == 0) & (256 % dp == 0)
    legal &= tp == 1  # experts with tp need sequence parallelism
    assert np.array_equal(mask.ok, legal)


def launch_of(name: str):
    case = next(case for case in TABLE["case"] if case["name"] == name)
    return parse_megatron(words_of(case), world=case["world"])


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("more expert ranks than experts", "ep 16 -> 8"),
        ("80 layers over 6 stages", "layers per stage 14,14,13x4"),
        ("batch of 252 over 8 replicas", "global_batch 252 -> 256"),
        ("experts with tp and no sequence parallelism", "sequence_parallel 0 -> 1"),
        ("odd sequence over cp", "cp 8 -> 4"),
        ("virtual stages without a pipeline", "vpp 2 -> 1"),
    ],
)
def test_the_nearest_legal_proposal(name, first):
    assert str(nearest_legal(launch_of(name).proposal, Framework.MEGATRON)[0]) == first


def test_neighbours_are_legal_and_hold_every_layer():
    for case in TABLE["case"]:
        if not case["rules"] or "core" in case:
            continue
        proposal = parse_megatron(words_of(case), world=case["world"]).proposal
        for neighbour in nearest_legal(proposal, Framework.MEGATRON):
            assert check(neighbour.proposal, Framework.MEGATRON) == ()
            assert sum(map(sum, neighbour.layers_per_stage)) == proposal.model.layers


def test_what_no_degree_mends_has_no_neighbour():
    assert nearest_legal(launch_of("optimizer offload without its optimizer").proposal, Framework.MEGATRON) == ()
    assert nearest_legal(Proposal(world=8, tp=0), Framework.NONE) == ()


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


def test_frameworks_on_megatron_core_have_the_rules_of_the_core_that_they_build_on():
    """NeMo 2.7 builds on core 0.15, where key-value heads divide by tp; Bridge 0.6 on 0.19, where either divides."""
    of = {framework: {rule.id for rule in rules_for(framework, version)} for framework, version in NEWEST.items()}
    assert "kv-heads-tp-divide" in of[Framework.NEMO]
    assert "kv-heads-tp" not in of[Framework.NEMO]
    assert "kv-heads-tp" in of[Framework.BRIDGE]
    assert "kv-heads-tp-divide" not in of[Framework.BRIDGE]
    assert of[Framework.BRIDGE] >= {
        rule.id
        for rule in all_rules()
        if dict(rule.versions).get(Framework.MEGATRON) == ">=0.17" and Framework.BRIDGE in rule.frameworks
    }


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
