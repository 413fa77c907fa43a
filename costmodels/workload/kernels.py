"""What the software's kernels keep and move: the options that change a layer's ops, as one value."""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Softmax(StrEnum):
    """How the softmax of attention runs where attention itself is not fused."""

    FUSED = "fused"  # scale, mask and softmax are one kernel
    FUSED_IN_FOURS = "fused-in-fours"  # the same where a rank's sequences times heads divide by 4, else separate-fp32
    SEPARATE = "separate"  # one kernel each, in the precision of the scores
    SEPARATE_TWICE_MASKED = "separate-twice-masked"  # the same, with a mask added and a limit kept, or two masks
    SEPARATE_FP32 = "separate-fp32"  # one kernel each on an fp32 copy of the scores, cast back


SCORE_ELEMENTS = MappingProxyType(
    {
        Softmax.FUSED: 4.0,
        Softmax.FUSED_IN_FOURS: 4.0,
        Softmax.SEPARATE: 6.0,
        Softmax.SEPARATE_TWICE_MASKED: 8.0,
        Softmax.SEPARATE_FP32: 16.0,
    }
)
"""Two-byte elements read and written per score, forward. Written by the first product and read by the second (2); the
fused softmax reads and writes (2). Separate kernels: mask (2) and softmax (2). On an fp32 copy: cast (1 + 2), mask
(2 + 2), softmax (2 + 2), cast back (2 + 1)."""


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
    softmax : Softmax
        What unfused attention makes of its scores.
    """

    flash_attention: bool = True
    dropout: bool = False
    fused: bool = True
    softmax: Softmax = Softmax.FUSED


MASK_ELEMENTS = 0.5  # a mask byte, in elements of a two-byte activation precision
FP32_BYTES = 4.0
