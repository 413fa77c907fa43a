"""Hugging Face configurations of mixtures that differ from DeepSeek's in attention, or in where experts stand."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import exaone4, layer_letters, llama, numbered_layers, window_of_types
from costmodels.workload.huggingface.moe import FFN_WORDS, deepseek, granite_moe, routed_and_shared
from costmodels.workload.huggingface.variants import granite_windows

_SAME_WIDTHS: Final = (("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim"))
"""Widths of MiMo-V2-Flash's windowed layers, and of the full ones that they must be alike."""
_FLAT: Final = MappingProxyType({"num_index_heads": "index_n_heads", "index_dim": "index_head_dim"})
"""Sizes of MiniMax-M3's indexer that the class of Transformers calls otherwise than the release."""


def solar_open(config: Fields) -> Architecture:
    """Solar Open: experts and shared ones in every layer unless stated."""
    base = routed_and_shared(config)
    return replace(base, head_dim=config.whole("head_dim", default=128, least=1), out_bias=False)


def hunyuan3(config: Fields) -> Architecture:
    """Hunyuan 3: one dense layer, then experts with a shared one; query and key norms."""
    return replace(routed_and_shared(config, first_dense=1), qk_norm=True)


def exaone_moe(config: Fields) -> Architecture:
    """EXAONE with experts: windows as EXAONE 4."""
    attention = exaone4(config)
    base = routed_and_shared(config.changed(layer_types=None))
    return replace(base, qk_norm=True, window=attention.window, mixer_pattern=attention.mixer_pattern)


def granite_moe_windows(config: Fields) -> Architecture:
    """Granite with experts, windows and sinks."""
    attention = granite_windows(config)
    base = granite_moe(config.changed(layer_types=None))
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
    base = routed_and_shared(config.changed(**plain), first_dense=1)
    window, mixers = window_of_types(config, layers)
    ffns = base.ffn_pattern or numbered_layers(config, "moe_layer_freq", "de", layers)
    mixers = mixers or numbered_layers(config, "hybrid_layer_pattern", "fw", layers)
    mixers = mixers or "".join("w" if index and (index + 1) % 6 else "f" for index in range(layers))
    return replace(
        base,
        out_bias=False,
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
    base = deepseek(config.changed(**words))
    router_bias = config.flag("router_bias", default=False)
    return replace(base, ffn_pattern="ed", shared_ffn=ffn, idle_experts=idle, router_bias=router_bias)


def minimax_m3(config: Fields) -> Architecture:
    """MiniMax-M3: an indexer in most layers chooses blocks of keys, experts with a shared one in most.

    The release says by zeros and ones which layers are sparse and have experts, the class of Transformers by names.
    """
    layers = config.whole("num_hidden_layers", least=1)
    stated = config.has("sparse_attention_config")
    told = config.table("sparse_attention_config") if stated else Fields({}, config.where)
    letters = {"full_attention": "f", "minimax_m3_sparse": "i"}
    mixers = layer_letters(config, "layer_types", letters, layers)
    mixers = mixers or numbered_layers(told, "sparse_attention_freq", "fi", layers) or "f" * layers
    ffns = layer_letters(config, "mlp_layer_types", FFN_WORDS, layers)
    keys = _sparse_size(config, told, "block_size", 128) * _sparse_size(config, told, "topk_blocks", 16)
    sparse = "i" in mixers
    base = llama(config.changed(layer_types=None))
    return replace(
        base,
        ffn=config.whole("dense_intermediate_size", default=base.ffn, least=1),
        qk_norm=config.flag("use_qk_norm", default=True),
        window=keys if sparse else 0,
        mixer_pattern=mixers,
        index_heads=_sparse_size(config, told, "num_index_heads", 4) if sparse else 0,
        index_dim=_sparse_size(config, told, "index_dim", 128) if sparse else 0,
        index_weights=False,
        experts=config.whole("num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=base.ffn,
        shared_ffn=config.whole("shared_intermediate_size", default=0),
        ffn_pattern=ffns or numbered_layers(config, "moe_layer_freq", "de", layers),
        mtp_layers=config.whole("num_nextn_predict_layers", default=0),
    )


def _sparse_size(config: Fields, told: Fields, name: str, default: int) -> int:
    """A size of MiniMax-M3's indexer: of the release's table, else of the class's flat field."""
    flat = config.whole(_FLAT.get(name, f"index_{name}"), default=default, least=1)
    return told.whole(f"sparse_{name}", default=flat, least=1)


def step3(config: Fields) -> Architecture:
    """Step-3: queries through a latent, few key-value heads, experts in the layers of ``moe_layers_enum``."""
    words = {"num_key_value_heads": config.values.get("num_attention_groups", 1)}
    base = llama(config.changed(**words))
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
