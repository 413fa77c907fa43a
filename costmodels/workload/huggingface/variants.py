"""Hugging Face configurations of models that differ from Llama in norms, biases or names of fields."""

from dataclasses import replace

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import llama, window_of_types


def tied_llama(config: Fields) -> Architecture:
    """SmolLM3 and ERNIE 4.5: as Llama, with tied embeddings unless stated; ERNIE calls its biases ``use_bias``."""
    base = llama(config)
    bias = config.flag("use_bias", default=False)
    return replace(
        base,
        tied=config.flag("tie_word_embeddings", default=True),
        qkv_bias=base.qkv_bias or bias,
        out_bias=base.out_bias or bias,
        ffn_bias=base.ffn_bias or bias,
    )


def internlm2(config: Fields) -> Architecture:
    """InternLM2 and 2.5: as Llama; ``bias`` is of the projections of attention."""
    bias = config.flag("bias", default=False)
    return replace(llama(config), qkv_bias=bias, out_bias=bias)


def baichuan(config: Fields) -> Architecture:
    """Baichuan and Baichuan 2: as Llama with merged projections; the 13B has ALiBi, told by its 40 layers."""
    base = llama(config)
    positions = config.whole("model_max_length", "max_position_embeddings", default=0)
    return replace(base, rotary=base.layers != _BAICHUAN_ALIBI_LAYERS, max_positions=positions)


_BAICHUAN_ALIBI_LAYERS = 40  # no field says so: the code of the 13B has ALiBi, that of the 7B (32 layers) rotary


def seed_oss(config: Fields) -> Architecture:
    """Seed-OSS: biases on queries, keys and values; the output projection says for itself."""
    return replace(
        llama(config),
        qkv_bias=config.flag("attention_bias", default=True),
        out_bias=config.flag("attention_out_bias", default=False),
    )


def olmo3(config: Fields) -> Architecture:
    """OLMo 3: as OLMo 2, with every fourth layer full where ``layer_types`` do not say."""
    base = olmo2(config)
    return base if config.has("layer_types") else replace(base, mixer_pattern="wwwf" if base.window else "")


def olmo2(config: Fields) -> Architecture:
    """OLMo 2: norms after both parts instead of before, query and key norms over all heads at once."""
    base = llama(config)
    head_dim = base.width_of_head
    return replace(base, qk_norm=True, qk_norm_parameters=(base.heads + base.kv_heads) * head_dim)


def apertus(config: Fields) -> Architecture:
    """Apertus: query and key norms, no gate; xIELU learns a slope on either side of zero."""
    learned = 2 if config.text("hidden_act", default="xielu") == "xielu" else 0
    qk_norm = config.flag("qk_norm", default=True)
    return replace(llama(config), qk_norm=qk_norm, gated=False, activation_parameters=learned)


def glm4(config: Fields) -> Architecture:
    """GLM-4 of 2025: norms before and after both parts, biases on queries, keys and values."""
    base = llama(config)
    return replace(base, head_dim=config.whole("head_dim", default=128, least=1), out_bias=False, norms_per_layer=4)


def glm4v(config: Fields) -> Architecture:
    """The language model of GLM-4.1V and GLM-4.6V: as GLM-4 of 2025, with heads that share its width."""
    return replace(llama(config), qkv_bias=True, out_bias=False, norms_per_layer=4)


def chatglm(config: Fields) -> Architecture:
    """ChatGLM2, ChatGLM3 and GLM-4-9B: as Llama under other names of fields."""
    heads = config.whole("num_attention_heads", least=1)
    groups = config.whole("multi_query_group_num", default=1, least=1)
    bias = config.flag("add_bias_linear", default=False)
    return Architecture(
        family="chatglm",
        layers=config.whole("num_layers", "num_hidden_layers", least=1),
        hidden=config.whole("hidden_size", least=1),
        vocab=config.whole("padded_vocab_size", "vocab_size", least=1),
        heads=heads,
        kv_heads=groups if config.flag("multi_query_attention", default=False) else heads,
        head_dim=config.whole("kv_channels", default=0),
        ffn=config.whole("ffn_hidden_size", least=1),
        ffn_bias=bias,
        qkv_bias=bias or config.flag("add_qkv_bias", default=False),
        out_bias=bias,
        norm="rms" if config.flag("rmsnorm", default=True) else "layer",
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.whole("seq_length", default=0),
    )


def cohere(config: Fields) -> Architecture:
    """Command R and R+: one norm without bias feeds attention and feed-forward part, tied embeddings.

    Query and key norms have weights of their own for every head.
    """
    base = llama(config)
    head_dim = base.width_of_head
    qk_norm = config.flag("use_qk_norm", default=False)
    return replace(
        base,
        norms_per_layer=1,
        parallel=True,
        tied=config.flag("tie_word_embeddings", default=True),
        qk_norm=qk_norm,
        qk_norm_parameters=(base.heads + base.kv_heads) * head_dim if qk_norm else 0,
    )


