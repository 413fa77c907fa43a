"""What every span of layers costs on every stage, as the tables that the inter-op partitioner takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.layer_costs import PartCosts
from costmodels.memory import ModelMemory
from costmodels.part_ops import EMBEDDING, MTP
from costmodels.positions import kind_prefix
from costmodels.table import Floats
from costmodels.workload.model import ModelSpec
from planner.inter_op.costs import Ends, LayerRun


@dataclass(frozen=True, kw_only=True)
class EndsHeld:
    """Which ends of the model a stage holds, and how many multi-token-prediction layers lie at the last."""

    first: bool
    last: bool
    mtp_layers: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PartSizes:
    """One strategy's parts: seconds per micro-batch, bytes of states, bytes kept per micro-batch in flight.

    Arrays of shape (K,): kinds of layers first, then the ends of the model.
    """

    time_s: Floats
    states_bytes: Floats
    kept_bytes: Floats
    kinds: int
    names: tuple[str, ...]

    def ends(self, values: Floats, held: EndsHeld) -> float:
        """Sum of a quantity over the ends of the model that a stage holds."""
        total = 0.0
        for name, value in zip(self.names[self.kinds :], values[self.kinds :], strict=True):
            wanted = held.first if name == EMBEDDING else held.last
            total += float(value) * (held.mtp_layers if name == MTP else 1) * wanted
        return total


def part_sizes(costs: PartCosts, memory: ModelMemory, row: int) -> PartSizes:
    """Sizes of the parts under one row of a strategy table."""
    return PartSizes(
        time_s=(costs.forward_s[..., row] + costs.backward_s[..., row]).sum(axis=0),
        states_bytes=np.array([part.weights[row] + part.gradients[row] + part.optimizer[row] for part in memory.parts]),
        kept_bytes=np.array([part.kept[row] for part in memory.parts]),
        kinds=memory.kinds,
        names=costs.names,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePlace:
    """One stage: its parts' sizes, micro-batches in flight, and memory for layers and ends of the model."""

    sizes: PartSizes
    in_flight: float
    limit_bytes: float


def span_costs_s(model: ModelSpec, places: Sequence[StagePlace]) -> Floats:
    """Seconds of every span of layers on every stage, shape (pp, L + 1, L + 1); infinite where it does not fit."""
    upto = kind_prefix(model)
    known: dict[int, tuple[Floats, Floats, Floats]] = {}  # of the stages that share their sizes
    out = []
    for number, place in enumerate(places):
        sizes = place.sizes
        if id(sizes) not in known:
            per_layer = (sizes.time_s, sizes.states_bytes, sizes.kept_bytes)
            seconds, states, kept = (_spans(upto @ values[: sizes.kinds]) for values in per_layer)
            known[id(sizes)] = seconds, states, kept
        seconds, states, kept = known[id(sizes)]
        ends = EndsHeld(first=number == 0, last=number == len(places) - 1, mtp_layers=model.mtp_layers)
        held_bytes = sizes.states_bytes + place.in_flight * sizes.kept_bytes
        memory = states + place.in_flight * kept + sizes.ends(held_bytes, ends)
        time_s = np.maximum(seconds + sizes.ends(sizes.time_s, ends), 0.0)
        out.append(np.where(memory <= place.limit_bytes, time_s, np.inf))
    return np.stack(out)


def _spans(upto: Floats) -> Floats:
    """Sum of a quantity over layers i..j-1, shape (L + 1, L + 1), from its sums over the first layers."""
    return np.asarray(upto[None, :] - upto[:, None])


def layer_runs(model: ModelSpec, sizes: PartSizes) -> tuple[LayerRun, ...]:
    """Return the model's runs of layers as the partitioner of chunks takes them."""
    kinds = {kind: row for row, kind in enumerate(model.kinds())}
    return tuple(
        LayerRun(
            count=run.count,
            time_s=float(sizes.time_s[kinds[run.kind]]),
            weight_bytes=float(sizes.states_bytes[kinds[run.kind]]),
            activation_bytes=float(sizes.kept_bytes[kinds[run.kind]]),
        )
        for run in model.runs
    )


def chunk_ends(model: ModelSpec, sizes: PartSizes) -> Ends:
    """Return the ends of the model as the partitioner of chunks takes them."""
    first = EndsHeld(first=True, last=False, mtp_layers=model.mtp_layers)
    last = EndsHeld(first=False, last=True, mtp_layers=model.mtp_layers)
    held = sizes.states_bytes + sizes.kept_bytes
    return Ends(
        first_s=sizes.ends(sizes.time_s, first),
        last_s=sizes.ends(sizes.time_s, last),
        first_bytes=sizes.ends(held, first),
        last_bytes=sizes.ends(held, last),
    )
