"""Launches of OpenRLHF: their options as the configuration of DeepSpeed that they make of them."""

import pytest

from planner.launches.check import check_launch, read_launch
from planner.question import LaunchQuestion

PLAIN = """deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --max_len 4096 --train_batch_size 128 \\
  --micro_train_batch_size 2 --pretrain meta-llama/Meta-Llama-3-8B --zero_stage 3 --bf16 --flash_attn {more}
"""
GROUPED = """read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft --data.max_len 4096 --train.batch_size 128 --train.micro_batch_size 2 \\
  --model.model_name_or_path meta-llama/Meta-Llama-3-8B --ds.zero_stage 3 {more}
EOF
deepspeed --module $training_commands
"""


def question(folder, text, more="", **told):
    file = folder / "train.sh"
    file.write_text(text.format(more=more))
    return LaunchQuestion(framework="deepspeed", file=file, world=8, **told)


@pytest.mark.parametrize("text", [PLAIN, GROUPED])
def test_both_forms_of_its_options_say_the_same(text, tmp_path):
    judged = read_launch(question(tmp_path, text))
    assert judged.legal, judged.violations
    assert judged.model.name == "llama3_8b"
    first = judged.layout.first
    assert (first.dp, first.zero, judged.layout.micro_batch, judged.layout.num_microbatches) == (8, 3, 2, 8)
    assert judged.proposal.seq == 4096
    assert judged.precision == "bf16"


def test_options_of_memory_are_read(tmp_path):
    more = "--gradient_checkpointing --adam_offload --grad_accum_dtype fp32 --use_liger_kernel"
    judged = read_launch(question(tmp_path, PLAIN, more))
    assert judged.optimizer_offload
    assert str(judged.layout.first.recompute) == "full"
    assert judged.gradient_bytes == 4.0
    assert judged.loss == "liger"


def test_rings_and_tensors_take_replicas(tmp_path):
    ring = read_launch(question(tmp_path, PLAIN, "--ring_attn_size 2"))
    assert (ring.layout.first.cp, ring.layout.first.dp) == (2, 4)
    assert any("ring of attention" in note for note in ring.notes)
    tensor = read_launch(question(tmp_path, GROUPED, "--ds.tensor_parallel_size 2"))
    assert (tensor.layout.first.tp, tensor.layout.first.dp) == (2, 4)


def test_what_it_refuses_is_refused(tmp_path):
    half = read_launch(question(tmp_path, GROUPED, "--ds.tensor_parallel_size 2 --ds.param_dtype fp16"))
    assert "openrlhf-tp-bf16" in [violation.rule for violation in half.violations]
    old = read_launch(question(tmp_path, GROUPED, "--ds.tensor_parallel_size 2", version="0.17"))
    assert "deepspeed-autotp-zero3" in [violation.rule for violation in old.violations]
    uneven = read_launch(question(tmp_path, PLAIN.replace("128", "100")))
    assert not uneven.legal


def test_one_card_does_not_hold_eight_billion_with_their_optimizer(tmp_path):
    text = PLAIN.replace("--zero_stage 3", "--zero_stage 2").replace("--num_gpus 8", "--num_gpus 1")
    text = text.replace("--train_batch_size 128", "--train_batch_size 2")
    file = question(tmp_path, text, "--gradient_checkpointing").file
    checked = check_launch(LaunchQuestion(framework="deepspeed", file=file, cluster="dgx-a100:1"))
    assert checked.ranked.cost.heaviest.verdict == "oom"
