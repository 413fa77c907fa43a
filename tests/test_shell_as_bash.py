"""Scripts are read as bash itself runs them: the words that reach the training program are compared with bash's."""

import contextlib
import subprocess
import tomllib
from pathlib import Path

import pytest

from hardware.errors import InputError
from planner.ingest.launch_text import read_launch_text
from planner.ingest.options import megatron_options, read_arguments
from planner.ingest.scripts.script import read_script

TRAIN = "torchrun --nproc_per_node 8 pretrain_gpt.py"
STAND_IN = "torchrun() { shift 3; printf '%s\\0' \"$@\"; }\n"
"""In the place of the launcher: prints what stands behind the program."""
SCRIPTS = tomllib.loads(Path(__file__).with_name("fixtures").joinpath("shell_scripts.toml").read_text("utf-8"))


def of_bash(text: str) -> list[str]:
    found = subprocess.run(["bash", "-c", STAND_IN + text], capture_output=True, check=True, env={}, timeout=60)
    return found.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("text", SCRIPTS["same"])
def test_words_are_those_of_bash(tmp_path, text):
    file = tmp_path / "train.sh"
    text = text.replace("TRAIN", TRAIN)
    file.write_text(text)
    read = read_launch_text(file, ())
    assert list(read.arguments) == of_bash(text)
    assert not [note for note in read.notes if note.startswith("of the branches")]


@pytest.mark.parametrize("text", SCRIPTS["open"])
def test_what_is_not_understood_is_named_and_no_other_value_is_taken(tmp_path, text):
    """Bash gives 4; a reading that has no value says so."""
    file = tmp_path / "train.sh"
    text = text.replace("TRAIN", TRAIN)
    assert of_bash(text) == ["--tp", "4"]
    file.write_text(text)
    read = read_launch_text(file, ())
    assert read.arguments[1] in read.unresolved


@pytest.mark.parametrize("test", SCRIPTS["undecided"])
def test_a_branch_that_is_not_decided_is_told(tmp_path, test):
    file = tmp_path / "train.sh"
    file.write_text(f"TP=2\n{test}\n{TRAIN} --tp $TP\n")
    notes = " ".join(read_launch_text(file, ()).notes)
    assert "of the branches behind these tests all are read and the last assignment counts" in notes


def test_words_that_can_be_no_path_are_no_files(tmp_path):
    """A text of sed that ends in ``.sh`` and has more letters than a file's name may."""
    file = tmp_path / "train.sh"
    file.write_text(f"sed -i '{'x' * 300}\n.sh' a.py\nbash '{'y' * 5000}.sh'\n{TRAIN} --tp 4\n")
    assert read_launch_text(file, ()).arguments == ("--tp", "4")


def test_a_called_script_is_found_in_its_folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "inner.sh").write_text(f"{TRAIN} --tp $1\n")
    file = tmp_path / "train.sh"
    file.write_text("exec bash scripts/inner.sh 4 2>&1 | tee log.txt\n")
    assert read_launch_text(file, ()).arguments == ("--tp", "4")


def test_a_variable_of_launcher_options_is_not_the_program(tmp_path):
    file = tmp_path / "train.sh"
    file.write_text("python -m torch.distributed.launch $DISTRIBUTED_ARGS pretrain_gpt.py --tp 4\n")
    read = read_launch_text(file, ())
    assert (read.program, read.arguments) == ("pretrain_gpt.py", ("--tp", "4"))


def test_what_goes_to_a_descriptor_is_not_written_into_a_file_of_that_name():
    commands = read_script("echo a >&2\necho b > log\necho c 2>&1 >> more\necho d &> all").commands
    assert [command.writes for command in commands] == [(), ("log",), ("more",), ("all",)]


def test_line_ends_of_windows_are_told(tmp_path):
    file = tmp_path / "train.sh"
    file.write_bytes(f"TP=4\r\n{TRAIN} --tp $TP \\\r\n --pp 2\r\n".encode())
    read = read_launch_text(file, ())
    assert read.arguments == ("--tp", "4", "--pp", "2")
    assert "line ends of Windows" in read.notes[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("if [ a ]; then TRAIN --tp 4", "an if is not closed"),
        ("case a in\n a) TRAIN --tp 4;;", "a case is not closed"),
        ("{ TRAIN --tp 4", "a bracket { is not closed"),
        ("X=$(date\nTRAIN --tp 4", r"train\.sh: a bracket \( is not closed"),
        ("A=aaaa\n" + "A=$A$A\n" * 60, r"train\.sh: a word grows beyond"),
        (" \n\t", r"train\.sh: is empty"),
    ],
)
def test_what_bash_refuses_is_refused_by_the_name_of_the_file(tmp_path, text, said):
    file = tmp_path / "train.sh"
    file.write_text(text.replace("TRAIN", TRAIN))
    with pytest.raises(InputError, match=said):
        read_launch_text(file, ())


@pytest.mark.parametrize("name", ["empty.json", "empty.toml", "empty.yaml"])
def test_an_empty_file_is_no_launch(tmp_path, name):
    (tmp_path / name).write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_launch_text(tmp_path / name, ())


@pytest.mark.parametrize(
    "text", ["X=$[\nTRAIN --tp 4", "[\n[[\n]]\ntest\n[ ! ]\n[[ && ]]\n((\n", "for\nfor x in\nlet\nread\n"]
)
def test_broken_lines_are_no_defect(tmp_path, text):
    file = tmp_path / "train.sh"
    file.write_text(text.replace("TRAIN", TRAIN))
    with contextlib.suppress(InputError):
        read_launch_text(file, ())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["\u2014num-layers", "8"], "em dash"),
        (["\u2013-num-layers", "8"], "en dash"),
        (["--num-layers", "8\u00a0--bf16"], "no-break space"),
        (["--num\u2011layers", "8"], "non-breaking hyphen"),
        (["--optimizer", "\u201cadam\u201d"], "left double quotation mark, right double quotation mark"),
        ([" "], "a blank behind the backslash at the end of a line"),
        (["--num-layers", "\u0663.5"], ""),
    ],
)
def test_letters_of_documents_that_look_like_those_of_a_shell_are_named(words, named):
    message = read_arguments(words, megatron_options("0.19")).faults[0].message
    assert named in message
    assert bool(named) == ("a shell takes for letters" in message or "backslash" in message)
