"""The model that Megatron-LM's arguments build, the inverse of :mod:`planner.export.megatron_model`.

References
----------
Megatron-LM ``megatron/training/arguments.py`` (flags, defaults), ``megatron/core/transformer/transformer_config.py``.
"""

from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.architecture import HYBRID_LETTERS, Architecture
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.megatron.hybrid_pattern import (
    DELTA_KEY_HEADS,
    DELTA_VALUE_HEADS,
    OPTION,
    hybrid_pattern,
    state_sizes,
)
from planner.ingest.megatron.layer_pattern import moe_pattern
from planner.ingest.megatron.layers_file import unlike_blocks
from planner.ingest.options import Arguments, whole
from planner.request import Framework
from planner.rules.table import NEWEST

_GATED: Final = ("--swiglu", "--quick-geglu")
_UNREAD: Final = (
    ("--experimental-attention-variant", "an attention that is not modelled"),
    ("--linear-attention-freq", "linear attention"),
)
_VARIANT, _DELTA = "--experimental-attention-variant", "gated_delta_net"
_OF_DELTA: Final = (_VARIANT, "--linear-attention-freq")
_DELTA_WIDTH: Final = 128  # of a head
_AHEAD: Final = MappingProxyType({"*-": "d", "*E": "e"})  # of a prediction layer behind attention
GPT2_VOCAB: Final = 50_257
"""Tokens of GPT-2's byte pairs (Radford et al. 2019), which GPT2BPETokenizer reads from a merge file."""
_DEFAULT_VOCAB: Final = 32_000
"""Tokens of a tokenizer that the arguments name but do not size; the loader of a job would know."""


def model_of(read: Arguments, name: str = "model of the arguments") -> ModelSpec:
    """Build the model of an argument list.

    Parameters
    ----------
    read : Arguments
        Without faults.
    name : str
        What to call the model.

    Returns
    -------
    ModelSpec
        A note says so when the vocabulary's size is assumed.

    Raises
    ------
    InputError
        An option asks for layers that are not modelled, or a size is missing.
    """
    delta = read.text(_VARIANT) == _DELTA
    for option, what in _UNREAD:
        if read.has(option) and not (delta and option in _OF_DELTA):
            raise InputError(f"{option}: {what}", allowed="--model MODEL names the model instead")
    vocab = read.number("--vocab-size", 0) or read.number("--padded-vocab-size", 0)
    if not vocab and (read.has("--merge-file") or read.text("--tokenizer-type", "") == "GPT2BPETokenizer"):
        vocab = GPT2_VOCAB
    notes = [] if vocab else [f"the arguments size no vocabulary: {_DEFAULT_VOCAB} tokens are assumed"]
    blocks = unlike_blocks(read) or ()
    kept = tuple(block for block in blocks if any(block))
    if len(kept) < len(blocks):
        notes.append(
            f"{len(blocks) - len(kept)} layers have neither attention nor a feed-forward part and are left out"
        )
    facts = Architecture(
        layers=len(kept) or read.number("--num-layers", 0),
        blocks=kept,
        hidden=read.number("--hidden-size", 0),
        vocab=vocab or _DEFAULT_VOCAB,
        vocab_multiple=read.number("--make-vocab-size-divisible-by", 128),
        tied=not read.has("--untie-embeddings-and-output-weights"),
        norm="rms" if read.text("--normalization", "LayerNorm") == "RMSNorm" else "layer",
        max_positions=read.number("--max-position-embeddings", 0),
        mtp_layers=read.number("--mtp-num-layers", 0),
        **_attention(read),
        **_positions(read),
        **_delta(read),
        **{**_feed_forward(read), **_hybrid(read)},
    )
    return facts.build(name, sources=("launch arguments",), notes=tuple(notes), where="arguments")


def _attention(read: Arguments) -> dict[str, Any]:
    heads = read.number("--num-attention-heads", 0)
    bias = not read.has("--disable-bias-linear")
    found: dict[str, Any] = {
        "heads": heads,
        "kv_heads": read.number("--num-query-groups", 1) if read.has("--group-query-attention") else heads,
        "head_dim": read.number("--kv-channels", 0),
        "qkv_bias": bias or read.has("--add-qkv-bias"),
        "out_bias": bias,
        "qk_norm": read.has("--qk-layernorm"),
        "output_gate": read.has("--attention-output-gate"),
        "sinks": read.text("--softmax-type", "vanilla") == "learnable",
    }
    if read.has("--multi-latent-attention"):
        rope = read.number("--qk-pos-emb-head-dim", 64)
        found |= {
            "kv_heads": heads,
            "head_dim": read.number("--qk-head-dim", 128) + rope,
            "value_dim": read.number("--v-head-dim", 128),
            "q_rank": read.number("--q-lora-rank", 0),
            "kv_rank": read.number("--kv-lora-rank", 32),
            "rope_dim": rope,
            "qk_norm": False,  # the norms of the low ranks are counted with them
        }
    return found


