"""Launches of Megatron-core are priced with the software that they say, and exports say the software of their plan."""

from dataclasses import replace

import pytest
from launch_words import priced_launch

from costmodels.job import Dispatcher, Software, TrainingJob
from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.software_words import STATED, said_switches
from costmodels.workload.presets import model
from planner.export.bridge import export_bridge
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.megatron import export_megatron
from planner.export.megatron_model import model_arguments
from planner.export.nemo import export_nemo
from planner.launches.check import job_of_launch, read_launch
from planner.launches.porting import port, recipe_of_launch
from planner.planning import estimate, over_islands
from planner.question import LaunchQuestion, PortQuestion, Question, question_of, request_of

DENSE = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 64 "
    "--bf16 --swiglu --vocab-size 128256 --disable-bias-linear --use-distributed-optimizer"
)
NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0"
MIXTURE = f"{DENSE} --num-experts 8 --moe-router-topk 2"


def tools_of(words: str, framework: str = "megatron", world: int = 32, name: str = "") -> Software:
    judged = read_launch(LaunchQuestion(framework=framework, arguments=tuple(words.split()), world=world, model=name))
    assert judged.proposal is not None
    return job_of_launch(judged, judged.proposal).software


AWAY = "--fine-grained-activation-offloading"


def test_a_launch_is_priced_as_megatron_core_runs_it_without_flags():
    """Defaults of DistributedDataParallelConfig, TransformerConfig and arguments.py of core 0.19."""
    tools = tools_of(MIXTURE)
    overlaps = (tools.grad_overlap, tools.param_overlap, tools.tp_overlap, tools.expert_overlap)
    assert (*overlaps, tools.grouped_gemm) == (False,) * 5
    assert (tools.p2p_overlap, tools.dropout, tools.flash_attention) == (True, True, True)
    assert (tools.cp_comm, tools.dispatcher, tools.attention_kernel) == ("p2p", Dispatcher.ALLGATHER, "cudnn")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--overlap-grad-reduce", "grad_overlap", True),
        ("--overlap-grad-reduce --overlap-param-gather", "param_overlap", True),
        ("--tp-comm-overlap", "tp_overlap", True),
        ("--no-overlap-p2p-communication", "p2p_overlap", False),
        ("--cp-comm-type a2a", "cp_comm", "a2a"),
        ("--cp-comm-type all_gather", "cp_comm", "allgather"),
        ("--cp-comm-type allgather", "cp_comm", "allgather"),
        ("--attention-backend flash", "attention_kernel", "fa2"),
        ("--attention-backend unfused", "flash_attention", False),
        ("--transformer-impl local", "flash_attention", False),
        (NO_DROPOUT, "dropout", False),
        ("--hidden-dropout 0", "dropout", True),
        ("--moe-grouped-gemm", "grouped_gemm", True),
        ("--moe-token-dispatcher-type alltoall", "dispatcher", Dispatcher.ALLTOALL),
        ("--moe-token-dispatcher-type flex", "dispatcher", Dispatcher.DEEPEP),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "dispatcher", Dispatcher.HYBRIDEP),
        ("--moe-expert-capacity-factor 1.5", "capacity_factor", 1.5),
        ("--overlap-moe-expert-parallel-comm", "expert_overlap", True),
        (f"{AWAY} --offload-modules core_attn attn_proj", "offload_modules", ("core_attn", "attn_proj")),
        (f"{AWAY} --offload-modules moe_act --activation-offload-fraction 0.5", "offload_modules_share", 0.5),
    ],
)
def test_a_flag_states_its_switch(words, field, value):
    assert getattr(tools_of(f"{MIXTURE} {words}"), field) == value


def test_a_launch_costs_what_the_same_software_is_estimated_at():
    def step_s(more: str) -> float:
        run = f"--micro-batch-size 2 --global-batch-size 64 --bf16 --use-distributed-optimizer {NO_DROPOUT} {more}"
        words = (*model_arguments(model("llama32_1b"), 4096), *run.split())
        report = priced_launch(LaunchQuestion(framework="megatron", arguments=words, cluster="l40s-8:4"))
        assert report.ranked is not None
        late = any("behind the backward passes" in note for note in report.judged.notes)
        assert late is ("--overlap-grad-reduce" not in more)
        return report.ranked.cost.step.total_s

    def estimated_s(*stated: str) -> float:
        asked = request_of(Question(model="llama32_1b", cluster="l40s-8:4", global_batch=64, seq=4096, software=stated))
        run = StrategyRun(strategy=Strategy(dp=32, zero=1), count=16)
        layout = Layout(stages=(Stage(layers_per_chunk=(16,), strategies=(run,)),), micro_batch=2, num_microbatches=1)
        return estimate(asked, over_islands(asked, layout)).cost.step.total_s

    together, late = step_s("--overlap-grad-reduce --overlap-param-gather"), step_s("")
    assert late > 1.3 * together
    assert together == pytest.approx(estimated_s(), rel=1e-3)
    assert late == pytest.approx(estimated_s("grad_overlap=off", "param_overlap=off"), rel=1e-3)


