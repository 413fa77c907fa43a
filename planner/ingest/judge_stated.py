"""Launches of the frameworks that state a layout themselves: torchtitan, DeepSpeed, Galvatron.

Each is read into a layout, which the rules judge grid by grid; where a launch states none, its bare degrees are judged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from costmodels.precision import precision
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.choices import Loss
from planner.ingest import galvatron
from planner.ingest.adapters import ADAPTER_OPTIONS, Adapters, of_trainer
from planner.ingest.beside_faults import supposed_degrees, unknown_model
from planner.ingest.deepspeed import configuration
from planner.ingest.deepspeed.sections import MOST_STAGE, copies_gradients, data_notes, faults_of_version, overlaps
from planner.ingest.judged import (
    ACCELERATE,
    SOURCES,
    JudgedLaunch,
    LaunchInput,
    assumed_seq,
    fault_violations,
    no_layout_rule,
    unknown_names,
    with_violations,
)
from planner.ingest.launch_text import LaunchText, without_unresolved
from planner.ingest.megatron.software_flags import StatedSoftware
from planner.ingest.named_sizes import other_model_notes
from planner.ingest.open_ends import DECIDING_IN_TITAN, refuse_gaps
from planner.ingest.options import Fault, rest_stands
from planner.ingest.plain_layout import StatedLayout, UnpricedError
from planner.ingest.scripts.values import BLANK
from planner.ingest.torchtitan import command_line, switches
from planner.ingest.torchtitan.models import entry_of, model_of_config
from planner.ingest.torchtitan.numbers import numbers_of, unjudged_names, unpriced_notes
from planner.ingest.trainers.accelerate import Accelerated, Engine, accelerated, refused, with_accelerate
from planner.ingest.trainers.accelerate_answer import by_accelerate, with_groups
from planner.ingest.trainers.filled_in import (
    MODEL_OPTIONS,
    model_named,
    named_config,
    optimizer_bytes,
    told_to,
    with_fills,
)
from planner.ingest.trainers.limits import trainer_limits
from planner.ingest.trainers.neox import is_neox, neox_faults, of_neox
from planner.ingest.trainers.openrlhf import of_openrlhf, openrlhf_faults
from planner.ingest.trainers.options import trainer_options
from planner.ingest.trainers.sharded_policies import of_sharded_policy, policy_faults
from planner.ingest.trainers.sharding import not_read, tied_over_tensors, with_own_sharding
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, facts_of
from planner.rules.table import NEWEST, Found
from planner.rules.verdict import Violation, accepted_at_launch, check, in_all

_HALVES: Final = ("fp16", "bf16")
_OF_DEGREES: Final = (
    *(
        "--parallelism",
        "--training",
        "--model",
        "pipeline",
        "tensor_parallel",
        "expert_parallel",
        "sequence_parallel_size",
    ),
    *(
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
        "stage",
    ),
)
"""Where torchtitan and DeepSpeed have degrees and batches: what is wrong there changes what is judged by them."""
_HIDING: Final = ("world-grid", "degrees-positive", "batch", "stages-count", "layers-sum")
"""Rules on what a reader of layouts cannot go on without, or says in words of its own."""
_OLD_VERSION: Final = "0.2"
"""Version of torchtitan with words of its own."""


def any_value(name: str) -> bool:
    """Whether a key takes a value whatever its name: all of dotted ones do."""
    return "." in name


def judge_torchtitan(given: LaunchInput) -> JudgedLaunch:
    """Read and judge a launch of torchtitan; see :func:`planner.ingest.judge.judge_launch`."""
    refuse_gaps(given.text, DECIDING_IN_TITAN)
    launch = command_line.read_torchtitan(without_unresolved(given.text, any_value), world=given.world)
    version = _OLD_VERSION if launch.old and given.version == NEWEST[Framework.TORCHTITAN] else given.version
    config = launch.arguments.text("--config")
    entry = entry_of(config)
    shipped = model_of_config(config) if config else None
    model = given.model or shipped
    checkpoint = launch.checkpoint or "selective"
    plain = replace(launch, checkpoint=checkpoint if checkpoint in ("full", "none") else "selective")
    reading = _Reading(
        faults=launch.arguments.faults,
        layout=lambda facts: command_line.stated_layout(plain, facts),
        degrees=lambda facts: command_line.degrees_of(launch, facts),
    )
    if model is None:
        told = f"the model of configuration {config!r} is not known" if config else "the launch names no model"
        allowed = "--model MODEL, or --config of torchtitan's registry such as llama3_8b"
        raise unknown_model(told, allowed, lambda facts: _answered(given, facts, reading).found)
    notes = [*given.text.notes, *other_model_notes(given.model, shipped)]
    if config and not entry and not launch.old:
        notes.append(f"what configuration {config} sets is not known: torchtitan's own defaults are taken")
    if checkpoint not in ("full", "none", "selective"):
        notes.append(f"activation checkpointing {checkpoint} is priced as selective")
    if not switches.compiles(launch):
        notes.append(f"the model is not compiled, and priced so; {switches.COMPILED} compiles it")
    facts = facts_of(model)
    given = replace(given, version=version)
    judged = _stated(given, model, facts, reading)
    numbers = numbers_of(launch, experts=facts.experts > 0)
    judged = with_violations(judged, switches.switch_violations(plain, launch.checkpoint, facts))
    judged = with_violations(judged, fault_violations(numbers.faults, SOURCES[Framework.TORCHTITAN]))
    if launch.layers_apart:
        notes.append(f"one layer in {launch.layers_apart} runs again in full ({command_line.LAYERS_APART})")
    notes += (*numbers.notes, *unpriced_notes(launch))
    return replace(
        judged,
        title=f"torchtitan {version}",
        precision=numbers.precision,
        optimizer_bytes=precision(numbers.precision).moment_bytes,
        state_offload=launch.arguments.has("--training.enable_cpu_offload"),
        loss=Loss.CHUNKED if launch.loss_chunks > 1 else Loss.WHOLE,
        loss_chunks=launch.loss_chunks,
        software=switches.priced_as(launch),
        stated=StatedSoftware(fields=dict(numbers.software)),
        unjudged=unjudged_names(launch),
        notes=(*notes, *judged.notes),
    )


def deepspeed_text(given: LaunchInput) -> LaunchText:
    """A launch of DeepSpeed: its configuration apart from its options, and what its trainer fills in."""
    text = of_sharded_policy(given.text, given.world)
    given = replace(given, text=with_own_sharding(of_openrlhf(trainer_options(text).text), given.world))
    return _with_plugin(given, accelerated(given.text, given.world))


def _with_plugin(given: LaunchInput, plugin: Accelerated | None) -> LaunchText:
    text = with_accelerate(given.text, plugin)
    return with_fills(of_neox(text), given.world)


def judge_deepspeed(given: LaunchInput) -> JudgedLaunch:
    """Read and judge a launch of DeepSpeed, or one by accelerate; see :func:`planner.ingest.judge.judge_launch`."""
    options = trainer_options(of_sharded_policy(given.text, given.world))
    sayable, unlisted = told_to(options.text), options.unlisted()
    trainers = (*policy_faults(given.text, given.world), *options.faults(), *_own_faults(options.text))
    given = replace(given, text=with_own_sharding(of_openrlhf(options.text), given.world))
    plugin = accelerated(given.text, given.world)
    given = replace(given, text=_with_plugin(given, plugin))
    sharded = plugin if plugin is not None and plugin.engine is not Engine.DEEPSPEED else None
    if sharded is not None:
        given = replace(given, framework=Framework.NONE, version="")
    _refuse_without_config(given.text)
    refuse_gaps(given.text)
    launch = configuration.parse_deepspeed(
        given.text.config, without_unresolved(given.text, configuration.takes_value), world=given.world
    )
    built = given.model or configuration.model_of(launch)
    model = built or model_named(given.text)
    own = (*refused(plugin, launch.arguments.faults), *faults_of_version(launch.config, given.version))
    reading = _Reading(
        faults=(*trainers, *own),
        layout=lambda facts: with_groups(configuration.stated_layout(launch, facts), sharded),
        degrees=lambda facts: configuration.degrees_of(launch, facts),
        runs=ACCELERATE if sharded else "",
    )
    if model is None:
        allowed = "--model MODEL, or --num-layers, --hidden-size and --num-attention-heads"
        asked = given
        raise unknown_model("the model is not known", allowed, lambda facts: _answered(asked, facts, reading).found)
    reading = replace(reading, faults=(*trainers, *_limits(given, model, sharded=sharded is not None), *own))
    judged = _stated(given, model, _with_positions(model), reading)
    how = "seq_length" if is_neox(options.text) else "--seq-length"
    length = _sequence_note(judged, how, stated=launch.arguments.has("--seq-length"))
    ignored = [f"DeepSpeed ignores the key {name} without a word" for name in launch.unread]
    optimizer, states = configuration.in_host(launch)
    adapters = of_trainer(given.text.arguments, separate=True)
    told = (adapters.note,) if adapters else ()
    length = (*length, *_taken(model, given, own=built is not None))
    unread = (name.partition(" ")[0] for name in launch.unread)
    unknown = tuple(dict.fromkeys((*judged.unknown, *unlisted, *unread)))
    judged = replace(
        judged,
        title=f"DeepSpeed {given.version}",
        precision=next((half for half in _HALVES if configuration.enabled(launch, half)), "fp32"),
        gradient_bytes=configuration.gradient_bytes(launch, given.version),
        optimizer_bytes=optimizer_bytes(given.text.arguments),
        optimizer_offload=optimizer,
        state_offload=states,
        optimizer_offload_share=configuration.share_in_host(launch),
        inputs_offload=configuration.inputs_in_host(launch),
        sayable=sayable,
        loss=configuration.loss_of(launch),
        adapters=adapters,
        stated=StatedSoftware({**_overlap(launch.config, judged.proposal), **_casts(launch, given.version)}),
        unknown=unknown,
        unjudged=_not_read(launch, unknown, given.text, adapters),
        notes=(*given.text.notes, *length, *judged.notes, *told, *configuration.assumptions(launch), *ignored),
    )
    judged = replace(judged, notes=(*judged.notes, *data_notes(launch.config), *_late(judged)))
    return judged if plugin is None else by_accelerate(judged, plugin)


def _not_read(
    launch: configuration.DeepSpeedLaunch, unknown: Collection[str], text: LaunchText, adapters: Adapters | None
) -> tuple[str, ...]:
    """Options that say nothing here; remarks say those of adapters, and the path that the model is known by."""
    told = (*(ADAPTER_OPTIONS if adapters else ()), *(MODEL_OPTIONS if model_named(text) else ()))
    return not_read(launch.unjudged, {name.lstrip("-") for name in unknown}, told)


def _limits(given: LaunchInput, model: ModelSpec, *, sharded: bool) -> tuple[Fault, ...]:
    tied = tied_over_tensors(given.text.arguments, tied=model.tied_embeddings)
    return (*tied, *trainer_limits(given.text, world=given.world, sharded=sharded))


def _own_faults(text: LaunchText) -> tuple[Fault, ...]:
    return (*openrlhf_faults(text.program, text.arguments), *neox_faults(text))


def _taken(model: ModelSpec, given: LaunchInput, *, own: bool) -> list[str]:
    """Say that a path names the model, or another one than the user."""
    by_path = [] if own else [f"the model is taken as {model.name}, by its path"]
    return [*by_path, *other_model_notes(given.model, model_named(given.text))]


def _casts(launch: configuration.DeepSpeedLaunch, version: str) -> dict[str, bool]:
    """Gradients that are copied in fp32 to be summed (``BF16_Optimizer``)."""
    copied = configuration.enabled(launch, "bf16") and copies_gradients(launch.config, version)
    return {"cast_gradients": True} if copied else {}


def _overlap(config: Mapping[str, Any], proposal: Proposal | None) -> dict[str, bool]:
    """Whether ZeRO hides its reductions; the pipeline engine reduces after the last micro-batch, whatever is stated."""
    beside = overlaps(config)
    if beside is None or proposal is None or proposal.pp > 1:
        return {}
    return {"grad_overlap": beside} | ({"param_overlap": False} if not beside and proposal.zero == MOST_STAGE else {})


def _late(judged: JudgedLaunch) -> tuple[str, ...]:
    """Remark on reductions that wait though they need not."""
    proposal = judged.proposal
    if (
        proposal is None
        or judged.stated.fields.get("grad_overlap", True)
        or proposal.world <= proposal.tp * proposal.pp
    ):
        return ()
    if proposal.zero == MOST_STAGE:
        return ("without overlap_comm ZeRO-3 gathers and reduces in turn with the passes, and is priced so",)
    return ("gradients are reduced behind the backward passes, and priced so; overlap_comm reduces them beside",)


def _refuse_without_config(text: LaunchText) -> None:
    if not text.config:
        named = named_config(text).replace(BLANK, " ")
        raise InputError(
            f"no DeepSpeed configuration: {named} is not found, or is none" if named else "no DeepSpeed configuration",
            allowed="--args-file ds_config.json, or a launch that names one as a file, its own or one beside it",
        )


def _with_positions(model: ModelSpec) -> ModelFacts:
    """Sizes of a model with the positions that stand for the sequence of a launch that says none."""
    return replace(facts_of(model), max_positions=assumed_seq(model))


def _sequence_note(judged: JudgedLaunch, how: str, *, stated: bool) -> tuple[str, ...]:
    """Say which sequence is assumed where a launch states none."""
    if stated or judged.proposal is None:
        return ()
    return (f"the launch states no sequence: {judged.proposal.seq} tokens are assumed; {how} states it",)


def judge_galvatron(given: LaunchInput) -> JudgedLaunch:
    """Read and judge a launch of Galvatron; see :func:`planner.ingest.judge.judge_launch`."""
    if not given.text.config:
        raise InputError("no Galvatron configuration", allowed="--args-file galvatron_config.json")
    launch = galvatron.parse_galvatron(
        given.text.config,
        [word for word in without_unresolved(given.text, any_value) if "=" in word],
        world=given.world,
    )
    model = given.model or galvatron.model_of(launch)
    if model is None:
        raise InputError(
            "this launch of Galvatron states no model: that is in its YAML",
            allowed="--model MODEL beside the launch: a name of plan catalog models, or a file",
        )
    reading = _Reading(
        faults=(),
        layout=lambda facts: galvatron.stated_layout(launch, facts),
        degrees=lambda facts: galvatron.degrees_of(launch, facts),
    )
    judged = _stated(given, model, _with_positions(model), reading)
    length = _sequence_note(judged, "runtime.train.seq_length=N", stated=galvatron.stated_seq(launch) > 0)
    ignored = [f"Galvatron does not read the key {name}" for name in launch.unread]
    return replace(
        judged,
        title=f"Galvatron {given.version}",
        unknown=tuple(name.partition(" ")[0] for name in launch.unread),
        unjudged=tuple(launch.overrides),
        notes=(*given.text.notes, *length, *judged.notes, *ignored),
    )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How a launch is read for a model of given sizes.

    ``runs`` is who runs it, where that is not the framework whose rules judge it.
    """

    faults: Sequence[Fault]
    layout: Callable[[ModelFacts], StatedLayout]
    degrees: Callable[[ModelFacts], Proposal]
    runs: str = ""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What is wrong, what is stated if anything is, and why that has no price."""

    found: tuple[Violation, ...]
    proposal: Proposal
    stated: StatedLayout | None
    unpriced: str


def _answered(given: LaunchInput, facts: ModelFacts, reading: _Reading, model: ModelFacts | None = None) -> _Answer:
    """Judge a launch by each of its grids, or by its bare degrees where it states none.

    ``model`` are the sizes that rules ask for, where those that it is read with are others.
    """
    runs = reading.runs or given.framework
    source, judged_by = SOURCES[runs], model or facts
    stated, told, unpriced = None, fault_violations(reading.faults, source), ""
    found: tuple[Violation, ...] = ()
    proposal = replace(reading.degrees(facts), model=judged_by)
    if not rest_stands(reading.faults):
        supposed = supposed_degrees(proposal, [fault for fault in reading.faults if _decides(fault)])
        found = in_all([check(one, given.framework, given.version) for one in supposed])
    else:
        try:
            stated = reading.layout(facts)
        except UnpricedError as error:
            found, unpriced = check(proposal, given.framework, given.version), str(error)
        except InputError as error:
            found = check(proposal, given.framework, given.version)
            hidden = any(
                violation.rule in _HIDING for violation in found
            )  # the reader met the same, or could not go on
            found = found if hidden else (*found, _unreadable(error, runs, source))
    if stated is not None:
        proposals = stated.proposals(judged_by, given.world)
        proposal = proposals[0]
        each = [violation for one in proposals for violation in check(one, given.framework, given.version)]
        found = tuple({(violation.rule, violation.message): violation for violation in each}.values())
    return _Answer(found=(*told, *found), proposal=proposal, stated=stated, unpriced=unpriced)


def _stated(given: LaunchInput, model: ModelSpec, facts: ModelFacts, reading: _Reading) -> JudgedLaunch:
    """Judge a launch that states a layout, read with the given sizes of its model."""
    answer = _answered(given, facts, reading, facts_of(model))
    accepted = accepted_at_launch(answer.found)
    stated = answer.stated if accepted else None
    return JudgedLaunch(
        title="",
        framework=given.framework,
        version=given.version,
        world=given.world,
        violations=answer.found,
        accepted=accepted,
        proposal=answer.proposal if rest_stands(reading.faults) else None,
        built=stated.layout.layers_per_stage if stated else None,
        layout=stated.layout if stated else None,
        model=model,
        precision="bf16",
        unknown=unknown_names(reading.faults),
        notes=(answer.unpriced,) if answer.unpriced else (),
    )


def _decides(fault: Fault) -> bool:
    """Whether what is wrong may be a degree or a batch, as every option of a program with DeepSpeed may."""
    section = fault.argument.partition(".")[0]
    return section in _OF_DEGREES or (section.startswith("--") and section == fault.argument)


def _unreadable(error: InputError, runs: str, source: str) -> Violation:
    message = f"{error.where}: {error.what}" if error.where else error.what
    message += f"; allowed: {error.allowed}" if error.allowed else ""
    return Violation(
        rule=no_layout_rule(runs),
        message=message,
        values={"argument": error.where},
        found=Found.PARSE,
        source=source,
    )
