"""Console commands and YAML files of trainers on DeepSpeed, as their users write them, and the GPUs that they start."""

import json

import pytest

from hardware.errors import InputError
from planner.choices import Loss
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.trainers.words import trainer_table
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
ZERO3 = {**AUTO, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}
SWIFT = """NPROC_PER_NODE=4 \\
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
swift sft --model Qwen/Qwen2.5-7B --torch_dtype bfloat16 --max_length 16384 --deepspeed zero3 --attn_impl flash_attn"""
FACTORY = """### model
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json  # choices
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
resume_from_checkpoint: null
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: a/b
sequence_len: 65_536
context_parallel_size: 8
adapter:
plugins:
  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin
bf16: auto
gradient_checkpointing: true
deepspeed: deepspeed_configs/zero3.json
"""


def checked(tmp_path, text, name="launch.sh", **more):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_launch(LaunchQuestion(framework="deepspeed", file=file, **more))


def config(tmp_path, name, told=ZERO3):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told))


def test_a_script_of_swift_is_read_with_its_own_configuration_model_and_defaults(tmp_path):
    """ms-swift ``trainers/arguments.py``: micro-batch 1, accumulated to 16 sequences, activations recomputed."""
    judged = checked(tmp_path, SWIFT)
    assert judged.legal, judged.violations
    assert (judged.world, judged.model.name, judged.precision) == (4, "qwen25_7b", "bf16")
    assert (judged.layout.first.zero, str(judged.layout.first.recompute)) == (3, "full")
    assert (judged.layout.micro_batch, judged.layout.num_microbatches, judged.proposal.seq) == (1, 4, 16384)
    liger = checked(tmp_path, f"{SWIFT} --use_liger_kernel true --gradient_accumulation_steps 2")
    assert (liger.loss, liger.layout.num_microbatches) == (Loss.LIGER, 2)


@pytest.mark.parametrize(
    ("words", "precision", "offloads"),
    [
        ("--deepspeed zero2_offload", "bf16", (True, False)),
        ("--deepspeed zero3_offload --torch_dtype float16", "fp16", (False, True)),
        ("--deepspeed zero1 --torch_dtype float32", "fp32", (False, False)),
    ],
)
def test_configurations_of_swift_by_name(tmp_path, words, precision, offloads):
    judged = checked(tmp_path, f"NPROC_PER_NODE=8 swift pt --model Qwen/Qwen2.5-7B --max_length 2048 {words}")
    assert (judged.precision, judged.optimizer_offload, judged.state_offload) == (precision, *offloads)


def test_a_yaml_of_llama_factory_names_configuration_and_model(tmp_path):
    """Its paths start at the top of a checkout; activations are recomputed unless that is disabled."""
    config(tmp_path, "examples/deepspeed/ds_z3_config.json")
    judged = checked(tmp_path, FACTORY, name="examples/train_full/x.yaml", world=8)
    assert judged.legal, judged.violations
    assert (judged.model.name, judged.layout.first.zero, judged.proposal.seq) == ("qwen3_4b", 3, 2048)
    assert (judged.proposal.global_batch, str(judged.layout.first.recompute)) == (16, "full")
    plain = f"{FACTORY}disable_gradient_checkpointing: true\n"
    kept = checked(tmp_path, plain, name="examples/train_full/x.yaml", world=8)
    assert str(kept.layout.first.recompute) == "none"


def test_overrides_behind_a_yaml_win_and_devices_are_counted(tmp_path):
    config(tmp_path, "examples/deepspeed/ds_z3_config.json")
    (tmp_path / "x.yaml").write_text(FACTORY)
    command = "CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train x.yaml per_device_train_batch_size=4"
    judged = checked(tmp_path, command)
    assert (judged.world, judged.layout.micro_batch, judged.proposal.global_batch) == (4, 4, 32)


@pytest.mark.parametrize(
    "command",
    ["axolotl train a/x.yml --num-processes 8", "accelerate launch --num_processes 8 -m axolotl.cli.train a/x.yml"],
)
def test_a_yaml_of_axolotl_is_read(tmp_path, command):
    """Its configuration lies beside the YAML; an empty adapter is none, sequences are split over the processes."""
    config(tmp_path, "a/deepspeed_configs/zero3.json", {**ZERO3, "bf16": {"enabled": True}})
    (tmp_path / "a/x.yml").write_text(AXOLOTL)
    judged = checked(tmp_path, command)
    assert judged.legal, judged.violations
    assert (judged.world, judged.layout.first.cp, judged.proposal.seq, judged.loss) == (8, 8, 65536, Loss.CUT)
    assert (judged.adapters, judged.layout.micro_batch, str(judged.layout.first.recompute)) == (None, 1, "full")
    (tmp_path / "a/x.yml").write_text(AXOLOTL.replace("adapter:", "adapter: lora\nlora_r: 16"))
    assert checked(tmp_path, command).adapters.rank == 16
    (tmp_path / "a/x.yml").write_text(AXOLOTL.replace("adapter:", "adapter: qlora\nload_in_4bit: true"))
    assert checked(tmp_path, command).adapters.quantized


