"""Hugging Face configurations of models whose layers differ in mixer, heads or keys, one function per family."""

from collections.abc import Mapping
from dataclasses import replace

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import layer_letters, llama, qwen3, window_of_types
from costmodels.workload.huggingface.moe import hunyuan_moe, qwen3_moe

_NAS_MULTIPLE = 256
_BORROWING = str.maketrans("fw", "bv")


def gemma4(config: Fields) -> Architecture:
    """Gemma 4: heads of two widths, last layers that borrow keys, layers' own embeddings, experts beside a dense part.

    The router's scales (one for each dimension and one for each expert) are counted as a norm and as a bias.
    """
    layers = config.whole("num_hidden_layers", least=1)
    window, pattern = window_of_types(config, layers)
    if not pattern:  # five windowed layers before each full one, and a full last one
        window, pattern = config.whole("sliding_window", default=512), ("wwwwwf" * layers)[: layers - 1] + "f"
    mixers = borrowed_from(config, pattern)
    if mixers != pattern and config.flag("use_double_wide_mlp", default=False):
        raise config.wrong("use_double_wide_mlp", True, "false: feed-forward parts of two widths are not modelled")
    same = config.flag("attention_k_eq_v", default=False)
    experts = config.flag("enable_moe_block", default=False)
    base = llama(config)
    full = config.whole("num_global_key_value_heads", default=base.kv_heads, least=1) if same else base.kv_heads
    return replace(
        base,
        tied=config.flag("tie_word_embeddings", default=True),
        head_dim=config.whole("head_dim", default=256, least=1),
        norms_per_layer=8 if experts else 4,
        qk_norm=True,
        window=window,
        mixer_pattern=mixers,
        full_heads=full,
        full_head_dim=config.whole("global_head_dim", default=512),
        full_shared_kv=same,
        side_width=config.whole("hidden_size_per_layer_input", default=256),
        side_vocab=own_vocabulary(config, base.vocab),
        experts=config.whole("num_experts", least=1) if experts else 0,
        top_k=config.whole("top_k_experts", least=1) if experts else 0,
        expert_ffn=config.whole("moe_intermediate_size", least=1) if experts else 0,
        shared_ffn=base.ffn if experts else 0,
        router_bias=experts,
    )


def own_vocabulary(config: Fields, vocab: int) -> int:
    """Rows of the layers' own embeddings where they are not as many as the vocabulary, else 0."""
    rows = config.whole("vocab_size_per_layer_input", default=0)
    return 0 if rows == vocab else rows


def borrowed_from(config: Fields, pattern: str) -> str:
    """Letters of layers whose last ``num_kv_shared_layers`` have the keys and values of earlier ones."""
    own = len(pattern) - config.whole("num_kv_shared_layers", default=0, most=len(pattern))
    return pattern[:own] + pattern[own:].translate(_BORROWING)


def _with_mamba(config: Fields, base: Architecture, letters: str) -> Architecture:
    """A block of a Mamba-2 mixer or attention before a feed-forward part (Bamba, Granite 4)."""
    heads = config.whole("mamba_n_heads", default=128, least=1)
    inner = config.whole("mamba_expand", default=2, least=1) * base.hidden
    auto = config.values.get("mamba_d_head", "auto") == "auto"
    return replace(
        base,
        mixer_pattern=letters,
        window=0,
        mamba_heads=heads,
        mamba_head_dim=inner // heads if auto else config.whole("mamba_d_head", least=1),
        mamba_state=config.whole("mamba_d_state", default=256, least=1),
        mamba_groups=config.whole("mamba_n_groups", default=1, least=1),
        conv_width=config.whole("mamba_d_conv", default=4, least=1),
        mamba_conv_bias=config.flag("mamba_conv_bias", default=True),
        mamba_bias=config.flag("mamba_proj_bias", default=False),
    )


def granite_hybrid(config: Fields) -> Architecture:
    """Granite 4: Mamba-2 or attention before experts with a shared one, or before the shared one alone."""
    letters = {"mamba": "M", "linear_attention": "M", "attention": "f", "full_attention": "f"}
    base = llama(config.changed(layer_types=None))
    name = "layer_types" if config.has("layer_types") else "layers_block_type"
    pattern = layer_letters(config, name, letters, base.layers) or "M" * base.layers
    experts, shared = config.whole("num_local_experts", default=8), config.whole("shared_intermediate_size", least=1)
    hybrid = _with_mamba(config, base, pattern)
    rotary = config.text("position_embedding_type", default="") == "rope"
    if not experts:
        return replace(hybrid, ffn=shared, rotary=rotary)
    top_k = config.whole("num_experts_per_tok", default=2, least=1)
    return replace(hybrid, rotary=rotary, experts=experts, top_k=top_k, shared_ffn=shared)


def bamba(config: Fields) -> Architecture:
    """Bamba: Mamba-2 before a dense part, attention in the layers of ``attn_layer_indices``."""
    base = llama(config)
    full = config.wholes("attn_layer_indices")
    wrong = [index for index in full if not 0 <= index < base.layers]
    if wrong:
        raise config.wrong("attn_layer_indices", wrong[0], f"0 to {base.layers - 1}")
    return _with_mamba(config, base, "".join("f" if index in full else "M" for index in range(base.layers)))


