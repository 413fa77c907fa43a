"""Rules of legality against verdicts of the real parser, closed forms, and one form of judging against the other."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Layout, Stage, Strategy, StrategyRun
from costmodels.table import table_of
from costmodels.workload.model import Attention, DenseFfn, LayerKind, LayerRun, ModelSpec, MoeFfn
from hardware.errors import InputError
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
    rules_for,
)
from planner.rules.checks import CHECKS
from planner.rules.columns import proposal_columns
from planner.rules.table import NEWEST, SPLIT_CHECK
from planner.rules.verdict import option_columns

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


@pytest.mark.parametrize(
    ("framework", "change", "wanted"),
    [
        (Framework.MEGATRON, {"cp": 2, "tp": 4, "sequence_parallel": True, "seq": 4098}, "4104"),  # 2 x cp and cp x tp
        (Framework.MEGATRON, {"cp": 4, "seq": 4097}, "4104"),
        (Framework.TORCHTITAN, {"tp": 4, "sequence_parallel": True, "seq": 4097, "zero": 3}, "4100"),
        (Framework.DEEPSPEED, {"cp": 4, "seq": 4097}, "4100"),  # Ulysses takes one piece a rank
        (Framework.NEMO, {"cp": 4, "seq": 4097}, "4104"),
    ],
)
def test_an_odd_sequence_is_told_the_length_to_pad_to(framework, change, wanted):
    model = ModelFacts(heads=32, kv_heads=32, layers=4)
    asked = Proposal(world=8, global_batch=8, model=model, **change)
    told = [violation.message for violation in check(asked, framework) if "sequence" in violation.message]
    assert told
    assert all(f"such as {wanted} with samples padded to it" in message for message in told)
    assert not [found for found in broken(dataclasses.replace(asked, seq=int(wanted)), framework) if "seq" in found]


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
