"""The op: the smallest thing that is priced. Time, memory and recompute all derive from one op list per layer kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class OpKind(StrEnum):
    """What the hardware does for an op."""

    GEMM = "gemm"  # tokens x k times k x n
    GROUPED_GEMM = "grouped-gemm"  # one GEMM per local expert
    ATTENTION = "attention"  # scores, softmax and weighted sum, fused or not
    SCAN = "scan"  # chunked state-space or linear-attention scan
    MEMORY = "memory"  # bound by memory traffic: norms, activations, rotary, residuals, permutation
    OPAQUE = "opaque"  # a layer known by totals only: FLOPs and bytes; a token is a whole sample


class Split(StrEnum):
    """How an op's work divides over the axes of the mesh. Tokens always divide over dp, cp and micro-batches."""

    COLUMN = "column"  # weight columns (n) over tp; every tp rank sees all of its sequence's tokens
    ROW = "row"  # weight rows (k) over tp
    HEADS = "heads"  # heads over tp (attention and scans)
    TENSOR = "tensor"  # activations inside the tensor-parallel region: features over tp
    SEQUENCE = "sequence"  # outside it: tokens over tp under sequence parallelism, else repeated on every tp rank
    EXPERT_COLUMN = "expert-column"  # experts over ep, each expert's columns over etp
    EXPERT_ROW = "expert-row"  # experts over ep, each expert's rows over etp
    EXPERT_TENSOR = "expert-tensor"  # activations inside the experts: routed tokens over ep, features over etp
    EXPERT_TOKENS = "expert-tokens"  # routed copies of tokens outside the experts' tensor region (dispatch, combine)
    REPLICATED = "replicated"  # repeated whole on every tp rank, with or without sequence parallelism


