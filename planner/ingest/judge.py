"""Launches of every framework read and judged by one door: ``judge_launch(given) -> JudgedLaunch``.

Each reader keeps its own words; what they share is the answer: which rule is broken, which layers are built, which
layout would run, and which arguments nobody knows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.choices import Loss
from planner.ingest.adapters import Adapters, of_overrides, of_trainer, said_overrides
from planner.ingest.allocator import allocator_violations
from planner.ingest.bridge.mixed_precision import KEY as PRECISION
from planner.ingest.bridge.nemo_recipes import gpus_of_factory
from planner.ingest.bridge.override_words import in_names, in_overrides, unquoted_notes, violation_in_overrides
from planner.ingest.bridge.overrides import LAYOUT, launcher_options_off, override_keys, read_overrides
from planner.ingest.bridge.recipe_defaults import shipped_words, with_recipe_defaults
from planner.ingest.judge_stated import any_value, judge_deepspeed, judge_galvatron, judge_torchtitan
from planner.ingest.judged import SOURCES, JudgedLaunch, LaunchInput, unknown_names, with_violations
from planner.ingest.launch_text import LaunchText, without_unresolved
from planner.ingest.megatron.arguments import Launch, LaunchVerdict, broken_rules, judge, layout_built, parse_megatron
from planner.ingest.megatron.model import model_of
from planner.ingest.megatron.option_facts import schedule_notes
from planner.ingest.megatron.software_flags import (
    BACKEND,
    DROPOUTS,
    FUSED_LOSS,
    KERNEL_VARIABLES,
    LOSS_IMPL,
    StatedSoftware,
    kernel_of_variables,
    stated_software,
)
from planner.ingest.megatron.switches import CONNECTIONS
from planner.ingest.named_sizes import other_model_notes, unlike_notes, with_positions, with_sizes
from planner.ingest.open_ends import deciding_keys, foreign_notes, own_options, refuse_gaps, refuse_missing
from planner.ingest.options import Arguments, Fault, megatron_options, rest_stands
from planner.ingest.other_frameworks import refuse_foreign
from planner.ingest.trainers.accelerate_answer import refuse_unread
from planner.ingest.trainers.accelerate_megatron import by_plugin, of_plugin
from planner.ingest.trainers.filled_in import trainer_remarks
from planner.ingest.trainers.mindspeed import adapters_of_mindspeed, is_mindspeed, of_mindspeed
from planner.ingest.trainers.nanotron import gpus_of_nanotron, is_nanotron, judge_nanotron
from planner.ingest.trainers.policies import adapters_of_policy, gpus_of_policy, names_of_policy, of_policy, program_of
from planner.ingest.trainers.sharded_policies import sharded_program_of
from planner.ingest.trainers.slime import gpus_of_actor, is_slime, of_slime
from planner.ingest.trainers.swift import gpus_of_swift, is_swift, names_of_swift, of_swift, refuse_unnamed
from planner.request import Framework
from planner.rules.proposal import facts_of
from planner.rules.table import CORE, Found, rules_of_alone
from planner.rules.verdict import Violation, accepted_at_launch

_FP8: Final = MappingProxyType(
    {"delayed": "fp8-ds", "tensorwise": "fp8-cs", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}
)
_MOMENTS: Final = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
_MOMENT_BYTES: Final = MappingProxyType({"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0})
_ONE_MOMENT: Final = ("sgd", "lion", "muon", "dist_muon")
_FRACTION: Final = "--optimizer-offload-fraction"
_LATE_GRADIENTS: Final = (
    "gradients are reduced behind the backward passes, and priced so; --overlap-grad-reduce reduces them beside, and "
    "--overlap-param-gather the same for parameters"
)
_TWO_STACKS: Final = ("pretrain_t5.py", "pretrain_retro.py", "pretrain_ict.py")
_NO_PRICE_OF_TWO: Final = "no price: the program builds more than the decoder that these arguments size"
_WORLD: Final = ("trainer.num_nodes", "trainer.devices")
_READ_JSON: Final = (Framework.DEEPSPEED, Framework.GALVATRON)


def judge_launch(given: LaunchInput) -> JudgedLaunch:
    """Read and judge a launch.

    Parameters
    ----------
    given : LaunchInput
        The launch in words.

    Returns
    -------
    JudgedLaunch
        Also when the launch is wrong; what is wrong stands in its violations.

    Raises
    ------
    InputError
        The model is neither named nor built by the launch, or a configuration is no JSON or one that the framework
        does not read.
    """
    if given.text.config and not given.text.arguments and given.framework not in _READ_JSON:
        raise InputError(
            f"a JSON configuration, which {given.framework} does not read",
            allowed="a launch script, YAML, TOML or KEY=VALUE words; JSON with --framework deepspeed or galvatron",
        )
    refuse_unread(given)
    read = judge_nanotron if is_nanotron(given.text) else _READERS[given.framework]
    return with_violations(read(given), allocator_violations(given.text.environment))


def _megatron(given: LaunchInput) -> JudgedLaunch:
    own_text = given.text
    given, adapters, remarks = _in_own_flags(given)
    text = given.text
    told = text.environment is not None and CONNECTIONS in text.environment
    refuse_gaps(text)
    launch, foreign = _parsed(given, told=told)
    refuse_missing(text, launch.faults)
    refuse_foreign(text.program, foreign, launch.faults)
    model, notes = (
        given.model,
        [
            *text.notes,
            *foreign_notes(foreign, given),
            *schedule_notes(launch.arguments, launch.version),
            *(unlike_notes(launch, given.model) if text is own_text else ()),
        ],
    )
    wide = launch.proposal.tp * launch.proposal.cp > 1 and not launch.proposal.switches.megatron_fsdp
    if text.environment is not None and not told and wide:
        notes.append(f"the script does not set {CONNECTIONS}: it must be 1 with tp or cp up to Hopper")
    if model is None and rest_stands(launch.faults):
        two = given.text.program.rpartition("/")[2] in _TWO_STACKS
        model, why = (None, _NO_PRICE_OF_TWO) if two else _built_model(launch.arguments)
        notes += [why] if why else list(model.notes if model else ())
    stated = launch.layers
    if model is not None and rest_stands(launch.faults) and model.layers != stated:
        raise InputError(
            f"the arguments build {stated} layers, {model.name} has {model.layers}",
            allowed="arguments without --num-layers, or the model that they build",
        )
    own_parser = is_swift(own_text) or bool(program_of(own_text))
    verdict = _without_parser(judge(launch)) if own_parser else judge(launch)
    verdict = _in_own_words(verdict, given, own_text)
    judged = _judged(given, launch, verdict, model, tuple(notes))
    tools = _stated_in_flags(launch.arguments, model, own=text is own_text)
    spread = launch.proposal.world > launch.proposal.tp * launch.proposal.pp
    muon = launch.arguments.text("--optimizer") == "muon"  # which Megatron-LM refuses beside such an overlap
    late = (_LATE_GRADIENTS,) if spread and text is own_text and not (tools.fields["grad_overlap"] or muon) else ()
    priced = (*((adapters.note,) if adapters else ()), *remarks, *late, *tools.note)
    judged = replace(judged, unknown=(*judged.unknown, *foreign), adapters=adapters, stated=tools)
    return replace(judged, notes=(*judged.notes, *priced))


def _in_own_flags(given: LaunchInput) -> tuple[LaunchInput, Adapters | None, tuple[str, ...]]:
    """A launch of a program on Megatron-LM in its flags; what it adapts, and what must be said of it."""
    text, own, named = given.text, given.text, given.model
    adapters: Adapters | None = None
    remarks: tuple[str, ...] = ()
    if is_swift(own):
        adapters = of_trainer(own.arguments, separate=False)
        remarks = trainer_remarks(own.arguments)
        text, named = of_swift(own, megatron_options(given.version), named)
    elif is_slime(own):
        text, named = of_slime(own, megatron_options(given.version), named)
    elif program_of(own):
        adapters = adapters_of_policy(own)
        text, named = of_policy(own, named, given.world)
    elif by_plugin(own):
        text, named = of_plugin(own, given.world, named)
    elif is_mindspeed(own):
        text = of_mindspeed(own, megatron_options(given.version))
        return replace(given, text=text), adapters_of_mindspeed(own), remarks
    else:
        return given, adapters, remarks
    refuse_unnamed(text, named, own)
    return replace(given, text=text, model=named), adapters, remarks


def _in_own_words(verdict: LaunchVerdict, given: LaunchInput, own: LaunchText) -> LaunchVerdict:
    """The verdict in the names that the launch's program has for Megatron-LM's flags."""
    if is_swift(own):
        names = names_of_swift(megatron_options(given.version))
    elif program_of(own):
        names = names_of_policy(own)
    else:
        return verdict
    return replace(verdict, violations=tuple(in_names(one, names) for one in verdict.violations))


def _without_parser(verdict: LaunchVerdict) -> LaunchVerdict:
    """What Megatron-core refuses itself, of a launch whose program does not start by Megatron-LM's parser."""
    alone = rules_of_alone(Framework.MEGATRON)
    found = tuple(one for one in verdict.violations if one.rule not in alone)
    return replace(verdict, violations=found, legal=not found, accepted=accepted_at_launch(found))


