"""A block of grids, expanded by recompute and virtual stages, priced and judged."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.layer_costs import PartCosts
from costmodels.layout import Granularity
from costmodels.memory import ModelMemory, components, stage_sums, total_bytes, usable_memory
from costmodels.memory.peak import verdicts
from costmodels.positions import Contents
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.step import StageWork, price_steps, rows_of_work, stage_work, staircase_bound_s
from costmodels.table import Bools, Floats, Ints
from planner.layouts.expand import (
    Expanded,
    Group,
    balanced_contents,
    even_contents,
    lone_contents,
    prefix_contents,
    splits_freely,
)
from planner.request import PlanRequest
from planner.search.tally import Candidate, Tally

NEARLY: Final = 1.15  # of the usable memory: what exceeds it by less may fit with its layers split in another way


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """Memory of the heaviest stage of R layouts, shape (R,)."""

    total_bytes: Floats
    fits: Bools
    oom: Bools

    def __len__(self) -> int:
        return len(self.fits)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """R layouts with their memory; ``prefix`` counts the layers of a position that recompute in full, (R,)."""

    contents: Contents
    held: _Held
    prefix: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedBlock:
    """A block of expanded rows with their part times and memory."""

    request: PlanRequest
    pricing: Pricing
    tally: Tally
    block: Expanded
    costs: PartCosts
    memory: ModelMemory

    def group(self, group: Group) -> None:
        """Price one pipeline shape, evenly split and in other ways; with prefix recompute where that does not fit."""
        islands = tuple(0 for _ in range(group.spec.pp))
        self._price(even_contents(self.request, group, islands), group)
        if not splits_freely(self.request):
            return
        balanced = balanced_contents(self.request.model, group, self.costs, islands)
        lone = lone_contents(self.request, group, islands)
        for contents in (balanced, lone):
            if contents is not None:
                self._price(contents, group)

    def _price(self, contents: Contents, group: Group) -> None:
        work = stage_work([self.costs], contents)
        near = np.flatnonzero(staircase_bound_s(work, contents.spec) <= self.tally.threshold_s())
        self.tally.pruned["time lower bound of a split"] += len(group.rows) - len(near)
        if not len(near):
            return
        contents, work = contents.take(near), rows_of_work(work, near)
        held = self._held(contents)
        found = _Found(contents=contents, held=held, prefix=np.zeros(len(near), dtype=np.int64))
        self._offer(found, work)
        self._prefix(found)

    def _held(self, contents: Contents) -> _Held:
        request, pricing = self.request, self.pricing
        constants = pricing.constants.memory
        usable = usable_memory(pricing.accelerator)
        named = components(stage_sums(request.model, request.job, self.memory, contents), usable, constants)
        verdict = verdicts(named, usable, constants)
        return _Held(
            total_bytes=total_bytes(named).max(axis=1),
            fits=(verdict == Verdict.FITS).all(axis=1),
            oom=(verdict == Verdict.OOM).any(axis=1),
        )

    def _prefix(self, found: _Found) -> None:
        """Rows that fail without recompute but fit with it: as few recomputed layers as fit, found by bisection."""
        contents = found.contents
        rows = contents.rows[:, 0]
        table = self.block.grids.table
        plain = np.array([r.granularity is Granularity.NONE for r in table.recomputes])[table.recompute[rows]]
        wanted = ~found.held.fits & plain & (self.block.full[rows] >= 0)
        if not wanted.any():
            return
        part = contents.take(np.flatnonzero(wanted))
        full = self.block.full[part.rows[:, 0]]
        model = self.request.model
        most = int(part.counts[:, :, 0, : len(model.kinds())].sum(axis=-1).max())
        low, high = np.zeros(len(full), dtype=np.int64), np.full(len(full), most)
        while (high - low > 1).any():
            middle = (low + high) // 2
            fits = self._held(prefix_contents(model, part, full, middle)).fits
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        mixed = prefix_contents(model, part, full, high)
        some = high < most  # all layers: that is full recompute, priced on its own
        if some.any():
            mixed = mixed.take(np.flatnonzero(some))
            held = self._held(mixed)
            self._offer(_Found(contents=mixed, held=held, prefix=high[some]))

    def _offer(self, found: _Found, work: StageWork | None = None) -> None:
        """Price what fits, or nearly, and keep what may enter the ranking."""
        self._note_nearest(found)
        contents = found.contents
        work = stage_work([self.costs], contents) if work is None else work
        limit = self.tally.threshold_s()
        near = staircase_bound_s(work, contents.spec) <= limit
        nearly = found.held.total_bytes <= NEARLY * usable_memory(self.pricing.accelerator)
        rows = np.flatnonzero(nearly & near)
        if not len(rows):
            return
        part = contents.take(rows)
        times = price_steps([self.pricing], [self.costs], part, rows_of_work(work, rows))
        self.tally.solved += len(rows)
        for row in np.flatnonzero(times.total_s <= limit):
            self.tally.offer(self._candidate(found, int(rows[row]), float(times.total_s[row])))

    def _note_nearest(self, found: _Found) -> None:
        """Remember what misses its memory by least, for the case that nothing fits."""
        total = found.held.total_bytes
        row = int(total.argmin())
        if self.tally.nearest is None or total[row] < self.tally.nearest.memory_bytes:
            self.tally.nearest = self._candidate(found, row, float("inf"))

    def _candidate(self, found: _Found, row: int, total_s: float) -> Candidate:
        """Row of what was found as a candidate."""
        table, at = self.block.grids.table, int(found.contents.rows[row, 0])
        verdict = Verdict.OOM if found.held.oom[row] else Verdict.FITS if found.held.fits[row] else Verdict.RISKY
        kinds = len(self.request.model.kinds())
        return Candidate(
            total_s=total_s,
            layers=tuple(int(n) for n in found.contents.counts[row, :, :, :kinds].sum(axis=(1, 2))),
            tp=int(table.tp[at]),
            cp=int(table.cp[at]),
            pp=int(table.pp[at]),
            dp=int(table.dp[at]),
            ep=int(table.ep[at]),
            etp=int(table.etp[at]),
            zero=int(table.zero[at]),
            shard_group=int(table.shard_group[at]),
            micro_batch=int(table.micro_batch[at]),
            num_microbatches=found.contents.spec.num_microbatches,
            vpp=found.contents.spec.vpp,
            schedule=found.contents.spec.schedule,
            recompute=table.recomputes[int(table.recompute[at])],
            prefix=int(found.prefix[row]),
            sequence_parallel=bool(table.sequence_parallel[at]),
            memory_bytes=float(found.held.total_bytes[row]),
            verdict=verdict,
        )
