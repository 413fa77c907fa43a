"""A plan as overrides of a Megatron-Bridge recipe.

The recipe builds the model; the overrides set everything that decides on the layout, also what the plan leaves off, so
that no setting of the recipe stays by accident. Every export is read back before it is handed out.

References
----------
Megatron-Bridge 0.6: ``scripts/training/run_recipe.py``, ``src/megatron/bridge/training/config.py`` (ConfigContainer and
Hydra overrides).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.workload.model import Attention, LayerKind, ModelSpec
from hardware.errors import InputError
from planner.adapters import beside_experts, said_targets, without_adapters
from planner.export.launch import Export, Planned, Program
from planner.export.megatron import export_megatron, known_words
from planner.export.megatron_hybrid import has_state_blocks, in_parts, is_hybrid, pattern_arguments
from planner.export.megatron_model import model_arguments
from planner.export.plan_checks import check_rules, check_sizes
from planner.ingest.adapters import of_overrides
from planner.ingest.bridge.mixed_precision import recipe_override
from planner.ingest.bridge.override_words import in_overrides
from planner.ingest.bridge.overrides import (
    LAYOUT,
    STAGES,
    VIRTUAL,
    OverrideKey,
    layout_of_overrides,
    override_keys,
    precision_words,
)
from planner.ingest.launch_text import LaunchText
from planner.ingest.megatron.software_flags import kernel_variables
from planner.ingest.plain_layout import same_launch
from planner.request import Framework
from planner.rules.layout_string import parse_positions
from planner.rules.table import CORE, resolve_version

_PLAIN: Final = re.compile(r"[\w.+-]+")
_BF16_GRADIENTS: Final = "--grad-reduce-in-bf16"
_LOW_WEIGHTS: Final = "--fp8-param-gather"
_PRECISION_FLAGS: Final = ("--bf16", "--fp16", "--fp8-", "--fp4-", "--reuse-grad-buf-for-mxfp8")
_RECIPE_NAMES: Final = MappingProxyType({Framework.BRIDGE: "Megatron-Bridge", Framework.NEMO: "NeMo"})
RECIPE_NOTE: Final = "MODEL_RECIPE names the recipe; its model must be that of the plan: layers, sizes, experts"
_PROGRAM: Final = Program(
    target=(
        '"$TRAIN_SCRIPT" --recipe "${MODEL_RECIPE:?set MODEL_RECIPE to a recipe of Megatron-Bridge}" '
        "--mode pretrain --dataset mock"
    ),
    script="/path/to/Megatron-Bridge/scripts/training/run_recipe.py",
    user_words="train.train_iters=20",
    user_says="further overrides, such as dataset, checkpoint and optimizer settings",
)


_LORA: Final = replace(_PROGRAM, target=_PROGRAM.target.replace("--mode pretrain", "--mode lora"))
_NO_BACKEND: Final = "model.attention_backend=null"
"""Leaves the kernels of attention to Transformer Engine's variables: text in its place says nothing (``judge.py``)."""
_NOTES: Final = ("data, learning rate, schedule and checkpoints are the recipe's unless you add yours",)
_LORA_NOTES: Final = (
    "MODEL_RECIPE must be a recipe of LoRA (NAME_peft_..._config): in others the overrides of the adapters say nothing",
    "checkpoint.pretrained_checkpoint must name the frozen model; data and learning rate are the recipe's",
)
_ADAPTED: Final = MappingProxyType(
    {
        "attn": ("linear_qkv", "linear_proj"),
        "mlp": ("linear_fc1", "linear_fc2"),
        "mamba": ("in_proj", "out_proj"),
    }
)
"""Modules of Megatron-core that adapters of Megatron-Bridge stand beside (peft/lora.py)."""
_LATENT: Final = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
"""Those of latent attention in the place of ``linear_qkv``."""


