"""The uniform search: every grid, bounded, priced with its recompute and virtual stages, in order of its lower bound.

Grids are priced once without recompute; a lower bound over every split of their layers orders them. They are then
expanded
in that order until the next bound exceeds the time of the worst layout still wanted. What is left is pruned by proof.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodels.layer_costs import PartCosts, part_weights, price_parts
from costmodels.layout import FULL_RECOMPUTE, Granularity, Recompute
from costmodels.memory import ModelMemory, components, model_memory, stage_sums, total_bytes, usable_memory
from costmodels.memory.peak import verdicts
from costmodels.positions import Contents
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.step import price_steps
from costmodels.table import Bools, Floats, Ints, StrategyTable
from planner.bounds import step_lower_bound_s
from planner.expand import Group, even_contents, pipeline_groups, prefix_contents, with_recomputes
from planner.grids import Grids, enumerate_grids, join_grids, world_sizes
from planner.recompute_options import recompute_options
from planner.request import PlanRequest
from planner.rules import legal_mask

FIRST_BLOCK: Final = 128
BLOCK: Final = 512

Key = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One priced layout of the uniform search with its even split.

    ``prefix`` is the number of layers of every position that recompute in full (0: all layers use ``recompute``).
    """

    total_s: float
    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    zero: int
    micro_batch: int
    num_microbatches: int
    vpp: int
    recompute: Recompute
    prefix: int
    sequence_parallel: bool
    memory_bytes: float
    verdict: Verdict

    @property
    def key(self) -> Key:
        """What makes two layouts differ for a user: the grid."""
        return self.tp, self.cp, self.pp, self.dp, self.ep, self.etp

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key with an explicit tie-break: time, then the simplest layout."""
        modules = len(self.recompute.modules) + 10 * (self.recompute.granularity is Granularity.FULL)
        return (
            self.total_s, self.pp, self.vpp, self.tp, self.cp, self.ep, self.etp, self.zero, self.micro_batch, modules,
            self.prefix,
        )  # fmt: skip


@dataclass(kw_only=True)
class Tally:
    """What the search has seen so far."""

    best: dict[Key, Candidate] = field(default_factory=dict)
    risky: dict[Key, Candidate] = field(default_factory=dict)  # what fits with less than the safe margin
    nearest: Candidate | None = None  # least over its memory, when nothing fits
    enumerated: int = 0
    solved: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    open_bound_s: float = float("inf")  # least bound among what was not expanded

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate if it is the best of its grid among those of its verdict."""
        kept = self.best if candidate.verdict is Verdict.FITS else self.risky
        held = kept.get(candidate.key)
        if held is None or candidate.order < held.order:
            kept[candidate.key] = candidate

    def threshold_s(self, wanted: int) -> float:
        """Time beyond which nothing can enter the ranking any more."""
        times = sorted(candidate.total_s for candidate in self.best.values())
        return times[wanted - 1] if len(times) >= wanted else float("inf")


