"""Products that read one input: one product, or several whose input gradients are added up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.compute.gemm import GemmShape
from costmodels.compute.local import grid_of, rank_tokens
from costmodels.compute.machine import machine_of
from costmodels.compute.traffic import traffic_s
from costmodels.efficiency import Efficiency
from costmodels.job import Software, TrainingJob
from costmodels.table import Floats, StrategyTable
from costmodels.workload.op import Op, Split
from hardware.cluster import Accelerator

_ADDED: Final = 3.0  # passes of a sum that is a kernel of its own: two read, one written
_READ: Final = 1.0  # where compiled code adds as it reads for what comes next


def products_of(op: Op, shape: GemmShape, software: Software) -> tuple[GemmShape, ...]:
    """Return the products that software runs for an op: one, or one for each of its ``columns``.

    Parameters
    ----------
    op : Op
        A GEMM of a layer.
    shape : GemmShape
        Its local product.
    software : Software
        Whether it joins products.

    Returns
    -------
    tuple of GemmShape
    """
    if software.joined_products or len(op.columns) < 2:
        return (shape,)
    whole = float(sum(op.columns))
    return tuple(replace(shape, n=shape.n * (columns / whole)) for columns in op.columns)


def input_gradients_s(
    ops: Sequence[Op], job: TrainingJob, table: StrategyTable, accelerator: Accelerator, *, efficiency: Efficiency
) -> Floats:
    """Time of a backward pass to add up the input gradients of products that are not joined.

    Parameters
    ----------
    ops : sequence of Op
        Ops of a part.
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
    array
        Seconds, shape (S,). Gradients are added before tensor-parallel ranks exchange them, each of all tokens, unless
        every product has its own gradient reduced: then a rank adds those of its share of the sequence.
    """
    moved = np.zeros(len(table))
    if job.software.joined_products:
        return moved
    grid = grid_of(table)
    share = 1.0 / grid.sequence_split if job.software.inputs_gathered_apart else 1.0
    passes = _READ if job.software.compiled else _ADDED
    for op in ops:
        if op.columns and op.split is Split.COLUMN:
            width = passes * (len(op.columns) - 1.0) * op.k * job.precision.activation_bytes
            moved = moved + (width * share * rank_tokens(op, grid, job))[grid.inverse]
    return traffic_s(moved, machine_of(accelerator, efficiency), kernels=0.0)
