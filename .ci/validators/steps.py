"""Steps of a check by a real framework, and calls of its functions across versions."""

import contextlib
import inspect
import io
from collections.abc import Iterator
from typing import Any

import forks


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Run one step quietly and turn its failure into a refusal."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield
    except forks.RefusedError:
        raise
    except SystemExit:
        lines = printed.getvalue().strip().splitlines()
        raise forks.RefusedError(name, lines[-1] if lines else "exit") from None
    except Exception as error:
        raise forks.RefusedError(name, f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def call(function: Any, given: dict[str, Any]) -> Any:
    """Call a function with those of the given arguments that its version knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in known})