def test_what_has_no_price_is_remarked():
    graphs = "--cuda-graph-impl transformer_engine --cuda-graph-modules mlp"
    words = f"{DENSE} {graphs} --context-parallel-size 4 --cp-comm-type a2a+p2p"
    notes = read_launch(LaunchQuestion(framework="megatron", arguments=tuple(words.split()), world=32)).notes
    assert "priced otherwise than stated: --cp-comm-type a2a+p2p as p2p, --cuda-graph-impl" in notes


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--cuda-graph-impl full_iteration", {"cuda_graphs": True}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"cuda_graphs": True}),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", {"cuda_graphs": True}),
        ("--cuda-graph-impl none", {}),
        ("", {}),
    ],
)
def test_what_graphs_capture_is_priced(words, fields):
    found = read_launch(LaunchQuestion(framework="megatron", arguments=tuple(f"{DENSE} {words}".split()), world=32))
    graphs = {name: value for name, value in found.stated.fields.items() if name == "cuda_graphs"}
    assert graphs == fields
    assert not any("priced otherwise" in note for note in found.notes)


def test_recipes_with_whole_graphs_take_what_was_measured():
    """Qwen3 30B on eight GB200 in mxfp8, 927.7 TFLOP/s a GPU by Megatron-Bridge's verification cards of 2026: 6.50 s.

    Its host was priced to start every kernel, 10.8 s.
    """
    recipe = ("--recipe", "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config")
    report = priced_launch(LaunchQuestion(framework="bridge", arguments=recipe, cluster="gb200-nvl72"))
    assert report.ranked.cost.step.total_s == pytest.approx(6.50, rel=0.1)
    partly = read_launch(
        LaunchQuestion(framework="bridge", arguments=("--recipe", "deepseek_v3_pretrain_256gpu_gb200_bf16_config"))
    )
    assert partly.stated.fields.get("graphed_experts", True) == (not partly.stated.fields.get("cuda_graphs", False))


# ------------------------------------------------------------------------------------------------ there and back
GRID = Strategy(tp=2, cp=2, dp=2, ep=4, etp=1, sequence_parallel=True, zero=1)


def planned(name: str, framework: str, **changes) -> Planned:
    spec = model(name)
    grid = GRID if name == "mixtral_8x7b" else replace(GRID, ep=1)
    stage = Stage(layers_per_chunk=(4, 4), strategies=(StrategyRun(strategy=grid, count=8),))
    layout = Layout(stages=(stage,) * 4, micro_batch=1, num_microbatches=8, schedule=Schedule.INTERLEAVED)
    task = TrainingJob(
        global_batch=16,
        seq=4096,
        precision=precision("bf16", framework=framework),
        software=replace(software(framework), **changes),
    )
    return Planned(model=spec, job=task, layout=layout, site=Site(hosts=("a", "b", "c", "d"), gpus_per_node=8))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grad_overlap": False, "param_overlap": False},
        {"param_overlap": False},
        {"tp_overlap": True},
        {"p2p_overlap": False},
        {"cp_comm": "a2a"},
        {"cp_comm": "allgather"},
        {"dropout": True},
        {"attention_kernel": "fa2"},
        {"flash_attention": False},
        {"grouped_gemm": False},
        {"dispatcher": Dispatcher.ALLGATHER},
        {"dispatcher": Dispatcher.DEEPEP},
        {"dispatcher": Dispatcher.HYBRIDEP},
        {"capacity_factor": 1.5},
        {"expert_overlap": True},
        {"offload_modules": ("core_attn", "expert_fc1"), "offload_modules_share": 0.5},
    ],
)
def test_an_export_says_the_software_of_its_plan(changes):
    plan = planned("mixtral_8x7b", "megatron", **changes)
    read = tools_of(" ".join(export_megatron(plan).arguments))
    assert said_switches(read, plan.job.software) == ()


@pytest.mark.parametrize(
    ("framework", "preset", "export"),
    [("bridge", "megatron-bridge", export_bridge), ("nemo", "nemo-2-bf16", export_nemo)],
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grad_overlap": False, "param_overlap": False},
        {"tp_overlap": True},
        {"tp_overlap": False},
        {"p2p_overlap": False},
        {"cp_comm": "allgather"},
        {"dropout": True},
    ],
)
def test_overrides_say_the_software_of_their_plan(framework, preset, export, changes):
    plan = planned("llama3_8b", preset, **changes)
    read = tools_of(" ".join(export(plan).arguments), framework, name="llama3_8b")
    assert [word for word in said_switches(read, plan.job.software) if not word.startswith("fused_loss")] == []


def test_communication_overlap_of_a_recipe_is_read():
    words = "comm_overlap.overlap_grad_reduce=false comm_overlap.tp_comm_overlap=true model.cp_comm_type=a2a"
    tools = tools_of(words, "bridge", name="llama3_8b")
    assert (tools.grad_overlap, tools.param_overlap, tools.tp_overlap, tools.cp_comm) == (False, True, True, "a2a")


# ------------------------------------------------------------------------------------------------ carried on
def test_a_search_from_a_launch_has_its_software_and_says_it():
    launch = LaunchQuestion(framework="megatron", arguments=tuple(f"{DENSE} {NO_DROPOUT}".split()), world=32)
    start = recipe_of_launch(launch)
    assert start.software == ("grad_overlap=off", "param_overlap=off")
    assert {word.partition("=")[0] for word in start.software} <= set(STATED)

    def request(*stated: str):
        asked = Question(
            model="", cluster="l40s-8:4", global_batch=0, framework="", precision="", top=1, time_limit_s=1.0,
            software=stated, fixed=("tp=1", "pp=1", "cp=1", "micro_batch=2"), recompute="none",
        )  # fmt: skip
        return port(start, PortQuestion(file=None, asked=asked)).report.request

    found = request()
    assert (found.job.software.grad_overlap, found.job.software.param_overlap) == (False, False)
    assert question_of(found).software == start.software
    assert said_switches(request_of(question_of(found)).job.software, found.job.software) == ()
    assert request("grad_overlap=on").job.software.grad_overlap
