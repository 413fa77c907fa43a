"""What a pipeline of unequal stages costs: the objective that the partitioners minimise.

For stage times ``t_i`` per micro-batch (forward and backward) and ``m`` micro-batches

    T = fill * sum_i t_i + (m - fill) * max_i t_i

The slowest stage works ``m`` times; filling and draining cost the rest. ``fill`` is the share of the fill that the
schedule does not hide: 1 for 1F1B and GPipe (Alpa, arXiv 2201.12023, eq. 2), ``1/v`` with v interleaved chunks
(Narayanan et al., arXiv 2104.04473, section 2.2), less for zero-bubble schedules. For equal stages it is the published
closed form ``m t + (p-1) t fill``; for unequal ones it is what the planners rank by, and a schedule simulation judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class PipelineObjective:
    """Weights of the sum and of the largest stage time.

    Parameters
    ----------
    micro_batches : int
        Micro-batches per step, at least 1.
    fill : Fraction, optional
        Share of the fill that shows, in 0..1.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    micro_batches: int
    fill: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, got {self.micro_batches}")
        if not 0 <= self.fill <= 1:
            raise ValueError(f"fill must be between 0 and 1, got {self.fill}")

    @property
    def sum_weight(self) -> int:
        """Whole weight of the sum; both weights are the true ones times ``fill``'s denominator."""
        return self.fill.numerator

    @property
    def max_weight(self) -> int:
        """Whole weight of the largest stage time."""
        return self.micro_batches * self.fill.denominator - self.fill.numerator

    def units(self, total: int, largest: int) -> int:
        """Objective in whole units, for comparisons without rounding."""
        return self.sum_weight * total + self.max_weight * largest

    def step_s(self, stage_times_s: Sequence[float]) -> float:
        """Seconds per step of stages with these times [s]."""
        total, largest = sum(stage_times_s), max(stage_times_s)
        return (self.sum_weight * total + self.max_weight * largest) / self.fill.denominator


def one_f_one_b(micro_batches: int) -> PipelineObjective:
    """1F1B and GPipe: the whole fill shows."""
    return PipelineObjective(micro_batches=micro_batches)


def interleaved(micro_batches: int, chunks: int) -> PipelineObjective:
    """Interleaved 1F1B with ``chunks`` virtual stages per stage: ``1/chunks`` of the fill shows."""
    return PipelineObjective(micro_batches=micro_batches, fill=Fraction(1, chunks))
