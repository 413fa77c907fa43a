"""``plan check`` on launches as users have them: scripts, YAML, TOML, JSON, overrides, of every framework."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from costmodels.memory.states import parameter_bytes
from costmodels.workload.counts import parameter_count
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.cli import app
from planner.export.megatron_model import model_arguments
from planner.ingest.judge import model_of_recipe
from planner.ingest.launch_text import read_launch_text
from planner.ingest.megatron.model import model_of
from planner.ingest.options import megatron_options, read_arguments
from planner.ingest.settings_files import yaml_overrides
from planner.launches.check import check_launch, read_launch, request_of_launch
from planner.question import LaunchQuestion

RUN = CliRunner()
SIZES = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights"
)
SCRIPT = f"""#!/bin/bash
#SBATCH --nodes=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${{SLURM_NNODES:-8}}
TP=4; PP=8
CHUNKS=$((80 / PP / 2))
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_addr $MASTER_ADDR)
MODEL_ARGS="{SIZES}"
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${{TP}}   # inside a node
    --pipeline-model-parallel-size $PP
    --num-virtual-stages-per-pipeline-rank $CHUNKS
    --sequence-parallel
)
PARALLEL_ARGS+=(--use-distributed-optimizer --bf16)
torchrun ${{DISTRIBUTED_ARGS[@]}} pretrain_gpt.py $MODEL_ARGS "${{PARALLEL_ARGS[@]}}" \\
    --micro-batch-size 1 --global-batch-size 128 --data-path "$DATA" 2>&1 | tee "log-$(date).txt"
