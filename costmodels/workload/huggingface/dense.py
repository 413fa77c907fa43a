"""Hugging Face configurations of dense models, one function per family of ``model_type``."""

from collections.abc import Mapping
from dataclasses import replace

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from hardware.errors import InputError


def llama(config: Fields) -> Architecture:
    """Llama, Mistral and those that differ by nothing that costs: also the base of several others."""
    heads = config.whole("num_attention_heads", least=1)
    attention_bias = config.flag("attention_bias", default=False)
    layers = config.whole("num_hidden_layers", least=1)
    window, pattern = config.whole("sliding_window", default=0), ""
    if config.has("layer_types"):
        window, pattern = window_of_types(config, layers)
    return Architecture(
        family=config.text("model_type"),
        layers=layers,
        hidden=config.whole("hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", default=heads, least=1),
        head_dim=config.whole("head_dim", default=0),
        ffn=config.whole("intermediate_size", least=1),
        ffn_bias=config.flag("mlp_bias", default=False),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        window=window,
        mixer_pattern=pattern,
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.whole("max_position_embeddings", default=0),
    )


def qwen2_window(config: Fields) -> tuple[int, str]:
    """Window and mixer pattern where ``use_sliding_window`` and ``max_window_layers`` decide (Qwen)."""
    layers = config.whole("num_hidden_layers", least=1)
    if config.has("layer_types"):
        return window_of_types(config, layers)
    window = config.whole("sliding_window", default=0)
    if not window or not config.flag("use_sliding_window", default=False):
        return 0, ""
    full = min(layers, config.whole("max_window_layers", default=layers))
    return window, "f" * full + "w" * (layers - full)


def layer_letters(config: Fields, name: str, letters: Mapping[str, str], layers: int) -> str:
    """Return the letters of a list that names every layer; empty where there is no list.

    Parameters
    ----------
    config : Fields
        The configuration.
    name : str
        The list.
    letters : mapping of str to str
        Letter of each name.
    layers : int
        Entries that the list must have.

    Raises
    ------
    InputError
        Another entry, or another number of them.
    """
    pattern = letters_of(config, name, letters)
    _check_entries(config, name, len(pattern), layers)
    return pattern


def letters_of(config: Fields, name: str, letters: Mapping[str, str]) -> str:
    """Return the letters of a list of names, however many.

    Parameters
    ----------
    config, name, letters
        As of :func:`layer_letters`.

    Raises
    ------
    InputError
        A name that has no letter.
    """
    names = config.texts(name)
    for item in names:
        if item not in letters:
            raise config.wrong(name, item, ", ".join(letters))
    return "".join(letters[item] for item in names)


def _check_entries(config: Fields, name: str, entries: int, layers: int) -> None:
    """Refuse a list that is there and has not one entry for each layer."""
    if config.has(name) and entries != layers:
        raise config.wrong(name, f"{entries} entries", f"num_hidden_layers = {layers} entries")


def numbered_layers(config: Fields, name: str, letters: str, layers: int) -> str:
    """Return the letters of a list of zeros and ones, one for each layer; empty without it.

    Parameters
    ----------
    config, name
        As of :func:`layer_letters`.
    letters : str
        Letter of 0 and letter of 1.
    layers : int
        Entries that the list must have.
    """
    numbers = config.wholes(name)
    if set(numbers) - {0, 1}:
        raise config.wrong(name, next(number for number in numbers if number not in (0, 1)), "0, 1")
    if numbers:
        _check_entries(config, name, len(numbers), layers)
    return "".join(letters[number] for number in numbers)


def window_of_types(config: Fields, layers: int) -> tuple[int, str]:
    """Window and mixer pattern from ``layer_types``."""
    letters = {"full_attention": "f", "sliding_attention": "w", "chunked_attention": "w", "linear_attention": "l"}
    pattern = layer_letters(config, "layer_types", letters, layers)
    window = config.whole("sliding_window", "attention_chunk_size", default=0) if "w" in pattern else 0
    return window, pattern


def qwen2(config: Fields) -> Architecture:
    """Qwen2, Qwen2.5 and MiMo: biases on queries, keys and values only."""
    window, pattern = qwen2_window(config)
    return replace(
        llama(config),
        qkv_bias=True,
        out_bias=False,
        window=window,
        mixer_pattern=pattern,
        mtp_layers=config.whole("num_nextn_predict_layers", default=0),
    )


