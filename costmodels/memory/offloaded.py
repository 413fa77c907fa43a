"""Activations of single modules of a layer that wait in host memory between its forward and its backward pass."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Granularity
from costmodels.memory.activations import kept_bytes
from costmodels.memory.tokens import token_shares
from costmodels.table import Floats, StrategyTable
from costmodels.workload.op import Op, OpKind

OFFLOAD_MODULES: Final = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
)
"""Names that Megatron-core's ``offload_modules`` takes (``TransformerConfig``, 0.19)."""
_OPS: Final = MappingProxyType(
    {
        "qkv_linear": ("qkv", "qk_norm", "q_down", "kv_down", "latent_norm", "q_up", "kv_up"),
        "core_attn": ("rotary",),
        "attn_proj": ("core_attention", "proj_down", "proj"),
        "expert_fc1": ("expert_fc1",),
        "moe_act": ("expert_activation",),
        "fused_group_mlp": ("expert_fc1", "expert_activation", "expert_fc2"),
    }
)
"""Ops whose kept tensors a module's context sees; what fused attention puts out is freed once both that read it are."""
_LATENTS: Final = ("q_down", "kv_down")


def away_bytes(ops: Sequence[Op], job: TrainingJob, table: StrategyTable) -> Floats:
    """Bytes of one layer that wait in host memory for one micro-batch in flight.

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision; ``offload_modules`` of its software.
    table : StrategyTable
        Strategies with their recompute, shape (S,).

    Returns
    -------
    ndarray
        Bytes, shape (S,): what the named modules keep and no recompute drops, tensors of any size; 0 under full
        recompute and per-op lists, which keep other tensors.

    References
    ----------
    Megatron-core 0.19 ``pipeline_parallel/fine_grained_activation_offload.py``: a module's context takes what is saved
    for its backward pass, inputs are released behind it. Norms without a module of their own (fused into the product
    behind them) belong to that product.
    """
    shares = token_shares(job, table)
    nothing = np.zeros(len(table))
    if not job.software.offload_modules:
        return nothing
    names = _names(ops, job)
    mine = [op for op in ops if op.name in names]
    sizes = [
        kept_bytes(mine, job, shares, recompute.modules)
        if recompute.granularity is not Granularity.FULL and not recompute.per_op
        else nothing
        for recompute in table.recomputes
    ]
    found = np.stack(sizes)[table.recompute, np.arange(len(table))]
    return np.asarray(job.software.offload_modules_share * found)


def _names(ops: Sequence[Op], job: TrainingJob) -> set[str]:
    """Ops of a layer whose kept tensors the modules of a job's software take away."""
    modules = job.software.offload_modules
    names = {op for module in modules for op in _OPS.get(module, ())}
    if "core_attn" in modules and not job.software.flash_attention:
        names.add("core_attention")  # the scores, which the product behind it does not read
    norm_apart = any(op.name in _LATENTS for op in ops)
    if ("attn_norm" if norm_apart else "qkv_linear") in modules:
        names.add("mixer_norm")
    if "mlp_norm" in modules and any(op.kind is OpKind.GROUPED_GEMM for op in ops):
        names.add("ffn_norm")
    return names
