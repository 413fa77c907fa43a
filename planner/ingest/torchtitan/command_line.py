"""torchtitan's command line read into the layout that it launches.

References
----------
torchtitan 0.3.0: ``config/configs.py`` (options and defaults), ``trainer.py`` (micro-batches),
``distributed/parallel_dims.py`` (degrees).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, TITAN_SELECTIVE, Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from hardware.errors import InputError
from planner.ingest.options import Arguments, Fault, Option, read_arguments, refuse_faults, rest_stands
from planner.ingest.plain_layout import (
    StatedLayout,
    UnpricedError,
    has_replicas,
    refuse_illegal,
)
from planner.ingest.torchtitan.models import defaults_of, entry_of
from planner.ingest.torchtitan.stages import (
    OF_ONE_CHUNK,
    SCHEDULES,
    check_filled,
    round_group,
    schedule_name,
    schedule_of,
    split_of,
    stages_of,
)
from planner.ingest.torchtitan.words import (
    CHECKPOINT,
    OVERRIDE,
    SECTIONS,
    behind_checkpoint,
    last_switches,
    of_any_version,
    opposite,
    option_table,
    told_values,
)
from planner.layouts.splits import even_chunks
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, Split, Switches, replicas_of

_OPTIONS: Final = "options of torchtitan 0.3"
_WHOLE_ROUNDS: Final = ("interleaved1f1b", "interleavedzerobubble")
_FILLED: Final = ("1f1b", "dualpipev")
"""Schedules with as many micro-batches as positions at least."""
_SELECTIVE: Final = "selective"
_MODES: Final = ("full", "none", _SELECTIVE, "memory-budget", "memory_budget")
_RECOMPUTE: Final = MappingProxyType({"full": FULL_RECOMPUTE, _SELECTIVE: TITAN_SELECTIVE, "none": NO_RECOMPUTE})
_OWN_PLACES: Final = ("--hf_assets_path", "--dump_folder")
_OWN: Final = ("--module", "--config")
_VALUES: Final = MappingProxyType({"flag": "0", "list": "+"})
LAYERS_APART: Final = "activation_checkpoint.selective_ac_option"
_APART_BEFORE_0_3: Final = "2"
"""What 0.1 and 0.2 take where nothing is told (``config/job_config.py`` at v0.2.2, class ActivationCheckpoint)."""
CHUNKS: Final = "--loss.num_chunks"
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
        Options that decide on the layout, with what the configuration sets beside them, and faults: unknown names,
        values of the wrong type.
    unjudged : tuple of str
        Options of sections that say nothing about a grid, with their values.
    checkpoint : str
        Word of the subcommand ``activation-checkpoint:``, else what the configuration has; empty when none is named.
    old : bool
        Whether it is a launch of 0.2.
    layers_apart : int
        Of selective checkpointing in 0.2: of so many layers the last runs again; 0: a list of ops decides.
    """

    world: int
    arguments: Arguments
    unjudged: tuple[str, ...]
    checkpoint: str
    old: bool = False
    layers_apart: int = 0

    @property
    def loss_chunks(self) -> int:
        """Chunks that the loss is cut into; 1 where all logits of a micro-batch are made at once."""
        return max(1, self.arguments.number(CHUNKS, 1))


@lru_cache(maxsize=2)
def _options(*, old: bool) -> Mapping[str, Option]:
    found = {name: Option(name=name, values="1", kind="str") for name in _OWN}
    for section in SECTIONS:
        before = option_table().get(f"{section}_before_0_3", {}) if old else {}
        for field, entry in {**option_table()[section], **before}.items():
            kind = str(entry["kind"])
            names = [f"--{section}.{field}", *([f"--{section}.no_{field}"] if kind == "flag" else [])]
            for name in names:
                found[name] = Option(
                    name=name,
                    values=_VALUES.get(kind, "1"),
                    kind=kind if kind in ("int", "float") else "str",
                    choices=tuple(entry.get("choices", ())),
                )
    for section, fields in option_table()["other_sections"].items():
        for name in (f"--{section}.{field}" for field in fields):
            found[name] = Option(name=name, values="*", kind="str")
    return MappingProxyType(found)