def _parsed(given: LaunchInput, *, told: bool) -> tuple[Launch, tuple[str, ...]]:
    """The launch in Megatron-LM's own options, and those of its program; with its environment where it was told."""
    text, options = given.text, megatron_options(given.version)
    sized = "--num-layers" in {word.partition("=")[0] for word in text.arguments}
    words = without_unresolved(text, lambda name: name in options and options[name].values != "0")
    words, foreign = own_options(words, given)
    launch = parse_megatron(
        words,
        world=given.world,
        version=given.version,
        environment=text.environment if told else None,
        model=None if sized or given.model is None else facts_of(given.model),
    )
    return with_positions(launch), foreign


def _stated_in_flags(read: Arguments, model: ModelSpec | None, *, own: bool) -> StatedSoftware:
    """The software of a launch in flags; of a trainer's, dropout is its model's unless a flag says it."""
    tools = stated_software(read, experts=bool(model and facts_of(model).experts))
    if not own and not any(read.has(flag) for flag in DROPOUTS):
        tools.fields.pop("dropout")
    return tools


def _built_model(read: Arguments) -> tuple[ModelSpec | None, str]:
    try:
        return model_of(read), ""
    except InputError as error:
        return None, f"no price: {error}"


def _judged(
    given: LaunchInput, launch: Launch, verdict: LaunchVerdict, model: ModelSpec | None, notes: tuple[str, ...]
) -> JudgedLaunch:
    stands = rest_stands(launch.faults)
    share = _share_in_host(launch.arguments, given.framework)
    asked = launch.arguments.has("--optimizer-cpu-offload")
    nothing = (
        "the offload of the optimizer moves nothing: optimizer_offload_fraction is 0.0, also where it is not given"
    )
    told = (nothing,) if asked and share == 0.0 else ()
    built = verdict.layers_per_stage if verdict.accepted else None
    return JudgedLaunch(
        title=f"Megatron-LM core {launch.version}",
        framework=given.framework,
        version=launch.version,
        world=given.world,
        violations=verdict.violations,
        accepted=verdict.accepted,
        proposal=launch.proposal if stands else None,
        built=verdict.layers_per_stage,
        layout=layout_built(launch, built) if built is not None else None,
        model=model,
        precision=precision_of(launch.arguments),
        gradient_bytes=_gradient_bytes(launch.arguments),
        optimizer_bytes=optimizer_bytes_of(launch.arguments),
        optimizer=launch.arguments.text("--optimizer", "adam"),
        optimizer_offload=launch.arguments.has("--optimizer-cpu-offload") and share > 0.0,
        optimizer_offload_share=share or 1.0,
        loss=_loss(launch.arguments),
        wide_weights=not launch.arguments.has("--fp8-param-gather"),
        unknown=unknown_names(launch.faults),
        notes=(*notes, *told),
    )