def cohere2(config: Fields) -> Architecture:
    """Command R7B and Command A: as Command R, with one full layer in ``sliding_window_pattern``."""
    base = cohere(config)
    if config.has("layer_types"):
        window, pattern = window_of_types(config, base.layers)
    else:
        window = config.whole("sliding_window", default=4096)
        pattern = "w" * (config.whole("sliding_window_pattern", default=4, least=1) - 1) + "f" if window else ""
    return replace(base, window=window, mixer_pattern=pattern)


def starcoder2(config: Fields) -> Architecture:
    """StarCoder 2: LayerNorm, no gate, biases everywhere, tied embeddings."""
    bias = config.flag("use_bias", default=True)
    return replace(
        llama(config),
        norm="rms" if config.text("norm_type", default="layer_norm") == "rms_norm" else "layer",
        gated=False,
        ffn_bias=bias,
        qkv_bias=bias,
        out_bias=bias,
        tied=config.flag("tie_word_embeddings", default=True),
    )


def stablelm(config: Fields) -> Architecture:
    """StableLM and StableLM 2: LayerNorm, gated; a parallel residual has one norm."""
    base = llama(config)
    parallel = config.flag("use_parallel_residual", default=False)
    qk_norm = config.flag("qk_layernorm", default=False)
    head_dim = base.width_of_head
    return replace(
        base,
        norm="layer",
        parallel=parallel,
        norms_per_layer=1 if parallel else 0,
        qkv_bias=config.flag("use_qkv_bias", default=False),
        out_bias=False,
        qk_norm=qk_norm,
        qk_norm_parameters=(base.heads + base.kv_heads) * head_dim if qk_norm else 0,
    )


def gptj(config: Fields) -> Architecture:
    """GPT-J: one LayerNorm feeds both parts, biases on the feed-forward part and on the head only."""
    hidden = config.whole("n_embd", "hidden_size", least=1)
    return Architecture(
        family="gptj",
        layers=config.whole("n_layer", "num_hidden_layers", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("n_head", "num_attention_heads", least=1),
        ffn=config.whole("n_inner", default=4 * hidden, least=1),
        gated=False,
        ffn_bias=True,
        norm="layer",
        norms_per_layer=1,
        parallel=True,
        head_bias=True,
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.whole("n_positions", default=0),
    )


def glm(config: Fields) -> Architecture:
    """GLM-4-9B and GLM-Edge in the form of Transformers: biases on queries, keys and values only."""
    return replace(llama(config), qkv_bias=config.flag("attention_bias", default=True), out_bias=False)


def helium(config: Fields) -> Architecture:
    """Helium: no bias on the output of attention, whatever the others have."""
    return replace(llama(config), out_bias=False)


def arcee(config: Fields) -> Architecture:
    """Arcee AFM: squared ReLU without a gate."""
    return replace(llama(config), gated=False)


def olmo(config: Fields) -> Architecture:
    """OLMo 1: norms without weights."""
    return replace(llama(config), norm="bare")


def hunyuan_dense(config: Fields) -> Architecture:
    """Hunyuan dense models: query and key norms."""
    return replace(llama(config), qk_norm=True)


def hyperclovax(config: Fields) -> Architecture:
    """HyperCLOVA X: norms after both parts too, where ``use_post_norm`` says so."""
    return replace(llama(config), norms_per_layer=4 if config.flag("use_post_norm", default=True) else 0)


def code_world(config: Fields) -> Architecture:
    """Code World Model: one full layer in four where ``layer_types`` do not say."""
    base = llama(config)
    return base if config.has("layer_types") else replace(base, mixer_pattern="fwww" if base.window else "")


def granite_windows(config: Fields) -> Architecture:
    """Granite with windows: sinks in every layer, one full layer in four."""
    base = llama(config)
    pattern = base.mixer_pattern or "fwww"
    return replace(base, sinks=True, window=config.whole("sliding_window", default=128), mixer_pattern=pattern)


def dense_latent(config: Fields) -> Architecture:
    """MiniCPM3 and Youtu: latent attention before a dense part."""
    base = llama(config)
    rope = config.whole("qk_rope_head_dim", least=1)
    return replace(
        base,
        kv_heads=base.heads,
        head_dim=config.whole("qk_nope_head_dim", least=1) + rope,
        value_dim=config.whole("v_head_dim", default=base.hidden // base.heads, least=1),
        q_rank=config.whole("q_lora_rank", default=0),
        kv_rank=config.whole("kv_lora_rank", least=1),
        rope_dim=rope,
    )
