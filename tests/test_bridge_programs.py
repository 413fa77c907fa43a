"""Megatron-Bridge's own programs: options that choose a recipe, recipes that ship, scripts in pieces."""

import re
import tomllib
from pathlib import Path

import pytest
from launch_words import priced_launch

from costmodels.workload import presets
from hardware.errors import InputError
from planner.ingest.bridge.programs import gpus_in_name, with_recipe_chosen
from planner.ingest.bridge.recipes import recipe_names, recipe_overrides
from planner.ingest.launch_text import LaunchText
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

TABLE = Path(__file__).parent / "reference" / "bridge_recipes.toml"
NAMES = [recipe["name"] for recipe in tomllib.loads(TABLE.read_text(encoding="utf-8"))["recipe"]]
READ_BEFORE = [
    recipe
    for recipe in tomllib.loads(TABLE.read_text(encoding="utf-8"))["recipe"]
    if NAMES.count(recipe["name"]) == 1  # recipes and perf_recipes have some names in common
]
PERFORMANCE = """torchrun --nproc-per-node=4 --nnodes=16 scripts/performance/run_script.py --gpu gb200 \\
    --model_family_name qwen -mr qwen3_235b_a22b --gpus_per_node 4 --num_gpus 64 --compute_dtype bf16 \\
    --seq_length 4096 \\
    --global_batch_size 1024 -tp 1 -pp 8 -cp 1 -ep 8 -vp 3 -mb 1 --max_steps 30
"""
RECIPE = "qwen3_8b_pretrain_16gpu_h100_bf16_config"


def judged(words=(), *, file=None, framework="bridge", world=0, cluster="", model=""):
    question = LaunchQuestion(
        framework=framework, version=None, world=world, arguments=tuple(words), file=file, model=model, cluster=cluster
    )
    return read_launch(question)


