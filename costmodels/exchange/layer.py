"""What one part of a model exchanges for one micro-batch under every strategy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.exchange.context import context_exchange
from costmodels.exchange.experts import expert_exchange
from costmodels.exchange.placed import Call, Exchanged, PlacedTable
from costmodels.exchange.states import weight_exchange
from costmodels.exchange.tensor import copied_bytes, gathered_bytes, loss_exchange, opaque_exchange, tensor_exchange
from costmodels.exchange.volumes import TensorWidths, context_widths, end_widths, kind_of, tensor_widths
from costmodels.job import TrainingJob
from costmodels.memory.states import local_parameters
from costmodels.table import Floats, StrategyTable
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops
from costmodels.workload.model import LayerKind, ModelSpec, MoeFfn, OpaqueLayer
from costmodels.workload.op import Op, OpKind


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerExchange:
    """Exchanges of one part of the model for one micro-batch on one rank; arrays (S,), seconds and bytes sent.

    ``tp_backward_hidden_s`` is the part of ``tp_backward_s`` that frameworks start beside a weight- or data-gradient
    GEMM; ``tp_copied_*_bytes`` are what layouts around these exchanges read and write. ``weights_*`` are weight gathers
    and gradient reductions that recur with every micro-batch (ZeRO stages 2, 3). Bytes sent cover forward and backward
    pass. ``*_load``, shape (T - 1, S), are the shares of a rank's part of each outer tier that are in use while the
    exchange runs.
    """

    tp_forward_s: Floats
    tp_backward_s: Floats
    tp_backward_hidden_s: Floats
    tp_copied_forward_bytes: Floats
    tp_copied_backward_bytes: Floats
    cp_forward_s: Floats
    cp_backward_s: Floats
    ep_forward_s: Floats
    ep_backward_s: Floats
    weights_forward_s: Floats
    weights_backward_s: Floats
    weights_reduced_s: Floats
    tp_bytes: Floats
    cp_bytes: Floats
    ep_bytes: Floats
    weights_bytes: Floats
    tp_load: Floats
    cp_load: Floats
    ep_load: Floats
    weights_load: Floats
    calls: tuple[Call, ...]


def layer_exchange(
    name: str,
    model: ModelSpec,
    job: TrainingJob,
    placed: PlacedTable,
) -> LayerExchange:
    """Price what one part of a model exchanges for one micro-batch under every strategy.

    Parameters
    ----------
    name : str
        Name of a kind of layer, or ``embedding``, ``head`` or ``mtp``.
    model : ModelSpec
        The model.
    job : TrainingJob
        Sequence, precision, software.
    placed : PlacedTable
        S strategies on their hierarchy.

    Returns
    -------
    LayerExchange
        Arrays of shape (S,).

    Raises
    ------
    InputError
        ``software.cp_comm`` names no known form of context parallelism.
    """
    kind = kind_of(name, model)
    ops = _ops_of(name, kind, model)
    tensor = _tensor_exchange_of(name, model, job, placed)
    inner = kind if isinstance(kind, LayerKind) else None
    context = context_exchange(context_widths(inner.mixers if inner else ()), job, placed)
    moe = inner.ffn if inner and isinstance(inner.ffn, MoeFfn) else None
    experts = expert_exchange(moe, model, job, placed) if moe else placed.add_up(())
    products = sum(op.kind is OpKind.GEMM and op.parameters > 0 for op in ops)
    weights = weight_exchange(local_parameters(ops, placed.table), job, placed, products)
    axes = {"tp": tensor, "cp": context, "ep": experts, "weights": weights}
    arrays: dict[str, Floats] = {}
    for axis, found in axes.items():
        arrays[f"{axis}_forward_s"], arrays[f"{axis}_backward_s"] = found.forward_s, found.backward_s
        arrays[f"{axis}_bytes"], arrays[f"{axis}_load"] = found.sent_bytes, found.load(placed.tiers)
    calls = tuple(call for found in axes.values() for call in found.calls)
    widths = TensorWidths() if isinstance(kind, OpaqueLayer) else _widths(name, kind, model, job)
    copied = copied_bytes(widths, job, placed, gathered_bytes(name, job))
    reduced = [call.seconds * call.backward for call in weights.calls if call.collective != "all_gather"]
    return LayerExchange(
        weights_reduced_s=np.zeros(len(placed.table)) + sum(reduced),
        tp_backward_hidden_s=tensor.hidden_s,
        tp_copied_forward_bytes=copied[0],
        tp_copied_backward_bytes=copied[1],
        calls=calls,
        **arrays,
    )


def tensor_calls(name: str, model: ModelSpec, job: TrainingJob, table: StrategyTable) -> tuple[Floats, Floats]:
    """Tensor-parallel collectives that one part starts forward and backward, shapes (S,); none without tp."""
    kind = kind_of(name, model)
    if isinstance(kind, OpaqueLayer):
        calls = np.where(table.tp > 1, float("tp" in kind.shardable), 0.0)
        return calls, calls
    widths = _widths(name, kind, model, job)
    ins, outs, more = (float(len(part)) for part in (widths.gathers, widths.reductions, widths.further_gradients))
    some = (table.tp > 1).astype(np.float64)
    forward = np.where(table.sequence_parallel, ins + outs, outs)
    again = 0.0 if job.software.gathered_inputs_kept else ins
    backward = np.where(table.sequence_parallel, ins + outs + more + again, ins + more)
    return some * forward, some * backward


def _tensor_exchange_of(name: str, model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Tensor-parallel exchanges of a part: of its layer, of an end of the model, or both (multi-token prediction)."""
    kind = kind_of(name, model)
    if isinstance(kind, OpaqueLayer):
        return opaque_exchange(kind, placed)
    exchange = tensor_exchange(_widths(name, kind, model, job), job, placed, gathered_bytes(name, job))
    if name not in ("head", "mtp"):
        return exchange
    return placed.add_up([*exchange.calls, *loss_exchange(model, job, placed).calls])


def _widths(name: str, kind: LayerKind | None, model: ModelSpec, job: TrainingJob) -> TensorWidths:
    """Widths of the tensor-parallel exchanges of a part: of its layer, if it has one, and of an end of the model."""
    ends = end_widths(name, model)
    if kind is None:
        return ends
    joined = tensor_widths(kind, model.hidden)
    if not job.software.inputs_gathered_apart:
        return ends + joined
    apart = tensor_widths(kind, model.hidden, apart=True)
    return ends + (apart.with_joined_gathers(joined) if job.software.compiled else apart)


def _ops_of(name: str, kind: LayerKind | OpaqueLayer | None, model: ModelSpec) -> Sequence[Op]:
    """Ops of a part, for the parameters they own."""
    if name == "embedding":
        return embedding_ops(model)
    if name == "head":
        return head_ops(model)
    if name == "mtp":
        return mtp_ops(model)
    return layer_ops(kind, model) if kind is not None else ()
