"""What measured runs and requests have in common with one another."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

FAMILY: Final = MappingProxyType({"bridge": "megatron", "nemo": "megatron"})  # all of them run Megatron-core


def family_of(framework: str) -> str:
    """Return the family of a framework: those that run the same core are one."""
    return FAMILY.get(framework, framework)


@dataclass(frozen=True, kw_only=True)
class RunTraits:
    """What a run or a request has in common with others. ``parameters`` in billions; texts compare whole."""

    generation: str
    hardware: str
    framework: str
    gemm: str
    moe: str
    recompute: str
    gpus: float
    parameters: float
    seq: float
    micro_batch: float
    tp: float
    pp: float
    cp: float
    ep: float
