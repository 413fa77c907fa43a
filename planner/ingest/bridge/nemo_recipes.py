"""Recipes that NeMo 2 ships, as the overrides that would set what they set.

``nemo llm pretrain --factory NAME`` and ``nemo llm finetune --factory NAME`` call ``pretrain_recipe`` and
``finetune_recipe`` of :mod:`nemo.collections.llm.recipes.NAME`, with the arguments behind the name in brackets.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hardware.package_table import package_table
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import close_name, whole
from planner.ingest.scripts.training_command import NEMO

RELEASE: Final = "2.7"
"""Release of NeMo whose recipes are known."""
FINETUNE: Final = f"{NEMO} finetune"
"""Program of a launch that fine-tunes."""
_STRATEGY: Final = "trainer.strategy"
_KEYS: Final = MappingProxyType(
    {
        "nodes": "trainer.num_nodes",
        "devices": "trainer.devices",
        "tp": f"{_STRATEGY}.tensor_model_parallel_size",
        "pp": f"{_STRATEGY}.pipeline_model_parallel_size",
        "cp": f"{_STRATEGY}.context_parallel_size",
        "vpp": f"{_STRATEGY}.virtual_pipeline_model_parallel_size",
        "ep": f"{_STRATEGY}.expert_model_parallel_size",
        "etp": f"{_STRATEGY}.expert_tensor_parallel_size",
        "sp": f"{_STRATEGY}.sequence_parallel",
        "first": f"{_STRATEGY}.num_layers_in_first_pipeline_stage",
        "last": f"{_STRATEGY}.num_layers_in_last_pipeline_stage",
        "embedding": f"{_STRATEGY}.account_for_embedding_in_pipeline_split",
        "loss": f"{_STRATEGY}.account_for_loss_in_pipeline_split",
        "mb": "data.micro_batch_size",
        "gb": "data.global_batch_size",
        "seq": "data.seq_length",
        "recompute": "model.config.recompute_granularity",
        "method": "model.config.recompute_method",
        "layers": "model.config.recompute_num_layers",
        "modules": "model.config.recompute_modules",
        "capacity": "model.config.moe_expert_capacity_factor",
        "tp_overlap": "model.config.tp_comm_overlap",
        "fused_loss": "model.config.cross_entropy_loss_fusion",
        "sharded": "optim.config.use_distributed_optimizer",
        "precise": "optim.config.use_precision_aware_optimizer",
        "rank": "peft.dim",
        "targets": "peft.target_modules",
    }
)
_ALWAYS: Final = MappingProxyType(
    {"nodes": 1, "devices": 8, "tp": 1, "pp": 1, "cp": 1, "sp": False, "mb": 1, "sharded": True}
)
_OVERLAPS: Final = MappingProxyType({"both": (True, True), "gradients": (True, False), "none": (False, False)})
_USUAL_OVERLAP: Final = MappingProxyType({"pretrain": "both", "adapters": "none", "whole": "none"})
_BF16: Final = 'trainer.plugins.precision="bf16-mixed"'
_WORLD: Final = ("trainer.num_nodes", "trainer.devices")
_TOLD: Final = MappingProxyType(
    {"num_nodes": _WORLD[0], "num_gpus_per_node": _WORLD[1], "seq_length": "data.seq_length"}
)
"""Arguments of a factory that are an override each."""
_PERFORMANCE: Final = "performance_mode"
_SCHEME: Final = "peft_scheme"
_SILENT: Final = ("dir", "name", "fn", "log_dir")
_CALL: Final = re.compile(r"\s*(?P<name>[\w.]+)\s*(?:\((?P<inner>.*)\))?\s*", re.DOTALL)
_ARGUMENT: Final = re.compile(r"\s*(\w+)\s*=\s*((?:'[^']*'|\"[^\"]*\"|[^,'\"])*)")


@dataclass(frozen=True, kw_only=True)
class Factory:
    """A recipe as a launch calls it: its name, what it trains (a table of recipes), and the arguments in brackets."""

    name: str
    task: str
    arguments: Mapping[str, str]


def factory_of(text: LaunchText) -> Factory:
    """Read the recipe of a launch of NeMo, such as ``llama3_8b(num_nodes=2, performance_mode=True)``.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    call = _CALL.fullmatch(text.recipe)
    name, inner = (call["name"], call["inner"] or "") if call else (text.recipe, "")
    arguments = {key: value.strip().strip("'\"") for key, value in _ARGUMENT.findall(inner)}
    whole_model = arguments.get(_SCHEME, "lora").lower() == "none"
    task = "pretrain" if text.program != FINETUNE else "whole" if whole_model else "adapters"
    return Factory(name=name.rpartition(".")[2], task=task, arguments=MappingProxyType(arguments))


