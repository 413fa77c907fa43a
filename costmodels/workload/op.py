"""The op: the smallest thing that is priced. Time, memory and recompute all derive from one op list per layer kind."""

from dataclasses import dataclass
from enum import StrEnum


class OpKind(StrEnum):
    """What the hardware does for an op."""

    GEMM = "gemm"  # tokens x k times k x n
    GROUPED_GEMM = "grouped-gemm"  # one GEMM per local expert
    ATTENTION = "attention"  # scores, softmax and weighted sum, fused or not
    SCAN = "scan"  # chunked state-space or linear-attention scan
    MEMORY = "memory"  # bound by memory traffic: norms, activations, rotary, residuals, permutation


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


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op of a layer, per token of the rank's own sequence shard (before any division over tp, ep or etp).

    Routed ops (``EXPERT_*``) state quantities per routed copy; a token makes ``top_k`` copies.

    Attributes
    ----------
    module : str
        Recompute module that contains it: ``core_attn``, ``attn`` (projections), ``layernorm``, ``mlp``, ``mlp_act``,
        ``moe`` (router, dispatch, experts), ``moe_act``, ``shared_experts``, ``mla_up_proj``, ``mamba``,
        ``embedding``, ``head``.
    k, n : int
        Weight shape of a GEMM.
    heads, kv_heads, qk_dim, v_dim, window : int
        Shape of an attention op.
    flops_per_token : float
        Forward FLOPs of a SCAN op (GEMM and attention derive theirs from the shape).
    traffic_elements_per_token : float
        Elements read and written by a MEMORY or SCAN op, forward, in activation precision.
    saved_elements_per_token : float
        Elements in activation precision kept from forward to backward *because of this op* (its input, if no
        earlier op of the layer already keeps the same tensor).
    saved_bytes_per_token : float
        Kept bytes of fixed width (masks, fp32 statistics, fp32 probabilities).
    saved_split : Split or None
        How the kept tensor divides, where it differs from the op itself (a COLUMN GEMM keeps its input, which under
        sequence parallelism lies sharded: SEQUENCE).
    parameters : int
        Trainable parameters that the op owns (whole, all experts).
    low_precision : bool
        True when a fp8/fp4 recipe runs this GEMM in low precision.
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
