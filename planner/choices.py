"""What a user chooses from by name; light, so that the command line can list it before anything heavy is loaded."""

from enum import StrEnum


class Objective(StrEnum):
    """What a layout is ranked by."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"


class Framework(StrEnum):
    """Who will run the plan: a constraint set on the search and the meaning of exported arguments."""

    MEGATRON = "megatron"
    BRIDGE = "bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    GALVATRON = "galvatron"
    NONE = "none"


class Offload(StrEnum):
    """What of training lies in host memory."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    STATES = "states"  # weights, gradients and the optimizer's
    INPUTS = "inputs"  # what full recompute keeps of a layer, until its backward pass
    OPTIMIZER_INPUTS = "optimizer+inputs"
    STATES_INPUTS = "states+inputs"

    @property
    def parts(self) -> frozenset[str]:
        """What it names, apart: ``optimizer``, ``states``, ``inputs``."""
        return frozenset(self.value.split("+")) - {"none"}


class Loss(StrEnum):
    """How the cross-entropy is computed."""

    DEFAULT = "default"  # as plans of the framework are priced
    WHOLE = "whole"  # on all logits of a micro-batch, by kernels of their own
    FUSED = "fused"  # on all of them, by one kernel
    CHUNKED = "chunked"  # with the output matrix, in chunks of the sequence
    LIGER = "liger"  # with the output matrix, in chunks, by Liger's kernels
    LINEAR = "linear"  # with the output matrix, in blocks of columns, by Megatron-core's development branch
    CUT = "cut"  # with the output matrix, by cut cross-entropy


class Launcher(StrEnum):
    """What starts the processes of a job: which ranks can be on one node."""

    TORCHRUN = "torchrun"
    SRUN = "srun"
    MPIRUN = "mpirun"

    @property
    def scatters(self) -> bool:
        """Whether any rank can start on any node, or only consecutive ranks together."""
        return self is not Launcher.TORCHRUN
