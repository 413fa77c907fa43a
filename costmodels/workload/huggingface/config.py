"""A Hugging Face ``config.json`` as a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import MAX_LAYERS, Architecture
from costmodels.workload.details import details_of_config
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface import (
    compressed,
    dense,
    experts,
    gpts,
    hybrids,
    moe,
    newer,
    scans,
    stacks,
    variants,
)
from costmodels.workload.huggingface.vision import tower_of
from costmodels.workload.model import LayerKind, ModelSpec, Tower
from hardware.errors import InputError
from hardware.package_table import package_table
from hardware.text_file import read_json_file

FAMILIES: Final[Mapping[str, Callable[[Fields], Architecture]]] = MappingProxyType(
    {
        "afmoe": newer.afmoe,
        "apertus": variants.apertus,
        "apertus1p5_text": variants.apertus,
        "arcee": variants.arcee,
        "arctic": hybrids.arctic,
        "aria_text": newer.aria,
        "baichuan": variants.baichuan,
        "bailing_hybrid": scans.bailing_hybrid,
        "bailing_moe": experts.bailing_moe,
        "bailing_moe_linear": scans.bailing_linear,
        "bailing_moe_v2": experts.bailing_moe,
        "bamba": hybrids.bamba,
        "bart": stacks.bart,
        "biogpt": gpts.biogpt,
        "bloom": dense.bloom,
        "chatglm": variants.chatglm,
        "codegen": gpts.codegen,
        "cohere": variants.cohere,
        "cohere2": variants.cohere2,
        "cohere2_moe": newer.cohere2_moe,
        "cwm": variants.code_world,
        "dbrx": moe.dbrx,
        "deepseek_v2": moe.deepseek,
        "deepseek_v3": moe.deepseek,
        "deepseek_v32": moe.sparse_deepseek,
        "deepseek_v4": compressed.deepseek4,
        "dots1": moe.dots1,
        "ernie4_5": variants.tied_llama,
        "ernie4_5_moe": moe.ernie45_moe,
        "exaone": dense.llama,
        "exaone4": dense.exaone4,
        "exaone_moe": experts.exaone_moe,
        "falcon": dense.falcon,
        "falcon_h1": scans.falcon_h1,
        "falcon_mamba": scans.mamba,
        "flex_olmo": newer.flex_olmo,
        "flint": newer.flint,
        "gemma": dense.gemma,
        "gemma2": dense.gemma2,
        "gemma3_text": dense.gemma3,
        "gemma3n_text": newer.gemma3n,
        "gemma4_text": hybrids.gemma4,
        "gemma4_unified_text": newer.gemma4_unified,
        "glm": variants.glm,
        "glm4": variants.glm4,
        "glm4_moe": moe.glm4_moe,
        "glm4_moe_lite": moe.glm4_moe_lite,
        "glm4v_moe_text": moe.glm4_moe,
        "glm4v_text": variants.glm4v,
        "glm_moe_dsa": moe.sparse_deepseek,
        "gpt2": dense.gpt2,
        "gpt_bigcode": dense.gpt_bigcode,
        "gpt_neo": gpts.gpt_neo,
        "gpt_neox": dense.gpt_neox,
        "gpt_oss": moe.gpt_oss,
        "gptj": variants.gptj,
        "granite": dense.llama,
        "granite_swa": variants.granite_windows,
        "granitemoe": moe.granite_moe,
        "granitemoe_swa": experts.granite_moe_windows,
        "granitemoehybrid": hybrids.granite_hybrid,
        "granitemoeshared": moe.granite_moe,
        "grok-1": moe.grok1,
        "helium": variants.helium,
        "hunyuan": hybrids.hunyuan_large,
        "hunyuan_v1_dense": variants.hunyuan_dense,
        "hunyuan_v1_moe": moe.hunyuan_moe,
        "hy_v3": experts.hunyuan3,
        "hyperclovax": variants.hyperclovax,
        "internlm2": variants.internlm2,
        "internlm3": dense.llama,
        "iquestcoder": dense.llama,
        "jais2": gpts.jais2,
        "jamba": scans.jamba,
        "kimi_k2": moe.deepseek,
        "kimi_linear": scans.kimi_linear,
        "kolibri1": newer.kolibri,
        "laguna": newer.laguna,
        "lara_mini": newer.lara,
        "lfm2": newer.lfm2,
        "lfm2_moe": newer.lfm2_moe,
        "lfm3": newer.lfm3,
        "llama": dense.llama,
        "llama4_text": moe.llama4,
        "longcat_flash": experts.longcat,
        "longt5": stacks.longt5,
        "mamba": scans.mamba,
        "mamba2": moe.mamba2,
        "mbart": stacks.bart,
        "mellum": newer.mellum,
        "mimo": dense.qwen2,
        "mimo_v2_flash": experts.mimo_flash,
        "minicpm3": variants.dense_latent,
        "minimax": scans.minimax,
        "minimax_m1": scans.minimax,
        "minimax_m2": moe.minimax_m2,
        "minimax_m3": experts.minimax_m3,
        "minimax_m3_vl_text": experts.minimax_m3,
        "minimax_text_01": scans.minimax,
        "ministral": dense.llama,
        "ministral3": dense.llama,
        "mistral": dense.llama,
        "mixtral": moe.mixtral,
        "mpt": gpts.mpt,
        "mt5": stacks.t5,
        "nanochat": gpts.nanochat,
        "nemotron": dense.nemotron,
        "nemotron-nas": hybrids.nemotron_nas,
        "nemotron_h": moe.nemotron_h,
        "olmo": variants.olmo,
        "olmo2": variants.olmo2,
        "olmo3": variants.olmo3,
        "olmo_hybrid": scans.olmo_hybrid,
        "olmoe": moe.olmoe,
        "openai-gpt": gpts.openai_gpt,
        "opt": dense.opt,
        "persimmon": gpts.persimmon,
        "phi": dense.phi,
        "phi3": dense.phi3,
        "phi4_multimodal": dense.phi3,
        "phimoe": moe.phimoe,
        "qwen2": dense.qwen2,
        "qwen2_5_vl": dense.qwen2,
        "qwen2_5_vl_text": dense.qwen2,
        "qwen2_moe": moe.qwen2_moe,
        "qwen2_vl": dense.qwen2,
        "qwen2_vl_text": dense.qwen2,
        "qwen3": dense.qwen3,
        "qwen3_5_moe_text": hybrids.qwen3_next,
        "qwen3_5_text": hybrids.qwen35,
        "qwen3_moe": moe.qwen3_moe,
        "qwen3_next": hybrids.qwen3_next,
        "qwen3_vl_moe_text": moe.qwen3_moe,
        "qwen3_vl_text": dense.qwen3,
        "sarvam_mla": moe.deepseek,
        "sarvam_moe": moe.glm4_moe,
        "seed_oss": variants.seed_oss,
        "smollm3": variants.tied_llama,
        "solar_open": experts.solar_open,
        "stablelm": variants.stablelm,
        "starcoder2": variants.starcoder2,
        "step3_text": experts.step3,
        "step3p5": newer.step35,
        "switch_transformers": stacks.switch,
        "t5": stacks.t5,
        "umt5": stacks.t5,
        "vaultgemma": newer.vaultgemma,
        "xglm": gpts.xglm,
        "xverse": dense.llama,
        "youtu": variants.dense_latent,
    }
)
"""``model_type`` to the function that reads it."""

_WRAPPERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text",
        "gemma4_unified": "gemma4_unified_text",
        "llama4": "llama4_text",
        "minimax_m3_vl": "minimax_m3_vl_text",
        "step3p7": "step3p5",
    }
)
"""Multi-modal types whose ``text_config`` need not name its own type."""


_TOWERS: Final = ("vision_config", "audio_config", "speech_config")
"""Models beside the language model; of vision towers :mod:`costmodels.workload.huggingface.vision` knows some."""

_UNLIKE_LAYERS: Final = "layers of unlike widths, each with a configuration of its own"
_MASKED: Final = "a head for masked tokens behind an encoder (the preset bert_large is one without that head)"
_NOT_MODELLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "ernie"), _MASKED),
        **dict.fromkeys(("modernbert", "roberta", "xlm-roberta", "xlm-roberta-xl"), _MASKED),
        "bitnet": "norms inside both parts of a layer, and weights of three values",
        "deci": _UNLIKE_LAYERS,
        "axk1": "a norm behind the experts alone",
        "axk2": "norms with weights made of the width, and gates made of two latents",
        "beam": "gates of attention with a bias for every head",
        "diffllama": "differences of two softmaxes",
        "doge": "masks of attention made of the values",
        "dory": "layers that run several times, with steps that are learned",
        "dots3_note_text": "latent attention of two shapes",
        "hrm_text": "layers that run several times",
        "hy_v4": "gated residual streams that are not mixed, beside latent attention with a gate",
        **dict.fromkeys(("inkling_text", "inkling2_text", "inkling2_loop_text"), "convolutions behind every part"),
        "jetmoe": "experts of attention",
        "mllama_text_model": "layers that attend to images alone",
        "qwen4_exp_text": "embeddings of n-grams, and residual streams that a low-rank product gates",
        "recurrent_gemma": "gated linear recurrences",
        "rwkv": "recurrences of its own",
        "t5gemma": "an encoder and a decoder of sizes of their own",
        "whisper": "an encoder of sound",
        "xlstm": "memories of matrices with gates of their own",
        "zaya": "convolutions across queries and keys, and routers of several layers",
        "zamba": "blocks that several layers share",
        "zamba2": "blocks that several layers share",
    }
)
"""Types that have no form here, and why."""


_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
        "vocab": ("vocab_size", "padded_vocab_size"),
        "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
        "kv_heads": (
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            "multi_query_group_num",
            "num_attention_groups",
        ),
        "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "encoder_ffn_dim"),
        "window": ("sliding_window", "attention_chunk_size", "index_topk"),
        "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
        "top_k": (
            "num_experts_per_tok",
            "num_experts_per_token",
            "experts_per_token",
            "moe_topk",
            "moe_top_k",
            "moe_k",
        ),
        "expert_ffn": ("moe_intermediate_size", "expert_ffn_hidden_size"),
        "mixer_pattern": ("layer_types",),
        "hybrid_pattern": ("hybrid_override_pattern", "hybrid_layer_pattern"),
        "mamba_heads": ("mamba_num_heads", "num_heads", "mamba_n_heads"),
        "mamba_state": ("ssm_state_size", "state_size", "mamba_d_state"),
        "mamba_groups": ("n_groups", "mamba_n_groups"),
    }
)
"""Fields of an architecture in the words of configurations; the first that a file has is meant."""


_SAME: Final = (
    *_WORDS.values(),
    ("n_shared_experts", "num_shared_experts"),
    ("num_nextn_predict_layers", "num_mtp_layers"),
    ("mlp_layer_types", "first_k_dense_replace"),
    ("max_position_embeddings", "model_max_length", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    ("hidden_act", "activation_function", "mlp_hidden_act", "activation", "hidden_activation"),
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    (
        "layer_types",
        "compress_ratios",
        "sliding_window_pattern",
        "layers_block_type",
        "attn_type_list",
        *_WORDS["hybrid_pattern"],
    ),
)
"""Fields that say the same: a default counts where none of them is stated."""
_SIZES: Final = frozenset(word for ours, words in _WORDS.items() if ours != "window" for word in words)
"""Defaults that a user is told."""
_ROTARY: Final = ("rope_parameters", "rope_scaling", "rope_theta")
_TABLES: Final = ("attn_config", "ffn_config")
"""Sections with defaults of their own."""


def read_config(path: Path) -> ModelSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path : Path
        The file; at most 4 MiB of JSON.

    Returns
    -------
    ModelSpec
        Named after the folder of a ``config.json``, else after the file.

    Raises
    ------
    InputError
        The file cannot be read, is not JSON, or a field is missing, wrong or not known.
    """
    config = read_json_file(path, allowed="a Hugging Face config.json")
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return from_config(config, name=name, where=str(path))


