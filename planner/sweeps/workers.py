"""Worker processes, each with a pipe of its own: any of them may end at any time, and the sweep goes on or ends.

A pool in which workers share a queue reads it in a thread; a worker that is ended in the middle of an answer leaves
that thread waiting for the rest for ever. Here the thread that wants the answers reads them, so that an interrupt
reaches it, and the end of a worker is the end of its pipe.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, TypeVar

from hardware.errors import InputError

T = TypeVar("T")

_DIED: Final = "a worker died, perhaps for want of memory; the points that were finished are kept"
_LESS: Final = "--resume with fewer --workers"


@dataclass(frozen=True)
class _Failure:
    """What a worker's job raised."""

    error: Exception


def answers_of(
    work: Callable[..., T], jobs: Sequence[tuple[object, ...]], workers: int
) -> Generator[tuple[int, T], None, None]:
    """Answers of worker processes, by the numbers of their jobs, in the order in which they come.

    No worker is left when the iterator is closed, which the caller has to do.

    Parameters
    ----------
    work : callable
        Of a module that a fresh process can import.
    jobs : sequence of tuple
        Arguments of each call.
    workers : int
        Processes; no more are started than there are jobs.

    Raises
    ------
    InputError
        A worker died, or its work says so.
    RuntimeError
        Any other exception of the work, with its traceback as text.
    """
    team: dict[Connection, SpawnProcess] = {}
    try:
        with _interrupts_kept_from_workers():
            for _ in range(min(workers, len(jobs))):
                _start(work, team)
        try:
            yield from _in_turn(list(team), jobs)
        except (EOFError, OSError) as error:  # of a pipe: what a job raises comes through it as a failure
            raise InputError(_DIED, allowed=_LESS) from error
    finally:
        for process in team.values():
            process.kill()  # whatever it does: files appear whole or not at all
        for pipe, process in team.items():
            process.join()
            pipe.close()


def _start(work: Callable[..., object], team: dict[Connection, SpawnProcess]) -> None:
    """Start a fresh process: a fork would copy the threads of the solver and of numpy in whatever state they are."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    team[ours] = process
    theirs.close()  # else the end of the worker would not end the pipe


def _in_turn(pipes: Sequence[Connection], jobs: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, Any]]:
    left = iter(enumerate(jobs))
    busy: dict[Connection, int] = {}
    idle = list(pipes)
    while True:
        for pipe, (number, job) in zip(idle, left, strict=False):
            pipe.send(job)
            busy[pipe] = number
        if not busy:
            return
        idle = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
        for pipe in idle:
            answer = pipe.recv()
            if isinstance(answer, _Failure):
                raise answer.error
            yield busy.pop(pipe), answer


def _serve(pipe: Connection, work: Callable[..., object]) -> None:
    """Answer jobs until nobody is at the other end of the pipe."""
    _end_with_parent()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_answer(work, pipe.recv()))


def _answer(work: Callable[..., object], job: tuple[object, ...]) -> object:
    try:
        return work(*job)
    except InputError as error:
        return _Failure(error)
    except Exception:  # of any type, which need not be one that crosses a pipe
        return _Failure(RuntimeError(traceback.format_exc()))


def _end_with_parent() -> None:
    """End this worker when the sweep's own process is gone, however it went: it may be in the middle of a search."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def ended_cleanly() -> Iterator[None]:
    """Let SIGTERM, as of a batch system, stop workers and drop unfinished files before the process ends by it.

    Raises
    ------
    SystemExit
        128 and the number of the signal, as a shell reports it.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _interrupts_kept_from_workers() -> Iterator[None]:
    """Start processes that an interrupt of the terminal does not reach, not even while they load.

    A process inherits what the thread that starts it blocks. Here the interrupt waits until the workers are started,
    and then ends the sweep, which stops them; the points that they finished are on the disk. Other threads take the
    signal meanwhile, hence the handler.
    """
    resource_tracker.ensure_running()  # the first process starts it too, and it lets the interrupt through again
    held: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if held:
        raise KeyboardInterrupt
