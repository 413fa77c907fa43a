"""Sweeps: files, points, tables, resuming and workers."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import plan_samples as samples
import pytest
from rich.console import Console

from hardware.errors import InputError
from planner import commands
from planner.question import Question
from planner.report.sweep_text import print_sweep, short_names
from planner.sweeps import sweep
from planner.sweeps.sweep import COLUMNS, run_sweep
from planner.sweeps.sweep_file import read_sweep

EXAMPLES = Path(__file__).parents[1] / "examples" / "sweeps"
SMALL = tuple(
    Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=batch, seq=4096, top=2, fixed=("tp=2", "pp=1"))
    for batch in (32, 64)
)
HOPELESS = Question(model="llama31_405b", cluster="dgx-h100:1", global_batch=8, seq=4096)
WRONG = Question(model="llama3_9b", cluster="dgx-h100:1", global_batch=8, seq=4096)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_leaves_a_table_and_a_report_for_every_point(tmp_path):
    run_sweep((*SMALL, HOPELESS, WRONG), tmp_path)
    rows = table(tmp_path)
    assert [row["status"] for row in rows] == ["ok", "ok", "infeasible", "error"]
    assert tuple(rows[0]) == COLUMNS
    assert [row["global_batch"] for row in rows] == ["32", "64", "8", "8"]
    assert rows[0]["tp"] == "2"
    assert float(rows[1]["step_time_s"]) > float(rows[0]["step_time_s"])
    assert "nearest: " in rows[2]["reason"]
    assert "nearest: llama3_8b" in rows[3]["reason"]
    for row in rows:
        assert (tmp_path / row["report"]).is_file()
    report = json.loads((tmp_path / rows[0]["report"]).read_text())
    assert report["layouts"][0]["step_time_s"] == float(rows[0]["step_time_s"])


def test_the_same_request_gives_the_same_row_in_any_process(tmp_path):
    run_sweep(SMALL, tmp_path / "one")
    run_sweep(SMALL, tmp_path / "two", workers=2)
    one, two = (tmp_path / name / "results.csv" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.fixture
def counted(monkeypatch):
    """Count the searches; each gives a made-up report."""
    asked: list[str] = []

    def plan(request):
        asked.append(request.model.name)
        return samples.report() if request.job.global_batch != 8 else samples.infeasible_report()

    monkeypatch.setattr(sweep, "plan", plan)
    return asked


def test_resume_keeps_what_is_there(tmp_path, counted):
    first = run_sweep((*SMALL, HOPELESS, WRONG), tmp_path)
    assert (len(counted), first.kept) == (3, 0)
    again = run_sweep((*SMALL, HOPELESS, WRONG), tmp_path, resume=True)
    assert (len(counted), again.kept) == (3, 4)
    assert again.rows == first.rows
    run_sweep((*SMALL, HOPELESS, WRONG), tmp_path)
    assert len(counted) == 6


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": "x"}'])
def test_resume_answers_damaged_points_anew(tmp_path, counted, damage):
    first = run_sweep(SMALL, tmp_path)
    point = tmp_path / str(first.rows[0]["report"])
    point.write_text(damage)
    again = run_sweep(SMALL, tmp_path, resume=True)
    assert (len(counted), again.kept) == (3, 1)
    assert again.rows == first.rows


def test_resume_answers_anew_what_another_planner_or_file_answered(tmp_path, counted, monkeypatch):
    cluster = tmp_path / "lab.toml"
    cluster.write_text('name = "lab"\n[[island]]\nnode = "dgx-h100"\nnodes = 1\n')
    question = replace(SMALL[0], cluster=str(cluster))
    run_sweep((question,), tmp_path / "out")
    assert run_sweep((question,), tmp_path / "out", resume=True).kept == 1
    cluster.write_text('name = "lab"\n[[island]]\nnode = "dgx-h100"\nnodes = 2\n')
    assert run_sweep((question,), tmp_path / "out", resume=True).kept == 0
    monkeypatch.setattr(sweep, "version", lambda: "0.0.0")
    assert run_sweep((question,), tmp_path / "out", resume=True).kept == 0
    assert len(counted) == 3


def test_an_interrupt_keeps_points_and_writes_no_table(tmp_path, monkeypatch):
    def plan(request):
        if request.job.global_batch == 64:
            raise KeyboardInterrupt
        return samples.report()

    monkeypatch.setattr(sweep, "plan", plan)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SMALL, tmp_path)
    assert not (tmp_path / "results.csv").exists()
    assert len(list((tmp_path / "points").iterdir())) == 1


def test_an_interrupted_process_leaves_no_worker_and_no_half_file(tmp_path):
    file = tmp_path / "sweep.toml"
    batches = list(range(8, 8 * 2000, 8))
    names = 'models = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\nfixed = ["tp=2", "pp=1", "micro_batch=1"]'
    file.write_text(f"[[grid]]\n{names}\nglobal_batches = {batches}\nsequences = [4096]\n")
    command = [sys.executable, "-m", "planner", "sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    points = tmp_path / "out" / "points"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and not list(points.glob("*.json")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert b"Traceback" not in error
    assert not (tmp_path / "out" / "results.csv").exists()
    for path in points.glob("*.json"):
        json.loads(path.read_text())
    kept = sorted(points.glob("*"))
    assert kept == sorted(points.glob("*.json")) != []
    time.sleep(1.5)  # a worker that lived on would finish a point in this time
    assert sorted(points.glob("*")) == kept


def test_workers_end_with_a_sweep_that_is_killed_and_resume_completes_it(tmp_path):
    file = tmp_path / "sweep.toml"
    names = 'models = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\nfixed = ["tp=2", "pp=1", "micro_batch=1"]'
    file.write_text(f"[[grid]]\n{names}\nglobal_batches = {list(range(8, 8 * 2000, 8))}\nsequences = [4096]\n")
    command = [sys.executable, "-m", "planner", "sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    points = tmp_path / "out" / "points"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and not list(points.glob("*.json")):
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)  # ends when the last process that holds the pipe is gone
    kept = sorted(points.glob("*.json"))
    assert kept
    file.write_text(f"[[grid]]\n{names}\nglobal_batches = [8, 16]\nsequences = [4096]\n")
    result = run_sweep(read_sweep(file).questions, tmp_path / "out", resume=True)
    assert [row["status"] for row in result.rows] == ["ok", "ok"]
    assert result.kept >= 1
    assert not list(points.glob(".*"))


def test_an_interrupt_while_workers_load_leaves_no_traceback(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[[grid]]\nmodels = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\nglobal_batches = [8, 16, 24, 32]\n'
        'sequences = [4096]\nfixed = ["tp=2", "pp=1"]\n'
    )
    command = [sys.executable, "-m", "planner", "sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and not (tmp_path / "out" / "points").exists():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert b"Traceback" not in error


def test_examples_are_read():
    paths = sorted(EXAMPLES.glob("*.toml"))
    assert paths
    for path in paths:
        assert read_sweep(path).questions


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


GRID = '[[grid]]\nmodels = ["a", "b"]\nclusters = ["c"]\nglobal_batches = [1, 2]\n'


def test_a_grid_asks_every_combination_in_order(tmp_path):
    file = read_sweep(write(tmp_path, f"{GRID}precisions = ['bf16', 'fp8']\nfixed = ['tp=2']\ntime_limit_s = 5\n"))
    asked = [(q.model, q.global_batch, q.precision) for q in file.questions]
    assert asked == [(m, b, p) for m in "ab" for b in (1, 2) for p in ("bf16", "fp8")]
    assert file.questions[0].fixed == ("tp=2",)
    assert file.questions[0].time_limit_s == 5.0
    assert file.title == "sweep"


def test_a_grid_states_loss_adapters_software_and_offload_and_the_table_has_them(tmp_path):
    stated = (
        "software = ['compiled=off']\noffload = 'optimizer'\nloss = 'liger'\nlora_rank = 8\nlora_targets = 'attn'\n"
    )
    question = read_sweep(write(tmp_path, f"{GRID}frameworks = ['none']\n{stated}")).questions[0]
    names = ("software", "offload", "loss", "lora_rank", "lora_targets")
    assert [getattr(question, name) for name in names] == [("compiled=off",), "optimizer", "liger", 8, "attn"]
    row = sweep.row_of(replace(question, software=("a", "b")), {"error": "none"}, "")
    assert [row[name] for name in names] == ["a; b", "optimizer", "liger", 8, "attn"]


def test_what_is_asked_twice_is_answered_once(tmp_path):
    assert len(read_sweep(write(tmp_path, GRID + GRID)).questions) == 4


def test_files_are_found_beside_the_sweep(tmp_path):
    text = '[[grid]]\nmodels = ["m/config.json"]\nclusters = ["lab.toml", "dgx-h100:8"]\nglobal_batches = [1]\n'
    found = read_sweep(write(tmp_path, text)).questions
    assert found[0].model == str(tmp_path / "m" / "config.json")
    assert [question.cluster for question in found] == [str(tmp_path / "lab.toml"), "dgx-h100:8"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "grid"),
        ("x = 1\n" + GRID, "'x'"),
        (GRID + "model = 'a'\n", "models"),
        ("[[grid]]\nclusters = ['c']\nglobal_batches = [1]\n", "models"),
        ("[[grid]]\nmodels = []\nclusters = ['c']\nglobal_batches = [1]\n", "models"),
        ("[[grid]]\nmodels = ['a']\nclusters = ['c']\nglobal_batches = ['1']\n", "global_batches"),
        ("[[grid]]\nmodels = ['a']\nclusters = ['c']\nglobal_batches = [0]\n", "global_batches"),
        (GRID + "power_caps_w = ['x']\n", "power_caps_w"),
        (GRID + "power_caps_w = [-1]\n", "power_caps_w"),
        (GRID + "thermal = 'no'\n", "thermal"),
        (GRID + "sequences = " + str(list(range(1, 60000))), "points"),
        ("[[grid]\n", "TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_field(text, words, tmp_path):
    with pytest.raises(InputError) as error:
        read_sweep(write(tmp_path, text))
    assert words in str(error.value)
    assert "sweep.toml" in str(error.value)


def test_a_defect_of_one_point_is_its_row(tmp_path, monkeypatch):
    def broken(_):
        raise ZeroDivisionError("nothing there")

    monkeypatch.setattr("planner.sweeps.sweep.plan", broken)
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=1024)
    rows = run_sweep([asked], tmp_path).rows
    assert (rows[0]["status"], rows[0]["reason"]) == (
        "error",
        "a defect of the planner: ZeroDivisionError: nothing there",
    )


def test_the_printed_table_numbers_its_reasons(tmp_path):
    bad = [
        Question(model=name, cluster="dgx-h100:1", global_batch=8, seq=64) for name in ("none_a", "none_a", "none_b")
    ]
    result = run_sweep([bad[0], replace(bad[1], seq=32), bad[2]], tmp_path)
    stream = io.StringIO()
    print_sweep(Console(file=stream, width=80), "Three", result)
    text = stream.getvalue()
    assert text.count("error [1]") == 2
    assert text.count("error [2]") == 1
    assert text.count("model 'none_a' is not known") == 1


def test_files_of_one_table_can_be_told_apart(tmp_path):
    folder = "clusters/of/a/project/with/a/rather/long/name/of/its/own/and/then/some/more"
    asked = [
        Question(model="none_a", cluster=f"{folder}/{name}.toml", global_batch=8, seq=64) for name in ("two", "four")
    ]
    stream = io.StringIO()
    print_sweep(Console(file=stream, width=80), "Two", run_sweep(asked, tmp_path))
    assert [line.split()[0] for line in stream.getvalue().splitlines() if "error" in line] == ["two.toml", "four.toml"]
    both = {"a/x/lab.toml", "b/x/lab.toml", "dgx-h100:2"}
    assert short_names(both) == {name: name for name in both}
    assert short_names({"a/x/lab.toml", "a/y/lab.toml"}) == {"a/x/lab.toml": "x/lab.toml", "a/y/lab.toml": "y/lab.toml"}


def test_a_long_name_is_broken_not_cut(tmp_path):
    names = [f"{'machine-' * 14}{end}.toml" for end in ("two", "four")]
    asked = [Question(model="none_a", cluster=name, global_batch=8, seq=64) for name in names]
    stream = io.StringIO()
    print_sweep(Console(file=stream, width=60), "Two", run_sweep(asked, tmp_path))
    text = stream.getvalue().partition("Why points")[0]
    assert "…" not in text
    assert "two.toml" in text.replace("\n", "").replace(" ", "")


class _Future:
    def __init__(self, value):
        self.result = lambda: value


class _Client:
    """Does at once what a scheduler's workers would do."""

    def __init__(self, address, **_):
        if address == "tcp://nobody:1":
            raise OSError("timed out")

    def submit(self, work, question, **_):
        return _Future(work(question))

    def cancel(self, futures):
        self.cancelled = futures

    def close(self):
        self.closed = True


