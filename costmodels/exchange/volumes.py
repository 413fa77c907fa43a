"""What one part of a model exchanges, as widths per token: derived from its kind, before any degree is known.

Widths count elements per token of the whole model; which of them divide over tp is said with each.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from costmodels.workload.ends import padded_vocab
from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DeltaNet,
    LayerKind,
    ModelSpec,
    MoeFfn,
    OneMixer,
    OpaqueLayer,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)

_QKV: Final = 3  # projections that read the input of attention
_GATE_UP: Final = 2  # of a gated feed-forward part


@dataclass(frozen=True, kw_only=True)
class TensorWidths:
    """Tensor-parallel exchanges of the forward pass.

    ``gathers`` are the widths of inputs of column-parallel GEMMs (gathered over tp under sequence parallelism),
    ``reductions`` those of outputs of row-parallel GEMMs (reduce-scattered, or all-reduced without it). Backward the
    gradient of every gathered input is reduced once, and those of ``further_gradients`` beside them: of products that
    read an input which is gathered for all of them, but reduce its gradient each for itself.
    """

    gathers: tuple[int, ...] = ()
    reductions: tuple[int, ...] = ()
    further_gradients: tuple[int, ...] = ()

    def __add__(self, other: "TensorWidths") -> "TensorWidths":
        """Exchanges of both, one after the other."""
        return TensorWidths(
            gathers=self.gathers + other.gathers,
            reductions=self.reductions + other.reductions,
            further_gradients=self.further_gradients + other.further_gradients,
        )

    def with_joined_gathers(self, joined: "TensorWidths") -> "TensorWidths":
        """Gathers of ``joined``, which gathers every input once; gradients stay as many as these gathers were."""
        further = list(self.gathers)
        for width in joined.gathers:
            further.remove(width)
        return TensorWidths(gathers=joined.gathers, reductions=self.reductions, further_gradients=tuple(further))


@dataclass(frozen=True, kw_only=True)
class ContextWidths:
    """Context-parallel exchanges of a mixer; all widths divide over tp.

    ``keys_values`` travel around the ring or are gathered; ``before`` and ``after`` are what the all-to-all form moves
    into and out of the mixer. ``ring`` is false for mixers that only know the all-to-all form.
    """

    keys_values: int = 0
    key_value_heads: int = 0
    before: int = 0
    after: int = 0
    ring: bool = True


def tensor_widths(kind: LayerKind, hidden: int, *, apart: bool = False) -> TensorWidths:
    """Tensor-parallel exchanges of one layer, without those of routed experts.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    hidden : int
        Width of the model.
    apart : bool
        Projections of queries, keys and values, and gate and up projections, gather their common input each for itself.

    Returns
    -------
    TensorWidths
        One gather and one reduction per sharded block; latent projections gather their latents instead of the input.
        Blocks side by side (``parallel``) share both.

    References
    ----------
    Korthikanti et al., arXiv 2205.05198, section 4.2.2; latent attention as Megatron-core's
    ``multi_latent_attention.py`` runs it (down-projections repeated on every tp rank over its own tokens).
    """
    whole = TensorWidths(gathers=(hidden,), reductions=(hidden,))
    mixer = TensorWidths()
    if isinstance(kind.mixer, Attention):
        inputs = _attention_inputs(kind.mixer, hidden)
        mixer = TensorWidths(gathers=inputs * (_QKV if apart and inputs == (hidden,) else 1), reductions=(hidden,))
    elif isinstance(kind.mixer, SelectiveScan):
        selected = kind.mixer.rank + 2 * kind.mixer.state  # sums over rows of all channels, for every rank
        mixer = TensorWidths(gathers=(hidden, selected), reductions=(selected, hidden))
    elif kind.mixer is not None:
        mixer = whole  # mixers side by side read one input, and their outputs are added before they are reduced
    if kind.cross is not None:  # its own input, and the encoder's output
        mixer += TensorWidths(gathers=(hidden, hidden), reductions=(hidden,))
    ffn = TensorWidths()
    if isinstance(kind.ffn, MoeFfn):
        ffn = whole if kind.ffn.shared_hidden else ffn
    elif kind.ffn is not None:
        ffn = TensorWidths(gathers=(hidden,) * (_GATE_UP if apart and kind.ffn.gated else 1), reductions=(hidden,))
    if kind.parallel and mixer.gathers and ffn.gathers:
        return TensorWidths(gathers=mixer.gathers, reductions=(hidden,))
    return mixer + ffn


def _attention_inputs(mixer: Attention, hidden: int) -> tuple[int, ...]:
    if mixer.kind is AttentionKind.LATENT:
        return (mixer.q_rank or hidden, mixer.kv_rank + mixer.rope_dim)
    if mixer.q_rank:
        return (mixer.q_rank, mixer.kv_heads * _key_value_dim(mixer))
    return (hidden,)


def _key_value_dim(mixer: Attention) -> int:
    return mixer.qk_dim if mixer.shared_kv else mixer.qk_dim + mixer.v_dim


def context_widths(mixers: Iterable[OneMixer]) -> ContextWidths:
    """Context-parallel exchanges of the mixers of a layer.

    Parameters
    ----------
    mixers : iterable of OneMixer
        The token mixers; none, one, or those side by side.

    Returns
    -------
    ContextWidths
        Latent attention exchanges keys and values of all heads, expanded, or the latents that chosen keys are read
        from. Scans trade tokens for heads by all-to-all
        around convolution and scan, and so does attention beside one.

    References
    ----------
    Transformer Engine's context-parallel attention (``p2p``, ``all_gather``, ``a2a``); Megatron-core's
    ``mamba_context_parallel.py``.
    """
    found = [_context_widths(mixer) for mixer in mixers]
    if len(found) == 1:
        return found[0]
    before, after = sum(one.before for one in found), sum(one.after for one in found)
    return ContextWidths(before=before, after=after, ring=not found)


def _context_widths(mixer: OneMixer) -> ContextWidths:
    if isinstance(mixer, Attention):
        heads = mixer.heads if mixer.kind is AttentionKind.LATENT else mixer.kv_heads
        keys_values = heads * _key_value_dim(mixer)
        if mixer.absorbed:
            heads, keys_values = 1, mixer.kv_rank + mixer.rope_dim
        queries = mixer.heads * mixer.qk_dim
        return ContextWidths(
            keys_values=keys_values,
            key_value_heads=heads,
            before=queries + keys_values,
            after=mixer.heads * mixer.v_dim,
        )
    if isinstance(mixer, StateSpace):
        inner = mixer.heads * mixer.head_dim
        before = 2 * inner + 2 * mixer.groups * mixer.state + mixer.heads
        return ContextWidths(before=before, after=inner, ring=False)
    if isinstance(mixer, SelectiveScan):
        return ContextWidths(before=2 * mixer.inner, after=mixer.inner, ring=False)
    if isinstance(mixer, DeltaNet):
        values = mixer.value_heads * mixer.value_dim
        keys = mixer.key_heads * mixer.key_dim
        before = 2 * keys + 2 * values + mixer.value_heads + (keys if mixer.channel_decay else mixer.value_heads)
        return ContextWidths(before=before, after=values, ring=False)
    if isinstance(mixer, ShortConvolution):
        return ContextWidths(before=3 * mixer.width, after=mixer.width, ring=False)
    inner = mixer.heads * mixer.head_dim
    return ContextWidths(before=3 * inner, after=inner, ring=False)  # the output gate stays where its tokens are


def kind_of(name: str, model: ModelSpec) -> LayerKind | OpaqueLayer | None:
    """Kind of layer with this name; the layer inside for ``mtp``; None for ``embedding`` and ``head``.

    Raises
    ------
    KeyError
        The model has no part of that name (a programming error: parts are listed from the model).
    """
    if name == "mtp":
        return model.mtp_kind
    if name in ("embedding", "head"):
        return None
    return {kind.name: kind for kind in model.kinds()}[name]


def end_widths(name: str, model: ModelSpec) -> TensorWidths:
    """Tensor-parallel exchanges of the ends of a model: ``embedding``, ``head``, and what ``mtp`` adds to its layer.

    The embedding's rows divide over tp, so lookups are summed; the head gathers its input; a multi-token-prediction
    layer gathers twice the width for its projection and the projection's output, and has a head of its own.
    """
    hidden = model.hidden
    return {
        "embedding": TensorWidths(reductions=(hidden,)),
        "head": TensorWidths(gathers=(hidden,)),
        "mtp": TensorWidths(gathers=(2 * hidden, hidden, hidden)),
    }.get(name, TensorWidths())


def logits_width(model: ModelSpec) -> int:
    """Columns of the logits, padded for one rank."""
    return padded_vocab(model, 1)
