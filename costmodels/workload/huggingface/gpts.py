"""Hugging Face configurations of earlier decoders with learned or linear positions, and of small ones like them."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import gpt2, layer_letters, llama
from costmodels.workload.huggingface.variants import gptj

_GLOBAL: Final[Mapping[str, str]] = MappingProxyType({"global": "f", "local": "w"})
_MPT_RATIO: Final = 4
_OFFSET: Final = 2  # rows of a table of positions that stand before the first one (fairseq)


def gpt_neo(config: Fields) -> Architecture:
    """GPT-Neo: as GPT-2, without biases on queries, keys and values, and with windows in every other layer."""
    layers = config.whole("num_layers", "num_hidden_layers", least=1)
    hidden = config.whole("hidden_size", least=1)
    words = {
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": config.values.get("num_heads"),
        "n_inner": config.values.get("intermediate_size"),
        "n_positions": config.values.get("max_position_embeddings"),
    }
    return replace(
        gpt2(config.changed(**words)),
        family="gpt_neo",
        qkv_bias=False,
        window=config.whole("window_size", default=256, least=1),
        mixer_pattern=_neo_pattern(config, layers),
    )


def _neo_pattern(config: Fields, layers: int) -> str:
    """Letters of ``attention_layers``, or of ``attention_types``: pairs of a period and how often it comes."""
    if config.has("attention_layers"):
        return layer_letters(config, "attention_layers", _GLOBAL, layers)
    told = config.values.get("attention_types")
    if told is None:
        return "fw"
    names: list[object] = []
    for pair in told if isinstance(told, list | tuple) else [told]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], list | tuple):
            raise config.wrong("attention_types", told, "pairs of a list of global and local, and a number")
        times = Fields({"attention_types": pair[1]}, config.where).whole("attention_types", least=1, most=layers)
        names += [*pair[0]] * times
    return layer_letters(config.changed(attention_types=names), "attention_types", _GLOBAL, layers)


def codegen(config: Fields) -> Architecture:
    """CodeGen: as GPT-J, with merged projections."""
    return replace(gptj(config), family="codegen")


def mpt(config: Fields) -> Architecture:
    """MPT: linear position biases, no biases; norms without biases count as root-mean-square norms."""
    hidden = config.whole("d_model", "hidden_size", least=1)
    told = config.table("attn_config") if config.has("attn_config") else Fields({}, config.where)
    kind = told.text("attn_type", default="multihead_attention")
    if kind != "multihead_attention":
        raise told.wrong("attn_type", kind, "multihead_attention: the class of Transformers has no other")
    ratio = config.whole("expansion_ratio", default=_MPT_RATIO)
    if ratio != _MPT_RATIO:
        raise config.wrong("expansion_ratio", ratio, f"{_MPT_RATIO}: the class of Transformers has no other")
    return Architecture(
        family="mpt",
        layers=config.whole("n_layers", "num_hidden_layers", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("n_heads", "num_attention_heads", least=1),
        ffn=ratio * hidden,
        gated=False,
        rotary=False,
        tied=config.flag("tie_word_embeddings", default=True),
        max_positions=config.whole("max_seq_len", default=0),
    )


def xglm(config: Fields) -> Architecture:
    """XGLM: positions computed by sines, biases everywhere, tied embeddings."""
    return replace(_fairseq(config), family="xglm")


def biogpt(config: Fields) -> Architecture:
    """BioGPT: as XGLM with learned positions, two rows more than the sequence is long."""
    base = _fairseq(config)
    return replace(base, family="biogpt", learned_positions=base.max_positions + _OFFSET)


def _fairseq(config: Fields) -> Architecture:
    bias = {"norm": "layer", "ffn_bias": True, "qkv_bias": True, "out_bias": True}
    return Architecture(
        layers=config.whole("num_layers", "num_hidden_layers", least=1),
        hidden=config.whole("d_model", "hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("attention_heads", "num_attention_heads", least=1),
        ffn=config.whole("ffn_dim", "intermediate_size", least=1),
        gated=False,
        rotary=False,
        tied=config.flag("tie_word_embeddings", default=True),
        max_positions=config.whole("max_position_embeddings", default=0),
        **bias,  # type: ignore[arg-type]
    )


def openai_gpt(config: Fields) -> Architecture:
    """GPT of 2018: as GPT-2 with norms behind the parts, and none at the end."""
    return replace(gpt2(config), family="openai-gpt", final_norm=False)


def persimmon(config: Fields) -> Architecture:
    """Persimmon and Fuyu: LayerNorm, squared ReLU, biases everywhere; query and key norms of one head, with biases."""
    base = llama(config)
    qk_norm = config.flag("qk_layernorm", default=True)
    return replace(
        base,
        norm="layer",
        gated=False,
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
        qk_norm=qk_norm,
        qk_norm_parameters=4 * base.width_of_head if qk_norm else 0,
    )


def jais2(config: Fields) -> Architecture:
    """Jais 2: LayerNorm, squared ReLU without a gate."""
    return replace(llama(config), norm="layer", gated=False)


def nanochat(config: Fields) -> Architecture:
    """nanochat: norms without weights, squared ReLU without a gate."""
    return replace(llama(config), norm="bare", gated=False)
