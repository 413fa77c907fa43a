"""torchtitan exports: read back, compared with known command lines, refused where something cannot be said."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodels.job import TrainingJob
from costmodels.layout import (
    FULL_RECOMPUTE,
    TITAN_SELECTIVE,
    Granularity,
    Layout,
    Recompute,
    Stage,
    Strategy,
    StrategyRun,
)
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.script import launch_script
from planner.export.torchtitan import export_torchtitan
from planner.ingest.plain_layout import same_launch, uniform_stages
from planner.ingest.torchtitan.command_line import layout_of, parse_torchtitan
from planner.ingest.torchtitan.models import registry
from planner.request import Framework
from planner.rules import check_layout, facts_of

DENSE, SPARSE = "llama3_8b", "qwen3_30b_a3b"


EAGER = {"compiled": False}  # as a split backward pass needs


def job(batch: int = 64, seq: int = 8192, recipe: str = "bf16", **changes) -> TrainingJob:
    tools = replace(software("torchtitan"), **changes)
    numbers = precision(recipe, framework="torchtitan")
    return TrainingJob(global_batch=batch, seq=seq, precision=numbers, software=tools)


def plan(grid: Strategy, split, *, micro: int = 1, batch: int = 64, schedule: Schedule | None = None) -> Layout:
    usual = Schedule.INTERLEAVED if len(split[0]) > 1 else Schedule.ONE_F_ONE_B
    rounds = batch // (micro * grid.dp)
    stages = uniform_stages(split, grid)
    return Layout(stages=stages, micro_batch=micro, num_microbatches=rounds, schedule=schedule or usual)


def site(layout: Layout) -> Site:
    return Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)


def export(name: str, layout: Layout, **changes):
    return export_torchtitan(Planned(model=model(name), job=job(**changes), layout=layout, site=site(layout)))


def values_of(arguments) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for word in arguments:
        if word.startswith("--"):
            last = found.setdefault(word, [])
        else:
            last.append(word)
    return {name: tuple(values) for name, values in found.items()}


@st.composite
def splits(draw, layers: int, pp: int, vpp: int):
    positions = pp * vpp
    counts = [layers // positions + (index < layers % positions) for index in range(positions)]
    for _ in range(draw(st.integers(0, 3))):
        giver, taker = draw(st.integers(0, positions - 1)), draw(st.integers(0, positions - 1))
        if counts[giver] > 1:
            counts[giver] -= 1
            counts[taker] += 1
    return tuple(tuple(counts[stage::pp]) for stage in range(pp))


@st.composite
def plans(draw):
    name = draw(st.sampled_from([DENSE, SPARSE, "llama3_70b", "deepseek_v2_lite"]))
    spec = model(name)
    tp, cp, pp = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(3))
    dp = draw(st.sampled_from([1, 2, 4, 8]))
    vpp = draw(st.sampled_from([1, 1, 2, 3])) if pp > 1 else 1
    ep = draw(st.sampled_from([1, 2, 4, 8])) if facts_of(spec).experts else 1
    zero = draw(st.sampled_from([0, 2, 3]))
    groups = [group for group in (0, dp * cp // 2) if not group or (dp * cp) % group == 0]
    grid = Strategy(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=tp if facts_of(spec).experts and ep == 1 else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        zero=zero,
        shard_group=draw(st.sampled_from(groups)) if zero else 0,
        recompute=draw(st.sampled_from([Recompute(), TITAN_SELECTIVE, FULL_RECOMPUTE])),
    )
    schedule = Schedule.ZBV if vpp == 2 and draw(st.booleans()) else None
    schedule = Schedule.GPIPE if vpp == 1 and pp > 1 and draw(st.booleans()) else schedule
    layout = plan(grid, draw(splits(spec.layers, pp, vpp)), micro=draw(st.sampled_from([1, 2])), schedule=schedule)
    return name, layout


@given(drawn=plans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_an_export_reads_back_as_the_plan(drawn):
    name, layout = drawn
    spec = model(name)
    changes = EAGER if layout.schedule is Schedule.ZBV else {}
    assume(not check_layout(layout, spec, job(**changes), framework=Framework.TORCHTITAN))
    words = export(name, layout, **changes).arguments
    read = layout_of(parse_torchtitan(words, world=layout.gpus), facts_of(spec))
    assert same_launch(read, layout, experts=facts_of(spec).experts > 0)


def test_an_uneven_split_is_said_by_module_names():
    layout = plan(Strategy(tp=2, dp=2, zero=3, sequence_parallel=True), ((9,), (8,), (8,), (7,)))
    said = values_of(export(DENSE, layout).arguments)
    parts = said["--parallelism.module_fqns_per_model_part"]
    assert [part.count("layers.") for part in parts] == [9, 8, 8, 7]
    assert parts[0].startswith("tok_embeddings,layers.0,layers.1,")
    assert parts[-1].endswith(",layers.31,norm,lm_head")
    assert said["--training.local_batch_size"] == ("32",)
    assert said["--training.disable_cuda_graphs"] == ()
    assert said["--module"] + said["--config"] == ("llama3", "llama3_8b")


def test_without_a_pipeline_gradients_accumulate():
    layout = plan(Strategy(dp=4, zero=3), ((32,),), micro=2)
    said = values_of(export(DENSE, layout).arguments)
    assert said["--training.local_batch_size"] == ("2",)
    assert said["--training.global_batch_size"] == ("64",)
    assert "--parallelism.module_fqns_per_model_part" not in said
    assert said["--parallelism.fsdp_reshard_after_forward"] == ("always",)


def test_sharding_over_fewer_ranks_is_hybrid():
    layout = plan(Strategy(cp=2, dp=8, zero=3, shard_group=4), ((32,),))
    said = values_of(export(DENSE, layout).arguments)
    assert said["--parallelism.data_parallel_replicate_degree"] == ("4",)
    assert said["--parallelism.data_parallel_shard_degree"] == ("2",)
    assert said["--parallelism.context_parallel_load_balancer"] == ("ptrr",)


@pytest.mark.parametrize(
    ("schedule", "rules"), [(Schedule.GPIPE, []), (Schedule.ONE_F_ONE_B, ["torchtitan-1f1b-filled"])]
)
def test_few_micro_batches_fill_no_stages_of_1f1b_and_need_not_in_gpipe(schedule, rules):
    layout = replace(plan(Strategy(dp=2, zero=3), ((8,), (8,), (8,), (8,))), micro_batch=16, num_microbatches=2)
    layout = replace(layout, schedule=schedule)
    broken = check_layout(layout, model(DENSE), job(), framework=Framework.TORCHTITAN)
    assert [violation.rule for violation in broken] == rules


def test_chunks_of_a_v_lie_on_the_way_back():
    layout = plan(Strategy(dp=2, zero=3), ((9, 8), (7, 8)), schedule=Schedule.ZBV)
    written = export(DENSE, layout, **EAGER)
    parts = values_of(written.arguments)["--parallelism.module_fqns_per_model_part"]
    assert [part.count("layers.") for part in parts] == [9, 7, 8, 8]
    assert "FlexAttention" in " ".join(written.notes)


@pytest.mark.parametrize(
    ("recompute", "changes", "rule"),
    [
        (Recompute(), {}, "torchtitan-split-compiled"),
        (TITAN_SELECTIVE, EAGER, "torchtitan-split-recompute"),
        (FULL_RECOMPUTE, EAGER, None),
    ],
)
def test_a_v_runs_without_a_compiled_model_and_selective_checkpointing(recompute, changes, rule):
    layout = plan(Strategy(dp=2, zero=3, recompute=recompute), ((9, 8), (7, 8)), schedule=Schedule.ZBV)
    broken = check_layout(layout, model(DENSE), job(**changes), framework=Framework.TORCHTITAN)
    assert [violation.rule for violation in broken] == ([rule] if rule else [])


def test_the_users_words_come_before_the_subcommand():
    layout = plan(Strategy(dp=2, zero=3, recompute=FULL_RECOMPUTE), ((32,),))
    script = launch_script(export(DENSE, layout))
    assert "-m torchtitan.train" in script
    assert "TRAIN_SCRIPT" not in script
    assert script.index("user_args[@]") < script.index("--module llama3")
    assert script.rstrip().endswith("activation-checkpoint:full")


@pytest.mark.parametrize(
    ("name", "layout", "part"),
    [
        ("mixtral_8x22b", plan(Strategy(dp=2, zero=3), ((56,),)), "no bf16 configuration of the sizes"),
        (DENSE, plan(Strategy(dp=2, zero=1), ((32,),)), "ZeRO stage 1 has no option"),
        (DENSE, plan(Strategy(cp=2, dp=2), ((32,),)), "ZeRO stage 0 with cp 2"),
        (DENSE, plan(Strategy(dp=2, zero=3), ((32, 0), (0, 0)), schedule=Schedule.INTERLEAVED), "holds no layer"),
        (DENSE, plan(Strategy(dp=2, zero=3), ((16,), (16,)), schedule=Schedule.ZB_H1), "schedule zb-h1"),
        (SPARSE, plan(Strategy(tp=2, dp=2, zero=3, sequence_parallel=True), ((48,),)), "experts follow tp"),
        (SPARSE, plan(Strategy(dp=4, ep=8, zero=3), ((48,),)), "ep 8 does not divide"),
        ("gpt_oss_20b", plan(Strategy(cp=2, dp=2, zero=3), ((24,),)), "variable-length attention"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(name, layout, part):
    with pytest.raises(InputError) as error:
        export(name, layout)
    assert part in str(error.value)


def test_recompute_by_operation_is_written_and_read_back():
    found = export(DENSE, plan(Strategy(dp=2, zero=3, recompute=TITAN_SELECTIVE), ((32,),)))
    assert "activation-checkpoint:selective" in found.arguments


def test_recompute_of_parts_is_refused_with_the_nearest():
    part = Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))
    with pytest.raises(InputError, match="recompute full or none"):
        export(DENSE, plan(Strategy(dp=2, zero=3, recompute=part), ((32,),)))
    grid = Strategy(dp=2, zero=3)
    runs = (
        StrategyRun(strategy=replace(grid, recompute=FULL_RECOMPUTE), count=8),
        StrategyRun(strategy=grid, count=24),
    )
    some = replace(plan(grid, ((32,),)), stages=(Stage(layers_per_chunk=(32,), strategies=runs),))
    with pytest.raises(InputError, match="recompute full on every layer"):
        export(DENSE, some)


def test_other_precisions_are_refused():
    with pytest.raises(InputError, match="precision fp8"):
        export(DENSE, plan(Strategy(dp=2, zero=3), ((32,),)), recipe="fp8")


# ------------------------------------------------------------------------------------------------------ reading others
BASE = ["--module", "llama3", "--config", "llama3_8b", "--training.local-batch-size", "4", "--training.seq-len", "8192"]


def read(*words: str, world: int = 8) -> Layout:
    return layout_of(parse_torchtitan([*BASE, *words], world=world), facts_of(model(DENSE)))


def test_torchtitans_own_spread_is_counted():
    """80 layers over 4 stages are 20, 21, 20, 19: embedding and head count as one layer each."""
    facts = facts_of(model("llama3_70b"))
    words = [*BASE, "--parallelism.pipeline-parallel-degree", "4", "activation-checkpoint:none"]
    layout = layout_of(parse_torchtitan(words, world=8), facts)
    assert layout.layers_per_stage == ((20,), (21,), (20,), (19,))
    assert (layout.first.dp, layout.first.zero, layout.num_microbatches) == (2, 2, 4)


def test_defaults_fill_what_is_left_out():
    layout = read("--parallelism.tensor-parallel-degree=2", "activation-checkpoint:full", "--metrics.log-freq", "1")
    assert layout.first == Strategy(tp=2, dp=4, zero=3, sequence_parallel=True, recompute=FULL_RECOMPUTE)
    assert (layout.micro_batch, layout.num_microbatches) == (4, 1)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--parallelism.tensor-paralel-degree", "2"), "did you mean --parallelism.tensor_parallel_degree"),
        (("--training.seq-len", "long"), "got 'long'"),
        (("activation-checkpoint:half",), "'half' is unknown"),
        (("activation-checkpoint:memory-budget",), "memory-budget has no counterpart"),
        (("activation-checkpoint:none", "--parallelism.data-parallel-shard-degree", "3"), "covers 3 GPUs"),
        (("activation-checkpoint:none", "--parallelism.pipeline-parallel-schedule", "DualPipeV"), ""),
        (
            (
                "activation-checkpoint:none",
                *("--parallelism.pipeline-parallel-degree", "2", "--parallelism.pipeline-parallel-schedule", "X"),
            ),
            "schedule X is unknown",
        ),
        (
            (
                "activation-checkpoint:none",
                *("--parallelism.pipeline-parallel-degree", "2"),
                *("--parallelism.module-fqns-per-model-part", "tok_embeddings,layers.1", "norm,lm_head"),
            ),
            "'layers.1' is missing, doubled or out of place",
        ),
    ],
)
def test_mistakes_are_named(words, part):
    if not part:
        assert read(*words).pp == 1  # a schedule without a pipeline means nothing
        return
    with pytest.raises(InputError) as error:
        read(*words)
    assert part in str(error.value)


def test_the_registry_names_models_of_ours():
    """Every entry but those whose model no preset has is found by the sizes of a preset."""
    names = ("llama3_8b", "llama3_70b", "qwen3_0_6b", "qwen3_1_7b", "qwen3_14b", "qwen3_32b", "qwen3_30b_a3b")
    more = ("llama31_405b", "deepseek_v2_lite", "deepseek_v3", "gpt_oss_20b", "gpt_oss_120b")
    more += ("llama3_debugmodel", "qwen3_debugmodel")
    sizes = [facts_of(model(name)) for name in (*names, *more)]
    for entry in registry():
        keys = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "vocab")
        assert any(all(getattr(facts, key) == entry[key] for key in keys) for facts in sizes), entry["config"]