SUBMODULES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "attn": ("core_attn", "mla_up_proj"),
        "mlp": ("mlp_act",),
        "moe": ("experts", "moe_act", "shared_experts"),
        "experts": ("moe_act",),
        "gdn": ("gdn_norm_out",),
    }
)
"""Recompute modules that lie inside another one: recomputing the outer one runs the inner ones again."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op of a layer, per token of the rank's own sequence shard (before any division over tp, ep or etp).

    Routed ops (``EXPERT_*``) state quantities per routed copy; a token makes ``top_k`` copies. A *score* is one entry
    of the attention matrix: a token has ``heads`` times as many as there are keys (the whole matrix, causal or not).

    Attributes
    ----------
    module : str
        Recompute module that contains it: ``core_attn``, ``attn`` (projections), ``layernorm``, ``mlp``, ``mlp_act``,
        ``moe`` (router, dispatch, experts), ``experts`` (their products), ``moe_act``, ``shared_experts``,
        ``mla_up_proj``, ``mamba``, ``gdn``, ``gdn_norm_out``, ``mhc``, ``residual``, ``embedding``, ``head``, ``mtp``,
        ``opaque``. :data:`SUBMODULES` says which contain others.
    k, n : int
        Weight shape of a GEMM; ``k`` is the width of the tokens that routing moves.
    columns : tuple of int
        Columns of the products that code without merged weights runs in place of this one; empty: it is one product.
    heads, kv_heads, qk_dim, v_dim, window : int
        Shape of an attention op.
    latent : tuple of int
        Widths of queries and values that a kernel runs with in their place where it reads chosen keys from latents,
        which all heads share; empty: it runs with those of the heads.
    compress, chosen : int
        Tokens that one further key beside the window stands for (without a window: there are such keys alone), and how
        many of these keys a query is given a list of; 0: all.
    flops_per_token : float
        Forward FLOPs of a SCAN or OPAQUE op (GEMM and attention derive theirs from the shape).
    traffic_elements_per_token : float
        Elements read and written by a MEMORY or SCAN op, forward, in activation precision.
    traffic_elements_per_score : float
        The same per score: what attention that is not fused reads and writes of its matrix.
    traffic_bytes_per_token : float
        Bytes of fixed width read and written, forward (OPAQUE ops).
    backward_traffic : float
        What a MEMORY op moves backward over what it moves forward; 0: as most ops do.
    saved_elements_per_token : float
        Elements in activation precision kept from forward to backward *because of this op* (its input, if no
        earlier op of the layer already keeps the same tensor).
    made_elements_per_token : float
        Kept elements in activation precision that the op itself makes: they vanish when the op runs again.
    saved_bytes_per_token : float
        Kept bytes of fixed width (masks, fp32 statistics, fp32 probabilities). The op itself makes them, so they vanish
        when the op runs again in the backward pass.
    saved_elements_per_score, saved_bytes_per_score : float
        The same per score; made by the op itself.
    shared_input_elements_per_token : float
        Elements of the op's input that another op of the layer already keeps in activation precision. A recipe that
        quantises the GEMM's input keeps a second copy of them, at the width of its GEMM inputs; other recipes none.
    saved_split : Split or None
        How the kept tensor divides, where it differs from the op itself (a COLUMN GEMM keeps its input, which under
        sequence parallelism lies sharded: SEQUENCE).
    dropped_by : tuple of str
        Recompute modules that make the kept elements vanish, because the module computes that tensor again.
    parameters : int
        Trainable parameters that the op owns (whole, all experts).
    low_precision : bool
        True when a fp8/fp4 recipe runs this GEMM in low precision.
    padded : bool
        True when the columns of this GEMM are as many as kernels like; False: as many as a vocabulary happens to have.
    """

    name: str
    module: str
    kind: OpKind
    split: Split
    k: int = 0
    n: int = 0
    heads: int = 0
    kv_heads: int = 0
    qk_dim: int = 0
    v_dim: int = 0
    window: int = 0
    compress: int = 0
    chosen: int = 0
    latent: tuple[int, int] | tuple[()] = ()
    causal: bool = True
    experts: int = 0
    top_k: int = 0
    flops_per_token: float = 0.0
    traffic_elements_per_token: float = 0.0
    saved_elements_per_token: float = 0.0
    saved_bytes_per_token: float = 0.0
    saved_split: Split | None = None
    parameters: int = 0
    low_precision: bool = True
    padded: bool = True
    traffic_elements_per_score: float = 0.0
    traffic_bytes_per_token: float = 0.0
    backward_traffic: float = 0.0
    saved_elements_per_score: float = 0.0
    saved_bytes_per_score: float = 0.0
    shared_input_elements_per_token: float = 0.0
    made_elements_per_token: float = 0.0
    dropped_by: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()

    @property
    def run_as(self) -> tuple[int, int, int]:
        """Heads of keys, width of queries and keys, and width of values that an attention kernel runs with."""
        return (1, *self.latent) if self.latent else (self.kv_heads, self.qk_dim, self.v_dim)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What an op keeps for the backward pass under a choice of recomputed modules; units as in :class:`Op`."""

    elements_per_token: float
    bytes_per_token: float
    elements_per_score: float
    bytes_per_score: float
    shared_input_elements_per_token: float


def runs_again(op: Op, modules: Sequence[str]) -> bool:
    """Whether selective recompute of ``modules`` runs the op a second time, in the backward pass.

    Parameters
    ----------
    op : Op
        An op of a layer.
    modules : sequence of str
        Names of recompute modules.

    Returns
    -------
    bool
        True when the op's module, or one that contains it (:data:`SUBMODULES`), is recomputed.
    """
    return any(op.module == name or op.module in SUBMODULES.get(name, ()) for name in modules)


def kept(op: Op, modules: Sequence[str] = ()) -> Kept:
    """Return what the op keeps for the backward pass when ``modules`` are recomputed.

    Full recompute of a layer keeps nothing but the layer's input, whatever its ops say; it is not asked here.

    Parameters
    ----------
    op : Op
        An op of a layer.
    modules : sequence of str
        Names of recompute modules; empty: nothing is recomputed.

    Returns
    -------
    Kept
        Per token and per score, before any division over the mesh.
    """
    dropped = any(name in op.dropped_by for name in modules)
    again = runs_again(op, modules)
    made = 0.0 if again or dropped else op.made_elements_per_token
    return Kept(
        elements_per_token=made + (0.0 if dropped else op.saved_elements_per_token),
        bytes_per_token=0.0 if again else op.saved_bytes_per_token,
        elements_per_score=0.0 if again else op.saved_elements_per_score,
        bytes_per_score=0.0 if again else op.saved_bytes_per_score,
        shared_input_elements_per_token=0.0 if again or dropped else op.shared_input_elements_per_token,
    )