def export_bridge(plan: Planned) -> Export:
    """Write a plan as overrides of a Megatron-Bridge recipe.

    Parameters
    ----------
    plan : Planned
        One grid for the whole model.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout.

    Raises
    ------
    InputError
        A part of the model or of the layout cannot be said; the message names it.
    """
    known, adapters = resolve_version(Framework.BRIDGE, plan.version), _adapter_words(plan)
    program, notes = (_LORA, _LORA_NOTES) if adapters else (_PROGRAM, _NOTES)
    plan = replace(plan, job=without_adapters(plan.job))
    with in_words_of(Framework.BRIDGE):
        words = override_words(plan, Framework.BRIDGE)
        check_rules(plan, Framework.BRIDGE, known)
        core = export_megatron(replace(plan, version=CORE[Framework.BRIDGE], recipe=True))
    kernels = kernel_variables(plan.job.software)
    return Export(
        framework=Framework.BRIDGE,
        version=known,
        arguments=(*words, *frozen_words(plan.job), *adapters, *([_NO_BACKEND] if kernels else [])),
        environment=(*core.environment, *kernels),
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=(RECIPE_NOTE, *notes),
        program=program,
    )


@contextmanager
def in_words_of(framework: Framework) -> Iterator[None]:
    """Tell what Megatron-core cannot be told by the name and in the keys of a framework whose recipes build its layers.

    Parameters
    ----------
    framework : Framework
        Megatron-Bridge or NeMo.

    Raises
    ------
    InputError
        As of what is inside, in those words.
    """
    try:
        yield
    except InputError as error:
        what, allowed = (_of_recipes(text, framework) for text in (error.what, error.allowed))
        raise InputError(what, allowed=allowed, where=error.where) from None


def _of_recipes(text: str, framework: Framework) -> str:
    """A text about Megatron-LM, by the name and in the keys of a framework whose recipes build its layers."""
    name = _RECIPE_NAMES[framework]
    text = re.sub(r"Megatron-LM core (\d[\d.]*)", rf"{name} (core \1)", text)
    text = text.replace("Megatron-LM has no flag", f"{name} has no key").replace("Megatron-LM", name)
    return in_overrides(text, (), framework)


def frozen_words(job: TrainingJob) -> tuple[str, ...]:
    """Overrides of what is trained of a vision tower, which recipes set each their own way; none without images.

    Parameters
    ----------
    job : TrainingJob
        Of the plan.
    """
    images = job.images
    if images is None:
        return ()
    parts = (("vision_model", images.trains_tower), ("vision_projection", images.trains_projector))
    return tuple(f"model.freeze_{part}={str(not trained).lower()}" for part, trained in parts)


def _adapter_words(plan: Planned) -> tuple[str, ...]:
    """Overrides of the adapters in a recipe that has some (``++``: its class keeps them out of Hydra's own view).

    Raises
    ------
    InputError
        Megatron-Bridge's names of the targets are others', or are not known here.
    """
    job, targets = plan.job, said_targets(plan.job).split("+")
    if job.trained_share == 1.0:
        return ()
    unnamed = [target for target in targets if target not in _ADAPTED]
    if unnamed or beside_experts(plan.model, targets):
        what = f"beside {unnamed[0]} have no name" if unnamed else "beside mlp would stand beside routed experts too"
        raise InputError(f"adapters {what} in Megatron-Bridge", allowed="--lora-targets attn")
    mixers = [kind.mixer for kind in plan.model.kinds() if isinstance(kind, LayerKind)]
    names = [name for target in targets for name in _ADAPTED[target]]
    if "attn" in targets and any(isinstance(mixer, Attention) and mixer.kv_rank for mixer in mixers):
        names = [*_LATENT, *(name for name in names if name != "linear_qkv")]
    words = (f"++peft.dim={job.adapter_rank}", f"++peft.target_modules=[{','.join(names)}]")
    read = of_overrides(LaunchText(arguments=words), Framework.BRIDGE)
    if read is None or (read.rank, list(read.targets)) != (job.adapter_rank, targets):
        raise InputError("the overrides do not read back as the adapters", allowed="report this as an error")
    return words


