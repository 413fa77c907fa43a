"""Which frameworks run on whose accelerators: what is planned for others are figures of an equivalent program."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hardware.cluster import Accelerator, Cluster
from hardware.errors import InputError
from planner.request import Framework

ELSEWHERE: Final[Mapping[Framework, tuple[str, ...]]] = MappingProxyType(
    {
        Framework.MEGATRON: ("google", "intel"),
        Framework.BRIDGE: ("google", "intel"),
        Framework.NEMO: ("google", "intel", "amd"),
        Framework.TORCHTITAN: ("google", "intel"),
        Framework.DEEPSPEED: ("google",),
        Framework.GALVATRON: ("google", "intel"),
    }
)
"""Vendors whose accelerators of the catalogue (TPUs, Gaudi) a framework does not run on.

Sources: the installation pages of each (Megatron-LM, Megatron-Bridge, NeMo, Hetu-Galvatron: CUDA; torchtitan: CUDA and
ROCm); AMD, "Training a model with Megatron-LM for ROCm"; DeepSpeed, "Accelerator Setup Guide" (Intel Gaudi is listed).
Forks of vendors for Gaudi are programs of their own.
"""


def platform_notes(framework: Framework, cluster: Cluster) -> tuple[str, ...]:
    """Say on which accelerators of a cluster a framework does not run.

    Parameters
    ----------
    framework : Framework
        For which is planned.
    cluster : Cluster
        Of any vendors; one that is not known has no remark.

    Returns
    -------
    tuple of str
        One remark for each kind of accelerator.
    """
    return tuple(
        f"{framework} does not run on {part.name} ({part.vendor}): figures are those of an equivalent program"
        for part in _foreign(framework, cluster)
    )


def refuse_platforms(framework: Framework, cluster: Cluster) -> None:
    """Refuse a launch of a framework on accelerators that it does not run on.

    Raises
    ------
    InputError
        Names framework and accelerator.
    """
    for part in _foreign(framework, cluster):
        raise InputError(
            f"{framework} does not run on {part.name} ({part.vendor})",
            allowed="--to json, the plan without any framework's words",
        )


def _foreign(framework: Framework, cluster: Cluster) -> list[Accelerator]:
    parts = {island.node.accelerator.name: island.node.accelerator for island in cluster.islands}
    return [part for part in parts.values() if part.vendor in ELSEWHERE.get(framework, ())]
