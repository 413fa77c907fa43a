"""Launch scripts as people write them: branches, texts behind ``<<``, templates, scripts in scripts, other programs."""

import json

import pytest
from launch_words import BATCH, SIZES

from hardware.errors import InputError
from planner.ingest.launch_text import read_launch_text
from planner.ingest.scripts.conditions import condition
from planner.ingest.scripts.script import read_script
from planner.ingest.scripts.written_files import written_files
from planner.launches.check import read_launch
from planner.question import LaunchQuestion


def script(folder, text: str, name: str = "train.sh"):
    file = folder / name
    file.write_text(text)
    return file


def asked(folder, text: str, framework: str = "megatron", **changes):
    return read_launch(LaunchQuestion(framework=framework, file=script(folder, text), **changes))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("[", "7b", "=", "7b", "]"), True),
        (("[", "7b", "!=", "7b", "]"), False),
        (("[", "16", "-gt", "8", "]"), True),
        (("[", "2*4", "-le", "7", "]"), False),
        (("[[", "7b", "==", "7*", "]]"), True),
        (("[[", "7b", "!=", "7*", "]]"), False),
        (("[", "7b", "==", "7*", "]"), False),
        (("[[", "a", "==", "a", "&&", "1", "-gt", "2", "]]"), False),
        (("[[", "a", "==", "b", "||", "2", "-gt", "1", "]]"), True),
        (("[", "a", "=", "a", "-a", "-f", "x", "]"), None),
        (("[", "a", "=", "b", "-a", "-f", "x", "]"), False),
        (("[", "!", "a", "=", "b", "]"), True),
        (("test", "3", "-gt", "2"), True),
        (("true",), True),
        (("[", "-z", "", "]"), True),
        (("[", "-n", "", "]"), False),
        (("[", "-f", "weights.pt", "]"), None),
        (("[", "x", "-gt", "8", "]"), None),
        (("grep", "-q", "x", "file"), None),
    ],
)
def test_conditions(words, found):
    assert condition(list(words)) is found


def test_of_a_branch_the_arm_that_runs_counts(tmp_path):
    text = f"""
SIZE=7b
if [ $SIZE = 1b ]; then
    TP=1
elif [ "$SIZE" == "7b" ]; then
    TP=2; EXTRA="--sequence-parallel"
    if [ $TP -gt 4 ]; then EXTRA="--no-such-option"; fi
else
    TP=8
fi
torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size $TP $EXTRA
"""
    judged = asked(tmp_path, text)
    assert judged.legal, judged.violations
    assert (judged.proposal.tp, judged.proposal.sequence_parallel) == (2, True)
    assert not any("branches" in note for note in judged.notes)


def test_branches_that_depend_on_parameters_are_told(tmp_path):
    text = f"""
if [ $1 = fast ]; then TP=4; else TP=2; fi
torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size $TP
"""
    judged = asked(tmp_path, text)
    assert judged.proposal.tp == 2
    assert any("the last assignment counts: [ $1 = fast ]" in note for note in judged.notes)


def test_a_batch_job_behind_a_text_is_read_with_its_command_in_a_string(tmp_path):
    text = f"""
ARGS=({SIZES} {BATCH} --tensor-model-parallel-size 4)
CMD="
cd /code;
python pretrain_gpt.py ${{ARGS[@]}}"
sbatch <<EOF
#!/bin/bash
srun --mpi=pmix bash -x -c "${{CMD}}" 2>&1 | tee \\${{SLURM_JOB_ID}}.log
EOF
"""
    judged = asked(tmp_path, text, world=8)
    assert judged.legal, judged.violations
    assert judged.proposal.tp == 4


def test_printing_a_command_starts_nothing_and_the_launcher_counts_the_gpus(tmp_path):
    text = f"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
NNODES=$SLURM_NNODES
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 8 --nnodes $NNODES"
export CMD="pretrain_gpt.py {SIZES} {BATCH}"
echo $CMD
srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee log.txt
"""
    assert asked(tmp_path, text).world == 32


def test_words_behind_eval_are_read_again(tmp_path):
    text = f"""
