"""Hybrid models as launches of Megatron-LM: patterns read, judged, exported and read back."""

import json
from dataclasses import replace
from pathlib import Path

import plan_samples as samples
import pytest

from costmodels.job import TrainingJob
from costmodels.layout import Strategy
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.counts import parameter_count
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.hosts import Site
from planner.export.launch import Export, Planned
from planner.export.megatron import export_megatron
from planner.export.megatron_model import model_notes
from planner.ingest.megatron.arguments import judge, layout_of, parse_megatron
from planner.ingest.megatron.model import model_of
from planner.request import Framework
from planner.rules import ModelFacts, Proposal, check

SIZES = (
    "--hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --position-embedding-type rope --pipeline-model-parallel-size 2"
)


def exported(name: str | ModelSpec, split, version: str = "0.19", tp: int = 2) -> Export:
    numbers = precision("bf16", framework="megatron")
    job = TrainingJob(global_batch=128, seq=4096, precision=numbers, software=software("megatron"))
    layout = samples.layout(Strategy(tp=tp, dp=4 // tp, zero=1, sequence_parallel=tp > 1), split)
    layout = replace(layout, num_microbatches=128 // layout.first.dp)
    site = Site(hosts=tuple(f"host{i}" for i in range(layout.gpus)), gpus_per_node=1)
    spec = model(name) if isinstance(name, str) else name
    return export_megatron(Planned(model=spec, job=job, layout=layout, site=site, version=version))


# Verdicts and layers of the real parser of core 0.19.2 (select_pipeline_segment), found on a CPU.
@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("M-M*-M|M-ME", ((6,), (4,))),
        ("M-M*-MM-M*", ((5,), (5,))),
        ("M-M*|-M|M-|M", ((4, 2), (2, 1))),
        ("M-M*||M-M|M*", ((4, 3), (0, 2))),
        ("M-M*|M-M*/*-/*-", ((4,), (4,))),
    ],
)
def test_a_pattern_says_which_layers_each_position_builds(pattern, layers):
    words = f"{SIZES} --hybrid-layer-pattern {pattern} --num-experts 8 --disable-bias-linear"
    verdict = judge(parse_megatron(words.split(), world=8))
    assert verdict.legal, verdict.violations
    assert verdict.layers_per_stage == layers


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("M-M*-MM-M", "megatron-layers-pp"),
        ("M-M*|-M|M-M", "megatron-hybrid-segments"),
        ("M-MX|M", "megatron-option-value"),
        ("M-M*|M+", "megatron-option-value"),
        ("M-M*|M-M*/*-/*M", "megatron-option-value"),
    ],
)
def test_patterns_that_the_parser_refuses(pattern, rule):
    launch = parse_megatron(f"{SIZES} --hybrid-layer-pattern {pattern}".split(), world=8)
    assert [violation.rule for violation in judge(launch).violations] == [rule]


def test_predictions_of_layers_without_feed_forward_parts_are_legal_and_have_no_model():
    words = f"{SIZES} --hybrid-layer-pattern MM*M|M*MM --mtp-num-layers 1".split()
    launch = parse_megatron(words, world=8)
    assert judge(launch).legal
    with pytest.raises(InputError, match="no layer has a feed-forward part to predict with"):
        model_of(launch.arguments)


def test_predictions_state_their_own_feed_forward_part():
    """Where no other layer has one, the model could not be built and a traceback was shown."""
    launch = parse_megatron(f"{SIZES} --hybrid-layer-pattern MM*M|M*MM/*-".split(), world=8)
    assert judge(launch).legal
    assert model_of(launch.arguments).mtp_kind.ffn is not None


def test_the_older_name_has_letters_alone_and_equal_stages():
    words = f"{SIZES} --hybrid-override-pattern M-M*M-M* --num-layers 8".split()
    assert judge(parse_megatron(words, world=8, version="0.13")).layers_per_stage == ((4,), (4,))
    longer = parse_megatron([*words[:-1], "12"], world=8, version="0.13")
    assert "names 8 layers" in judge(longer).violations[0].message
    virtual = parse_megatron([*words, "--num-virtual-stages-per-pipeline-rank", "2"], world=8, version="0.13")
    assert not judge(virtual).accepted