def qwen3(config: Fields) -> Architecture:
    """Qwen3: query and key norms."""
    window, pattern = qwen2_window(config)
    base = llama(config)
    head_dim = config.whole("head_dim", default=128, least=1)
    return replace(base, head_dim=head_dim, qk_norm=True, window=window, mixer_pattern=pattern)


def gemma(config: Fields) -> Architecture:
    """Gemma: gated GELU, wide heads, tied embeddings."""
    base = llama(config)
    return replace(
        base,
        head_dim=config.whole("head_dim", default=256, least=1),
        tied=config.flag("tie_word_embeddings", default=True),
        window=0,
    )


def gemma2(config: Fields) -> Architecture:
    """Gemma 2: norms after both parts, every other layer windowed."""
    window = config.whole("sliding_window", default=4096)
    pattern = window_of_types(config, config.whole("num_hidden_layers", least=1))[1] or "wf"
    return replace(gemma(config), norms_per_layer=4, window=window, mixer_pattern=pattern)


def gemma3(config: Fields) -> Architecture:
    """Gemma 3: as Gemma 2 with query and key norms, and one full layer in ``sliding_window_pattern``."""
    window = config.whole("sliding_window", default=4096)
    every = config.whole("sliding_window_pattern", default=6, least=1)
    pattern = window_of_types(config, config.whole("num_hidden_layers", least=1))[1] or "w" * (every - 1) + "f"
    return replace(gemma(config), norms_per_layer=4, qk_norm=True, window=window, mixer_pattern=pattern)


def exaone4(config: Fields) -> Architecture:
    """EXAONE 4: norms after both parts instead of before, query and key norms, one full layer in a stated pattern.

    ``sliding_window_pattern`` is the period of full layers or letters (``L`` windowed, ``G`` full); the last layer is
    full. Without ``sliding_window`` all layers are.
    """
    layers = config.whole("num_hidden_layers", least=1)
    window, pattern = window_of_types(config, layers)
    if not pattern:
        window, pattern = _exaone_window(config, layers)
    return replace(llama(config), qk_norm=True, window=window, mixer_pattern=pattern)


