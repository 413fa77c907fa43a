"""Workers of a sweep: they may be ended in the middle of an answer, and none is left when a sweep ends, however."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from quick_and_deep import quick_and_deep
from sweep_jobs import broken, double, ending, large, refused, where

from hardware.errors import InputError
from planner.question import Question
from planner.sweeps.sweep import run_sweep
from planner.sweeps.workers import answers_of

PATIENCE_S = 60
QUESTIONS = tuple(
    Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=batch, seq=4096, fixed=("tp=2", "pp=1"))
    for batch in (8, 16, 24, 32)
)
SHIELDED = """
from sweep_jobs import shielded
from planner.sweeps.workers import answers_of
assert all(answer for _, answer in answers_of(shielded, [(1,), (2,)], 2))
"""
INTERRUPTED = """
from sweep_jobs import large
from planner.sweeps.workers import answers_of
for number, answer in answers_of(large, [(one,) for one in range(10_000)], 2):
    print(number, flush=True)
"""


@pytest.fixture
def patience():
    """Fail, instead of waiting for ever."""

    def give_up(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("workers", "jobs"), [(1, 3), (2, 9), (4, 2)])
def test_every_job_is_answered_once(workers, jobs):
    assert sorted(answers_of(double, [(one,) for one in range(jobs)], workers)) == [(n, 2 * n) for n in range(jobs)]
    assert multiprocessing.active_children() == []


def test_no_more_workers_are_started_than_there_are_jobs():
    assert len(set(dict(answers_of(where, [(1,), (2,)], 8)).values())) <= 2
    assert list(answers_of(where, [], 8)) == []


def test_what_a_job_refuses_is_refused_and_a_defect_has_its_traceback():
    with pytest.raises(InputError, match=r"^job: 7; allowed: another number$"):
        list(answers_of(refused, [(7,)], 1))
    with pytest.raises(RuntimeError, match=r"in broken\n(.*\n)*ZeroDivisionError: job 7"):
        list(answers_of(broken, [(7,)], 1))


@pytest.mark.usefixtures("patience")
def test_a_worker_that_ends_in_the_middle_of_an_answer_is_said():
    with contextlib.closing(answers_of(ending, [(0,), (1,)], 1)) as answers:
        assert next(answers) == (0, 0)
        with pytest.raises(InputError, match="a worker died, perhaps for want of memory"):
            next(answers)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("patience")
def test_workers_in_the_middle_of_answers_are_stopped():
    answers = answers_of(large, [(one,) for one in range(6)], 3)
    next(answers)
    answers.close()
    assert multiprocessing.active_children() == []


def importing():
    """An environment in which this module can be imported."""
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": paths}


def test_an_interrupt_of_the_terminal_does_not_reach_workers():
    """In a fresh process: what multiprocessing starts beside the first worker is not running yet."""
    subprocess.run([sys.executable, "-c", SHIELDED], check=True, timeout=PATIENCE_S, env=importing())


@pytest.mark.parametrize("answered", [1, 2, 5])
def test_an_interrupt_from_outside_ends_it_wherever_the_answers_are(answered):
    """The interrupt comes after so many of the large answers, when workers are writing; all share standard output."""
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=importing()
    )
    assert process.stdout is not None
    for _ in range(answered):
        assert process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    try:
        _, error = process.communicate(timeout=PATIENCE_S)  # ends when the last process that holds the pipe is gone
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert error.rstrip().endswith(b"KeyboardInterrupt")


@pytest.mark.parametrize("workers", quick_and_deep([2], [1]))
def test_an_interrupt_between_answers_leaves_no_worker(tmp_path, workers):
    def interrupt(_done, _of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(QUESTIONS, tmp_path, workers=workers, progress=interrupt)
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "results.csv").exists()
    assert not list((tmp_path / "points").glob(".*"))


@pytest.mark.parametrize("workers", quick_and_deep([2], [1]))
def test_sigterm_leaves_whole_points_and_no_worker(tmp_path, workers):
    """As a batch system ends a job: 128 and the number of the signal, points that ``--resume`` keeps."""
    file = tmp_path / "sweep.toml"
    names = 'models = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\nfixed = ["tp=2", "pp=1"]\nsequences = [4096]'
    file.write_text(f"[[grid]]\n{names}\nglobal_batches = {list(range(8, 8 * 2000, 8))}\n")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "planner", "sweep", str(file), "-o", str(out), "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    ready = threading.Event()
    for _ in range(20 * PATIENCE_S):
        if process.poll() is not None or list((out / "points").glob("*.json")):
            break
        ready.wait(0.05)
    process.terminate()
    try:
        _, error = process.communicate(timeout=PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + signal.SIGTERM, error
    assert b"Traceback" not in error
    assert not (out / "results.csv").exists()
    kept = list((out / "points").iterdir())
    assert kept
    assert all(json.loads(path.read_text()) for path in kept)
