"""The command as a user runs it: a process of its own. Few and fast."""

import json
import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "planner"]


def run(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize(
    "where",
    [
        "planner.cli.__dict__['main'] = stop",
        "sys.meta_path.insert(0, type('Finder', (), {'find_spec': stop})); sys.modules.pop('planner.cli')",
        "planner.cli.__dict__['main'] = lambda: exec('stop()')",
    ],
    ids=["running", "loading", "where the interpreter would end by the signal"],
)
def test_an_interrupt_ends_with_its_code_wherever_it_comes(where):
    program = "\n".join(
        [
            "import sys, planner.cli, planner.__main__",
            "def stop(*_): raise KeyboardInterrupt",
            where,
            "planner.__main__.main()",
        ]
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (130, "")


def test_help_is_there():
    result = run("--help")
    assert result.returncode == 0
    assert "search" in result.stdout


def test_a_mistake_in_a_process_ends_with_two_and_no_traceback():
    result = run("search", "llama3_9b", "dgx-h100:1", "--global-batch", "8", "--seq", "4096")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("plan: model 'llama3_9b' is not known; nearest: ")


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        command = [*COMMAND, "catalog", "models"]
        result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.stderr == ""
    assert result.returncode == 141


def test_piped_text_is_plain_and_json_stands_alone():
    environment = {**os.environ, "FORCE_COLOR": "", "TERM": "xterm-256color"}
    environment.pop("FORCE_COLOR")
    arguments = ("estimate", "llama3_8b", "dgx-h100:1", "--global-batch", "32", "--seq", "4096", "--tp", "2")
    plain = run(*arguments, env=environment)
    assert "\x1b" not in plain.stdout + plain.stderr
    assert max(map(len, plain.stdout.splitlines())) <= 100
    both = run(*arguments, "--json", "-", env=environment)
    assert json.loads(both.stdout)["layout"]["tp"] == 2
    assert both.stderr == plain.stdout


def test_a_full_disk_and_missing_streams_are_no_defects():
    command = " ".join(COMMAND)
    for words, code, said in (
        ("catalog models >/dev/full", 2, "plan: the output: No space left on device"),
        ("--help >/dev/full", 2, "plan: the output: No space left on device"),
        ("catalog models >&-", 0, ""),
        ("explain none.json 2>/dev/full", 2, ""),
    ):
        result = subprocess.run(
            f"{command} {words}", shell=True, capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr[: len(said)]) == (code, said), words
        assert "Traceback" not in result.stderr
