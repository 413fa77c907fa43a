"""Hugging Face configurations of mixtures that differ from DeepSeek's in attention, or in where experts stand."""

from dataclasses import replace

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.hf_dense import exaone4, llama, numbered_layers, window_of_types
from costmodels.workload.hf_moe import deepseek, granite_moe, routed_and_shared
from costmodels.workload.hf_variants import sinking


def solar_open(config: Fields) -> Architecture:
    """Solar Open: experts and shared ones in every layer unless stated."""
    return replace(routed_and_shared(config), head_dim=config.whole("head_dim", default=128, least=1))


def hunyuan3(config: Fields) -> Architecture:
    """Hunyuan 3: one dense layer, then experts with a shared one; query and key norms."""
    return replace(routed_and_shared(config, first_dense=1), qk_norm=True)


def exaone_moe(config: Fields) -> Architecture:
    """EXAONE with experts: windows as EXAONE 4."""
    attention = exaone4(config)
    base = routed_and_shared(Fields({**config.values, "layer_types": None}, config.where))
    return replace(base, qk_norm=True, window=attention.window, mixer_pattern=attention.mixer_pattern)


def granite_moe_windows(config: Fields) -> Architecture:
    """Granite with experts, windows and sinks."""
    attention = sinking(config)
    base = granite_moe(Fields({**config.values, "layer_types": None}, config.where))
    return replace(base, sinks=True, window=attention.window, mixer_pattern=attention.mixer_pattern)


def bailing_moe(config: Fields) -> Architecture:
    """Ling and Ring, 1 and 2: shared experts as wide as routed ones unless stated; in 2 query and key norms."""
    newer = config.text("model_type") != "bailing_moe"
    shared = config.whole("moe_shared_expert_intermediate_size", default=0)
    base = routed_and_shared(config)
    return replace(
        base,
        qkv_bias=config.flag("use_qkv_bias", default=False),
        out_bias=config.flag("use_bias", default=False),
        qk_norm=config.flag("use_qk_norm", default=newer),
        shared_ffn=shared * config.whole("num_shared_experts", default=1) if shared else base.shared_ffn,
    )


def mimo_flash(config: Fields) -> Architecture:
    """MiMo-V2-Flash: windowed layers with sinks and key-value heads of their own, experts as listed.

    The release lists layers by numbers (``hybrid_layer_pattern``: 1 windowed; ``moe_layer_freq``: 1 experts), the class
    of Transformers by names, with twice the key-value heads in windowed layers.
    """
    layers = config.whole("num_hidden_layers", least=1)
    for name, same in (("swa_num_attention_heads", "num_attention_heads"), *_SAME_WIDTHS):
        if config.has(name) and config.values[name] != config.values.get(same):
            raise config.wrong(name, config.values[name], f"{same} = {config.values.get(same)}")
    if config.flag("add_full_attention_sink_bias", default=False):
        raise config.wrong("add_full_attention_sink_bias", True, "false: sinks of windowed layers alone are modelled")
    plain = {"layer_types": None, "moe_layer_freq": None, "n_shared_experts": config.values.get("n_shared_experts")}
    base = routed_and_shared(Fields({**config.values, **plain}, config.where), first_dense=1)
    window, mixers = window_of_types(config, layers)
    ffns = base.ffn_pattern or numbered_layers(config, "moe_layer_freq", "de", layers)
    mixers = mixers or numbered_layers(config, "hybrid_layer_pattern", "fw", layers)
    mixers = mixers or "".join("w" if index and (index + 1) % 6 else "f" for index in range(layers))
    return replace(
        base,
        head_dim=config.whole("head_dim", default=192, least=1),
        value_dim=config.whole("v_head_dim", default=128, least=1),
        kv_heads=config.whole("swa_num_key_value_heads", default=2 * base.kv_heads, least=1),
        full_heads=base.kv_heads,
        window_sinks=config.flag("add_swa_attention_sink_bias", default=True),
        window=window or config.whole("sliding_window", least=1),
        mixer_pattern=mixers,
        ffn_pattern=ffns,
        first_dense=0 if ffns else base.first_dense,
    )


_SAME_WIDTHS = (("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim"))


def longcat(config: Fields) -> Architecture:
    """LongCat-Flash: two blocks of latent attention and a dense part to a layer, experts across the first dense part.

    A layer stands as two: the dense part beside the experts is their shared expert. A token's ``moe_topk`` experts
    include idle ones, which pass it on: of the computing ones it meets as many as their share of all.
    """
    layers = config.whole("num_layers", "num_hidden_layers", least=1)
    ffn = config.whole("ffn_hidden_size", "intermediate_size", least=1)
    experts, idle = config.whole("n_routed_experts", least=1), config.whole("zero_expert_num", default=0)
    words = {
        "num_hidden_layers": 2 * layers,
        "intermediate_size": ffn,
        "moe_intermediate_size": config.whole("expert_ffn_hidden_size", least=1),
        "num_experts_per_tok": max(1, round(config.whole("moe_topk", least=1) * experts / (experts + idle))),
    }
    base = deepseek(Fields({**config.values, **words}, config.where))
    router_bias = config.flag("router_bias", default=False)
    return replace(base, ffn_pattern="ed", shared_ffn=ffn, idle_experts=idle, router_bias=router_bias)


def step3(config: Fields) -> Architecture:
    """Step-3: queries through a latent, few key-value heads, experts in the layers of ``moe_layers_enum``."""
    words = {"num_key_value_heads": config.values.get("num_attention_groups", 1)}
    base = llama(Fields({**config.values, **words}, config.where))
    listed = config.values.get("moe_layers_enum")
    if isinstance(listed, str):
        listed = [int(word) if word.strip().isdigit() else word for word in listed.split(",")]
    sparse = set(Fields({"moe_layers_enum": listed}, config.where).wholes("moe_layers_enum"))
    if wrong := sorted(index for index in sparse if not 0 <= index < base.layers):
        raise config.wrong("moe_layers_enum", wrong[0], f"0 to {base.layers - 1}")
    return replace(
        base,
        q_rank=config.whole("share_q_dim", least=1),
        ffn_pattern="".join("e" if index in sparse else "d" for index in range(base.layers)),
        experts=config.whole("moe_num_experts", least=1),
        top_k=config.whole("moe_top_k", least=1),
        expert_ffn=config.whole("moe_intermediate_size", least=1),
        shared_ffn=config.whole("share_expert_dim", default=0),
        max_positions=config.whole("max_position_embedding", "max_seq_len", default=0),
    )
