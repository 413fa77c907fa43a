"""Flags of Megatron-LM for what its software does, one table for both ways: launches are priced by it, plans written.

References
----------
Megatron-core 0.19 ``training/arguments.py``, ``distributed_data_parallel_config.py``, ``transformer_config.py`` and
Transformer Engine ``attention``: no overlap of gradients, parameters or tensor parallelism unless asked for, stages of
interleaved pipelines send beside their products, experts run one by one and tokens are gathered unless told otherwise,
dropout is 0.1, context parallelism passes keys and values around (``p2p``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import Dispatcher, Software
from planner.ingest.options import Arguments


@dataclass(frozen=True)
class SwitchFlag:
    """A switch of Megatron-LM, and the value that its field of :class:`Software` has where it is given."""

    flag: str
    value: bool
    of_experts: bool = False


SWITCH_FLAGS: Final[Mapping[str, SwitchFlag]] = MappingProxyType(
    {
        "grad_overlap": SwitchFlag("--overlap-grad-reduce", True),
        "param_overlap": SwitchFlag("--overlap-param-gather", True),
        "tp_overlap": SwitchFlag("--tp-comm-overlap", True),
        "p2p_overlap": SwitchFlag("--no-overlap-p2p-communication", False),
        "grouped_gemm": SwitchFlag("--moe-grouped-gemm", True, of_experts=True),
        "expert_overlap": SwitchFlag("--overlap-moe-expert-parallel-comm", True, of_experts=True),
    }
)
EXCHANGE: Final = "--cp-comm-type"
EXCHANGES: Final = MappingProxyType({"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather"})
"""Exchanges of context parallelism, as Transformer Engine names them."""
BACKEND: Final = "--attention-backend"
KERNELS: Final = MappingProxyType({"fa2": "flash"})
"""Fused kernels with a name in Megatron-LM; without one, Transformer Engine takes cuDNN's."""
UNFUSED: Final = "unfused"
KERNEL_VARIABLES: Final = MappingProxyType(
    {"flash": "NVTE_FLASH_ATTN", "fused": "NVTE_FUSED_ATTN", UNFUSED: "NVTE_UNFUSED_ATTN"}
)
"""Transformer Engine's variables by the backend that each allows; all are 1 unless set."""
_NO_KERNEL: Final = (UNFUSED, "local")
FUSED_LOSS: Final = "--cross-entropy-loss-fusion"
LOSS_IMPL: Final = "--cross-entropy-fusion-impl"
DISPATCHER: Final = "--moe-token-dispatcher-type"
FLEX_BACKEND: Final = "--moe-flex-dispatcher-backend"
DEEPEP: Final = "--moe-enable-deepep"
FLEX: Final = "flex"
FLEXIBLE: Final = (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)
CAPACITY: Final = "--moe-expert-capacity-factor"
DROPOUTS: Final = ("--attention-dropout", "--hidden-dropout")
_DROPOUT: Final = "0.1"
OFFLOAD: Final = "--fine-grained-activation-offloading"
MODULES_THERE: Final = "--offload-modules"
SHARE_THERE: Final = "--activation-offload-fraction"
_UNPRICED: Final = (
    "--delta-offload-bytes-across-pp-ranks",
    "--min-offloaded-tensor-size",
)
GRAPHS: Final = "--cuda-graph-impl"
_OLD_GRAPHS: Final = "--enable-cuda-graph"
_GRAPHED: Final = ("--cuda-graph-modules", "--cuda-graph-scope")
_WHOLE: Final = "full_iteration"
_OF_LAYERS: Final = ("attn", "mamba")
Fields = dict[str, Any]


@dataclass(frozen=True)
class StatedSoftware:
    """Fields of :class:`Software` that a launch states, with its framework's defaults; and what is priced otherwise."""

    fields: Fields = field(default_factory=dict)
    otherwise: tuple[str, ...] = ()

    @property
    def note(self) -> tuple[str, ...]:
        """One remark on all that is priced otherwise than stated; empty for none."""
        return (f"priced otherwise than stated: {', '.join(self.otherwise)}",) if self.otherwise else ()


def switch_words(tools: Software, name: str) -> list[str]:
    """The switch that says a field's value; empty where Megatron-LM has it so by default."""
    switch = SWITCH_FLAGS[name]
    return [switch.flag] if getattr(tools, name) is switch.value else []


def attention_words(tools: Software) -> list[str]:
    """The kernels of attention, where they are others than Transformer Engine's usual choice."""
    name = KERNELS.get(tools.attention_kernel, "") if tools.flash_attention else UNFUSED
    return [BACKEND, name] if name else []


def kernel_variables(tools: Software) -> tuple[tuple[str, str], ...]:
    """Variables of Transformer Engine that choose kernels of attention, where they are not its usual choice."""
    words = attention_words(tools)
    return tuple((name, str(int(kernel == words[-1]))) for kernel, name in KERNEL_VARIABLES.items()) if words else ()


