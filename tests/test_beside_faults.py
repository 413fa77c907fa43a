"""What else is wrong is told beside a model that is not known and beside a degree that is no number."""

import json
from dataclasses import replace

import pytest

from hardware.errors import InputError
from planner.ingest.beside_faults import ANY_MODEL, supposed_degrees
from planner.ingest.options import Fault
from planner.launches.check import read_launch
from planner.question import LaunchQuestion
from planner.rules.proposal import Proposal

BATCH = r"global batch 7 does not divide by micro-batch 1 x dp 4 = 4"
DEGREES = Proposal(world=8, dp=8, micro_batch=2, global_batch=16, seq=4096, model=ANY_MODEL[0])


def fault(argument):
    return Fault(rule="x", argument=argument, message="x")


def read(framework, *words, file=None, model="", world=8):
    return read_launch(
        LaunchQuestion(framework=framework, version=None, world=world, arguments=words, file=file, model=model)
    )


def written(folder, **config):
    file = folder / "ds.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("framework", "words", "wrong"),
    [
        (
            "megatron",
            (
                *("--pipeline-model-parallel-size", "2", "--micro-batch-size", "1", "--global-batch-size", "7"),
                *("--seq-length", "4096", "--max-position-embeddings", "4096", "--bf16", "--layers", "3"),
            ),
            rf"option --layers is unknown.*{BATCH}",
        ),
        ("bridge", ("model.pipeline_model_parallel_size=2", "train.global_batch_size=7"), BATCH),
        (
            "torchtitan",
            ("--parallelism.tensor_parallel_degree", "3", "--module", "llama3", "--config", "llama3_8b"),
            "tp 3 x cp 1 x pp 1 x dp 2 covers 6 GPUs, the job has 8",
        ),
    ],
)
def test_a_model_that_is_not_known_hides_nothing(framework, words, wrong):
    """The launch was not looked at."""
    with pytest.raises(InputError, match=rf"model 'llama9_8b' is not known.*also wrong: .*{wrong}"):
        read(framework, *words, model="llama9_8b")


def test_only_what_holds_of_every_model_is_told(tmp_path):
    """Without a model nothing is said of heads, widths, experts or a number of layers."""
    legal = ("--parallelism.tensor_parallel_degree", "4", "--parallelism.expert_parallel_degree", "2")
    with pytest.raises(InputError) as found:
        read("torchtitan", *legal, "--config", "mine", "--training.local_batch_size", "8")
    assert "also wrong" not in str(found.value)
    file = written(tmp_path, train_batch_size=8, zero_optimization={"stage": 1})
    with pytest.raises(InputError, match="the model is not known; allowed: --model") as found:
        read("deepspeed", file=file)
    assert "also wrong" not in str(found.value)


def test_a_stage_that_is_none_hides_no_batch(tmp_path):
    """Each was told alone, the next one when the first was mended."""
    batch = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    file = written(tmp_path, zero_optimization={"stage": 5}, **batch)
    assert [one.rule for one in read("deepspeed", file=file, model="llama3_8b").violations] == [
        "deepspeed-value",
        "batch",
    ]
    with pytest.raises(InputError, match=r"also wrong: zero_optimization: stage 5.*; global batch 7 does not divide"):
        read("deepspeed", file=file)


def test_a_rule_that_is_broken_hides_no_batch_that_does_not_multiply_out(tmp_path):
    words = ("--tensor-model-parallel-size", "3")
    file = written(tmp_path, train_batch_size=12, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2)
    found = read("deepspeed", *words, file=file, model="llama3_8b", world=3)
    assert {"heads-tp", "deepspeed-launch"} <= {one.rule for one in found.violations}


def test_values_are_supposed_where_a_fault_leaves_none():
    zero = supposed_degrees(DEGREES, [fault("zero_optimization.stage")])
    assert [one.zero for one in zero] == [0, 1, 2, 3]
    tensor = supposed_degrees(DEGREES, [fault("--parallelism.tensor_parallel_degree")])
    assert {(one.tp, one.dp) for one in tensor} == {(1, 0), (2, 0), (3, 0), (8, 0)}
    batch = supposed_degrees(DEGREES, [fault("train_batch_size")])
    assert all(one.global_batch % (one.micro_batch * 8) == 0 for one in batch)
    assert supposed_degrees(DEGREES, []) == (DEGREES,)
    assert supposed_degrees(DEGREES, [fault("--parallelism.something_new")]) == ()
    unknown = replace(fault("--x"), rule="x-unknown-option")
    assert supposed_degrees(DEGREES, [unknown]) == (DEGREES,)
