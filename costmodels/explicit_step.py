"""The step of one explicit layout with everything that went into it: what prices of time, power and heat start from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.exchange.reshard import reshard_s
from costmodels.known_parts import known_parts
from costmodels.layer_costs import PartCosts
from costmodels.layout import Layout
from costmodels.positions import Contents, contents_of, strategy_changes
from costmodels.pricing import Pricing, in_rank_order
from costmodels.step import StageWork, StepTimes, price_steps, stage_work
from costmodels.table import Floats, StrategyTable


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedStep:
    """A layout's step: R = 1.

    Attributes
    ----------
    pricings, costs : tuple of Pricing and PartCosts
        One of each per island; islands that hold no stage repeat the costs of one that does.
    table, contents, work, times
        What :func:`costmodels.step.price_steps` takes and gives.
    """

    pricings: tuple[Pricing, ...]
    costs: tuple[PartCosts, ...]
    table: StrategyTable
    contents: Contents
    work: StageWork
    times: StepTimes

    @property
    def islands(self) -> tuple[int, ...]:
        """Islands that hold stages, in order."""
        return tuple(sorted(set(self.contents.islands)))

    def times_of(self, work: StageWork) -> StepTimes:
        """Step times of R layouts like this one whose stages take other times; ``work`` has R rows."""
        rows = work.forward_s.shape[1]
        contents = self.contents
        reshard = contents.reshard_s
        repeated = replace(
            contents,
            rows=np.repeat(contents.rows, rows, axis=0),
            counts=np.broadcast_to(contents.counts, (rows, *contents.counts.shape[1:])),
            reshard_s=None if reshard is None else np.broadcast_to(reshard, (rows, *reshard.shape[1:])),
        )
        return price_steps(self.pricings, self.costs, repeated, work)

    def stage_works_s(self) -> Floats:
        """Seconds of a step by work on every stage, shape (len(Work), pp)."""
        both = self.work.forward_s[:, 0] + self.work.backward_s[:, 0]
        return np.asarray(both.sum(axis=2) * self.times.num_microbatches)


def priced_step(pricings: Sequence[Pricing], layout: Layout, like: PricedStep | None = None) -> PricedStep:
    """Price the step of one layout.

    Parameters
    ----------
    pricings : sequence of Pricing
        One per island of the cluster; they share model and job.
    layout : Layout
        Its layers must be those of the model.
    like : PricedStep, optional
        Of a layout with the same strategies on the same islands, whose parts cost the same.

    Returns
    -------
    PricedStep

    Raises
    ------
    InputError
        The schedule cannot run with the layout's sizes, or an accelerator lacks the job's number format.
    """
    pricings = in_rank_order(pricings, layout)
    contents, table = contents_of(layout, pricings[0].model)
    changes = strategy_changes(layout)
    if changes.any():
        contents = replace(contents, reshard_s=changes.astype(float)[None, :] * _reshard_s(pricings, layout))
    aligned = like.costs if like else _part_costs(pricings, contents, table)
    work = stage_work(aligned, contents)
    return PricedStep(
        pricings=tuple(pricings),
        costs=aligned,
        table=table,
        contents=contents,
        work=work,
        times=price_steps(pricings, aligned, contents, work),
    )


def _part_costs(pricings: Sequence[Pricing], contents: Contents, table: StrategyTable) -> tuple[PartCosts, ...]:
    used = sorted(set(contents.islands))
    costs = [known_parts(pricing, table) if island in used else None for island, pricing in enumerate(pricings)]
    priced = [cost for cost in costs if cost is not None]
    return tuple(cost if cost is not None else priced[0] for cost in costs)


def _reshard_s(pricings: Sequence[Pricing], layout: Layout) -> float:
    """Seconds of one change of the layout of activations, on the slowest island used."""
    shape = (layout.micro_batch * layout.first.dp, layout.first.gpus)
    used = [pricings[island] for island in sorted({stage.island for stage in layout.stages})]
    return max(reshard_s(p.model, p.job, shape, p.tiers, p.constants.network) for p in used)
