"""DeepSpeed exports: read back, known values, refusals with the nearest plan, and what is read of others' files."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Layout, Recompute, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.counts import parameter_count
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.deepspeed import CONFIG, export_deepspeed
from planner.export.folder import export_files
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.ingest.deepspeed.configuration import balanced_layers, layout_of, model_of, parse_deepspeed
from planner.ingest.plain_layout import same_launch, uniform_stages
from planner.request import Framework
from planner.rules import check_layout, facts_of

DENSE, SPARSE = "llama3_8b", "mixtral_8x22b"


def job(batch: int = 64, seq: int = 4096, recipe: str = "bf16", **changes) -> TrainingJob:
    tools = replace(software("deepspeed-flash"), **changes)
    numbers = precision(recipe, framework="deepspeed")
    return TrainingJob(global_batch=batch, seq=seq, precision=numbers, software=tools)


def plan(grid: Strategy, split, *, micro: int = 1, batch: int = 64) -> Layout:
    stages = uniform_stages([(count,) for count in split], grid)
    return Layout(stages=stages, micro_batch=micro, num_microbatches=batch // (micro * grid.dp))


def export(name: str, layout: Layout, **changes):
    site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
    return export_deepspeed(Planned(model=model(name), job=job(**changes), layout=layout, site=site))


def config_of(exported) -> dict:
    return json.loads(dict(exported.files)[CONFIG])


@given(
    name=st.sampled_from([DENSE, SPARSE]),
    degrees=st.tuples(*(st.sampled_from([1, 1, 2, 4]) for _ in range(4)), st.sampled_from([1, 2, 8])),
    zero=st.integers(0, 3),
    full=st.booleans(),
    etp_is_tp=st.booleans(),
    recipe=st.sampled_from(["bf16", "fp16", "fp32"]),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_an_export_reads_back_as_the_plan(name, degrees, zero, full, etp_is_tp, recipe):
    tp, cp, pp, dp, ep = degrees
    spec = model(name)
    experts = facts_of(spec).experts > 0
    recompute = FULL_RECOMPUTE if full else Recompute()
    etp = tp if experts and etp_is_tp else 1
    grid = Strategy(tp=tp, cp=cp, dp=dp, ep=ep if experts else 1, etp=etp, zero=zero, recompute=recompute)
    layout = plan(grid, balanced_layers(spec.layers, pp))
    assume(not check_layout(layout, spec, job(), framework=Framework.DEEPSPEED))
    exported = export(name, layout, recipe=recipe)
    read = parse_deepspeed(dict(exported.files)[CONFIG], exported.arguments, world=layout.gpus)
    assert not read.unread
    assert not read.unjudged
    assert same_launch(layout_of(read, facts_of(spec)), layout, experts=experts)


@pytest.mark.parametrize("name", [DENSE, SPARSE, "gpt_1_3b", "qwen3_30b_a3b", "bloom_7b1", "llama32_1b"])
def test_the_launch_builds_the_plans_model(name):
    """Activation, norms, biases, positions and vocabulary are said; norms of heads and embeddings have no option."""
    spec = model(name)
    dp = 8 if facts_of(spec).experts else 2
    exported = export(name, plan(Strategy(dp=dp, ep=8 if dp == 8 else 1, zero=2), (spec.layers,)), seq=1024)
    built = model_of(parse_deepspeed(dict(exported.files)[CONFIG], exported.arguments, world=dp))
    assert built is not None
    assert parameter_count(built).total == pytest.approx(parameter_count(spec).total, rel=1e-5)
    assert built.vocab == spec.vocab


def test_what_has_no_option_is_named():
    layout = plan(Strategy(dp=2, zero=2), (28,))
    assert any("biases on some linear layers only" in note for note in export("qwen25_1p5b", layout).notes)
    assert not any("no option" in note for note in export("gpt_1_3b", plan(Strategy(dp=2), (24,))).notes)


def test_the_configuration_states_batch_sharding_precision_and_pipeline():
    layout = plan(Strategy(tp=2, dp=4, zero=1, recompute=FULL_RECOMPUTE), (16, 16), micro=2)
    exported = export(DENSE, layout)
    config = config_of(exported)
    assert [config[key] for key in ("train_batch_size", "train_micro_batch_size_per_gpu")] == [64, 2]
    assert config["gradient_accumulation_steps"] == 8
    assert config["zero_optimization"]["stage"] == 1
    assert config["bf16"] == {"enabled": True}
    assert config["pipeline"] == {
        "stages": 2,
        "partition": "type:transformer",
        "activation_checkpoint_interval": 1,
    }
    assert exported.arguments[:4] == ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2")
    files = export_files(exported, layout, "test")
    assert '--deepspeed_config "$here/ds_config.json"' in files["launch.sh"]
    assert json.loads(files[CONFIG]) == config
    assert "| `ds_config.json` |" in files["README.md"]


@pytest.mark.parametrize(
    ("zero", "ahead", "beside", "stated"),
    [
        (1, True, False, False),
        (1, True, True, True),
        (2, True, False, False),
        (3, True, False, True),
        (3, False, True, False),
    ],
)
def test_reductions_and_gathers_are_stated_as_they_are_priced(zero, ahead, beside, stated):
    """``overlap_comm`` of stage 3 is about its gathers; it was switched off there by what is said of gradients."""
    exported = export(DENSE, plan(Strategy(dp=8, zero=zero), (32,)), grad_overlap=beside, param_overlap=ahead)
    assert config_of(exported)["zero_optimization"]["overlap_comm"] is stated


@pytest.mark.parametrize(("layers", "stages", "counts"), [(80, 12, (7,) * 8 + (6,) * 4), (27, 4, (7, 7, 7, 6))])
def test_the_rest_goes_to_the_earlier_stages(layers, stages, counts):
    assert balanced_layers(layers, stages) == counts


def test_an_uneven_split_is_refused_with_the_nearest():
    with pytest.raises(InputError) as error:
        export(DENSE, plan(Strategy(dp=2), (9, 8, 8, 7)))
    assert "layers per stage 9,8,8,7: DeepSpeed cuts a pipeline evenly" in str(error.value)
    assert "--layers-per-stage 8,8,8,8" in str(error.value)


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (plan(Strategy(dp=2, zero=2), (16, 16)), "ZeRO stage 2 with pp 2"),
        (plan(Strategy(tp=2, cp=2), (32,)), "works with data parallelism alone"),
        (plan(Strategy(dp=4, zero=3, shard_group=2), (32,)), "groups of 2 of 4 ranks"),
        (replace(plan(Strategy(dp=2), (16, 16)), schedule=Schedule.GPIPE), "schedule gpipe"),
        (replace(plan(Strategy(dp=2), (32,)), num_microbatches=3), "are 6 samples, the global batch is 64"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(layout, part):
    with pytest.raises(InputError) as error:
        export(DENSE, layout)
    assert part in str(error.value)


def test_other_precisions_are_refused():
    with pytest.raises(InputError, match="precision mxfp8 has no section"):
        export(DENSE, plan(Strategy(dp=2), (32,)), recipe="mxfp8")


def test_wide_sums_need_zero():
    with pytest.raises(InputError, match="without ZeRO"):
        export(DENSE, plan(Strategy(dp=2), (32,)), gradient_bytes=4.0)
    config = config_of(export(DENSE, plan(Strategy(dp=2, zero=1), (32,)), gradient_bytes=4.0))
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}


# ------------------------------------------------------------------------------------------------------ reading others
def read(config: dict, *words: str, world: int = 8) -> Layout:
    return layout_of(parse_deepspeed(json.dumps(config), words, world=world), facts_of(model(DENSE)))


def test_a_number_that_is_left_out_follows_from_the_others():
    whole = read({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2})
    assert (whole.micro_batch, whole.num_microbatches, whole.first.dp) == (2, 4, 8)
    assert read({"train_micro_batch_size_per_gpu": 2}).num_microbatches == 1
    assert read({"train_batch_size": 64}).micro_batch == 8
    three = read({"train_batch_size": 64, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}})
    assert (three.micro_batch, three.first.zero) == (2, 3)


def test_keys_that_deepspeed_ignores_are_named():
    launch = parse_deepspeed('{"train_bach_size": 8, "mine": 1}', ["--lr", "1"], world=8)
    assert launch.unread == ("train_bach_size (did you mean train_batch_size?)", "mine")
    assert launch.unjudged == ("--lr", "1")


@pytest.mark.parametrize(
    ("config", "words", "part"),
    [
        ({}, (), "no batch is stated"),
        ({"train_batch_size": 64.5}, (), "train_batch_size: 64.5"),
        ({"train_batch_size": 60}, (), "is not micro-batch 7 x 1 steps x dp 8 = 56"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 4}}, (), "0, 1, 2 or 3"),
        ({"train_batch_size": 64, "zero_optimization": {"stag": 1}}, (), "did you mean stage?"),
        ({"train_batch_size": 64, "zero_optimization": 3}, (), "int instead of an object"),
        ({"train_batch_size": 64}, ("--zero-stage", "1"), "--zero-stage 1, the configuration says 0"),
        ({"train_batch_size": 64}, ("--tensor-model-parallel-size", "3"), "does not divide 8 GPUs"),
        ({"train_batch_size": 64}, ("--tensor-model-parallel-size",), "got 0 value(s)"),
        (
            {"train_batch_size": 64, "pipeline": {"stages": 2, "partition": "parameters"}},
            (),
            "depends on the program's list of layers",
        ),
    ],
)
def test_mistakes_are_named(config, words, part):
    with pytest.raises(InputError) as error:
        read(config, *words)
    assert part in str(error.value)


def test_text_that_is_no_configuration_is_refused():
    for text, part in (("{", "not JSON"), ("[]", "list instead of an object")):
        with pytest.raises(InputError, match=part):
            parse_deepspeed(text, world=1)