options=" --moe-layer-freq '([0]*1+[1]*7)' --num-experts 8 "
run="torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} $options &> $(date "+%Y %m").log"
eval ${{run}}
"""
    judged = asked(tmp_path, text)
    assert judged.legal, judged.violations
    assert judged.model.layers == 8


def test_what_is_not_known_stays_one_word():
    read = read_script('STEPS=$(( $TOKENS / $2 ))\nprogram --steps ${STEPS} --log $(date "+%H %M") --last ${10}\n')
    words = read.commands[0].words
    assert len(words) == 7
    assert words[-1] == "${10}"


DEEPSPEED = """
config=./ds_$SLURM_JOB_ID.json
ZERO=1
cat <<EOT > $config
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": $ZERO}}
EOT
deepspeed --num_gpus 8 --num_nodes 1 pretrain_gpt.py --deepspeed --deepspeed_config $config --zero-stage 1 SIZES
""".replace("SIZES", SIZES)


def test_a_configuration_that_the_script_writes(tmp_path):
    judged = asked(tmp_path, DEEPSPEED, "deepspeed")
    assert judged.legal, judged.violations
    assert (judged.layout.first.zero, judged.layout.num_microbatches) == (1, 4)
    quoted = read_script(DEEPSPEED.replace("<<EOT", "<<'EOT'"))
    assert '"stage": $ZERO}' in next(iter(written_files(quoted, tmp_path).values()))
    with pytest.raises(InputError, match=r"values that are not in the file: \$3"):
        asked(tmp_path, DEEPSPEED.replace("ZERO=1", "ZERO=$3"), "deepspeed")


def test_a_configuration_made_of_a_template(tmp_path):
    content = {"train_batch_size": "BATCH", "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    script(tmp_path, json.dumps(content).replace('"BATCH"', "BATCH"), "ds_template.json")
    text = f"""
GLOBAL=64
sed "s/BATCH/${{GLOBAL}}/" ds_template.json | sed "s#MISSING#1#g" > made.json
deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config made.json {SIZES}
"""
    judged = asked(tmp_path, text, "deepspeed")
    assert judged.legal, judged.violations
    assert (judged.layout.first.zero, judged.layout.num_microbatches) == (2, 2)


def test_a_deepspeed_launch_is_not_judged_as_one_of_megatron(tmp_path):
    with pytest.raises(InputError, match="--framework deepspeed"):
        asked(tmp_path, DEEPSPEED)


@pytest.mark.parametrize(("pp", "split"), [(4, (2, 3, 3, 2)), (12, (0, *[1] * 10, 0))])
def test_embeddings_may_count_as_layers_in_deepspeed(tmp_path, pp, split):
    """Megatron-DeepSpeed's ``type:transformer|embedding``: 10 layers and two embeddings over 4 or 12 stages."""
    text = DEEPSPEED.replace("--num-layers 8", "--num-layers 10").replace("--num_nodes 1", "--num_nodes 6")
    text = text.replace('"train_batch_size": 64', '"train_batch_size": 48')
    extra = f"--pipeline-model-parallel-size {pp} --pp-partition-method 'type:transformer|embedding' "
    judged = asked(tmp_path, text.replace("--deepspeed ", f"--deepspeed {extra}"), "deepspeed")
    assert judged.legal, judged.violations
    assert tuple(stage.layers for stage in judged.layout.stages) == split
    plain = asked(tmp_path, text.replace("--deepspeed ", "--deepspeed --pipeline-model-parallel-size 12 "), "deepspeed")
    assert {violation.rule for violation in plain.violations} == {"deepspeed-layers-fill"}


def test_values_that_only_the_caller_knows_are_asked_for(tmp_path):
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size ${{12}}\n"
    with pytest.raises(InputError, match=r"values are not in the file: --tensor-model-parallel-size \$\{12\}"):
        asked(tmp_path, text)
    judged = asked(tmp_path, text, arguments=("--tensor-model-parallel-size", "2"))
    assert judged.proposal.tp == 2


def test_gpus_that_are_not_stated_are_asked_for_where_they_decide(tmp_path):
    text = f"python pretrain_gpt.py {SIZES} {BATCH}"
    assert any("how many GPUs" in note for note in asked(tmp_path, text).notes)
    with pytest.raises(InputError, match="does not say how many GPUs"):
        asked(tmp_path, f"{text} --tensor-model-parallel-size 2")


