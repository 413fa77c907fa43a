"""Overrides of Megatron-Bridge and NeMo 2: read back, known keys, refusals, mistakes of others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Granularity, Layout, RankOrder, Recompute, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.bridge import export_bridge
from planner.export.folder import export_files
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.megatron_model import model_arguments
from planner.export.nemo import export_nemo
from planner.ingest.bridge.overrides import layout_of_overrides, override_keys
from planner.ingest.judge import judge_launch
from planner.ingest.judged import LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.ingest.plain_layout import same_launch, uniform_stages
from planner.request import Framework
from planner.rules import check, check_layout, facts_of
from planner.rules.proposal import Proposal

DENSE, SPARSE = "llama3_8b", "mixtral_8x22b"
REDUCED_IN_BF16 = (
    "_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,"
    "params_dtype:{_target_:torch.bfloat16,_call_:false},pipeline_dtype:{_target_:torch.bfloat16,_call_:false},"
    "bf16:true,grad_reduce_in_fp32:false"
)
EXPORTERS = {Framework.BRIDGE: export_bridge, Framework.NEMO: export_nemo}
BOTH = pytest.mark.parametrize("framework", EXPORTERS)


def job(batch: int = 64, seq: int = 4096, recipe: str = "bf16", **changes) -> TrainingJob:
    tools = replace(software("megatron-bridge"), **changes)
    numbers = precision(recipe, framework="megatron")
    return TrainingJob(global_batch=batch, seq=seq, precision=numbers, software=tools)


def plan(grid: Strategy, split, *, micro: int = 1, batch: int = 64) -> Layout:
    return Layout(
        stages=uniform_stages(split, grid),
        micro_batch=micro,
        num_microbatches=batch // (micro * grid.dp),
        schedule=Schedule.INTERLEAVED if len(split[0]) > 1 else Schedule.ONE_F_ONE_B,
    )


def export(framework: Framework, name: str, layout: Layout, **changes):
    site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
    return EXPORTERS[framework](Planned(model=model(name), job=job(**changes), layout=layout, site=site))


@st.composite
def plans(draw):
    name = draw(st.sampled_from([DENSE, SPARSE]))
    spec = model(name)
    tp, cp, pp = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(3))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    experts = facts_of(spec).experts > 0
    part = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn", "layernorm"))
    grid = Strategy(
        tp=tp,
        cp=cp,
        dp=draw(st.sampled_from([1, 2, 4])),
        ep=draw(st.sampled_from([1, 2, 4])) if experts else 1,
        etp=draw(st.sampled_from([1, tp])) if experts else 1,
        sequence_parallel=tp > 1,
        zero=draw(st.sampled_from([0, 1, 1, 2, 3])),
        recompute=draw(st.sampled_from([Recompute(), FULL_RECOMPUTE, part])),
    )
    counts = [spec.layers // (pp * vpp) + (index < spec.layers % (pp * vpp)) for index in range(pp * vpp)]
    moved = draw(st.integers(0, 2)) if pp > 1 else 0
    counts[0] += moved
    counts[-1] -= moved
    layout = plan(grid, tuple(tuple(counts[stage::pp]) for stage in range(pp)))
    order = draw(st.sampled_from(list(RankOrder))) if pp > 1 and grid.dp > 1 else RankOrder.DP_INSIDE
    return name, replace(layout, rank_order=order)


@BOTH
@given(drawn=plans(), recipe=st.sampled_from(["bf16", "fp16", "fp8-cs"]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_an_export_reads_back_as_the_plan(framework, drawn, recipe):
    name, layout = drawn
    spec, task = model(name), job(recipe=recipe)
    assume(not check_layout(layout, spec, task, framework=framework))
    assume(not check_layout(layout, spec, task, framework=Framework.MEGATRON, version="0.15"))
    words = [word for word in export(framework, name, layout, recipe=recipe).arguments if "trainer.num" not in word]
    words = [word for word in words if not word.startswith("trainer.devices")]
    read = layout_of_overrides(words, model_arguments(spec, task.seq), world=layout.gpus, framework=framework)
    assert same_launch(read, layout, experts=facts_of(spec).experts > 0)


def test_pipelines_before_replicas_has_a_key_in_both():
    layout = plan(Strategy(tp=2, dp=2, zero=1, sequence_parallel=True), ((16,), (16,)))
    turned = replace(layout, rank_order=RankOrder.PP_INSIDE)
    for framework, key in ((Framework.BRIDGE, "dist."), (Framework.NEMO, "trainer.strategy.")):
        name = f"{key}use_tp_pp_dp_mapping"
        assert f"{name}=false" in export(framework, DENSE, layout).arguments
        assert f"{name}=true" in export(framework, DENSE, turned).arguments


def test_keys_of_bridge():
    layout = plan(Strategy(tp=2, dp=2, zero=1, sequence_parallel=True), ((9,), (8,), (8,), (7,)))
    words = set(export(Framework.BRIDGE, DENSE, layout).arguments)
    assert {
        "model.tensor_model_parallel_size=2",
        "model.pipeline_model_parallel_size=4",
        'model.pipeline_model_parallel_layout="Et*9|t*8|t*8|t*7L"',
        "model.virtual_pipeline_model_parallel_size=null",
        "model.sequence_parallel=true",
        "model.recompute_granularity=null",
        "ddp.use_distributed_optimizer=true",
        "optimizer.use_distributed_optimizer=true",
        "train.micro_batch_size=1",
        "train.global_batch_size=64",
        f"mixed_precision={{{REDUCED_IN_BF16}}}",
    } <= words
    assert not any(word.startswith("ddp.grad_reduce") for word in words)  # mixed precision is laid over it


@pytest.mark.parametrize("recipe", ["bf16", "fp16", "fp8-ds", "fp8-cs", "fp8-blockwise", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("gradient_bytes", [2.0, 4.0])
def test_number_formats_of_bridge_read_back(recipe, gradient_bytes):
    layout = plan(Strategy(dp=2, zero=1), ((32,),))
    words = export(Framework.BRIDGE, DENSE, layout, recipe=recipe, gradient_bytes=gradient_bytes).arguments
    text = LaunchText(arguments=words)
    given = LaunchInput(text=text, framework=Framework.BRIDGE, version="0.6", world=2, model=model(DENSE))
    judged = judge_launch(given)
    assert judged.legal
    assert judged.precision == recipe
    assert judged.gradient_bytes == (0.0 if recipe == "fp16" else gradient_bytes)


@pytest.mark.parametrize("recipe", ["fp8-ds", "fp8-cs", "mxfp8"])
@pytest.mark.parametrize("zero", [0, 1])
def test_low_precision_weights_need_a_sharded_optimizer(recipe, zero):
    layout = plan(Strategy(dp=2, zero=zero), ((32,),))
    words = export(Framework.BRIDGE, DENSE, layout, recipe=recipe).arguments
    given = LaunchInput(
        text=LaunchText(arguments=words), framework=Framework.BRIDGE, version="0.6", world=2, model=model(DENSE)
    )
    judged = judge_launch(given)
    assert judged.legal
    assert (judged.precision, judged.wide_weights) == (recipe, zero == 0)
    plugin = export(Framework.NEMO, DENSE, layout, recipe=recipe).arguments
    assert ("trainer.plugins.fp8_param_gather=true" in plugin) == (zero == 1)


def test_number_formats_of_nemo_are_those_of_the_plugin():
    words = export(Framework.NEMO, DENSE, plan(Strategy(dp=2, zero=1), ((32,),)), gradient_bytes=2.0).arguments
    assert "trainer.plugins.grad_reduce_in_fp32=false" in words
    assert not any(word.startswith("trainer.strategy.ddp.grad_reduce") for word in words)


def test_keys_of_nemo():
    layout = plan(Strategy(tp=2, dp=2, sequence_parallel=True, recompute=FULL_RECOMPUTE), ((8, 8), (8, 8)))
    words = set(export(Framework.NEMO, DENSE, layout).arguments)
    assert {
        "trainer.num_nodes=8",
        "trainer.strategy.tensor_model_parallel_size=2",
        "trainer.strategy.virtual_pipeline_model_parallel_size=2",
        "trainer.strategy.sequence_parallel=true",
        "trainer.strategy.ddp.use_distributed_optimizer=false",
        "model.config.recompute_granularity=full",
        "data.global_batch_size=64",
        'trainer.plugins.precision="bf16-mixed"',
    } <= words


def test_nemo_reads_lists_as_python_does():
    recompute = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn", "mlp"))
    layout = plan(Strategy(dp=2, zero=1, recompute=recompute), ((32,),))
    assert 'model.config.recompute_modules=["core_attn","mlp"]' in export(Framework.NEMO, DENSE, layout).arguments
    assert "model.recompute_modules=[core_attn,mlp]" in export(Framework.BRIDGE, DENSE, layout).arguments


def test_nemo_is_told_the_virtual_degree_beside_a_layout():
    """Its process groups and models of a rank follow the strategy's degree, whatever the layout has."""
    layout = plan(Strategy(dp=2, zero=1), ((7, 9), (8, 8)))
    words = export(Framework.NEMO, DENSE, layout).arguments
    assert 'trainer.strategy.pipeline_model_parallel_layout="Et*7|t*8|t*9|t*8L"' in words
    degree = "trainer.strategy.virtual_pipeline_model_parallel_size"
    assert f"{degree}=2" in words
    assert "model.virtual_pipeline_model_parallel_size=null" in export(Framework.BRIDGE, DENSE, layout).arguments
    for told, why in (("null", "not given"), ("3", "3")):
        wrong = [word.replace(f"{degree}=2", f"{degree}={told}") for word in words]
        given = LaunchInput(
            text=LaunchText(arguments=tuple(wrong)),
            framework=Framework.NEMO,
            version="2.7",
            world=4,
            model=model(DENSE),
        )
        message = judge_launch(given).violations[0].message
        assert message.endswith(f"2 virtual chunks a stage, the virtual degree is {why}; allowed: 2")


