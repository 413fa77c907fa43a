"""Hugging Face configurations of later decoders whose layers differ in heads, windows or experts, one function each."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.dense import layer_letters, llama, window_of_types
from costmodels.workload.huggingface.hybrids import borrowed_from, gemma4, with_delta
from costmodels.workload.huggingface.moe import FFN_WORDS, olmoe, qwen3_moe, routed_and_shared
from costmodels.workload.huggingface.variants import cohere2

_LFM_WORDS: Final = MappingProxyType({"full_attention": "f", "sliding_attention": "w", "conv": "C"})
_FIRST_DENSE: Final = 3  # Step-3.5: layers before the first with experts, where nothing says so


def afmoe(config: Fields) -> Architecture:
    """Trinity: gated attention, norms before and after both parts, leading dense layers, shared experts."""
    _without(config, "attention_bias", "a bias on some projections of attention alone")
    base = routed_and_shared(config.changed(layer_types=None), first_dense=config.whole("num_dense_layers", default=1))
    every = config.whole("global_attn_every_n_layers", default=4, least=1)
    window, pattern = window_of_types(config, base.layers)
    return replace(
        base,
        head_dim=config.whole("head_dim", default=128, least=1),
        norms_per_layer=4,
        qk_norm=True,
        output_gate=True,
        window=window or config.whole("sliding_window", default=1024),
        mixer_pattern=pattern or "w" * (every - 1) + "f",
    )


def _without(config: Fields, name: str, what: str) -> None:
    """Refuse a flag whose parameters have no form."""
    if config.flag(name, default=False):
        raise config.wrong(name, True, f"false: {what}: not modelled")


def _experts_as_listed(config: Fields) -> Architecture:
    """Query and key norms, windows and experts in the layers that lists name."""
    layers = config.whole("num_hidden_layers", least=1)
    window, pattern = window_of_types(config, layers)
    base = routed_and_shared(config.changed(layer_types=None))
    head_dim = config.whole("head_dim", default=128, least=1)
    return replace(base, head_dim=head_dim, qk_norm=True, window=window, mixer_pattern=pattern)


def mellum(config: Fields) -> Architecture:
    """Mellum 2: windows and experts in the layers that lists name."""
    return _experts_as_listed(config)


def laguna(config: Fields) -> Architecture:
    """Laguna: a gate for every head, other heads in windowed layers, a dense layer before experts with a shared one."""
    first = {} if config.has("mlp_layer_types") else {"first_k_dense_replace": 1}
    base = _experts_as_listed(config.changed(**first))
    gating = config.values.get("gating", True)
    heads, windowed = _heads_by_kind(config, base)
    return replace(
        base,
        heads=heads,
        window_heads=windowed,
        head_gate=gating in (True, "per-head"),
        output_gate=gating not in (True, "per-head"),  # whatever else it says
        shared_ffn=config.whole("shared_expert_intermediate_size", default=0),
    )


def kolibri(config: Fields) -> Architecture:
    """Kolibri 1: norms before and after both parts, experts with a shared one in every layer."""
    shared = config.whole("shared_expert_intermediate_size", default=0)
    return replace(_with_windows(config, _experts_as_listed(config), "wwwwf"), norms_per_layer=4, shared_ffn=shared)


def _with_windows(config: Fields, base: Architecture, usual: str) -> Architecture:
    """Windows in the layers that a list names, or in the usual ones without it."""
    window, pattern = window_of_types(config, base.layers)
    usual = (usual * base.layers)[: base.layers]
    if not pattern and "w" in usual:
        window = config.whole("sliding_window", least=1)
    return replace(base, window=window, mixer_pattern=pattern or usual)


def flint(config: Fields) -> Architecture:
    """Flint: as Qwen3 with experts, a shared one, sinks in every layer and windows in some."""
    dense = config.values.get("mlp_only_layers")
    base = qwen3_moe(config.changed(layer_types=None, mlp_only_layers=[0, 1] if dense is None else dense))
    full = (index < 2 or index % 4 == 1 or index == base.layers - 1 for index in range(base.layers))
    shared = config.whole("shared_expert_intermediate_size", default=0)
    usual = "".join("f" if there else "w" for there in full)
    return replace(_with_windows(config, base, usual), sinks=True, shared_ffn=shared)


def lara(config: Fields) -> Architecture:
    """Lara Mini: a gated delta rule, windows or full attention, each before experts with a shared one."""
    plain = config.changed(layer_types=None, intermediate_size=config.values.get("moe_intermediate_size"))
    base = _with_windows(config, with_delta(plain, qwen3_moe(plain)), "lwlfw")
    return replace(base, output_gate=False, shared_ffn=config.whole("shared_expert_intermediate_size", default=0))


def _heads_by_kind(config: Fields, base: Architecture) -> tuple[int, int]:
    """Heads of full and of windowed layers, of a list with those of every layer."""
    name = "num_attention_heads_per_layer"
    told = config.wholes(name)
    if not told:
        return base.heads, 0
    if len(told) != base.layers:
        raise config.wrong(name, f"{len(told)} entries", f"num_hidden_layers = {base.layers} entries")
    pattern = base.mixer_pattern or "f" * base.layers
    kinds = {letter: {count for count, other in zip(told, pattern, strict=True) if other == letter} for letter in "fw"}
    if any(len(counts) > 1 for counts in kinds.values()):
        raise config.wrong(name, list(told), "one number of heads for full layers, and one for windowed ones")
    full, windowed = (next(iter(kinds[letter]), 0) for letter in "fw")
    return (full or windowed), (windowed if full and windowed != full else 0)


def cohere2_moe(config: Fields) -> Architecture:
    """Command A+ with experts: as Command A, with experts and shared ones in the place of the dense part."""
    base = cohere2(config)
    shared = config.whole("num_shared_experts", default=0)
    ffns = layer_letters(config, "mlp_layer_types", FFN_WORDS, base.layers)
    dense = 0 if ffns else config.whole("first_k_dense_replace", default=0, most=base.layers)
    pattern = base.mixer_pattern
    if dense and not config.has("layer_types"):  # leading dense layers have a period of their own
        every = config.whole("prefix_dense_sliding_window_pattern", default=1, least=1)
        leading = ("w" * (every - 1) + "f") * dense
        pattern = leading[:dense] + (pattern * base.layers)[: base.layers - dense]
    return replace(
        base,
        ffn=config.whole("prefix_dense_intermediate_size", default=base.ffn, least=1),
        mixer_pattern=pattern,
        ffn_pattern=ffns,
        first_dense=dense,
        experts=config.whole("num_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=base.ffn,
        shared_ffn=shared * base.ffn,
    )


def flex_olmo(config: Fields) -> Architecture:
    """FlexOlmo: as OLMoE, with norms after both parts instead of before."""
    return olmoe(config)


def aria(config: Fields) -> Architecture:
    """Aria: experts as wide as ``intermediate_size``, and shared ones."""
    _without(config, "mlp_bias", "biases of shared experts alone")
    base = llama(config)
    return replace(
        base,
        experts=config.whole("moe_num_experts", least=1),
        top_k=config.whole("moe_topk", least=1),
        shared_ffn=base.ffn * config.whole("moe_num_shared_experts", default=0),
    )


def vaultgemma(config: Fields) -> Architecture:
    """VaultGemma: as Gemma 2 without norms after the parts."""
    base = llama(config)
    window, pattern = window_of_types(config, base.layers)
    return replace(
        base,
        head_dim=config.whole("head_dim", default=256, least=1),
        tied=config.flag("tie_word_embeddings", default=True),
        window=window or config.whole("sliding_window", default=4096),
        mixer_pattern=pattern or "wf",
    )


def gemma3n(config: Fields) -> Architecture:
    """Gemma 3n: alternating updates of four streams, a low-rank product beside attention, embeddings of every layer.

    The last ``num_kv_shared_layers`` layers borrow keys and values, as in Gemma 4. That some activations are sparse
    changes no product.
    """
    layers = config.whole("num_hidden_layers", least=1)
    window, pattern = window_of_types(config, layers)
    if not pattern:
        window, pattern = config.whole("sliding_window", default=512), ("wwwwf" * layers)[:layers]
    return replace(
        gemma4(config.changed(intermediate_size=_one_width(config), attention_k_eq_v=False, enable_moe_block=False)),
        full_head_dim=0,
        window=window,
        mixer_pattern=borrowed_from(config, pattern),
        streams=config.whole("altup_num_inputs", default=4, least=2),
        alternating=True,
        low_rank=config.whole("laurel_rank", default=64, least=1),
    )


def _one_width(config: Fields) -> int:
    """Feed-forward width, of a list that repeats one for every layer."""
    if not isinstance(config.values.get("intermediate_size"), list | tuple):
        return config.whole("intermediate_size", least=1)
    widths = config.wholes("intermediate_size")
    if len(set(widths)) != 1:
        raise config.wrong("intermediate_size", list(widths), "one value for all layers")
    return widths[0]


def gemma4_unified(config: Fields) -> Architecture:
    """Gemma 4 with towers of its own: as Gemma 4; ``per_layer_config`` says how full layers' heads differ."""
    told = config.values.get("per_layer_config")
    widths = {name: _of_layers(config, name) for name in ("head_dim", "num_key_value_heads")} if told else {}
    other = {"global_head_dim": widths.get("head_dim"), "num_global_key_value_heads": widths.get("num_key_value_heads")}
    stated = {name: value for name, value in other.items() if value}
    return gemma4(config.changed(hidden_size_per_layer_input=0, **stated))


