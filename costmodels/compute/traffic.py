"""Work bound by memory traffic: elementwise kernels, number-format casts, optimizer steps, chunked scans."""

from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.compute.machine import Machine, machine_of
from costmodels.efficiency import Efficiency
from costmodels.job import TrainingJob
from costmodels.table import Floats
from hardware.cluster import Accelerator, NodeType


def traffic_s(traffic_bytes: Floats, machine: Machine, *, kernels: float = 1.0) -> Floats:
    """Time of kernels that move ``traffic_bytes`` through memory.

    Parameters
    ----------
    traffic_bytes : array
        Bytes read and written [byte].
    machine : Machine
        Accelerator and constants; the memory clock does not follow the core clock.
    kernels : float
        Kernels that share the traffic.

    Returns
    -------
    array
        Seconds.
    """
    bandwidth = machine.accelerator.memory_bytes_per_s * machine.generation.memory
    seconds: Floats = np.asarray(traffic_bytes) / bandwidth + kernels * machine.shared.memory_launch_s
    return seconds


def quantise_s(elements: Floats, machine: Machine, number_format: str) -> Floats:
    """Time to cast a 16-bit tensor to a low-precision format, along rows and along columns.

    Parameters
    ----------
    elements : array
        Elements of the tensor.
    machine : Machine
        Accelerator and constants.
    number_format : str
        ``fp8`` or ``fp4``; other formats need no cast and cost nothing.

    Returns
    -------
    array
        Seconds.
    """
    shared = machine.shared
    per_element = {"fp8": shared.quantise_fp8_bytes, "fp4": shared.quantise_fp4_bytes}.get(number_format, 0.0)
    if per_element == 0.0:
        return np.zeros_like(np.asarray(elements, dtype=np.float64))
    return traffic_s(per_element * np.asarray(elements), machine)


def scan_s(flops: Floats, traffic_bytes: Floats, machine: Machine, *, kernels: float) -> Floats:
    """Time of a chunked scan: small products along the sequence beside the traffic of its chunks.

    Parameters
    ----------
    flops : array
        Arithmetic [FLOP].
    traffic_bytes : array
        Bytes read and written [byte].
    machine : Machine
        Accelerator, constants and clock.
    kernels : float
        Kernels of the scan.

    Returns
    -------
    array
        Seconds: the p-norm of both sides of the roofline.
    """
    peak = machine.accelerator.peak
    rate = max(peak.bf16, peak.fp16, peak.fp32) * machine.clock * machine.generation.scan
    bandwidth = machine.accelerator.memory_bytes_per_s * machine.generation.memory
    power = machine.shared.roofline_power
    joint = ((np.asarray(flops) / rate) ** power + (np.asarray(traffic_bytes) / bandwidth) ** power) ** (1.0 / power)
    seconds: Floats = joint + kernels * machine.shared.memory_launch_s
    return seconds


FP32_BYTES: Final = 4.0
CAST_PASSES: Final = 4.0  # over fp32 gradients that are copies: copy written and read, sum read and written


def accumulation_s(parameters: Floats, job: TrainingJob, accelerator: Accelerator, *, efficiency: Efficiency) -> Floats:
    """Time to add a micro-batch's gradients to their sum, where no product adds them as it writes them.

    Parameters
    ----------
    parameters : array
        Parameters of the rank before ZeRO sharding.
    job : TrainingJob
        Precision and software.
    accelerator : Accelerator
        The accelerator.
    efficiency : Efficiency
        Constants of all generations.

    Returns
    -------
    array
        Seconds per micro-batch: the gradient read, the sum read and written, and before that a copy in the width of
        the sum written and read again where the software makes one. 0 with fused accumulation.
    """
    software = job.software
    if not software.separate_accumulation:
        return np.zeros_like(np.asarray(parameters, dtype=np.float64))
    moved = job.precision.activation_bytes + 2.0 * (software.gradient_bytes or job.precision.gradient_bytes)
    if software.cast_gradients:  # its gradient_bytes count the gradients of a micro-batch beside the sum
        moved = job.precision.activation_bytes + CAST_PASSES * FP32_BYTES
    moved *= job.trained_share
    return traffic_s(moved * np.asarray(parameters), machine_of(accelerator, efficiency))


HOST_LINK_BYTES_PER_S: Final = 25e9
"""Between an accelerator and its host where a machine does not state it: PCIe 4.0 x16 as copies reach it."""
HOST_ADAM_PER_S: Final = 3.9e9
"""Parameters that the processors of a node update in a second: 10e9 in 2.57 s on two Xeon 8168 (Ren et al.,
"ZeRO-Offload", arXiv 2101.06840, table 4, CPU-Adam; 3.3e9 to 4.5e9 for 1e9 to 10e9 parameters). Newer processors are
faster with their memory."""


def host_optimizer_step_s(parameters: Floats, job: TrainingJob, node: NodeType) -> Floats:
    """Time of an optimizer that runs in the host: gradients go down, processors update, weights come up.

    Parameters
    ----------
    parameters : array
        Parameters whose states the host holds for one rank.
    job : TrainingJob
        Precision and optimizer.
    node : NodeType
        Its accelerators share the processors.

    Returns
    -------
    array
        Seconds, nothing of them hidden.

    References
    ----------
    Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv 2101.06840, sections 4 and 5.
    """
    link = host_link_bytes_per_s(node)
    gradient = job.software.gradient_bytes or job.precision.gradient_bytes
    copied_s = (gradient + job.precision.weight_bytes) / link
    return np.asarray(parameters, dtype=np.float64) * (copied_s + node.gpus / HOST_ADAM_PER_S)


def host_link_bytes_per_s(node: NodeType) -> float:
    """Rate between an accelerator of a node and the host's memory, one way [byte/s]."""
    return node.host.pcie_bytes_per_s_per_gpu or HOST_LINK_BYTES_PER_S


def optimizer_step_s(
    parameters: Floats,
    job: TrainingJob,
    accelerator: Accelerator,
    *,
    efficiency: Efficiency,
    node: NodeType | None = None,
) -> Floats:
    """Time of the optimizer over the parameters that one rank updates, with gradient clipping.

    Parameters
    ----------
    parameters : array
        Parameters whose states lie on the rank (after ZeRO sharding).
    job : TrainingJob
        Precision and optimizer.
    accelerator : Accelerator
        The accelerator.
    efficiency : Efficiency
        Constants of all generations.
    node : NodeType, optional
        Where an offloaded optimizer runs.

    Returns
    -------
    array
        Seconds. Traffic per parameter: gradients read for the norm and for the update, master weights and states read
        and written, the working copy written.
    """
    away = 0.0 if node is None else job.software.share_in_host
    if node is not None and away > 0.0:
        on_device = replace(job, software=replace(job.software, optimizer_offload=False, state_offload=False))
        there_s = away * host_optimizer_step_s(parameters, job, node)
        rest = (1.0 - away) * np.asarray(parameters, dtype=np.float64)
        here_s = optimizer_step_s(rest, on_device, accelerator, efficiency=efficiency) if away < 1.0 else 0.0
        return np.asarray(there_s + here_s)  # one after the other
    machine = machine_of(accelerator, efficiency)
    precision = job.precision
    gradient = job.software.gradient_bytes or precision.gradient_bytes
    states = (precision.master_bytes or precision.weight_bytes) + job.optimizer_bytes
    working = precision.weight_bytes + precision.extra_weight_bytes if precision.master_bytes else 0.0
    return traffic_s((2.0 * gradient + 2.0 * states + working) * np.asarray(parameters), machine, kernels=4.0)
