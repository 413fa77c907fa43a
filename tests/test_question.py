"""A user's words as a request: names, numbers, pins, and how mistakes are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity
from costmodels.pipeline.schedules import Schedule
from hardware.errors import InputError
from planner.layouts.explicit import ExplicitLayout, layout_of, parse_layers
from planner.layouts.recompute_words import parse_recompute_words
from planner.question import Question, question_from, question_of, request_of
from planner.report.json_reader import relocated
from planner.request import Framework

DENSE = Question(model="llama3_70b", cluster="dgx-h100:8", global_batch=128, seq=8192)
MOE = Question(model="mixtral_8x7b", cluster="dgx-h100:8", global_batch=256, seq=4096)


def test_a_question_survives_its_request():
    asked = replace(DENSE, fixed=("tp=4", "micro_batch=2"), precision="fp8", power_cap_w=500.0, top=3)
    assert question_of(request_of(asked)) == asked
    assert request_of(question_of(request_of(asked))) == request_of(asked)


def test_a_question_survives_plain_data():
    data = {"model": "llama3_70b", "cluster": "dgx-h100:8", "global_batch": 128, "seq": 8192}
    assert question_from(data, "here") == DENSE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "llama3-70c"}, "llama3_70b"),
        ({"cluster": "dgx-h10:8"}, "dgx-h100"),
        ({"framework": "megatrom"}, "megatron"),
        ({"objective": "tine"}, "'time'"),
        ({"precision": "bf15"}, "bf16"),
        ({"seq": 0}, "--seq"),
        ({"seq": 10**9}, "tokens"),
        ({"global_batch": 10**12}, "global batch"),
        ({"fixed": ("tp=four",)}, "four"),
        ({"fixed": ("pt=4",)}, "pt"),
        ({"fixed": ("micro_batch=" + "9" * 19,)}, "1 to 1000000000"),
        ({"fixed": ("tp=" + "9" * 5000,)}, "1 to 1000000000"),
        ({"fixed": ("tp=\N{SUPERSCRIPT TWO}",)}, "1 to 1000000000"),
        ({"fixed": ("shard_group=1",)}, "an integer from 2 to"),
        ({"fixed": ("shard_group=8", "shard-group=4")}, "8 and 4"),
        ({"power_cap_w": 150.0}, "so low; allowed: 200 to 700 W"),
        ({"power_cap_w": 800.0}, "so high; allowed: 200 to 700 W"),
        ({"power_cap_w": float("inf")}, "200 to 700 W"),
        ({"power_cap_w": float("nan")}, "200 to 700 W"),
        ({"recompute": "selective:core_atn"}, "core_attn"),
        ({"recompute": "some"}, "selective"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_near_or_allowed(change, words):
    with pytest.raises(InputError) as error:
        request_of(replace(DENSE, **change))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"modle": "x"}, "model"),
        ({"model": "x", "cluster": "y"}, "global_batch"),
        ({"model": "x", "cluster": "y", "global_batch": 0}, "global_batch"),
        ({"model": "x", "cluster": "y", "global_batch": 1, "thermal": "yes"}, "thermal"),
        ({"model": "x", "cluster": "y", "global_batch": 1, "fixed": "tp=4"}, "fixed"),
        ({"model": "x", "cluster": "y", "global_batch": True}, "global_batch"),
    ],
)
def test_wrong_plain_data_is_refused_by_field(data, words):
    with pytest.raises(InputError, match=words):
        question_from(data, "file.json")


def test_models_without_sequences_need_no_length():
    request = request_of(Question(model="wide_resnet_1b", cluster="p3-16xlarge:1", global_batch=64))
    assert request.job.seq == 1


def test_software_follows_framework_and_precision():
    def software(**change):
        return request_of(replace(DENSE, **change)).job.software.name

    assert software() == "megatron"
    assert software(framework="nemo") == "nemo-2-bf16"
    assert software(framework="nemo", precision="fp8") == "nemo-2"
    assert request_of(replace(DENSE, framework="none")).framework is Framework.NONE


def test_files_are_looked_for_beside_a_folder(tmp_path):
    (tmp_path / "lab.toml").write_text("")
    moved = relocated(replace(DENSE, cluster="lab.toml", model="other.toml"), tmp_path)
    assert moved.cluster == str(tmp_path / "lab.toml")
    assert moved.model == "other.toml"
    assert relocated(DENSE, Path("/nowhere")) == DENSE


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("21,21,19,19", ((21,), (21,), (19,), (19,))),
        ("10x8", ((10,),) * 8),
        ("11/10, 11/10", ((11, 10), (11, 10))),
        ("5/5x2,4/4", ((5, 5), (5, 5), (4, 4))),
        ("0,80", ((0,), (80,))),
    ],
)
def test_layers_are_read(text, split):
    assert parse_layers(text) == split


@pytest.mark.parametrize("text", ["", "21,", "a", "21;19", "10x", "-1", "10x0", "1x99999999", "1.5", "2//2"])
def test_wrong_layers_are_refused(text):
    with pytest.raises(InputError, match="layers-per-stage"):
        parse_layers(text)


@pytest.mark.parametrize(
    ("text", "granularity", "modules", "layers"),
    [
        ("none", Granularity.NONE, (), 0),
        ("full", Granularity.FULL, (), 0),
        ("full:4", Granularity.FULL, (), 4),
        ("selective", Granularity.SELECTIVE, ("core_attn",), 0),
        ("Selective:moe_act+layernorm", Granularity.SELECTIVE, ("moe_act", "layernorm"), 0),
    ],
)
def test_recompute_words(text, granularity, modules, layers):
    recompute, first = parse_recompute_words(text)
    assert (recompute.granularity, recompute.modules, first) == (granularity, modules, layers)


def layout(question=DENSE, **wanted):
    return layout_of(request_of(question), ExplicitLayout(**wanted))


def test_what_is_not_given_follows():
    found = layout(tp=4, pp=4)
    assert (found.first.dp, found.first.sequence_parallel, found.first.zero) == (4, True, 1)
    assert found.num_microbatches == 32
    assert found.schedule is Schedule.ONE_F_ONE_B
    assert found.layers_per_stage == ((20,),) * 4


def test_stages_follow_from_the_layers():
    found = layout(tp=4, layers_per_stage="21,21,19,19")
    assert found.pp == 4
    assert found.layers_per_stage == ((21,), (21,), (19,), (19,))


def test_chunks_make_the_schedule_interleaved():
    assert layout(tp=4, pp=4, vpp=2).schedule is Schedule.INTERLEAVED
    written = layout(tp=4, layers_per_stage="11/10,11/10,10/9,10/9")
    assert (written.vpp, written.schedule) == (2, Schedule.INTERLEAVED)
    assert layout(tp=4, vpp=2, layers_per_stage="21,21,19,19").layers_per_stage[0] == (11, 10)
    assert layout(tp=4, pp=4, schedule="zbv").vpp == 2


def test_some_layers_recompute():
    found = layout(tp=4, pp=4, vpp=2, recompute="full:3")
    runs = [(run.strategy.recompute, run.count) for run in found.stages[0].strategies]
    assert runs == [(FULL_RECOMPUTE, 3), (NO_RECOMPUTE, 7), (FULL_RECOMPUTE, 3), (NO_RECOMPUTE, 7)]
    assert layout(tp=4, pp=4, recompute="full:20").first.recompute == FULL_RECOMPUTE
    with pytest.raises(InputError, match=r"no virtual chunk has more than 10 layers; allowed: full:1 to full:10"):
        layout(tp=4, pp=4, vpp=2, recompute="full:11")


@pytest.mark.parametrize("text", ["full:0", "full:", "full:-1", "full:²", "selective:", "none:", "none:x", ""])
def test_recompute_that_means_nothing_is_refused(text):
    with pytest.raises(InputError, match="is not understood; allowed: none, selective"):
        parse_recompute_words(text)


def test_experts_are_not_split_unless_said():
    assert layout(MOE, tp=2, pp=4, ep=8).first.etp == 1
    assert layout(MOE, tp=2, pp=4).first.etp == 2
    assert layout(MOE, tp=2, pp=4, ep=4, etp=2).first.edp == 2


def test_fewer_gpus_than_the_cluster_are_allowed_when_said():
    assert layout(tp=4, pp=4, dp=2).gpus == 32


def test_zero_needs_ranks_to_shard_over():
    assert layout(tp=8, pp=8, zero=3).first.zero == 0


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"tp": 3}, "does not divide the cluster's 64 GPUs"),
        ({"tp": 8, "pp": 8, "dp": 2}, "is 128 GPUs and dgx-h100:8 has 64"),
        ({"tp": 4, "pp": 4, "micro_batch": 3}, "no multiple of micro-batch 3 x dp 4"),
        ({"tp": 4, "pp": 2, "layers_per_stage": "21,21,19,19"}, "names 4 stages and --pp 2"),
        ({"tp": 4, "layers_per_stage": "21,21,19,20"}, "adds up to 81"),
        ({"tp": 4, "layers_per_stage": "11/10,21,19,19"}, "equally many chunks"),
        ({"tp": 4, "vpp": 3, "layers_per_stage": "11/10,11/10,10/9,10/9"}, "2 chunks per stage and --vpp 3"),
        ({"tp": 8, "pp": 1, "vpp": 2}, "--pp 1"),
        ({"tp": 4, "pp": 4, "schedule": "1f2b"}, "nearest: '1f1b'"),
        ({"tp": 4, "pp": 4, "ep": 2}, "has no experts"),
        ({"tp": 1, "pp": 64, "vpp": 4}, "pp x vpp up to 80"),
    ],
)
def test_a_wrong_layout_is_refused(wanted, words):
    with pytest.raises(InputError) as error:
        layout(**wanted)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("wanted", "words"), [({"ep": 3}, "does not divide 8 experts"), ({"pp": 16, "ep": 8}, "4 GPUs of a stage")]
)
def test_wrong_expert_grids_are_refused(wanted, words):
    with pytest.raises(InputError, match=words):
        layout(MOE, **wanted)
