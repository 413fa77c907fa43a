"""Functions, ``case``, called scripts and several commands in launch scripts."""

import pytest
from launch_words import BATCH, SIZES
from typer.testing import CliRunner

from hardware.errors import InputError
from planner.cli import app
from planner.ingest.scripts.script import read_script
from planner.launches.check import read_launch
from planner.question import LaunchQuestion, PortQuestion, Question
from planner.report.porting_text import recipe_in

START = "torchrun --nproc_per_node 8 pretrain_gpt.py"


def judged(folder, text: str, **changes):
    file = folder / "train.sh"
    file.write_text(text)
    return read_launch(LaunchQuestion(framework="megatron", file=file, **changes))


def words(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in read_script(text).commands]


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ('f() { echo "$@"; }\nf a "b c"', ("echo", "a", "b c")),
        ("function f { echo $1 $3; }\nf a b c", ("echo", "a", "c")),
        ('function f() {\n  echo "${@:2}" $#\n}\nf a b c', ("echo", "b", "c", "3")),
        ("f ()\n{\n  echo ${1:-x} ${2:-y}\n}\nf a", ("echo", "a", "y")),
        ('f() { g --x "$@"; }\ng() { echo "$@"; }\nf 1', ("echo", "--x", "1")),
        ('f() { shift 2; echo "$@"; }\nf 1 2 3', ("echo", "3")),
        ('f() { shift 4; echo "$@"; }\nf 1 2 3', ("echo", "1", "2", "3")),  # bash: out of range, nothing is taken
        (f'f() {{ shift {"9" * 5000}; echo "$1"; }}\nf 1', ("echo", "1")),
        ('f() { local a=$1; shift; echo $a "$@"; }\nf 1 2 3', ("echo", "1", "2", "3")),
        ('f() { echo "$@" end; }\nf', ("echo", "end")),
        ("f() ( echo $1 )\nf a", ("echo", "a")),
        ('A=()\necho "${A[@]}" end', ("echo", "end")),
        ("A=1\nB=\necho ${A:+--on} ${B:+--off} ${B:-default} ${B-kept}", ("echo", "--on", "default")),
    ],
)
def test_functions_are_read_at_their_calls(text, called):
    assert words(text) == [called]


def test_local_names_end_with_their_function_and_others_do_not():
    assert words("A=1; B=1\nf() { local A=2; B=2; }\nf\necho $A $B") == [("echo", "1", "2")]


def test_a_function_that_nothing_calls_starts_nothing(tmp_path):
    text = f"old() {{ {START} {SIZES} {BATCH} --bad-option; }}\n{START} {SIZES} {BATCH}\n"
    assert judged(tmp_path, text).legal


def test_functions_that_call_themselves_end():
    assert words("f() { f; f; echo a; }\n") == []
    with pytest.raises(InputError, match="too many statements"):
        read_script("f() { f; f; }\nf")


def test_a_function_that_is_not_closed_is_named():
    with pytest.raises(InputError, match="function f is not closed"):
        read_script("f() { echo a\n")


def test_arguments_that_a_function_passes_on_are_judged(tmp_path):
    answer = judged(tmp_path, f'LAYERS=8\nrun() {{ {START} "$@"; }}\nrun {SIZES} --num-layers $LAYERS {BATCH}\n')
    assert answer.legal
    assert answer.world == 8
    assert answer.proposal.model.layers == 8


def test_options_that_the_caller_may_give_are_asked_for_not_called_missing(tmp_path):
    with pytest.raises(InputError, match=r"may stand in what the file does not hold \(\$@\): --num-layers"):
        judged(tmp_path, f'{START} "$@"\n')
    assert judged(tmp_path, f'{START} "$@"\n', arguments=tuple(f"{SIZES} {BATCH}".split())).legal


