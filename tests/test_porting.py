"""Recipes carried to another machine: what is forced, by which rule or memory, and what the fastest changes further."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from costmodels.workload.architecture import Architecture
from costmodels.workload.files import model_of_table, table_of_model
from hardware.errors import InputError
from planner.cli import app
from planner.launches.porting import Recipe, carry, port, recipe_of_launch
from planner.question import LaunchQuestion, PortQuestion, Question, question_of, request_of
from planner.report.json_reader import read_report
from planner.report.launch import launch_of
from planner.report.porting_text import recipe_in
from planner.report.target import Target

pytestmark = pytest.mark.deep

RUN = CliRunner()
FEW = ("--fix", "pp=1", "--fix", "cp=1", "--fix", "micro_batch=2", "--top", "1")
"""A search among few layouts, where what is found does not matter."""
SMALL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --global-batch-size 64 "
    "--micro-batch-size 2 --tensor-model-parallel-size 2 --sequence-parallel"
)


def recipe(world: int = 16, more: str = "") -> Recipe:
    words = tuple(f"{SMALL} {more}".split())
    return recipe_of_launch(LaunchQuestion(framework="megatron", arguments=words, world=world))


def request(cluster: str):
    return request_of(Question(model="llama3_8b", cluster=cluster, global_batch=64, seq=8192))


def asking(cluster: str, *, file: Path = Path("x"), model: str = "", **more) -> PortQuestion:
    words = {"top": 1, "time_limit_s": 5.0, "precision": "", "framework": "", "global_batch": 0} | more
    return PortQuestion(file=file, asked=Question(model=model, cluster=cluster, **words))


def test_arguments_are_recognised_as_a_preset():
    assert recipe().model.name == "llama3_8b"


@pytest.mark.parametrize(("length", "name"), [(1024, "gpt_39b"), (2048, "mlm21_gpt_39b")])
def test_a_preset_of_the_same_sizes_takes_sequences_as_long(length, name):
    words = (
        "--num-layers 48 --hidden-size 8192 --ffn-hidden-size 32768 --num-attention-heads 64 --vocab-size 51200 --bf16 "
        f"--seq-length {length} --max-position-embeddings {length} --micro-batch-size 1 --global-batch-size 128 "
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --use-distributed-optimizer"
    )
    start = recipe_of_launch(LaunchQuestion(framework="megatron", arguments=tuple(words.split()), world=32))
    assert start.model.name == name
    asked = request_of(Question(model=name, cluster="dgx-h200:8", global_batch=128, seq=length))
    carried, changes = carry(start, asked)
    assert [change.what for change in changes] == ["dp 2 -> 4"]
    assert carried.layout.first.dp == 4


def test_on_the_same_machine_nothing_is_forced():
    carried, changes = carry(recipe(), request("dgx-h100:2"))
    assert changes == ()
    assert carried.layout == recipe().layout


def test_replicas_follow_the_gpus():
    carried, changes = carry(recipe(), request("dgx-h200:1"))
    assert changes[0].what == "dp 8 -> 4"
    assert "8 GPUs instead of 16" in changes[0].why
    assert carried.layout.first.dp == 4
    assert carried.layout.first.tp == 2


def test_a_smaller_device_forces_changes_of_memory_and_says_so():
    start = recipe(world=8, more="--micro-batch-size 4")
    before, none = carry(start, request("dgx-h200:1"))
    assert (before.cost.heaviest.verdict.value == "oom", none) == (False, ())
    carried, changes = carry(start, request("dgx-a100-40:1"))
    assert changes
    assert all("usable" in change.why for change in changes)
    assert carried.cost.heaviest.verdict.value != "oom"


def test_degrees_that_do_not_cover_the_gpus_name_the_rule():
    start = recipe(world=16, more="--pipeline-model-parallel-size 4 --context-parallel-size 2")
    carried, changes = carry(start, request("dgx-h100:1"))
    assert any("(world-grid)" in change.why for change in changes)
    assert carried is None or carried.layout.gpus == 8


def test_a_port_compares_with_the_fastest():
    found = port(recipe(), asking("dgx-h100:1"))
    assert found.report.layouts
    assert found.carried.cost.step.total_s >= 0.999 * found.report.layouts[0].cost.step.total_s
    assert found.further


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "one.json"
    words = ["estimate", "llama3_8b", "dgx-h200:2", "--global-batch", "64", "--seq", "8192", "--tp", "2"]
    assert RUN.invoke(app, [*words, "--json", str(file)]).exit_code == 0
    return file


def test_a_saved_report_is_carried_by_the_command(saved, tmp_path):
    out = tmp_path / "port.json"
    words = ["search", "dgx-h100:1", "--from", str(saved), *FEW, "--json", str(out)]
    result = RUN.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "What must change, and why" in result.stdout
    told = json.loads(out.read_text())
    assert told["port"]["forced"][0]["change"] == "dp 8 -> 4"
    assert RUN.invoke(app, ["export", str(out), "--to", "megatron"]).exit_code == 0


def test_an_exported_layout_is_carried_with_its_model(saved, tmp_path):
    folder = tmp_path / "launch"
    assert RUN.invoke(app, ["export", str(saved), "--to", "json", "-o", str(folder)]).exit_code == 0
    layout = folder / "layout.json"
    found = recipe_in(asking("dgx-h100", file=layout, model="llama3_8b", seq=8192))
    assert found.global_batch == 64
    result = RUN.invoke(app, ["search", "dgx-h100:1", "--from", str(layout)])
    assert result.exit_code == 2
    assert "names neither model nor sequence" in result.output


def test_a_port_searches_as_it_is_asked():
    asked = asking("dgx-h100", fixed=("tp=4",), objective="energy", power_cap_w=500.0, thermal=True, precision="fp8")
    request = port(recipe(), asked).report.request
    assert (request.cluster.gpus, request.objective.value, request.thermal) == (16, "energy", True)
    assert (request.job.power_cap_w, request.job.precision.name) == (500.0, "fp8-ds")
    found = port(recipe(), asking("dgx-h100:1", fixed=("tp=4",), recompute="full")).report.layouts
    assert {(one.layout.first.tp, one.layout.first.recompute.granularity.value) for one in found} == {(4, "full")}
    with pytest.raises(InputError, match="--power-cap 5"):
        port(recipe(), asking("dgx-h100", power_cap_w=5.0))


def test_a_port_keeps_the_precision_of_its_file_unless_asked(saved, tmp_path):
    out = tmp_path / "fp16.json"
    words = ["search", "dgx-h100:1", "--from", str(saved), *FEW]
    assert RUN.invoke(app, [*words, "--precision", "fp16", "--json", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["request"]["precision"] == "fp16"


def test_a_report_is_carried_to_the_framework_that_is_asked(saved, tmp_path):
    out = tmp_path / "bridge.json"
    words = ["search", "dgx-h100:2", "--from", str(saved), *FEW, "--framework", "bridge", "--json", str(out)]
    assert RUN.invoke(app, words).exit_code == 0
    assert json.loads(out.read_text())["request"]["framework"] == "bridge"


def test_adapters_are_carried_or_refused_by_who_has_none(tmp_path):
    """They were dropped, and the port was one of training all parameters."""
    file, out = tmp_path / "lora.json", tmp_path / "port.json"
    words = ["estimate", "llama32_1b", "dgx-h100:1", "--global-batch", "16", "--seq", "2048", "--lora-rank", "8"]
    assert RUN.invoke(app, [*words, "--framework", "bridge", "--json", str(file)]).exit_code == 0
    carry_on = ["search", "dgx-a100:1", "--from", str(file), *FEW, "--json", str(out)]
    for more in (["--framework", "nemo"], ["--precision", "fp16"]):
        assert RUN.invoke(app, [*carry_on, *more]).exit_code == 0
        assert json.loads(out.read_text())["request"]["lora_rank"] == 8
    result = RUN.invoke(app, [*carry_on, "--framework", "megatron"])
    assert result.exit_code == 2
    assert "--lora-rank with framework megatron; allowed: bridge, nemo, deepspeed, none" in result.output


@pytest.mark.parametrize(
    ("machine", "group", "what"),
    [
        ("dgx-a100:4", 8, ["dp 16 -> 32"]),
        ("dgx-a100:1", 0, ["dp 16 -> 8"]),
        ("gb200-nvl72:3", 0, ["dp 16 -> 12", "ranks that ZeRO shards over 8 -> all"]),
    ],
)
def test_groups_that_zero_shards_over_stay_as_large(tmp_path, machine, group, what):
    file = tmp_path / "groups.json"
    words = ["estimate", "llama32_1b", "dgx-h100:2", "--global-batch", "96", "--seq", "2048", "--zero", "3"]
    words += ["--framework", "torchtitan", "--shard-group", "8", "--json", str(file)]
    assert RUN.invoke(app, words).exit_code == 0
    asked = asking(machine, file=file, fixed=("tp=1", "pp=1", "cp=1"))
    found = port(recipe_in(asked), asked)
    assert [change.what for change in found.forced] == what
    assert found.carried.layout.first.shard_group == group


def test_a_port_to_a_machine_of_a_file_can_be_explained(saved, tmp_path):
    machine = tmp_path / "mine.toml"
    machine.write_text('name = "mine"\n[[island]]\nnode = "dgx-h100"\nnodes = 1\n')
    out = tmp_path / "port.json"
    words = ["search", str(machine), "--from", str(saved), *FEW, "--json", str(out)]
    assert RUN.invoke(app, words).exit_code == 0
    assert RUN.invoke(app, ["explain", str(out)]).exit_code == 0


def test_a_running_report_is_not_searched_with_other_words(saved):
    result = RUN.invoke(app, ["search", "--from", str(saved), "--fix", "tp=4", "--objective", "energy"])
    assert result.exit_code == 2
    assert "--objective, --fix or --micro-batch with --from" in result.output


def test_a_launch_that_is_not_legal_is_refused_with_what_is_allowed_once(tmp_path):
    sizes = (
        "--num-layers 30 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
    )
    file = tmp_path / "train.sh"
    file.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--pipeline-model-parallel-size 4 --vocab-size 32000\n"
    )
    with pytest.raises(InputError) as refused:
        recipe_of_launch(LaunchQuestion(framework="megatron", file=file))
    assert str(refused.value).count("allowed:") == 1
    assert "30 layers do not divide by pp 4" in str(refused.value)


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 4.0),
        ("--optimizer muon", 8.0),
    ],
)
def test_number_formats_of_a_launch_are_carried(more, size):
    start = recipe(more=f"{more} --grad-reduce-in-bf16")
    assert (start.job.optimizer_bytes, start.job.software.gradient_bytes) == (size, 2.0)
    found = port(start, asking("dgx-h100:1", fixed=("pp=1", "cp=1"))).report
    assert (found.request.job.optimizer_bytes, found.request.job.global_batch) == (size, 64)
    words = launch_of(found.request, found.layouts[0], Target(format="megatron")).text
    assert "--grad-reduce-in-bf16" in words
    assert ("--exp-avg-dtype bf16" in words) == (size == 4.0)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("cluster", "precision"), [("dgx-a100:2", "bf16"), ("dgx-h100:2", "fp8-cs"), ("dgx-1-v100:2", "fp16")]
)
def test_a_machine_without_the_recipes_format_forces_a_wider_one(cluster, precision):
    low = recipe(more="--fp8-format hybrid --fp8-recipe tensorwise")
    assert low.precision == "fp8-cs"
    moved = port(low, asking(cluster, time_limit_s=1.0))
    told = [change for change in moved.forced if change.what.startswith("precision")]
    assert [change.what for change in told] == ([] if precision == "fp8-cs" else [f"precision fp8-cs -> {precision}"])
    assert moved.report.request.job.precision.name == precision
    assert all("does not compute in fp8" in change.why for change in told)


def test_a_share_of_the_optimizer_in_the_host_is_carried_and_read_back():
    words = "--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 0.25"
    moved = port(recipe(more=words), asking("dgx-h100:2", fixed=("pp=1", "cp=1"))).report
    assert moved.request.job.software.share_in_host == 0.25
    assert "optimizer_offload_share=0.25" in question_of(moved.request).software
    said = launch_of(moved.request, moved.layouts[0], Target(format="megatron")).text
    assert "--optimizer-offload-fraction 0.25" in said


@pytest.mark.parametrize("cluster", ["dgx-h100:2", "rtx-4090-8:2"])
def test_scales_per_block_give_way_to_one_per_tensor(cluster):
    low = recipe(more="--fp8-format hybrid --fp8-recipe mxfp8")
    moved = port(low, asking(cluster, fixed=("pp=1", "cp=1")))
    assert moved.forced[0].what == "precision mxfp8 -> fp8-cs"
    assert "does not compute in mxfp8 (a scale per 32 elements)" in moved.forced[0].why
    assert moved.report.request.job.precision.name == "fp8-cs"


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
global_batch_size = 256
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
context_parallel_degree = 2
"""
ZERO = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
SCRIPT = f"torchrun --nnodes $NODES --nproc_per_node $GPUS pretrain_gpt.py {SMALL} --micro-batch-size 4\n"
OPEN = {  # name of a file, its text, framework, model
    "titan": ("run.toml", TITAN, "torchtitan", ""),
    "script": ("run.sh", SCRIPT, "megatron", ""),
    "zero": ("ds.json", json.dumps({**ZERO, "bf16": {"enabled": True}}), "deepspeed", "llama3_8b"),
}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("launch", "machine", "assumed", "used"),
    [
        ("titan", "dgx-h100:6", 32, 48),  # 6 replicas of 8 GPUs are none of 256 sequences; 4 are the most that are
        ("titan", "gb200-nvl72:9", 32, 32),  # 36 GPUs are no multiple of 8, and replicas by 9 divide no batch
        ("script", "dgx-h100:8", 32, 64),  # 64 sequences are 16 micro-batches of 4, for 16 replicas of 2 GPUs
        ("zero", "dgx-h200:2", 8, 16),  # 256 sequences are 8 steps of 4 for 8 GPUs and for no other number
    ],
)
def test_launches_that_leave_their_gpus_open_are_carried_with_their_batch(tmp_path, launch, machine, assumed, used):
    name, text, framework, model = OPEN[launch]
    file = tmp_path / name
    file.write_text(text)
    asked = asking(machine, file=file, framework=framework, model=model, seq=8192, time_limit_s=0.5)
    start = recipe_in(asked)
    assert start.layout.gpus == assumed
    assert f"{assumed} are assumed, the nearest to" in start.assumed
    found = port(start, asked)
    assert found.forced
    layout = found.carried.layout
    assert layout.gpus == used
    assert layout.micro_batch * layout.num_microbatches * layout.first.dp == start.global_batch
    said = recipe_in(replace(asked, world=assumed))
    assert (said.layout, said.assumed) == (start.layout, "")