def from_config(config: Mapping[str, object], *, name: str, where: str) -> ModelSpec:
    """Build a model from a decoded configuration.

    Parameters
    ----------
    config : Mapping
        The decoded ``config.json``.
    name : str
        Name of the model.
    where : str
        File that errors name.

    Returns
    -------
    ModelSpec
        The language model.

    Raises
    ------
    InputError
        A field is missing or wrong, or ``model_type`` is not known.
    """
    fields = Fields(config, where)
    whole, model_type = fields, fields.text("model_type")
    if section := _language_section(fields, model_type):
        text = fields.table(section)
        inner = dict(text.values)
        inner.setdefault("tie_word_embeddings", config.get("tie_word_embeddings"))
        model_type = _WRAPPERS.get(model_type) or text.text("model_type")
        fields = Fields({**inner, "model_type": model_type}, f"{where}: {section}")
    fields, left = _with_defaults(fields, model_type)
    for layers in ("num_hidden_layers", "n_layer"):
        if fields.has(layers) and fields.whole(layers) > MAX_LAYERS:
            raise fields.wrong(layers, fields.values[layers], f"1 to {MAX_LAYERS}")
    fields.texts("layer_types")  # also of families that have none: what is no list is a mistake
    if model_type in _NOT_MODELLED:
        raise InputError(
            f"{model_type!r} has {_NOT_MODELLED[model_type]}, which no cost model here has",
            allowed="another model, or its layers by their totals as a TOML file, see docs/models.md",
            where=f"{where}: model_type",
        )
    if model_type not in FAMILIES:
        near = get_close_matches(model_type.lower(), FAMILIES, n=1)
        hint = f"; nearest known: {near[0]!r}" if near else ""
        known = ", ".join(sorted({*FAMILIES, *_WRAPPERS}))
        raise InputError(
            f"{model_type!r} is not known{hint}",
            allowed=f"{known}; another model as a TOML file of a transformer or of layers, see docs/models.md",
            where=f"{where}: model_type",
        )
    built = _built(fields, model_type, name, where)
    tower = tower_of(whole, whole.text("model_type"), built.hidden)
    notes = (*_uncounted(whole, tower), *_left_out(fields, model_type, built))
    if sizes := [f"{word} {value}" for word, value in left.items() if _counts(fields, model_type, word, built)]:
        notes += (f"not stated, so the defaults of {model_type}: {', '.join(sizes)}",)
    return replace(built, tower=tower, notes=notes, details=details_of_config(fields.values, where))