@pytest.mark.parametrize(
    ("states", "grid", "rules"),
    [
        ({"state_heads": 128, "state_groups": 8}, {"cp": 4}, set()),
        ({"state_heads": 128, "state_groups": 8}, {"cp": 16}, set()),  # groups are repeated over ranks
        ({"state_heads": 96, "state_groups": 8}, {"cp": 64}, {"state-heads-cp"}),
        ({"state_heads": 96, "state_groups": 6}, {"cp": 4}, {"state-groups-cp"}),
        ({"state_heads": 100, "state_groups": 8}, {}, {"state-heads-groups"}),
    ],
)
def test_state_space_heads_and_groups_divide_over_context_ranks(states, grid, rules):
    proposal = Proposal(world=64, global_batch=64, seq=8192, model=ModelFacts(layers=4, **states), **grid)
    assert {violation.rule for violation in check(proposal, Framework.MEGATRON)} == rules


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("nemotronh_8b", ((15,), (12,), (12,), (13,))),
        ("nemotronh_47b", ((25, 25), (24, 24))),
        ("nemotron3_nano", ((30,), (22,))),
        ("nemotron3_super", ((44,), (44,))),
    ],
)
def test_a_hybrid_plan_reads_back_with_its_layers_and_its_model(name, split):
    launch = exported(name, split)
    assert launch.program.script.endswith("pretrain_hybrid.py")
    read = parse_megatron(launch.arguments, world=len(split) * 4)
    assert layout_of(read).layers_per_stage == split
    built = model_of(read.arguments)
    assert list(built.layer_kinds()) == list(model(name).layer_kinds())
    assert built.mtp_kind == model(name).mtp_kind
    assert parameter_count(built) == parameter_count(model(name))


def test_the_name_of_the_pattern_and_of_the_script_follow_the_version():
    old = exported("nemotronh_8b", ((26,), (26,)), "0.15")
    assert old.arguments[old.arguments.index("--hybrid-override-pattern") + 1].startswith("M-M-M-M*-M")
    assert old.program.script.endswith("pretrain_mamba.py")
    assert "megatron.core.models.mamba.mamba_layer_specs" in old.arguments
    assert "--hybrid-layer-pattern" in exported("nemotronh_8b", ((27,), (25,)), "0.17").arguments
    with pytest.raises(InputError, match=r"core 0\.17 takes any"):
        exported("nemotronh_8b", ((27,), (25,)), "0.15")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("qwen3_next_80b_a3b", ((25,), (23,))),
        ("qwen35_27b", ((16, 16), (16, 16))),
        ("qwen35_397b_a17b", ((31,), (29,))),
    ],
)
def test_blocks_with_a_delta_rule_read_back_with_their_layers_and_their_model(name, split):
    launch = exported(name, split)
    assert launch.arguments[launch.arguments.index("--linear-attention-freq") + 1] == "4"
    read = parse_megatron(launch.arguments, world=len(split) * 4)
    assert layout_of(read).layers_per_stage == split
    built = model_of(read.arguments)
    assert list(built.layer_kinds()) == list(model(name).layer_kinds())
    assert parameter_count(built) == parameter_count(model(name))
    with pytest.raises(InputError, match=r"core 0\.15 has no gated delta rule; allowed: core 0\.16 or later"):
        exported(name, split, "0.15")


def test_layers_of_linear_attention_may_be_listed():
    words = [*exported("qwen3_next_80b_a3b", ((48,),)).arguments]
    words[words.index("--linear-attention-freq") + 1] = "([1]*3+[0]*45)"
    letters = [
        kind.mixer is not None and type(kind.mixer).__name__
        for kind in model_of(parse_megatron(words, world=4).arguments).layer_kinds()
    ]
    assert letters == ["DeltaNet"] * 3 + ["Attention"] * 45


@pytest.mark.parametrize("name", ["granite-4.0-h-small", "granite-4.0-h-1b", "Bamba-9B"])
def test_blocks_with_mamba_are_two_layers_each(name):
    """A block is a mixer and a feed-forward part, each behind a norm: two letters, and as many parameters."""
    told = json.loads((Path(__file__).parent / "reference" / "huggingface_configs.json").read_text())["models"][name]
    spec = from_config(told["config"], name=name, where="config.json")
    split = ((spec.layers // 2 + 1,), (spec.layers // 2 - 1,))
    read = parse_megatron(exported(spec, split, tp=1).arguments, world=8)
    assert layout_of(read).layers_per_stage == tuple((2 * count,) for (count,) in split)
    built = model_of(read.arguments)
    assert [type(kind.mixer) for kind in built.layer_kinds()][::2] == [type(kind.mixer) for kind in spec.layer_kinds()]
    assert parameter_count(built).total == told["parameters"]  # as transformers builds it


def test_scaled_embeddings_are_remarked():
    granite = {"model_type": "granite", "residual_multiplier": 0.22}
    plain, scaled = (from_config(one, name="x", where="x") for one in ({"model_type": "granite"}, granite))
    assert any("for which Megatron-LM has no flag" in note for note in model_notes(scaled))
    assert not any("for which Megatron-LM has no flag" in note for note in model_notes(plain))