"""


def told(framework: str, *words: str, **more) -> LaunchQuestion:
    return LaunchQuestion(framework=framework, arguments=words, **more)


def rules(judged) -> set[str]:
    return {violation.rule for violation in judged.violations}


@pytest.mark.parametrize(
    ("words", "vocab"),
    [
        (("--tokenizer-type", "GPT2BPETokenizer"), 50_257),
        (("--vocab-file", "v.json", "--merge-file", "m.txt"), 50_257),
        (("--tokenizer-type", "GPT2BPETokenizer", "--vocab-size", "60000"), 60_000),
        (("--tokenizer-type", "SentencePieceTokenizer"), 32_000),
    ],
)
def test_a_tokenizer_of_known_size_sizes_the_vocabulary(words, vocab):
    sizes = ("--num-layers", "2", "--hidden-size", "256", "--num-attention-heads", "4", "--seq-length", "512")
    batch = ("--max-position-embeddings", "512", "--micro-batch-size", "1", "--global-batch-size", "8", "--bf16")
    assert read_launch(told("megatron", *sizes, *batch, *words, world=8)).model.vocab == vocab


def test_a_shell_script_is_read_as_it_would_run(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    judged = read_launch(LaunchQuestion(framework="megatron", file=script))
    assert judged.legal, judged.violations
    assert judged.world == 64
    assert judged.built == ((2, 2, 2, 2, 2),) * 8
    assert judged.layout.first.tp, judged.layout.first.dp == (4, 2)
    assert any("$DATA" in note for note in judged.notes)
    assert judged.model.layers == 80


@pytest.mark.parametrize("name", ["train.sh", "recipes/job.yaml", "ds_config.json"])
def test_a_file_that_is_not_there_is_named(name):
    with pytest.raises(InputError, match=f"there is no file {name}"):
        read_launch(told("deepspeed", name, world=8))


def test_a_script_that_unsets_connections_is_refused(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.replace("MAX_CONNECTIONS=1", "MAX_CONNECTIONS=8"))
    assert "megatron-connections" in rules(read_launch(LaunchQuestion(framework="megatron", file=script)))


def test_options_after_the_file_win(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    question = LaunchQuestion(framework="megatron", file=script, arguments=("--micro-batch-size", "3"))
    assert not read_launch(question).legal


def test_yaml_of_flags_and_of_sections():
    flags = "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --num-layers: 80\n  --bf16: true\n  --swiglu: false\n"
    assert list(yaml_overrides(flags, "x")) == ["--num-layers", "80", "--bf16"]
    schedule = 'MODEL_ARGS:\n  --step-batch-size-schedule: "0:384 200B:768"\n  --spec: a b\n'
    assert list(yaml_overrides(schedule, "x")) == ["--step-batch-size-schedule", "0:384 200B:768", "--spec", "a", "b"]
    sections = "model:\n  tensor_model_parallel_size: 2\n  recompute_modules: [core_attn, moe]\n  pp_layout: null\n"
    assert list(yaml_overrides(sections, "x")) == [
        "model.tensor_model_parallel_size=2",
        "model.recompute_modules=[core_attn,moe]",
        "model.pp_layout=null",
    ]
    assert list(yaml_overrides("a: &x {c: 1}\nb: {<<: *x, d: 2}\n", "x")) == ["a.c=1", "b.c=1", "b.d=2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x {b: *x}\n", "too deep"),
        ("a: &x [*x, *x]\n", "too (deep|long)"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 8)), "12 aliases"),
        (
            f"a: &a {list(range(900))}\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]\n",
            "too long",
        ),
    ],
)
def test_aliases_do_not_expand_without_end(text, said):
    with pytest.raises(InputError, match=said):
        list(yaml_overrides(text, "x"))


def test_without_a_number_of_gpus_only_what_is_not_known_is_told():
    """What else is wrong depends on the GPUs; the user mends the words first."""
    words = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 --bf16"
    more = "--max-position-embeddings 2048 --tensor-model-parallel-size 8 --global-batch-size 63 --foo"
    judged = read_launch(told("megatron", *words.split(), *more.split()))
    assert (judged.unknown, rules(judged)) == (("--foo",), {"megatron-unknown-option"})


@pytest.mark.parametrize(("graphs", "refused"), [("transformer_engine", True), ("full_iteration", False)])
def test_sharded_gradients_and_overlapped_experts_take_no_graphs_of_layers(graphs, refused):
    words = "--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads "
    words += "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion --bf16 --num-experts 8 --moe-grouped-gemm "
    words += "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm "
    words += (
        f"--micro-batch-size 1 --global-batch-size 8 --no-check-for-nan-in-loss-and-grad --cuda-graph-impl {graphs}"
    )
    judged = read_launch(told("megatron", *SIZES.split(), *words.split(), world=8))
    assert ("megatron-fsdp-expert-overlap-graphs" in rules(judged)) == refused
    assert judged.proposal.zero == 2
    assert judged.legal != refused, judged.violations


@pytest.mark.parametrize(
    ("framework", "words", "gradients", "optimizer"),
    [
        ("megatron", (), 4.0, 8.0),
        ("megatron", ("--grad-reduce-in-bf16",), 2.0, 8.0),
        ("megatron", ("--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16"), 4.0, 6.0),
        ("bridge", (), 2.0, 8.0),
        ("bridge", ("mixed_precision=bf16_mixed",), 4.0, 8.0),
        ("bridge", ("mixed_precision.grad_reduce_in_fp32=false",), 2.0, 8.0),
        (
            "bridge",
            (
                "optimizer.use_precision_aware_optimizer=true",
                "optimizer.exp_avg_dtype=torch.bfloat16",
                "optimizer.exp_avg_sq_dtype=bf16",
            ),
            2.0,
            4.0,
        ),
        ("nemo", ("trainer.plugins.grad_reduce_in_fp32=false",), 2.0, 8.0),
        ("nemo", ("trainer.plugins.grad_reduce_in_fp32=true",), 4.0, 8.0),
    ],
)
def test_states_are_priced_in_the_formats_that_a_launch_states(framework, words, gradients, optimizer):
    data = {"bridge": "train", "nemo": "data"}.get(framework)
    batch = [f"{data}.micro_batch_size=1", f"{data}.global_batch_size=8"]
    if framework == "megatron":
        batch = [
            *SIZES.split(),
            *["--micro-batch-size", "1", "--global-batch-size", "8", "--bf16", "--use-distributed-optimizer"],
        ]
    judged = read_launch(told(framework, *batch, *words, world=8, model="" if framework == "megatron" else "llama3_8b"))
    assert judged.legal, judged.violations
    states = parameter_bytes(request_of_launch(judged, "dgx-h100:1").job)
    assert (states.gradients, states.optimizer) == (gradients, optimizer + 4.0)  # 4: master weights


@pytest.mark.parametrize(
    ("framework", "words", "weights", "gathered"),
    [
        ("megatron", ("--fp8-format", "hybrid", "--fp8-param-gather"), 2.0, 1.0),
        ("megatron", ("--fp8-format", "hybrid"), 4.0, 2.0),
        ("megatron", (), 2.0, 2.0),
        ("bridge", ("mixed_precision=bf16_with_fp8_current_scaling_mixed",), 2.0, 1.0),
        (
            "bridge",
            ("mixed_precision=bf16_with_fp8_current_scaling_mixed", "mixed_precision.fp8_param_gather=false"),
            4.0,
            2.0,
        ),
        ("nemo", ('trainer.plugins.fp8="hybrid"', 'trainer.plugins.fp8_recipe="delayed"'), 4.0, 2.0),
    ],
)
def test_low_precision_weights_are_those_that_a_launch_asks_for(framework, words, weights, gathered):
    """Without a gather in 8 bits Transformer Engine keeps two copies in 8 bits beside the weights."""
    data = {"bridge": "train", "nemo": "data"}.get(framework)
    batch = [f"{data}.micro_batch_size=1", f"{data}.global_batch_size=8"]
    if framework == "megatron":
        batch = [
            *SIZES.split(),
            *["--micro-batch-size", "1", "--global-batch-size", "8", "--bf16", "--use-distributed-optimizer"],
        ]
    if framework == "nemo":
        batch.append('trainer.plugins.precision="bf16-mixed"')
    judged = read_launch(told(framework, *batch, *words, world=8, model="" if framework == "megatron" else "llama3_8b"))
    assert judged.legal, judged.violations
    job = request_of_launch(judged, "dgx-h100:1").job
    assert (parameter_bytes(job).weights, job.precision.gather_bytes) == (weights, gathered)


def test_the_example_launch_is_legal_and_keeps_its_experts_over_both_nodes():
    file = Path(__file__).parents[1] / "examples" / "launches" / "qwen3-30b-16-h100.sh"
    judged = read_launch(LaunchQuestion(framework="bridge", file=file))
    assert judged.legal, judged.violations
    assert (judged.world, judged.layout.first.ep, judged.model.name) == (16, 16, "qwen3_30b_a3b")
    assert judged.gradient_bytes == 2.0


def test_recipes_name_models():
    assert model_of_recipe("llama3_8b_pretrain_config").name == "llama3_8b"
    assert model_of_recipe("qwen3.qwen3_235b_a22b_64gpu_h100_bf16").layers == 94
    assert model_of_recipe("nothing_known") is None


def test_torchtitan_toml_of_0_2(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "70B"\n[job]\ndump_folder = "x"\n'
        "[training]\nlocal_batch_size = 8\nseq_len = 8192\n"
        "[parallelism]\ntensor_parallel_degree = 8\npipeline_parallel_degree = 4\n"
        "pipeline_parallel_microbatch_size = 1\n"
        'pipeline_parallel_schedule = "1F1B"\n[activation_checkpoint]\nmode = "selective"\n'
    )
    judged = read_launch(LaunchQuestion(framework="torchtitan", file=file, world=64))
    assert judged.legal, judged.violations
    assert judged.model.name == "llama3_70b"
    assert judged.built == ((20,), (21,), (20,), (19,))


def test_torchtitan_options_are_judged_by_rules_not_by_the_first_mistake():
    judged = read_launch(
        told("torchtitan", "--module", "llama3", "--config", "llama3_8b", "--parallelism.tensor_parallel_degree", "16",
             world=16)
    )  # fmt: skip
    assert "kv-heads" in "".join(rules(judged)), judged.violations


def test_deepspeed_json_with_degrees(tmp_path):
    file = tmp_path / "ds.json"
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    file.write_text(json.dumps({**config, "bf16": {"enabled": True}, "trian_steps": 3}))
    judged = read_launch(LaunchQuestion(framework="deepspeed", file=file, world=16, model="llama3_8b"))
    assert judged.legal
    assert judged.layout.first.zero, judged.layout.num_microbatches == (3, 4)
    assert judged.unknown == ("trian_steps",)
    words = ("--pipeline-model-parallel-size", "4", "--seq-length", "4096")
    wrong = LaunchQuestion(framework="deepspeed", file=file, world=16, model="llama3_8b", arguments=words)
    assert "deepspeed-zero-pp" in rules(read_launch(wrong))


def test_a_batch_that_does_not_multiply_out_names_the_numbers(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 60, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}')
    judged = read_launch(LaunchQuestion(framework="deepspeed", file=file, world=16, model="llama3_8b"))
    assert not judged.legal
    assert "60" in judged.violations[0].message


@pytest.mark.parametrize("framework", ["megatron", "bridge", "nemo", "torchtitan"])
def test_json_of_another_framework_is_refused(framework, tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"pp_deg": 2, "tp_sizes_enc": "2,2"}', encoding="utf-8")
    with pytest.raises(InputError, match="does not read; allowed: a launch script"):
        read_launch(told(framework, file=file, world=8, model="llama3_8b"))


def test_galvatron_json(tmp_path):
    file = tmp_path / "g.json"
    ones = ",".join(["1"] * 32)
    config = {"pp_deg": 2, "tp_sizes_enc": ones, "tp_consecutive_flags": ones, "dp_types_enc": ones}
    file.write_text(json.dumps({**config, "global_bsz": 32, "chunks": 4, "pp_division": "15,17"}))
    judged = read_launch(LaunchQuestion(framework="galvatron", file=file, world=8, model="llama3_8b"))
    assert judged.legal, judged.violations
    assert judged.built == ((15,), (17,))


def test_the_price_and_what_is_faster():
    grid = ("--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size", "4", "--sequence-parallel")
    batch = ("--micro-batch-size", "1", "--global-batch-size", "128", "--bf16", "--use-distributed-optimizer")
    words = (*SIZES.split(), *grid, *batch)
    report = check_launch(told("megatron", *words, world=32, cluster="dgx-h100"))
    assert report.request.cluster.gpus == 32
    assert report.ranked.cost.step.total_s > 0
    assert report.faster
    assert all(one.ranked.cost.step.total_s < report.ranked.cost.step.total_s for one in report.faster)


def test_the_json_of_an_illegal_launch():
    words = SIZES.replace("--num-layers 80", "--num-layers 30").split()
    words += ["--micro-batch-size", "1", "--pipeline-model-parallel-size", "4", "--bf16"]
    result = RUN.invoke(app, ["check", "--world-size", "8", "--cluster", "dgx-h100", "--json", "-", "--", *words])
    assert result.exit_code == 3, result.output
    answer = json.loads(result.stdout)
    assert answer["legal"] is False
    assert answer["layers_per_stage"] is None
    assert answer["layers_counted_unchecked"] == 28
    assert answer["grids"]["attention"] == {"tp": 1, "cp": 1, "dp": 2, "pp": 4}
    assert any(near["layers_per_stage"] == [[8], [8], [7], [7]] for near in answer["nearest"])
    assert all(near["layout"]["step_time_s"] > 0 for near in answer["nearest"])


@pytest.mark.parametrize("text", ["A=$((", "x='", 'x="', "A=(1", "A=$(ls"])
def test_broken_scripts_are_named(text, tmp_path):
    file = tmp_path / "x.sh"
    file.write_text(text)
    with pytest.raises(InputError):
        read_launch_text(file, ())


def test_doubling_variables_do_not_fill_the_memory(tmp_path):
    file = tmp_path / "x.sh"
    file.write_text("A=aaaaaaaaaa\n" + "A=$A$A\n" * 60 + "python x.py $A\n")
    with pytest.raises(InputError, match="grows beyond"):
        read_launch_text(file, ())


def test_a_script_inside_bash_c(tmp_path):
    file = tmp_path / "x.sh"
    file.write_text('srun --ntasks=8 bash -c "python -u pretrain_gpt.py --num-layers 4 --bf16"\n')
    assert read_launch_text(file, ()).arguments == ("--num-layers", "4", "--bf16")


@pytest.mark.parametrize("name", ["llama3_70b", "qwen3_235b_a22b", "deepseek_v3", "mixtral_8x22b", "gpt_oss_20b"])
def test_arguments_build_the_model_that_they_came_from(name):
    spec = model(name)
    words = model_arguments(spec, 1024)
    back = parameter_count(model_of(read_arguments(words, megatron_options("0.19"))))
    assert back.total == pytest.approx(parameter_count(spec).total, rel=1e-6)
    assert back.active == pytest.approx(parameter_count(spec).active, rel=1e-6)


ABSURD = "1" + "0" * 5000
DEEP = "1000000000"
LISTS = ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc")


@pytest.mark.parametrize(
    ("framework", "name", "text"),
    [
        ("torchtitan", "t.toml", f"[training]\nseq_len = {ABSURD}"),
        ("bridge", "b.yaml", f"model:\n  num_layers: {ABSURD}"),
        ("bridge", "b.yaml", "model:\n  num_layers: 2026-02-31"),
        ("megatron", "t.sh", 'A="' + '"$(' * 3000),
        ("megatron", "t.sh", f'A={"a" * 90_000}\nB="{"$A" * 9000}"\ntorchrun a.py'),
    ],
)
def test_absurd_files_are_refused_at_once(framework, name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        read_launch(LaunchQuestion(framework=framework, file=tmp_path / name, world=8, model="llama3_8b"))


@pytest.mark.parametrize(
    ("framework", "name", "text"),
    [
        (
            "galvatron",
            "g.json",
            json.dumps({"pp_deg": int(DEEP), "global_bsz": 8, "chunks": 1, **dict.fromkeys(LISTS, "²")}),
        ),
        ("deepspeed", "d.json", json.dumps({"train_batch_size": 64, "pipeline": {"stages": int(DEEP)}})),
        ("torchtitan", "t.toml", f"[parallelism]\npipeline_parallel_degree = {DEEP}\n"),
    ],
)
def test_absurdly_deep_pipelines_are_judged_at_once(framework, name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert not read_launch(LaunchQuestion(framework=framework, file=tmp_path / name, world=8, model="llama3_8b")).legal


def test_arithmetic_over_long_values_stays_unresolved(tmp_path):
    (tmp_path / "t.sh").write_text(f"A={'1' * 90_000}\ntorchrun a.py --num-layers $(({'A+' * 9000}1))\n")
    assert read_launch_text(tmp_path / "t.sh", ()).unresolved