def with_delta(config: Fields, base: Architecture) -> Architecture:
    """Gated delta rule in most layers, gated full attention in the others (Qwen3-Next, Qwen3.5)."""
    every = config.whole("full_attention_interval", default=4, least=1)
    pattern = window_of_types(config, base.layers)[1] or "l" * (every - 1) + "f"
    return replace(
        base,
        window=0,
        mixer_pattern=pattern,
        output_gate=True,
        linear_key_heads=config.whole("linear_num_key_heads", least=1),
        linear_value_heads=config.whole("linear_num_value_heads", least=1),
        linear_key_dim=config.whole("linear_key_head_dim", least=1),
        linear_value_dim=config.whole("linear_value_head_dim", least=1),
        conv_width=config.whole("linear_conv_kernel_dim", default=4, least=1),
        mtp_layers=config.whole("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0),
    )


def qwen3_next(config: Fields) -> Architecture:
    """Qwen3-Next and the mixtures of Qwen3.5: experts and a shared one behind a gate in every block."""
    shared = config.whole("shared_expert_intermediate_size", default=0)
    if not config.has("intermediate_size"):  # no block of Qwen3.5's mixtures is dense
        config = config.changed(intermediate_size=max(shared, 1))
    return replace(with_delta(config, qwen3_moe(config)), shared_ffn=shared, shared_gate=shared > 0)


def qwen35(config: Fields) -> Architecture:
    """Qwen3.5 with dense feed-forward parts."""
    return with_delta(config, qwen3(config))


def _tables(config: Fields, name: str) -> list[Fields]:
    """A list of tables."""
    told = config.values.get(name)
    if not isinstance(told, list | tuple) or not all(isinstance(entry, Mapping) for entry in told):
        raise config.wrong(name, told, "a list of tables")
    return [Fields(entry, f"{config.where}: {name}[{number}]") for number, entry in enumerate(told)]


def nemotron_nas(config: Fields) -> Architecture:
    """Llama-Nemotron by architecture search: layers with fewer keys, other widths, or without one of their parts.

    Layers that have neither part do nothing and are left out.
    """
    heads, hidden = config.whole("num_attention_heads", least=1), config.whole("hidden_size", least=1)
    blocks = tuple(block for block in searched_blocks(config) if any(block))
    if not blocks:
        raise config.wrong("block_configs", "no block with a part", "attention or a feed-forward part in some layer")
    whole = {"intermediate_size": hidden, "num_key_value_heads": heads, "num_hidden_layers": len(blocks)}
    return replace(llama(config.changed(**whole)), window=0, blocks=blocks)


def searched_blocks(config: Fields) -> tuple[tuple[int, int], ...]:
    """Key-value heads and feed-forward width of every entry of ``block_configs``; 0: without that part.

    Parameters
    ----------
    config : Fields
        With ``hidden_size`` and ``num_attention_heads``; Hugging Face's words of a part (``n_heads_in_group``,
        ``ffn_mult``) or Megatron-core's (``num_query_groups``, ``ffn_hidden_size``), which win.

    Raises
    ------
    InputError
        A part is one product, its heads are no groups of equal size, or a number is missing.

    References
    ----------
    Megatron-core ``transformer/heterogeneous/heterogeneous_config.py``: widths are two thirds of a multiple of the
    model's width, rounded up to 256.
    """
    heads, hidden = config.whole("num_attention_heads", least=1), config.whole("hidden_size", least=1)
    blocks: list[tuple[int, int]] = []
    for block in _tables(config, "block_configs"):
        attention, ffn = block.table("attention"), block.table("ffn" if block.has("ffn") else "mlp")
        for part in (attention, ffn):
            if part.flag("replace_with_linear", default=False):
                raise part.wrong("replace_with_linear", True, "false: a part that is one product is not modelled")
        groups = 0 if attention.flag("no_op", default=False) else _key_heads(attention, heads)
        blocks.append((groups, 0 if ffn.flag("no_op", default=False) else _width(ffn, hidden)))
    return tuple(blocks)


def _key_heads(attention: Fields, heads: int) -> int:
    """Key-value heads of a layer's attention."""
    name = "num_query_groups" if attention.has("num_query_groups") else "n_heads_in_group"
    group = attention.whole(name, least=1)
    if heads % group:
        raise attention.wrong(name, group, f"a divisor of {heads} heads")
    return group if name == "num_query_groups" else heads // group


def _width(ffn: Fields, hidden: int) -> int:
    """Width of a layer's feed-forward part."""
    if ffn.has("ffn_hidden_size"):
        return ffn.whole("ffn_hidden_size", least=1)
    return -(-int(2 * ffn.number("ffn_mult") * hidden / 3) // _NAS_MULTIPLE) * _NAS_MULTIPLE


def hunyuan_large(config: Fields) -> Architecture:
    """Hunyuan-Large: every ``cla_share_factor``-th layer has keys and values, the others borrow them."""
    base = hunyuan_moe(config)
    if not config.flag("use_cla", default=False):
        return base
    period = "f" + "b" * (config.whole("cla_share_factor", default=2, least=1) - 1)
    return replace(base, mixer_pattern=period)


def arctic(config: Fields) -> Architecture:
    """Snowflake Arctic: experts beside a dense part as wide as the model, both behind norms of their own."""
    base = llama(config)
    every = config.whole("moe_layer_frequency", default=1, least=1)
    beside = config.flag("parallel_attn_mlp_res", default=True)
    return replace(
        base,
        norms_per_layer=3 if beside else 2,
        window=0,
        ffn_pattern="d" * (every - 1) + "e",
        experts=config.whole("num_local_experts", least=1),
        top_k=config.whole("num_experts_per_tok", default=2, least=1),
        shared_ffn=base.hidden if beside else 0,
    )