def read_torchtitan(arguments: Sequence[str], *, world: int) -> TitanLaunch:
    """Read the arguments of torchtitan 0.3, or of 0.2 in its own words; parameters as of :func:`parse_torchtitan`."""
    words, old = of_any_version(arguments)
    launch = parse_torchtitan(words, world=world, old=old)
    faults = (*launch.arguments.faults, *(() if old else behind_checkpoint(arguments)))
    return replace(launch, arguments=replace(launch.arguments, faults=faults))


def parse_torchtitan(arguments: Sequence[str], *, world: int, old: bool = False) -> TitanLaunch:
    """Read the arguments of ``torchtitan.train``.

    Parameters
    ----------
    arguments : sequence of str
        As after ``-m torchtitan.train``; names may be written with dashes or underscores.
    world : int
        Number of ranks.
    old : bool
        Whether it is a launch of 0.2, whose model brings no settings with it, and which has options of its own.

    Returns
    -------
    TitanLaunch
        Also when arguments are wrong: what is wrong stands in ``arguments.faults``.
    """
    words = [word for word in arguments if not word.startswith(CHECKPOINT)]
    chosen = [word.removeprefix(CHECKPOINT) for word in arguments if word.startswith(CHECKPOINT)]
    judged: list[str] = []
    unjudged: list[str] = []
    target = judged
    for word in words:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            name = "--" + name[2:].replace("-", "_")
            target = unjudged if _says_nothing(name, old=old) else judged
            target.append(name + sign + value)
        else:
            target.append(word)
    read = read_arguments(last_switches(judged), _options(old=old))
    faults = [replace(fault, rule=fault.rule.replace("megatron", "torchtitan")) for fault in read.faults]
    faults += [
        Fault(rule="torchtitan-option-value", argument=word, message=f"activation checkpointing {word!r} is unknown")
        for word in chosen
        if word not in _MODES
    ]
    config = "" if old else read.text("--config")
    checkpoint = str(entry_of(config).get("checkpoint", _SELECTIVE)) if config or old else ""
    checkpoint = chosen[-1].replace("_", "-") if chosen else checkpoint
    apart = _layers_apart(unjudged, old=old) if checkpoint == _SELECTIVE else "op"
    if not apart.isdecimal() and apart != "op":
        message = f"{LAYERS_APART} {apart!r} is neither op nor a number of layers"
        faults.append(Fault(rule="torchtitan-option-value", argument=f"--{LAYERS_APART}", message=message))
    layers_apart = int(apart) if apart.isdecimal() else 0
    return TitanLaunch(
        world=world,
        arguments=replace(read, faults=tuple(faults), given=_with_defaults(read.given, config)),
        unjudged=tuple(unjudged),
        checkpoint="full" if apart.isdecimal() and not layers_apart else checkpoint,  # every layer
        old=old,
        layers_apart=layers_apart,
    )


def _layers_apart(words: Sequence[str], *, old: bool) -> str:
    """How selective checkpointing selects: ``op``, or every so many layers, which 0.2 does unless told otherwise."""
    return ",".join(told_values(words, LAYERS_APART) or ((_APART_BEFORE_0_3,) if old else ("op",)))


def _says_nothing(name: str, *, old: bool) -> bool:
    """Whether an option is known to say nothing about a layout."""
    table, (section, _, field) = option_table(), name[2:].partition(".")
    field = field.removeprefix("no_").partition(".")[0]
    if section == OVERRIDE or old:
        return section in table["other_sections"] or f"{section}.{field}" in table["old_options"]
    return name in _OWN_PLACES or field in table["other_sections"].get(section, ())


