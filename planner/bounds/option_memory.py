"""What the memory of grids adds to their time bounds under a recompute option."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layer_costs import part_weights
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.memory import model_memory, usable_memory
from costmodels.part_ops import part_names
from costmodels.pipeline.schedules import Schedule
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints
from planner.bounds.memory import Flight, StageRoom, memory_bound, stage_room
from planner.bounds.stage_capacity import Layers, Pipelines, capacity_bound_s
from planner.bounds.step_time import Work, on_stages
from planner.layouts.expand import expand
from planner.layouts.grids import Grids

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """Room on the stages of R grids under one option, and what a layer saves when it recomputes in full instead.

    ``saved_bytes`` has shape (kinds, R) and is zero where layers cannot choose. ``chunked``: stages hold several chunks
    (interleaved), not one. ``schedule`` is that of the request.
    """

    grids: Grids
    room: StageRoom
    saved_bytes: Floats
    chunked: bool = False
    schedule: Schedule | None = None

    def take(self, rows: Ints, *, chunked: bool) -> "Held":
        """Grids ``rows`` under one form of schedule."""
        return Held(
            grids=self.grids.take(rows),
            room=self.room.take(rows),
            saved_bytes=self.saved_bytes[:, rows],
            chunked=chunked,
            schedule=self.schedule,
        )

    def without_choice(self) -> "Held":
        """The same when no layer may choose."""
        return replace(self, saved_bytes=np.zeros_like(self.saved_bytes))

    def pipelines(self, work: Work) -> Pipelines:
        """The grids as pipelines, with what the ends of the model take of them."""
        room, work = self.room, on_stages(work, self.schedule)
        first, last = room.first_bytes, room.last_bytes
        if self.schedule is not None and self.schedule.is_v:  # both ends of a V are on the first stage
            first, last = first + last, np.zeros_like(last)
        return Pipelines(
            flight=self.flight,
            first_s=work.first_s,
            last_s=work.last_s,
            shortest_s=work.layer_s.min(axis=0),
            room_bytes=room.room_bytes,
            first_bytes=first,
            last_bytes=last,
        )

    def layers(self, work: Work, again_s: Floats) -> Iterator[Layers]:
        """The layers of each kind; ``again_s`` as in :meth:`OptionMemory.capacity_s`."""
        room = self.room
        for kind, count in enumerate(work.counts):
            yield Layers(
                count=count,
                layer_s=work.layer_s[kind],
                states_bytes=room.states_bytes[kind],
                kept_bytes=room.kept_bytes[kind],
                again_s=again_s[kind],
                saved_bytes=self.saved_bytes[kind],
            )

    @property
    def flight(self) -> Flight:
        """How many micro-batches are in flight."""
        return Flight(self.grids.table.pp, self.grids.num_microbatches, self.chunked, self.schedule)


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionMemory:
    """Memory of the layouts of one model and job on one island.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island.
    accepted : Verdict
        What still fits: safely (``FITS``), or at all (``RISKY``).
    schedule : Schedule, optional
        That of the request.
    """

    pricing: Pricing
    accepted: Verdict
    schedule: Schedule | None = None

    def held(self, grids: Grids, option: Recompute, *, mixed: bool = False) -> Held:
        """Return the room of some grids when all layers use an option; ``mixed``: that, or recompute in full."""
        room = self._room(grids, option)
        saved = np.zeros_like(room.kept_bytes)
        if mixed:
            saved = np.maximum(room.kept_bytes - self._room(grids, FULL_RECOMPUTE).kept_bytes, 0.0)
        return Held(grids=grids, room=room, saved_bytes=saved, schedule=self.schedule)

    def recomputed_layers(self, held: Held) -> Floats:
        """Layers that must recompute in full for the weighted mean of the stages to fit, shape (R,).

        0 where none must, infinite where not all of them are enough.
        """
        counts = self.counts(held)
        least = memory_bound(held.room, counts, held.flight)
        missing = least.least_bytes - held.room.room_bytes
        saved = least.relief * held.saved_bytes.max(axis=0)
        layers = np.divide(missing, saved, out=np.full_like(missing, np.inf), where=saved > 0.0)
        layers = np.where(missing > 0.0, np.ceil(layers * (1.0 - _ROUNDING)), 0.0)
        return np.where(layers <= counts.sum(), layers, np.inf)

    def capacity_s(self, held: Held, work: Work, again_s: Floats, known_s: Floats, limit_s: float) -> Floats:
        """Raise bounds on the time of pipelines by what their stages can hold.

        Parameters
        ----------
        held : Held
            Of R grids.
        work : Work
            Of the same.
        again_s : ndarray
            Seconds that a layer of each kind takes longer when it recomputes in full [s], shape (kinds, R).
        known_s : ndarray
            Bounds that are known [s], shape (R,).
        limit_s : float
            Bounds above it need not be told from infinity [s].

        Returns
        -------
        ndarray
            Shape (R,); infinite where no split can hold the layers.
        """
        pipelines, bound = held.pipelines(work), known_s
        for layers in held.layers(work, again_s):
            open_rows = np.flatnonzero(np.isfinite(bound))
            raised = np.full_like(bound, np.inf)
            if open_rows.size:
                raised[open_rows] = capacity_bound_s(
                    pipelines.take(open_rows), layers.take(open_rows), bound[open_rows], limit_s
                )
            bound = raised
        return bound

    def _room(self, grids: Grids, option: Recompute) -> StageRoom:
        recompute = np.zeros(len(grids), dtype=np.int64)
        return self._room_of(replace(grids, table=replace(grids.table, recompute=recompute, recomputes=(option,))))

    def _room_of(self, grids: Grids) -> StageRoom:
        """Return the room of some grids under their own recompute."""
        pricing = self.pricing
        memory = model_memory(pricing.model, pricing.job, grids.table, pricing.constants.memory)
        in_flight = np.minimum(grids.num_microbatches, grids.table.pp)
        return stage_room(pricing, memory, part_names(pricing), self.accepted, in_flight)

    def states_fit(self, grids: Grids) -> Bools:
        """Whether the states of the layers alone leave the mean stage any memory, shape (S,); holds under any option.

        ``sum_k N_k s_k <= pp usable``: the fullest stage holds at least the mean.
        """
        held = self.held(grids, NO_RECOMPUTE)
        usable = usable_memory(self.pricing.accelerator) - self.pricing.constants.memory.context_bytes
        return np.asarray(self.counts(held) @ held.room.states_bytes <= grids.table.pp * usable)

    def mean_fits(self, grids: Grids, options: tuple[Recompute, ...], wanted: Bools) -> Bools:
        """Whether the weighted mean of the stages can fit under the options that are wanted, shape (S, O).

        Layouts in which some layers recompute in full and the others do nothing hold no less than the leaner of both.

        Parameters
        ----------
        grids : Grids
            The S grids.
        options : tuple of Recompute
            The O options.
        wanted : ndarray of bool
            Shape (S, O); nothing is said of others.
        """
        block = expand(grids, options, wanted)
        room = self._room_of(block.grids)
        flight = Flight(block.grids.table.pp, block.grids.num_microbatches, chunked=False, schedule=self.schedule)
        counts = part_weights(self.pricing)[: room.states_bytes.shape[0]]
        least = memory_bound(room, counts, flight).least_bytes
        fits = np.zeros(wanted.shape, dtype=np.bool_)
        fits[block.grid, block.grids.table.recompute] = least <= room.room_bytes
        if NO_RECOMPUTE in options and FULL_RECOMPUTE in options:
            fits[:, options.index(NO_RECOMPUTE)] |= fits[:, options.index(FULL_RECOMPUTE)]
        return np.asarray(fits & wanted)

    def counts(self, held: Held) -> Floats:
        """Layers of each kind in the model, shape (kinds,)."""
        return part_weights(self.pricing)[: held.room.states_bytes.shape[0]]