def _of_layers(config: Fields, name: str) -> int:
    """The one value that entries of ``per_layer_config`` state; 0 where none does."""
    table = config.table("per_layer_config")
    found = {entry.whole(name, least=1) for key in table.values if (entry := table.table(key)).has(name)}
    if len(found) > 1:
        raise config.wrong("per_layer_config", f"{len(found)} values of {name}", "one for all full layers")
    return next(iter(found), 0)


def step35(config: Fields) -> Architecture:
    """Step-3.5 and 3.7: a gate for every head, other heads in windowed layers, experts with a shared one.

    Lists may hold entries of the prediction layers behind those of the layers. The release names windowed layers' heads
    in ``attention_other_setting`` and layers with experts in ``moe_layers_enum``.
    """
    layers = config.whole("num_hidden_layers", least=1)
    lists = {name: config.values.get(name) for name in ("layer_types", "mlp_layer_types") if config.has(name)}
    cut = {name: told[:layers] if isinstance(told, list | tuple) else told for name, told in lists.items()}
    plain = config.changed(
        **{"n_routed_experts": config.whole("n_routed_experts", "moe_num_experts", default=288, least=1), **cut},
        num_experts_per_tok=config.whole("num_experts_per_tok", "moe_top_k", default=8, least=1),
        num_key_value_heads=config.whole("num_attention_groups", "num_key_value_heads", least=1),
        n_shared_experts=0,
    )
    if not plain.has("mlp_layer_types"):
        plain = plain.changed(mlp_layer_types=_sparse_layers(config, layers))
    base = _experts_as_listed(plain)
    other = config.table("attention_other_setting") if config.has("attention_other_setting") else None
    if other is not None and other.whole("num_attention_groups", default=base.kv_heads) != base.kv_heads:
        raise other.wrong("num_attention_groups", other.values["num_attention_groups"], f"{base.kv_heads}")
    windowed = config.whole("num_sliding_attention_heads", default=0)
    windowed = windowed or (other.whole("num_attention_heads", least=1) if other is not None else 0)
    return replace(
        base,
        window_heads=0 if windowed == base.heads else windowed,
        head_gate=config.flag("use_head_wise_attn_gate", default=True),
        shared_ffn=config.whole("share_expert_dim", "share_expert_dims", default=0),
        mtp_ffn="d",
    )


