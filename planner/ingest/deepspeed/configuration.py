"""A DeepSpeed configuration with the degrees of its program, read into the layout that they launch.

DeepSpeed's JSON states batch, precision, ZeRO stage and how a pipeline is cut; degrees of tensor, pipeline, sequence
and expert parallelism are the program's, here in Megatron-DeepSpeed's words.

References
----------
DeepSpeed 0.19: ``runtime/config.py`` (batch triple, pipeline section), ``runtime/pipe/module.py`` and
``runtime/utils.py`` (partition of layers). Megatron-DeepSpeed ``megatron/arguments.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Strategy
from costmodels.workload.architecture import Architecture
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.choices import Loss
from planner.ingest.deepspeed.sections import (
    MOST_STAGE,
    ZERO,
    config_faults,
    copies_gradients,
    given_section,
    key_table,
    offloaded,
    section_of,
    stage_of,
    summed_in,
    switched,
)
from planner.ingest.deepspeed.text import plain_json, read_config
from planner.ingest.deepspeed.words import spelled
from planner.ingest.megatron.model import GPT2_VOCAB
from planner.ingest.options import MOST_RANKS, Arguments, Option, near_key, read_arguments, refuse_faults, rest_stands
from planner.ingest.plain_layout import StatedLayout, UnpricedError, refuse_illegal, uniform_stages
from planner.layouts.splits import leading_positions
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, Split, replicas_of

_OPTIONS: Final = "options of Megatron-DeepSpeed"
_BATCH: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BALANCED: Final = "type:transformer"
_LAYERS_ALONE: Final = (_BALANCED, "type:transformer|mlp")
"""Cuts that count transformer layers; GPT-NeoX's default names its MLPs too, which are parts of them."""
_GRADIENT_BYTES: Final = MappingProxyType({"bf16": 2.0, "fp16": 2.0, "fp32": 4.0})
_COPIED_BYTES: Final = 6.0
_UNPRICED: Final = ("zero_hpz_partition_size", "zenflow")
_QUANTIZED: Final = ("zero_quantized_weights", "zero_quantized_gradients")
_RECOMPUTE: Final = "activation_checkpointing"
_OPTIMIZER: Final = "offload_optimizer"
_INPUTS: Final = "cpu_checkpointing"
_WITH_ENDS: Final = ("type:transformer|embedding", "type:embedding|transformer")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedLaunch:
    """A launch of DeepSpeed.

    Attributes
    ----------
    world : int
        Number of ranks.
    config : mapping
        The JSON's values.
    arguments : Arguments
        Options that state degrees; ``faults`` names values that are wrong, also of the configuration.
    unjudged : tuple of str
        Options that say nothing about a layout, or that are not known.
    unread : tuple of str
        Top-level keys that DeepSpeed ignores, each with the nearest key that it reads.
    commented : bool
        The configuration has comments, or commas behind last values.
    """

    world: int
    config: Mapping[str, Any]
    arguments: Arguments
    unjudged: tuple[str, ...]
    unread: tuple[str, ...]
    commented: bool = False