def test_nemo_sums_gradients_of_fp16_in_16_bits():
    layout = plan(Strategy(dp=2, zero=1), ((32,),))
    words = export(Framework.NEMO, DENSE, layout, recipe="fp16").arguments
    assert "trainer.plugins.grad_reduce_in_fp32=false" in words
    wide = export(Framework.NEMO, DENSE, layout, gradient_bytes=4.0).arguments
    assert "trainer.plugins.grad_reduce_in_fp32=true" in wide


def test_what_bridge_and_nemo_notice_late_is_said():
    """Neither asks whether experts divide before a layer is built; NeMo not whether a sequence divides over cp."""
    experts = replace(facts_of(model(SPARSE)), experts=6)
    proposal = Proposal(world=8, ep=4, cp=2, global_batch=8, micro_batch=1, seq=4098, model=experts)
    rules = {violation.rule: violation for violation in check(proposal, Framework.NEMO)}
    assert not rules["nemo-seq-cp"].refused_at_launch
    assert rules["layer-experts-ep"].refused_at_launch
    assert "seq-cp" in {violation.rule for violation in check(proposal, Framework.BRIDGE)}


def test_experts_always_say_their_tensor_parallelism():
    layout = plan(Strategy(tp=2, dp=4, ep=8, sequence_parallel=True, zero=1), ((56,),))
    words = export(Framework.BRIDGE, SPARSE, layout).arguments
    assert "model.expert_tensor_parallel_size=1" in words
    assert "model.expert_model_parallel_size=8" in words


