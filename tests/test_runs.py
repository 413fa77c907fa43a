"""What a row of measured runs asks of the cost models where it leaves something out."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE
from costmodels.pipeline.schedules import Schedule
from costmodels.software import RunText
from costmodels.workload.counts import parameter_count
from hardware.errors import InputError
from planner.evidence import source_facts as source_facts_module
from planner.evidence.measured import parse_run
from planner.evidence.runs import question_of, stated_split
from planner.evidence.validate import predict

ROW = {
    "id": "one",
    "framework": "nemo-2",
    "model": "nemotron4_340b",
    "hardware": "H100",
    "gpus_per_node": "8",
    "n_gpus": "256",
    "precision": "bf16",
    "seq_len": "4096",
    "global_batch_size": "64",
    "micro_batch_size": "1",
    "tp": "8",
    "pp": "8",
    "dp": "4",
}


@pytest.mark.parametrize("words", ["gpt3_175b, one layer", "megatron-22B, ONE transformer layer"])
def test_the_time_of_a_layer_is_no_step(words):
    with pytest.raises(InputError, match="a single layer, not of a step"):
        question_of(parse_run(ROW | {"model": words, "layers": "1"}))


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "adapters_used"),
    [
        (1, 1, 64, 1.0),  # one group over all nodes
        (2, 1, 64, 1.75),  # two: the second meets the first on one of four adapters
        (2, 2, 8, 1.75),
        (1, 8, 8, 2.2),  # groups inside nodes: eight pairs of neighbours, more than the node lets through
    ],
)
def test_each_group_takes_one_omni_path_adapter(tp, pp, dp, adapters_used):
    grid = {"n_gpus": str(tp * pp * dp), "global_batch_size": "64", "tp": str(tp), "pp": str(pp), "dp": str(dp)}
    stated = {"interconnect": "NVLink, 4 Omni-Path links/node", "scaleout_gbps_per_node": "400"}
    node = question_of(parse_run(ROW | {"model": "llama3_8b"} | grid | stated)).cluster.islands[0].node
    reached = 0.5 * adapters_used if adapters_used < 2.2 else 0.28 * 4
    assert node.nics.node_bytes_per_s == pytest.approx(reached * 12.5e9)


@pytest.mark.parametrize(
    ("vocab", "layers"),
    [
        (32000, (4, 4, 4, 4, 4, 4, 4, 4)),
        (64000, (4, 4, 4, 4, 4, 4, 5, 3)),
        (128000, (4, 4, 4, 4, 4, 5, 5, 2)),
        (256000, (4, 4, 4, 5, 5, 5, 5, 0)),
    ],
)
def test_layers_redistributed_for_the_logits(vocab, layers):
    """Last stages as github.com/sail-sg/VocabularyParallelism runs them (artifact/exp_one_host.csv): 4, 3, 2, 0."""
    shape = {"layers": "32", "hidden_size": "3072", "ffn_hidden_size": "12288", "heads": "24", "vocab": str(vocab)}
    grid = {"n_gpus": "8", "seq_len": "4096", "global_batch_size": "128", "tp": "1", "pp": "8", "dp": "1"}
    named = {"framework": "Megatron-LM fork", "model": "GPT-4B", "schedule": "1F1B + layer redistribution"}
    layout = question_of(parse_run(ROW | shape | grid | named)).layout
    assert tuple(sum(stage.layers_per_chunk) for stage in layout.stages) == layers


@pytest.mark.parametrize(
    ("bounds", "layers"),
    [
        ("[0, 15, 30]", (13, 11)),
        ("[0, 6, 9, 12, 15, 18, 21, 24, 30]", (4, 3, 3, 3, 3, 3, 3, 2)),
        ("[0, 16, 31]", (13, 11)),
        ("[0, 12, 24]", (12, 12)),
        ("[0, 12, 40]", ()),
    ],
    ids=["2 before, 4 behind", "eight stages", "with a cast before", "layers alone", "too many modules"],
)
def test_layers_among_the_modules_of_a_pipeline(bounds, layers):
    """GPT2ModelPipe: embedding and a transpose before 24 layers; transpose, norm, head and a cast behind them."""
    assert stated_split(f"1F1B, layer split {bounds}", bounds.count(","), 24) == layers


@pytest.mark.parametrize(
    ("stated", "schedule", "chunks"),
    [
        ({}, Schedule.INTERLEAVED, 6),
        ({"vpp": "12"}, Schedule.INTERLEAVED, 12),
        ({"vpp": "1"}, Schedule.ONE_F_ONE_B, 1),
        ({"framework": "megatron-lm"}, Schedule.ONE_F_ONE_B, 1),
        ({"global_batch_size": "80"}, Schedule.ONE_F_ONE_B, 1),
    ],
    ids=["as the recipes", "stated", "stated as none", "another framework", "micro-batches do not fit"],
)
def test_virtual_stages_that_a_table_leaves_out_are_the_recipes(stated, schedule, chunks):
    layout = question_of(parse_run(ROW | stated)).layout
    assert layout.schedule is schedule
    assert len(layout.stages[0].layers_per_chunk) == chunks


@pytest.mark.parametrize(("tp", "vocab"), [("1", 50257), ("8", 50256)])
def test_facts_of_a_source_stand_over_what_its_table_says(tp, vocab):
    """Flags of a simulator's configuration are none of the run; its vocabulary is divided without padding."""
    widths = {"model": "GPT L24 h2048 a16", "layers": "24", "hidden_size": "2048", "heads": "16"}
    grid = {"n_gpus": "8", "tp": tp, "pp": "1", "dp": str(8 // int(tp)), "recompute": "full"}
    single, multi = (
        question_of(
            parse_run(ROW | widths | grid | {"source": f"github:VIA-Research/vTrain:data/ground_truth_{name}.csv"})
        )
        for name in ("single", "multi")
    )
    chosen = [asked.layout.stages[0].strategies[0].strategy.recompute for asked in (single, multi)]
    assert chosen == [NO_RECOMPUTE, FULL_RECOMPUTE]
    assert (single.model.vocab, single.model.vocab_multiple) == (vocab, 1)
    assert (multi.model.vocab, multi.model.vocab_multiple) == (51200, 128)


@pytest.mark.parametrize(
    ("stated", "group"),
    [
        ({"zero": "1", "notes": "zero as stated: 1 (shard over 8 GPUs in node)"}, 8),
        ({"zero": "1", "notes": "zero as stated: 1 (shard over all DP)"}, 0),
        ({"zero": "3", "notes": "HFU 0.68; zero as stated: 3 (hybrid shard within node)"}, 8),
        ({"zero": "3", "notes": "zero as stated: 3; shard over 8 nodes"}, 0),
        ({"fsdp": "1 (group 4)"}, 4),
        ({"fsdp": "1"}, 0),
    ],
)
def test_ranks_that_a_remark_says_states_are_sharded_over(stated, group):
    grid = {"model": "llama3_8b", "n_gpus": "64", "tp": "1", "pp": "1", "dp": "64"}
    strategy = question_of(parse_run(ROW | grid | stated)).layout.stages[0].strategies[0].strategy
    assert strategy.shard_group == group


def test_hybrid_sharding_of_a_source_reduces_over_nodes_what_it_gathers_inside_them():
    """FSDP=1 between nodes and 8 inside them in the launcher of the release; everything but products runs again."""
    grid = {"model": "gpt3_5b", "n_gpus": "64", "tp": "1", "pp": "1", "dp": "64", "fsdp": "1"}
    source = {"framework": "paxml (JAX)", "source": "NVIDIA/dgxc-benchmarking paxml/README_5b.md"}
    strategy = question_of(parse_run(ROW | grid | source)).layout.stages[0].strategies[0].strategy
    assert strategy.shard_group == 8
    assert set(strategy.recompute.modules) == {"core_attn", "layernorm", "mlp_act"}


@pytest.mark.parametrize(
    ("framework", "pp", "vpp", "stage"),
    [
        ("torchtitan", 4, 1, 2),
        ("torchtitan", 4, 2, 2),
        ("torchtitan", 4, 4, 3),
        ("torchtitan", 1, 1, 3),
        ("FSDP", 4, 1, 3),
    ],
)
def test_fsdp_keeps_weights_gathered_in_torchtitans_pipelines_of_up_to_three_chunks(framework, pp, vpp, stage):
    """As many as PyTorch's schedules keep (``max_active_stages``)."""
    grid = {"pp": str(pp), "vpp": str(vpp), "tp": "1", "dp": str(8 // pp), "n_gpus": "8"}
    stated = {"framework": framework, "model": "llama3_8b", "zero": "3"}
    assert question_of(parse_run(ROW | stated | grid)).layout.stages[0].strategies[0].strategy.zero == stage


@pytest.mark.parametrize(
    ("framework", "grid", "precision", "stage"),
    [
        ("Megatron-DeepSpeed 0.12", {"pp": "2", "dp": "4"}, "bf16", 1),  # BF16_Optimizer shards what Adam holds
        ("Megatron-DeepSpeed 0.12", {"pp": "1", "dp": "8"}, "bf16", 1),
        ("Megatron-DeepSpeed 0.12", {"pp": "2", "dp": "4"}, "fp16", 0),
        ("Megatron-LM", {"pp": "2", "dp": "4"}, "bf16", 0),
    ],
)
def test_deepspeed_shards_the_optimizer_of_bf16_without_zero(framework, grid, precision, stage):
    stated = {
        "framework": framework,
        "model": "llama3_8b",
        "n_gpus": "8",
        "tp": "1",
        "zero": "0",
        "precision": precision,
    }
    assert question_of(parse_run(ROW | stated | grid)).layout.stages[0].strategies[0].strategy.zero == stage


@pytest.mark.parametrize("words", ["activation offload ratio 0.5; Table 8 row", "GB=1e9; activation offload alpha=0.5"])
def test_a_share_of_activations_offloaded_is_so_many_layers_of_a_stage(words):
    stated = {"framework": "Megatron-Kwai", "model": "llama3_8b", "layers": "32", "n_gpus": "8", "tp": "1", "pp": "4"}
    asked = question_of(parse_run(ROW | stated | {"dp": "2", "notes": words}))
    assert asked.job.software.activation_offload_layers == 4


@pytest.mark.parametrize(("hardware", "gemm"), [("MI355X", "fp8"), ("B200", "fp4")])
def test_the_format_that_a_table_guesses_gives_way_to_the_one_that_is_known(hardware, gemm):
    source = f"github:mlcommons/training_results_v5.1:AMD/results/{hardware}_EPYC_9575F_pytorch/llama31_8b/"
    grid = {"model": "llama3_8b", "n_gpus": "8", "tp": "1", "pp": "1", "dp": "8", "dtype": "mxfp4", "precision": ""}
    asked = question_of(parse_run(ROW | grid | {"hardware": hardware, "source": source}))
    assert asked.job.precision.gemm == gemm


@pytest.mark.parametrize("words", ["layers per stage: [5, 0] of [16, 16]", "layers per stage [5,0] of [16,16]"])
def test_layers_that_recompute_are_read_with_and_without_a_colon(words):
    grid = {"framework": "Mist", "model": "llama3_8b", "n_gpus": "2", "tp": "1", "pp": "2", "dp": "1"}
    first, last = question_of(parse_run(ROW | grid | {"recompute": "partial", "notes": words})).layout.stages
    assert [(run.count, run.strategy.recompute) for run in first.strategies] == [
        (5, FULL_RECOMPUTE),
        (11, NO_RECOMPUTE),
    ]
    assert [(run.count, run.strategy.recompute) for run in last.strategies] == [(16, NO_RECOMPUTE)]


def test_a_model_that_a_launch_file_shows_stands_over_the_one_it_is_named_after():
    """FlagPerf's Qwen1.5-MoE has 8 experts; its measured peak (66 GiB) is that of them, not of 60 (145 GiB)."""
    source = "github:FlagOpen/FlagPerf:training/nvidia/qwen1.5_MoE-megatron/README.md"
    named = {"model": "Qwen1.5-MoE-14B-A2.7B", "framework": "Pai-Megatron-Patch (Megatron-LM 240405)", "source": source}
    grid = {"n_gpus": "8", "tp": "1", "pp": "2", "dp": "4", "hardware": "A800-SXM-80GB", "seq_len": "8192"}
    run = parse_run(ROW | named | grid | {"peak_mem_gb": "66.0", "step_time_s": "70.4"})
    kind = question_of(run).model.kinds()[0]
    assert (kind.ffn.experts, kind.ffn.top_k) == (8, 2)
    assert predict(run).peak_mem_bytes / 2**30 == pytest.approx(66.0, rel=0.05)


def test_columns_that_facts_replace_are_those_of_tables():
    known = {field.name for field in fields(RunText)} | {
        "layers", "hidden_size", "ffn_hidden_size", "heads", "vocab", "experts", "topk", "recompute", "dtype", "zero",
        "distributed_optimizer",
    }  # fmt: skip
    with Path(source_facts_module.__file__).with_suffix(".toml").open("rb") as file:
        facts = tomllib.load(file)["facts"]
    assert all(set(fact.get("columns", {})) <= known for fact in facts)
    assert all(
        fact["source"] and set(fact) <= {"pattern", "columns", "vocab", "shard_group", "source"} for fact in facts
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "billions"), [(22, 2304, 1.5), (30, 4096, 6.2), (46, 5120, 14.6), (62, 6144, 28.3)]
)
def test_a_vocabulary_that_no_table_states_gives_models_the_size_in_their_name(layers, hidden, billions):
    """Zero Bubble (arXiv 2401.10241), table 3; GPT-2's words would make 14.7 and 28.4 of the last two."""
    run = ROW | {
        "source": "Zero Bubble Pipeline Parallelism (arXiv 2401.10241) Tables 3-4",
        "framework": "Megatron-LM fork (sail-sg)",
        "model": f"GPT-{billions}B",
        "layers": str(layers),
        "hidden_size": str(hidden),
        "ffn_hidden_size": str(4 * hidden),
        "heads": str(hidden // 128),
        "hardware": "A100-SXM-80GB",
        "seq_len": "1024",
        "tp": "1",
        "dp": "32",
    }
    model = question_of(parse_run(run)).model
    assert not any("vocabulary" in note for note in model.notes)
    assert round(parameter_count(model).total / 1e9, 1) == billions
