"""Which frameworks run on whose accelerators: what is planned for others are figures of an equivalent program."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from costmodels.job import Software
from costmodels.memory import usable_memory
from hardware.cluster import Accelerator, Cluster, LinkKind
from hardware.errors import InputError
from planner.request import Framework

ELSEWHERE: Final[Mapping[Framework, tuple[str, ...]]] = MappingProxyType(
    {
        Framework.MEGATRON: ("google", "intel", "amazon"),
        Framework.BRIDGE: ("google", "intel", "amazon", "huawei"),
        Framework.NEMO: ("google", "intel", "amazon", "huawei"),
        Framework.TORCHTITAN: ("google", "gaudi", "amazon", "huawei"),
        Framework.DEEPSPEED: ("google", "amazon"),
        Framework.GALVATRON: ("google", "intel", "amazon", "huawei"),
    }
)
"""Vendors, or beginnings of the names of their accelerators, that a framework does not run on (TPUs, Gaudi, Trainium).

Sources: deepspeed 0.19.8 ``accelerator/`` (cuda, which is ROCm too, xpu, hpu, npu and others, none for TPUs) and
deepspeed.ai/tutorials/accelerator-setup-guide; megatron-core 0.19, megatron-bridge 0.6 and nemo-toolkit 2.7 set
``torch.cuda`` devices throughout; torchtitan 0.3.0 names CUDA, ROCm and Intel XPU (``tools/utils.py``,
``components/quantization/float8.py``) and no Gaudi, and its TPU experiments are a fork's (google-pytorch/torchtitan);
Hetu-Galvatron 2.4 builds on apex and NCCL (its installation page). Forks for Gaudi, Trainium (NxD Training) and Ascend
(torchtitan-npu) are programs of their own.
"""
PATCHED: Final[Mapping[tuple[Framework, str], str]] = MappingProxyType(
    {
        (Framework.MEGATRON, "huawei"): "MindSpeed, Huawei's patches of Megatron-LM",
        (Framework.NEMO, "amd"): "AMD's patch of NeMo and its builds of Megatron-core and Transformer Engine",
        (Framework.BRIDGE, "amd"): "the patches of AMD's Primus and its builds of Megatron-core and Transformer Engine",
    }
)
"""What a framework needs on a vendor's accelerators.

Sources: mlcommons/training_results_v5.1, AMD/benchmarks/llama31_8b, Dockerfile and ``nemo_v2.5.0rc0.patch`` (NeMo 2.5
with ROCm/Megatron-LM and ROCm/TransformerEngine); AMD-AGI/Primus, ``primus/backends/megatron_bridge`` with ``patches``;
Ascend/MindSpeed, README (imported before Megatron-LM, which stays as it is).
"""


_OF_GPUS: Final = ("nvidia", "amd")
MOST_FUSED_EXPERTS: Final = 128
"""Experts of a rank that MindSpeed's fused products take on Ascend (modelscope/ms-swift, pull request 7390: above it
its operators raise)."""


def expert_notes(framework: Framework, cluster: Cluster, experts: int) -> tuple[str, ...]:
    """Say how far experts are to be spread where the fused products of an accelerator take but so many.

    Parameters
    ----------
    framework, cluster
        As of :func:`platform_notes`.
    experts : int
        Of a layer of the model; 0: it has none.
    """
    patched = any(part.vendor == "huawei" for part in _parts(cluster)) and framework is Framework.MEGATRON
    if not patched or experts <= MOST_FUSED_EXPERTS:
        return ()
    least = -(-experts // MOST_FUSED_EXPERTS)
    return (
        f"MindSpeed's fused products take up to {MOST_FUSED_EXPERTS} experts a rank: {experts} need ep {least} or more",
    )


def dispatcher_notes(cluster: Cluster, experts: int) -> tuple[str, ...]:
    """Say what token dispatchers with kernels of their own are worth on EFA, whose adapters GPUs cannot drive.

    A process of the host carries their messages there (NVSHMEM over libfabric, or UCCL-EP). Measured beside NCCL's
    all-to-all by awslabs/awsome-distributed-ai (3.test_cases/megatron/megatron-bridge, qwen3-30b, qwen3-235b, dsv3 and
    kimi-k2, RESULTS.md): with four sequences a micro-batch DeepSeek-V3 and Kimi K2 took 36 and 35 % less over 32 ranks
    of B300, Qwen3-235B 5 % less to 34 % more, Qwen3-30B on H100 7 % more over 16 ranks and 86 to 187 % more over 32.

    Parameters
    ----------
    cluster, experts
        As of :func:`expert_notes`.
    """
    spread = any(island.nodes > 1 and island.node.nics.kind is LinkKind.EFA for island in cluster.islands)
    if not experts or not spread:
        return ()
    note = (
        "dispatchers deepep and hybridep are priced as on InfiniBand; on EFA, where the host carries their messages, "
        "runs took from a third less (wide layers) to nearly three times the time of alltoall: try both"
    )
    return (note,)


XLA_SHARE: Final = 0.75
"""Memory of a GPU that JAX takes when it starts and nothing else is said (docs.jax.dev, GPU memory allocation)."""


def memory_share_notes(tools: Software, cluster: Cluster) -> tuple[str, ...]:
    """Say what of its memory JAX leaves unused on a GPU unless it is told; nothing for other software and TPUs.

    Parameters
    ----------
    tools : Software
        What the job runs.
    cluster : Cluster
        As of :func:`platform_notes`.
    """
    if tools.framework != "jax":
        return ()
    return tuple(
        f"JAX takes {XLA_SHARE * usable_memory(part) / 2**30:,.1f} of {usable_memory(part) / 2**30:,.1f} GiB of "
        f"{part.name}, and before its releases that grow beyond no more, unless XLA_CLIENT_MEM_FRACTION "
        "(XLA_PYTHON_CLIENT_MEM_FRACTION) says so: verdicts count on all of it"
        for part in _parts(cluster)
        if part.vendor in _OF_GPUS
    )


def platform_notes(framework: Framework, cluster: Cluster) -> tuple[str, ...]:
    """Say on which accelerators of a cluster a framework does not run, or not as it is.

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
    told = [
        f"{framework} does not run on {part.name} ({part.vendor}): figures are those of an equivalent program"
        for part in _foreign(framework, cluster)
    ]
    needs = ((part, PATCHED.get((framework, part.vendor))) for part in _parts(cluster))
    return (*told, *(f"{framework} runs on {part.name} ({part.vendor}) with {what}" for part, what in needs if what))


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
    words = ELSEWHERE.get(framework, ())
    return [part for part in _parts(cluster) if part.vendor in words or part.name.startswith(words)]


def _parts(cluster: Cluster) -> list[Accelerator]:
    """Kinds of accelerators of a cluster."""
    return list({island.node.accelerator.name: island.node.accelerator for island in cluster.islands}.values())
