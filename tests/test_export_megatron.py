"""Megatron-LM exports: read back, compared with known flags, refused where something cannot be said."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.job import Dispatcher, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Granularity, Layout, RankOrder, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.model import LayerRun, ModelSpec, OpaqueLayer
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.hosts import Site, site_of
from planner.export.launch import Export, Planned
from planner.export.megatron import export_megatron, recompute_arguments
from planner.export.megatron_model import model_arguments, model_notes
from planner.ingest.megatron.arguments import layout_of, parse_megatron
from planner.ingest.megatron.layer_pattern import moe_pattern
from planner.plan_report import RankPlace
from planner.request import Framework
from planner.rules import check_layout

FLAGS = tomllib.loads((Path(__file__).parent / "reference" / "megatron_model_flags.toml").read_text(encoding="utf-8"))


def job(batch: int = 128, seq: int = 4096, recipe: str = "bf16", **changes) -> TrainingJob:
    tools = replace(software("megatron"), **changes)
    numbers = precision(recipe, framework="megatron")
    return TrainingJob(global_batch=batch, seq=seq, precision=numbers, software=tools)


def plan(grid: Strategy, split, *, micro: int = 1, batch: int = 128, recompute=None) -> Layout:
    """A layout with one grid; ``recompute`` gives the recompute of a layer by its index in its chunk."""
    stages = []
    for chunks in split:
        told = [recompute(index) if recompute else grid.recompute for count in chunks for index in range(count)]
        runs = tuple(StrategyRun(strategy=replace(grid, recompute=kind), count=1) for kind in told)
        stages.append(Stage(layers_per_chunk=tuple(chunks), strategies=runs or (StrategyRun(strategy=grid, count=0),)))
    schedule = Schedule.INTERLEAVED if len(split[0]) > 1 else Schedule.ONE_F_ONE_B
    rounds = batch // (micro * grid.dp)
    return Layout(stages=tuple(stages), micro_batch=micro, num_microbatches=rounds, schedule=schedule)


def site(layout: Layout, per_node: int = 8) -> Site:
    per_node = min(per_node, layout.gpus)
    return Site(hosts=tuple(f"host{i}" for i in range(layout.gpus // per_node)), gpus_per_node=per_node)


def exported(spec: ModelSpec, task: TrainingJob, layout: Layout, **changes: Any) -> Export:
    return export_megatron(Planned(model=spec, job=task, layout=layout, **{"site": site(layout), **changes}))


def flags_of(arguments) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in arguments:
        if word.startswith("--"):
            name = word
            found[name] = ()
        else:
            found[name] += (word,)
    return found


def numbers(values):
    try:
        return tuple(float(value) for value in values)
    except ValueError:
        return values


# ------------------------------------------------------------------------------------------------------ the model
@pytest.mark.parametrize("name", FLAGS)
def test_model_flags_are_those_that_build_the_published_model(name):
    wanted = flags_of(FLAGS[name]["flags"].split())
    built = flags_of(model_arguments(model(name), 1024))
    for extra in ("--seq-length", "--make-vocab-size-divisible-by"):
        built.pop(extra)
    for flags in (wanted, built):
        flags.pop("--max-position-embeddings")  # presets may state a longer context than the source
    assert {flag: numbers(values) for flag, values in built.items()} == {
        flag: numbers(values) for flag, values in wanted.items()
    }


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gemma_7b", "gated activation gelu"),
        ("gemma2_9b", "4 norms in a block"),
        ("phi_2", "in parallel"),
        ("falcon_40b", "in parallel"),
        ("bloom_176b", "a norm on the embedding"),
        ("opt_13b", "ungated activation relu"),
        ("wide_resnet_1b", "known by their totals only"),
        ("mpt_7b", "ALiBi"),
        ("bert_large", "attention to later tokens"),
        ("exaone4_1_2b", "norms after attention and feed-forward part alone"),
        ("glm52", "an indexer that chooses the keys"),
        ("longcat_flash_560b", "experts that compute nothing"),
    ],
)
def test_what_has_no_flag_is_refused_by_name(name, part):
    with pytest.raises(InputError) as error:
        model_arguments(model(name), 512)
    assert part in str(error.value)
    assert name in str(error.value)


def test_a_model_that_states_no_details_is_exported_with_a_note():
    bare = replace(model("llama3_8b"), name="mine", family="transformer", details=None)
    assert "--swiglu" in model_arguments(bare, 4096)
    assert any("base 10000" in note for note in model_notes(bare))
    assert not any("base 10000" in note for note in model_notes(model("llama3_8b")))


def test_norms_over_all_heads_are_remarked():
    assert any("all heads at once" in note for note in model_notes(model("olmoe_7b")))
    assert not any("all heads at once" in note for note in model_notes(model("qwen3_8b")))


@given(layers=st.lists(st.booleans(), min_size=1, max_size=40))
def test_layer_patterns_read_back(layers):
    from planner.export.megatron_model import list_pattern  # noqa: PLC0415

    assert moe_pattern(list_pattern(layers), len(layers)) == tuple(layers)


@pytest.mark.parametrize("text", ["0", "[1]*3", "__import__('os')", "[1]*99999999", "([0]*1+", "[1,'a']", "-0"])
def test_layer_patterns_are_not_evaluated(text):
    with pytest.raises(InputError):
        moe_pattern(text, 4)


# ------------------------------------------------------------------------------------------------------ the layout
MODELS = ("llama3_8b", "qwen3_30b_a3b", "mixtral_8x22b", "glm45_air", "gpt3_1_3b")


@st.composite
def legal_plans(draw):
    spec = model(draw(st.sampled_from(MODELS)))
    moe = "moe" in spec.kinds()[-1].name
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    grid = Strategy(
        tp=tp,
        cp=draw(st.sampled_from([1, 2])),
        dp=draw(st.sampled_from([2, 4])),
        ep=draw(st.sampled_from([1, 2])) if moe else 1,
        etp=draw(st.sampled_from([1, tp])) if moe else 1,
        zero=draw(st.sampled_from([0, 1, 1, 2, 3])),
        sequence_parallel=tp > 1,
    )
    cuts = sorted(draw(st.lists(st.integers(0, spec.layers), min_size=pp * vpp - 1, max_size=pp * vpp - 1)))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, spec.layers], strict=True)]
    split = tuple(tuple(counts[stage::pp]) for stage in range(pp))
    first = draw(st.integers(1, 4))
    kinds = {
        "none": None,
        "full": lambda _: FULL_RECOMPUTE,
        "first": lambda index: FULL_RECOMPUTE if index < first else Recompute(),
        "selective": lambda _: Recompute(granularity=Granularity.SELECTIVE, modules=("layernorm",)),
    }
    layout = plan(grid, split, recompute=kinds[draw(st.sampled_from(list(kinds)))])
    turned = replace(layout, rank_order=RankOrder.PP_INSIDE)
    legal = pp > 1 and not check_layout(turned, spec, job(seq=2048), framework=Framework.MEGATRON)
    return spec, turned if legal and draw(st.booleans()) else layout


@settings(max_examples=60, deadline=None)
@given(drawn=legal_plans())
def test_an_export_reads_back_as_the_same_plan(drawn):
    spec, layout = drawn
    task = job(seq=2048)
    assert not check_layout(layout, spec, task, framework=Framework.MEGATRON)
    export = exported(spec, task, layout)
    back = layout_of(parse_megatron(export.arguments, world=layout.gpus))
    assert back.layers_per_stage == layout.layers_per_stage
    assert (back.micro_batch, back.num_microbatches, back.schedule, back.rank_order) == (
        layout.micro_batch,
        layout.num_microbatches,
        layout.schedule,
        layout.rank_order,
    )
    mine = [run.strategy for stage in layout.stages for run in stage.strategies for _ in range(run.count)]
    read = [run.strategy for stage in back.stages for run in stage.strategies for _ in range(run.count)]
    assert read == mine


def test_splits_are_said_in_the_plainest_way():
    grid = Strategy(dp=1, zero=0)
    spec, task = model("llama3_8b"), job(batch=16)

    def said(split):
        layout = plan(grid, split, batch=16)
        return flags_of(exported(spec, task, layout).arguments)

    even, virtual = said(((8,),) * 4), said(((4, 4),) * 4)
    assert not any("pipeline-num-layers" in flag or "layout" in flag or "virtual" in flag for flag in even)
    assert virtual["--num-virtual-stages-per-pipeline-rank"] == ("2",)
    assert said(((9,), (9,), (7,), (7,)))["--pipeline-model-parallel-layout"] == ("Et*9|t*9|t*7|t*7L",)
    assert said(((5, 4), (4, 4), (4, 4), (4, 3)))["--pipeline-model-parallel-layout"] == ("Et*5|(t*4|)*6t*3L",)


def test_multi_token_prediction_goes_with_the_loss():
    spec, task = model("glm45_air"), job(batch=32)
    layout = plan(Strategy(dp=4, ep=4), ((12,), (12,), (11,), (11,)), batch=32)
    arguments = flags_of(exported(spec, task, layout).arguments)
    assert arguments["--pipeline-model-parallel-layout"] == ("Et*12|t*12|t*11|t*11mL",)
    with pytest.raises(InputError, match=r"core 0\.14 takes any split"):
        exported(spec, task, layout, version="0.13")
    ends = plan(Strategy(dp=4, ep=4), ((12,), (11,), (11,), (12,)), batch=32)
    old = flags_of(exported(spec, task, ends, version="0.13").arguments)
    assert old["--decoder-first-pipeline-num-layers"] == ("12",)


def test_expert_tensor_parallelism_is_always_said_for_experts():
    spec, task = model("mixtral_8x22b"), job()
    layout = plan(Strategy(tp=4, dp=2, ep=4, etp=1, sequence_parallel=True, zero=1), ((14,),) * 4)
    said = flags_of(exported(spec, task, layout).arguments)
    assert said["--expert-tensor-parallel-size"] == ("1",)
    dense = plan(Strategy(tp=4, dp=2, sequence_parallel=True), ((8,),) * 4)
    said = flags_of(exported(model("llama3_8b"), task, dense).arguments)
    assert "--expert-tensor-parallel-size" not in said


@pytest.mark.parametrize(("zero", "strategy"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_sharding_and_its_environment(zero, strategy):
    spec, task = model("llama3_8b"), job()
    layout = plan(Strategy(tp=2, dp=4, zero=zero, sequence_parallel=True), ((32,),))
    export = exported(spec, task, layout)
    said = flags_of(export.arguments)
    assert said["--data-parallel-sharding-strategy"] == (strategy,)
    assert said["--ckpt-format"] == ("fsdp_dtensor",)
    assert export.environment == (("CUDA_DEVICE_MAX_CONNECTIONS", ""),)
    old = exported(spec, task, layout, version="0.13")
    assert "--use-custom-fsdp" in old.arguments
    plain = plan(Strategy(tp=2, dp=4, zero=1, sequence_parallel=True), ((32,),))
    assert exported(spec, task, plain).environment == (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)


def test_software_becomes_flags():
    spec = model("mixtral_8x22b")
    task = job(dispatcher=Dispatcher.DEEPEP, tp_overlap=True, fused_loss=True, optimizer_offload=True, cp_comm="a2a")
    layout = plan(Strategy(tp=2, cp=2, dp=2, ep=8, etp=1, sequence_parallel=True, zero=1), ((14,),) * 4)
    said = flags_of(exported(spec, task, layout, version="0.17").arguments)
    assert said["--moe-token-dispatcher-type"] == ("flex",)
    assert said["--moe-flex-dispatcher-backend"] == ("deepep",)
    assert said["--cp-comm-type"] == ("a2a",)
    assert {"--tp-comm-overlap", "--cross-entropy-loss-fusion", "--optimizer-cpu-offload"} <= set(said)
    assert said["--cross-entropy-fusion-impl"] == ("te",)
    with pytest.raises(InputError, match=r"--loss whole, or --framework-version 0\.17"):  # refused since 0.18.2
        exported(spec, task, layout)
    old = flags_of(exported(spec, task, layout, version="0.15").arguments)
    assert "--moe-enable-deepep" in old  # its flex dispatcher has no other backend
    assert "--moe-flex-dispatcher-backend" not in old
    assert {"--overlap-grad-reduce", "--overlap-param-gather", "--use-precision-aware-optimizer"} <= set(said)


def test_an_option_of_a_later_version_is_refused_and_left_to_a_recipe():
    """YaRN's positions are an option of core 0.19; NeMo's recipe of gpt-oss on core 0.15 sets them itself."""
    spec, task = model("gpt_oss_20b"), job()
    layout = plan(Strategy(dp=8, zero=1, ep=8), ((24,),))
    with pytest.raises(InputError, match=r"core 0\.17 has no option --yarn-original-max-position-embeddings"):
        exported(spec, task, layout, version="0.17")
    site = Site(hosts=("one",), gpus_per_node=8)
    planned = Planned(model=spec, job=task, layout=layout, site=site, version="0.17", recipe=True)
    assert "--num-experts" in export_megatron(planned).arguments


# ------------------------------------------------------------------------------------------------------ refusals
def refusal(spec, task, layout, **kwargs) -> str:
    with pytest.raises(InputError) as error:
        exported(spec, task, layout, **kwargs)
    return str(error.value)


def test_refusals_name_the_part():
    spec, task = model("llama3_8b"), job()
    good = plan(Strategy(dp=8, zero=1), ((32,),))
    mixed = replace(
        good,
        stages=(
            *plan(Strategy(tp=2, dp=4), ((16,),)).stages,
            *plan(Strategy(dp=8), ((16,),)).stages,
        ),
    )
    assert "2 different grids" in refusal(spec, job(64), mixed)
    assert "schedule gpipe" in refusal(spec, task, replace(plan(Strategy(dp=2), ((16,),) * 2), schedule=Schedule.GPIPE))
    assert "are 64 samples, the global batch is 128" in refusal(spec, task, replace(good, num_microbatches=8))
    assert "32 attention heads do not divide by tp 3" in refusal(spec, task, plan(Strategy(tp=3, dp=2), ((32,),)))
    assert "holds 31 layers, the model has 32" in refusal(spec, task, plan(Strategy(dp=4), ((16,), (15,))))
    assert "the site offers 16" in refusal(spec, task, good, site=Site(hosts=("a", "b"), gpus_per_node=8))
    assert "optimizer states of 5 bytes" in refusal(spec, replace(task, optimizer_bytes=5.0), good)
    assert "has no option --window-size" in refusal(model("mistral_7b_v0_1"), task, good, version="0.13")


@pytest.mark.parametrize(
    "layers",
    [
        [Recompute(), FULL_RECOMPUTE],
        [FULL_RECOMPUTE, Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))],
        [Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)), Recompute()],
    ],
)
def test_recompute_that_cannot_be_said(layers):
    layout = plan(Strategy(), ((2,),), recompute=lambda index: layers[index])
    with pytest.raises(InputError, match="recompute differs between layers"):
        recompute_arguments(layout)


def test_the_first_layers_of_every_chunk_is_a_block():
    layout = plan(Strategy(), ((3, 1), (2, 5)), recompute=lambda i: FULL_RECOMPUTE if i < 2 else Recompute())
    assert recompute_arguments(layout)[2:] == ["--recompute-method", "block", "--recompute-num-layers", "2"]


# ------------------------------------------------------------------------------------------------------ ranks
def test_ranks_follow_megatrons_order():
    """64 GPUs, tp 2, cp 2, pp 4, ep 8, etp 1: groups that Megatron-LM's own rank generator gives."""
    grid = Strategy(tp=2, cp=2, dp=4, ep=8, etp=1, sequence_parallel=True, zero=1)
    layout = plan(grid, ((14,),) * 4)
    ranks = exported(model("mixtral_8x22b"), job(), layout).ranks

    def without(*others):
        key = tuple(getattr(ranks[0], other) for other in others)
        return [row.rank for row in ranks if tuple(getattr(row, other) for other in others) == key]

    assert without("cp", "dp", "pp") == [0, 1]
    assert without("tp", "dp", "pp") == [0, 2]
    assert without("tp", "cp", "pp") == [0, 4, 8, 12]
    assert without("tp", "cp", "dp") == [0, 16, 32, 48]
    assert without("etp", "edp", "pp") == list(range(8))
    assert without("etp", "ep", "pp") == [0, 8]
    assert [(row.host, row.gpu) for row in ranks[7:9]] == [("host0", 7), ("host1", 0)]


