"""What a launch must state of a model although no cost depends on it: activation, rotary base, router score.

The details come with a Hugging Face configuration; for presets they stand in ``details.toml``; a model that states none
gets what its sizes imply, and an export says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.fields import Fields
from hardware.package_table import package_table

ACTIVATIONS: Final = ("silu", "gelu", "relu", "relu2", "quick-gelu")
"""Names of activation functions; a gated one multiplies by a second projection."""

_HF_ACTIVATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu",
        "gelu_fast": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "relu": "relu",
        "relu2": "relu2",
    }
)


@dataclass(frozen=True, kw_only=True)
class ModelDetails:
    """Facts of a model that launch arguments state.

    Attributes
    ----------
    activation : str
        One of :data:`ACTIVATIONS`; empty: silu where feed-forward parts are gated, else gelu.
    norm_epsilon : float
        Added to the variance.
    norm_plus_one : bool
        The norm's weight is stored as its difference from one.
    norm_after : bool
        The norms stand after attention and feed-forward part, not before them.
    rope_theta, rope_fraction : float
        Base of the rotary embedding; share of a head's dimensions that it turns.
    rope_scaling : str
        ``none``, ``llama3`` or ``yarn``.
    rope_factor, rope_original_positions : float, int
        Stretch of the context and the length before it.
    rope_mscale, rope_mscale_all : float
        Attention temperature of yarn.
    alibi : bool
        Linear biases instead of position embeddings.
    router_score : str
        ``softmax`` or ``sigmoid``.
    router_bias : bool
        Experts are balanced by a bias on their score.
    router_groups, router_group_top_k : int
        Groups of experts and how many of them a token may use; 0: no groups.
    router_scale : float
        Factor on the chosen scores; 0.0: none.
    router_softmax_first : bool
        Scores are normalised over all experts, not over the chosen ones.
    multipliers : bool
        Embeddings, residual branches or logits are scaled by numbers of their own.
    stated : bool
        False when nothing was stated and defaults stand in.
    """

    activation: str = ""
    norm_epsilon: float = 1e-5
    norm_plus_one: bool = False
    norm_after: bool = False
    rope_theta: float = 10000.0
    rope_fraction: float = 1.0
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_original_positions: int = 0
    rope_mscale: float = 1.0
    rope_mscale_all: float = 0.0
    alibi: bool = False
    router_score: str = "softmax"
    router_bias: bool = False
    router_groups: int = 0
    router_group_top_k: int = 0
    router_scale: float = 0.0
    router_softmax_first: bool = False
    multipliers: bool = False
    stated: bool = True


_PLUS_ONE: Final = ("nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_MULTIPLIERS: Final = (
    *("embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("full_attn_alpha_factor", "layernorm_full_attention_alpha"),
)
"""Of Granite's, Falcon-H1's and MiniMax's configurations."""
NO_DETAILS: Final = ModelDetails(stated=False)


@cache
def _tables() -> tuple[Mapping[str, ModelDetails], Mapping[str, ModelDetails]]:
    """Details by family and by preset."""
    content = package_table("costmodels.workload", "details.toml")
    known = {field.name for field in fields(ModelDetails)}
    families, models = {}, {}
    for family, entry in content.items():
        facts = {name: value for name, value in entry.items() if name in known}
        families[family] = ModelDetails(**facts)
        for names, own in entry.get("models", {}).items():
            for name in names.split():
                models[name] = ModelDetails(**{**facts, **own})
    return MappingProxyType(families), MappingProxyType(models)


def details_of_preset(name: str, family: str) -> ModelDetails:
    """Return the details of a preset, or of its family.

    Parameters
    ----------
    name : str
        Of the model.
    family : str
        Of the model.

    Returns
    -------
    ModelDetails
        :data:`NO_DETAILS` when neither is in the table.
    """
    families, models = _tables()
    base = name.partition("[")[0]
    return models.get(base) or families.get(family) or NO_DETAILS


