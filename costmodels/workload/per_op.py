"""Recompute by a list of ops whose outputs are kept: torchtitan's selective recompute per op."""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.workload.op import Op, OpKind, Split

_FORCED = frozenset({"router"})
"""Products that always run again and are not counted (``force_recompute_mm_shapes_by_fqns``: ``moe.router.gate``)."""
_QUERIES = frozenset({"q_down", "q_up", "q_proj"})
"""Products of latent attention that run before those of keys and values."""
_BYTES_OF_STATISTIC = 4.0


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What is kept of one op's outputs, per token and before any division over the mesh, and what of it runs again.

    ``elements`` are the op's own output as ``split`` says; ``scattered`` the sum over tp, sharded by tokens, and
    ``received`` what an exchange of experts brought, per routed copy: both only where there is such an exchange.
    ``again`` is the share of the op's forward that the backward pass repeats.
    """

    elements: float = 0.0
    fixed_bytes: float = 0.0
    split: Split = Split.SEQUENCE
    scattered: float = 0.0
    received: float = 0.0
    again: float = 1.0


def listed(ops: Sequence[Op], *, compiled: bool, unlisted: bool) -> tuple[Listed, ...]:
    """Return what a layer keeps, op by op, when every second product and all attention outputs are on the list.

    Kept are the outputs of the first, third, ... product in the order in which they run (queries, keys, values, output,
    gate, up, down), of fused attention, of sums scattered over tp and of exchanges of experts. Grouped products,
    norms and activations are not on the list. A compiled layer does not keep or repeat what its backward pass never
    reads: the output of its last product. One that is not compiled keeps it when its turn says so.

    Parameters
    ----------
    ops : sequence of Op
        The layer, in forward order.
    compiled : bool
        The layer is compiled.
    unlisted : bool
        Products run by an op that is not on the list.

    Returns
    -------
    tuple of Listed
        One for each op.

    References
    ----------
    torchtitan ``distributed/activation_checkpoint.py`` (``SelectiveAC``, ``_get_default_save_ops``): ``aten.mm``
    counted and kept by turns, ``_scaled_dot_product_*`` and flex attention, ``reduce_scatter_tensor``,
    ``all_to_all_single``.
    """
    turns = _kept_columns(ops)
    found = []
    for number, op in enumerate(ops):
        unread = compiled and op.kind is OpKind.GEMM and all(later.module == "residual" for later in ops[number + 1 :])
        product = op.kind is OpKind.GEMM and not (unlisted and op.low_precision)
        found.append(_of_op(op, turns[number] if product else 0, unread=unread))
    return tuple(found)


def _kept_columns(ops: Sequence[Op]) -> list[int]:
    """Columns that are kept of every op, by turns of the products as code without merged weights runs them."""
    order = sorted(range(len(ops)), key=lambda number: _turn(ops, number))
    kept = [0] * len(ops)
    keep = True
    for number in order:
        op = ops[number]
        if op.kind is not OpKind.GEMM or op.name in _FORCED:
            continue
        for columns in op.columns or (op.n,):
            kept[number] += columns if keep else 0
            keep = not keep
    return kept


def _turn(ops: Sequence[Op], number: int) -> tuple[int, int]:
    """Sort key: latent attention projects its queries up before it projects keys and values down."""
    down = next((place for place, op in enumerate(ops) if op.name in _QUERIES), number)
    return (down, number) if ops[number].name in _QUERIES else (number, number)


def _of_op(op: Op, columns: int, *, unread: bool) -> Listed:
    if unread:
        return Listed(again=0.0)
    if op.kind is OpKind.GEMM:
        rows = op.split is Split.ROW
        return Listed(
            elements=float(columns),
            split=Split.REPLICATED if rows else op.split,  # a product over split rows is a part of the sum: whole
            scattered=float(op.n) if rows else 0.0,
            again=1.0 - columns / op.n,
        )
    if op.kind is OpKind.ATTENTION and op.module == "core_attn" and not op.saved_elements_per_score:
        statistics = _BYTES_OF_STATISTIC * op.heads
        return Listed(elements=float(op.heads * op.run_as[2]), fixed_bytes=statistics, split=op.split, again=0.0)
    if op.name == "expert_fc1":
        return Listed(received=2.0 * op.k)  # on the way to the experts and on the way back
    return Listed()