def _share_in_host(read: Arguments, framework: Framework) -> float:
    """Share of the optimizer's states that ``--optimizer-cpu-offload`` moves, from 0 to 1.

    Megatron-LM's option is 1.0 where it is not given; its configuration, which Megatron-Bridge and NeMo build, 0.0.
    """
    usual = 1.0 if framework is Framework.MEGATRON else 0.0
    try:
        return min(1.0, max(0.0, float(read.text(_FRACTION, str(usual)))))
    except ValueError:  # a fault of the launch
        return usual


def _loss(read: Arguments) -> Loss:
    """Transformer Engine's fused loss where it is asked for; Megatron-LM's own holds as much fused as in kernels."""
    asked = read.has(FUSED_LOSS) and read.text(LOSS_IMPL, "native") == "te"
    return Loss.FUSED if asked else Loss.DEFAULT


def _loss_of_overrides(read: Arguments, answered: Sequence[str]) -> Loss:
    """The loss that overrides of a recipe state, which fuses it and has one implementation or the other by default."""
    if FUSED_LOSS in answered and not read.has(FUSED_LOSS):
        return Loss.WHOLE
    stated = {"te": Loss.FUSED, "native": Loss.WHOLE}
    return stated.get(read.text(LOSS_IMPL), Loss.DEFAULT)