def test_pipelines_before_replicas_is_a_flag_and_the_order_of_the_ranks():
    layout = replace(plan(Strategy(tp=2, dp=4, zero=1), ((32,), (32,), (32,))), rank_order=RankOrder.PP_INSIDE)
    export = exported(model("gpt3_175b"), job(seq=2048), layout)
    assert export.arguments.count("--use-tp-pp-dp-mapping") == 1
    assert [(row.tp, row.pp, row.dp) for row in export.ranks[:8]] == [
        *((tp, pp, 0) for pp in range(3) for tp in range(2)),
        *((tp, 0, 1) for tp in range(2)),
    ]
    usual = exported(model("gpt3_175b"), job(seq=2048), replace(layout, rank_order=RankOrder.DP_INSIDE))
    assert set(export.arguments) - set(usual.arguments) == {"--use-tp-pp-dp-mapping"}


def test_placement_permutes_nodes_and_gpus_inside_them():
    spec, layout = model("llama3_8b"), plan(Strategy(dp=4), ((32,),))
    two = Site(hosts=("a", "b"), gpus_per_node=2)
    order = [("b", 1), ("b", 0), ("a", 0), ("a", 1)]
    placement = tuple(RankPlace(rank=i, host=h, gpu=g) for i, (h, g) in enumerate(order))
    export = exported(spec, job(), layout, site=two, placement=placement)
    assert [(row.host, row.visible_devices) for row in export.nodes] == [("b", "1,0"), ("a", "0,1")]
    assert [(row.host, row.gpu) for row in export.ranks] == order
    torn = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    places = [RankPlace(rank=i, host=h, gpu=g) for i, (h, g) in enumerate(torn)]
    assert "torchrun keeps them on one" in refusal(spec, job(), layout, site=two, placement=places)
    twice = [*places[:3], replace(places[0], rank=3)]
    assert "uses a GPU twice" in refusal(spec, job(), layout, site=two, placement=twice)
    assert "names 3 ranks" in refusal(spec, job(), layout, site=two, placement=places[:3])


