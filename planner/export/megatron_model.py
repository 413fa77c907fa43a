"""A model in Megatron-LM's flags; what has no flag is refused by name.

References
----------
Megatron-LM ``megatron/training/arguments.py`` and ``megatron/core/transformer/transformer_config.py`` (core 0.13 to
0.19); field names of Hugging Face configurations stand beside them in ``docs/export.md``.
"""

from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Final

from costmodels.workload.details import ModelDetails
from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DeltaNet,
    DenseFfn,
    LayerKind,
    Lightning,
    ModelSpec,
    MoeFfn,
    SelectiveScan,
    ShortConvolution,
    SideBySide,
)
from hardware.errors import InputError
from planner.export.megatron_hybrid import hybrid_layer, is_hybrid, no_flag, state_arguments
from planner.export.megatron_layers import unlike_arguments, unlike_layer
from planner.export.plan_checks import (
    ALTERNATING,
    COMPRESSED,
    CROSS,
    IDLE,
    STREAMS,
    activation_of,
    mixer_words,
    norm_of,
)

_ACTIVATION_FLAGS: Final = MappingProxyType(
    {
        ("silu", True): ("--swiglu",),
        ("gelu", False): (),
        ("relu2", False): ("--squared-relu",),
        ("quick-gelu", True): ("--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0"),
    }
)
_ONE_STREAM: Final = "one residual stream; DeepSeek-V4's recipes of Megatron-Bridge need Megatron-core's branch dev"
_MLA_ORIGINAL_POSITIONS: Final = 4096  # Megatron-LM's default, without a flag


def model_arguments(model: ModelSpec, seq: int) -> tuple[str, ...]:
    """Flags that build a model.

    Parameters
    ----------
    model : ModelSpec
        A causal transformer with one kind of attention; layers may be dense or mixtures of experts. Or a hybrid, each
        of whose layers is one part; or dense layers of unlike sizes, whose file the flags do not name.
    seq : int
        Tokens per sample, at least; the position range grows with it.

    Returns
    -------
    tuple of str
        Arguments; the number of layers is among them, but for a hybrid model, whose pattern goes with the split.

    Raises
    ------
    InputError
        The model has a part that no flag describes.
    """
    details = model.known_details
    hybrid, unlike = is_hybrid(model), model.unlike_layers
    layer = hybrid_layer if hybrid else unlike_layer if unlike else _block
    kinds = [layer(model, kind) for kind in model.layer_kinds()]
    attention = _attention(model, kinds)
    positions = max(seq, model.max_positions, model.learned_positions)
    arguments = [
        *(() if hybrid else ("--num-layers", str(model.layers))),
        *("--hidden-size", str(model.hidden)),
        *("--num-attention-heads", str(attention.heads)),
        *("--seq-length", str(seq)),
        *("--max-position-embeddings", str(positions)),
        *("--vocab-size", str(model.vocab)),
        *("--make-vocab-size-divisible-by", str(model.vocab_multiple)),
        *_norm(model, details),
        *_bias(model, kinds, attention),
        *_attention_arguments(model, attention, details),
        *_position_arguments(model, attention, details),
        *_window_arguments(kinds),
        *_delta_arguments(model, kinds),
        *_feed_forward(model, kinds, details),
        *state_arguments(model, kinds),
        *(unlike_arguments(model) if unlike else ()),
    ]
    if not model.tied_embeddings:
        arguments.append("--untie-embeddings-and-output-weights")
    if model.mtp_layers and not hybrid:
        arguments += ["--mtp-num-layers", str(model.mtp_layers)]
    return tuple(arguments)


def model_notes(model: ModelSpec) -> tuple[str, ...]:
    """What the flags leave open or assume."""
    details, notes, kinds = model.known_details, [], model.kinds()
    if not details.stated:
        notes.append(
            "the model states neither activation nor rotary base: the arguments assume "
            "SwiGLU or GELU by its feed-forward parts and base 10000"
        )
    if details.rope_scaling == "yarn" and details.rope_original_positions not in (0, _MLA_ORIGINAL_POSITIONS):
        notes.append(f"yarn from {details.rope_original_positions} positions: latent attention assumes 4096")
    if any(isinstance(k, LayerKind) and isinstance(k.ffn, MoeFfn) and k.ffn.router_bias for k in kinds):
        notes.append("the router has no bias in Megatron-LM")
    if any(isinstance(k, LayerKind) and isinstance(k.mixer, Attention) and k.mixer.qk_norm_parameters for k in kinds):
        notes.append("the model norms the queries and keys of all heads at once, --qk-layernorm those of each head")
    if details.multipliers:
        notes.append("the model scales embeddings, residual branches or logits, for which Megatron-LM has no flag")
    if model.has_experts:
        notes.append("load balancing of experts is left to you: --moe-router-load-balancing-type, --moe-aux-loss-coeff")
    return tuple(notes)