def _gradient_bytes(read: Arguments) -> float:
    """Bytes per parameter of the summed gradients: with bf16 they are fp32 unless a flag says otherwise."""
    if not read.has("--bf16"):
        return 0.0
    return 2.0 if read.has("--grad-reduce-in-bf16") else 4.0


def optimizer_bytes_of(read: Arguments) -> float:
    """Bytes a parameter of the optimizer's states beside master weights of fp32, as Megatron-LM's flags state them.

    Master weights of fp16 are 2 bytes less. Momentum of one kind alone: SGD, Lion, and Muon, whose few vectors and
    embeddings have Adam's two are counted as its matrices.
    """
    moments = _MOMENTS[:1] if read.text("--optimizer", "adam") in _ONE_MOMENT else _MOMENTS
    master = _MOMENT_BYTES.get(read.text("--main-params-dtype", "fp32"), 4.0) - _MOMENT_BYTES["fp32"]
    return sum(_moment_bytes(read, moment) for moment in moments) + master


def _moment_bytes(read: Arguments, moment: str) -> float:
    return _MOMENT_BYTES.get(read.text(moment, "fp32"), 4.0)


def precision_of(read: Arguments) -> str:
    """Name of the training recipe that Megatron-LM's flags ask for."""
    if read.has("--fp4-format"):
        return "nvfp4"
    if read.has("--fp8-format"):
        return _FP8.get(read.text("--fp8-recipe", "delayed"), "fp8-cs")
    return "bf16" if read.has("--bf16") else "fp16" if read.has("--fp16") else "fp32"


def _kernels(words: list[str], text: LaunchText, framework: Framework) -> tuple[list[str], tuple[str, ...]]:
    """Flags with the kernels of attention that Transformer Engine's variables choose, and not those of an override.

    References
    ----------
    Megatron-Bridge 0.6.2: an override of ``model.attention_backend`` stays the text that it is, found by its own
    ``process_config_with_overrides``; Megatron-core's ``language_module.py`` compares it with an enumeration and then
    sets no variable.
    """
    if framework is not Framework.BRIDGE:
        return words, ()
    said = words[words.index(BACKEND) + 1] if BACKEND in words else ""
    kept = words if not said else [*words[: words.index(BACKEND)], *words[words.index(BACKEND) + 2 :]]
    chosen = kernel_of_variables(text.environment or {})
    kept = [*kept, BACKEND, chosen] if chosen else kept
    if said in ("", "auto"):
        return kept, ()
    told = f"override model.attention_backend={said} says nothing: Megatron-Bridge keeps the text, the core knows none"
    others = " ".join(f"{name}={int(kernel == said)}" for kernel, name in KERNEL_VARIABLES.items())
    return kept, (f"{told}; the variables {others} do, with model.attention_backend=null",)