class UniformSearch:
    """One search over uniform grids on one cluster."""

    def __init__(self, request: PlanRequest, pricings: Sequence[Pricing]) -> None:
        self.request = request
        self.pricings = pricings
        self.weights = part_weights(pricings[0])
        self.options = recompute_options(request.recompute, request.framework, pricings[0])
        self.tally = Tally()
        self.deadline = time.monotonic() + request.time_limit_s

    def run(self) -> Tally:
        """Search; returns what was found, with counts."""
        grids = self._legal(self._grids())
        if not len(grids):
            return self.tally
        bound = self._lower_bound_s(grids)
        fits = self._states_fit(grids)
        self.tally.pruned["memory of the states alone"] += int((~fits).sum())
        order = np.flatnonzero(fits)[np.argsort(bound[fits], kind="stable")]
        self._expand_in_order(grids, bound, order)
        return self.tally

    def _grids(self) -> Grids:
        worlds = world_sizes(self.request.cluster)
        grids = join_grids([enumerate_grids(self.request, world) for world in worlds])
        self.tally.enumerated += len(grids)
        return grids

    def _legal(self, grids: Grids) -> Grids:
        verdict = legal_mask(self.request.framework, grids.table, self.request.model, self.request.job)
        self.tally.rejected.update(dict(verdict.reasons))
        return grids.take(np.flatnonzero(verdict.ok))

    def _costs(self, table: StrategyTable) -> list[PartCosts]:
        return [price_parts(pricing, table) for pricing in self.pricings]

    def _lower_bound_s(self, grids: Grids) -> Floats:
        """Least time of any layout of a grid, without recompute, whatever its chunks; on the fastest island."""
        may_interleave = (grids.table.pp > 1) & (grids.num_microbatches % grids.table.pp == 0)
        if self.request.fixed_degree("vpp") == 1:
            may_interleave[:] = False
        bounds = [
            step_lower_bound_s(costs, self.weights, grids.table.pp, grids.num_microbatches, ~may_interleave)
            for costs in self._costs(grids.table)
        ]
        return np.min(bounds, axis=0)

    def _states_fit(self, grids: Grids) -> Bools:
        """Whether the states alone, spread evenly over the stages, fit: necessary, not sufficient."""
        request = self.request
        memory = model_memory(request.model, request.job, grids.table, self.pricings[0].constants.memory)
        weights = self.weights[: len(memory.parts)]
        states = sum(weight * part.states for weight, part in zip(weights, memory.parts, strict=True))
        largest = max(usable_memory(pricing.accelerator) for pricing in self.pricings)
        return np.asarray(states / grids.table.pp <= largest)

    def _expand_in_order(self, grids: Grids, bound: Floats, order: Ints) -> None:
        start, size = 0, FIRST_BLOCK
        while start < len(order):
            limit = self.tally.threshold_s(self.request.top)
            if bound[order[start]] > limit or time.monotonic() > self.deadline:
                reason = "time lower bound" if bound[order[start]] > limit else "time limit"
                self.tally.pruned[reason] += len(order) - start
                self.tally.open_bound_s = min(self.tally.open_bound_s, float(bound[order[start]]))
                return
            block = order[start : start + size]
            self._evaluate(grids.take(block))
            start, size = start + size, BLOCK

    def _evaluate(self, grids: Grids) -> None:
        """Price a block of grids under every recompute choice and virtual degree."""
        block = with_recomputes(grids, self.options)
        costs = self._costs(block.table)
        request = self.request
        memory = model_memory(request.model, request.job, block.table, self.pricings[0].constants.memory)
        bound = np.min(
            [step_lower_bound_s(c, self.weights, block.table.pp, block.num_microbatches, np.zeros(len(block), bool))
            for c in costs],
            axis=0,
        )  # fmt: skip
        alive = np.flatnonzero(bound <= self.tally.threshold_s(request.top))
        self.tally.pruned["time lower bound with recompute"] += len(block) - len(alive)
        priced = _Priced(search=self, block=block, costs=costs, memory=memory)
        for group in pipeline_groups(block.take(alive), request.model.layers, request.fixed_degree("vpp")):
            priced.group(Group(spec=group.spec, rows=alive[group.rows]))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """Memory of the heaviest stage of R layouts, shape (R,)."""

    total_bytes: Floats
    fits: Bools
    oom: Bools

    def __len__(self) -> int:
        return len(self.fits)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Priced:
    """A block of expanded rows with their part times and memory."""

    search: UniformSearch
    block: Grids
    costs: list[PartCosts]
    memory: ModelMemory

    def group(self, group: Group) -> None:
        """Price one pipeline shape: even splits that fit, and prefix recompute for those that do not."""
        islands = tuple(0 for _ in range(group.spec.pp))
        contents = even_contents(self.search.request.model, group, islands)
        held = self._held(contents)
        self._offer(contents, np.zeros(len(held), dtype=np.int64), held)
        if FULL_RECOMPUTE in self.search.options:
            self._prefix(contents, ~held.fits)

    def _held(self, contents: Contents) -> _Held:
        request, pricing = self.search.request, self.search.pricings[0]
        constants = pricing.constants.memory
        usable = usable_memory(pricing.accelerator)
        named = components(stage_sums(request.model, request.job, self.memory, contents), usable, constants)
        verdict = verdicts(named, usable, constants)
        return _Held(
            total_bytes=total_bytes(named).max(axis=1),
            fits=(verdict == Verdict.FITS).all(axis=1),
            oom=(verdict == Verdict.OOM).any(axis=1),
        )

    def _prefix(self, contents: Contents, failed: Bools) -> None:
        """Rows that fail without recompute but fit with it: as few recomputed layers as fit, found by bisection."""
        options = len(self.search.options)
        none = self.block.table.recompute[contents.rows[:, 0]] == 0
        wanted = failed & none & (self.search.options[0].granularity is Granularity.NONE)
        if not wanted.any():
            return
        part = _rows_of(contents, wanted)
        full = part.rows[:, 0] + options - 1
        kinds = len(self.search.request.model.kinds())
        most = int(part.counts[:, :, 0, :kinds].sum(axis=-1).max())
        low, high = np.zeros(len(full), dtype=np.int64), np.full(len(full), most)
        while (high - low > 1).any():
            middle = (low + high) // 2
            fits = self._held(prefix_contents(part, full, middle, kinds)).fits
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        mixed = prefix_contents(part, full, high, kinds)
        some = high < most  # all layers: that is full recompute, priced on its own
        if some.any():
            mixed = _rows_of(mixed, some)
            self._offer(mixed, high[some], self._held(mixed))

    def _offer(self, contents: Contents, prefix: Ints, held: _Held) -> None:
        """Price what fits, at least with risk, and keep what may enter the ranking."""
        self._note_nearest(contents, held)
        feasible = np.flatnonzero(~held.oom)
        if not len(feasible):
            return
        tally = self.search.tally
        part = _rows_of(contents, ~held.oom)
        times = price_steps(self.search.pricings, self.costs, self.block.table, part)
        tally.solved += len(feasible)
        limit = tally.threshold_s(self.search.request.top)
        for row in np.flatnonzero(times.total_s <= limit):
            at = int(feasible[row])
            tally.offer(self._candidate(contents, at, held, (float(times.total_s[row]), int(prefix[at]))))

    def _note_nearest(self, contents: Contents, held: _Held) -> None:
        """Remember what misses its memory by least, for the case that nothing fits."""
        tally = self.search.tally
        row = int(held.total_bytes.argmin())
        if tally.nearest is None or held.total_bytes[row] < tally.nearest.memory_bytes:
            tally.nearest = self._candidate(contents, row, held, (float("inf"), 0))

    def _candidate(self, contents: Contents, row: int, held: _Held, found: tuple[float, int]) -> Candidate:
        """Row of the contents as a candidate; ``found`` is its step time and its prefix of recomputed layers."""
        table, at = self.block.table, int(contents.rows[row, 0])
        verdict = Verdict.OOM if held.oom[row] else Verdict.FITS if held.fits[row] else Verdict.RISKY
        return Candidate(
            total_s=found[0],
            tp=int(table.tp[at]),
            cp=int(table.cp[at]),
            pp=int(table.pp[at]),
            dp=int(table.dp[at]),
            ep=int(table.ep[at]),
            etp=int(table.etp[at]),
            zero=int(table.zero[at]),
            micro_batch=int(table.micro_batch[at]),
            num_microbatches=contents.spec.num_microbatches,
            vpp=contents.spec.vpp,
            recompute=table.recomputes[int(table.recompute[at])],
            prefix=found[1],
            sequence_parallel=bool(table.sequence_parallel[at]),
            memory_bytes=float(held.total_bytes[row]),
            verdict=verdict,
        )


def _rows_of(contents: Contents, keep: Bools) -> Contents:
    index = np.flatnonzero(keep)
    return Contents(
        spec=contents.spec, rows=contents.rows[index], counts=contents.counts[index], islands=contents.islands
    )
