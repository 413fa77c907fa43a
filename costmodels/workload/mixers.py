"""The token mixer that a letter of a pattern means."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DeltaNet,
    Lightning,
    Mixer,
    SelectiveScan,
    ShortConvolution,
    SideBySide,
    StateSpace,
)

if TYPE_CHECKING:
    from costmodels.workload.architecture import Architecture

_WINDOWED: Final = "wivchB"  # an encoder where a window is set
_INDEXED: Final = "ic"
_CHOSEN: Final = "iw"  # keys of an indexer: its own, or an earlier layer's
_FULL: Final = "fbPBX"
_BORROWING: Final = "bv"
WITH_HEADS: Final = "fwichbvPLBX"
"""Letters of mixers that have the heads of attention."""

MIXER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "f": "attention",
        "w": "window",
        "i": "indexed",
        "c": "compressed",
        "h": "heavily compressed",
        "l": "delta",
        "L": "lightning",
        "C": "convolution",
        "M": "mamba",
        "S": "mamba1",
        "P": "attention beside mamba",
        "B": "encoder",
        "X": "decoder",
        "b": "borrowed",
        "v": "borrowed window",
    }
)
"""What a kind of layer is called, by the letter of its mixer."""
MIXER_LETTERS: Final = "".join(MIXER_NAMES)

_STATES: Final = ("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_groups")
MIXER_NEEDS: Final = (
    ("w", ("window",), "a layer has windowed attention"),
    ("v", ("window",), "a layer has windowed attention"),
    ("i", ("window", "index_heads", "index_dim"), "a layer has attention with an indexer"),
    (
        "c",
        ("window", "sparse_rate", "chosen", "q_rank", "index_heads", "index_dim"),
        "a layer has compressed keys that an indexer chooses",
    ),
    ("h", ("window", "heavy_rate"), "a layer has heavily compressed keys"),
    (
        "l",
        ("linear_key_heads", "linear_value_heads", "linear_key_dim", "linear_value_dim"),
        "a layer has linear attention",
    ),
    ("M", _STATES, "a layer is a Mamba-2 mixer"),
    ("P", _STATES, "a layer has a Mamba-2 mixer beside attention"),
    ("S", ("mamba_inner", "mamba_state", "mamba_rank"), "a layer is a Mamba-1 mixer"),
)
"""Letter, fields that it needs, and why."""


def mixer_of(facts: "Architecture", letter: str) -> Mixer | None:
    """Return the mixer of a letter of :data:`MIXER_LETTERS`; none without a letter.

    Parameters
    ----------
    facts : Architecture
        Widths of the model.
    letter : str
        One letter, or empty where a layer has no mixer.

    Returns
    -------
    Mixer or None
        With the sizes that the facts state.
    """
    other = _OTHERS.get(letter)
    if other is not None:
        return other(facts)
    return _attention(facts, letter) if letter else None


def _attention(facts: "Architecture", letter: str) -> Attention:
    head_dim = facts.width_of_head
    heads = (facts.window_heads if letter in _WINDOWED else 0) or facts.heads
    kv_heads, shared_kv = facts.kv_heads or heads, facts.shared_kv
    if letter in _FULL:
        head_dim, kv_heads = facts.full_head_dim or head_dim, facts.full_heads or kv_heads
        shared_kv = shared_kv or facts.full_shared_kv
    return Attention(
        kind=AttentionKind.LATENT if facts.kv_rank > 0 else AttentionKind.GROUPED,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=facts.value_dim or head_dim,
        q_rank=facts.q_rank,
        kv_rank=facts.kv_rank,
        rope_dim=facts.rope_dim,
        window=facts.window if letter in _WINDOWED else 0,
        qkv_bias=facts.qkv_bias,
        out_bias=facts.out_bias,
        qk_norm=facts.qk_norm,
        output_gate=facts.output_gate,
        sinks=facts.sinks or (facts.window_sinks and letter in _WINDOWED),
        qk_norm_parameters=facts.qk_norm_parameters,
        rotary=facts.rotary,
        shared_kv=shared_kv,
        own_kv=letter not in _BORROWING,
        out_rank=facts.out_rank,
        out_groups=facts.out_groups,
        index_heads=facts.index_heads if letter in _INDEXED else 0,
        index_dim=facts.index_dim if letter in _INDEXED else 0,
        compress={"c": facts.sparse_rate, "h": facts.heavy_rate}.get(letter, 0),
        chosen=facts.chosen if letter == "c" else 0,
        absorbed=bool(facts.index_heads and facts.kv_rank) and letter in _CHOSEN,
        index_weights=facts.index_weights,
        head_gate=facts.head_gate,
        bidirectional=letter == "B",
    )


def _delta(facts: "Architecture") -> DeltaNet:
    return DeltaNet(
        key_heads=facts.linear_key_heads,
        value_heads=facts.linear_value_heads,
        key_dim=facts.linear_key_dim,
        value_dim=facts.linear_value_dim,
        conv_width=facts.conv_width,
        channel_decay=facts.channel_decay,
        gate_rank=facts.gate_rank,
    )


def _lightning(facts: "Architecture") -> Lightning:
    return Lightning(heads=facts.heads, head_dim=facts.width_of_head, qk_norm=facts.linear_qk_norm)


def _convolution(facts: "Architecture") -> ShortConvolution:
    return ShortConvolution(width=facts.hidden, conv_width=facts.conv_width, bias=facts.mamba_conv_bias)


def _state_space(facts: "Architecture") -> StateSpace:
    return StateSpace(
        heads=facts.mamba_heads,
        head_dim=facts.mamba_head_dim,
        state=facts.mamba_state,
        groups=facts.mamba_groups,
        conv_width=facts.conv_width,
        conv_bias=facts.mamba_conv_bias,
        projection_bias=facts.mamba_bias,
        norm=facts.mamba_norm,
    )


def _selective_scan(facts: "Architecture") -> SelectiveScan:
    return SelectiveScan(
        inner=facts.mamba_inner,
        state=facts.mamba_state,
        rank=facts.mamba_rank,
        conv_width=facts.conv_width,
        conv_bias=facts.mamba_conv_bias,
        projection_bias=facts.mamba_bias,
        norms=facts.mamba_norm,
    )


def _side_by_side(facts: "Architecture") -> SideBySide:
    return SideBySide(attention=_attention(facts, "P"), state_space=_state_space(facts))


_OTHERS: Final[Mapping[str, Callable[["Architecture"], Mixer]]] = MappingProxyType(
    {"l": _delta, "L": _lightning, "C": _convolution, "M": _state_space, "S": _selective_scan, "P": _side_by_side}
)
