"""Low-rank adapters beside frozen products (LoRA): which products have one, and how many parameters they come to.

References
----------
Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4: a frozen (k, n) matrix
gets factors of (k, r) and (r, n).
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from costmodels.workload.layers import layer_ops
from costmodels.workload.model import DenseFfn, LayerKind, ModelSpec, MoeFfn
from costmodels.workload.op import Op, OpKind

TARGETS: Final = MappingProxyType(
    {
        "attn": ("attn", "mla_up_proj"),
        "mlp": ("mlp", "shared_experts"),
        "mamba": ("mamba",),
        "gdn": ("gdn",),
    }
)
"""What adapters may stand beside, and the recompute modules of the products. Routed experts are not among them."""
_JOINED: Final = 3  # queries, keys and values in one product


def target_modules(targets: Sequence[str]) -> tuple[str, ...]:
    """Recompute modules whose products have adapters.

    Raises
    ------
    KeyError
        A word is none of :data:`TARGETS`.
    """
    return tuple(module for target in targets for module in TARGETS[target])


def adapter_parameters(model: ModelSpec, rank: int, modules: Sequence[str], *, separate: bool = False) -> int:
    """Count the parameters of the adapters of a model.

    Parameters
    ----------
    model : ModelSpec
        The frozen model.
    rank : int
        Of every adapter.
    modules : sequence of str
        As of :func:`target_modules`.
    separate : bool
        Queries, keys, values, gate and up projections have adapters of their own (Hugging Face's modules); else
        products that run as one have one (Megatron-core's ``linear_qkv``, ``linear_fc1``).

    Returns
    -------
    int
        0 where no product is adapted.
    """
    total = 0
    for run in model.runs:
        if isinstance(run.kind, LayerKind):
            adapted = [op for op in layer_ops(run.kind, model) if op.kind is OpKind.GEMM and op.module in modules]
            inputs = (_inputs(op, run.kind) if separate else 1 for op in adapted)
            total += run.count * sum(rank * (count * op.k + op.n) for count, op in zip(inputs, adapted, strict=True))
    return total


def _inputs(op: Op, kind: LayerKind) -> int:
    """Projections that a product joins, each with an adapter that reads the whole input."""
    if op.name == "qkv":
        return _JOINED
    gated = isinstance(kind.ffn, DenseFfn | MoeFfn) and kind.ffn.gated
    return 2 if op.name in ("fc1", "shared_fc1") and gated else 1
