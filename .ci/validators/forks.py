"""Answers cases from standard input, each in a forked child: for frameworks that keep global state."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """A framework refused a case at a step."""

    def __init__(self, step: str, error: str) -> None:
        super().__init__(error)
        self.step, self.error = step, error


def answer_all(judge: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Judge every case; a refusal names its step, and whatever else goes wrong is a defect of the harness."""
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(_forked(judge, json.loads(line))), flush=True)


def _forked(judge: Callable[[dict[str, Any]], dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        answer = _answer(judge, case)
        with os.fdopen(send, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else _refusal(case, "harness", "child died")


def _answer(judge: Callable[[dict[str, Any]], dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return {"name": case["name"], "accepted": True, "step": "", "error": "", **judge(case)}
    except RefusedError as refusal:
        return _refusal(case, refusal.step, refusal.error)
    except BaseException as error:
        return _refusal(case, "harness", repr(error))


def _refusal(case: dict[str, Any], step: str, error: str) -> dict[str, Any]:
    return {"name": case["name"], "accepted": False, "step": step, "error": error, "layers": None}
