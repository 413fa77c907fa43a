"""Ops of feed-forward parts: dense blocks and mixtures of experts."""

from costmodels.workload.kernels import Kernels
from costmodels.workload.model import DenseFfn, MoeFfn
from costmodels.workload.op import Op, OpKind, Split

# Router outputs kept in fp32 per expert: the scores, and the probabilities scattered over all experts; and a mask byte.
_ROUTER_BYTES_PER_EXPERT = 4.0 + 4.0 + 1.0
_ROUTE_BYTES_PER_COPY = 4.0 + 4.0  # fp32 probability and int32 row of a routed copy
_DISPATCH_TRAFFIC = 4.0  # gather into send order, and sort by local expert: a read and a write each
DISPATCH = "dispatch"
"""Name of the op that brings routed tokens into the order of their experts."""
_COMBINE_TRAFFIC = 3.0  # undo the sort (read, write), read for the sum


def _activation_traffic(ffn: DenseFfn | MoeFfn, kernels: Kernels) -> float:
    """Elements read and written per element of the activation's output."""
    if ffn.gated:
        return 3.0 if kernels.fused else 5.0
    return 2.0 if kernels.fused else 4.0


def _activation_input(ffn: DenseFfn | MoeFfn) -> float:
    """Elements that the activation reads, and keeps, per element of its output (the next GEMM's input)."""
    return 2.0 if ffn.gated else 1.0


def _activated_gate(ffn: DenseFfn | MoeFfn, kernels: Kernels) -> float:
    """Elements that the activation makes and keeps itself: separate kernels write the activated gate."""
    return 1.0 if ffn.gated and not kernels.fused else 0.0


def dense_ops(ffn: DenseFfn, hidden: int, kernels: Kernels, *, input_is_kept: bool = False) -> tuple[Op, ...]:
    """Return the ops of a dense feed-forward block, from the normed input on.

    Parameters
    ----------
    ffn : DenseFfn
        Shape of the block.
    hidden : int
        Width of the model.
    kernels : Kernels
        Options of the kernels.
    input_is_kept : bool
        True when the mixer's projection keeps the same normed input (parallel blocks with one norm).

    Returns
    -------
    tuple of Op
        In forward order.
    """
    return _mlp_ops(ffn, hidden, kernels, prefix="", modules=("mlp", "mlp_act"), input_is_kept=input_is_kept)


def _mlp_ops(
    ffn: DenseFfn, hidden: int, kernels: Kernels, *, prefix: str, modules: tuple[str, str], input_is_kept: bool
) -> tuple[Op, ...]:
    module, act_module = modules
    outer = ("moe",) if module == "shared_experts" else ()
    fc1_n = ffn.hidden * (2 if ffn.gated else 1)
    return (
        Op(
            name=f"{prefix}fc1",
            module=module,
            kind=OpKind.GEMM,
            split=Split.COLUMN,
            k=hidden,
            n=fc1_n,
            saved_elements_per_token=0.0 if input_is_kept else float(hidden),
            shared_input_elements_per_token=float(hidden) if input_is_kept else 0.0,
            saved_split=Split.SEQUENCE,
            dropped_by=("layernorm",),
            parameters=hidden * fc1_n + (fc1_n if ffn.bias else 0),
            columns=(ffn.hidden, ffn.hidden) if ffn.gated else (),
        ),
        Op(
            name=f"{prefix}activation",
            module=act_module,
            kind=OpKind.MEMORY,
            split=Split.TENSOR,
            traffic_elements_per_token=_activation_traffic(ffn, kernels) * ffn.hidden,
            saved_elements_per_token=_activation_input(ffn) * ffn.hidden,
            made_elements_per_token=_activated_gate(ffn, kernels) * ffn.hidden,
            dropped_by=(module, *outer),
            parameters=ffn.activation_parameters,
        ),
        Op(
            name=f"{prefix}fc2",
            module=module,
            kind=OpKind.GEMM,
            split=Split.ROW,
            k=ffn.hidden,
            n=hidden,
            saved_elements_per_token=float(ffn.hidden),
            dropped_by=tuple(dict.fromkeys((module, act_module, *outer))),
            parameters=ffn.hidden * hidden + (hidden if ffn.bias else 0),
        ),
    )


def moe_ops(ffn: MoeFfn, hidden: int, kernels: Kernels, *, input_is_kept: bool = False) -> tuple[Op, ...]:
    """Return the ops of a mixture of experts, from the normed input on.

    Parameters
    ----------
    ffn : MoeFfn
        Shape of the mixture.
    hidden : int
        Width of the model.
    kernels : Kernels
        Options of the kernels.
    input_is_kept : bool
        True when the mixer's projection keeps the same normed input.

    Returns
    -------
    tuple of Op
        In forward order: router, latent projection, dispatch, experts, combine, latent projection, shared experts.

    References
    ----------
    Kept tensors: Megatron-core's all-to-all dispatcher with grouped GEMM and probabilities applied at the activation
    (``megatron/core/transformer/moe``): routed inputs of both GEMMs, the activation's input, router probabilities.
    """
    width = ffn.latent or hidden
    return (
        _router(ffn, hidden, input_is_kept=input_is_kept),
        *_latent(ffn, hidden, into=True),
        _routed(DISPATCH, _DISPATCH_TRAFFIC, width, kept_bytes=_ROUTE_BYTES_PER_COPY, ffn=ffn),
        *_expert_ops(ffn, width, kernels),
        _routed("combine", _COMBINE_TRAFFIC + 1.0 / ffn.top_k, width, kept_bytes=0.0, ffn=ffn),
        *_latent(ffn, hidden, into=False),
        *_shared_ops(ffn, hidden, kernels),
    )


