"""How launches of torchtitan name their configuration: by its own script, by a TOML file, by a name."""

import pytest

from planner.launches.check import read_launch
from planner.question import LaunchQuestion

TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
OWN = "./torchtitan/models/deepseek_v3/train_configs/deepseek_v3_671b.toml"


def judged(folder, text, world=0):
    file = folder / "run.sh"
    file.write_text(text, encoding="utf-8")
    return read_launch(
        LaunchQuestion(framework="torchtitan", version=None, world=world, arguments=(), file=file, model="")
    )


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./job.toml",
        "torchrun --nproc_per_node=8 -m torchtitan.train --job.config-file=job.toml",
        'export CONFIG_FILE="job.toml"\nNGPU=8 ./run_train.sh',
        "CONFIG_FILE=job.toml bash run_train.sh",
    ],
)
def test_a_file_of_0_2_is_read_and_words_behind_it_win(tmp_path, line):
    (tmp_path / "job.toml").write_text(TOML, encoding="utf-8")
    found = judged(tmp_path, f"{line} --parallelism.tensor_parallel_degree 2 --profiling.enable_profiling\n")
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.model.name) == (8, 2, "llama3_8b")
    assert (found.proposal.micro_batch, found.proposal.seq) == (2, 8192)
    assert found.title == "torchtitan 0.2"


def test_a_file_that_torchtitan_ships_is_known_by_its_name(tmp_path):
    """It builds no layer that predicts further tokens, whatever the published model has."""
    degrees = "--parallelism.pipeline_parallel_degree=8 --parallelism.expert_parallel_degree=32"
    schedule = "--parallelism.pipeline_parallel_schedule=Interleaved1F1B --training.local_batch_size=16"
    shards = "--parallelism.data_parallel_shard_degree=64"
    found = judged(tmp_path, f'CONFIG_FILE="{OWN}" NGPU=8 ./run_train.sh {degrees} {schedule} {shards}\n', world=512)
    assert found.legal, found.violations
    assert (found.model.layers, found.proposal.model.mtp) == (61, 0)
    assert (found.proposal.pp, found.proposal.ep) == (8, 32)
    assert any("is not beside run.sh" in note for note in found.notes)


def test_the_registry_of_0_3_is_named_by_the_environment(tmp_path):
    found = judged(tmp_path, "MODULE=llama3 CONFIG=llama3_8b NGPU=4 ./run_train.sh --training.steps 10\n")
    assert found.legal, found.violations
    assert (found.world, found.model.name, found.title) == (4, "llama3_8b", "torchtitan 0.3")


def test_a_number_in_quotes_stays_a_text_unless_an_option_says_it_again(tmp_path):
    """tyro keeps a default of another type with a warning; torchtitan cannot count with it then."""
    (tmp_path / "job.toml").write_text(TOML.replace("degree = 1", 'degree = "2"'), encoding="utf-8")
    line = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./job.toml"
    (found,) = judged(tmp_path, line).violations
    assert (found.rule, found.values["argument"]) == ("torchtitan-option-value", "--parallelism.tensor_parallel_degree")
    again = judged(tmp_path, f"{line} --parallelism.tensor_parallel_degree 4")
    assert again.legal
    assert again.proposal.tp == 4


def test_debug_models_are_known(tmp_path):
    line = "torchrun --nproc_per_node=2 -m torchtitan.train --module llama3 --config llama3_debugmodel"
    found = judged(tmp_path, line)
    assert found.legal, found.violations
    assert (found.model.layers, found.proposal.seq, found.proposal.global_batch) == (6, 2048, 16)


def test_a_switch_that_moved_is_known_when_it_is_off(tmp_path):
    (tmp_path / "job.toml").write_text(TOML, encoding="utf-8")
    line = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./job.toml"
    found = judged(tmp_path, f"{line} --parallelism.no_enable_async_tensor_parallel")
    assert found.legal, found.violations
