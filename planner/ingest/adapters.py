"""Adapters that a launch trains in the place of its model, in the words of the trainers that have them.

References
----------
Megatron-Bridge ``peft/lora.py`` (rank 32 beside all linear layers), ``scripts/training/run_recipe.py`` (``--mode
lora``); NeMo ``collections/llm/peft/lora.py``; LLaMA-Factory ``hparams/finetuning_args.py`` (rank 8, all), TRL
``trainer/model_config.py`` (rank 16), ms-swift ``arguments/tuner_args.py`` (rank 8, all linear layers).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from planner.adapters import USUAL_TARGETS
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import whole
from planner.ingest.trainers.words import switched_on, told_options
from planner.request import Framework

_SCHEMES: Final = ("lora", "dora")
_OF_QUANTIZED: Final = "qlora"
_KINDS: Final = ("--finetuning-type", "--train-type", "--tuner-type", "--sft-type", "--adapter")
_QUANTIZED: Final = ("--quantization-bit", "--quant-bits", "--load-in-4bit", "--load-in-8bit")
_RANKS: Final = ("--lora-rank", "--lora-r")
_TARGETS: Final = ("--lora-target", "--lora-target-modules", "--target-modules")
ADAPTER_OPTIONS: Final = (*_KINDS, *_QUANTIZED, *_RANKS, *_TARGETS, "--use-peft")
"""Options of trainers that adapters are read from."""
_NOTHING: Final = ("", "false", "null", "none")
_NONE: Final = ("none", "null", "sft", "pretrain")
_MODES: Final = ("--mode", "--peft-scheme")
_READ: Final = ("peft", "peft.dim", "peft.target_modules")
_OF_MEGATRON: Final = 32
_OF_TRAINERS: Final = 8
_OF_TRL: Final = 16
_MODULES: Final = MappingProxyType(
    {
        "attn": ("qkv", "linear_proj", "q_proj", "k_proj", "v_proj", "o_proj", "q_a_", "q_b_", "kv_", "q_down", "q_up"),
        "mlp": ("fc1", "fc2", "gate_proj", "up_proj", "down_proj", "gate_up", "w1", "w2", "w3"),
        "mamba": ("in_proj", "x_proj", "out_proj"),
    }
)
"""What names of target modules contain, by what they are part of."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What a launch adapts: rank, targets in the words of :data:`costmodels.workload.adapters.TARGETS`.

    ``separate``: queries, keys, values, gate and up projection have adapters of their own.
    ``quantized``: the frozen weights have fewer than 16 bits.
    """

    rank: int
    targets: tuple[str, ...] = USUAL_TARGETS
    separate: bool = False
    quantized: bool = False

    @property
    def note(self) -> str:
        """What a reader should know of its price."""
        told = f"adapters of rank {self.rank} beside {', '.join(self.targets)} are trained"
        held = "; the frozen weights are quantized, and priced in 16 bits" if self.quantized else ""
        return f"{told}; adapters of routed experts are not priced{held}"


def of_overrides(text: LaunchText, framework: Framework) -> Adapters | None:
    """Adapters of a launch of Megatron-Bridge or NeMo; None where it trains the model.

    Parameters
    ----------
    text : LaunchText
        With the options of the program that takes the overrides.
    framework : Framework
        Megatron-Bridge or NeMo.
    """
    told = _overrides(text.arguments)
    stated = {name: value for name, value in told.items() if name == "peft" or name.startswith("peft.")}
    schemes = [told[name].lower() for name in (*_MODES, "peft") if name in told]
    recipe = f"_{text.recipe}_"
    adapted = any(scheme in _SCHEMES for scheme in schemes)
    adapted = adapted or any(f"_{word}_" in recipe for word in (*_SCHEMES, "peft"))
    adapted = adapted or (framework is Framework.NEMO and bool(stated)) or "peft.dim" in stated
    if not adapted or any(scheme in _NONE for scheme in schemes):
        return None
    names = stated.get("peft.target_modules", "").strip("[]").replace("'", "").replace('"', "").split(",")
    return Adapters(rank=whole(stated.get("peft.dim", "")) or _OF_MEGATRON, targets=targets_named(names))


def said_overrides(text: LaunchText, framework: Framework) -> tuple[str, ...]:
    """Overrides that say what a launch adapts, and are read; none where it has no adapters that they could be of.

    Parameters
    ----------
    text, framework
        As for :func:`of_overrides`.
    """
    none_told = any(_overrides(text.arguments).get(name, "").lower() in _NONE for name in _MODES)
    return _READ if none_told or of_overrides(text, framework) else ()


def of_trainer(words: Sequence[str], *, separate: bool) -> Adapters | None:
    """Adapters of a trainer in Hugging Face's words; None where it trains the model, or does not say.

    Parameters
    ----------
    words : sequence of str
        Its arguments.
    separate : bool
        As :attr:`Adapters.separate`.
    """
    told = told_options(words)
    kind = _first(told, *_KINDS)
    peft = switched_on(told, "--use-peft")
    if not (peft or kind.startswith((*_SCHEMES, _OF_QUANTIZED))):
        return None
    rank = whole(_first(told, *_RANKS)) or (_OF_TRL if peft else _OF_TRAINERS)
    asked = _first(told, *_TARGETS)
    quantized = kind == _OF_QUANTIZED or any(switched_on(told, name) for name in _QUANTIZED)
    targets = targets_named(asked.replace(",", " ").split())
    return Adapters(rank=rank, targets=targets, separate=separate, quantized=quantized)


def unpriced_kind(words: Sequence[str]) -> str:
    """What a trainer trains in place of all parameters that is no adapter of a known kind; empty for none."""
    kind = _first(told_options(words), *_KINDS)
    return "" if kind in (*_NOTHING, "full") or kind.startswith((*_SCHEMES, _OF_QUANTIZED)) else kind


def _first(told: Mapping[str, str], *names: str) -> str:
    """Value of the first option that is there; empty for none."""
    return next((told[name] for name in names if name in told), "")


def targets_named(names: Sequence[str]) -> tuple[str, ...]:
    """What modules are part of; the usual targets where none is known, as for ``all``.

    Parameters
    ----------
    names : sequence of str
        Such as ``linear_qkv`` or ``q_proj``, with wildcards.
    """
    found = [target for target, parts in _MODULES.items() if any(part in name for name in names for part in parts)]
    return tuple(found) or USUAL_TARGETS


def _overrides(words: Sequence[str]) -> Mapping[str, str]:
    """``name=value`` words by name, and the options beside them."""
    told = [word for word in words if not word.startswith("-") and "=" in word]
    pairs = (word.lstrip("+").partition("=") for word in told)
    options = told_options([word for word in words if word not in told])
    return {**options, **{name: value.strip("'\"") for name, _, value in pairs}}