def _router(ffn: MoeFfn, hidden: int, *, input_is_kept: bool) -> Op:
    scored = ffn.experts + ffn.idle_experts
    return Op(
        name="router",
        module="moe",
        kind=OpKind.GEMM,
        split=Split.SEQUENCE,
        k=hidden,
        n=scored,
        experts=ffn.experts,
        top_k=ffn.top_k,
        saved_elements_per_token=0.0 if input_is_kept else float(hidden),
        saved_bytes_per_token=_ROUTER_BYTES_PER_EXPERT * scored,
        dropped_by=("layernorm",),
        parameters=hidden * scored + (scored if ffn.router_bias else 0),
        low_precision=False,
    )


def _latent(ffn: MoeFfn, hidden: int, *, into: bool) -> tuple[Op, ...]:
    if not ffn.latent:
        return ()
    k, n = (hidden, ffn.latent) if into else (ffn.latent, hidden)
    return (
        Op(
            name="latent_down" if into else "latent_up",
            module="moe",
            kind=OpKind.GEMM,
            split=Split.SEQUENCE,
            k=k,
            n=n,
            saved_elements_per_token=0.0 if into else float(k),  # the router keeps the input of the first
            shared_input_elements_per_token=float(k) if into else 0.0,
            dropped_by=("layernorm",) if into else ("moe",),
            parameters=k * n,
        ),
    )


def _routed(name: str, passes: float, width: int, *, kept_bytes: float, ffn: MoeFfn) -> Op:
    return Op(
        name=name,
        module="moe",
        kind=OpKind.MEMORY,
        split=Split.EXPERT_TOKENS,
        experts=ffn.experts,
        top_k=ffn.top_k,
        k=width,
        traffic_elements_per_token=passes * width,
        saved_bytes_per_token=kept_bytes,
    )


def _expert_ops(ffn: MoeFfn, width: int, kernels: Kernels) -> tuple[Op, ...]:
    fc1_n = ffn.hidden * (2 if ffn.gated else 1)
    return (
        Op(
            name="expert_fc1",
            module="experts",
            kind=OpKind.GROUPED_GEMM,
            split=Split.EXPERT_COLUMN,
            k=width,
            n=fc1_n,
            experts=ffn.experts,
            top_k=ffn.top_k,
            saved_elements_per_token=float(width),
            dropped_by=("moe",),
            parameters=ffn.experts * (width * fc1_n + (fc1_n if ffn.bias else 0)),
        ),
        Op(
            name="expert_activation",
            module="moe_act",
            kind=OpKind.MEMORY,
            split=Split.EXPERT_TENSOR,
            experts=ffn.experts,
            top_k=ffn.top_k,
            traffic_elements_per_token=_activation_traffic(ffn, kernels) * ffn.hidden,
            saved_elements_per_token=_activation_input(ffn) * ffn.hidden,
            made_elements_per_token=_activated_gate(ffn, kernels) * ffn.hidden,
            dropped_by=("moe", "experts"),
        ),
        Op(
            name="expert_fc2",
            module="experts",
            kind=OpKind.GROUPED_GEMM,
            split=Split.EXPERT_ROW,
            k=ffn.hidden,
            n=width,
            experts=ffn.experts,
            top_k=ffn.top_k,
            saved_elements_per_token=float(ffn.hidden),
            dropped_by=("moe", "experts", "moe_act"),
            parameters=ffn.experts * (ffn.hidden * width + (width if ffn.bias else 0)),
        ),
    )


def _shared_ops(ffn: MoeFfn, hidden: int, kernels: Kernels) -> tuple[Op, ...]:
    if not ffn.shared_hidden:
        return ()
    shared = DenseFfn(hidden=ffn.shared_hidden, gated=ffn.gated, bias=ffn.bias)
    modules = ("shared_experts", "shared_experts")
    ops = _mlp_ops(shared, hidden, kernels, prefix="shared_", modules=modules, input_is_kept=True)
    return (*ops, _shared_gate(hidden)) if ffn.shared_gate else ops


def _shared_gate(hidden: int) -> Op:
    """Return the sigmoid gate of the shared experts: a product with one column, and the scaling of their output."""
    return Op(
        name="shared_gate",
        module="shared_experts",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=3.0 * hidden,
        saved_elements_per_token=float(hidden),
        dropped_by=("moe", "shared_experts"),
        parameters=hidden,
    )