def _block(model: ModelSpec, kind: object) -> LayerKind:
    """One layer as a transformer block, or the reason why it is none."""
    plain = "blocks of attention or a gated delta rule and a feed-forward part, each behind one norm"
    if not isinstance(kind, LayerKind):
        raise no_flag(model, "layers known by their totals only", plain)
    if kind.cross or kind.ends_encoder or (isinstance(kind.mixer, Attention) and kind.mixer.bidirectional):
        raise no_flag(model, CROSS, plain)
    if isinstance(kind.mixer, SelectiveScan | Lightning | ShortConvolution | SideBySide):
        raise no_flag(model, mixer_words(kind.mixer), plain)
    if isinstance(kind.mixer, DeltaNet) and kind.mixer.channel_decay:
        raise no_flag(model, mixer_words(kind.mixer), plain)
    if not isinstance(kind.mixer, Attention | DeltaNet) or kind.ffn is None:
        raise no_flag(model, f"a layer of kind {kind.name} among blocks", plain)
    if model.streams > 1:
        raise no_flag(model, ALTERNATING, plain) if model.alternating else no_flag(model, STREAMS, _ONE_STREAM)
    if kind.parallel:
        raise no_flag(model, "attention and feed-forward parts in parallel", plain)
    if kind.side_width:
        raise no_flag(model, "embeddings of every layer's own", plain)
    if kind.norm_count != 2:
        raise no_flag(model, f"{kind.norm_count} norms in a block", plain)
    return kind


def _attention(model: ModelSpec, kinds: list[LayerKind]) -> Attention:
    """The attention of every layer but for its window."""
    found = {replace(kind.mixer, window=0) for kind in kinds if isinstance(kind.mixer, Attention)}
    _plain_keys(model, found)
    if any(attention.head_gate for attention in found):
        raise no_flag(model, "a gate for every head of attention", "attention without gates, or gated by element")
    if not found:
        raise no_flag(model, "a model without attention", "attention in one layer at least")
    if len(found) != 1:
        raise no_flag(model, f"{len(found)} different kinds of attention", "the same heads in every layer")
    attention = found.pop()
    if attention.shared_kv or attention.out_rank or (attention.q_rank and attention.kind is AttentionKind.GROUPED):
        raise no_flag(model, "low-rank projections of grouped attention", "grouped or latent attention")
    if attention.kind is AttentionKind.GROUPED and attention.v_dim != attention.qk_dim:
        raise no_flag(model, f"heads of {attention.qk_dim} for keys and {attention.v_dim} for values", "equal sizes")
    if not model.causal:
        raise no_flag(model, "attention to later tokens", "a causal model")
    if model.embedding_norm_parameters:
        raise no_flag(model, "a norm on the embedding", "no such norm")
    if model.head_bias:
        raise no_flag(model, "a bias of the output layer", "no such bias")
    return attention


def _plain_keys(model: ModelSpec, found: set[Attention]) -> None:
    """Refuse keys that are compressed, or that an indexer chooses."""
    plain = "attention to all keys or to a window"
    if any(attention.compress for attention in found):
        raise no_flag(model, COMPRESSED, plain)
    if any(attention.index_heads for attention in found):
        raise no_flag(model, "an indexer that chooses the keys of attention", plain)


def _norm(model: ModelSpec, details: ModelDetails) -> list[str]:
    if details.norm_after:
        raise no_flag(model, "norms after attention and feed-forward part alone", "norms before them")
    if model.final_norm_parameters not in (model.hidden, 2 * model.hidden):
        raise no_flag(model, f"a final norm of {model.final_norm_parameters} parameters", "RMSNorm or LayerNorm")
    plus_one = ["--apply-layernorm-1p"] if details.norm_plus_one else []
    return ["--normalization", norm_of(model), "--norm-epsilon", f"{details.norm_epsilon:g}", *plus_one]


