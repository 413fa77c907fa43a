"""Parameters and model FLOPs, summed over the same ops that are priced."""

from collections.abc import Iterable
from dataclasses import dataclass

from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops, padded_vocab
from costmodels.workload.model import LayerKind, ModelSpec, OpaqueLayer
from costmodels.workload.op import Op, OpKind
from costmodels.workload.tower import tower_parameters

_ROUTED_KINDS = frozenset({OpKind.GROUPED_GEMM})
_BACKWARD_AND_FORWARD = 3.0  # the backward pass computes twice the forward's products
_PRODUCTS = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Trainable parameters of a model.

    Attributes
    ----------
    total : int
        All parameters, a vision tower's too, without multi-token-prediction layers, tied weights once.
    active : int
        Parameters that one token uses: of routed experts only ``top_k`` of each layer.
    embedding : int
        Input side: token table, learned positions, embedding norm.
    head : int
        Final norm and output matrix (0 of the matrix when tied).
    mtp : int
        All multi-token-prediction layers together; not in ``total``.
    tower, projector : int
        Vision tower, and what takes its output to the language model; 0 without one.
    per_kind : tuple of (str, int, int)
        Name of the kind, parameters of one such layer, number of such layers.
    """

    total: int
    active: int
    embedding: int
    head: int
    mtp: int
    per_kind: tuple[tuple[str, int, int], ...]
    tower: int = 0
    projector: int = 0


def parameter_count(model: ModelSpec, *, padded_vocab_tp: int = 0) -> ParameterCount:
    """Count the parameters of a model.

    Parameters
    ----------
    model : ModelSpec
        The model.
    padded_vocab_tp : int
        0: the tokenizer's vocabulary, as Hugging Face counts; else the vocabulary that a framework pads to for this
        tensor-parallel degree.

    Returns
    -------
    ParameterCount
        Counts for the whole model.
    """
    vocab = padded_vocab(model, padded_vocab_tp) if padded_vocab_tp else model.vocab
    embedding = owned_parameters(embedding_ops(model, vocab=vocab))
    head = owned_parameters(head_ops(model, vocab=vocab))
    counts: dict[LayerKind | OpaqueLayer, int] = {}
    for run in model.runs:
        counts[run.kind] = counts.get(run.kind, 0) + run.count
    per_layer = {kind: layer_ops(kind, model) for kind in counts}
    tower, projector = tower_parameters(model.tower) if model.tower else (0, 0)
    total = (
        tower
        + projector
        + embedding
        + head
        + sum(owned_parameters(ops) * counts[kind] for kind, ops in per_layer.items())
    )
    idle = sum(_idle_parameters(ops) * counts[kind] for kind, ops in per_layer.items())
    return ParameterCount(
        total=total,
        active=total - idle,
        embedding=embedding,
        head=head,
        mtp=model.mtp_layers * owned_parameters(mtp_ops(model)),
        per_kind=tuple((kind.name, owned_parameters(ops), counts[kind]) for kind, ops in per_layer.items()),
        tower=tower,
        projector=projector,
    )


def owned_parameters(ops: Iterable[Op]) -> int:
    """Sum the parameters of ops."""
    return sum(op.parameters for op in ops)


def _idle_parameters(ops: Iterable[Op]) -> int:
    """Parameters of the experts that a token does not reach."""
    return sum(op.parameters * (op.experts - op.top_k) // op.experts for op in ops if op.kind in _ROUTED_KINDS)


def attended_keys(seq: float, window: int, *, causal: bool) -> float:
    """Return the keys that a query meets on average over a sequence.

    Parameters
    ----------
    seq : float
        Tokens of a sequence.
    window : int
        Width of the attention window; 0: the whole sequence.
    causal : bool
        Whether keys after the query are left out.

    Returns
    -------
    float
        ``seq`` when not causal, half of it when causal (the published convention; the diagonal's half token is left
        out); with a window ``w < seq``: ``w``, or ``w - w^2 / (2 seq)`` when causal.
    """
    width = min(float(window), seq) if window else seq
    return width - width * width / (2.0 * seq) if causal and seq else width


def keys_of(op: Op, seq: float, *, causal: bool) -> float:
    """Return the keys that a query of an attention op meets on average: near ones and compressed ones.

    A compressed key is met by queries behind the last of its tokens.

    Parameters
    ----------
    op : Op
        An attention op.
    seq : float
        Tokens of a sequence.
    causal : bool
        Whether keys after the query are left out.
    """
    near = attended_keys(seq, op.window, causal=causal) if op.window or not op.compress else 0.0
    return near + (attended_keys(seq / op.compress, op.chosen, causal=causal) if op.compress else 0.0)


def forward_flops(op: Op, seq: float, *, causal: bool = True) -> float:
    """Return the forward FLOPs of an op per token of the sequence (all its routed copies).

    Parameters
    ----------
    op : Op
        An op of a layer.
    seq : float
        Tokens of a sequence.
    causal : bool
        Whether masked scores are left out; an op that is not causal never leaves any out.

    Returns
    -------
    float
        A multiply-add counts as two. Memory-bound ops count nothing.
    """
    if op.kind is OpKind.GEMM:
        return 2.0 * op.k * op.n
    if op.kind is OpKind.GROUPED_GEMM:
        return 2.0 * op.k * op.n * op.top_k
    if op.kind is OpKind.ATTENTION:
        keys = keys_of(op, seq, causal=causal and op.causal)
        return 2.0 * op.heads * (op.qk_dim + op.v_dim) * keys
    return op.flops_per_token


def flops_per_token(
    model: ModelSpec,
    seq: int,
    *,
    causal: bool = True,
    padded_vocab_tp: int = 0,
    router: bool = False,
    frozen: bool = False,
) -> float:
    """Return model FLOPs per trained token: forward and backward, no recompute.

    The convention is Megatron-LM's (``num_floating_point_operations``): matrix products, attention scores and scans;
    backward twice the forward; of routed experts the ``top_k`` that a token reaches; multi-token-prediction layers with
    their logits; embedding look-ups and norms free. For a model of opaque layers a token is a sample.

    Parameters
    ----------
    model : ModelSpec
        The model.
    seq : int
        Tokens of a sequence.
    causal : bool
        True leaves masked scores out (half of the matrix; a window's worth in windowed layers); False counts the whole
        matrix (or window), as papers before 2024 do.
    padded_vocab_tp : int
        0: logits over the tokenizer's vocabulary; else over the vocabulary padded for this tensor-parallel degree.
    router : bool
        Whether the router's product counts; Megatron-LM leaves it out.
    frozen : bool
        Whether the weights are not trained (adapters beside them): no product makes their gradients. The adapters' own
        products, some thousandths, are left out.

    Returns
    -------
    float
        FLOPs per token.

    References
    ----------
    Narayanan et al., arXiv 2104.04473, section 5.1 (full matrix); Megatron-LM
    ``megatron/training/training.py`` (causal).
    """
    vocab = padded_vocab(model, padded_vocab_tp) if padded_vocab_tp else model.vocab
    parts = [(embedding_ops(model, vocab=vocab), 1), (head_ops(model, vocab=vocab), 1)]
    parts += [(layer_ops(run.kind, model), run.count) for run in model.runs]
    parts.append((mtp_ops(model, vocab=vocab), model.mtp_layers))
    counted = [(op, count) for ops, count in parts for op in ops if router or op.name != "router"]
    forward = sum(count * forward_flops(op, seq, causal=causal) for op, count in counted)
    if not frozen:
        return _BACKWARD_AND_FORWARD * forward
    weight_gradients = sum(count * forward_flops(op, seq) for op, count in counted if op.kind in _PRODUCTS)
    return _BACKWARD_AND_FORWARD * forward - weight_gradients
