"""What a search answers, as frozen values: ranked layouts, counts, bounds and proof."""

from dataclasses import dataclass, replace
from typing import Final

from costmodels.layout import Layout
from costmodels.results import Evidence, LayoutCost
from planner.request import Objective, PlanRequest

REPEAT_NOISE: Final = 0.03
"""Runs of one layout differ by about this share in time (median over repeated published runs): nearer is a tie."""
MORE_ROOM: Final = 0.1  # of the usable memory that makes a layout roomier


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Where one rank runs."""

    rank: int
    host: str
    gpu: int


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """The same layout with its ranks in order: rank r on GPU r mod g of node r // g."""

    step_time_s: float
    energy_j_per_token: float
    gap_c: float
    max_temp_c: float


@dataclass(frozen=True, kw_only=True)
class RankedLayout:
    """One layout with its price.

    ``placement`` is empty where ranks are in order on the islands of their stages: on one island rank r is on GPU
    r mod g of node r // g. ``in_order`` is the price with that placement, where another was looked for, else None.
    ``why`` says in one line what it loses to the layout before it. ``choices`` are those that were tried, by name, as
    this layout has them; empty where nothing was tried.
    """

    layout: Layout
    cost: LayoutCost
    evidence: Evidence
    why: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    placement: tuple[RankPlace, ...] = ()
    in_order: InOrder | None = None


@dataclass(frozen=True, kw_only=True)
class SearchProof:
    """How the search came to its answer.

    ``pruned`` counts candidates by the bound that removed them. ``lower_bound_s`` is below the step time of every
    layout of the space; ``gap`` is (best - lower bound) / best; ``proven_optimal`` holds when no layout of the space
    can be faster than the best, under the model. ``cut`` counts what the time limit has left as it was found, by what
    was not done any more. ``work_s`` is the counted work [s], for which the time limit holds first; ``by_clock``: the
    clock came before, so that another run may find something else.
    """

    enumerated: int
    pruned: tuple[tuple[str, int], ...]
    solved: int
    lower_bound_s: float
    gap: float
    proven_optimal: bool
    wall_s: float
    cut: tuple[tuple[str, int], ...] = ()
    work_s: float = 0.0
    by_clock: bool = False


@dataclass(frozen=True, kw_only=True)
class Infeasibility:
    """Why nothing is feasible: the tightest constraint in numbers, and the nearest change that makes it feasible.

    ``remedy`` is the request after that change, under which the search found a layout; None when none was found.
    """

    constraint: str
    nearest_change: str
    remedy: PlanRequest | None = None


@dataclass(frozen=True, kw_only=True)
class Roomier:
    """A layout of a ranking that is nearly as fast as the first and takes far less memory on its fullest rank."""

    rank: int
    slower: float
    freed_bytes: float


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """The answer to a request. ``layouts`` is empty exactly when ``infeasible`` is set.

    ``rejected`` counts candidates by the rule (with its numbers) that refused them. ``unconstrained_s`` is the step
    time of the best layout when the framework's constraints are lifted for the winner's pipeline; 0.0 when it was not
    asked for.
    """

    request: PlanRequest
    layouts: tuple[RankedLayout, ...]
    search: SearchProof
    rejected: tuple[tuple[str, int], ...] = ()
    infeasible: Infeasibility | None = None
    unconstrained_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def roomier(self) -> Roomier | None:
        """Of the layouts within :data:`REPEAT_NOISE` of the first, that of least memory, where it is roomier by much.

        None where the ranking is not by time, or no layout is roomier by :data:`MORE_ROOM` of the memory.
        """
        if not self.layouts or self.request.objective is not Objective.TIME:
            return None
        first = self.layouts[0].cost
        near = [
            Roomier(
                rank=rank,
                slower=one.cost.step.total_s / first.step.total_s - 1.0,
                freed_bytes=first.heaviest.total_bytes - one.cost.heaviest.total_bytes,
            )
            for rank, one in enumerate(self.layouts, start=1)
            if one.cost.step.total_s <= (1.0 + REPEAT_NOISE) * first.step.total_s
        ]
        best = max(near, key=lambda one: (one.freed_bytes, -one.rank))
        return best if best.freed_bytes >= MORE_ROOM * first.heaviest.usable_bytes else None

    def request_of(self, ranked: RankedLayout) -> PlanRequest:
        """Return the request that one of the layouts answers: that of its variant, where several were tried."""
        return self.request.with_choices(ranked.choices)

    def about(self, ranked: RankedLayout) -> "PlanReport":
        """Return the report as the answer to the request of one of its layouts."""
        return replace(self, request=self.request_of(ranked))