def test_kernels_of_attention_that_a_plan_assumes_are_variables_of_bridge_and_a_note_of_nemo():
    layout = plan(Strategy(dp=2), ((32,),))
    plain = export(Framework.BRIDGE, DENSE, layout)
    assert "model.attention_backend=null" not in plain.arguments
    flash = export(Framework.BRIDGE, DENSE, layout, attention_kernel="fa2")
    assert "model.attention_backend=null" in flash.arguments
    told = {("NVTE_FLASH_ATTN", "1"), ("NVTE_FUSED_ATTN", "0"), ("NVTE_UNFUSED_ATTN", "0")}
    assert set(flash.environment) - set(plain.environment) == told
    noted = export(Framework.NEMO, DENSE, layout, flash_attention=False).notes
    assert "must set model.config.attention_backend = AttnBackend.unfused: no override can" in " ".join(noted)


def test_the_script_asks_for_a_recipe():
    layout = plan(Strategy(dp=2), ((32,),))
    script = export_files(export(Framework.BRIDGE, DENSE, layout), layout, "test")["launch.sh"]
    assert "MODEL_RECIPE" in script
    assert "    model.tensor_model_parallel_size=1 \\\n" in script
    assert "llm pretrain" in export_files(export(Framework.NEMO, DENSE, layout), layout, "test")["launch.sh"]


