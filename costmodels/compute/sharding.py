"""Copies that sharded data parallelism makes around its exchanges: of gathered weights and of whole gradients."""

from typing import Final

from costmodels.compute.machine import machine_of
from costmodels.compute.traffic import traffic_s
from costmodels.efficiency import Efficiency
from costmodels.job import ShardCopies, TrainingJob
from costmodels.layout import GATHERING_ZERO, REDUCING_ZERO
from costmodels.memory.states import LocalParameters, reduced_bytes, reduced_once
from costmodels.table import Floats, StrategyTable
from hardware.cluster import Accelerator

_PASSES: Final = 2.0  # of a copy, and of a sum or a division in place: one tensor read, one written


def shard_copies_s(
    parameters: LocalParameters,
    job: TrainingJob,
    table: StrategyTable,
    accelerator: Accelerator,
    *,
    efficiency: Efficiency,
) -> tuple[Floats, Floats]:
    """Time of a pass to take gathered weights out of their buffer, and to lay gradients out for their reduction.

    Parameters
    ----------
    parameters : LocalParameters
        Of a rank before ZeRO sharding, shape (S,).
    job : TrainingJob
        Precision and software.
    table : StrategyTable
        Strategies, S rows.
    accelerator : Accelerator
        The accelerator.
    efficiency : Efficiency
        Constants of all generations.

    Returns
    -------
    tuple of array
        Seconds of a forward and of a backward pass, shapes (S,): 0 without ZeRO-2 or 3, and where a rank is a shard of
        its own. Gradients that wait for the last micro-batch are laid out once, which is not counted.

    References
    ----------
    ``docs/compute.md``, section "Copies around the exchanges of shards".
    """
    machine = machine_of(accelerator, efficiency)
    dense, expert = table.zero_group > 1, table.expert_zero_group > 1
    sharded = parameters.dense * dense + parameters.expert * expert
    forward = _gathered_bytes(job) * sharded * (table.zero >= GATHERING_ZERO)
    reduced = _reduced_bytes(job) * sharded * ((table.zero >= REDUCING_ZERO) & ~reduced_once(job, table))
    return traffic_s(forward, machine, kernels=0.0), traffic_s(forward + reduced, machine, kernels=0.0)


def _gathered_bytes(job: TrainingJob) -> float:
    """Bytes per gathered parameter that are read and written behind the gather."""
    return _PASSES * job.precision.gather_bytes if job.software.shard_copies is ShardCopies.EACH else 0.0


def _reduced_bytes(job: TrainingJob) -> float:
    """Bytes per parameter that are read and written between a backward pass and the reduction of its gradients."""
    made, sent = job.precision.activation_bytes, reduced_bytes(job)
    cast = 0.0 if made == sent else made + sent
    moved = {
        ShardCopies.NONE: 0.0,
        ShardCopies.FLAT: _PASSES * made + cast + _PASSES * sent,
        ShardCopies.EACH: made + sent,
        ShardCopies.BUCKETS: _PASSES * made + _PASSES * made + _PASSES * sent,
    }
    return job.trained_share * moved[job.software.shard_copies]