def test_groups_that_zero_shards_over_hold_what_they_held_beside_other_stages(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(TITAN)
    asked = asking("dgx-h100:6", file=file, framework="torchtitan", time_limit_s=0.5)
    grid = port(recipe_in(asked), asked).carried.layout.first
    assert grid.dp * grid.cp == 4
    assert grid.zero_group == 4


def test_gpus_are_asked_of_launches_alone(saved):
    for words in (
        ["dgx-h100:1", "--from", str(saved), "--world-size", "8"],
        ["--from", str(saved), "--world-size", "8"],
        ["llama3_8b", "dgx-h100:1", "--global-batch", "8", "--seq", "4096", "--world-size", "8"],
    ):
        result = RUN.invoke(app, ["search", *words])
        assert result.exit_code == 2
        assert "--world-size" in result.output


def test_a_carried_launch_whose_model_no_preset_has_can_be_exported_and_explained(tmp_path):
    words = SMALL.replace("--ffn-hidden-size 14336", "--ffn-hidden-size 13312").split()
    carried, launch = tmp_path / "r.json", tmp_path / "launch"
    asked = ["search", "dgx-h100:1", "--from", str(tmp_path / "run.sh"), "--world-size", "8", "--json", str(carried)]
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py {' '.join(words)}\n")
    assert RUN.invoke(app, [*asked, *FEW]).exit_code == 0
    exported = RUN.invoke(app, ["export", str(carried), "--to", "megatron", "-o", str(launch)])
    assert exported.exit_code == 0, exported.output
    assert "--ffn-hidden-size 13312" in (launch / "launch.sh").read_text()
    assert RUN.invoke(app, ["explain", str(carried)]).exit_code == 0
    data = json.loads(carried.read_text())
    assert read_report(carried).request.model.stated == tuple(data["request"]["model_fields"]["transformer"].items())
    data["request"]["model_fields"]["transformer"]["ffn"] = 12288  # another model than the one that was priced
    carried.write_text(json.dumps(data))
    with pytest.raises(InputError, match="has changed since"):
        read_report(carried)


def test_a_model_is_written_as_fields_only_while_they_build_it():
    spec = request("dgx-h100:1").model
    table = table_of_model(spec)
    assert model_of_table(json.loads(json.dumps(table)), "other", where="here") == spec
    assert table_of_model(replace(spec, runs=(replace(spec.runs[0], count=3),))) == {}
    uneven = Architecture(layers=2, hidden=64, vocab=100, heads=4, head_dim=16, ffn=128, blocks=((4, 128), (0, 256)))
    spec = uneven.build("uneven")
    assert model_of_table(json.loads(json.dumps(table_of_model(spec))), "x", where="here") == spec
    for wrong in ([], "4,128", [[4]], [[4, -1]], [[True, 1]]):
        with pytest.raises(InputError, match="blocks"):
            model_of_table({"transformer": {"layers": 2, "hidden": 64, "vocab": 9, "blocks": wrong}}, "x", where="y")