@pytest.mark.parametrize(
    ("start", "world"),
    [
        ("deepspeed --num_gpus 8 train.py", 8),
        ("deepspeed --include localhost:0,1,2,3 train.py", 4),
        ("deepspeed --include=worker-0:0,1@worker-1:0,1 train.py", 4),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py", 16),
        ("mpirun -np 16 -hostfile hosts python train.py", 16),
        ("torchrun --nproc_per_node 8 --nnodes 2 train.py", 16),
    ],
)
def test_the_trainers_option_names_the_configuration_and_launchers_the_gpus(tmp_path, start, world):
    config(tmp_path, "ds.json")
    words = "--deepspeed ds.json --model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 2 --bf16"
    judged = checked(tmp_path, f"{start} {words}")
    assert judged.legal, judged.violations
    assert (judged.world, judged.model.name, judged.layout.first.zero) == (world, "llama3_8b", 3)
    assert (judged.layout.micro_batch, str(judged.layout.first.recompute)) == (2, "none")  # no trainer's defaults


def test_a_trainer_on_deepspeed_is_no_launch_of_megatron(tmp_path):
    file = tmp_path / "launch.sh"
    file.write_text("swift sft --model Qwen/Qwen2.5-7B --tuner_type lora")
    with pytest.raises(InputError, match="this is a launch of swift, which trains on DeepSpeed"):
        read_launch(LaunchQuestion(framework="megatron", file=file, world=8))


def test_files_that_are_not_there_are_named(tmp_path):
    config(tmp_path, "ds.json")
    words = "--config nowhere.yaml --model_name_or_path Qwen/Qwen3-4B --deepspeed ds.json"
    told = "nowhere.yaml is not found beside launch.sh, so what it sets is not read"
    assert told in checked(tmp_path, f"trl sft {words}", world=8).notes
    with pytest.raises(InputError, match=r"nowhere\.yaml is not found"):
        checked(tmp_path, "llamafactory-cli train nowhere.yaml", world=8)
    with pytest.raises(InputError, match=r"ds_z3_config\.json is not found"):
        checked(tmp_path, FACTORY, name="x.yaml", world=8)


def test_preference_training_is_remarked_once_and_its_losses_are_several(tmp_path):
    text = SWIFT.replace("swift sft", "swift rlhf --rlhf_type dpo --loss_type sigmoid bco_pair sft")
    judged = checked(tmp_path, text)
    assert judged.legal, judged.violations
    assert len([note for note in judged.notes if note.startswith("dpo has further models")]) == 1


def test_every_trainer_fills_in_options_that_are_read():
    known = key_table()
    for name, facts in trainer_table().items():
        assert facts["commands"], name
        assert {known["spellings"].get(option, option) for option in facts["fills"]} <= set(known["options"]), name


@pytest.mark.parametrize(
    ("words", "rank", "told"),
    [
        ("--tuner_type lora --quant_bits 4", 8, "the frozen weights are quantized"),
        ("--train_type lora --lora_rank 32", 32, "adapters of rank 32"),
        ("--tuner_type longlora", 0, "longlora trains other parameters"),
        ("--tuner_type full", 0, ""),
    ],
)
def test_what_is_trained_in_place_of_all_parameters_is_said(tmp_path, words, rank, told):
    judged = checked(tmp_path, f"{SWIFT} {words}")
    assert (judged.adapters.rank if judged.adapters else 0) == rank
    assert told in " ".join(judged.notes)
    quantized = "quantized" in " ".join(judged.notes)
    assert quantized == ("quant_bits" in words)