def _exaone_window(config: Fields, layers: int) -> tuple[int, str]:
    window = config.whole("sliding_window", default=0)
    if not window:
        return 0, ""
    stated = config.values.get("sliding_window_pattern")
    if isinstance(stated, str):
        letters = {"L": "w", "G": "f"}
        if not stated or set(stated) - set(letters):
            raise config.wrong("sliding_window_pattern", stated, "a whole number, or letters L and G")
        period = "".join(letters[letter] for letter in stated)
    else:
        every = config.whole("sliding_window_pattern", default=4, least=1)
        period = "w" * (every - 1) + "f"
    repeated = period * (-(-layers // len(period)))
    return window, repeated[: layers - 1] + "f"


def phi3(config: Fields) -> Architecture:
    """Phi-3: as Llama, with merged projections."""
    return replace(llama(config), family="phi3")


def phi(config: Fields) -> Architecture:
    """Phi-1, 1.5 and 2: one LayerNorm feeds attention and feed-forward part, biases everywhere."""
    base = llama(config)
    qk_norm = config.flag("qk_layernorm", default=False)
    return replace(
        base,
        norm="layer",
        norms_per_layer=1,
        parallel=True,
        gated=False,
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
        head_bias=True,
        qk_norm=qk_norm,
        qk_norm_parameters=4 * base.width_of_head if qk_norm else 0,
        window=0,
    )


def nemotron(config: Fields) -> Architecture:
    """Nemotron-3 and -4: LayerNorm, squared ReLU."""
    return replace(llama(config), norm="layer", gated=False, window=0)


def gpt2(config: Fields) -> Architecture:
    """GPT-2: learned positions, biases everywhere, tied embeddings."""
    hidden = config.whole("n_embd", "hidden_size", least=1)
    positions = config.whole("n_positions", "n_ctx", "max_position_embeddings", least=1)
    return Architecture(
        family="gpt2",
        layers=config.whole("n_layer", "num_hidden_layers", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("n_head", "num_attention_heads", least=1),
        ffn=config.whole("n_inner", default=4 * hidden, least=1),
        tied=config.flag("tie_word_embeddings", default=True),
        learned_positions=positions,
        max_positions=positions,
        rotary=False,
        gated=False,
        norm="layer",
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
    )


def gpt_bigcode(config: Fields) -> Architecture:
    """StarCoder and SantaCoder: GPT-2 with one key-value head unless ``multi_query`` is false."""
    return replace(gpt2(config), family="gpt_bigcode", kv_heads=1 if config.flag("multi_query", default=True) else 0)


def gpt_neox(config: Fields) -> Architecture:
    """GPT-NeoX and Pythia: two LayerNorms on one residual, biases everywhere."""
    base = llama(config)
    bias = config.flag("attention_bias", default=True)
    return replace(
        base,
        norm="layer",
        parallel=config.flag("use_parallel_residual", default=True),
        gated=False,
        ffn_bias=True,
        qkv_bias=bias,
        out_bias=bias,
    )


def falcon(config: Fields) -> Architecture:
    """Falcon: 7B has one key-value head and one norm per block; the newer decoder has groups and two norms."""
    heads = config.whole("num_attention_heads", "n_head", least=1)
    hidden = config.whole("hidden_size", least=1)
    newer = config.flag("new_decoder_architecture", default=False)
    parallel = newer or config.flag("parallel_attn", default=True)
    shared = parallel and config.whole("num_ln_in_parallel_attn", default=2 if newer else 1, least=1) == 1
    bias = config.flag("bias", default=False)
    kv_heads = config.whole("num_kv_heads", "n_head_kv", default=heads, least=1)
    if not newer:
        kv_heads = 1 if config.flag("multi_query", default=True) else heads
    return Architecture(
        family="falcon",
        layers=config.whole("num_hidden_layers", "n_layer", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=heads,
        kv_heads=kv_heads,
        ffn=config.whole("ffn_hidden_size", default=4 * hidden, least=1),
        gated=False,
        ffn_bias=bias,
        qkv_bias=bias,
        out_bias=bias,
        norm="layer",
        parallel=parallel,
        norms_per_layer=1 if shared else 0,
        rotary=not config.flag("alibi", default=False),
        tied=config.flag("tie_word_embeddings", default=True),
        max_positions=config.whole("max_position_embeddings", default=0),
    )


def bloom(config: Fields) -> Architecture:
    """BLOOM: ALiBi, a norm on the embedding, biases everywhere, tied embeddings."""
    hidden = config.whole("hidden_size", "n_embed", least=1)
    return Architecture(
        family="bloom",
        layers=config.whole("n_layer", "num_hidden_layers", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("n_head", "num_attention_heads", least=1),
        ffn=4 * hidden,
        embedding_norm=True,
        rotary=False,
        tied=config.flag("tie_word_embeddings", default=True),
        max_positions=config.whole("seq_length", default=0),
        gated=False,
        norm="layer",
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
    )


def opt(config: Fields) -> Architecture:
    """OPT: learned positions with two extra rows, ReLU, biases everywhere, tied embeddings."""
    hidden = config.whole("hidden_size", least=1)
    narrow = config.whole("word_embed_proj_dim", default=hidden)
    if narrow != hidden:
        raise InputError(
            f"{narrow} differs from hidden_size {hidden}: projected embeddings are not modelled",
            allowed=f"{hidden}",
            where=f"{config.where}: word_embed_proj_dim",
        )
    positions = config.whole("max_position_embeddings", least=1)
    bias = config.flag("enable_bias", default=True)
    first = config.flag("do_layer_norm_before", default=True)
    return Architecture(
        family="opt",
        layers=config.whole("num_hidden_layers", least=1),
        hidden=hidden,
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("num_attention_heads", least=1),
        ffn=config.whole("ffn_dim", least=1),
        gated=False,
        norm="layer" if config.flag("layer_norm_elementwise_affine", default=True) else "bare",
        ffn_bias=bias,
        qkv_bias=bias,
        out_bias=bias,
        tied=config.flag("tie_word_embeddings", default=True),
        learned_positions=positions + 2,
        max_positions=positions,
        rotary=False,
        final_norm=first and not config.flag("_remove_final_layer_norm", default=False),
    )
