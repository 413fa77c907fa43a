"""What a rank's time goes to: the works that times of parts are told apart by."""

from enum import IntEnum
from types import MappingProxyType
from typing import Final

from costmodels.workload.op import OpKind


class Work(IntEnum):
    """What a rank's time goes to; index of the first axis of :attr:`costmodels.layer_costs.PartCosts.forward_s`."""

    GEMM = 0
    ATTENTION = 1
    MEMORY = 2
    RECOMPUTE = 3
    LAUNCH = 4  # the host starts kernels slower than the accelerator runs them
    TP = 5
    CP = 6
    EP = 7
    WEIGHTS = 8  # weight gathers and gradient reductions of every micro-batch (ZeRO-3)
    RESHARD = 9  # activations that move between layers of unlike strategies
    SHARED = 10  # exchanges wait for links that other transfers use; known once stages and schedule are
    ROUTING = 11  # ranks wait for the one whose experts got the most tokens
    OFFLOAD = 12  # activations on their way to host memory, or back, beside nothing

    @property
    def is_compute(self) -> bool:
        """Whether it belongs to computing: the accelerator works, or waits for its host, not for a transfer."""
        return self <= Work.LAUNCH


DEVICE_WORKS: Final = (Work.GEMM, Work.ATTENTION, Work.MEMORY, Work.RECOMPUTE)
COMPUTE_WORKS: Final = tuple(work for work in Work if work.is_compute)
EXCHANGE_WORKS: Final = tuple(work for work in Work if not work.is_compute)
WORK_OF: Final = MappingProxyType(
    {
        OpKind.GEMM: Work.GEMM,
        OpKind.GROUPED_GEMM: Work.GEMM,
        OpKind.ATTENTION: Work.ATTENTION,
        OpKind.SCAN: Work.ATTENTION,
        OpKind.MEMORY: Work.MEMORY,
        OpKind.OPAQUE: Work.GEMM,
    }
)