def balanced_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as DeepSpeed cuts them with ``type:transformer``: even, earlier stages take the rest."""
    return tuple(leading_positions(layers, stages).tolist())


def balanced_with_ends(layers: int, stages: int, *, tied: bool) -> tuple[int, ...]:
    """Layers of each stage with ``type:transformer|embedding``: the embedding counts as a layer, and a tied head.

    References
    ----------
    Megatron-DeepSpeed ``megatron/model/gpt_model.py``: a tied head is an ``EmbeddingPipe`` again, others an
    ``LMHeadPipe``, which the method does not name.
    """
    counts = leading_positions(layers + 1 + tied, stages).tolist()
    counts[0] -= 1
    counts[-1] -= int(tied)
    return tuple(counts)


def parse_deepspeed(text: str, arguments: Sequence[str] = (), *, world: int) -> DeepSpeedLaunch:
    """Read a DeepSpeed configuration and the arguments of its program.

    Parameters
    ----------
    text : str
        As in ``ds_config.json``; comments as DeepSpeed takes them.
    arguments : sequence of str
        Of the program; those that state no degree are kept aside.
    world : int
        Number of ranks.

    Raises
    ------
    InputError
        The text is no JSON object, or states a key twice.
    """
    config = read_config(text)
    known = key_table()
    options = {name: Option(name=name, values=values, kind="str") for name, values in known["options"].items()}
    arguments = spelled(arguments, known["spellings"], known["options"])
    judged: list[str] = []
    unjudged: list[str] = []
    target = unjudged
    for word in arguments:
        if word.startswith("--"):
            target = judged if word.partition("=")[0] in options else unjudged
        target.append(word)
    told = (*known["top_level"], *known["removed"])
    unread = tuple(f"{key}{near_key(key, known['top_level'])}" for key in config if key not in told)
    read = read_arguments(judged, options)
    return DeepSpeedLaunch(
        world=world,
        config=MappingProxyType(config),
        arguments=replace(read, faults=(*read.faults, *config_faults(config))),
        unjudged=tuple(unjudged),
        unread=unread,
        commented=plain_json(text) != text,
    )


def takes_value(name: str) -> bool:
    """Whether an option of the program is known to take a value."""
    table = key_table()
    known = table["spellings"].get(name.replace("_", "-"), name.replace("_", "-"))
    return str(table["options"].get(known, "0")) != "0"


def layout_of(launch: DeepSpeedLaunch, model: ModelFacts) -> Layout:
    """State a launch as a layout.

    Parameters
    ----------
    launch : DeepSpeedLaunch
        See :func:`parse_deepspeed`.
    model : ModelFacts
        Sizes of the model.

    Returns
    -------
    Layout
        Of the launch.

    Raises
    ------
    InputError
        A value is wrong, the batch does not multiply out, the pipeline is cut in a way whose result is not known, or
        the launch breaks a rule.
    """
    refuse_faults(launch.arguments.faults, _OPTIONS)
    stated = stated_layout(launch, model)
    return refuse_illegal(stated, model, world=launch.world, framework=Framework.DEEPSPEED)


def stated_layout(launch: DeepSpeedLaunch, model: ModelFacts) -> StatedLayout:
    """Read what a launch states, legal or not; parameters as of :func:`layout_of`.

    Raises
    ------
    InputError
        A value is wrong, the batch does not multiply out, or the result of the pipeline's cut is not known.
    """
    read, config = launch.arguments, launch.config
    refuse_faults(() if rest_stands(read.faults) else read.faults, _OPTIONS)
    section = _section(config, "pipeline")
    pp = read.number("--pipeline-model-parallel-size", int(section.get("stages", 1)))
    strategy = _strategy(launch, model, pp, section)
    batch, micro, steps = _batch(config, read, strategy.dp)
    method = (read.text("--pp-partition-method") or str(section.get("partition", _BALANCED))).lower()
    layout = Layout(
        stages=uniform_stages([(count,) for count in _split(model, pp, method)], strategy),
        micro_batch=micro,
        num_microbatches=steps,
    )
    seq = read.number("--seq-length", max(1, model.max_positions))
    return StatedLayout(layout=layout, global_batch=batch, seq=seq)


def degrees_of(launch: DeepSpeedLaunch, model: ModelFacts) -> Proposal:
    """Degrees of a launch as they stand, for judging one whose layout cannot be stated."""
    read, config = launch.arguments, launch.config
    section = config.get("pipeline", {})
    stages = section.get("stages", 1) if isinstance(section, dict) else 1
    pp = read.number("--pipeline-model-parallel-size", stages if isinstance(stages, int) else 1)
    tp, cp = _degrees(launch)
    dp = replicas_of(launch.world, tp, cp, pp)
    micro, batch = (config.get(name) for name in (_BATCH[1], _BATCH[0]))
    micro = micro if isinstance(micro, int) and micro > 0 else 1
    return Proposal(
        world=launch.world,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=read.number("--moe-expert-parallel-size", 1),
        zero=stage_of(config),
        micro_batch=micro,
        global_batch=batch if isinstance(batch, int) and batch > 0 else micro * dp,
        seq=read.number("--seq-length", max(1, model.max_positions)),
        model=model,
        split=Split(explicit=tuple((n,) for n in balanced_layers(model.layers, pp)) if 1 < pp <= launch.world else ()),
    )


def enabled(launch: DeepSpeedLaunch, name: str) -> bool:
    """Whether a section such as ``bf16`` is switched on; ``auto`` is as the program's arguments say."""
    told = given_section(launch.config, name)
    if isinstance(told, dict) and told.get("enabled") == "auto":
        return launch.arguments.has(f"--{name}")
    return switched(section_of(launch.config, name), "enabled")