def _sparse_layers(config: Fields, layers: int) -> list[str]:
    """Feed-forward parts of the layers, as ``moe_layers_enum`` says or from the fourth on."""
    listed = config.values.get("moe_layers_enum")
    if isinstance(listed, str):
        listed = [int(word) if word.strip().isdigit() else word for word in listed.split(",")]
    named = Fields({"moe_layers_enum": listed}, config.where).wholes("moe_layers_enum")
    sparse = set(named) if named else set(range(_FIRST_DENSE, layers))
    return ["sparse" if index in sparse else "dense" for index in range(layers)]


def lfm2(config: Fields) -> Architecture:
    """LFM2: short convolutions, and attention with query and key norms in the layers that are listed.

    The feed-forward width is two thirds of what is stated, times a factor, rounded up, unless it says not to be.
    """
    bias = config.flag("conv_bias", default=False)
    base = llama(config.changed(layer_types=None, intermediate_size=_lfm_width(config)))
    return replace(
        base,
        qk_norm=True,
        window=0,
        conv_width=config.whole("conv_L_cache", default=3, least=1),
        mamba_conv_bias=bias,
        mixer_pattern=_lfm_pattern(config, base.layers),
        tied=config.flag("tie_word_embeddings", "tie_embedding", default=True),
    )


def _lfm_width(config: Fields) -> int:
    width = config.whole("intermediate_size", "block_ff_dim", least=1)
    if not config.flag("block_auto_adjust_ff_dim", default=False):
        return width
    multiple = config.whole("block_multiple_of", default=256, least=1)
    part = int(config.number("block_ffn_dim_multiplier", default=1.0) * (2 * width // 3))
    return -(-part // multiple) * multiple


def _lfm_pattern(config: Fields, layers: int) -> str:
    """Letters of ``layer_types``, or of the numbers of layers with attention; all of them without either."""
    pattern = layer_letters(config, "layer_types", _LFM_WORDS, layers)
    if pattern or not config.has("full_attn_idxs"):
        return pattern or "f" * layers
    full = config.wholes("full_attn_idxs")
    if wrong := [index for index in full if not 0 <= index < layers]:
        raise config.wrong("full_attn_idxs", wrong[0], f"0 to {layers - 1}")
    return "".join("f" if index in full else "C" for index in range(layers))


def lfm3(config: Fields) -> Architecture:
    """LFM3: as LFM2 with norms after both parts, a gate for every head, and windows in some layers."""
    base = lfm2(config.changed(block_auto_adjust_ff_dim=False))
    if not config.has("layer_types"):
        usual = ("f" if index % 4 == 2 else "w" if index and not index % 4 else "C" for index in range(base.layers))
        base = replace(base, mixer_pattern="".join(usual))
    return replace(
        base,
        norms_per_layer=4 if config.flag("use_sandwich_norm", default=True) else 0,
        head_gate=config.flag("use_attention_gate", default=True),
        window=config.whole("sliding_window", default=256) if "w" in base.mixer_pattern else 0,
    )


def lfm2_moe(config: Fields) -> Architecture:
    """LFM2 with experts behind the first ``num_dense_layers`` layers."""
    base = lfm2(config)
    return replace(
        base,
        first_dense=config.whole("num_dense_layers", default=2),
        experts=config.whole("num_experts", least=1),
        top_k=config.whole("num_experts_per_tok", least=1),
        expert_ffn=config.whole("moe_intermediate_size", least=1),
    )
