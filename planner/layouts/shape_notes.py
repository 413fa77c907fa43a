"""Remarks on a model's shapes that kernels do not like."""

from typing import Final

from costmodels.workload.model import ModelSpec

HEAD_MULTIPLE: Final = 8
"""Elements that matrix units take at once in 16 bits: NVIDIA, "Matrix Multiplication Background User's Guide"."""


def shape_notes(model: ModelSpec) -> tuple[str, ...]:
    """Say which head sizes are no multiple of what matrix units take at once.

    Parameters
    ----------
    model : ModelSpec
        Any model; one without attention has no remark.

    Returns
    -------
    tuple of str
        One remark for each such size.
    """
    sizes = {int(getattr(getattr(kind, "mixer", None), "qk_dim", 0)) for kind in model.kinds()}
    return tuple(
        f"head size {size} is no multiple of {HEAD_MULTIPLE}: attention and its products run below the rates of their "
        "neighbours, by more than is priced without fused attention"
        for size in sorted(sizes)
        if size % HEAD_MULTIPLE
    )