def _overrides(given: LaunchInput) -> JudgedLaunch:
    """Megatron-Bridge and NeMo: overrides as the flags that they stand for, over a model that a recipe names."""
    framework = given.framework
    shipped, told_of_recipe = shipped_words(given)
    text = replace(given.text, arguments=(*shipped, *given.text.arguments))
    refuse_gaps(text, deciding_keys(override_keys(framework)))
    read = read_overrides(launcher_options_off(without_unresolved(text, any_value), framework), framework)
    model, notes = _recipe_model(given, read.layers)
    notes += told_of_recipe
    facts = with_sizes(facts_of(model), read.flags) if model else None
    facts = replace(facts, max_positions=0) if facts else None  # positions follow the sequence here
    words, assumed = with_recipe_defaults(read.flags, read.answered, model, given)
    words, ignored = _without_layout(words, model, framework)
    words, kernels = _kernels(words, text, framework)
    unsure = _unsure(read.faults, framework)
    launch = parse_megatron(words, world=given.world, version=CORE[framework], model=facts, unsure=unsure)
    launch = replace(launch, faults=(*read.faults, *_missing_words(launch.faults)))
    if read.one_chunk:
        proposal = launch.proposal
        launch = replace(launch, proposal=replace(proposal, switches=replace(proposal.switches, interleaved_one=True)))
    verdict = judge(launch)
    found = _own_rules(verdict, launch, given)
    verdict = replace(
        verdict,
        violations=tuple(violation_in_overrides(one, text.arguments, framework) for one in found),
        legal=not found,
        accepted=accepted_at_launch(found),
        layers_per_stage=verdict.layers_per_stage,
    )
    if model is None and rest_stands(launch.faults):
        model, why = _built_model(launch.arguments)
        notes += [why] if why else []
    notes += [in_overrides(one, text.arguments, framework) for one in schedule_notes(launch.arguments, launch.version)]
    notes += [in_overrides(one, text.arguments, framework) for one in unlike_notes(launch, given.model)]
    notes += unquoted_notes(given.text.arguments) if framework is Framework.BRIDGE else ()
    judged = _judged(given, launch, verdict, model, (*text.notes, *notes, *assumed, *ignored, *kernels))
    name = "Megatron-Bridge" if framework is Framework.BRIDGE else "NeMo"
    adapters = of_overrides(text, framework)
    known = (*(_WORLD if framework is Framework.NEMO else ()), *said_overrides(text, framework))
    experts = bool(model and facts_of(model).experts)
    tools = stated_software(launch.arguments, experts=experts, decided=read.answered)
    return replace(
        judged,
        adapters=adapters,
        stated=tools,
        notes=(*judged.notes, *((adapters.note,) if adapters else ()), *tools.note),
        title=f"{name} {given.version} (Megatron core {CORE[framework]})",
        version=given.version,
        gradient_bytes=judged.gradient_bytes if read.gradients else 0.0,
        loss=_loss_of_overrides(launch.arguments, read.answered),
        unjudged=tuple(name for name in read.unjudged if name not in known),
    )


def _without_layout(
    words: list[str], model: ModelSpec | None, framework: Framework
) -> tuple[list[str], tuple[str, ...]]:
    """Flags without the layout of a pipeline that hybrid models of NeMo do not look at, and a remark on it.

    References
    ----------
    Megatron-core 0.15 ``core/ssm/mamba_block.py``: every stage has ``num_layers // pp`` layers.
    """
    hybrid = model is not None and facts_of(model).state_heads > 0
    if framework is not Framework.NEMO or not hybrid or LAYOUT not in words:
        return words, ()
    at = words.index(LAYOUT)
    key = "trainer.strategy.pipeline_model_parallel_layout"
    note = f"{key} is ignored: stages of a hybrid model have equal numbers of layers in NeMo 2"
    return [*words[:at], *words[at + 2 :]], (note,)


