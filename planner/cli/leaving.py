"""How a command ends: its exit code, and one line for whatever went wrong."""

import contextlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, NoReturn, ParamSpec

import typer

from hardware.errors import InputError

P = ParamSpec("P")

UNFORESEEN: Final = 1
INPUT_ERROR: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141  # as a shell reports a program that SIGPIPE ended


def leaving(command: Callable[P, int]) -> Callable[P, NoReturn]:
    """Make a command leave with the exit code that it returns; no mistake of the user ends in a traceback."""

    @wraps(command)
    def run(*words: P.args, **options: P.kwargs) -> NoReturn:
        stand_in_streams()
        try:
            code = command(*words, **options)
            sys.stdout.flush()  # a full disk shows here, where it can be handled
        except InputError as error:
            _say(f"plan: {error}")
            code = INPUT_ERROR
        except KeyboardInterrupt:
            _say("plan: interrupted; what was finished is kept")
            code = INTERRUPTED
        except OSError as error:
            code = refused(error)
        except Exception as error:  # the last door: a defect must not bury the user in a traceback
            if os.environ.get("PLAN_TRACEBACK"):
                raise
            _say(f"plan: a defect of the planner: {type(error).__name__}: {error}")
            _say("plan: set PLAN_TRACEBACK=1 and run again to see where, and please report it")
            code = UNFORESEEN
        raise typer.Exit(code)

    return run


def stand_in_streams() -> None:
    """Give a process that was started without standard streams (``>&-``) some that lead nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def refused(error: OSError) -> int:
    """Say what the system refused, such as writing to a full disk, and return the exit code."""
    _drop_output()
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    place = error.filename if error.filename is not None else "the output"
    _say(f"plan: {place}: {error.strerror or error}; allowed: places that can be read and written")
    return INPUT_ERROR


def _say(text: str) -> None:
    """Print a line on standard error; where that is full or gone, the exit code has to do."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def _drop_output() -> None:
    """Point standard output nowhere, so that nothing is flushed into a closed pipe on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