LORA = {
    "llamafactory-cli train": "--finetuning_type lora --cutoff_len 2048 --bf16 true",
    "swift sft": "--tuner_type lora --max_length 2048",
    "axolotl train": "--adapter lora --sequence_len 2048",
    "trl sft": "--use_peft --max_length 2048",
}
MEGATRON_SWIFT = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --tuner_type lora --max_length 2048"
SWITCHES = [
    ("", False),
    ("--load_in_4bit", True),
    ("--load-in-4bit --logging_steps 1", True),
    *[(f"--load_in_4bit{sign}{word}", True) for sign in " =" for word in ("true", "True", "yes", "1")],
    *[(f"--load_in_4bit{sign}{word}", False) for sign in " =" for word in ("false", "False", "no", "0")],
    ("--load_in_4bit --load_in_4bit false", False),
    ("--load_in_4bit=no --load_in_4bit", True),
]


def trainer_checked(tmp_path, command, words):
    """A launch of a trainer; all name their model by the option that one of them reads."""
    config(tmp_path, "ds.json", {**AUTO, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
    told = "--base_model" if command.startswith("axolotl") else "--model_name_or_path"
    text = f"{command} {told} meta-llama/Llama-3.1-8B --deepspeed ds.json {words}"
    return checked(tmp_path, text, world=8)


@pytest.mark.parametrize("command", LORA)
@pytest.mark.parametrize(("words", "quantized"), SWITCHES)
def test_a_switch_of_any_trainer_is_told_in_any_words(tmp_path, command, words, quantized):
    """``string_to_bool`` of Hugging Face's parser; a switch that is told nothing is on, the last of a name counts."""
    judged = trainer_checked(tmp_path, command, f"{LORA[command]} {words}")
    assert judged.adapters.quantized == quantized
    assert ("the frozen weights are quantized" in " ".join(judged.notes)) == quantized


@pytest.mark.parametrize(("words", "quantized"), SWITCHES)
def test_a_switch_of_ms_swifts_megatron_is_told_in_any_words(tmp_path, words, quantized):
    file = tmp_path / "launch.sh"
    file.write_text(f"{MEGATRON_SWIFT} {words}")
    judged = read_launch(LaunchQuestion(framework="megatron", file=file))
    assert judged.adapters.quantized == quantized


@pytest.mark.parametrize("command", LORA)
@pytest.mark.parametrize(
    ("told", "full"),
    [
        ("--gradient_checkpointing", True),
        ("--gradient_checkpointing yes", True),
        ("--gradient_checkpointing=1", True),
        ("--gradient_checkpointing no", False),
        ("--gradient-checkpointing=0", False),
        ("--gradient_checkpointing --gradient_checkpointing false", False),
    ],
)
def test_switches_that_shape_a_launch_are_read_alike(tmp_path, command, told, full):
    judged = trainer_checked(tmp_path, command, f"{LORA[command]} {told}")
    assert str(judged.layout.first.recompute) == ("full" if full else "none")


@pytest.mark.parametrize("command", ["swift sft", "trl sft"])
def test_a_default_that_is_on_is_switched_off_by_its_opposite(tmp_path, command):
    assert str(trainer_checked(tmp_path, command, LORA[command]).layout.first.recompute) == "full"
    told = f"{LORA[command]} --no_gradient_checkpointing"
    assert str(trainer_checked(tmp_path, command, told).layout.first.recompute) == "none"


@pytest.mark.parametrize(("told", "precision"), [("--fp16", "fp16"), ("--fp16 yes", "fp16"), ("--fp16 no", "bf16")])
def test_ms_swifts_megatron_takes_a_bare_switch(tmp_path, told, precision):
    file = tmp_path / "launch.sh"
    file.write_text(f"{MEGATRON_SWIFT} {told}")
    judged = read_launch(LaunchQuestion(framework="megatron", file=file))
    assert judged.legal, judged.violations
    assert judged.precision == precision


def test_every_target_of_adapters_counts_not_the_first_alone(tmp_path):
    judged = trainer_checked(tmp_path, "trl sft", "--use_peft --lora_target_modules down_proj q_proj --bf16")
    assert judged.adapters.targets == ("attn", "mlp")


def test_samples_of_a_policy_are_prompt_and_completion(tmp_path):
    file = tmp_path / "grpo.yaml"
    common = "model_name_or_path: Qwen/Qwen2.5-1.5B\nper_device_train_batch_size: 16\nmax_completion_length: 1024\n"
    file.write_text(common + "max_prompt_length: 512\n")
    assert read_launch(LaunchQuestion(file=file, world=8)).proposal.seq == 1536
    file.write_text(common + "max_prompt_length: 512\nmax_length: 2048\n")
    assert read_launch(LaunchQuestion(file=file, world=8)).proposal.seq == 2048
