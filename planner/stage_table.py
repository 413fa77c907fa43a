"""What every span of layers costs on every stage, as the tables that the inter-op partitioner takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.layer_costs import EMBEDDING, MTP, PartCosts
from costmodels.memory import ModelMemory
from costmodels.positions import kind_prefix
from costmodels.table import Floats
from costmodels.workload.model import ModelSpec


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
        time_s=(costs.forward_s + costs.backward_s).sum(axis=0)[:, row],
        states_bytes=np.array([part.states[row] for part in memory.parts]),
        kept_bytes=np.array([part.kept[row] for part in memory.parts]),
        kinds=memory.kinds,
        names=costs.names,
    )


def spans(model: ModelSpec, per_layer: Floats) -> Floats:
    """Sum of a quantity over layers i..j-1, shape (L + 1, L + 1), from its value per kind of layer."""
    upto = kind_prefix(model) @ per_layer
    return np.asarray(upto[None, :] - upto[:, None])


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePlace:
    """One stage: its parts' sizes, micro-batches in flight, and memory for layers and ends of the model."""

    sizes: PartSizes
    in_flight: float
    limit_bytes: float


def span_costs_s(model: ModelSpec, places: Sequence[StagePlace]) -> Floats:
    """Seconds of every span of layers on every stage, shape (pp, L + 1, L + 1); infinite where it does not fit."""
    out = []
    for number, place in enumerate(places):
        ends = EndsHeld(first=number == 0, last=number == len(places) - 1, mtp_layers=model.mtp_layers)
        sizes = place.sizes
        held_bytes = sizes.states_bytes + place.in_flight * sizes.kept_bytes
        seconds = spans(model, sizes.time_s[: sizes.kinds]) + sizes.ends(sizes.time_s, ends)
        memory = spans(model, held_bytes[: sizes.kinds]) + sizes.ends(held_bytes, ends)
        out.append(np.where(memory <= place.limit_bytes, np.maximum(seconds, 0.0), np.inf))
    return np.stack(out)
