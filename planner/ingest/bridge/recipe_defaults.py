"""What recipes of Megatron-Bridge and NeMo set where an override does not decide."""

from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from costmodels.workload.model import ModelSpec
from hardware.nouns import count
from planner.ingest.bridge.nemo_recipes import factory_notes, factory_overrides
from planner.ingest.bridge.recipes import RELEASE, recipe_overrides
from planner.ingest.judged import LaunchInput, assumed_seq
from planner.ingest.options import whole
from planner.request import Framework
from planner.rules.proposal import facts_of, replicas_of
from planner.rules.table import version_key

_ASSUMED: Final = (
    ("--bf16", ("--bf16", "--fp16"), "bf16"),
    ("--use-distributed-optimizer", ("--use-distributed-optimizer", "--use-megatron-fsdp"), "distributed optimizer"),
)
_ASSUMED_OF_EXPERTS: Final = (("--moe-grouped-gemm", ("--moe-grouped-gemm",), "grouped GEMM of experts"),)
_DEGREES: Final = (
    ("tp 1", "--tensor-model-parallel-size"),
    ("pp 1", "--pipeline-model-parallel-size"),
    ("cp 1", "--context-parallel-size"),
)
_EXPERTS_TP: Final = "--expert-tensor-parallel-size"
_ALONE: Final = "expert tensor parallelism is not set: 1 with ep, as Megatron-Bridge has it where a recipe does not say"
_ALONE_SINCE: Final = (0, 6)
"""Version of Megatron-Bridge whose models/transformer_config.py has _set_moe_expert_tensor_parallel_default."""
_WITH_TP: Final = "expert tensor parallelism is not set: unless the recipe sets it, tp's value counts for experts too"
_FSDP: Final = "--use-megatron-fsdp"
_OF_FSDP: Final = MappingProxyType(
    {"--data-parallel-sharding-strategy": "optim_grads_params", "--ckpt-format": "fsdp_dtensor"}
)
"""What recipes named so set: Megatron-Bridge ``recipes/qwen_vl/h100/qwen35_vl.py``, ``recipes/nemotronh/gb200``."""
_OF_GRAPHS: Final = (("--attention-dropout", "0"), ("--hidden-dropout", "0"))
"""What models that are converted from Hugging Face's have, on which rules of CUDA graphs depend."""
_OF_EXPERTS: Final = (("--moe-token-dispatcher-type", "alltoall"),)
"""What providers of mixtures set in Megatron-Bridge (models/*/*_provider.py) and NeMo (collections/llm/gpt/model);
Megatron-LM's own default is another."""


def shipped_words(given: LaunchInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Overrides that set what the recipe of a launch sets, and what the reader should know of it.

    Parameters
    ----------
    given : LaunchInput
        Of Megatron-Bridge or NeMo. A length that an override states is not set.
    """
    text = given.text
    if not text.recipe:
        return (), ()
    if given.framework is Framework.NEMO:
        return factory_overrides(text), factory_notes(text)
    states = any("seq_length=" in word for word in text.arguments)
    words = recipe_overrides(text.recipe)
    told = f"recipe {text.recipe} sets what no override says, as Megatron-Bridge {RELEASE} ships it"
    kept = tuple(word for word in words if not (states and word.startswith("dataset.seq_length=")))
    return kept, (told,) if kept else ()


def with_recipe_defaults(
    flags: Sequence[str], decided: Sequence[str], model: ModelSpec | None, given: LaunchInput
) -> tuple[list[str], list[str]]:
    """Flags with what recipes set where an override does not decide, and a note on each.

    Parameters
    ----------
    flags : sequence of str
        What overrides say, as Megatron-LM's flags.
    decided : sequence of str
        Flags that an override switches off.
    model : ModelSpec or None
        The model, where it is known.
    given : LaunchInput
        Whose launch, and its GPUs.

    Returns
    -------
    tuple of list
        The flags, and the notes.
    """
    words, told = _with_fsdp(list(flags), decided, given)
    experts = bool(model and facts_of(model).experts)
    mixture = experts or "--num-experts" in words
    for flag, answered, name in (*_ASSUMED, *(_ASSUMED_OF_EXPERTS if mixture else ())):
        if flag not in decided and not any(word in words for word in answered):
            words.append(flag)
            told.append(name)
    told += [name for name, flag in _DEGREES if flag not in words and flag not in decided]
    sizes = (("--seq-length", str(assumed_seq(model))), ("--micro-batch-size", "1"))
    graphs = _OF_GRAPHS if "--cuda-graph-impl" in words else ()
    for flag, value in (*sizes, *(_OF_EXPERTS if mixture else ()), *graphs):
        if flag not in words:
            words += [flag, value]
            told.append(f"{flag.removeprefix('--')} {value}")
    notes = [f"not overridden, so the recipe decides; assumed here: {', '.join(told)}"] if told else []
    spread = experts and dict(pairwise(words)).get("--expert-model-parallel-size", "1") != "1"
    if spread and _EXPERTS_TP not in words:
        alone = given.framework is Framework.BRIDGE and version_key(given.version) >= _ALONE_SINCE
        words += [_EXPERTS_TP, "1"] if alone else []
        notes += [_ALONE] if alone else [_WITH_TP] if "--tensor-model-parallel-size" in words else []
    words, batch = _with_batch(words, given.world)
    return words, [*notes, *batch]


def _with_fsdp(words: list[str], decided: Sequence[str], given: LaunchInput) -> tuple[list[str], list[str]]:
    """Flags with Megatron FSDP where a recipe of Megatron-Bridge has it by its name, and what is assumed of it."""
    named = given.framework is Framework.BRIDGE and "_fsdp_" in f"_{given.text.recipe}_"
    if not named or _FSDP in decided:
        return words, []
    settings = {flag: value for flag, value in _OF_FSDP.items() if flag not in words and flag not in decided}
    added = [] if _FSDP in words else [_FSDP]
    told = ["Megatron FSDP"] if added else []
    return [*words, *added, *(word for pair in settings.items() for word in pair)], told


def _with_batch(words: Sequence[str], world: int) -> tuple[list[str], list[str]]:
    """Flags with a global batch that fills the pipeline where an override states none, and a note on it.

    The recipe's batch is not known, so that no rule on it can be said to be broken.
    """
    told = [*words]
    if "--global-batch-size" in told:
        return told, []
    size = dict(pairwise(told))
    tp, pp, cp, micro = (
        number if 0 < (number := whole(size.get(flag, "1")) or 0) <= world else 1
        for flag in (
            "--tensor-model-parallel-size",
            "--pipeline-model-parallel-size",
            "--context-parallel-size",
            "--micro-batch-size",
        )
    )
    batch = micro * pp * replicas_of(world, tp, pp, cp)
    filled = count(pp, "micro-batch", "micro-batches")
    note = f"the global batch is not overridden: {batch} is assumed, {filled} a replica"
    return [*told, "--global-batch-size", str(batch)], [note]
