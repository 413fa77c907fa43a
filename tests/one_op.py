"""The price of one op, as the tests of compute ask for it."""

from dataclasses import fields

from costmodels.compute import Efficiency, OpTimes, times_of_ops
from costmodels.job import TrainingJob
from costmodels.table import Floats, StrategyTable
from costmodels.workload.op import Op
from hardware.cluster import Accelerator


def op_times(
    op: Op,
    job: TrainingJob,
    table: StrategyTable,
    accelerator: Accelerator,
    *,
    clock: Floats | float = 1.0,
    efficiency: Efficiency,
) -> OpTimes:
    """Times of one op, of shape (S,)."""
    every = times_of_ops((op,), job, table, accelerator, clock=clock, efficiency=efficiency)
    return OpTimes(**{item.name: getattr(every, item.name)[0] for item in fields(OpTimes)})
