"""Hugging Face configurations of models with Mamba-1, Mamba-2 beside attention, lightning attention or delta rules."""

from dataclasses import replace
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import layer_letters, llama, numbered_layers, window_of_types
from costmodels.workload.huggingface.experts import bailing_moe
from costmodels.workload.huggingface.hybrids import with_delta
from costmodels.workload.huggingface.moe import deepseek, mixtral
from hardware.errors import InputError

_RANK_SHARE: Final = 16  # the classes project time steps through a sixteenth of the width
_UNREAD: Final = ("use_full_rank_gate", "mla_use_output_gate", "attn_res_block_size", "latent_moe_use_norm")
"""Fields of Kimi K3 that add parameters which are not modelled."""


def _rank(config: Fields, name: str, hidden: int) -> int:
    """Width of the projection to the time steps; ``auto`` is a sixteenth of the model's width, rounded up."""
    if config.values.get(name, "auto") in ("auto", None):
        return -(-hidden // _RANK_SHARE)
    return config.whole(name, least=1)


def mamba(config: Fields) -> Architecture:
    """Mamba and Falcon-Mamba, whose norms inside the mixer have no weights: every layer a Mamba-1 mixer."""
    layers = config.whole("num_hidden_layers", least=1)
    hidden = config.whole("hidden_size", least=1)
    inner = config.whole("intermediate_size", default=config.whole("expand", default=2, least=1) * hidden, least=1)
    return Architecture(
        family=config.text("model_type"),
        layers=layers,
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        hybrid_pattern="S" * layers,
        mamba_inner=inner,
        mamba_rank=_rank(config, "time_step_rank", hidden),
        mamba_state=config.whole("state_size", default=16, least=1),
        mamba_norm=False,
        conv_width=config.whole("conv_kernel", default=4, least=1),
        mamba_conv_bias=config.flag("use_conv_bias", default=True),
        mamba_bias=config.flag("use_bias", default=False),
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _periodic(config: Fields, kind: str, layers: int, *, every: int, first: int) -> set[int]:
    """Layers that Jamba's fields ``KIND_layer_period`` and ``KIND_layer_offset`` name."""
    period = config.whole(f"{kind}_layer_period", default=every, least=1)
    offset = config.whole(f"{kind}_layer_offset", default=first, most=period - 1)
    return {index for index in range(layers) if index % period == offset}


def jamba(config: Fields) -> Architecture:
    """Jamba: one attention layer in a period and Mamba-1 in the others, experts in every other layer; no positions."""
    base = llama(config)
    attention = _periodic(config, "attn", base.layers, every=8, first=4)
    experts = config.whole("num_experts", "num_local_experts", default=16, least=1)
    routed = _periodic(config, "expert", base.layers, every=2, first=1) if experts > 1 else set()
    return replace(
        base,
        rotary=False,
        window=0,
        mixer_pattern="".join("f" if index in attention else "S" for index in range(base.layers)),
        ffn_pattern="".join("e" if index in routed else "d" for index in range(base.layers)),
        experts=experts if routed else 0,
        top_k=config.whole("num_experts_per_tok", default=2, least=1) if routed else 0,
        mamba_inner=config.whole("mamba_expand", default=2, least=1) * base.hidden,
        mamba_rank=_rank(config, "mamba_dt_rank", base.hidden),
        mamba_state=config.whole("mamba_d_state", default=16, least=1),
        conv_width=config.whole("mamba_d_conv", default=4, least=1),
        mamba_conv_bias=config.flag("mamba_conv_bias", default=True),
        mamba_bias=config.flag("mamba_proj_bias", default=False),
    )


def falcon_h1(config: Fields) -> Architecture:
    """Falcon-H1: attention and Mamba-2 read one input in every layer, before a dense part."""
    base = llama(config)
    heads = config.whole("mamba_n_heads", default=128, least=1)
    inner = config.whole("mamba_d_ssm", default=config.whole("mamba_expand", default=2) * base.hidden, least=1)
    auto = config.values.get("mamba_d_head", "auto") == "auto"
    head_dim = inner // heads if auto else config.whole("mamba_d_head", least=1)
    if heads * head_dim != inner:
        raise config.wrong("mamba_n_heads", heads, f"as many as make mamba_d_ssm = {inner} with heads of {head_dim}")
    bias = config.flag("mamba_proj_bias", default=False)
    if config.flag("projectors_bias", default=False) != bias:
        raise config.wrong("projectors_bias", not bias, "the value of mamba_proj_bias: one bias alone is not modelled")
    return replace(
        base,
        window=0,
        mixer_pattern="P",
        mamba_heads=heads,
        mamba_head_dim=head_dim,
        mamba_state=config.whole("mamba_d_state", default=256, least=1),
        mamba_groups=config.whole("mamba_n_groups", default=1, least=1),
        mamba_norm=config.flag("mamba_rms_norm", default=False),
        conv_width=config.whole("mamba_d_conv", default=4, least=1),
        mamba_conv_bias=config.flag("mamba_conv_bias", default=True),
        mamba_bias=bias,
    )


def minimax(config: Fields) -> Architecture:
    """MiniMax-01 and M1: experts behind lightning attention, or behind full attention in the layers that are listed.

    Earlier files list the layers in ``attn_type_list`` (1: full attention), newer ones in ``layer_types``.
    """
    layers = config.whole("num_hidden_layers", least=1)
    shared = config.values.get("shared_intermediate_size")
    if shared not in (None, 0, [0], (0,)):
        raise config.wrong("shared_intermediate_size", shared, "0: the published models have no shared expert")
    letters = {"full_attention": "f", "linear_attention": "L"}
    pattern = layer_letters(config, "layer_types", letters, layers)
    pattern = pattern or numbered_layers(config, "attn_type_list", "Lf", layers)
    base = mixtral(config.changed(layer_types=None))
    return replace(base, window=0, mixer_pattern=pattern or "fL")


def kimi_linear(config: Fields) -> Architecture:
    """Kimi Linear: a delta rule with a decay for every channel, latent attention without positions in the other layers.

    The release states sizes and layers (counted from 1) in ``linear_attn_config``, the class of Transformers in
    ``linear_*`` and ``layer_types``.
    """
    stated = config.table("linear_attn_config") if config.has("linear_attn_config") else Fields({}, config.where)
    if unread := [name for name in _UNREAD if config.values.get(name) or stated.values.get(name)]:
        raise InputError(
            f"{', '.join(unread)} add parameters that are not modelled",
            allowed="a configuration without them",
            where=config.where,
        )
    base = deepseek(config.changed(layer_types=None), first_dense=1)
    heads = stated.whole("num_heads", default=config.whole("linear_num_heads", default=32, least=1), least=1)
    dim = stated.whole("head_dim", default=config.whole("linear_head_dim", default=128, least=1), least=1)
    width = config.whole("linear_conv_kernel_dim", default=4, least=1)
    return replace(
        base,
        rotary=not config.flag("mla_use_nope", default=True),
        max_positions=config.whole("max_position_embeddings", "model_max_length", default=0),
        mixer_pattern=_delta_layers(config, stated, base.layers),
        linear_key_heads=heads,
        linear_value_heads=heads,
        linear_key_dim=dim,
        linear_value_dim=dim,
        channel_decay=True,
        gate_rank=dim,
        conv_width=stated.whole("short_conv_kernel_size", default=width, least=1),
    )


def _delta_layers(config: Fields, stated: Fields, layers: int) -> str:
    full = stated.wholes("full_attn_layers")
    if stated.has("full_attn_layers"):
        if wrong := [index for index in full if not 1 <= index <= layers]:
            raise stated.wrong("full_attn_layers", wrong[0], f"1 to {layers}")
        return "".join("f" if index in full else "l" for index in range(1, layers + 1))
    found = window_of_types(config, layers)[1]
    return found or "".join("f" if index and not index % 4 else "l" for index in range(layers))


def bailing_hybrid(config: Fields) -> Architecture:
    """Ling 3: Kimi's delta rule with gates straight from the width, latent attention with a gate for every head."""
    group = config.whole("layer_group_size", default=6, least=1)
    base = deepseek(config.changed(layer_types=None), first_dense=2)
    heads = config.whole("linear_num_heads", default=base.heads, least=1)
    dim = config.whole("linear_head_dim", "head_dim", default=128, least=1)
    period = "".join("l" if (index + 1) % group else "f" for index in range(base.layers))
    return replace(
        base,
        head_gate=True,
        mtp_layers=config.whole("num_nextn_predict_layers", "num_mtp_layers", default=1),
        mixer_pattern=window_of_types(config, base.layers)[1] or period,
        linear_key_heads=heads,
        linear_value_heads=heads,
        linear_key_dim=dim,
        linear_value_dim=dim,
        channel_decay=True,
        conv_width=config.whole("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, least=1),
        max_positions=config.whole("max_position_embeddings", "model_max_length", default=0),
    )


def olmo_hybrid(config: Fields) -> Architecture:
    """OLMo Hybrid: a gated delta rule in three layers of four, attention with norms over all heads in the other."""
    plain = llama(config.changed(layer_types=None))
    key_heads = config.whole("linear_num_key_heads", default=plain.heads, least=1)
    key_dim = config.whole("linear_key_head_dim", default=3 * plain.hidden // (4 * key_heads), least=1)
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": config.whole("linear_num_value_heads", default=plain.heads, least=1),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": config.whole("linear_value_head_dim", default=2 * key_dim, least=1),
    }
    base = with_delta(config.changed(**sizes), plain)
    head_dim = base.width_of_head
    heads = base.heads + base.kv_heads
    return replace(base, output_gate=False, mtp_layers=0, qk_norm=True, qk_norm_parameters=heads * head_dim)


def bailing_linear(config: Fields) -> Architecture:
    """Ling and Ring with lightning attention: full attention in the last layer of a group and behind all groups."""
    base = bailing_moe(config)
    group = config.whole("layer_group_size", default=1, least=1)
    whole = base.layers // group * group
    full = (index >= whole or not (index + 1) % group for index in range(base.layers))
    return replace(
        base,
        linear_qk_norm=base.qk_norm,
        mixer_pattern="".join("f" if there else "L" for there in full),
    )