def written(folder, text, name="launch.sh"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("recipe", READ_BEFORE, ids=lambda recipe: recipe["name"])
def test_shipped_recipes_set_what_another_reading_of_the_package_found(recipe):
    """The table of tests was read off the package by other means; both say the same of layout and batch."""
    degrees = re.compile(r"model\.\w+_parallel_size=|train\.|model\.recompute_granularity|model\.virtual")
    told = {word.partition("=")[0]: word.partition("=")[2] for word in recipe_overrides(recipe["name"])}
    assert told
    for word in filter(degrees.match, recipe["overrides"]):
        key, _, value = word.partition("=")
        assert told.get(key, "1") == value, key


def test_second_names_are_those_of_whole_ones():
    assert recipe_overrides("qwen3_8b_pretrain_config") == recipe_overrides(RECIPE)
    assert recipe_overrides(f"megatron.bridge.recipes.qwen.h100.qwen3.{RECIPE}") == recipe_overrides(RECIPE)
    assert recipe_overrides("qwen3_vl_8b_sft_config") == ()
    assert len(recipe_names()) > 700


def test_a_recipe_is_its_layout_and_its_gpus():
    found = judged(["--recipe", "qwen3_235b_a22b_pretrain_256gpu_gb300_fp8mx_config"])
    assert found.legal
    assert (found.world, found.proposal.pp, found.proposal.ep, found.proposal.global_batch) == (256, 4, 32, 8192)
    assert found.precision == "mxfp8"
    assert sum(map(sum, found.built)) == 94
    assert not any("assumed here" in note for note in found.notes)
    assert any("sets what no override says" in note for note in found.notes)
    assert any("those of its recipe's name" in note for note in found.notes)


def test_gpus_are_the_launchs_before_those_of_the_name():
    assert judged(["--recipe", RECIPE], world=32).world == 32
    assert judged(["--recipe", RECIPE], cluster="dgx-h100:4").world == 32
    assert gpus_in_name("llama3_8b_pretrain_config") == 0


def test_overrides_win_over_the_recipe():
    words = ["model.tensor_model_parallel_size=2", "train.global_batch_size=64", "dataset.seq_length=2048"]
    found = judged(["--recipe", RECIPE, *words, "dataset.do_validation=false"])
    assert found.legal
    assert (found.proposal.tp, found.proposal.global_batch, found.proposal.seq) == (2, 64, 2048)


@pytest.mark.parametrize("program", ["scripts/training/train.sh", "bash scripts/training/train.sh"])
def test_the_launcher_of_training_is_read(tmp_path, program):
    line = f"{program} --wait --nodes 2 --gpus-per-node 8 --recipe {RECIPE} --mode pretrain --max_steps 9 --lr 3e-4"
    found = judged(file=written(tmp_path, f"{line} --seq_length 2048 --tensor_model_parallel_size 2 rng.seed=1\n"))
    assert found.legal
    assert (found.world, found.proposal.tp, found.proposal.seq, found.model.name) == (16, 2, 2048, "qwen3_8b")


def test_options_of_the_program_are_no_overrides():
    """They were refused as overrides that have no value, and the length was dropped without a word."""
    words = ["--recipe", RECIPE, "--max_steps", "100", "--seq_length", "8192", "--save_dir", "x", "-gb", "32"]
    found = judged(words)
    assert found.legal
    assert (found.proposal.seq, found.proposal.global_batch) == (8192, 32)


def test_options_of_performance_scripts_choose_a_recipe(tmp_path):
    text = with_recipe_chosen(LaunchText(arguments=("-mr", "llama3_70b", "--gpu", "h100", "-ng", "64", "-c", "fp8_cs")))
    assert (text.recipe, text.world) == ("llama3_70b_pretrain_64gpu_h100_fp8cs_config", 64)
    former = ("--model_name", "llama3", "--model_size", "70b", "--gpu", "h100", "--num_gpus", "64", "-c", "fp8_cs")
    assert with_recipe_chosen(LaunchText(arguments=former)).recipe == text.recipe
    found = judged(file=written(tmp_path, PERFORMANCE))
    assert (found.world, found.proposal.pp, found.proposal.ep, found.proposal.vpp) == (64, 8, 8, 3)
    assert found.model.name == "qwen3_235b_a22b"


def test_a_choice_that_no_recipe_is_of_is_told():
    words = ("-mr", "llama31_405b", "-ng", "64", "-c", "nvfp4")
    assert with_recipe_chosen(LaunchText(arguments=(*words, "--gpu", "gb200"))).notes == ()
    text = with_recipe_chosen(LaunchText(arguments=(*words, "--gpu", "gb2000")))
    assert text.recipe == "llama31_405b_pretrain_config"
    assert text.notes[0].endswith(f"ships no recipe of gb2000, nvfp4 for this model: {text.recipe} is taken")


@pytest.mark.parametrize("number", ["sixty", "0", "-8"])
def test_numbers_of_gpus_that_are_none_are_refused(number):
    with pytest.raises(InputError, match=f"--num_gpus {number}; allowed: a whole number from 1"):
        with_recipe_chosen(LaunchText(arguments=("-mr", "llama31_405b", "--gpu", "gb200", "-ng", number)))
    assert with_recipe_chosen(LaunchText(arguments=("-mr", "llama31_405b", "-ng", "$N"))).world == 0


def test_options_are_read_as_argparse_reads_them(tmp_path):
    """Begun names, numbers for switches, the nodes of a batch job."""
    nodes = "#!/bin/bash\n#SBATCH --nodes=16\n"
    text = PERFORMANCE.replace("--max_steps", "--max_step").replace("--num_gpus 64", "-ng $((SLURM_JOB_NUM_NODES * 4))")
    found = judged(file=written(tmp_path, nodes + text.replace("-mb 1", "-mb 1 --use_megatron_fsdp 0")))
    assert found.world == 64
    assert not [violation for violation in found.violations if "override" in violation.rule]


def test_one_stage_turns_off_virtual_stages_of_the_recipe(tmp_path):
    text = PERFORMANCE.replace("-pp 8", "-pp 1").replace("-ep 8 -vp 3", "-ep 64 -vp None --use_megatron_fsdp true")
    found = judged(file=written(tmp_path, text))
    assert found.legal, found.violations
    assert (found.proposal.pp, found.proposal.vpp, found.proposal.zero) == (1, 1, 3)


def test_stages_of_deepseek_v3_and_kimi_k2_choose_their_layouts():
    """Its recipe's layout stayed, so that a launch of other stages was refused, or built by other chunks."""

    def layouts(model, gpu, *options):
        words = ("-mr", model, "--gpu", gpu, "-ng", "256", "-c", "bf16", *options)
        told = with_recipe_chosen(LaunchText(arguments=words)).arguments
        layout = "model.pipeline_model_parallel_layout="
        return [word.removeprefix(layout).strip("'") for word in told if word.startswith(layout)]

    whole, halves = "Et*8|(t*8|)*6t*5mL", "Et*4|(t*4|)*14tmL"
    assert layouts("deepseek_v3", "gb200") == []
    assert layouts("deepseek_v3", "gb200", "-pp", "8", "-vp", "None") == [whole]
    assert layouts("deepseek_v3", "gb200", "-vp", "2") == [whole]  # of its recipe's four stages
    assert layouts("deepseek_v3", "gb200", "-pp", "4") == [halves]  # with its recipe's four chunks
    assert layouts("deepseek_v3", "gb200", "-pp", "2", "-vp", "3") == []
    assert layouts("deepseek_v3", "gb200", "-pp", "8", "--pipeline_model_parallel_layout", "x") == ["x"]
    assert layouts("kimi_k2", "gb200", "-pp", "2", "-vp", "8") == [halves.replace("m", "")]
    assert layouts("kimi_k2", "gb200", "-pp", "2", "-vp", "3") == ["null"]
    assert layouts("qwen3_235b_a22b", "gb200", "-pp", "2") == []


def test_a_launch_of_bridge_is_named_under_another_framework(tmp_path):
    """It was not legal for Megatron-LM, as its sizes were missing."""
    file = written(tmp_path, PERFORMANCE)
    with pytest.raises(InputError, match=r"launch of Megatron-Bridge, by its run_script.py.*--framework bridge"):
        judged(file=file, framework="megatron")


def test_a_text_of_commands_in_a_variable_is_read(tmp_path):
    body = PERFORMANCE.replace("torchrun --nproc-per-node=4 --nnodes=16", "python")
    script = f"sed -i 's/a/b/' scripts/performance/run_script.py\nwork=$(cat <<- EOM\n{body}\nEOM\n)\n"
    script += 'echo "$work" > work.sh\ntorchrun --nproc-per-node=4 --nnodes=16 --no-python bash work.sh\n'
    assert judged(file=written(tmp_path, script)).proposal.pp == 8


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("verl", "actor_rollout_ref.actor.strategy=fsdp"),
        ("NeMo RL", "policy.dtensor_cfg.enabled=true"),
        ("Primus", "modules.pre_trainer.framework=megatron"),
        ("FlagScale", "train.system.tensor_model_parallel_size=4"),
        ("MaxText", "ici_fsdp_parallelism=8"),
    ],
)
def test_settings_of_other_programs_are_named(program, word):
    with pytest.raises(InputError, match=f"these are settings of {program}, as there is"):
        judged(["data.x=1", word], framework="megatron", world=8)


