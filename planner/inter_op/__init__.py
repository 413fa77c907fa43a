"""Inter-op level: which layers go on which stage, and which devices a stage gets. Knows no solver and no cost model.

``partition`` takes a problem of either form: stages on submeshes of a cluster (:mod:`planner.inter_op.submeshes`) or
a fixed row of stages (:mod:`planner.inter_op.stages`). Interleaved chunks are in :mod:`planner.inter_op.chunks`.
Equations and proofs: ``docs/formulation.md``.
"""

from typing import overload

from planner.inter_op.stages import StagePlans, StageProblem, partition_stages
from planner.inter_op.submeshes import SubmeshPlan, SubmeshProblem, partition_submeshes


@overload
def partition(problem: StageProblem) -> StagePlans: ...
@overload
def partition(problem: SubmeshProblem) -> SubmeshPlan: ...
def partition(problem: StageProblem | SubmeshProblem) -> StagePlans | SubmeshPlan:
    """Solve a problem of either form exactly."""
    return partition_stages(problem) if isinstance(problem, StageProblem) else partition_submeshes(problem)
