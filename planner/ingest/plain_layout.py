"""A layout without what makes no difference, so that a plan and its launch read back can be compared."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from hardware.errors import InputError
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, exported_switches, proposals_of
from planner.rules.verdict import check


class UnpricedError(InputError):
    """The framework takes a launch that no layout here states: there is no price, and nothing is wrong."""


@dataclass(frozen=True, kw_only=True)
class StatedLayout:
    """What a launch states: its layout, samples a step, tokens a sample, chunks of its loss; no rule has judged it."""

    layout: Layout
    global_batch: int
    seq: int
    loss_chunks: int = 1

    def proposals(self, model: ModelFacts, world: int) -> tuple[Proposal, ...]:
        """What the rules judge, one for each different grid."""
        base = replace(exported_switches(model), loss_chunks=self.loss_chunks)
        return proposals_of(self.layout, model, global_batch=self.global_batch, seq=self.seq, world=world, base=base)


def refuse_illegal(stated: StatedLayout, model: ModelFacts, *, world: int, framework: Framework) -> Layout:
    """Return the layout of a launch that breaks no rule.

    Raises
    ------
    InputError
        It breaks one; the message has all of the first grid's.
    """
    for proposal in stated.proposals(model, world):
        broken = check(proposal, framework)
        if broken:
            raise InputError("; ".join(violation.message for violation in broken))
    return stated.layout


def plain_layout(layout: Layout, *, experts: bool) -> Layout:
    """Drop distinctions without a difference.

    Parameters
    ----------
    layout : Layout
        Any layout.
    experts : bool
        Whether the model has experts; without them ep and etp mean nothing.

    Returns
    -------
    Layout
        Islands forgotten (hosts say them), equal neighbours joined, sequence parallelism only with tp, sharding groups
        of all ranks written as 0, no ZeRO where no two ranks hold the same parameters, groups of as many
        micro-batches as stages written as 0.
    """
    stages = []
    for stage in layout.stages:
        runs = [(plain_strategy(run.strategy, experts=experts), run.count) for run in stage.strategies]
        stages.append(Stage(layers_per_chunk=stage.layers_per_chunk, strategies=joined(runs)))
    grouped = layout.vpp > 1 and layout.microbatch_group != layout.pp
    return replace(layout, stages=tuple(stages), microbatch_group=layout.microbatch_group if grouped else 0)


def same_launch(one: Layout, other: Layout, *, experts: bool) -> bool:
    """Whether two layouts differ by nothing that makes a difference, see :func:`plain_layout`."""
    return plain_layout(one, experts=experts) == plain_layout(other, experts=experts)


def has_replicas(strategy: Strategy, *, experts: bool) -> bool:
    """Whether any two ranks of a stage hold the same parameters, so that ZeRO has something to shard."""
    replicated = experts and strategy.tp > strategy.ep * strategy.etp
    return strategy.dp * strategy.cp > 1 or replicated


def plain_strategy(strategy: Strategy, *, experts: bool) -> Strategy:
    """One strategy without distinctions that make no difference."""
    zero = strategy.zero if has_replicas(strategy, experts=experts) else 0
    grouped = zero > 0 and 0 < strategy.shard_group < strategy.dp * strategy.cp
    return replace(
        strategy,
        ep=strategy.ep if experts else 1,
        etp=strategy.etp if experts else 1,
        zero=zero,
        sequence_parallel=strategy.sequence_parallel and strategy.tp > 1,
        shard_group=strategy.shard_group if grouped else 0,
    )


def joined(pieces: Iterable[tuple[Strategy, int]]) -> tuple[StrategyRun, ...]:
    """Join equal neighbours and drop empty runs; without any layer the first strategy stays as an empty run.

    Raises
    ------
    ValueError
        There are no pieces.
    """
    given: Sequence[tuple[Strategy, int]] = tuple(pieces)
    runs: list[StrategyRun] = []
    for strategy, count in given:
        if runs and runs[-1].strategy == strategy:
            runs[-1] = StrategyRun(strategy=strategy, count=runs[-1].count + count)
        elif count:
            runs.append(StrategyRun(strategy=strategy, count=count))
    if not given:
        raise ValueError("no strategies")
    return tuple(runs) or (StrategyRun(strategy=given[0][0], count=0),)


def uniform_stages(split: Sequence[Sequence[int]], strategy: Strategy) -> tuple[Stage, ...]:
    """Stages that hold the given layers of each chunk, all with one strategy."""
    return tuple(
        Stage(layers_per_chunk=tuple(chunks), strategies=(StrategyRun(strategy=strategy, count=sum(chunks)),))
        for chunks in split
    )
