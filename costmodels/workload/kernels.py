"""What the software's kernels keep and move: the options that change a layer's ops, as one value."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Options of the kernels that run a layer.

    Parameters
    ----------
    flash_attention : bool
        Attention never writes its matrix to memory.
    dropout : bool
        Dropout is on: attention and both residual branches keep masks.
    fused : bool
        Norms, activations, rotary and bias-dropout-add are one kernel each.
    """

    flash_attention: bool = True
    dropout: bool = False
    fused: bool = True


MASK_ELEMENTS = 0.5  # a mask byte, in elements of a two-byte activation precision
FP32_BYTES = 4.0