def _unsure(faults: Sequence[Fault], framework: Framework) -> tuple[str, ...]:
    """Flags of Megatron-LM that overrides stand for whose values cannot be read."""
    named = {fault.argument for fault in faults if not fault.unknown}
    flags = [key.flag for key in override_keys(framework) if named & set(key.keys)]
    formats = ("--bf16", "--fp16", "--fp8-format", "--fp4-format")
    return (*flags, *(formats if any(name.startswith(PRECISION) for name in named) else ()))


def _own_rules(verdict: LaunchVerdict, launch: Launch, given: LaunchInput) -> tuple[Violation, ...]:
    """Violations by the framework's own rules, behind arguments that are wrong in its own words."""
    source = SOURCES[given.framework]
    faults = tuple(
        replace(v, source=source, found=Found.NEVER if "without a word" in v.message else v.found)
        for v in verdict.violations
        if "argument" in v.values
    )
    own = broken_rules(launch, given.framework, given.version)
    return (*faults, *own)


def _recipe_model(given: LaunchInput, layers: int) -> tuple[ModelSpec | None, list[str]]:
    """The model that the user or the recipe names, with as many layers as an override says."""
    model, shipped = given.model, model_of_recipe(given.text.recipe) if given.text.recipe else None
    notes = other_model_notes(model, shipped)
    if model is None and given.text.recipe:
        model = shipped
        told = f"the model of recipe {given.text.recipe}"
        notes.append(f"{told} is taken as {model.name}" if model else f"{told} is not known: name it by --model")
    if model is not None and layers and layers != model.layers:
        model = presets.proxy(model, layers)
        notes.append(f"the model has {layers} layers by its override")
    return model, notes


def model_of_recipe(recipe: str) -> ModelSpec | None:
    """Return the preset that a recipe's name begins with, such as ``llama3_8b`` of ``llama3_8b_pretrain_config``.

    Parameters
    ----------
    recipe : str
        Name of a recipe, with or without its module.

    Returns
    -------
    ModelSpec or None
        The preset with the longest name; None when no preset has one.
    """
    return presets.beginning(recipe.partition("(")[0].rpartition(".")[2])


def _missing_words(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Faults in an override's words: a size that is missing is the recipe's."""
    missing = [fault.argument for fault in faults if fault.rule == "megatron-option-missing"]
    others = [fault for fault in faults if fault.rule != "megatron-option-missing"]
    if missing:
        message = "the model is not known: name it by --model MODEL, or give --recipe NAME or model.* sizes"
        others.append(Fault(rule="model-missing", argument="--model", message=message))
    return tuple(others)


_READERS: Final[Mapping[Framework, Callable[[LaunchInput], JudgedLaunch]]] = MappingProxyType(
    {
        Framework.MEGATRON: _megatron,
        Framework.BRIDGE: _overrides,
        Framework.NEMO: _overrides,
        Framework.TORCHTITAN: judge_torchtitan,
        Framework.DEEPSPEED: judge_deepspeed,
        Framework.GALVATRON: judge_galvatron,
    }
)


def stated_world(text: LaunchText, framework: Framework) -> int:
    """GPUs that the launch itself starts; 0 when it does not say."""
    if framework is Framework.NEMO:
        found = {name: word.partition("=")[2] for word in text.arguments for name in [word.partition("=")[0]]}
        nodes, devices = found.get(_WORLD[0], "1"), found.get(_WORLD[1], "")
        if nodes.isdecimal() and devices.isdecimal() and len(nodes + devices) <= 12:
            return int(nodes) * int(devices)
        if gpus := gpus_of_factory(text):
            return gpus
    if is_nanotron(text):
        return text.world or gpus_of_nanotron(text)
    if framework is Framework.MEGATRON:
        return gpus_of_actor(text) or gpus_of_swift(text) or gpus_of_policy(text, program_of(text)) or text.world
    sharded = sharded_program_of(text) if framework is Framework.DEEPSPEED else ""
    return gpus_of_policy(text, sharded) or text.world