@BOTH
def test_what_cannot_be_said_is_refused_by_name(framework):
    with pytest.raises(InputError, match="schedule gpipe"):
        export(framework, DENSE, replace(plan(Strategy(dp=2), ((16,), (16,))), schedule=Schedule.GPIPE))
    with pytest.raises(InputError, match="gated activation gelu"):
        export(framework, "gemma_7b", plan(Strategy(dp=2), ((28,),)))


def test_a_precision_without_a_plugin_is_refused():
    with pytest.raises(InputError, match="nvfp4 has no override"):
        export(Framework.NEMO, DENSE, plan(Strategy(dp=2, zero=1), ((32,),)), recipe="nvfp4")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["model.tensor_model_paralel_size=2"], "did you mean model.tensor_model_parallel_size"),
        (["model.sequence_parallel"], "allowed: key=value"),
        (["model.sequence_parallel=maybe"], "true or false"),
        (["model.seq_length=2048", "dataset.seq_length=4096"], "differ: 2048, 4096"),
        (["model.tensor_model_parallel_size=3"], "3"),
    ],
)
def test_mistakes_are_named(words, part):
    base = ["train.micro_batch_size=1", "train.global_batch_size=64", "dataset.seq_length=4096", *words]
    model_words = model_arguments(model(DENSE), 4096)
    with pytest.raises(InputError) as error:
        layout_of_overrides(base, model_words, world=8, framework=Framework.BRIDGE)
    assert part in str(error.value)


def test_overrides_of_others_are_read():
    base = ["train.micro_batch_size=1", "train.global_batch_size=64", "++dataset.seq_length=4096"]
    base += ["model.recompute_granularity=selective", "model.recompute_modules=[core_attn,'mlp']"]
    base += ["mixed_precision=bf16_mixed"]
    model_words = model_arguments(model(DENSE), 4096)
    layout = layout_of_overrides(base, model_words, world=8, framework=Framework.BRIDGE)
    assert layout.first.dp == 8
    assert layout.first.recompute.modules == ("core_attn", "mlp")


@BOTH
def test_no_key_stands_for_two_flags(framework):
    keys = [name for key in override_keys(framework) for name in key.keys]
    assert len(keys) == len(set(keys))


def test_settings_of_other_data_are_named_and_misspelt_ones_refused():
    def read(*words: str):
        given = LaunchText(arguments=(*words, "train.micro_batch_size=1", "train.global_batch_size=8"))
        return judge_launch(
            LaunchInput(text=given, framework=Framework.BRIDGE, version="0.6", world=8, model=model(DENSE))
        )

    fine = read("dataset.source.dataset_name=squad", "dataset.seq_length=2048", "model.seq_length=2048")
    assert fine.legal, fine.violations
    assert "dataset.source.dataset_name" in fine.unjudged
    assert not read("dataset.seq_lenght=2048").legal


