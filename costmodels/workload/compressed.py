"""Compressed keys: what makes one key of several tokens, and the indexer that chooses among such keys (DeepSeek-V4)."""

from typing import Final

from costmodels.workload.model import Attention
from costmodels.workload.op import Op, OpKind, Split

_POOL_TRAFFIC: Final = 23.0
"""Two-byte elements moved for each key, by separate kernels as Megatron-core's compressor has them: gates with the bias
of their place in fp32 (1 + 2), gates and keys laid out by windows (2 + 2 + 2 and 1 + 1 + 1: filled, read, written),
softmax in fp32 (2 + 2), product (2 + 1 + 2), sum (2)."""


def series(mixer: Attention) -> int:
    """Return how many keys a compressor makes of a token: two where windows overlap (those that an indexer chooses)."""
    return 2 if mixer.chosen else 1


def compressor_norm(mixer: Attention) -> int:
    """Count the norm parameters of compressors: one over a key, and one over a key of the indexer.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention.

    Returns
    -------
    int
        Weights, whole; 0 without compressed keys.
    """
    return mixer.qk_dim + mixer.index_dim if mixer.compress else 0


def compressor_ops(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    """Return the ops that make compressed keys of the normed input; none without them.

    Every token is projected to a key and a gate for each of its dimensions (twice, where windows overlap); a compressed
    key is the sum of a window's keys, weighed by a softmax over the window. Whole on every tp rank.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention.
    hidden : int
        Width of the model.

    Returns
    -------
    tuple of Op
        In forward order.

    References
    ----------
    ``transformers`` models/deepseek_v4 (``DeepseekV4CSACompressor``, ``DeepseekV4HCACompressor``); Megatron-LM
    ``core/transformer/experimental_attention_variant/csa.py``.
    """
    return _pooled("compressor", mixer, mixer.qk_dim, hidden) if mixer.compress else ()


def index_compressor_ops(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    """Return the ops that make the indexer's own compressed keys, as :func:`compressor_ops` those of attention."""
    return _pooled("index_compressor", mixer, mixer.index_dim, hidden)


def _pooled(name: str, mixer: Attention, width: int, hidden: int) -> tuple[Op, ...]:
    keys = series(mixer) * width
    project = Op(
        name=name,
        module="attn",
        kind=OpKind.GEMM,
        split=Split.REPLICATED,
        k=hidden,
        n=2 * keys,
        shared_input_elements_per_token=float(hidden),
        dropped_by=("attn",),
        parameters=2 * hidden * keys,
        columns=(keys, keys),
        low_precision=False,  # recipes leave compressors in 16 bits
    )
    pool = Op(
        name=f"{name}_pool",
        module="attn",
        kind=OpKind.MEMORY,
        split=Split.REPLICATED,
        traffic_elements_per_token=_POOL_TRAFFIC * keys,
        saved_elements_per_token=2.0 * keys,  # keys and gates
        dropped_by=("attn",),
        parameters=mixer.compress * keys,  # a bias of the gates for every place in a window
    )
    return (project, pool)
