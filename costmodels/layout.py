"""Layouts as frozen values: recompute, the strategy of a layer, stages, and the whole layout.

Grids: attention and dense layers use ``tp x cp x dp``; experts use ``etp x ep x edp`` over the same GPUs of a stage, so
``tp * cp * dp == etp * ep * edp``. ``gpus = tp * cp * dp * pp``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from costmodels.pipeline.schedules import Schedule


class RankOrder(StrEnum):
    """Order in which ranks are numbered, fastest axis first: those that Megatron-LM knows."""

    DP_INSIDE = "tp-cp-ep-dp-pp"  # the ranks of a stage are neighbours
    PP_INSIDE = "tp-cp-ep-pp-dp"  # the stages of a replica are neighbours


PER_OP: Final = "per_op"
"""Word for recompute by a list of ops, in place of modules."""


class Granularity(StrEnum):
    """How much of a layer is computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """What a layer recomputes; ``modules`` names recompute modules (see :class:`costmodels.workload.op.Op`).

    :data:`PER_OP` in place of modules: everything but the outputs on a list (:mod:`costmodels.workload.per_op`).
    """

    granularity: Granularity = Granularity.NONE
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the short form used in tables, such as ``selective:core_attn+moe_act``."""
        return f"{self.granularity}:{'+'.join(self.modules)}" if self.modules else str(self.granularity)

    @property
    def per_op(self) -> bool:
        """Whether outputs on a list are kept and all others computed again."""
        return PER_OP in self.modules


NO_RECOMPUTE = Recompute()
FULL_RECOMPUTE = Recompute(granularity=Granularity.FULL)
TITAN_SELECTIVE = Recompute(granularity=Granularity.SELECTIVE, modules=(PER_OP,))
"""torchtitan's selective recompute per op."""

REDUCING_ZERO = 2
"""The least ZeRO stage that reduces gradients with every micro-batch."""
GATHERING_ZERO = 3
"""The ZeRO stage that gathers weights with every micro-batch."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How one layer is spread over the GPUs of its stage, and how its states are sharded.

    ``zero`` is the ZeRO stage over dp x cp (0 none, 1 optimizer, 2 and gradients, 3 and weights: FSDP).
    ``shard_group`` is the number of ranks that ZeRO shards over; 0 means all of dp x cp (smaller: hybrid sharding).
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    shard_group: int = 0
    recompute: Recompute = NO_RECOMPUTE

    @property
    def gpus(self) -> int:
        """GPUs of one stage."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Data-parallel degree of the experts."""
        return self.gpus // (self.ep * self.etp)

    @property
    def zero_group(self) -> int:
        """Ranks that ZeRO shards dense states over."""
        return self.shard_group or self.dp * self.cp


@dataclass(frozen=True, kw_only=True)
class StrategyRun:
    """``count`` layers in a row that use one strategy."""

    strategy: Strategy
    count: int


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pipeline stage: how many layers each virtual chunk holds, and the strategies in layer order over the chunks.

    ``island`` is the index of the island of the cluster that holds the stage.
    """

    layers_per_chunk: tuple[int, ...]
    strategies: tuple[StrategyRun, ...]
    island: int = 0

    @property
    def layers(self) -> int:
        """Layers of all chunks."""
        return sum(self.layers_per_chunk)

    @property
    def gpus(self) -> int:
        """GPUs of the stage."""
        return self.strategies[0].strategy.gpus


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A complete answer: stages in order, batch split, schedule.

    Chunk ``c`` of stage ``s`` is pipeline position ``c * pp + s``; layers are numbered along positions.
    The embedding sits on the first position, the head and loss on the last;
    multi-token-prediction layers with the head.
    """

    stages: tuple[Stage, ...]
    micro_batch: int
    num_microbatches: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    vocabulary_spread: bool = False  # embedding and head are split over all stages (arXiv 2411.05288)
    extra_in_flight: int = 0  # micro-batches that a stage holds beyond its schedule, such as for a spread vocabulary
    rank_order: RankOrder = RankOrder.DP_INSIDE
    microbatch_group: int = 0  # micro-batches that pass a chunk before the next one (interleaved); 0: pp
    optimizer_on_host: tuple[float, ...] = ()  # share of each stage's optimizer states in host memory; (): none

    @property
    def pp(self) -> int:
        """Pipeline degree."""
        return len(self.stages)

    @property
    def vpp(self) -> int:
        """Virtual chunks per stage."""
        return len(self.stages[0].layers_per_chunk)

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return sum(stage.gpus for stage in self.stages)

    @property
    def layers(self) -> int:
        """Layers of the model that the stages hold together."""
        return sum(stage.layers for stage in self.stages)

    @property
    def layers_per_stage(self) -> tuple[tuple[int, ...], ...]:
        """Per stage, the layers of each virtual chunk."""
        return tuple(stage.layers_per_chunk for stage in self.stages)

    @property
    def first(self) -> Strategy:
        """Strategy of the first layer, which names the grid of a uniform layout."""
        return self.stages[0].strategies[0].strategy