def in_host(launch: DeepSpeedLaunch) -> tuple[bool, bool]:
    """Whether the optimizer's states alone, and whether all states, lie outside of the accelerators.

    The optimizer's under ZeRO; weights with them under stage 3.
    """
    stage = stage_of(launch.config)
    optimizer = offloaded(launch.config, "optimizer") and stage > 0
    states = optimizer and offloaded(launch.config, "param") and stage == MOST_STAGE
    return optimizer and not states, states


def share_in_host(launch: DeepSpeedLaunch) -> float:
    """Share of the optimizer's states in the host, where they are there: ``ratio``, which ZeRO-3 alone takes."""
    told = section_of(launch.config, ZERO).get(_OPTIMIZER)
    ratio = told.get("ratio", 1.0) if isinstance(told, dict) else 1.0
    stated = isinstance(ratio, int | float) and 0.0 < ratio <= 1.0
    return float(ratio) if stated and stage_of(launch.config) == MOST_STAGE else 1.0


def inputs_in_host(launch: DeepSpeedLaunch) -> bool:
    """Whether inputs of recomputed layers wait in host memory.

    ``cpu_checkpointing`` is read by DeepSpeed's own checkpointing alone (``runtime/activation_checkpointing``), which
    Megatron-DeepSpeed takes with ``--deepspeed-activation-checkpointing``; trainers recompute by torch's.
    """
    read = launch.arguments
    own = read.has("--checkpoint-activations") and read.has("--deepspeed-activation-checkpointing")
    return own and switched(section_of(launch.config, _RECOMPUTE), _INPUTS)


def gradient_bytes(launch: DeepSpeedLaunch, version: str) -> float:
    """Bytes per parameter of the gradients of a launch in bf16, as it sums them; 0.0: as it is priced.

    Sums that are copies in fp32 stand beside the gradients of a micro-batch.
    """
    if not enabled(launch, "bf16"):
        return 0.0
    copied = copies_gradients(launch.config, version)
    return _COPIED_BYTES if copied else _GRADIENT_BYTES.get(summed_in(launch.config), 0.0)


def loss_of(launch: DeepSpeedLaunch) -> Loss:
    """How a trainer on DeepSpeed computes its loss, where its options say so."""
    if launch.arguments.has("--cut-cross-entropy"):
        return Loss.CUT
    return Loss.LIGER if launch.arguments.has("--use-liger-kernel") else Loss.DEFAULT


def assumptions(launch: DeepSpeedLaunch) -> tuple[str, ...]:
    """What a price does not know of a launch, and what is read though DeepSpeed itself does not read it."""
    notes = []
    pipeline, zero = section_of(launch.config, "pipeline"), section_of(launch.config, ZERO)
    if "stages" in pipeline and not launch.arguments.has("--pipeline-model-parallel-size"):
        notes.append("pipeline: DeepSpeed does not read stages; they are taken as what the program cuts its model into")
    if offloaded(launch.config, "param") and not in_host(launch)[1]:
        notes.append("offload_param without ZeRO-3 and offload_optimizer has no price here: it is priced on the GPUs")
    notes += _unpriced_offload(launch, zero)
    if switched(section_of(launch.config, _RECOMPUTE), _INPUTS) and not inputs_in_host(launch):
        needs = "--checkpoint-activations with --deepspeed-activation-checkpointing"
        notes.append(f"{_RECOMPUTE}: {_INPUTS} is priced as off: only DeepSpeed's own checkpointing reads it ({needs})")
    if launch.commented:
        notes.append("the configuration has comments: DeepSpeed reads them, the Hugging Face Trainer's reader does not")
    unpriced = [key for key in _UNPRICED if zero.get(key) not in (None, False, 0, 1)]
    unpriced += [key for key in _QUANTIZED if switched(zero, key)]
    if launch.arguments.text("--loss-type") == "chunked_nll":
        notes.append("loss_type chunked_nll of TRL has no price here: it is priced on whole logits")
    return (*notes, *(f"zero_optimization: {key} has no price here, it is priced without" for key in unpriced))