def _language_section(fields: Fields, model_type: str) -> str:
    """Section with the language model of a configuration; empty where it is the configuration itself."""
    if model_type in _WRAPPERS or fields.has("text_config"):
        return "text_config"
    return "llm_config" if fields.has("llm_config") else ""


def _uncounted(fields: Fields, tower: Tower | None) -> tuple[str, ...]:
    """What a configuration has beside its language model that is not counted."""
    names = [name for name in _TOWERS if fields.has(name) and not (tower and name == "vision_config")]
    if not names:
        return ()
    parts = " and ".join(names)
    return (f"the language model alone: {parts} of the configuration (parameters, memory, time, tokens) not counted",)


def _left_out(fields: Fields, model_type: str, built: ModelSpec) -> tuple[str, ...]:
    """Layers of an architecture search that have no part; the length of the sequence that a decoder attends to."""
    if any(isinstance(kind, LayerKind) and kind.cross for kind in built.kinds()):
        return ("encoder and decoder each see as many tokens as the sequence",)
    idle = fields.whole("num_hidden_layers") - built.layers if model_type == "nemotron-nas" else 0
    return (f"{idle} layers have neither attention nor a feed-forward part and are left out",) if idle else ()


def _built(fields: Fields, model_type: str, name: str, where: str) -> ModelSpec:
    words = {ours: next((word for word in theirs if fields.has(word)), theirs[0]) for ours, theirs in _WORDS.items()}
    return FAMILIES[model_type](fields).build(name, sources=("Hugging Face config.json",), where=where, words=words)


