"""From what a search chose to explicit layouts."""

from collections.abc import Sequence
from dataclasses import replace

from costmodels.layout import FULL_RECOMPUTE, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule


def uniform_stages(
    strategy: Strategy, chunks: Sequence[Sequence[int]], *, prefix: int = 0, islands: Sequence[int] = ()
) -> tuple[Stage, ...]:
    """Stages that share one strategy, but for the first layers of each chunk, which recompute in full.

    Parameters
    ----------
    strategy : Strategy
        Of every layer.
    chunks : sequence of sequence of int
        Layers of every virtual chunk of every stage.
    prefix : int
        Layers at the start of every chunk that recompute in full; 0 for none.
    islands : sequence of int
        Island of every stage; empty: all on the first.

    Returns
    -------
    tuple of Stage
    """
    return tuple(
        Stage(
            layers_per_chunk=tuple(sizes),
            strategies=_prefix_runs(strategy, sizes, prefix),
            island=islands[number] if islands else 0,
        )
        for number, sizes in enumerate(chunks)
    )


def _prefix_runs(strategy: Strategy, sizes: Sequence[int], prefix: int) -> tuple[StrategyRun, ...]:
    if not prefix or not sum(sizes):
        return (StrategyRun(strategy=strategy, count=sum(sizes)),)
    full = with_recompute(strategy, FULL_RECOMPUTE)
    runs: list[StrategyRun] = []
    for size in sizes:
        for used, count in ((full, min(prefix, size)), (strategy, size - min(prefix, size))):
            if count:
                runs.append(StrategyRun(strategy=used, count=count))
    return tuple(runs)


def with_recompute(strategy: Strategy, recompute: Recompute) -> Strategy:
    """Return the strategy with another recompute choice."""
    return replace(strategy, recompute=recompute)


def schedule_of(pp: int, vpp: int) -> Schedule:
    """Return the schedule that Megatron-like frameworks run for a pipeline shape."""
    return Schedule.INTERLEAVED if pp > 1 and vpp > 1 else Schedule.ONE_F_ONE_B


def uniform_layout(
    strategy: Strategy,
    chunks: Sequence[Sequence[int]],
    *,
    micro_batch: int,
    num_microbatches: int,
    prefix: int = 0,
    schedule: Schedule | None = None,
) -> Layout:
    """Return a layout of uniform stages on the first island; without a schedule under the usual one."""
    return Layout(
        stages=uniform_stages(strategy, chunks, prefix=prefix),
        micro_batch=micro_batch,
        num_microbatches=num_microbatches,
        schedule=schedule or schedule_of(len(chunks), len(chunks[0])),
    )


def on_island(layout: Layout, island: int) -> Layout:
    """Return the layout with all of its stages on one island."""
    return replace(layout, stages=tuple(replace(stage, island=island) for stage in layout.stages))


def with_strategies(layout: Layout, **changes: object) -> Layout:
    """Return the layout with fields of every strategy changed; runs that become equal are joined."""
    stages = []
    for stage in layout.stages:
        runs: list[StrategyRun] = []
        for run in stage.strategies:
            strategy = replace(run.strategy, **changes)  # type: ignore[arg-type]
            if runs and runs[-1].strategy == strategy:
                runs[-1] = replace(runs[-1], count=runs[-1].count + run.count)
            else:
                runs.append(StrategyRun(strategy=strategy, count=run.count))
        stages.append(replace(stage, strategies=tuple(runs)))
    return replace(layout, stages=tuple(stages))


def recomputing_as(layout: Layout, before: Layout) -> Layout:
    """Return a layout with the split and the recompute of each stage of another one of as many stages.

    Raises
    ------
    ValueError
        The stages are not as many.
    """
    stages = []
    for new, old in zip(layout.stages, before.stages, strict=True):
        grid = new.strategies[0].strategy
        runs = tuple(replace(run, strategy=replace(grid, recompute=run.strategy.recompute)) for run in old.strategies)
        stages.append(replace(new, layers_per_chunk=old.layers_per_chunk, strategies=runs))
    return replace(layout, stages=tuple(stages))
