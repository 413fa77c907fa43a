"""Sweep files: grids of questions in TOML.

::

    title = "How many nodes pay?"

    [[grid]]
    models = ["llama3_8b", "llama3_70b"]     # each as on the command line
    clusters = ["dgx-h100:1", "dgx-h100:8"]
    global_batches = [128, 256]
    sequences = [4096, 8192]
    precisions = ["bf16", "fp8"]             # default ["bf16"]
    frameworks = ["megatron"]                # default ["megatron"]
    power_caps_w = [0, 500]                  # default [0]: the part's own limit
    objective = "time"                       # time, energy, cost
    recompute = "auto"
    fixed = ["tp=4"]
    time_limit_s = 60
    thermal = false
    launcher = "torchrun"                    # or srun, mpirun
    software = ["compiled=off"]              # default []; this and the next six as the options of those names
    offload = "none"
    loss = "default"
    lora_rank = 0
    lora_targets = ""
    images = ""
    freeze = ""
    tries = ["cp_comm=p2p,a2a"]              # default []; as --try
    profile = "machine.toml"                 # of plan calibrate; default none

A grid asks every combination, models slowest, then clusters, batches, sequences, precisions, frameworks, caps. Several
grids follow one another; a question that is asked twice is answered once. Files are found beside the sweep file.
"""

import os
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from costmodels.workload.fields import Fields
from hardware.errors import InputError
from hardware.text_file import read_toml_file
from planner.question import Question, question_from

MOST_POINTS: Final = 100_000
_TOP: Final = ("title", "grid")
_AXES: Final = (
    "models",
    "clusters",
    "global_batches",
    "sequences",
    "precisions",
    "frameworks",
    "power_caps_w",
)
_ALIKE: Final = (  # of all points of a grid, named as in a question
    "objective",
    "recompute",
    "fixed",
    "time_limit_s",
    "thermal",
    "launcher",
    "software",
    "tries",
    "offload",
    "loss",
    "lora_rank",
    "lora_targets",
    "images",
    "freeze",
    "top",
    "profile",
)


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """A sweep: its title and its questions in order, none twice."""

    title: str
    questions: tuple[Question, ...]


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep file.

    Parameters
    ----------
    path : Path
        TOML, as the head of this module shows.

    Returns
    -------
    SweepFile

    Raises
    ------
    InputError
        The file is missing, no TOML, has an unknown key, a wrong type, no point or too many.
    """
    read = Fields(read_toml_file(path, allowed="a sweep file, see examples/sweeps"), str(path))
    read.only(_TOP)
    grids = read.values.get("grid")
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, dict) for grid in grids):
        raise read.wrong("grid", grids, "one or more [[grid]] tables")
    questions: dict[Question, None] = {}
    for number, grid in enumerate(grids, start=1):
        fields = Fields(grid, f"{path}: grid {number}")
        if _size(fields) + len(questions) > MOST_POINTS:
            raise InputError(f"{_size(fields)} points", allowed=f"up to {MOST_POINTS} in a file", where=fields.where)
        questions |= dict.fromkeys(_questions(fields, path.parent))
    return SweepFile(title=read.text("title", default=path.stem), questions=tuple(questions))


def _size(read: Fields) -> int:
    size = 1
    for name in _AXES:
        value = read.values.get(name)
        size *= len(value) if isinstance(value, list) and value else 1
    return size


def _questions(read: Fields, folder: Path) -> list[Question]:
    read.only((*_AXES, *_ALIKE))
    axes = (
        _texts(read, "models"),
        _texts(read, "clusters"),
        _wholes(read, "global_batches", least=1),
        _wholes(read, "sequences", least=0, default=(0,)),
        _texts(read, "precisions", default=("bf16",)),
        _texts(read, "frameworks", default=("megatron",)),
        _numbers(read, "power_caps_w"),
    )
    alike = {name: value for name, value in read.values.items() if name in _ALIKE}
    first = {"model": axes[0][0], "cluster": axes[1][0], "global_batch": axes[2][0]}
    asked = question_from({**alike, **first}, read.where)
    return [
        replace(
            asked,
            model=_beside(model, folder),
            cluster=_beside(cluster, folder),
            global_batch=batch,
            seq=seq,
            precision=precision,
            framework=framework,
            power_cap_w=cap,
            profile=_beside(asked.profile, folder),
        )
        for model, cluster, batch, seq, precision, framework, cap in product(*axes)
    ]


def _beside(text: str, folder: Path) -> str:
    """Return a file's path as seen from the working folder; other names as they are."""
    beside = os.path.normpath(folder / text)
    return beside if text.lower().endswith((".toml", ".json")) and not Path(text).is_absolute() else text


def _texts(read: Fields, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    value = read.texts(name) or default
    if not value:
        raise read.wrong(name, read.values.get(name), "a list of one or more texts")
    return value


def _wholes(read: Fields, name: str, *, least: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    value = read.wholes(name) or default
    if not value or min(value) < least:
        raise read.wrong(name, read.values.get(name), f"a list of one or more whole numbers from {least}")
    return value


def _numbers(read: Fields, name: str) -> tuple[float, ...]:
    value = read.numbers(name) if name in read.values else (0.0,)
    if not value:
        raise read.wrong(name, read.values.get(name), "a list of one or more numbers from 0")
    return value