@pytest.mark.parametrize(("model", "layers"), [("7b", 32), ("8b", 32), ("13b", 40), ("70b-chat", 80), ("other", 2)])
def test_of_a_case_the_arm_that_fits_counts(model, layers):
    text = f"""
MODEL={model}
case "$MODEL" in
  7b|8b) L=32;;
  (13b) L=40 ;;
  "70b"*)
    if [ 1 = 2 ]; then L=1; else L=80; fi
    ;;
  *) L=2
esac
echo $L"""
    assert words(text)[-1] == ("echo", str(layers))


def test_a_case_over_what_is_not_known_is_told(tmp_path):
    text = f"case $1 in small) TP=1;; large) TP=2;; esac\n{START} {SIZES} {BATCH} --tensor-model-parallel-size $TP\n"
    answer = judged(tmp_path, text)
    assert answer.proposal.tp == 2
    assert any("case $1" in note and "last assignment counts" in note for note in answer.notes)


def test_options_of_the_script_itself_count_as_not_given(tmp_path):
    text = f"""TP=4
while [[ $# -gt 0 ]]; do
  case "$1" in
    --tp) TP="$2"; shift 2;;
    *) echo unknown; exit 1;;
  esac
done
{START} {SIZES} {BATCH} --tensor-model-parallel-size $TP
"""
    answer = judged(tmp_path, text)
    assert answer.proposal.tp == 4
    assert any("count as not given" in note and "case $1" in note for note in answer.notes)


@pytest.mark.parametrize("between", ["\n", " &&\n", "; "])
def test_a_second_training_command_is_told(between, tmp_path):
    text = f"{START} {SIZES} {BATCH}{between}{START} {SIZES} {BATCH} --tensor-model-parallel-size 2\n"
    answer = judged(tmp_path, text)
    assert answer.proposal.tp == 2
    assert any("2 training commands; judged is number 2" in note for note in answer.notes)
    alone = judged(tmp_path, f"python tools/preprocess_data.py --input a\n{START} {SIZES} {BATCH}\n")
    assert not any("training commands" in note for note in alone.notes)


@pytest.mark.parametrize(
    "call", ['srun -N 1 "$here/rank.sh" "$@"', "bash rank.sh --bf16", "exec mpirun -np 8 ./rank.sh"]
)
def test_a_script_beside_it_that_a_script_calls_is_read(call, tmp_path):
    (tmp_path / "rank.sh").write_text(f'export WORLD_SIZE=8\npython "$TRAIN" {SIZES} {BATCH} "$@"\n')
    answer = judged(tmp_path, f"here=$(pwd)\nextra=()\n{call}\n")
    assert answer.legal
    assert answer.world == 8


def test_scripts_that_call_each_other_end(tmp_path):
    (tmp_path / "rank.sh").write_text("bash train.sh\n")
    with pytest.raises(InputError, match="no training command"):
        judged(tmp_path, "bash rank.sh\n")


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun"])
def test_an_exports_folder_is_judged_and_carried_by_its_launch_script(launcher, tmp_path):
    run, report, folder = CliRunner(), str(tmp_path / "report.json"), tmp_path / "out"
    layout = ("--tp", "2", "--pp", "2", "--global-batch", "16", "--seq", "4096", "--json", report)
    priced = run.invoke(app, ["estimate", "llama32_1b", "dgx-h100:1", *layout, "--launcher", launcher])
    assert priced.exit_code == 0, priced.output
    exported = run.invoke(app, ["export", report, "--to", "megatron", "--launcher", launcher, "--output", str(folder)])
    assert exported.exit_code == 0, exported.output
    script = folder / "launch.sh"
    answer = read_launch(LaunchQuestion(framework="megatron", file=script))
    assert answer.legal
    assert (answer.world, answer.proposal.tp, answer.proposal.pp) == (8, 2, 2)
    recipe = recipe_in(PortQuestion(file=script, asked=Question(model="", cluster="dgx-h100:1", global_batch=0)))
    assert (recipe.layout.pp, recipe.global_batch) == (2, 16)