def test_the_program_with_most_settings_is_named():
    """FlagScale's sizes stand where NeMo 1 has its batch."""
    words = ["model.micro_batch_size=8", "model.global_batch_size=64", "system.tensor_model_parallel_size=2"]
    words += ["system.pipeline_model_parallel_size=4", "system.logging.log_interval=1"]
    with pytest.raises(InputError, match=r"settings of FlagScale.*--tensor-model-parallel-size 2"):
        judged(words, framework="megatron", world=8)


def test_a_recipe_is_priced_as_its_own_overrides_are():
    """The price of a recipe by its name is that of everything it sets, stated."""
    recipe = "llama3_8b_pretrain_8gpu_h100_fp8cs_config"
    named = priced_launch(LaunchQuestion(framework="bridge", arguments=("--recipe", recipe), cluster="dgx-h100"))
    stated = priced_launch(
        LaunchQuestion(
            framework="bridge", arguments=recipe_overrides(recipe), cluster="dgx-h100", model="llama3_8b", world=8
        )
    )
    assert named.judged.legal
    assert named.ranked.cost == stated.ranked.cost
    assert presets.find("llama3_8b") is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--recipe llama3_8b_pretrain_confg", "did you mean llama3_8b_pretrain_config?"),
        ("--recipe llama3_8b_pretrain", "did you mean llama3_8b_pretrain_config?"),
        ("--recipe llama3_8b_pretrain_config --mode lorra", "did you mean lora?"),
        ("--model_recipe_name llama3_8b --task pretrian --num_gpus 8", "did you mean pretrain?"),
        ("--recipe llama3_8b_pretrain_config --mode pretrain", ""),
        ("--recipe qwen3_vl_8b_sft_config", ""),  # of a model with a tower, whose recipes no table has
        ("--recipe llama3_9b_pretrain_config", ""),  # another number is no slip of the pen
    ],
)
def test_a_misspelt_recipe_or_task_is_told_with_the_one_meant(words, told):
    notes = [note for note in judged(words.split(), model="llama3_8b", world=8).notes if "did you mean" in note]
    assert len(notes) == bool(told)
    assert all(told in note for note in notes)


def test_a_recipe_of_bridge_is_none_of_nemo():
    words = ("--recipe", "llama3_8b_pretrain_config", "trainer.strategy.tensor_model_parallel_size=2")
    with pytest.raises(InputError, match="is a recipe of Megatron-Bridge; allowed: --framework bridge"):
        judged(words, framework="nemo", world=8)


def test_gpus_that_only_the_running_shell_knows_are_not_those_of_a_node(tmp_path):
    file = tmp_path / "run.sh"
    line = "python setup_experiment.py -m deepseek -mr deepseek_v3 --gpus_per_node 8 --num_gpus"
    file.write_text(f"{line} $TOTAL --nsys_trace=cuda --enable_pct_binding true\n")
    found = judged(file=file)
    assert found.legal, found.violations
    assert found.world == 1024  # of the recipe's name
