"""Settings of LLaMA-Factory's version 1: its sections of sharding and adapters, and what it fills in."""

import pytest

from hardware.errors import InputError
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

COMMON = "model: Qwen/Qwen3-4B\nmicro_batch_size: 2\ncutoff_len: 1024\ntrain_dataset: x.yaml\n"


def judged(folder, text, world=8):
    file = folder / "train.yaml"
    file.write_text(COMMON + text)
    return read_launch(LaunchQuestion(file=file, world=world))


def test_shards_of_fsdp2_with_its_own_defaults(tmp_path):
    found = judged(tmp_path, "dist_config:\n  name: fsdp2\n  dcp_path: null\n")
    assert found.legal, found.violations
    assert (found.title, found.precision, found.model.name) == ("accelerate, FSDP 2", "bf16", "qwen3_4b")
    assert (found.proposal.zero, found.proposal.global_batch, found.proposal.seq) == (3, 16, 1024)
    assert found.proposal.switches.recompute_full


def test_context_parallelism_and_a_stated_batch(tmp_path):
    found = judged(tmp_path, "dist_config: {name: fsdp2}\ncp_size: 2\nglobal_batch_size: 32\nbf16: false\n")
    assert found.legal, found.violations
    assert (found.proposal.cp, found.proposal.dp, found.proposal.global_batch) == (2, 4, 32)
    assert found.precision == "fp32"


def test_deepspeed_by_the_file_that_it_names(tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    found = judged(tmp_path, "dist_config: {name: deepspeed, config_file: ds.json}\n")
    assert found.legal, found.violations
    assert found.proposal.zero == 2


def test_its_adapters(tmp_path):
    found = judged(tmp_path, "dist_config: {name: fsdp2}\npeft_config: {name: lora, r: 16, target_modules: all}\n")
    assert (found.adapters.rank, found.adapters.targets) == (16, ("attn", "mlp"))
    assert judged(tmp_path, "dist_config: {name: fsdp2}\n").adapters is None


def test_a_kind_of_sharding_that_is_not_read_is_named(tmp_path):
    with pytest.raises(InputError, match="dist_config fsdpturbo is not read; allowed: fsdp2 or deepspeed"):
        judged(tmp_path, "dist_config: {name: fsdpturbo, ep_size: 8}\n")
