"""Overrides of Megatron-Bridge as Hydra takes them, and what is told of the machine that they run on."""

import pytest

from planner.choices import Framework
from planner.ingest.bridge.override_words import unquoted_notes
from planner.ingest.bridge.overrides import read_overrides
from planner.launches.check import check_launch, read_launch
from planner.question import LaunchQuestion

HYBRID = (
    *("model.expert_model_parallel_size=16", "model.moe_token_dispatcher_type=flex", "train.global_batch_size=64"),
    *("model.seq_length=4096", "dataset.seq_length=4096", "train.micro_batch_size=1"),
)


@pytest.mark.parametrize(
    ("backend", "cluster", "told"),
    [
        ("hybridep", "dgx-b200:2", "HybridEP over 16 ranks, and the fast links of dgx-b200:2 join 8"),
        ("hybridep", "gb200-nvl72:4", ""),
        ("deepep", "dgx-b200:2", ""),
    ],
)
def test_hybridep_over_more_ranks_than_the_fast_links_join_is_told(backend, cluster, told):
    """Recipes of 64 ranks on B200 failed so, and were found legal without a word."""
    words = (*HYBRID, f"model.moe_flex_dispatcher_backend={backend}")
    question = LaunchQuestion(framework="bridge", arguments=words, model="qwen3_30b_a3b", world=16, cluster=cluster)
    notes = [note for note in check_launch(question).judged.notes if "HybridEP over" in note]
    assert len(notes) == bool(told)
    assert told in "".join(notes)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("Et*4|(t*4|)*14tL", "( and )"),
        ("Et*3|tt,|L", ","),
        ('"Et*4|(t*4|)*14tL"', ""),
        ("'Et*4|(t*4|)*14tL'", ""),
        (r"Et*4|\(t*4|\)*14tL", ""),
        ("Et*3|tt|m|L", ""),
        ("[mlp,moe]", ""),
        ("int(3)", ""),
    ],
)
def test_letters_that_hydra_takes_in_quotes_alone_are_told(value, told):
    """What Hydra 1.3.8 did with the same words."""
    notes = unquoted_notes([f"model.pipeline_model_parallel_layout={value}"])
    assert len(notes) == bool(told)
    assert f"Hydra takes {told} in quotes" in "".join(notes) or not told


def test_a_key_that_is_taken_out_leaves_its_recipes_value():
    """Hydra takes ``~key``; it was refused as no override."""
    words = [*HYBRID, "model.tensor_model_parallel_size=2", "~model.tensor_model_parallel_size"]
    read = read_overrides(words, Framework.BRIDGE)
    assert not read.faults
    assert "--tensor-model-parallel-size" not in read.flags
    assert read_overrides(["~model.tensor_paralel"], Framework.BRIDGE).faults


def test_overlap_of_tensors_without_their_sequences_is_turned_off_by_megatron_bridge():
    words = ("model.tp_comm_overlap=true", *HYBRID[2:])
    question = LaunchQuestion(framework="bridge", arguments=words, model="qwen3_30b_a3b", world=8)
    assert read_launch(question).legal


@pytest.mark.parametrize(
    ("word", "rules"),
    [
        ("model.num_moe_experts=6", {"layer-experts-ep", "experts-top-k"}),
        ("model.num_moe_experts=64", set()),
        ("model.num_query_groups=3", {"kv-heads-tp"}),
        ("model.moe_ffn_hidden_size=767", {"expert-ffn-etp"}),
    ],
)
def test_sizes_of_overrides_are_those_that_are_built(word, rules):
    """The named model's were judged."""
    degrees = (
        "model.expert_model_parallel_size=4",
        "model.tensor_model_parallel_size=2",
        "model.sequence_parallel=true",
    )
    words = (*degrees, "model.expert_tensor_parallel_size=2", *HYBRID[2:], word)
    question = LaunchQuestion(framework="bridge", arguments=words, model="qwen3_30b_a3b", world=8)
    assert {violation.rule for violation in read_launch(question).violations} == rules
