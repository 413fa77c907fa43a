"""Measured values that no run can have had on its hardware: a step faster than its peak, a peak of memory beyond it."""

from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.workload.counts import flops_per_token
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.evidence.measured import BYTES_PER_GIB, MeasuredRun

MOST_OF_MEMORY: Final = 1.5
"""A peak over the memory of the largest accelerator. Units of 1e9 bytes read 1.074 of one in GiB, and drivers page some
more to the host (1.12 is published); a sum over a node, or MB, is far above."""


def check_possible(run: MeasuredRun, model: ModelSpec, cluster: Cluster, job: TrainingJob, layout: Layout) -> None:
    """Refuse a run whose measured values its hardware cannot have; others of its numbers may lie as well.

    Parameters
    ----------
    run : MeasuredRun
        Values of runs that failed do not count and are not looked at.
    model, cluster, job, layout
        What it asks.

    Raises
    ------
    InputError
        The step is shorter than its products take at the peak of its accelerators, or the peak of memory is above
        what any of them has; the message has the column, the value and what is possible.
    """
    if run.status != "ok":
        return
    parts = [cluster.islands[stage.island].node.accelerator for stage in layout.stages]
    if run.step_time_s and not run.untimed:
        pairs = zip(parts, layout.stages, strict=True)
        rates = [getattr(part.peak, job.precision.gemm) * stage.gpus for part, stage in pairs]
        tokens = job.global_batch * (job.seq if model.hidden else 1)
        flops = tokens * flops_per_token(model, job.seq, frozen=job.trained_share < 1.0)
        least_s = flops / sum(rates)
        if run.step_time_s < least_s:
            raise InputError(
                f"{run.text('step_time_s')} s are less than {layout.gpus} x {parts[0].name} take at their peak",
                allowed=f"from {least_s:.3g} s, of a whole step of {job.global_batch} samples",
                where="step_time_s",
            )
    most = max(part.memory_bytes for part in parts) / BYTES_PER_GIB
    if run.peak_mem_gib and run.peak_mem_gib > MOST_OF_MEMORY * most:
        raise InputError(
            f"{run.text('peak_mem_gb')} is more than {parts[0].name} has",
            allowed=f"GB of one accelerator, up to {most:.0f}",
            where="peak_mem_gb",
        )