# -------------------------------------------------------------------------------------------------------------- hybrids
@pytest.mark.parametrize("split", [((13,), (13,), (13,), (13,)), ((12,), (15,), (13,), (12,))])
def test_a_hybrid_is_split_by_the_pattern_in_bridge(split):
    layout = plan(Strategy(tp=2, dp=2, zero=1), split)
    exported = export(Framework.BRIDGE, "nemotronh_8b", layout)
    (word,) = [word for word in exported.arguments if word.startswith("model.hybrid_layer_pattern=")]
    pattern = word.partition("=")[2].strip('"')
    assert [len(piece) for piece in pattern.split("|")] == [count for (count,) in split]
    text = LaunchText(arguments=exported.arguments)
    given = LaunchInput(text=text, framework=Framework.BRIDGE, version="0.6", world=16, model=model("nemotronh_8b"))
    assert same_launch(judge_launch(given).layout, layout, experts=False)


def test_blocks_with_mamba_are_two_letters_each_in_bridge():
    told = json.loads((Path(__file__).parent / "reference" / "huggingface_configs.json").read_text())["models"]
    spec = from_config(told["granite-4.0-h-1b"]["config"], name="granite", where="config.json")
    half = spec.layers // 2
    layout = plan(Strategy(dp=2, zero=1), ((half + 1,), (half - 1,)))
    site = Site(hosts=tuple(f"host{index}" for index in range(4)), gpus_per_node=1)
    words = export_bridge(Planned(model=spec, job=job(), layout=layout, site=site)).arguments
    (pattern,) = [word.partition("=")[2].strip('"') for word in words if ".hybrid_layer_pattern=" in word]
    assert [len(piece) for piece in pattern.split("|")] == [2 * half + 2, 2 * half - 2]


def test_a_hybrid_has_equal_stages_in_nemo():
    assert export(Framework.NEMO, "nemotronh_8b", plan(Strategy(dp=2, zero=1), ((26,), (26,)))).arguments
    with pytest.raises(InputError, match="the nearest that it can: --layers-per-stage 26,26"):
        export(Framework.NEMO, "nemotronh_8b", plan(Strategy(dp=2, zero=1), ((27,), (25,))))
    with pytest.raises(InputError, match="has the letter 'E'"):
        export(Framework.NEMO, "nemotron3_nano", plan(Strategy(dp=2, zero=1), ((26,), (26,))))


@pytest.mark.parametrize("framework", [Framework.BRIDGE, Framework.NEMO])
def test_virtual_stages_of_a_hybrid_break_a_rule(framework):
    """Both assert that virtual_pipeline_model_parallel_size is None where they build such a model."""
    layout = plan(Strategy(dp=2), ((13, 13), (13, 13)))
    broken = check_layout(layout, model("nemotronh_8b"), job(), framework=framework)
    assert "recipes-hybrid-virtual" in {violation.rule for violation in broken}


@pytest.mark.parametrize(("framework", "key"), [(Framework.BRIDGE, "model."), (Framework.NEMO, "model.config.")])
def test_grouped_experts_with_biases_are_told_without_their_fusion(framework, key):
    layout = plan(Strategy(dp=4, ep=4, zero=1), ((24,),))
    assert f"{key}bias_dropout_fusion=false" in export(framework, "gpt_oss_20b", layout).arguments


def test_experts_in_fp16_are_exported_to_nemo():
    """That core 0.15 has grouped experts in bf16 alone is asked by Megatron-LM's parser, which NeMo does not pass."""
    layout = plan(Strategy(dp=4, ep=4, zero=1), ((48,),))
    assert export(Framework.NEMO, "qwen3_30b_a3b", layout, recipe="fp16").arguments
