"""Hugging Face configurations of mixtures of experts and hybrids, one function per family of ``model_type``."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import HYBRID_LETTERS, Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import layer_letters, letters_of, llama, qwen2, qwen2_window, window_of_types


def mixtral(config: Fields) -> Architecture:
    """Mixtral: every layer has experts as wide as ``intermediate_size``."""
    return replace(
        llama(config),
        experts=config.whole("num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
    )


def granite_moe(config: Fields) -> Architecture:
    """Granite 3 MoE: as Mixtral; newer ones have a shared expert."""
    return replace(mixtral(config), shared_ffn=config.whole("shared_intermediate_size", default=0))


def phimoe(config: Fields) -> Architecture:
    """Phi-3.5-MoE: as Mixtral with LayerNorm; its windows are as long as its context."""
    return replace(mixtral(config), norm="layer", window=0, head_bias=config.flag("lm_head_bias", default=False))


def dbrx(config: Fields) -> Architecture:
    """DBRX: LayerNorm without biases, which is counted as RMSNorm; attention and experts have tables of their own."""
    attention, experts = config.table("attn_config"), config.table("ffn_config")
    return Architecture(
        family="dbrx",
        layers=config.whole("n_layers", "num_hidden_layers", least=1),
        hidden=config.whole("d_model", "hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("n_heads", "num_attention_heads", least=1),
        kv_heads=attention.whole("kv_n_heads", default=1, least=1),
        ffn=experts.whole("ffn_hidden_size", least=1),
        experts=experts.whole("moe_num_experts", least=1),
        top_k=experts.whole("moe_top_k", default=1, least=1),
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.whole("max_seq_len", default=0),
    )


def grok1(config: Fields) -> Architecture:
    """Grok-1: norms before and after both parts, tied embeddings."""
    return replace(
        llama(config),
        norms_per_layer=4,
        experts=config.whole("num_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        tied=config.flag("tie_word_embeddings", default=True),
    )


FFN_WORDS: Final = MappingProxyType({"dense": "d", "sparse": "e"})
"""What ``mlp_layer_types`` call the feed-forward part of a layer."""


def routed_and_shared(config: Fields, *, first_dense: int = 0) -> Architecture:
    """Experts as DeepSeek's files name them: leading dense layers, routed experts, shared ones of the same width.

    ``mlp_layer_types`` say for each layer which it is, in the place of ``first_k_dense_replace``.
    """
    expert = config.whole("moe_intermediate_size", least=1)
    first = config.whole("first_k_dense_replace", default=first_dense)
    some_dense = first > 0 or "dense" in config.texts("mlp_layer_types")
    if not some_dense and not config.has("intermediate_size"):  # which no layer would have
        config = config.changed(intermediate_size=expert)
    if config.flag("mlp_bias", default=False):
        raise config.wrong("mlp_bias", True, "false: biases of dense and shared parts alone are not modelled")
    base = llama(config)
    pattern = layer_letters(config, "mlp_layer_types", FFN_WORDS, base.layers)
    return replace(
        base,
        window=0,
        experts=config.whole("n_routed_experts", "num_experts", "num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", "num_experts_per_token", least=1),
        expert_ffn=expert,
        shared_ffn=expert * config.whole("n_shared_experts", "num_shared_experts", default=0),
        first_dense=0 if pattern else first,
        ffn_pattern=pattern,
        mtp_layers=config.whole("num_nextn_predict_layers", default=0),
    )


def dots1(config: Fields) -> Architecture:
    """dots.llm1: leading dense layers and shared experts as DeepSeek, grouped attention with query and key norms."""
    return replace(routed_and_shared(config), qk_norm=True)


def ernie45_moe(config: Fields) -> Architecture:
    """ERNIE 4.5 with experts: in every ``moe_layer_interval``-th layer from ``moe_layer_start_index`` on."""
    base = llama(config)
    first = config.whole("moe_layer_start_index", default=1)
    last = config.whole("moe_layer_end_index", default=base.layers - 1)
    every = config.whole("moe_layer_interval", default=1, least=1)
    expert = config.whole("moe_intermediate_size", least=1)
    sparse = ("e" if first <= index <= last and not (index + 1) % every else "d" for index in range(base.layers))
    if config.flag("use_bias", default=False):
        raise config.wrong("use_bias", True, "false: biases of all but the experts are not modelled")
    return replace(
        base,
        tied=config.flag("tie_word_embeddings", default=True),
        ffn_pattern="".join(sparse),
        experts=config.whole("moe_num_experts", least=1),
        top_k=config.whole("moe_k", default=2, least=1),
        expert_ffn=expert,
        shared_ffn=expert * config.whole("moe_num_shared_experts", default=0),
    )


def hunyuan_moe(config: Fields) -> Architecture:
    """Hunyuan-A13B: query and key norms, shared experts; lists state one value for all layers."""
    base = llama(config)
    expert = _same_in_all_layers(config, "moe_intermediate_size", base.ffn)
    shared = (
        _same_in_all_layers(config, "num_shared_expert", 1) if config.flag("use_mixed_mlp_moe", default=True) else 0
    )
    return replace(
        base,
        qk_norm=config.flag("use_qk_norm", default=True),
        experts=_same_in_all_layers(config, "num_experts", 0),
        top_k=_same_in_all_layers(config, "moe_topk", 1),
        expert_ffn=expert,
        shared_ffn=expert * shared,
    )


def _same_in_all_layers(config: Fields, name: str, default: int) -> int:
    """Return a number, or the number that a list repeats for every layer."""
    if not isinstance(config.values.get(name), list | tuple):
        return config.whole(name, default=default)
    values = config.wholes(name)
    if len(set(values)) != 1:
        raise config.wrong(name, values, "one value for all layers")
    return Fields({name: values[0]}, config.where).whole(name)


def mamba2(config: Fields) -> Architecture:
    """Mamba-2: every layer a state space, no feed-forward part."""
    layers = config.whole("num_hidden_layers", least=1)
    return Architecture(
        family="mamba2",
        layers=layers,
        hidden=config.whole("hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        hybrid_pattern="M" * layers,
        mamba_heads=config.whole("num_heads", least=1),
        mamba_head_dim=config.whole("head_dim", default=64, least=1),
        mamba_state=config.whole("state_size", default=128, least=1),
        mamba_groups=config.whole("n_groups", default=8, least=1),
        conv_width=config.whole("conv_kernel", default=4, least=1),
        mamba_conv_bias=config.flag("use_conv_bias", default=True),
        mamba_bias=config.flag("use_bias", default=False),
        tied=config.flag("tie_word_embeddings", default=False),
    )


def _sparse_pattern(config: Fields) -> str:
    """Letters of the feed-forward parts under ``decoder_sparse_step`` and ``mlp_only_layers`` (Qwen)."""
    layers = config.whole("num_hidden_layers", least=1)
    step = config.whole("decoder_sparse_step", default=1, least=1)
    dense = set(config.wholes("mlp_only_layers"))
    return "".join("d" if index in dense or (index + 1) % step else "e" for index in range(layers))


def qwen2_moe(config: Fields) -> Architecture:
    """Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts and a gated shared one."""
    shared = config.whole("shared_expert_intermediate_size", default=0)
    return replace(
        qwen2(config),
        qkv_bias=config.flag("qkv_bias", default=True),
        ffn_pattern=_sparse_pattern(config),
        experts=config.whole("num_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=config.whole("moe_intermediate_size", least=1),
        shared_ffn=shared,
        shared_gate=shared > 0,
    )


def qwen3_moe(config: Fields) -> Architecture:
    """Qwen3-MoE: query and key norms, no shared expert."""
    window, pattern = qwen2_window(config)
    return replace(
        llama(config),
        qk_norm=True,
        window=window,
        mixer_pattern=pattern,
        ffn_pattern=_sparse_pattern(config),
        experts=config.whole("num_experts", "num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=config.whole("moe_intermediate_size", least=1),
    )


def deepseek(config: Fields, *, first_dense: int = 0) -> Architecture:
    """DeepSeek-V2, V3 and Kimi-K2: latent attention, leading dense layers, shared experts, MTP."""
    nope = config.whole("qk_nope_head_dim", least=1)
    rope = config.whole("qk_rope_head_dim", least=1)
    base = routed_and_shared(config, first_dense=first_dense)
    return replace(
        base,
        kv_heads=base.heads,
        head_dim=nope + rope,
        value_dim=config.whole("v_head_dim", least=1),
        q_rank=config.whole("q_lora_rank", default=0),
        kv_rank=config.whole("kv_lora_rank", least=1),
        rope_dim=rope,
        ffn_pattern=base.ffn_pattern or "e" + "d" * (config.whole("moe_layer_freq", default=1, least=1) - 1),
    )


def glm4_moe_lite(config: Fields) -> Architecture:
    """GLM-4.7-Flash: as DeepSeek-V3 with one dense layer."""
    return deepseek(config, first_dense=1)


def olmoe(config: Fields) -> Architecture:
    """OLMoE: experts as wide as ``intermediate_size``, query and key norms over all heads at once."""
    base = llama(config)
    head_dim = base.width_of_head
    return replace(
        base,
        out_bias=base.qkv_bias,
        qk_norm=True,
        qk_norm_parameters=(base.heads + (base.kv_heads or base.heads)) * head_dim,
        experts=config.whole("num_experts", "num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
    )


def sparse_deepseek(config: Fields) -> Architecture:
    """DeepSeek-V3.2 and GLM-5: as DeepSeek-V3, with an indexer that chooses ``index_topk`` keys for each query.

    ``indexer_types``, ``index_topk_pattern`` or a frequency and an offset say which layers have one (GLM-5.2: every
    fourth); the others attend to the keys that the last one chose.
    """
    layers = config.whole("num_hidden_layers", least=1)
    plain = config.changed(layer_types=None)  # they call every layer sparse
    return replace(
        deepseek(plain),
        window=config.whole("index_topk", least=1),
        mixer_pattern=_indexed_layers(config, layers),
        index_heads=config.whole("index_n_heads", least=1),
        index_dim=config.whole("index_head_dim", least=1),
    )


def _indexed_layers(config: Fields, layers: int) -> str:
    """Letters of the layers: ``i`` with an indexer of its own, ``w`` with the keys of an earlier one."""
    types = config.texts("indexer_types") or tuple(config.text("index_topk_pattern", default=""))
    if types:
        letters = {"full": "i", "F": "i", "shared": "w", "S": "w"}
        name = "indexer_types" if config.has("indexer_types") else "index_topk_pattern"
        return layer_letters(config.changed(**{name: types}), name, letters, layers)
    every = max(1, config.whole("index_topk_freq", default=1))
    offset = config.whole("index_skip_topk_offset", default=2)
    return "".join("w" if max(index - offset + 1, 0) % every else "i" for index in range(layers))


def glm4_moe(config: Fields) -> Architecture:
    """GLM-4.5: biases on queries, keys and values, leading dense layers, shared expert, MTP."""
    return replace(
        routed_and_shared(config),
        out_bias=False,
        qk_norm=config.flag("use_qk_norm", default=False),
    )


def gpt_oss(config: Fields) -> Architecture:
    """gpt-oss: biases everywhere, attention sinks, every other layer windowed."""
    window, pattern = window_of_types(config, config.whole("num_hidden_layers", least=1))
    base = llama(config)
    bias = config.flag("attention_bias", default=True)
    return replace(
        base,
        head_dim=config.whole("head_dim", default=64, least=1),
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        window=window or config.whole("sliding_window", default=128),
        mixer_pattern=pattern or "wf",
        experts=config.whole("num_local_experts", "num_experts", least=1),
        top_k=config.whole("num_experts_per_tok", "experts_per_token", least=1),
        router_bias=True,
        expert_bias=True,
    )


def minimax_m2(config: Fields) -> Architecture:
    """MiniMax-M2: query and key norms over all heads at once; its MTP modules are not part of the open model."""
    base = llama(config)
    qk_norm = config.flag("use_qk_norm", default=True)
    head_dim = base.width_of_head
    return replace(
        base,
        qk_norm=qk_norm,
        qk_norm_parameters=(base.heads + base.kv_heads) * head_dim if qk_norm else 0,
        window=0,
        experts=config.whole("num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        shared_ffn=config.whole("shared_intermediate_size", default=0),
    )


def llama4(config: Fields) -> Architecture:
    """Llama 4: one routed and one shared expert, experts in every ``interleave_moe_layer_step``-th layer."""
    layers = config.whole("num_hidden_layers", least=1)
    base = llama(config)
    step = config.whole("interleave_moe_layer_step", default=1, least=1)
    window, pattern = window_of_types(config, layers)
    if not pattern:
        window, pattern = config.whole("attention_chunk_size", default=8192), "wwwf"
    return replace(
        base,
        head_dim=config.whole("head_dim", default=128, least=1),
        ffn=config.whole("intermediate_size_mlp", default=base.ffn, least=1),
        window=window,
        mixer_pattern=pattern,
        ffn_pattern="d" * (step - 1) + "e",
        experts=config.whole("num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", default=1, least=1),
        expert_ffn=base.ffn,
        shared_ffn=base.ffn,
    )


def nemotron_h(config: Fields) -> Architecture:
    """Nemotron-H and Nemotron-3: Mamba-2, attention, dense and expert layers in a stated order."""
    pattern = _hybrid_pattern(config)
    own = {"num_hidden_layers": len(pattern), "layer_types": None}  # the pattern says what each layer is
    base = llama(config.changed(**own))
    moe = "E" in pattern
    if moe and config.flag("mlp_bias", default=False):
        raise config.wrong("mlp_bias", True, "false: biases of shared experts alone are not modelled")
    return replace(
        base,
        gated=False,
        window=0,
        hybrid_pattern=pattern,
        head_dim=config.whole("head_dim", "attention_head_dim", default=base.head_dim),
        mamba_heads=config.whole("mamba_num_heads", least=1),
        mamba_head_dim=config.whole("mamba_head_dim", least=1),
        mamba_state=config.whole("ssm_state_size", least=1),
        mamba_groups=config.whole("n_groups", least=1),
        conv_width=config.whole("conv_kernel", default=4, least=1),
        mamba_conv_bias=config.flag("use_conv_bias", default=True),
        mamba_bias=config.flag("use_bias", "mamba_proj_bias", default=False),
        experts=config.whole("n_routed_experts", least=1) if moe else 0,
        top_k=config.whole("num_experts_per_tok", least=1) if moe else 0,
        expert_ffn=config.whole("moe_intermediate_size", least=1) if moe else 0,
        shared_ffn=_nemotron_shared(config) if moe else 0,
        latent=config.whole("moe_latent_size", default=0),
        mtp_layers=config.whole("num_nextn_predict_layers", default=0),
    )


_PATTERNS = ("layers_block_type", "hybrid_override_pattern", "hybrid_layer_pattern")


def _hybrid_pattern(config: Fields) -> str:
    """Letters of the layers, from the pattern or from the list of block types."""
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = letters_of(config, "layers_block_type", letters)
    pattern = pattern or config.text("hybrid_override_pattern", "hybrid_layer_pattern")
    layers = config.whole("num_hidden_layers", default=len(pattern), least=1)
    name = next((word for word in _PATTERNS if config.has(word)), _PATTERNS[0])
    for letter in pattern:
        if letter not in HYBRID_LETTERS:
            raise config.wrong(name, letter, f"a letter for each layer of {' '.join(HYBRID_LETTERS)}")
    if len(pattern) != layers:
        raise config.wrong(name, f"{len(pattern)} layers", f"as many as num_hidden_layers = {layers}")
    return pattern


def _nemotron_shared(config: Fields) -> int:
    return config.whole("moe_shared_expert_intermediate_size", default=0) * config.whole("n_shared_experts", default=1)
