"""Bounds of every grid under every recompute option: time, and whether the memory can hold it."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.compute.local import grid_of
from costmodels.layer_costs import part_weights, price_parts, repeated_s
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.memory import ModelMemory, model_memory, usable_memory
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats
from planner.bounds import part_work, step_lower_bound_s, with_layers
from planner.expand import pinned_virtual
from planner.grids import Grids
from planner.memory_bounds import MemoryBound, memory_bound
from planner.request import PlanRequest

CHUNK: Final = 8_192  # grids whose memory is bounded at once: bounds the memory of a search


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionBounds:
    """Bounds for one request on one island under O recompute options."""

    request: PlanRequest
    pricing: Pricing
    options: tuple[Recompute, ...]
    accepted: Verdict

    def time_s(self, grids: Grids) -> Floats:
        """Least time of any layout of a grid under each option, whatever split, chunks, sharding; shape (S, O)."""
        table = grids.table
        distinct = grid_of(table)
        unsharded = table.take(distinct.first)
        unsharded = replace(unsharded, zero=np.zeros_like(unsharded.zero))
        weights = part_weights(self.pricing)
        work = part_work(price_parts(self.pricing, unsharded), weights)
        repeated = np.einsum("okd,k->od", repeated_s(self.pricing, unsharded, self.options), weights)
        plain = ~self._may_interleave(grids)
        columns = []
        for more in repeated:
            mine = with_layers(work, more).take(distinct.inverse)
            columns.append(step_lower_bound_s(mine, table.pp, grids.num_microbatches, plain))
        return np.stack(columns, axis=1)

    def _may_interleave(self, grids: Grids) -> Bools:
        if pinned_virtual(self.request) == 1:
            return np.zeros(len(grids), dtype=np.bool_)
        return np.asarray((grids.table.pp > 1) & (grids.num_microbatches % grids.table.pp == 0))

    def within_memory_s(self, grids: Grids, time_s: Floats) -> Floats:
        """Time bounds with infinity where no split can fit the memory; shape (S, O).

        Some layers may recompute in full while the others do nothing. A grid that does not fit without recompute keeps
        its bound of no recompute, raised by the least number of layers that must recompute.
        """
        parts = []
        for start in range(0, len(grids), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(grids)))
            parts.append(self._chunk(grids.take(rows), time_s[rows]))
        return np.concatenate(parts)

    def _chunk(self, grids: Grids, time_s: Floats) -> Floats:
        memories = [self._memory(grids, option) for option in self.options]
        bounds = [self._memory_bound(grids, memory) for memory in memories]
        rooms = [self._room_bytes(memory) for memory in memories]
        out = np.stack(
            [
                np.where(b.least_bytes <= room, time_s[:, o], np.inf)
                for o, (b, room) in enumerate(zip(bounds, rooms, strict=True))
            ],
            axis=1,
        )
        if NO_RECOMPUTE in self.options and FULL_RECOMPUTE in self.options:
            none, full = self.options.index(NO_RECOMPUTE), self.options.index(FULL_RECOMPUTE)
            share = self._recomputed_share(
                memories[none], memories[full], bounds[none].least_bytes - rooms[none], bounds[none]
            )
            mixed = time_s[:, none] + share * (time_s[:, full] - time_s[:, none])
            fits = np.isfinite(out[:, full]) & (share > 0.0)
            out[:, none] = np.where(fits, np.minimum(mixed, time_s[:, full]), out[:, none])
        return out

    def _memory(self, grids: Grids, option: Recompute) -> ModelMemory:
        table = replace(grids.table, recompute=np.zeros(len(grids), dtype=np.int64), recomputes=(option,))
        return model_memory(self.request.model, self.request.job, table, self.pricing.constants.memory)

    def _room_bytes(self, memory: ModelMemory) -> Floats:
        """Most bytes that layers can take on any stage: what may be used, less what every stage needs; shape (S,)."""
        constants = self.pricing.constants.memory
        usable = usable_memory(self.pricing.accelerator)
        limit = usable * (constants.risky_share if self.accepted is Verdict.FITS else 1.0)
        working = np.min([part.working for part in memory.parts[: memory.kinds]], axis=0)
        return np.asarray(limit - constants.context_bytes - constants.workspace_bytes - working)

    def _memory_bound(self, grids: Grids, memory: ModelMemory) -> MemoryBound:
        counts = part_weights(self.pricing)[: memory.kinds]
        return memory_bound(memory, counts, grids.table.pp, grids.num_microbatches)

    def _recomputed_share(self, none: ModelMemory, full: ModelMemory, missing: Floats, bound: MemoryBound) -> Floats:
        """Least share of the recompute of all layers that must be paid, shape (S,); 0 where nothing must.

        ``K`` recomputed layers lower the weighted memory by at most ``K * relief * largest saving``, and cost at least
        ``K`` times the cheapest kind's recompute: at least ``K / layers`` of the whole when all kinds cost the same,
        and nothing is claimed when they do not.
        """
        saved = np.max(
            [a.kept - b.kept for a, b in zip(none.parts[: none.kinds], full.parts[: full.kinds], strict=True)], axis=0
        )
        layers = np.where(missing > 0.0, missing / np.maximum(bound.relief * saved, 1e-9), 0.0)
        if none.kinds > 1:
            return np.where(missing > 0.0, np.finfo(np.float64).tiny, 0.0)
        return np.minimum(layers / self.request.model.layers, 1.0)
