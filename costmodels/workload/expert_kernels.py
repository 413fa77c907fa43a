"""What runs around grouped products of experts in kernels of its own: clamps of activations, biases of outputs.

References
----------
Megatron-core ``transformer/moe/experts.py`` (``TEGroupedMLP._apply_bias``) and ``fusions/fused_bias_geglu.py``
(``weighted_bias_quick_geglu_impl``): as PyTorch runs them, op by op. Biases of the first product are part of it.
"""

from collections.abc import Sequence
from typing import Final

from costmodels.workload.op import Op, OpKind, Split

_CLAMPED: Final = "quick-gelu"
"""The activation whose inputs are clamped (gpt-oss)."""
_BIAS: Final = (6.0, 6.0)
"""Two-byte elements per element of the output, forward and backward. Forward: bias times probability (1), the sum
(2 + 1), pieces of all experts joined (1 + 1). Backward, for probability and bias: a product (1 + 1), its sum (1)."""
_WIDE_BIAS: Final = (14.0, 18.0)
"""The same with probabilities in fp32, which makes all of it so: forward (2), (1 + 2 + 2), (2 + 2), cast back (2 + 1);
backward the gradient cast there and back (1 + 2, 2 + 1), and twice a product (2 + 2) and its sum (2)."""
_CLAMP: Final = (4.0, 5.0)
"""Per element that the activation reads. Forward: clamped (1 + 1), both halves joined (1 + 1). Backward: gradient and
input read, written (2 + 1), gradients of both halves joined (1 + 1)."""


def with_expert_kernels(ops: Sequence[Op], activation: str, *, wide: bool) -> tuple[Op, ...]:
    """Return the ops of a layer with those around its grouped products.

    Parameters
    ----------
    ops : sequence of Op
        Of a layer.
    activation : str
        Of the model, one of :data:`costmodels.workload.details.ACTIVATIONS`.
    wide : bool
        Probabilities of routed tokens are fp32, as the dispatchers other than the plain all-to-all have them.

    Returns
    -------
    tuple of Op
        In forward order; a layer without experts as it is.
    """
    found: list[Op] = []
    for op in ops:
        if op.name == "expert_activation" and activation == _CLAMPED:
            found.append(_around("expert_clamp", op, _CLAMP, op.saved_elements_per_token))
        found.append(op)
        if op.name == "expert_fc2" and op.parameters > op.experts * op.k * op.n:
            found.append(_around("expert_bias", op, _WIDE_BIAS if wide else _BIAS, float(op.n)))
    return tuple(found)


def _around(name: str, op: Op, passes: tuple[float, float], elements: float) -> Op:
    """An op over elements of every routed token, repeated where its neighbour is. It keeps nothing of its own."""
    forward, backward = passes
    return Op(
        name=name,
        module=op.module,
        kind=OpKind.MEMORY,
        split=Split.EXPERT_TENSOR,
        experts=op.experts,
        top_k=op.top_k,
        traffic_elements_per_token=forward * elements,
        backward_traffic=backward / forward,
    )
