"""What a model is beside its widths, in Megatron-DeepSpeed's words, and what it has no word for.

References
----------
Megatron-DeepSpeed ``megatron/arguments.py``: ``--swiglu``, ``--squared-relu``, ``--normalization``,
``--disable-bias-linear``, ``--untie-embeddings-and-output-weights``, ``--use-rotary-position-embeddings``,
``--rotary-position-embeddings-theta``, ``--no-position-embedding``, ``--vocab-size``, ``--kv-channels``.
Without them: GELU, LayerNorm, biases, tied embeddings, learned positions.
"""

from types import MappingProxyType
from typing import Final

from costmodels.workload.model import Attention, AttentionKind, LayerKind, ModelSpec, MoeFfn
from planner.export.plan_checks import IDLE, activation_of, norm_of, other_mixers

_ACTIVATIONS: Final = MappingProxyType(
    {("silu", True): ("--swiglu",), ("relu2", False): ("--squared-relu",), ("gelu", False): ()}
)


def model_words(model: ModelSpec) -> tuple[str, ...]:
    """Return the options that say a model's vocabulary, activation, norms, biases and positions.

    Parameters
    ----------
    model : ModelSpec
        Any; what has no option is left out, see :func:`left_open`.
    """
    words = ["--vocab-size", str(model.vocab)]
    widths = {part.qk_dim for part in _attention(model) if part.qk_dim * part.heads != model.hidden}
    words += [word for width in sorted(widths)[:1] for word in ("--kv-channels", str(width))]
    words += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    words += _ACTIVATIONS.get(_activation(model), ())
    words += ["--normalization", "rmsnorm"] if norm_of(model) == "RMSNorm" else []
    words += [] if _biases(model) else ["--disable-bias-linear"]
    if model.learned_positions:
        return tuple(words)
    words.append("--no-position-embedding")
    if _rotary(model):
        base = f"{model.known_details.rope_theta:.0f}"
        words += ["--use-rotary-position-embeddings", "--rotary-position-embeddings-theta", base]
    return tuple(words)


def left_open(model: ModelSpec) -> tuple[str, ...]:
    """Name what a model has and Megatron-DeepSpeed no option for."""
    details, attention = model.known_details, _attention(model)
    experts = [kind.ffn for kind in _layers(model) if isinstance(kind.ffn, MoeFfn)]
    name, gated = _activation(model)
    parts = {
        f"{'gated' if gated else 'ungated'} {name}": (name, gated) not in _ACTIVATIONS,
        "biases on some linear layers only": len(set(_biases(model))) > 1,
        "norms of queries and keys": any(part.qk_norm for part in attention),
        "shared experts": any(part.shared_hidden for part in experts),
        IDLE: any(part.idle_experts for part in experts),
        "dense layers beside experts": 0 < len(experts) < len(_layers(model)),
        "latent attention": any(part.kind is AttentionKind.LATENT for part in attention),
        f"{details.rope_scaling} scaling of positions": details.rope_scaling != "none" and _rotary(model),
        "linear position biases": details.alibi,
        "windows of attention": any(part.window for part in attention),
        "a gate for every head of attention": any(part.head_gate for part in attention),
        "layers without a mixer": any(kind.mixer is None for kind in _layers(model)),
    }
    return (*(part for part, has in parts.items() if has), *other_mixers(model))


def _layers(model: ModelSpec) -> list[LayerKind]:
    return [kind for kind in model.kinds() if isinstance(kind, LayerKind)]


def _attention(model: ModelSpec) -> list[Attention]:
    return [mixer for kind in _layers(model) for mixer in kind.mixers if isinstance(mixer, Attention)]


def _rotary(model: ModelSpec) -> bool:
    return any(part.rotary for part in _attention(model))


def _biases(model: ModelSpec) -> list[bool]:
    """Whether products have a bias, each; empty where none has."""
    told = [has for part in _attention(model) for has in (part.qkv_bias, part.out_bias)]
    told += [kind.ffn.bias for kind in _layers(model) if kind.ffn is not None]
    return told if any(told) else []


def _activation(model: ModelSpec) -> tuple[str, bool]:
    gated = any(kind.ffn.gated for kind in _layers(model) if kind.ffn is not None)
    return activation_of(model, gated=gated), gated