def scheduled(monkeypatch):
    module = types.ModuleType("distributed")
    module.Client, module.KilledWorker = _Client, type("KilledWorker", (Exception,), {})
    module.as_completed = reversed
    monkeypatch.setitem(sys.modules, "distributed", module)


def test_workers_of_a_scheduler_give_the_same_table(tmp_path, monkeypatch):
    here = run_sweep([HOPELESS, WRONG], tmp_path / "here")
    scheduled(monkeypatch)
    there = run_sweep([HOPELESS, WRONG], tmp_path / "there", scheduler="tcp://head:8786")
    assert there.rows == here.rows
    assert (tmp_path / "there" / "results.csv").read_bytes() == (tmp_path / "here" / "results.csv").read_bytes()


def test_a_scheduler_that_is_not_there_is_said(tmp_path, monkeypatch):
    scheduled(monkeypatch)
    with pytest.raises(InputError, match="--scheduler tcp://nobody:1: no scheduler answers"):
        run_sweep([WRONG], tmp_path, scheduler="tcp://nobody:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="needs the package distributed"):
        run_sweep([WRONG], tmp_path, scheduler="tcp://head:8786")


def test_two_sweeps_do_not_share_a_folder(tmp_path, monkeypatch):
    def plan(_):
        with pytest.raises(InputError, match="another sweep works in this folder"):
            run_sweep(SMALL, tmp_path)
        return samples.report()

    monkeypatch.setattr(sweep, "plan", plan)
    assert len(run_sweep(SMALL, tmp_path).rows) == len(SMALL)
    assert (tmp_path / "results.csv").exists()


def test_the_table_is_not_written_over_the_sweep(tmp_path):
    file = tmp_path / "results.csv"
    file.write_text(
        "[[grid]]\nmodels = ['llama3_8b']\nclusters = ['dgx-h100:1']\nglobal_batches = [8]\nsequences = [64]\n"
    )
    with pytest.raises(InputError, match="would overwrite what is read"):
        commands.sweep(file, tmp_path, workers=1, scheduler="", resume=False)


def test_a_folder_that_holds_a_sweep_is_not_written_over(tmp_path, counted):
    file, folder = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(
        "[[grid]]\nmodels = ['llama3_8b']\nclusters = ['dgx-h100:1']\nglobal_batches = [16]\nsequences = [64]\n"
    )
    commands.sweep(file, folder, workers=1, scheduler="", resume=False)
    with pytest.raises(InputError, match="out holds a sweep; allowed: --resume"):
        commands.sweep(file, folder, workers=1, scheduler="", resume=False)
    (folder / "results.csv").unlink()  # as an interrupted one leaves it
    with pytest.raises(InputError, match="out holds a sweep"):
        commands.sweep(file, folder, workers=1, scheduler="", resume=False)
    commands.sweep(file, folder, workers=1, scheduler="", resume=True)
    assert len(counted) == 1


def test_the_table_says_what_the_time_limit_cut(tmp_path, monkeypatch):
    report = samples.report()
    search = replace(report.search, cut=(("splits of grids", 3),))
    monkeypatch.setattr(sweep, "plan", lambda _: replace(report, search=search))
    (row,) = run_sweep(SMALL[:1], tmp_path).rows
    assert row["cut"] == "3 splits of grids"
    monkeypatch.setattr(sweep, "plan", lambda _: report)
    assert run_sweep(SMALL[:1], tmp_path).rows[0]["cut"] == ""