def _bias(model: ModelSpec, kinds: list[LayerKind], attention: Attention) -> list[str]:
    """Biases of linear layers: everywhere, nowhere, or on queries, keys and values alone."""
    inner = {kind.ffn.bias for kind in kinds if kind.ffn is not None}
    if attention.out_bias and attention.qkv_bias and inner == {True}:
        return []
    if attention.out_bias or True in inner:
        raise no_flag(model, "biases on some linear layers only", "all, none, or queries, keys and values alone")
    return ["--disable-bias-linear", *(["--add-qkv-bias"] if attention.qkv_bias else [])]


def _attention_arguments(model: ModelSpec, attention: Attention, details: ModelDetails) -> list[str]:
    arguments = []
    if attention.kind is AttentionKind.LATENT:
        arguments += ["--multi-latent-attention", "--kv-lora-rank", str(attention.kv_rank)]
        arguments += ["--q-lora-rank", str(attention.q_rank)] if attention.q_rank else []
        arguments += ["--qk-head-dim", str(attention.qk_dim - attention.rope_dim)]
        arguments += ["--qk-pos-emb-head-dim", str(attention.rope_dim), "--v-head-dim", str(attention.v_dim)]
        arguments += ["--kv-channels", str(attention.v_dim), "--qk-layernorm"]
        if details.rope_scaling == "none":
            arguments += ["--rope-type", "rope", "--no-rope-fusion"]
        return arguments
    if attention.kv_heads != attention.heads:
        arguments += ["--group-query-attention", "--num-query-groups", str(attention.kv_heads)]
    if attention.qk_dim * attention.heads != model.hidden:
        arguments += ["--kv-channels", str(attention.qk_dim)]
    if attention.qk_norm:
        arguments.append("--qk-layernorm")
    if attention.output_gate:
        arguments.append("--attention-output-gate")
    if attention.sinks:
        arguments += ["--softmax-type", "learnable"]
    return arguments


def _position_arguments(model: ModelSpec, attention: Attention, details: ModelDetails) -> list[str]:
    if details.alibi:
        raise no_flag(model, "linear position biases (ALiBi)", "rotary, learned or no positions")
    if model.learned_positions:
        return ["--position-embedding-type", "learned_absolute"]
    if not attention.rotary:
        return ["--position-embedding-type", "none"]
    latent = attention.kind is AttentionKind.LATENT
    yarn = details.rope_scaling == "yarn"
    arguments = ["--position-embedding-type", "yarn" if yarn and not latent else "rope"]
    arguments += ["--rotary-base", str(int(details.rope_theta))]
    if details.rope_fraction != 1.0:
        arguments += ["--rotary-percent", f"{details.rope_fraction:g}"]
    if details.rope_scaling == "llama3":
        arguments += ["--use-rope-scaling", "--rope-scaling-factor", f"{details.rope_factor:g}"]
    if yarn:
        arguments += ["--rotary-scaling-factor", f"{details.rope_factor:g}"]
    if yarn and latent:
        arguments += ["--mscale", f"{details.rope_mscale:g}", "--mscale-all-dim", f"{details.rope_mscale_all:g}"]
    elif yarn:
        arguments += ["--yarn-original-max-position-embeddings", str(details.rope_original_positions)]
    return arguments


def _window_arguments(kinds: list[LayerKind]) -> list[str]:
    windows = [kind.mixer.window for kind in kinds if isinstance(kind.mixer, Attention)]
    sizes = {window for window in windows if window}
    if not sizes:
        return []
    if len(sizes) > 1:
        raise InputError(f"windows of {sorted(sizes)} tokens", allowed="one window size for Megatron-LM")
    arguments = ["--window-size", f"{sizes.pop() - 1},0"]
    if all(windows):
        return arguments
    every = windows.index(0) + 1
    periodic = all((window == 0) == (index % every == every - 1) for index, window in enumerate(windows))
    skip = str(every) if periodic and every > 1 else list_pattern([bool(window) for window in windows])
    return [*arguments, "--window-attn-skip-freq", skip]


def has_delta_rule(model: ModelSpec) -> bool:
    """Whether some layer is a gated delta rule, which Megatron-core has since 0.16."""
    return any(isinstance(kind, LayerKind) and isinstance(kind.mixer, DeltaNet) for kind in model.kinds())