def _with_defaults(given: Mapping[str, tuple[str, ...]], config: str) -> Mapping[str, tuple[str, ...]]:
    """Options of a launch, and those of its configuration that they leave as they are."""
    defaults = {
        name: values for name, values in defaults_of(config).items() if not {name, opposite(name)} & given.keys()
    }
    return MappingProxyType({**defaults, **given})


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
    refuse_faults(launch.arguments.faults, _OPTIONS)
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
    refuse_faults(() if rest_stands(read.faults) else read.faults, _OPTIONS)
    strategy = _strategy(launch, model)
    pp = read.number(_P + "pipeline_parallel_degree", 1)
    split = split_of(read, model, pp)
    local = read.number(_T + "local_batch_size", 8)
    micro = read.number(_P + "pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    batch = read.number(_T + "global_batch_size", -1)
    batch = batch if batch >= 0 else local * strategy.dp
    check_filled(read, local // max(1, micro), sum(map(len, split)))
    _check_batch(batch, local, strategy.dp, micro, pp)
    schedule = schedule_of(read) if pp > 1 else Schedule.ONE_F_ONE_B
    if len(split[0]) == 1:
        schedule = OF_ONE_CHUNK.get(schedule, schedule)
    layout = Layout(
        stages=stages_of(split, strategy, launch.layers_apart),
        micro_batch=micro,
        num_microbatches=batch // (micro * strategy.dp),
        schedule=schedule,
        microbatch_group=round_group(schedule, pp, batch // (micro * strategy.dp)),
    )
    seq = read.number(_T + "seq_len", 2048)
    return StatedLayout(layout=layout, global_batch=batch, seq=seq, loss_chunks=launch.loss_chunks)


def _check_batch(batch: int, local: int, dp: int, micro: int, pp: int) -> None:
    if pp > 1 and (micro < 1 or local % micro):
        raise InputError(f"local batch {local} does not divide by micro-batch {micro}", allowed="a multiple")
    if local < 1 or batch < 1 or batch % (local * dp):
        raise InputError(f"global batch {batch} does not divide by local batch {local} x dp {dp}", allowed="a multiple")
    if pp > 1 and batch != local * dp:
        raise UnpricedError(
            f"the pipeline runs {batch // (local * dp)} times a step, which has no price here",
            allowed=f"--training.local_batch_size {batch // dp} runs it once",
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
    dp = max(1, replicas) * shard if shard > 0 else replicas_of(launch.world, tp, cp, pp)
    name = schedule_name(read)
    schedule = SCHEDULES.get(name, Schedule.ONE_F_ONE_B)
    vpp = 2 if pp > 1 and (schedule.loops or schedule.is_v) else 1
    return Proposal(
        world=launch.world,
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=vpp,
        ep=ep if model.experts else 1,
        etp=_experts_tp(launch, tp, ep),
        dp=dp,
        zero=3,
        shard_group=shard * cp if shard > 0 and replicas > 1 else 0,
        micro_batch=micro,
        global_batch=local * dp if pp > 1 else max(read.number(_T + "global_batch_size", -1), local * dp),
        seq=read.number(_T + "seq_len", 2048),
        sequence_parallel=tp > 1 and not read.has(_P + "no_enable_sequence_parallel"),
        model=model,
        split=Split(explicit=even_chunks(model.layers, pp, vpp) if 1 < pp <= launch.world else ()),
        switches=Switches(gpipe=name not in _FILLED, any_rounds=name not in _WHOLE_ROUNDS),
    )


def _experts_tp(launch: TitanLaunch, tp: int, ep: int) -> int:
    """Tensor parallelism of experts: tp's without ep, else none; 0.2 has an option for it."""
    return tp if ep == 1 else launch.arguments.number(_P + "expert_tensor_parallel_degree", 1)


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
    shard = shard if shard > 0 else replicas_of(launch.world, replicas, cp, tp, pp)
    if launch.checkpoint not in _RECOMPUTE:
        raise InputError(
            f"activation checkpointing {launch.checkpoint or 'that is not named'} has no counterpart in a layout",
            allowed=", ".join(CHECKPOINT + word for word in _RECOMPUTE),
        )
    reshard = read.text(_P + "fsdp_reshard_after_forward", "default")
    sharded = {"always": 3, "never": 2}.get(reshard, 2 if pp > 1 else 3)
    grid = Strategy(
        tp=tp,
        cp=cp,
        dp=replicas * shard,
        ep=ep if model.experts else 1,
        etp=_experts_tp(launch, tp, ep) if model.experts else 1,
        sequence_parallel=tp > 1 and not read.has(_P + "no_enable_sequence_parallel"),
        recompute=_RECOMPUTE[launch.checkpoint],
    )
    shared = has_replicas(replace(grid, dp=shard), experts=model.experts > 0)
    zero = sharded if shared or reshard != "default" else 0
    return replace(grid, zero=zero, shard_group=shard * cp if zero and replicas > 1 else 0)
