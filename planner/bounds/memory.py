"""Lower bounds on the memory of the fullest stage, over every split of the layers: what a search drops before pricing.

For any weights ``lambda_i >= 0`` that sum to one, the fullest stage holds at least ``sum_i lambda_i M_i``. Stage i
holds ``M_i = sum_k n_ik (s_k + h_i a_k)``: states and the activations of ``h_i`` micro-batches in flight of each of its
layers. The least over all placements puts every layer of kind k where ``lambda_i (s_k + h_i a_k)`` is least, hence

    max_i M_i >= sum_k N_k min_i lambda_i (s_k + h_i a_k)        with lambda_i in proportion to 1 / (mean s + h_i mean
    a).

With one kind of layer this is the exact optimum over real layer counts.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.memory import LayerMemory, MemoryConstants, ModelMemory, usable_memory
from costmodels.part_ops import EMBEDDING, MTP
from costmodels.pipeline.schedules import Schedule
from costmodels.pricing import Pricing
from costmodels.results import Verdict
from costmodels.table import Bools, Floats, Ints

RECEIVE_BUFFERS: Final = 2.0  # of a stage, as in costmodels.memory.stages


@dataclass(frozen=True, eq=False)
class Flight:
    """Pipelines of R candidates, arrays of shape (R,); ``chunked``: all with several chunks per stage, or all with one.

    Interleaving needs ``num_microbatches`` to be a multiple of ``pp``. ``schedule`` is that of a request: None for
    1F1B, interleaved with several chunks.
    """

    pp: Ints
    num_microbatches: Ints
    chunked: bool
    schedule: Schedule | None = None

    @property
    def drains(self) -> bool:
        """Whether a stage ends before the last whole backward passes of the stages ahead of it."""
        return self.schedule is None or not self.schedule.splits_backward

    def take(self, rows: Ints | Bools) -> "Flight":
        """Candidates ``rows``."""
        return replace(self, pp=self.pp[rows], num_microbatches=self.num_microbatches[rows])

    def least(self, stages: Ints) -> Ints:
        """Micro-batches in flight on every layer of some stages at the peak, at least; shape (R, stages).

        ``min(m, pp - i)`` with 1F1B. Interleaved, a stage has seen ``(v - 1) pp + 2 (pp - i) - 1`` forwards before its
        first backward: ``pp`` of every chunk but the last, and ``min(pp, 2 (pp - i) - 1)`` of that one; with a split
        backward pass ``(v - 1) pp + pp - i``. GPipe and looped BFS hold all; ZB-H1 as many as 1F1B when its first
        backward begins, ZB-H2 ``2 (pp - i) - 1``; of the chunks of a V the second holds fewer then, ``i + 1``.
        """
        pp, m = self.pp[:, None], self.num_microbatches[:, None]
        if self.schedule is not None and self.schedule.holds_all:
            return np.asarray(np.broadcast_to(m, (len(m), len(stages))))
        if self.schedule is not None and self.schedule.is_v:
            return np.asarray(np.minimum(m, stages + 1))
        if self.schedule is Schedule.INTERLEAVED_ZB:
            return np.asarray(np.minimum(m, pp - stages))
        if self.schedule is Schedule.ZB_2P:
            return np.asarray(np.minimum(m, 2 * (pp - stages) - 1))
        return np.asarray(np.minimum(pp, 2 * (pp - stages) - 1) if self.chunked else np.minimum(m, pp - stages))


@dataclass(frozen=True, kw_only=True, eq=False)
class StageRoom:
    """What a stage may hold, and what layers and ends of the model take of it at least; arrays of shape (R,).

    Attributes
    ----------
    room_bytes : ndarray
        Bytes that the layers and ends of a stage may take together, on any stage.
    states_bytes, kept_bytes : ndarray
        Of one layer of each kind, shape (kinds, R): states, and activations of one micro-batch with the share of them
        that the allocator reserves.
    first_bytes, last_bytes : ndarray
        Of what lies on the first and on the last stage besides layers.
    """

    room_bytes: Floats
    states_bytes: Floats
    kept_bytes: Floats
    first_bytes: Floats
    last_bytes: Floats

    def take(self, rows: Ints) -> "StageRoom":
        """Candidates ``rows``."""
        return StageRoom(
            room_bytes=self.room_bytes[rows],
            states_bytes=self.states_bytes[:, rows],
            kept_bytes=self.kept_bytes[:, rows],
            first_bytes=self.first_bytes[rows],
            last_bytes=self.last_bytes[rows],
        )


def reserved_share(constants: MemoryConstants, accepted: Verdict) -> float:
    """Least share of what comes and goes that the allocator holds on top: all of the reserve when the layout is safe.

    The reserve shrinks when memory is short, and a layout whose reserve has shrunk uses all of the memory: no safe one
    does.
    """
    return constants.reserve_share if accepted is Verdict.FITS else constants.least_reserve_share


def stage_room(
    pricing: Pricing, memory: ModelMemory, names: tuple[str, ...], accepted: Verdict, in_flight: Ints
) -> StageRoom:
    """Return the room of the stages of some candidates.

    Parameters
    ----------
    pricing : Pricing
        Model, constants and accelerator.
    memory : ModelMemory
        Parts under R strategies.
    names : tuple of str
        Of the parts.
    accepted : Verdict
        What still fits: safely, or at all.
    in_flight : ndarray of int
        Micro-batches in flight on the first stage, shape (R,).

    Returns
    -------
    StageRoom
        Every stage holds a layer, so the least working memory of a layer is needed on each.
    """
    constants = pricing.constants.memory
    moving = 1.0 + reserved_share(constants, accepted)
    layers = memory.parts[: memory.kinds]
    usable = usable_memory(pricing.accelerator) * (constants.risky_share if accepted is Verdict.FITS else 1.0)
    working = np.min([part.working + part.gathered for part in layers], axis=0)
    buffers = RECEIVE_BUFFERS * memory.boundary + memory.buckets + memory.groups * constants.group_bytes
    first, last = np.zeros_like(working), np.zeros_like(working)

    def states(part: LayerMemory) -> Floats:
        # a cache that is not short of memory keeps blocks of what another stream reduces; else they may be absent
        return part.states - part.fresh * (1.0 - memory.reduces * (accepted is Verdict.FITS))

    for name, part in zip(names[memory.kinds :], memory.parts[memory.kinds :], strict=True):
        if name == EMBEDDING:
            first = first + states(part) + in_flight * moving * part.kept
        else:
            last = last + (pricing.model.mtp_layers if name == MTP else 1) * (states(part) + moving * part.kept)
    return StageRoom(
        room_bytes=usable - constants.context_bytes - constants.workspace_bytes - buffers - moving * working,
        states_bytes=np.stack([states(part) for part in layers]),
        kept_bytes=moving * np.stack([part.kept for part in layers]),
        first_bytes=first,
        last_bytes=last,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryBound:
    """Bound on the fullest stage, shape (R,), and by how much one recomputed layer can lower it per byte dropped.

    ``relief`` is ``max_i lambda_i h_i``: dropping ``d`` bytes of activations of one layer lowers the weighted sum by at
    most ``relief * d``.
    """

    least_bytes: Floats
    relief: Floats


def memory_bound(room: StageRoom, counts: Floats, flight: Flight) -> MemoryBound:
    """Bound what the layers of the fullest stage take.

    Parameters
    ----------
    room : StageRoom
        Sizes of layers under R strategies.
    counts : array
        Layers of each kind in the model, shape (kinds,).
    flight : Flight
        Pipelines of the R candidates.

    Returns
    -------
    MemoryBound
    """
    states, kept = room.states_bytes, room.kept_bytes
    share = counts / counts.sum()
    mean_states, mean_kept = share @ states, share @ kept
    total = np.zeros_like(mean_states)
    relief = np.zeros_like(mean_states)
    least = np.full(states.shape, np.inf)
    for stage in range(int(flight.pp.max())):
        there = stage < flight.pp
        held = np.where(there, flight.least(np.array([stage]))[:, 0], 0)
        weight = np.where(there, 1.0 / np.maximum(mean_states + held * mean_kept, 1.0), 0.0)
        total += weight
        relief = np.maximum(relief, weight * held)
        least = np.where(there, np.minimum(least, weight * (states + held * kept)), least)
    return MemoryBound(least_bytes=(counts @ least) / total, relief=relief / total)