def _counts(fields: Fields, model_type: str, word: str, built: ModelSpec) -> bool:
    """Whether a size matters to a model: twice as much of it makes another one, or none at all."""
    value = fields.values[word]
    if not isinstance(value, int):
        return True
    twice = replace(fields, values={**fields.values, word: 2 * value})
    try:
        return _built(twice, model_type, built.name, fields.where) != built
    except InputError:
        return True


def _with_defaults(fields: Fields, model_type: str) -> tuple[Fields, Mapping[str, object]]:
    """Fields with the defaults of their class where they are left out, and the sizes among these; null is stated."""
    known = class_defaults().get(model_type, {})
    stated = {word for group in _SAME for word in group if any(other in fields.values for other in group)}
    left = {name: value for name, value in known.items() if name not in fields.values and name not in stated}
    if any(name in fields.values for name in _ROTARY):
        left.pop("rope_parameters", None)
    if "rope_parameters" in fields.values:
        left.pop("rope_theta", None)
    for name, value in known.items():
        inner = fields.values.get(name)
        if name in _TABLES and isinstance(value, Mapping) and isinstance(inner, Mapping):
            left[name] = {**value, **inner}
    whole = replace(fields, values={**fields.values, **left})
    return whole, {name: value for name, value in left.items() if name in _SIZES}


@cache
def class_defaults() -> Mapping[str, Mapping[str, object]]:
    """Defaults of the configuration class of each ``model_type`` that Hugging Face Transformers has."""
    entries = package_table("costmodels.workload.huggingface", "class_defaults.toml")["class"]
    return MappingProxyType(
        {name: MappingProxyType(entry["fields"]) for entry in entries for name in entry["model_types"]}
    )