def _delta(read: Arguments) -> dict[str, Any]:
    """Layers of linear attention by the gated delta rule: all but every n-th, or those of a list."""
    if read.text(_VARIANT) != _DELTA:
        return {}
    layers, told = read.number("--num-layers", 0), read.text("--linear-attention-freq", "1")
    period = whole(told) or 0
    linear = [bool((index + 1) % period) for index in range(layers)] if period else moe_pattern(told, layers)
    return {
        "mixer_pattern": "".join("l" if on else "f" for on in linear),
        "linear_key_heads": read.number("--linear-num-key-heads", DELTA_KEY_HEADS),
        "linear_value_heads": read.number("--linear-num-value-heads", DELTA_VALUE_HEADS),
        "linear_key_dim": read.number("--linear-key-head-dim", _DELTA_WIDTH),
        "linear_value_dim": read.number("--linear-value-head-dim", _DELTA_WIDTH),
        "conv_width": read.number("--linear-conv-kernel-dim", 4),
    }


def _hybrid(read: Arguments) -> dict[str, Any]:
    """Layers of a hybrid model, each one part, and the sizes of its Mamba-2 mixers."""
    pattern = hybrid_pattern(read, NEWEST[Framework.MEGATRON])
    if pattern is None:
        return {}
    strange = sorted(set(pattern.letters) - set(HYBRID_LETTERS))
    if strange:
        raise InputError(
            f"{OPTION}: layers {strange[0]} are not modelled", allowed="--model MODEL names the model instead"
        )
    found: dict[str, Any] = {"hybrid_pattern": pattern.letters, "ffn_pattern": ""}
    if pattern.ahead:
        if pattern.ahead[0] not in _AHEAD:
            raise InputError(f"{OPTION}: prediction layers {pattern.ahead[0]}", allowed="*- or *E, or --model MODEL")
        found["mtp_ffn"] = _AHEAD[pattern.ahead[0]]
    if "M" in pattern.letters:
        states = state_sizes(read)
        found |= {
            "mamba_heads": states.heads,
            "mamba_head_dim": states.head_dim,
            "mamba_state": states.state,
            "mamba_groups": states.groups,
        }
    return found


def _positions(read: Arguments) -> dict[str, Any]:
    kind = "rope" if read.has("--use-rotary-position-embeddings") else read.text("--position-embedding-type")
    learned = kind in ("", "learned_absolute")
    window = read.texts("--window-size")
    before = (window[0] if len(window) == 1 else ",".join(window)).partition(",")[0] if window else ""
    behind = whole(before)
    size = 0 if behind is None else behind + 1
    found: dict[str, Any] = {
        "learned_positions": read.number("--max-position-embeddings", 0) if learned else 0,
        "rotary": kind in ("rope", "yarn", "mrope"),
        "window": size,
    }
    skip = read.text("--window-attn-skip-freq")
    period = whole(skip) or 0
    if size and period > 1:
        found["mixer_pattern"] = "w" * (period - 1) + "f"
    elif size and skip:
        windowed = moe_pattern(skip, read.number("--num-layers", 0))
        found["mixer_pattern"] = "".join("w" if on else "f" for on in windowed)
    return found


def _feed_forward(read: Arguments) -> dict[str, Any]:
    hidden, gated = read.number("--hidden-size", 0), any(read.has(name) for name in _GATED)
    width = int(4 * hidden * 2 / 3 / 64) * 64 if read.has("--swiglu") else 4 * hidden
    ffn, bias = read.number("--ffn-hidden-size", width), not read.has("--disable-bias-linear")
    found: dict[str, Any] = {"ffn": ffn, "gated": gated, "ffn_bias": bias}
    experts = read.number("--num-experts", 0)
    if experts:
        pattern = moe_pattern(read.text("--moe-layer-freq", "1"), read.number("--num-layers", 0))
        found |= {
            "experts": experts,
            "top_k": read.number("--moe-router-topk", 2),
            "expert_ffn": read.number("--moe-ffn-hidden-size", ffn),
            "shared_ffn": read.number("--moe-shared-expert-intermediate-size", 0),
            "shared_gate": read.has("--moe-shared-expert-gate"),
            "expert_bias": bias,
            "latent": read.number("--moe-latent-size", 0),
            "ffn_pattern": "".join("e" if sparse else "d" for sparse in pattern),
        }
    return found