def _unpriced_offload(launch: DeepSpeedLaunch, zero: Mapping[str, Any]) -> list[str]:
    """Parts of an offload that are priced as something else: disks, and a share beside weights in the host."""
    parts = [(name, zero.get(name)) for name in (_OPTIMIZER, "offload_param")]
    disks = [name for name, told in parts if isinstance(told, dict) and told.get("device") == "nvme"]
    notes = [f"{name}: device nvme has no price here, it is priced as memory of the host" for name in disks]
    if share_in_host(launch) < 1.0 and in_host(launch)[1]:
        notes.append(f"{_OPTIMIZER}: ratio beside offload_param has no price here, it is priced as 1.0")
    return notes


def model_of(launch: DeepSpeedLaunch) -> ModelSpec | None:
    """Return the model that the program's arguments build, in Megatron-DeepSpeed's words; None when they do not.

    Raises
    ------
    InputError
        The sizes do not go together.
    """
    read = launch.arguments
    sizes = [read.number(name, 0) for name in ("--num-layers", "--hidden-size", "--num-attention-heads")]
    if not all(sizes):
        return None
    experts = read.number("--num-experts", 0)
    if len(set(read.texts("--num-experts"))) > 1:
        told = " ".join(read.texts("--num-experts"))
        raise InputError(f"{told}: unlike numbers of experts in one model", allowed="one number", where="--num-experts")
    positions = read.number("--max-position-embeddings", read.number("--seq-length", 0))
    kind = read.text("--position-embedding-type", "none" if read.has("--no-position-embedding") else "learned")
    biased = not read.has("--disable-bias-linear")
    rotary = read.has("--use-rotary-position-embeddings") or kind.startswith("rope")
    facts = Architecture(
        layers=sizes[0],
        hidden=sizes[1],
        heads=sizes[2],
        kv_heads=read.number("--num-key-value-heads", 0),
        head_dim=read.number("--kv-channels", 0),
        vocab=read.number("--vocab-size", 0) or GPT2_VOCAB,
        ffn=read.number("--ffn-hidden-size", 4 * sizes[1]),
        gated=read.has("--swiglu"),
        norm="rms" if read.text("--normalization", "").lower() == "rmsnorm" else "layer",
        qkv_bias=biased,
        out_bias=biased,
        ffn_bias=biased,
        expert_bias=biased,
        rotary=rotary,
        learned_positions=positions if kind.startswith("learned") and not rotary else 0,
        tied=not read.has("--untie-embeddings-and-output-weights"),
        max_positions=positions,
        experts=experts if experts > 1 else 0,
        top_k=read.number("--topk", 1) if experts > 1 else 0,
    )
    return facts.build("model of the arguments", sources=("launch arguments",), where="arguments")


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f"{type(value).__name__} instead of an object", allowed="an object", where=name)
    return value


def _degrees(launch: DeepSpeedLaunch) -> tuple[int, int]:
    """Tensor and sequence degrees: the program's, else those that DeepSpeed itself is configured with."""
    auto = section_of(launch.config, "tensor_parallel").get("autotp_size", 1)
    sequence = launch.config.get("sequence_parallel_size", 1)
    own = (max(1, auto) if _is_whole(auto) else 1, sequence if _is_whole(sequence) else 1)
    read = launch.arguments.number
    return read("--tensor-model-parallel-size", own[0]), read("--ds-sequence-parallel-size", own[1])


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value <= MOST_RANKS


