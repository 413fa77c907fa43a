"""What trainers refuse of settings that frameworks take."""

import json

import pytest

from planner.launches.check import read_launch
from planner.question import LaunchQuestion

AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 1
bf16: true
tensor_parallel_size: 2
"""
SHARDS = "dp_shard_size: 4\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
TUNED = """stage: sft
model_name_or_path: meta-llama/Llama-2-70b-hf
finetuning_type: lora
per_device_train_batch_size: 1
cutoff_len: 2048
bf16: true
"""


def rules(folder, text, name="run.yaml", world=8):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    question = LaunchQuestion(framework="deepspeed", version=None, world=world, arguments=(), file=file, model="")
    return [violation.rule for violation in read_launch(question).violations]


@pytest.mark.parametrize(
    ("more", "broken"),
    [
        ("dp_replicate_size: 4\n", ["accelerate-grid"]),
        (SHARDS, []),
        (f"{SHARDS}liger_rms_norm: true\n", ["axolotl-liger-tp"]),
        (f"{SHARDS}liger_fused_linear_cross_entropy: true\n", ["axolotl-liger-tp"]),
        (f"{SHARDS}liger_rms_norm: false\n", []),
        (f"{SHARDS}optimizer: adamw_8bit\n", ["axolotl-8bit-tp"]),
        (f"{SHARDS}optimizer: adamw_torch_fused\n", []),
    ],
)
def test_axolotl_limits_tensor_parallelism(tmp_path, more, broken):
    assert rules(tmp_path, AXOLOTL + more) == broken


def test_axolotl_takes_them_without_tensor_parallelism(tmp_path):
    text = AXOLOTL.replace("tensor_parallel_size: 2\n", "") + "liger_rms_norm: true\noptimizer: adamw_8bit\n"
    assert rules(tmp_path, text) == []


@pytest.mark.parametrize(
    ("stage", "bits", "broken"), [(3, 8, ["llamafactory-bits"]), (3, 4, []), (2, 8, []), (3, 0, [])]
)
def test_sharded_weights_have_4_bits_or_16_in_llamafactory(tmp_path, stage, bits, broken):
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": "auto"}), encoding="utf-8"
    )
    text = f"{TUNED}deepspeed: ds.json\n" + (f"quantization_bit: {bits}\n" if bits else "")
    assert rules(tmp_path, text) == broken


@pytest.mark.parametrize(
    ("config", "broken"),
    [
        ({"train_batch_size": "auto"}, []),
        ({"train_batch_size": 64}, []),  # 8 GPUs, 2 samples, 4 steps
        ({"train_batch_size": 32}, ["trainer-mismatch"]),
        ({"train_micro_batch_size_per_gpu": 1}, ["trainer-mismatch"]),
        ({"gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}}, []),
        ({"bf16": {"enabled": True}}, []),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, ["trainer-mismatch", "trainer-mismatch"]),
    ],
)
def test_a_configuration_says_what_the_trainer_says(tmp_path, config, broken):
    whole = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", **config}
    (tmp_path / "ds.json").write_text(json.dumps(whole), encoding="utf-8")
    text = "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 \\\n"
    text += "  --deepspeed ds.json --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --block_size 2048\n"
    assert rules(tmp_path, text, "run.sh", 0) == broken
