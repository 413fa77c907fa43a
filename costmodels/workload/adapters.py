"""Low-rank adapters beside frozen products (LoRA): which products have one, and how many parameters they come to.

References
----------
Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4: a frozen (k, n) matrix
gets factors of (k, r) and (r, n).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerKind, ModelSpec
from costmodels.workload.op import Op, OpKind
from hardware.package_table import package_table

TARGETS: Final = MappingProxyType(
    {
        "attn": ("attn", "mla_up_proj"),
        "mlp": ("mlp", "shared_experts"),
        "mamba": ("mamba",),
        "gdn": ("gdn",),
    }
)
"""What adapters may stand beside, and the recompute modules of the products. Routed experts are not among them."""


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
        Each module of Hugging Face's has an adapter of its own, which reads the whole input: queries, keys, values,
        gate and up projection where the model has them apart. Else products that run as one have one (Megatron-core's
        ``linear_qkv``, ``linear_fc1``).

    Returns
    -------
    int
        0 where no product is adapted.
    """
    total = 0
    for run in model.runs:
        if isinstance(run.kind, LayerKind):
            adapted = [op for op in layer_ops(run.kind, model) if op.kind is OpKind.GEMM and op.module in modules]
            inputs = (_modules_of(op, model.family) if separate else 1 for op in adapted)
            total += run.count * sum(rank * (count * op.k + op.n) for count, op in zip(inputs, adapted, strict=True))
    return total


def _modules_of(op: Op, family: str) -> int:
    """Modules of Hugging Face's that a product is."""
    return _joined().get(family, {}).get(op.name) or max(1, len(op.columns))


@cache
def _joined() -> Mapping[str, Mapping[str, int]]:
    """Families of models to products that are not a module for each of their columns."""
    entries = package_table("costmodels.workload", "joined.toml")["joined"]
    return MappingProxyType({family: entry["modules"] for entry in entries for family in entry["families"]})