def test_options_of_another_program_are_named_and_the_rest_is_judged(tmp_path):
    own = "--patch-tokenizer-type Own --extra-vocab-size 293"
    judged = asked(tmp_path, f"torchrun --nproc_per_node 8 ../qwen/pretrain_qwen.py {SIZES} {own} {BATCH}")
    assert judged.legal, judged.violations
    assert judged.unknown == ("--patch-tokenizer-type", "--extra-vocab-size")
    assert any("pretrain_qwen.py is not Megatron-LM's own program" in note for note in judged.notes)
    assert not asked(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {own} {BATCH}").legal


def test_redirections_are_no_arguments_and_placeholders_are_values(tmp_path):
    text = f"DATA=<your_data>\npython pretrain_gpt.py --data-path $DATA {SIZES} 2> err.txt >out {BATCH}\n"
    words = read_launch_text(script(tmp_path, text), ()).arguments
    assert words[:2] == ("--data-path", "<your_data>")
    assert words[-2:] == ("--vocab-size", "32000")


def test_lists_of_values_in_a_yaml_of_flags(tmp_path):
    text = "MODEL_ARGS:\n  --sizes: 2 4\n  --modules: '[moe_act mlp]'\n  --freq: ([0]*1+[1]*7)\n"
    words = read_launch_text(script(tmp_path, text, "m.yaml"), ()).arguments
    assert words == ("--sizes", "2", "4", "--modules", "moe_act", "mlp", "--freq", "([0]*1+[1]*7)")


@pytest.mark.parametrize(
    "command",
    [
        r"""$(echo "$OVERRIDES" | tr '\n' ' ' | sed 's/  \+/ /g')""",
        "$(echo ${OVERRIDES} | xargs)",
        "`echo $OVERRIDES`",
    ],
)
def test_words_that_are_brought_onto_one_line_are_read(tmp_path, command):
    """Megatron-Bridge's scripts of gpt-oss build their command so."""
    script = tmp_path / "a.sh"
    script.write_text(
        'OVERRIDES=" model.tensor_model_parallel_size=2 \\\n  train.global_batch_size=64"\n'
        f'CMD="python run_recipe.py --recipe llama3_8b_pretrain_config"\nCMD="$CMD {command}"\nsrun bash -c "$CMD"\n'
    )
    judged = read_launch(LaunchQuestion(framework="bridge", file=script, world=8))
    assert (judged.proposal.tp, judged.proposal.global_batch) == (2, 64)
    assert "no value in" not in " ".join(judged.notes)


def test_what_other_commands_print_stays_open(tmp_path):
    script = tmp_path / "a.sh"
    script.write_text("A=4\nsrun python run.py --recipe llama3_8b train.global_batch_size=$(echo $A | wc -c)\n")
    with pytest.raises(InputError, match="values are not in the file"):
        read_launch(LaunchQuestion(framework="bridge", file=script, world=8))


def test_an_option_of_another_version_is_no_slip_of_the_pen(tmp_path):
    """The nearest of this version was offered, which is another thing."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --hybrid-attention-ratio 0.1\n"
    found = asked(tmp_path, text, version="0.19").violations[0]
    assert found.rule == "megatron-unknown-option"
    assert "core 0.13 to 0.16 know it: --framework-version 0.16" in found.message
    assert "did you mean" not in found.message


def test_a_program_of_two_stacks_has_no_price(tmp_path):
    """It was priced as the decoder alone."""
    judged = asked(tmp_path, f"torchrun --nproc_per_node 8 pretrain_t5.py {SIZES} {BATCH}\n")
    assert judged.model is None
    assert any(note.startswith("no price: the program builds more") for note in judged.notes)


@pytest.mark.parametrize(
    "command", ["torchrun --nproc_per_node 8 pretrain_gpt.py", "python pretrain_gpt.py", "pretrain_gpt.py"]
)
def test_a_whole_command_behind_two_dashes_is_read_as_a_script_of_one_line(command):
    words = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
        "--micro-batch-size 1 --bf16 --tensor-model-parallel-size 2"
    )
    given = f"CUDA_DEVICE_MAX_CONNECTIONS=2 {command} {words}"
    judged = read_launch(LaunchQuestion(framework="megatron", arguments=tuple(given.split()), world=8))
    assert [violation.rule for violation in judged.violations] == ["megatron-connections"]
    assert judged.proposal.tp == 2


def test_letters_are_changed_as_bash_changes_them(tmp_path):
    text = "A=${A:-BF16}\nB=${A,,}\nC=x${B^}\nD=${B^^}\ntorchrun x.py --a $B --c $C --d $D --e ${E,,}\n"
    words = read_launch_text(script(tmp_path, text), ()).arguments
    assert words == ("--a", "bf16", "--c", "xBf16", "--d", "BF16", "--e", "$E")


def test_a_script_is_started_with_its_arguments_and_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script(
        tmp_path, f"torchrun --nproc_per_node $GPUS pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size $1\n"
    )
    found = read_launch(LaunchQuestion(arguments=("GPUS=8", "bash", "train.sh", "4")))
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp) == (8, 4)


def test_what_installs_packages_trains_nothing(tmp_path):
    text = f"python -m pip install a b c --no-deps --upgrade\ntorchrun pretrain_gpt.py {SIZES} {BATCH}\n"
    assert read_launch_text(script(tmp_path, text), ()).program == "pretrain_gpt.py"
