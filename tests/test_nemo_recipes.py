"""Launches of NeMo 2 by ``--factory``: what its recipes set counts where no override does."""

import pytest

from planner.ingest.bridge.nemo_recipes import factory_of, factory_overrides, gpus_of_factory
from planner.ingest.launch_text import read_launch_text
from planner.launches.check import check_launch
from planner.question import LaunchQuestion


def judged(*words, task="pretrain", world=0):
    arguments = ("nemo", "llm", task, "--factory", *words)
    return check_launch(LaunchQuestion(arguments=arguments, framework="nemo", world=world)).judged


@pytest.mark.parametrize(
    ("task", "factory", "world", "grid", "batch", "seq"),
    [
        ("pretrain", "llama3_8b", 8, (1, 1, 2, 1), 512, 8192),
        ("pretrain", "llama3_8b_128k", 64, (4, 2, 8, 1), 512, 131072),
        ("pretrain", "mixtral_8x7b", 64, (1, 4, 1, 8), 512, 4096),
        ("pretrain", "deepseek_v3", 1024, (2, 16, 1, 64), 4096, 4096),
        ("pretrain", "qwen3_600m", 8, (1, 1, 1, 1), 32, 4096),
        ("finetune", "llama3_70b", 8, (8, 1, 1, 1), 128, 2048),
        ("finetune", "llama3_70b(peft_scheme='none')", 32, (8, 4, 1, 1), 128, 2048),
        ("finetune", "llama3_70b(performance_mode=True)", 8, (2, 4, 1, 1), 8, 4096),
    ],
)
def test_a_factory_sets_what_its_recipe_ships_with(task, factory, world, grid, batch, seq):
    found = judged(factory, task=task)
    proposal = found.proposal
    assert found.legal, found.violations
    assert found.world == world
    assert (proposal.tp, proposal.pp, proposal.cp, proposal.ep) == grid
    assert (proposal.global_batch, proposal.seq) == (batch, seq)


def test_context_parallelism_of_a_recipe_does_not_start_on_one_gpu():
    found = judged("llama3_8b", world=1)
    assert [violation.rule for violation in found.violations] == ["world-grid"]


def test_arguments_of_the_factory_and_overrides_win_over_the_recipe():
    words = (
        "llama3_8b(num_nodes=2, num_gpus_per_node=4)",
        "trainer.strategy.context_parallel_size=1",
        "data.seq_length=4096",
    )
    found = judged(*words)
    assert (found.world, found.proposal.cp, found.proposal.seq) == (8, 1, 4096)
    assert judged("llama3_8b", "trainer.num_nodes=4").world == 32


def test_adapters_of_fine_tuning_are_the_recipe_s():
    assert judged("llama3_70b", task="finetune").adapters.rank == 16
    assert judged("qwen3_8b", task="finetune").adapters.rank == 32
    assert judged("llama3_8b(performance_mode=True)", task="finetune").adapters.targets == ("attn",)
    assert judged("llama3_8b(peft_scheme='none')", task="finetune").adapters is None
    assert judged("llama3_8b").adapters is None


def test_the_optimizer_decides_whether_states_are_sharded():
    assert judged("llama3_8b").proposal.zero == 1
    told = judged("llama3_8b", "optim.config.use_distributed_optimizer=false")
    assert told.proposal.zero == 0
    told = judged("llama3_8b", "trainer.strategy.ddp.use_distributed_optimizer=false")
    assert told.legal
    assert told.proposal.zero == 1


def test_number_formats_of_a_recipe_are_read():
    assert judged("nemotronh_47b").precision == "fp8-cs"
    assert judged("nemotron_nano_12b_v2").precision == "fp8-blockwise"
    assert judged("llama3_8b").gradient_bytes == 4.0
    assert judged("llama3_8b(performance_mode=True)").gradient_bytes == 2.0
    assert judged("llama3_8b", "trainer.plugins.precision=16-mixed").precision == "fp16"


def test_a_name_that_nemo_does_not_ship_is_told():
    notes = " ".join(judged("lama3_8b", "trainer.devices=8").notes)
    assert "ships no recipe lama3_8b" in notes
    assert "did you mean llama3_8b?" in notes
    told = " ".join(judged("llama3_8b(packed_sequence=True)").notes)
    assert "packed_sequence is not read" in told


def test_a_script_that_starts_nemo_is_read(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("export NODES=2\nnemo llm finetune -f 'gemma2_9b(num_nodes=2)' -y trainer.max_steps=10\n")
    text = read_launch_text(script, ())
    factory = factory_of(text)
    assert (factory.name, factory.task) == ("gemma2_9b", "adapters")
    assert gpus_of_factory(text) == 16
    assert "peft.dim=32" in factory_overrides(text)
