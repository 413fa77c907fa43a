"""What a measured run shards its optimizer, gradients and weights over."""

from typing import Final

from costmodels.job import Precision, Software
from planner.evidence.measured import MeasuredRun, RunGrid
from planner.evidence.source_facts import source_facts

SHARDED_OPTIMIZER_FRAMEWORKS: Final = ("nemo", "bridge")
"""Their launchers shard the optimizer unless told otherwise (``distributed_fused_adam`` and its successors)."""

_GATHERED_CHUNKS: Final = 3  # max_active_stages of PyTorch's schedules


def zero_stage(run: MeasuredRun, software: Software, precision: Precision, grid: RunGrid) -> int:
    """Return the ZeRO stage that a run states; where it says nothing, what its framework does.

    Parameters
    ----------
    run : MeasuredRun
        Its columns ``zero``, ``distributed_optimizer`` and ``fsdp``.
    software : Software
        Its framework.
    precision : Precision
        Its number formats.
    grid : RunGrid
        Its degrees.

    Returns
    -------
    int
        0 to 3.

    Notes
    -----
    DeepSpeed trains bf16 without ZeRO by its ``BF16_Optimizer``, with or without a pipeline, which holds a part of the
    fp32 weights and moments on every data-parallel rank, as stage 1 does (``runtime/engine.py``, ``get_data_types``
    and ``_do_optimizer_sanity_check``; ``runtime/bf16_optimizer.py``, ``fp32_groups_flat_partition``).

    "FSDP" is stage 3, but 2 in torchtitan's pipelines, which keep weights gathered from the first micro-batch to the
    last (torchtitan/distributed/fsdp.py, ``get_fsdp_reshard_after_forward_policy``). With more chunks than PyTorch's
    schedules keep gathered they come and go all the same (torch/distributed/pipelining/schedules.py,
    ``_add_unshard_reshard``).
    """
    if software.framework == "deepspeed" and precision.gemm == "bf16":
        return max(run.zero, 1)
    if software.framework == "torchtitan" and grid.pp > 1 and grid.vpp <= _GATHERED_CHUNKS:
        return min(run.zero, 2)
    stated = run.text("zero") or run.text("distributed_optimizer") or run.text("fsdp").startswith("1")
    return run.zero if stated else max(run.zero, int(software.framework in SHARDED_OPTIMIZER_FRAMEWORKS))


def shard_group(run: MeasuredRun, grid: RunGrid) -> int:
    """Return the ranks that states are sharded over.

    Parameters
    ----------
    run : MeasuredRun
        Its source, and the group that it states itself.
    grid : RunGrid
        Its degrees.

    Returns
    -------
    int
        0: all data-parallel ones.
    """
    group = source_facts(run.text("source")).shard_group or run.shard_group
    return group if group < grid.dp * grid.cp else 0