def _delta_arguments(model: ModelSpec, kinds: list[LayerKind]) -> list[str]:
    """Layers of linear attention by the gated delta rule (core 0.16 and later), and their sizes."""
    found = {kind.mixer for kind in kinds if isinstance(kind.mixer, DeltaNet)}
    if not found:
        return []
    if len(found) > 1:
        raise no_flag(model, f"{len(found)} different kinds of linear attention", "equal ones")
    delta, linear = found.pop(), [isinstance(kind.mixer, DeltaNet) for kind in kinds]
    every = linear.index(False) + 1
    periodic = linear == [index % every != every - 1 for index in range(len(linear))]
    return [
        *("--experimental-attention-variant", "gated_delta_net"),
        *("--linear-attention-freq", str(every) if periodic else list_pattern(linear)),
        *("--linear-conv-kernel-dim", str(delta.conv_width)),
        *("--linear-key-head-dim", str(delta.key_dim), "--linear-value-head-dim", str(delta.value_dim)),
        *("--linear-num-key-heads", str(delta.key_heads), "--linear-num-value-heads", str(delta.value_heads)),
    ]


def list_pattern(layers: list[bool]) -> str:
    """Yes-no layers as the list expression of Megatron-LM's layer patterns, such as ``([0]*3+[1]*58)``."""
    runs = [(int(key), len(list(group))) for key, group in groupby(layers)]
    texts = ["(" + "+".join(f"[{key}]*{count}" for key, count in runs) + ")"]
    for period in range(2, len(layers) // 2 + 1):
        if len(layers) % period == 0 and layers == layers[:period] * (len(layers) // period):
            texts.append(f"([{','.join(str(int(layer)) for layer in layers[:period])}]*{len(layers) // period})")
            break
    return min(texts, key=len)


def _feed_forward(model: ModelSpec, kinds: list[LayerKind], details: ModelDetails) -> list[str]:
    dense = {kind.ffn for kind in kinds if isinstance(kind.ffn, DenseFfn)}
    experts = {kind.ffn for kind in kinds if isinstance(kind.ffn, MoeFfn)}
    if (len(dense) > 1 and not model.unlike_layers) or len(experts) > 1:
        raise no_flag(model, "feed-forward parts of different widths", "one width for dense layers and one for experts")
    if any(part.idle_experts for part in experts):
        raise no_flag(model, IDLE, "experts that all compute")
    gated = {part.gated for part in dense} | {part.gated for part in experts}
    if len(gated) != 1:
        raise no_flag(model, "gated and ungated feed-forward parts together", "one form")
    width = max(part.hidden for part in dense) if dense else next(iter(experts)).hidden
    arguments = ["--ffn-hidden-size", str(width), *_activation(model, gated.pop())]
    if experts:
        sparse = [isinstance(kind.ffn, MoeFfn) for kind in kinds]
        arguments += _experts(next(iter(experts)), details)
        arguments += [] if all(sparse) or is_hybrid(model) else ["--moe-layer-freq", list_pattern(sparse)]
    return arguments


def _activation(model: ModelSpec, gated: bool) -> tuple[str, ...]:
    name = activation_of(model, gated=gated)
    flags = _ACTIVATION_FLAGS.get((name, gated))
    if flags is None:
        form = "gated" if gated else "ungated"
        raise no_flag(model, f"the {form} activation {name}", "gated silu, gated quick-gelu, gelu, relu2")
    return flags


def _experts(experts: MoeFfn, details: ModelDetails) -> list[str]:
    arguments = [
        *("--num-experts", str(experts.experts)),
        *("--moe-router-topk", str(experts.top_k)),
        *("--moe-ffn-hidden-size", str(experts.hidden)),
    ]
    if experts.shared_hidden:
        arguments += ["--moe-shared-expert-intermediate-size", str(experts.shared_hidden)]
    if experts.shared_gate:
        arguments.append("--moe-shared-expert-gate")
    if experts.latent:
        arguments += ["--moe-latent-size", str(experts.latent)]
    if details.router_score != "softmax":
        arguments += ["--moe-router-score-function", details.router_score]
    if details.router_bias:
        arguments.append("--moe-router-enable-expert-bias")
    if details.router_groups:
        arguments += ["--moe-router-num-groups", str(details.router_groups)]
        arguments += ["--moe-router-group-topk", str(details.router_group_top_k)]
    if details.router_scale:
        arguments += ["--moe-router-topk-scaling-factor", f"{details.router_scale:g}"]
    if details.router_softmax_first or (experts.top_k == 1 and details.router_score == "softmax"):
        arguments.append("--moe-router-pre-softmax")
    return arguments
