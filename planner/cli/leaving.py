"""How a command ends: its exit code, and one line for whatever went wrong."""

import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import typer

from hardware.errors import InputError

UNFORESEEN: Final = 1
INPUT_ERROR: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141  # as a shell reports a program that SIGPIPE ended


def leave(run: Callable[[], int]) -> NoReturn:
    """Run a command and leave with its exit code; no mistake of the user ends in a traceback."""
    try:
        code = run()
    except InputError as error:
        typer.echo(f"plan: {error}", err=True)
        code = INPUT_ERROR
    except KeyboardInterrupt:
        typer.echo("plan: interrupted; what was finished is kept", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        code = BROKEN_PIPE
    except Exception as error:  # the last door: a defect must not bury the user in a traceback
        if os.environ.get("PLAN_TRACEBACK"):
            raise
        typer.echo(f"plan: a defect of the planner: {type(error).__name__}: {error}", err=True)
        typer.echo("plan: set PLAN_TRACEBACK=1 and run again to see where, and please report it", err=True)
        code = UNFORESEEN
    raise typer.Exit(code)


def _drop_output() -> None:
    """Point standard output nowhere, so that nothing is flushed into a closed pipe on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
