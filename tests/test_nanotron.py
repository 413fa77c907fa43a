"""Configurations of nanotron."""

import pytest

from hardware.errors import InputError
from planner.launches.check import check_launch, read_launch
from planner.question import LaunchQuestion

TINY = """model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  model_config:
    hidden_size: 2048
    intermediate_size: 11008
    num_attention_heads: 16
    num_hidden_layers: 28
    num_key_value_heads: 2
    tie_word_embeddings: true
    vocab_size: 128256
optimizer: {zero_stage: 1}
parallelism: {dp: 4, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, recompute_layer: false}
tokens: {batch_accumulation_per_replica: 2, micro_batch_size: 3, sequence_length: 4096}
"""


def asked(folder, text=TINY, world=0, cluster=""):
    file = folder / "tiny.yaml"
    file.write_text(text, encoding="utf-8")
    return LaunchQuestion(
        framework="megatron", version=None, world=world, arguments=(), file=file, model="", cluster=cluster
    )


def test_a_configuration_is_priced_as_nanotron(tmp_path):
    report = check_launch(asked(tmp_path, cluster="dgx-h100"))
    found = report.judged
    assert found.legal, found.violations
    assert (found.title, found.world, found.model.layers, found.model.hidden) == ("nanotron", 8, 28, 2048)
    proposal = found.proposal
    assert (proposal.tp, proposal.dp, proposal.zero, proposal.global_batch, proposal.seq) == (2, 4, 1, 24, 4096)
    assert proposal.sequence_parallel
    assert report.ranked.cost.step.total_s > 0.1


def test_stages_share_the_compute_with_the_head(tmp_path):
    """A head of 128,256 words is worth four layers of 70 million weights: the last of 4 stages has fewer layers."""
    text = TINY.replace("dp: 4, pp: 1, tp: 2", "dp: 2, pp: 4, tp: 1").replace("replica: 2", "replica: 4")
    found = read_launch(asked(tmp_path, text))
    assert found.legal, found.violations
    layers = [sum(stage) for stage in found.built]
    assert sum(layers) == 28
    assert layers[-1] == min(layers) < layers[0]


@pytest.mark.parametrize(
    ("engine", "steps", "rules"), [("1f1b", 2, ["nanotron-microbatches"]), ("1f1b", 3, []), ("afab", 1, [])]
)
def test_stages_want_micro_batches(tmp_path, engine, steps, rules):
    text = TINY.replace("dp: 4, pp: 1, tp: 2", "dp: 2, pp: 4, tp: 1").replace("1f1b", engine)
    found = read_launch(asked(tmp_path, text.replace("replica: 2", f"replica: {steps}")))
    assert [violation.rule for violation in found.violations] == rules


def test_the_script_that_starts_it_says_how_many_processes(tmp_path):
    asked(tmp_path)
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node=4 run_train.py --config-file tiny.yaml\n", encoding="utf-8")
    question = LaunchQuestion(framework="megatron", version=None, world=0, arguments=(), file=script, model="")
    assert [violation.rule for violation in read_launch(question).violations] == ["world-grid"]


def test_sizes_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InputError, match=r"model\.model_config does not say hidden_size"):
        read_launch(asked(tmp_path, TINY.replace("    hidden_size: 2048\n", "")))


@pytest.mark.parametrize(
    ("old", "new", "unknown", "words"),
    [
        ("zero_stage: 1", "zero_stge: 1", "optimizer.zero_stge", "did you mean optimizer.zero_stage?"),
        ("recompute_layer", "zero_stage", "parallelism.zero_stage", "did you mean optimizer.zero_stage?"),
        ("batch_accumulation_per", "batch_acumulation_per", "tokens.batch_acumulation_per_replica", "has no default"),
    ],
)
def test_keys_that_it_has_not_are_named(tmp_path, old, new, unknown, words):
    found = read_launch(asked(tmp_path, TINY.replace(old, new)))
    assert not found.legal
    assert found.unknown == (unknown,)
    assert words in " ".join(violation.message for violation in found.violations)