def override_words(plan: Planned, framework: Framework) -> tuple[str, ...]:
    """Overrides of a framework that builds on Megatron-core, read back.

    Parameters
    ----------
    plan : Planned
        As of :func:`export_bridge`.
    framework : Framework
        Megatron-Bridge or NeMo.

    Raises
    ------
    InputError
        Megatron-core of that framework cannot run the plan, or a part has no key.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    check_sizes(plan)
    core = export_megatron(replace(plan, placement=(), version=CORE[framework], recipe=True))
    if has_state_blocks(model):
        model, layout = in_parts(model, layout)
    model_words = known_words(model_arguments(model, job.seq), CORE[framework])
    if is_hybrid(model):
        model_words = (*model_words, *stack_arguments(model, layout, framework))
    words = overrides_of_arguments(core.arguments, model_words, job.precision.name, framework)
    read = layout_of_overrides(words, model_words, world=layout.gpus, framework=framework)
    if not same_launch(read, layout, experts=model.has_experts):
        raise InputError("the overrides do not read back as the plan", allowed="report this as an error")
    return words


def stack_arguments(model: ModelSpec, layout: Layout, framework: Framework) -> tuple[str, ...]:
    """Arguments of a hybrid's layers that its recipe stands for: all of NeMo's, Megatron-Bridge's but for the split.

    Raises
    ------
    InputError
        The split needs what the core of the framework has not.
    """
    given = pattern_arguments(model, layout, CORE[framework])
    return tuple(given[given.index("--spec") :]) if framework is Framework.BRIDGE else tuple(given)


def overrides_of_arguments(
    arguments: Sequence[str], model_words: Sequence[str], recipe: str, framework: Framework
) -> tuple[str, ...]:
    """Overrides that say what Megatron-LM's arguments say, whether the rules allow it or not.

    Parameters
    ----------
    arguments : sequence of str
        Of Megatron-LM, for the core that the framework builds on.
    model_words : sequence of str
        Those among them that build the model; the recipe does it here.
    recipe : str
        Training recipe, such as ``bf16``.
    framework : Framework
        Megatron-Bridge or NeMo.

    Raises
    ------
    InputError
        An argument or the precision has no override.
    """
    given, recipes = _options(_own_words(arguments, recipe, framework)), precision_words(framework)
    if recipe not in recipes:
        raise InputError(f"precision {recipe} has no override", allowed=", ".join(recipes))
    quote = '"' if framework is Framework.NEMO else ""  # nemo_run reads lists as Python does
    words = [word for key in override_keys(framework) for word in _key_words(key, given, quote)]
    formats = recipe_override(
        recipes[recipe][0], bf16_gradients=_BF16_GRADIENTS in given, wide_weights=_LOW_WEIGHTS not in given
    )
    silent = {*_options(model_words), *(key.flag for key in override_keys(framework)), "--seq-length"}
    unsaid = [flag for flag in given if flag not in silent and not flag.startswith(_PRECISION_FLAGS)]
    if unsaid:
        raise InputError(f"{', '.join(unsaid)} has no override in {framework}", allowed="a plan without it")
    return (*words, *formats)


def _options(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values of each option of an argument list."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in arguments:
        if word.startswith("--"):
            name = word
            found[name] = ()
        else:
            found[name] += (word,)
    return found


def _own_words(arguments: Sequence[str], recipe: str, framework: Framework) -> list[str]:
    """Arguments with what NeMo is told besides: virtual stages also beside a layout; gradients in 16 bits with fp16.

    References
    ----------
    NeMo ``lightning/megatron_init.py`` and ``megatron_parallel.py``: as many models a rank as the strategy's virtual
    degree, also where the layout has more chunks. ``MegatronMixedPrecision``: gradients are summed in fp32 unless told.
    """
    words = list(arguments)
    if framework is not Framework.NEMO:
        return words
    if recipe == "fp16" and _BF16_GRADIENTS not in words:
        words.append(_BF16_GRADIENTS)
    if LAYOUT in words:
        chunks = len(parse_positions(words[words.index(LAYOUT) + 1])) // int(words[words.index(STAGES) + 1])
        words += [VIRTUAL, str(chunks)] if chunks > 1 else []
    return words


def _key_words(key: OverrideKey, given: dict[str, tuple[str, ...]], quote: str) -> list[str]:
    """Overrides of one flag; what is not given gets the value that turns it off."""
    if key.flag not in given:
        return [f"{name}={key.absent}" for name in key.keys] if key.absent is not None else []
    values = given[key.flag]
    if key.kind == "values":
        text = f"[{','.join(f'{quote}{value}{quote}' for value in values)}]"
    elif key.kind in ("on", "off"):
        text = "true" if key.kind == "on" else "false"
    else:
        text = values[0] if _PLAIN.fullmatch(values[0]) else f'"{values[0]}"'
    return [f"{name}={text}" for name in key.keys]
