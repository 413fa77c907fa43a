"""Recipes that Megatron-Bridge ships, as the overrides that would set what they set."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hardware.package_table import package_table
from planner.ingest.bridge.mixed_precision import precision_override

RELEASE: Final = "0.6"
"""Release of Megatron-Bridge whose recipes are known."""
_KEYS: Final = MappingProxyType(
    {
        "tp": "model.tensor_model_parallel_size",
        "pp": "model.pipeline_model_parallel_size",
        "cp": "model.context_parallel_size",
        "vpp": "model.virtual_pipeline_model_parallel_size",
        "layout": "model.pipeline_model_parallel_layout",
        "group": "model.microbatch_group_size_per_vp_stage",
        "ep": "model.expert_model_parallel_size",
        "etp": "model.expert_tensor_parallel_size",
        "sp": "model.sequence_parallel",
        "first": "model.num_layers_in_first_pipeline_stage",
        "last": "model.num_layers_in_last_pipeline_stage",
        "embedding": "model.account_for_embedding_in_pipeline_split",
        "loss": "model.account_for_loss_in_pipeline_split",
        "expert_overlap": "model.overlap_moe_expert_parallel_comm",
        "capacity": "model.moe_expert_capacity_factor",
        "mb": "train.micro_batch_size",
        "gb": "train.global_batch_size",
        "recompute": "model.recompute_granularity",
        "method": "model.recompute_method",
        "layers": "model.recompute_num_layers",
        "modules": "model.recompute_modules",
        "offload": "model.cpu_offloading_num_layers",
        "graph": "model.cuda_graph_impl",
        "graphed": "model.cuda_graph_modules",
        "cp_comm": "model.cp_comm_type",
        "optimizer": "optimizer.optimizer",
        "rank": "peft.dim",
        "targets": "peft.target_modules",
    }
)
_ALWAYS: Final = MappingProxyType({"tp": 1, "pp": 1, "cp": 1, "sp": False})
_FLEXIBLE: Final = ("deepep", "hybridep", "ncclep")


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.bridge", "recipes.toml")


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that are known, second names too."""
    return (*_table()["recipe"], *_table()["alias"])


def recipe_overrides(recipe: str) -> tuple[str, ...]:
    """Overrides that set what a shipped recipe sets.

    Parameters
    ----------
    recipe : str
        Its name, with or without its module; a name of a former release may stand for one.

    Returns
    -------
    tuple of str
        ``key=value``; empty where no recipe of language models has the name.
    """
    name = recipe.rpartition(".")[2]
    stated = _table()["recipe"].get(_table()["alias"].get(name, name))
    if stated is None:
        return ()
    told = {**_ALWAYS, **stated}
    words = [f"{key}={_word(told[field])}" for field, key in _KEYS.items() if field in told]
    words.append(f"dataset.seq_length={told['seq']}")
    words += ["model.attention_dropout=0.0", "model.hidden_dropout=0.0"] if "graph" in told else []  # as graphs need
    return (*words, *_sharding(told), *_experts(told), *_formats(told))


def _word(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sharding(told: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that say over what states are sharded."""
    if "fsdp" in told:
        words = ("ddp.use_megatron_fsdp=true", f"ddp.data_parallel_sharding_strategy={told['fsdp']}")
        return (*words, "checkpoint.ckpt_format=fsdp_dtensor", "model.gradient_accumulation_fusion=false")
    sharded = _word(told.get("sharded", True))
    return tuple(f"{section}.use_distributed_optimizer={sharded}" for section in ("ddp", "optimizer"))


def _experts(told: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that say how tokens reach their experts."""
    way = told.get("dispatcher")
    if way is None:
        return ()
    flexible = way in _FLEXIBLE
    words = (f"model.moe_token_dispatcher_type={'flex' if flexible else way}", "model.moe_grouped_gemm=true")
    return (*words, *((f"model.moe_flex_dispatcher_backend={way}",) if flexible else ()))


def _formats(told: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that say in which numbers is computed and kept."""
    name, narrow, wide = str(told["format"]), told.get("bf16_gradients", False), told.get("wide", False)
    words = [precision_override(name, bf16_gradients=narrow, wide_weights=wide)]
    moments, master = told.get("moments"), told.get("master")
    words += ["optimizer.use_precision_aware_optimizer=true"] if moments or master else []
    words += [f"optimizer.{field}={moments}" for field in ("exp_avg_dtype", "exp_avg_sq_dtype") if moments]
    words += [f"optimizer.main_params_dtype={master}"] if master else []
    return tuple(words)
