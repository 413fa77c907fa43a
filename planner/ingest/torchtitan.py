"""torchtitan's command line read into the layout that it launches.

References
----------
torchtitan 0.3.0: ``config/configs.py`` (options and defaults), ``trainer.py`` (micro-batches),
``distributed/parallel_dims.py`` (degrees), ``distributed/pipeline_parallel.py`` (stages).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Strategy
from costmodels.pipeline.schedules import Schedule, positions
from hardware.errors import InputError
from planner.ingest.options import Arguments, Fault, Option, read_arguments
from planner.ingest.plain_layout import StatedLayout, refuse_illegal, uniform_stages
from planner.layouts.splits import even_chunks
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, Split

_SCHEDULES: Final = MappingProxyType(
    {
        "1f1b": Schedule.ONE_F_ONE_B,
        "gpipe": Schedule.GPIPE,
        "interleaved1f1b": Schedule.INTERLEAVED,
        "zbvzerobubble": Schedule.ZBV,
    }
)
_CHECKPOINT: Final = "activation-checkpoint:"
_RECOMPUTE: Final = MappingProxyType({"full": FULL_RECOMPUTE, "none": NO_RECOMPUTE})
_SECTIONS: Final = ("training", "parallelism", "compile")
_OWN: Final = ("--module", "--config")
_VALUES: Final = MappingProxyType({"flag": "0", "list": "+"})
_P: Final = "--parallelism."
_T: Final = "--training."


@dataclass(frozen=True, kw_only=True)
class TitanLaunch:
    """A launch of torchtitan as read from its arguments.

    Attributes
    ----------
    world : int
        Number of ranks.
    arguments : Arguments
        Options that decide on the layout, and faults: unknown names, values of the wrong type.
    unjudged : tuple of str
        Options of sections that say nothing about a layout.
    checkpoint : str
        Word of the subcommand ``activation-checkpoint:``; empty when it is left to the configuration.
    """

    world: int
    arguments: Arguments
    unjudged: tuple[str, ...]
    checkpoint: str


@lru_cache(maxsize=1)
def option_table() -> Mapping[str, Any]:
    """Options by section, and the names of the sections that are not judged."""
    text = files("planner.ingest").joinpath("torchtitan_options.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


@lru_cache(maxsize=1)
def _options() -> Mapping[str, Option]:
    found = {name: Option(name=name, values="1", kind="str") for name in _OWN}
    for section in _SECTIONS:
        for field, entry in option_table()[section].items():
            kind = str(entry["kind"])
            names = [f"--{section}.{field}", *([f"--{section}.no_{field}"] if kind == "flag" else [])]
            for name in names:
                found[name] = Option(
                    name=name,
                    values=_VALUES.get(kind, "1"),
                    kind=kind if kind in ("int", "float") else "str",
                    choices=tuple(entry.get("choices", ())),
                )
    return MappingProxyType(found)


def parse_torchtitan(arguments: Sequence[str], *, world: int) -> TitanLaunch:
    """Read the arguments of ``torchtitan.train``.

    Parameters
    ----------
    arguments : sequence of str
        As after ``-m torchtitan.train``; names may be written with dashes or underscores.
    world : int
        Number of ranks.

    Returns
    -------
    TitanLaunch
        Also when arguments are wrong: what is wrong stands in ``arguments.faults``.
    """
    words = [word for word in arguments if not word.startswith(_CHECKPOINT)]
    chosen = [word.removeprefix(_CHECKPOINT) for word in arguments if word.startswith(_CHECKPOINT)]
    judged: list[str] = []
    unjudged: list[str] = []
    target = judged
    for word in words:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            name = "--" + name[2:].replace("-", "_")
            other = name[2:].split(".")[0] in option_table()["other_sections"]
            target = unjudged if other else judged
            target.append(name + sign + value)
        else:
            target.append(word)
    read = read_arguments(judged, _options())
    faults = [replace(fault, rule=fault.rule.replace("megatron", "torchtitan")) for fault in read.faults]
    faults += [
        Fault(rule="torchtitan-option-value", argument=word, message=f"activation checkpointing {word!r} is unknown")
        for word in chosen
        if word not in ("full", "none", "selective", "memory-budget")
    ]
    return TitanLaunch(
        world=world,
        arguments=replace(read, faults=tuple(faults)),
        unjudged=tuple(unjudged),
        checkpoint=chosen[-1] if chosen else "",
    )


def of_any_version(arguments: Sequence[str]) -> list[str]:
    """Options of torchtitan 0.2 in the words of 0.3; sections that only 0.2 has become one that is not judged.

    Parameters
    ----------
    arguments : sequence of str
        As after ``torchtitan.train``.
    """
    words: list[str] = []
    flavor = {"name": "", "flavor": ""}
    pending = ""
    for word in arguments:
        name, sign, value = word.removeprefix("--").partition("=")
        section, _, field = name.replace("-", "_").partition(".")
        old = word.startswith("--") and section in option_table()["old_sections"]
        if pending and not word.startswith("--"):
            flavor[pending], pending = word, ""
        elif old and section == "model" and field in flavor:
            flavor[field], pending = value, "" if sign else field
        elif old and (section, field) == ("activation_checkpoint", "mode"):
            pending = "" if sign else "mode"
            flavor["mode"] = value
        else:
            words.append(f"--override.{word.removeprefix('--')}" if old else word)
    if flavor["name"]:
        config = f"{flavor['name']}_{flavor['flavor'].lower().replace('.', '_').replace('-', '_')}".rstrip("_")
        words += ["--module", flavor["name"], "--config", config]
    return [*words, *([f"{_CHECKPOINT}{flavor['mode']}"] if flavor.get("mode") else [])]


def own_name(word: str) -> str:
    """Name of an option as its user writes it, also in a section that only torchtitan 0.2 has."""
    name = word.partition("=")[0]
    old = name.removeprefix("--override.")
    return f"--{old}" if old != name and old.partition(".")[0] in option_table()["old_sections"] else name


def layout_of(launch: TitanLaunch, model: ModelFacts) -> Layout:
    """State a launch as a layout.

    Parameters
    ----------
    launch : TitanLaunch
        See :func:`parse_torchtitan`.
    model : ModelFacts
        Sizes of the model that the configuration builds.

    Returns
    -------
    Layout
        Of the launch; options that are left out have torchtitan's defaults, not those of the configuration.

    Raises
    ------
    InputError
        An argument is not understood, or the launch breaks a rule.
    """
    stated = stated_layout(launch, model)
    return refuse_illegal(stated, model, world=launch.world, framework=Framework.TORCHTITAN)


def stated_layout(launch: TitanLaunch, model: ModelFacts) -> StatedLayout:
    """Read what a launch states, legal or not; parameters as of :func:`layout_of`.

    Raises
    ------
    InputError
        An argument is not understood, or the batch does not divide.
    """
    read = launch.arguments
    if read.faults:
        raise InputError("; ".join(fault.message for fault in read.faults), allowed="options of torchtitan 0.3")
    strategy = _strategy(launch, model)
    pp = read.number(_P + "pipeline_parallel_degree", 1)
    local = read.number(_T + "local_batch_size", 8)
    micro = read.number(_P + "pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    batch = read.number(_T + "global_batch_size", -1)
    batch = batch if batch > 0 else local * strategy.dp
    _check_batch(batch, local, strategy.dp, micro, pp)
    schedule = _schedule(read) if pp > 1 else Schedule.ONE_F_ONE_B
    layout = Layout(
        stages=uniform_stages(_split(read, model, pp, schedule), strategy),
        micro_batch=micro,
        num_microbatches=batch // (micro * strategy.dp),
        schedule=schedule,
        microbatch_group=round_group(schedule, pp, batch // (micro * strategy.dp)),
    )
    return StatedLayout(layout=layout, global_batch=batch, seq=read.number(_T + "seq_len", 2048))


def round_group(schedule: Schedule, pp: int, microbatches: int) -> int:
    """Micro-batches of a round of PyTorch's interleaved schedule; 0 where they are as many as stages.

    References
    ----------
    PyTorch ``ScheduleInterleaved1F1B``: as many rounds as the stages go into the micro-batches, all of one size.
    """
    if schedule is not Schedule.INTERLEAVED:
        return 0
    group = microbatches // max(1, microbatches // pp)
    return group if group > pp else 0


def _check_batch(batch: int, local: int, dp: int, micro: int, pp: int) -> None:
    if pp > 1 and (micro < 1 or local % micro):
        raise InputError(f"local batch {local} does not divide by micro-batch {micro}", allowed="a multiple")
    if local < 1 or batch % (local * dp):
        raise InputError(f"global batch {batch} does not divide by local batch {local} x dp {dp}", allowed="a multiple")
    if pp > 1 and batch != local * dp:
        raise InputError(
            f"the pipeline runs {batch // (local * dp)} times a step", allowed="a local batch that is whole"
        )


def degrees_of(launch: TitanLaunch, model: ModelFacts) -> Proposal:
    """Degrees and batch of a launch as they stand, for judging one whose layout cannot be stated."""
    read = launch.arguments
    tp, cp = read.number(_P + "tensor_parallel_degree", 1), read.number(_P + "context_parallel_degree", 1)
    pp, ep = read.number(_P + "pipeline_parallel_degree", 1), read.number(_P + "expert_parallel_degree", 1)
    replicas = read.number(_P + "data_parallel_replicate_degree", 1)
    shard = read.number(_P + "data_parallel_shard_degree", -1)
    local = read.number(_T + "local_batch_size", 8)
    micro = read.number(_P + "pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    rest = launch.world // max(1, tp * cp * pp)
    return Proposal(
        world=launch.world,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=tp if ep == 1 else 1,
        dp=max(1, replicas) * shard if shard > 0 else max(1, rest),
        zero=3,
        micro_batch=micro,
        global_batch=max(read.number(_T + "global_batch_size", -1), local * max(1, rest)),
        seq=read.number(_T + "seq_len", 2048),
        sequence_parallel=tp > 1,
        model=model,
        split=Split(explicit=even_chunks(model.layers, pp, 1) if 1 < pp <= launch.world else ()),
    )


def _strategy(launch: TitanLaunch, model: ModelFacts) -> Strategy:
    read = launch.arguments
    tp = read.number(_P + "tensor_parallel_degree", 1)
    cp = read.number(_P + "context_parallel_degree", 1)
    pp = read.number(_P + "pipeline_parallel_degree", 1)
    ep = read.number(_P + "expert_parallel_degree", 1)
    replicas = read.number(_P + "data_parallel_replicate_degree", 1)
    shard = read.number(_P + "data_parallel_shard_degree", -1)
    if min(tp, cp, pp, ep, replicas) < 1 or shard == 0:
        raise InputError("a degree is below 1", allowed="integers from 1")
    shard = shard if shard > 0 else max(1, launch.world // (replicas * cp * tp * pp))
    if launch.checkpoint not in _RECOMPUTE:
        told = launch.checkpoint or "left to the configuration"
        raise InputError(
            f"activation checkpointing {told} has no counterpart in a layout",
            allowed="activation-checkpoint:full or activation-checkpoint:none",
        )
    reshard = read.text(_P + "fsdp_reshard_after_forward", "default")
    sharded = {"always": 3, "never": 2}.get(reshard, 2 if pp > 1 else 3)
    zero = 0 if shard * cp == 1 and reshard == "default" else sharded
    return Strategy(
        tp=tp,
        cp=cp,
        dp=replicas * shard,
        ep=ep if model.experts else 1,
        etp=tp if model.experts and ep == 1 else 1,
        sequence_parallel=tp > 1 and not read.has(_P + "no_enable_sequence_parallel"),
        zero=zero,
        shard_group=shard * cp if zero and replicas > 1 else 0,
        recompute=_RECOMPUTE[launch.checkpoint],
    )


def _schedule(read: Arguments) -> Schedule:
    told = read.text(_P + "pipeline_parallel_schedule", "1F1B")
    schedule = _SCHEDULES.get(told.lower())
    if schedule is None:
        raise InputError(f"schedule {told} is not modelled", allowed="1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble")
    return schedule


def _split(read: Arguments, model: ModelFacts, pp: int, schedule: Schedule) -> list[tuple[int, ...]]:
    """Layers of each stage and chunk: as listed, or spread as torchtitan does."""
    if pp == 1:
        return [(model.layers,)]
    looped = schedule in (Schedule.INTERLEAVED, Schedule.ZBV)
    parts = read.texts(_P + "module_fqns_per_model_part")
    counts = _listed(parts, model) if parts else _spread(read, model, pp, 2 if looped else 1)
    vpp, rest = divmod(len(counts), pp)
    if rest or vpp < 1 or (vpp > 1) != looped:
        raise InputError(
            f"{len(counts)} pipeline positions on {pp} stages with schedule {schedule}",
            allowed="one position a stage for 1F1B and GPipe, two or more for the others",
        )
    places = positions(schedule, pp, vpp)
    return [tuple(counts[int(places[stage, chunk])] for chunk in range(vpp)) for stage in range(pp)]


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
    total = -(-weight // per_stage) if per_stage > 0 else pp * vpp
    spreads = 1 < total <= weight  # beyond it there are positions without a module; their list may be without end
    base, extra = divmod(weight, total)
    counts = [base + (index < extra) for index in range(total)] if spreads else [-1]
    counts[0] -= first
    counts[-1] -= last
    if min(counts) < 0:
        raise InputError(f"{model.layers} layers do not spread over {total} positions", allowed="fewer positions")
    return counts