def test_a_site_takes_whole_nodes_of_a_cluster():
    from hardware.catalog import cluster  # noqa: PLC0415

    machines = cluster("dgx-h100:4")
    assert site_of(machines, 16) == Site(hosts=("node0", "node1"), gpus_per_node=8)
    assert site_of(machines, 4).gpus_per_node == 4
    with pytest.raises(InputError, match="12 GPUs do not fill nodes of 8"):
        site_of(machines, 12)
    with pytest.raises(InputError, match="need 4 hosts, 1 are given"):
        site_of(machines, 32, hosts=("only",))


def test_a_plan_for_one_island_runs_on_its_hosts_whatever_the_others_are():
    from hardware.catalog import cluster  # noqa: PLC0415

    islands = (*cluster("dgx-h100:2").islands, *cluster("gb200-nvl72:18").islands)
    both = replace(cluster("dgx-h100:2"), name="both", islands=islands)
    sizes = [island.node.gpus for island in islands]
    assert len(set(sizes)) == 2
    other = site_of(both, 2 * sizes[1], islands={1})
    assert other == Site(hosts=("node2", "node3"), gpus_per_node=sizes[1])
    assert site_of(both, 16, islands={0}).hosts == ("node0", "node1")
    named = tuple(f"h{number}" for number in range(both.nodes))
    assert site_of(both, 2 * sizes[1], named, {1}).hosts == ("h2", "h3")
    with pytest.raises(InputError, match="launchers start equally many"):
        site_of(both, 16)


def test_opaque_layers_do_not_export():
    sizes = dict.fromkeys(("forward_flops_per_sample", "activation_bytes_per_sample", "output_bytes_per_sample"), 1.0)
    layer = OpaqueLayer(name="conv", parameters=1, **sizes)
    spec = replace(model("llama3_8b"), runs=(LayerRun(kind=layer, count=2),))
    with pytest.raises(InputError, match="known by their totals only"):
        model_arguments(spec, 128)
