"""What a launcher can be told of a layout, where that is less than its framework's rules allow.

Hugging Face's Trainer runs modules as they are: without a pipeline, without experts that are spread, with all layers
recomputed or none. What is named near a launch of it must be what it can be told.
"""

from dataclasses import dataclass
from typing import Final

from costmodels.layout import Granularity, Layout
from planner.rules.proposal import Proposal


@dataclass(frozen=True, kw_only=True)
class Sayable:
    """What a launcher can be told; everything by default.

    Attributes
    ----------
    shards : bool
        Tensor and context parallelism.
    pipeline, experts : bool
        Stages; experts over ranks.
    modules : bool
        Recompute of some layers, modules or operations.
    zero : tuple of int
        Stages of sharding that it has; empty: all.
    """

    shards: bool = True
    pipeline: bool = True
    experts: bool = True
    modules: bool = True
    zero: tuple[int, ...] = ()

    def says(self, layout: Layout) -> bool:
        """Whether the launcher can be told a layout."""
        runs = [run for stage in layout.stages for run in stage.strategies]
        grids = [(run.strategy.tp * run.strategy.cp, layout.pp, run.strategy.ep, run.strategy.zero) for run in runs]
        kept = {run.strategy.recompute.granularity for run in runs}
        whole = len(kept) == 1 and kept <= {Granularity.NONE, Granularity.FULL}
        return all(self._grid(*grid) for grid in grids) and (self.modules or whole)

    def says_degrees(self, proposal: Proposal) -> bool:
        """Whether the launcher can be told the degrees of a proposal."""
        return self._grid(proposal.tp * proposal.cp, proposal.pp, proposal.ep, proposal.zero)

    def _grid(self, shards: int, stages: int, spread: int, zero: int) -> bool:
        degrees = (self.shards or shards == 1) and (self.pipeline or stages == 1) and (self.experts or spread == 1)
        return degrees and (not self.zero or zero in self.zero)


EVERYTHING: Final = Sayable()
TRAINER: Final = Sayable(pipeline=False, experts=False, modules=False)
"""Hugging Face's Trainer, and what is built on it, with DeepSpeed."""
