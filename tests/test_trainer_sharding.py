"""Launches of Hugging Face's Trainer and of Axolotl without DeepSpeed: FSDP by their own options, replicas, grids."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.layout import Strategy
from planner.ingest.judged import JudgedLaunch
from planner.ingest.trainers.sharding import not_read
from planner.launches.check import check_launch, faster_layouts, read_launch
from planner.layouts.build import uniform_layout
from planner.question import LaunchQuestion
from planner.sayable import EVERYTHING, FSDP_1, FSDP_GRID

ALPACA = "torchrun --nproc_per_node=4 train.py --model_name_or_path huggyllama/llama-7b --bf16 True "
ALPACA += "--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --model_max_length 512 "
WRAP = '--fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer'
AXOLOTL = """base_model: {model}
sequence_len: 4096
micro_batch_size: 1
tensor_parallel_size: {tp}
dp_shard_size: {shards}
optimizer: {optimizer}
fsdp_version: 2
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""


def judged(folder: Path, text: str, name: str = "launch.sh", world: int = 0, **more: str) -> JudgedLaunch:
    file = folder / name
    file.write_text(text)
    return read_launch(LaunchQuestion(framework="deepspeed", file=file, world=world or None, **more))


def axolotl(folder: Path, model: str, *, tp: int = 2, shards: int = 4, optimizer: str = "adamw_torch") -> JudgedLaunch:
    text = AXOLOTL.format(model=model, tp=tp, shards=shards, optimizer=optimizer)
    return judged(folder, text, "config.yml", world=8)


def zero_of(found: JudgedLaunch) -> int:
    assert found.layout is not None
    return found.layout.stages[0].strategies[0].strategy.zero


@pytest.mark.parametrize(
    ("options", "stage", "title"),
    [
        (WRAP, 3, "FSDP 2"),
        ('--fsdp "shard_grad_op auto_wrap"', 2, "FSDP 2"),
        ('--fsdp "full_shard auto_wrap" --fsdp_config fsdp1.json', 3, "FSDP 1"),
        ("--fsdp fsdp2", 3, "FSDP 2"),
        ("", 0, "DDP"),
    ],
)
def test_the_trainers_own_options_shard_as_the_trainer_does(tmp_path: Path, options: str, stage: int, title: str):
    (tmp_path / "fsdp1.json").write_text(json.dumps({"version": 1, "fsdp_activation_checkpointing": True}))
    found = judged(tmp_path, ALPACA + options)
    assert found.legal
    assert (zero_of(found), title in found.title) == (stage, True)
    assert found.layout is not None
    recomputes = found.layout.stages[0].strategies[0].strategy.recompute.granularity.value == "full"
    assert recomputes == ("fsdp1" in options)


def test_alpaca_fits_four_cards_of_80_gb(tmp_path: Path):
    file = tmp_path / "launch.sh"
    file.write_text(ALPACA + WRAP)
    checked = check_launch(LaunchQuestion(framework="deepspeed", file=file, cluster="dgx-a100:1"))
    assert checked.ranked is not None  # its README trains on four A100 of 80 GB so
    assert checked.ranked.cost.heaviest.verdict.value in ("fits", "risky")


def test_a_configuration_that_is_named_and_not_there_is_asked_for(tmp_path: Path):
    with pytest.raises(Exception, match=r"ds\.json is not found"):
        judged(tmp_path, ALPACA + "--deepspeed ds.json")


def test_axolotl_refuses_tensor_parallelism_over_tied_embeddings(tmp_path: Path):
    tied, untied = (axolotl(tmp_path, name) for name in ("meta-llama/Llama-3.2-1B", "meta-llama/Meta-Llama-3-8B"))
    assert [violation.rule for violation in tied.violations] == ["axolotl-tied-tp"]
    assert untied.legal
    assert untied.proposal is not None
    assert (untied.proposal.tp, untied.proposal.dp) == (2, 4)
    assert axolotl(tmp_path, "meta-llama/Llama-3.2-1B", tp=1, shards=8).legal


def test_a_grid_that_does_not_multiply_out_is_refused(tmp_path: Path):
    found = axolotl(tmp_path, "meta-llama/Meta-Llama-3-8B", shards=2)
    assert not found.legal
    assert "is 4, the launch has 8 processes" in found.violations[0].message


def test_optimizers_in_8_bits_hold_a_quarter(tmp_path: Path):
    names = ("adamw_torch", "adamw_8bit", "lion_8bit")
    sizes = [axolotl(tmp_path, "meta-llama/Meta-Llama-3-8B", optimizer=name).optimizer_bytes for name in names]
    assert sizes == [8.0, 2.0, 1.0]


def test_what_is_faster_near_a_launch_is_what_its_launcher_can_be_told(tmp_path: Path):
    """A pipeline of two would be faster; the Trainer has none."""
    file = tmp_path / "launch.sh"
    words = "torchrun --nproc_per_node=8 train.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 True "
    words += "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --model_max_length 2048 "
    words += """--accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}' """
    file.write_text(words + '--gradient_checkpointing True --fsdp "shard_grad_op auto_wrap"')
    report = check_launch(LaunchQuestion(framework="deepspeed", file=file, cluster="p4d:1"))
    assert report.faster
    for one in report.faster:
        kept = {run.strategy.recompute.granularity.value for run in one.ranked.layout.stages[0].strategies}
        assert (one.ranked.layout.pp, one.ranked.layout.first.ep) == (1, 1)
        assert kept in ({"none"}, {"full"})
    assert report.request is not None
    assert report.ranked is not None
    others = faster_layouts(replace(report.request, sayable=EVERYTHING), report.ranked)
    assert any(one.ranked.layout.pp > 1 for one in others)  # which is named where a launcher can be told all


@pytest.mark.parametrize(
    ("changed", "fsdp_1", "fsdp_2"),
    [({}, True, True), ({"tp": 2}, False, True), ({"ep": 2}, False, False), ({"zero": 1}, False, False)],
)
def test_grids_are_told_to_the_second_version_of_fsdp(changed: dict[str, int], fsdp_1: bool, fsdp_2: bool):
    strategy = Strategy(**{"dp": 4, "zero": 3, **changed})
    layout = uniform_layout(strategy, ((8,),), micro_batch=1, num_microbatches=1)
    told = [FSDP_1.says(layout), FSDP_GRID.says(layout)]
    assert told == [fsdp_1, fsdp_2]


def test_what_names_the_model_and_its_adapters_is_read():
    words = ("--base-model=x", "--adapter=lora", "--lora_r=8", "--load_in_4bit=true", "--tf32=true", "--lora_dropout=0")
    assert not_read(words, (), ()) == ("--tf32", "--lora_dropout")