def factory_overrides(text: LaunchText) -> tuple[str, ...]:
    """Overrides that set what the recipe of a launch of NeMo sets, without those that the launch states itself.

    Parameters
    ----------
    text : LaunchText
        As read.

    Returns
    -------
    tuple of str
        ``key=value``; empty where NeMo ships no recipe of the name.
    """
    factory = factory_of(text)
    told = {**_facts(factory)}
    if not told:
        return ()
    told = {**_ALWAYS, **told}
    words = [f"{key}={_word(told[field])}" for field, key in _KEYS.items() if field in told]
    words += [*_formats(told), *_overlaps(told, factory.task), *_experts(told)]
    given = [f"{_TOLD[name]}={value}" for name, value in factory.arguments.items() if name in _TOLD]
    stated = {word.lstrip("+").partition("=")[0] for word in text.arguments}
    named = {word.partition("=")[0] for word in given}
    kept = [word for word in words if word.partition("=")[0] not in named]
    return tuple(word for word in (*kept, *given) if word.partition("=")[0] not in stated)


def gpus_of_factory(text: LaunchText) -> int:
    """GPUs that the recipe of a launch of NeMo starts, with its overrides; 0: no recipe is known.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    words = factory_overrides(text)
    told = {name: value for name, _, value in (word.lstrip("+").partition("=") for word in (*words, *text.arguments))}
    return (whole(told.get(_WORLD[0], "")) or 0) * (whole(told.get(_WORLD[1], "")) or 0) if words else 0


def factory_notes(text: LaunchText) -> tuple[str, ...]:
    """What the reader should know of the recipe of a launch of NeMo: where it is not known, or not read in full.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    factory = factory_of(text)
    if not _facts(factory):
        names = tuple(_table()[factory.task])
        near = close_name(factory.name, names) if factory.name not in names else ""
        hint = f"; did you mean {near}?" if near else ""
        return (f"NeMo {RELEASE} ships no recipe {factory.name} of a decoder, so what it sets is not known{hint}",)
    read = (*_TOLD, *_SILENT, _PERFORMANCE, _SCHEME)
    unread = [name for name in factory.arguments if name not in read]
    told = (f"of the recipe's arguments {', '.join(unread)} is not read",) if unread else ()
    return (f"recipe {factory.name} sets what no override says, as NeMo {RELEASE} ships it", *told, *_gpus_told(text))


def _gpus_told(text: LaunchText) -> Iterator[str]:
    """Say how many GPUs the recipe starts, where the launch leaves the number of nodes or of their GPUs to it."""
    words = dict(word.lstrip("+").partition("=")[::2] for word in (*factory_overrides(text), *text.arguments))
    if not all(any(word.startswith(f"{name}=") for word in text.arguments) for name in _WORLD):
        nodes, devices = (words[name] for name in _WORLD)
        yield f"the recipe starts {nodes} x {devices} GPUs; {_WORLD[0]} and {_WORLD[1]} say others"


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.bridge", "nemo_recipes.toml")


def _facts(factory: Factory) -> Mapping[str, Any]:
    """What the table has of a recipe; of its performance mode, where that is asked for and there is one."""
    table = _table()[factory.task]
    fast = factory.arguments.get(_PERFORMANCE, "").lower() == "true"
    found: Mapping[str, Any] = table["performance"].get(factory.name, {}) if fast else {}
    return found or ({} if factory.name == "performance" else table.get(factory.name, {}))


def _word(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _formats(told: Mapping[str, Any]) -> Sequence[str]:
    """Overrides that say in which numbers is computed and kept."""
    words = [_BF16, f"trainer.plugins.grad_reduce_in_fp32={_word(not told.get('bf16_gradients', False))}"]
    if "fp8" in told:
        fields = ('fp8="hybrid"', f'fp8_recipe="{told["fp8"]}"', "fp8_param_gather=true")
        words += [f"trainer.plugins.{field}" for field in fields]
    if "moments" in told:
        words += [f"optim.config.{field}={told['moments']}" for field in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    return words


def _overlaps(told: Mapping[str, Any], task: str) -> Sequence[str]:
    """Overrides that say which sums and gathers travel beside the passes."""
    gradients, parameters = _OVERLAPS[told.get("overlap", _USUAL_OVERLAP[task])]
    pairs = (("overlap_grad_reduce", gradients), ("overlap_param_gather", parameters))
    return [f"{_STRATEGY}.ddp.{field}={_word(value)}" for field, value in pairs]


def _experts(told: Mapping[str, Any]) -> Sequence[str]:
    """Overrides that say how tokens reach their experts."""
    if told.get("dispatcher") != "deepep":
        return []
    fields = ("moe_token_dispatcher_type=flex", "moe_enable_deepep=true")
    return [f"model.config.{field}" for field in fields]
