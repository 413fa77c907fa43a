"""Launches of slime and miles as the flags of Megatron-LM that their training has.

They take Megatron-LM's options with their own beside them, fill in those that Megatron-LM asks for, and count GPUs by
node of the actor.

References
----------
slime ``slime/backends/megatron_utils/arguments.py`` (``_set_default_megatron_args``) and ``slime/utils/arguments.py``:
where nothing is said bf16, the distributed optimizer, a micro-batch of 1, 4,096 tokens, as many positions. With
``--use-dynamic-batch-size`` a micro-batch is packed of samples up to ``--max-tokens-per-gpu`` times cp.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Option, whole, without_unknown
from planner.ingest.trainers.filled_in import preset_of_path
from planner.ingest.trainers.words import told_options

_PER_NODE: Final = "--actor-num-gpus-per-node"
_NODES: Final = "--actor-num-nodes"
_SIGNS: Final = (_PER_NODE, _NODES)
_USUAL_GPUS: Final = 8
_USUAL_TOKENS: Final = 4096
_TOKENS: Final = "--max-tokens-per-gpu"
_ROLLOUT: Final = ("--rollout-batch-size", "--n-samples-per-prompt", "--num-steps-per-rollout")
_DEFAULTS: Final = MappingProxyType({"--use-distributed-optimizer": "", "--micro-batch-size": "1"})
_NOT_PRICED: Final = (
    "options of slime are left out; rollouts, the reference model and what moves between them are not priced, the "
    "training of the actor is"
)


def is_slime(text: LaunchText) -> bool:
    """Whether a launch counts the GPUs of an actor."""
    return any(word.partition("=")[0] in _SIGNS for word in text.arguments)


def gpus_of_actor(text: LaunchText) -> int:
    """GPUs that train; 0 where a launch is none of slime's."""
    if not is_slime(text):
        return 0
    told = told_options(text.arguments)
    nodes, per_node = whole(told.get(_NODES, "1")), whole(told.get(_PER_NODE, str(_USUAL_GPUS)))
    return (nodes or 0) * (per_node or 0)


def of_slime(
    text: LaunchText, options: Mapping[str, Option], model: ModelSpec | None
) -> tuple[LaunchText, ModelSpec | None]:
    """A launch in Megatron-LM's flags alone, and the model that its checkpoint names where no flag sizes it.

    Parameters
    ----------
    text : LaunchText
        Of slime.
    options : mapping of str to Option
        Of Megatron-LM's parser.
    model : ModelSpec or None
        As the user names it; None: as the launch does.
    """
    told = told_options(text.arguments)
    _refuse_no_numbers(told)
    kept, _ = without_unknown(text.arguments, options)
    added = [word for name, value in _DEFAULTS.items() if name not in told for word in (name, value) if word]
    added += [] if "--fp16" in told or "--bf16" in told else ["--bf16"]
    tokens, notes = _tokens(told)
    added += ["--seq-length", str(tokens)]
    positions = whole(told.get("--max-position-embeddings", "")) or 0
    sized = "--num-layers" in told
    added += ["--max-position-embeddings", str(tokens)] if sized and positions < tokens else []
    batch = _batch(told)
    added += ["--global-batch-size", str(batch)] if batch and "--global-batch-size" not in told else []
    named = model
    if named is None and not sized:
        named = preset_of_path(told.get("--hf-checkpoint", ""))
        notes += [f"the model is taken as {named.name}, by its path"] if named else []
    return replace(text, arguments=(*kept, *added), program="", notes=(*text.notes, *notes, _NOT_PRICED)), named


def _refuse_no_numbers(told: Mapping[str, str]) -> None:
    """Refuse counts of slime's own that are none.

    Raises
    ------
    InputError
        Names the option.
    """
    for name in (_PER_NODE, _NODES, _TOKENS, *_ROLLOUT):
        value = told.get(name, "1")
        if "$" not in value and not whole(value):
            raise InputError(f"{name} {value}".strip(), allowed="a whole number from 1")


def _tokens(told: Mapping[str, str]) -> tuple[int, list[str]]:
    """Tokens of a micro-batch, and what must be said of them."""
    cp = whole(told.get("--context-parallel-size", "1")) or 1
    packed = whole(told.get(_TOKENS, "")) if "--use-dynamic-batch-size" in told else None
    if packed:
        note = f"samples are packed up to {_TOKENS} x cp: each is priced as {packed * cp:,} tokens, its longest"
        return packed * cp, [note]
    stated = whole(told.get("--seq-length", ""))
    if stated:
        return stated, []
    return _USUAL_TOKENS, [f"the launch states no sequence: {_USUAL_TOKENS:,} tokens are assumed, as slime does"]


def _batch(told: Mapping[str, str]) -> int:
    """Samples of a step of the optimizer, where those of a rollout say it."""
    prompts, samples = whole(told.get("--rollout-batch-size", "")), whole(told.get("--n-samples-per-prompt", "1"))
    steps = whole(told.get("--num-steps-per-rollout", "1")) or 1
    return (prompts or 0) * (samples or 1) // steps