def kernel_of_variables(environment: Mapping[str, str]) -> str:
    """The backend of attention that variables leave, such as ``flash``; empty where they leave the choice."""
    left = [kernel for kernel, name in KERNEL_VARIABLES.items() if environment.get(name, "1") != "0"]
    return "" if "fused" in left or not left else left[0]


def offload_words(tools: Software) -> list[str]:
    """The modules of a layer whose activations wait in host memory."""
    if not tools.offload_modules:
        return []
    share = [SHARE_THERE, f"{tools.offload_modules_share:g}"] if tools.offload_modules_share < 1.0 else []
    return [OFFLOAD, MODULES_THERE, *tools.offload_modules, *share]


def stated_software(read: Arguments, *, experts: bool, decided: Collection[str] | None = None) -> StatedSoftware:
    """Read what a launch says of its software.

    Parameters
    ----------
    read : Arguments
        Of Megatron-LM.
    experts : bool
        Whether the model has some; its dispatcher and their products count for nothing otherwise.
    decided : collection of str or None
        Flags that a launch in overrides decides on: its recipe, as its framework is priced, has the others. None:
        what is not given is Megatron-LM's default.
    """

    def told(*flags: str) -> bool:
        return decided is None or any(flag in decided for flag in flags)

    found: Fields = {
        name: switch.value if read.has(switch.flag) else not switch.value
        for name, switch in SWITCH_FLAGS.items()
        if told(switch.flag) and (experts or not switch.of_experts)
    }
    if read.has("--use-torch-fsdp2"):  # PyTorch's own, which overlaps whatever these switches say
        found |= {"grad_overlap": True, "param_overlap": True}
    otherwise = [flag for flag in _UNPRICED if read.has(flag) and read.text(flag) != "none"]
    if told(*DROPOUTS):
        found["dropout"] = any(_positive(read.text(flag, _DROPOUT)) for flag in DROPOUTS)
    otherwise += _exchange(read, found) if told(EXCHANGE) else []
    graphs, unpriced = _graphs(read, experts=experts)
    found |= graphs
    otherwise += unpriced
    if read.has(OFFLOAD):
        found["offload_modules"] = read.texts(MODULES_THERE)
        found["offload_modules_share"] = float(read.text(SHARE_THERE, "1"))
    if read.has(BACKEND) or read.text("--transformer-impl") == "local":
        found |= _kernel(read)
    if experts and told(DISPATCHER):
        found["dispatcher"] = _dispatcher(read)
    if experts and _positive(read.text(CAPACITY, "0")):
        found["capacity_factor"] = float(read.text(CAPACITY))
    return StatedSoftware(found, tuple(otherwise))


def _exchange(read: Arguments, found: Fields) -> list[str]:
    """Set the exchange of context parallelism; what of it is priced otherwise."""
    names = {text.replace("_", "").lower() for text in read.texts(EXCHANGE)} or {"p2p"}
    known = next((name for name in EXCHANGES if names == {name}), "")
    found["cp_comm"] = known or "p2p"
    return [] if known else [f"{EXCHANGE} {' '.join(read.texts(EXCHANGE))} as p2p"]


def _graphs(read: Arguments, *, experts: bool) -> tuple[Fields, list[str]]:
    """What CUDA graphs capture, and the flag of those that are priced as none.

    The whole iteration or whole layers leave the host nothing to start; graphs of attention and routers leave it the
    experts; those of other modules alone have no price.
    """
    impl, modules = read.text(GRAPHS, "none"), [name for flag in _GRAPHED for name in read.texts(flag)]
    if read.has(_OLD_GRAPHS) or _WHOLE in (impl, *modules) or impl == "local":
        return {"cuda_graphs": True}, []
    if impl == "none":
        return {}, []
    if any(name in _OF_LAYERS for name in modules) or (not modules and not experts):
        return {"cuda_graphs": True, "graphed_experts": not experts}, []
    return {}, [GRAPHS]


def _kernel(read: Arguments) -> Fields:
    backend = read.text(BACKEND, "auto")
    if backend in _NO_KERNEL or read.text("--transformer-impl") == "local":
        return {"flash_attention": False}
    kernel = next((kernel for kernel, name in KERNELS.items() if name == backend), "cudnn")
    return {"attention_kernel": kernel}


def _dispatcher(read: Arguments) -> Dispatcher:
    name = read.text(DISPATCHER, Dispatcher.ALLGATHER)
    if name != FLEX:
        return Dispatcher.ALLGATHER if name == Dispatcher.ALLGATHER else Dispatcher.ALLTOALL
    backend = read.text(FLEX_BACKEND, Dispatcher.DEEPEP)
    return Dispatcher.HYBRIDEP if backend == Dispatcher.HYBRIDEP else Dispatcher.DEEPEP


def _positive(text: str) -> bool:
    try:
        return float(text) > 0.0
    except ValueError:
        return False