def _strategy(launch: DeepSpeedLaunch, model: ModelFacts, pp: int, section: Mapping[str, Any]) -> Strategy:
    read = launch.arguments
    tp, cp = _degrees(launch)
    if min(tp, cp, pp) < 1 or launch.world % (tp * cp * pp):
        raise InputError(
            f"tp {tp} x cp {cp} x pp {pp} does not divide {launch.world} GPUs", allowed="degrees whose product divides"
        )
    experts = model.experts > 0
    full = read.has("--checkpoint-activations") or bool(section.get("activation_checkpoint_interval", 0))
    return Strategy(
        tp=tp,
        cp=cp,
        dp=launch.world // (tp * cp * pp),
        ep=read.number("--moe-expert-parallel-size", 1) if experts else 1,
        etp=tp if experts and read.has("--enable-expert-tensor-parallelism") else 1,
        sequence_parallel=read.has("--sequence-parallel") and tp > 1,
        zero=_stage(launch),
        recompute=FULL_RECOMPUTE if full else NO_RECOMPUTE,
    )


def _stage(launch: DeepSpeedLaunch) -> int:
    stage = stage_of(launch.config)
    told = launch.arguments.number("--zero-stage", stage)
    if told != stage:
        raise InputError(f"--zero-stage {told}, the configuration says {stage}", allowed="one stage")
    return stage


def _batch(config: Mapping[str, Any], read: Arguments, dp: int) -> tuple[int, int, int]:
    """Global batch, micro-batch and accumulation steps; one that is left out follows from the others.

    ``auto`` is what the program's arguments say: the Hugging Face Trainer's, which accumulates over 1 step by default.
    """
    given = {name: config.get(name) for name in _BATCH}
    if read.has("--micro-batch-size") and given[_BATCH[1]] == "auto":
        accumulated = read.number("--gradient-accumulation-steps", 1)
        own = dict(zip(_BATCH, (None, read.number("--micro-batch-size", 0), accumulated), strict=True))
        given = {name: own[name] if value == "auto" else value for name, value in given.items()}
    given = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()
    }
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            filled = (
                "; auto is filled in by the Hugging Face Trainer: give its --per_device_train_batch_size and "
                "--gradient_accumulation_steps behind --"
            )
            allowed = "a whole number from 1" + (filled if value == "auto" else "")
            raise InputError(f"{value!r}", allowed=allowed, where=name)
    batch, micro, steps = (given[name] for name in _BATCH)
    if micro is None and batch is None:
        raise InputError("no batch is stated", allowed="train_batch_size or train_micro_batch_size_per_gpu")
    if micro is None and batch is not None:
        micro = batch // dp // (steps or 1)
    micro = micro or 0
    if steps is None:
        steps = batch // dp // micro if batch is not None and micro else 1
    batch = micro * steps * dp if batch is None else batch
    if batch != micro * steps * dp or not batch:
        raise InputError(
            f"train_batch_size {batch} is not micro-batch {micro} x {steps} steps x dp {dp} = {micro * steps * dp}",
            allowed="three numbers that multiply out",
        )
    return batch, micro, steps


def mended_batches(launch: DeepSpeedLaunch, dp: int) -> tuple[tuple[str, int, int], ...]:
    """Changes of one number each that make the batch multiply out: its key, the number as it is, as it would fit.

    Parameters
    ----------
    launch : DeepSpeedLaunch
        See :func:`parse_deepspeed`.
    dp : int
        Replicas.
    """
    given = [launch.config.get(name) for name in _BATCH]
    if not all(_is_whole(value) and value > 0 for value in given):
        return ()
    batch, micro, steps = (int(value or 0) for value in given)
    fitting = (micro * steps * dp, batch // (steps * dp), batch // (micro * dp))
    whole = (True, batch % (steps * dp) == 0, batch % (micro * dp) == 0)
    told = zip(_BATCH, (batch, micro, steps), fitting, whole, strict=True)
    return tuple((name, old, new) for name, old, new, fits in told if fits and old != new)


def _split(model: ModelFacts, pp: int, method: str) -> tuple[int, ...]:
    if pp == 1:
        return (model.layers,)
    if method.strip("'\"") in _WITH_ENDS and pp <= model.layers + 2:
        return balanced_with_ends(model.layers, pp, tied=not model.untied)
    if method.strip("'\"") not in _LAYERS_ALONE:
        raise UnpricedError(
            f"partition {method!r}: what it gives depends on the program's list of layers, so it has no price here",
            allowed=f"{_BALANCED}, or {_WITH_ENDS[0]}",
            where="pipeline",
        )
    return balanced_layers(model.layers, pp)
