"""Pipelines of torchtitan: its schedules by their names, and the layers of each stage and chunk.

References
----------
torchtitan 0.3.0: ``distributed/pipeline_parallel.py``.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Stage, Strategy
from costmodels.pipeline.schedules import Schedule, positions
from hardware.errors import InputError
from planner.ingest.options import Arguments
from planner.ingest.plain_layout import (
    UnpricedError,
    joined,
    uniform_stages,
)
from planner.rules.proposal import ModelFacts

_P: Final = "--parallelism."
SCHEDULES: Final = MappingProxyType(
    {
        "1f1b": Schedule.ONE_F_ONE_B,
        "gpipe": Schedule.GPIPE,
        "interleaved1f1b": Schedule.INTERLEAVED,
        "zbvzerobubble": Schedule.ZBV,
        "loopedbfs": Schedule.LOOPED_BFS,
        "interleavedzerobubble": Schedule.INTERLEAVED_ZB,
        "dualpipev": Schedule.DUALPIPEV,
    }
)
_NAMED: Final = "1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV"
OF_ONE_CHUNK: Final = MappingProxyType(
    {
        Schedule.INTERLEAVED: Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED_ZB: Schedule.ZB_H1,
        Schedule.LOOPED_BFS: Schedule.GPIPE,
    }
)
"""What schedules that loop are with one position a stage."""


def stages_of(split: Sequence[Sequence[int]], strategy: Strategy, layers_apart: int) -> tuple[Stage, ...]:
    """Stages of a launch; where every so many layers run again, each rank counts those that it holds."""
    if not layers_apart:
        return uniform_stages(split, strategy)
    kept, again = (replace(strategy, recompute=recompute) for recompute in (NO_RECOMPUTE, FULL_RECOMPUTE))
    return tuple(
        Stage(
            layers_per_chunk=tuple(chunks),
            strategies=joined(
                [(kept, 0), *((kept if place % layers_apart else again, 1) for place in _places(chunks))]
            ),
        )
        for chunks in split
    )


def _places(chunks: Sequence[int]) -> range:
    return range(1, sum(chunks) + 1)


def round_group(schedule: Schedule, pp: int, microbatches: int) -> int:
    """Micro-batches of a round of PyTorch's interleaved schedule; 0 where they are as many as stages.

    References
    ----------
    PyTorch ``ScheduleInterleaved1F1B`` and ``ScheduleInterleavedZeroBubble``: as many rounds as the stages go into the
    micro-batches, all of one size.
    """
    if schedule not in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB):
        return 0
    group = microbatches // max(1, microbatches // pp)
    return group if group > pp else 0


def check_filled(read: Arguments, microbatches: int, places: int) -> None:
    """DualPipeV, which no rule on layouts knows, needs a micro-batch for every position."""
    if schedule_name(read) == "dualpipev" and microbatches < places > 1:
        raise InputError(
            f"{microbatches} micro-batches with DualPipeV on {places} positions", allowed=f"{places} or more"
        )


def schedule_name(read: Arguments) -> str:
    """Name of the schedule in small letters."""
    return read.text(_P + "pipeline_parallel_schedule", "1F1B").lower()


def schedule_of(read: Arguments) -> Schedule:
    """Schedule of a pipeline, by a name that PyTorch has.

    Raises
    ------
    UnpricedError
        No simulator here has it.
    """
    name = schedule_name(read)
    written = read.text(_P + "pipeline_parallel_schedule_csv")
    if written not in ("", "None"):
        raise UnpricedError(f"the schedule of {written} has no price here", allowed="a schedule by its name")
    return SCHEDULES[name]


def split_of(read: Arguments, model: ModelFacts, pp: int) -> list[tuple[int, ...]]:
    """Layers of each stage and chunk, as listed or spread as torchtitan does; those of an unpriced schedule in order.

    Raises
    ------
    InputError
        PyTorch has no such schedule, or the positions do not go with it.
    """
    if pp == 1:
        return [(model.layers,)]
    name = schedule_name(read)
    if name not in SCHEDULES:
        told = read.text(_P + "pipeline_parallel_schedule")
        raise InputError(f"schedule {told} is unknown", allowed=_NAMED)
    schedule = SCHEDULES[name]
    counts = _positions(read, model, pp, looped=schedule.loops or schedule.is_v)
    vpp = len(counts) // pp
    if vpp == 1:
        schedule = OF_ONE_CHUNK.get(schedule, schedule)
    if schedule.is_v and vpp != 2:
        raise InputError(f"{vpp} pipeline positions a stage with schedule {name}", allowed="two a stage")
    places = positions(schedule, pp, vpp)
    return [tuple(counts[int(places[stage, chunk])] for chunk in range(vpp)) for stage in range(pp)]


def _positions(read: Arguments, model: ModelFacts, pp: int, *, looped: bool) -> list[int]:
    """Layers of each pipeline position, as many as the schedule takes.

    Raises
    ------
    InputError
        The positions do not go with the stages and the schedule, or a module is missing.
    """
    parts = read.texts(_P + "module_fqns_per_model_part")
    counts = _listed(parts, model) if parts else _spread(read, model, pp, 2 if looped else 1)
    vpp, rest = divmod(len(counts), pp)
    if rest or vpp < 1 or (vpp > 1 and not looped) or (vpp == 1 and looped and not parts):
        raise InputError(
            f"{len(counts)} pipeline positions on {pp} stages with schedule {schedule_name(read)}",
            allowed=f"a multiple of {pp}: one a stage for 1F1B and GPipe; more for the others, or one by its modules",
        )
    return counts


def _listed(parts: Sequence[str], model: ModelFacts) -> list[int]:
    """Layers of each listed position; every module must appear once, in order."""
    named = [part.split(",") for part in parts]
    flat = [name for part in named for name in part]
    wanted = ["tok_embeddings", *(f"layers.{index}" for index in range(model.layers)), "norm", "lm_head"]
    if flat != wanted:
        wrong = next((a for a, b in zip(flat, wanted, strict=False) if a != b), f"{len(flat)} modules")
        raise InputError(
            f"module_fqns_per_model_part: {wrong!r} is missing, doubled or out of place",
            allowed=f"{len(wanted)} modules in order: tok_embeddings, layers.0, ..., norm, lm_head",
        )
    return [sum(name.startswith("layers.") for name in part) for part in named]


def _spread(read: Arguments, model: ModelFacts, pp: int, vpp: int) -> list[int]:
    """Torchtitan's own spread: embedding and head count as layers, earlier positions take the rest."""
    first = read.number(_P + "pipeline_parallel_first_stage_less_layers", 1)
    last = read.number(_P + "pipeline_parallel_last_stage_less_layers", 1)
    weight = model.layers + first + last
    per_stage = read.number(_P + "pipeline_parallel_layers_per_stage", 0)
    if per_stage < 1 and read.has(_P + "pipeline_parallel_layers_per_stage"):
        raise InputError(f"{per_stage} layers a position", allowed="a whole number from 1")
    total = -(-weight // per_stage) if per_stage > 0 else pp * vpp
    base, extra = divmod(weight, total) if 1 < total <= weight else (-1, 0)
    if not 0 <= max(first, last) <= base or min(first, last) < 0:
        raise InputError(
            f"{model.layers} layers, {first} for embedding and {last} for head do not spread over {total} positions",
            allowed="fewer positions, or ends that count no more than a position has",
        )
    counts = [base + (index < extra) for index in range(total)]
    counts[0] -= first
    counts[-1] -= last
    return counts