def details_of_config(config: Mapping[str, object], where: str) -> ModelDetails:
    """Return the details that a Hugging Face configuration states.

    Parameters
    ----------
    config : Mapping
        The decoded configuration of the language model.
    where : str
        File that errors name.

    Returns
    -------
    ModelDetails
        Fields that the configuration lacks have the defaults of the Transformers library.

    Raises
    ------
    InputError
        A field has a value of the wrong kind.
    """
    values = Fields(config, where)
    usual = "gelu" if config.get("model_type") in ("bloom", "mpt") else "silu"
    words = ("hidden_act", "activation_function", "mlp_hidden_act", "activation", "afn")
    activation = values.text(*words, default=usual)
    if config.get("model_type") == "gpt_oss":
        activation = "quick-gelu"
    return ModelDetails(
        activation=_HF_ACTIVATIONS.get(activation, activation),
        norm_epsilon=values.number("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", default=1e-5),
        norm_plus_one=config.get("model_type") in _PLUS_ONE,
        multipliers=any(values.number(name, default=1.0) != 1.0 for name in _MULTIPLIERS),
        norm_after=config.get("model_type") in ("exaone4", "flex_olmo", "olmo2", "olmo3", "openai-gpt"),
        alibi=config.get("model_type") in ("bloom", "mpt") or config.get("alibi") is True,
        **_rotary(values),
        **_router(values),
    )


def _rotary(values: Fields) -> dict[str, Any]:
    """Rotary embedding: flat fields of earlier configurations, or the table of newer ones."""
    table = values.table("rope_parameters") if values.has("rope_parameters") else values
    table = table.table("full_attention") if table.has("full_attention") else table  # one for each kind of layer
    stretch = values.table("rope_scaling") if values.has("rope_scaling") else table
    kind = stretch.text("rope_type", "type", default="default")
    if values.has("attn_config"):  # DBRX
        table = values.table("attn_config")
    theta = table.number("rope_theta", default=values.number("rope_theta", "rotary_emb_base", default=10000.0))
    theta *= values.number("rope_ratio", default=1.0)  # GLM-4-9B
    half = values.text("model_type", default="") == "chatglm"  # no field says so: its code turns half of each head
    fraction = values.number("partial_rotary_factor", "rotary_pct", default=0.5 if half else 0.0)
    fraction = table.number("partial_rotary_factor", default=fraction)
    if not fraction and values.has("rotary_dim") and values.has("head_dim"):
        fraction = values.whole("rotary_dim") / values.whole("head_dim", least=1)
    found: dict[str, Any] = {"rope_theta": theta, "rope_fraction": fraction or 1.0}
    if kind in ("llama3", "yarn"):
        found |= {
            "rope_scaling": kind,
            "rope_factor": stretch.number("factor", default=1.0),
            "rope_original_positions": stretch.whole("original_max_position_embeddings", default=0),
            "rope_mscale": stretch.number("mscale", default=1.0),
            "rope_mscale_all": stretch.number("mscale_all_dim", default=0.0),
        }
    return found


# families whose routers score so by default
_SIGMOID: Final = (
    "afmoe",
    "bailing_moe_linear",
    "laguna",
    "lfm2_moe",
    "step3p5",
    "deepseek_v3",
    "deepseek_v32",
    "bailing_moe_v2",
    "dots1",
    "exaone_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "hy_v3",
    "kimi_linear",
    "mimo_v2_flash",
    "minimax_m2",
    "nemotron_h",
    "sarvam_mla",
    "sarvam_moe",
    "solar_open",
)


def _router(values: Fields) -> dict[str, Any]:
    family = values.text("model_type", default="")
    score = values.text("scoring_func", default="sigmoid" if family in _SIGMOID else "softmax")
    groups = values.whole("n_group", default=0)
    scale = values.number("routed_scaling_factor", "router_scaling_factor", default=0.0)
    return {
        "router_score": score,
        "router_bias": score != "softmax",
        "router_groups": groups if groups > 1 else 0,
        "router_group_top_k": values.whole("topk_group", default=0) if groups > 1 else 0,
        "router_scale": scale if scale != 1.0 else 0.0,
        "router_softmax_first": score == "softmax" and values.flag("norm_topk_prob", default=True) is False,
    }
