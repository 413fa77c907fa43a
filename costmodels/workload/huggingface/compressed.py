"""Hugging Face configurations of models with compressed keys (DeepSeek-V4)."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import layer_letters, llama

_ROTATED: Final = 0.125
_WINDOW: Final = "sliding_attention"
_SPARSE: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_RATES: Final[Mapping[str, int]] = MappingProxyType({_SPARSE: 4, _HEAVY: 128})
_LETTERS: Final[Mapping[str, str]] = MappingProxyType({_WINDOW: "w", _SPARSE: "c", _HEAVY: "h"})
_TYPES: Final[Mapping[int, str]] = MappingProxyType({0: _WINDOW, **{rate: name for name, rate in _RATES.items()}})


def deepseek4(config: Fields) -> Architecture:
    """DeepSeek-V4: windows beside compressed keys, four residual streams, experts in every layer.

    Earlier files state ``compress_ratios``, one number for each layer and prediction layer, in the place of
    ``layer_types``. The first layers route by a table of tokens instead of scores, which changes no cost.
    """
    if config.flag("mlp_bias", default=False):
        raise config.wrong("mlp_bias", True, "false: biases of shared experts alone are not modelled")
    base = llama(config.changed(layer_types=None, intermediate_size=config.values.get("moe_intermediate_size")))
    rates = _rates(config)
    width = config.whole("moe_intermediate_size", least=1)
    head_dim = config.whole("head_dim", least=1)
    return replace(
        base,
        kv_heads=1,
        ffn=0,
        qkv_bias=False,  # whatever the flag says: the class has none
        out_bias=False,
        shared_kv=True,
        qk_norm=True,
        qk_norm_parameters=head_dim,  # of keys alone: queries are normed without weights
        sinks=True,
        rope_dim=_rotated(config, head_dim),
        q_rank=config.whole("q_lora_rank", least=1),
        out_rank=config.whole("o_lora_rank", least=1),
        out_groups=_groups(config, base.heads * head_dim),
        window=config.whole("sliding_window", least=1),
        mixer_pattern=_pattern(config, base.layers),
        sparse_rate=rates[_SPARSE],
        heavy_rate=rates[_HEAVY],
        chosen=config.whole("index_topk", least=1),
        index_heads=config.whole("index_n_heads", least=1),
        index_dim=config.whole("index_head_dim", least=1),
        streams=config.whole("hc_mult", least=1),
        experts=config.whole("n_routed_experts", "num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=width,
        shared_ffn=config.whole("n_shared_experts", default=1) * width,
        mtp_layers=config.whole("num_nextn_predict_layers", default=0),
        vocab_multiple=1280,
    )


def _rotated(config: Fields, head_dim: int) -> int:
    """Rotated dimensions of a head: stated, or a share of them, an eighth unless it is told."""
    if config.has("qk_rope_head_dim"):
        return config.whole("qk_rope_head_dim", least=1, most=head_dim)
    return int(head_dim * config.number("partial_rotary_factor", default=_ROTATED))


def _groups(config: Fields, width: int) -> int:
    groups = config.whole("o_groups", least=1)
    if width % groups:
        raise config.wrong("o_groups", groups, f"a divisor of the heads' width {width}")
    return groups


def _rates(config: Fields) -> Mapping[str, int]:
    """Tokens of one compressed key, by type of layer."""
    stated = config.table("compress_rates") if config.has("compress_rates") else Fields({}, config.where)
    older = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
    known = {name: stated.whole(name, default=rate, least=1) for name, rate in _RATES.items()}
    return {name: config.whole(older[name], default=rate, least=1) for name, rate in known.items()}


def _pattern(config: Fields, layers: int) -> str:
    """Letters of the layers; without a list two heavily compressed ones, then both kinds by turns."""
    if not config.has("layer_types") and config.has("compress_ratios"):
        ratios = config.wholes("compress_ratios")
        wrong = [ratio for ratio in ratios if ratio not in _TYPES]
        if wrong:
            raise config.wrong("compress_ratios", wrong[0], ", ".join(map(str, _TYPES)))
        config = config.changed(layer_types=[_TYPES[ratio] for ratio in ratios[:layers]])
    if config.has("layer_types"):
        return layer_letters(config, "layer_types", _LETTERS, layers)
    return ("hh" + "hc" * layers)[:layers]
