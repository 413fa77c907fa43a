"""Remarks on a model's shapes: what kernels do not like, and sequences beyond what the model was trained for."""

from typing import Final

from costmodels.workload.model import ModelSpec

HEAD_MULTIPLE: Final = 8
"""Elements that matrix units take at once in 16 bits: NVIDIA, "Matrix Multiplication Background User's Guide"."""


def shape_notes(model: ModelSpec) -> tuple[str, ...]:
    """Say which head sizes are no multiple of what matrix units take at once.

    Parameters
    ----------
    model : ModelSpec
        Any model; one without attention has no remark on heads.

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


def position_notes(model: ModelSpec, seq: int) -> tuple[str, ...]:
    """Say that sequences are longer than the positions that a model states; empty where they are not."""
    if not 0 < model.max_positions < seq:
        return ()
    how = (
        "its table of positions is to grow" if model.learned_positions else "the launch sets positions to the sequence"
    )
    note = f"{model.name} states {model.max_positions:,} positions and sequences have {seq:,} tokens: {how}"
    return (note,)
