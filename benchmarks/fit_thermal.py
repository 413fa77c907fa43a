"""Fit the cooling of the thermal study's machines to what its readers tell; prints the table of ``docs/placement.md``.

``python benchmarks/fit_thermal.py`` prints the targets beside the model for the constants that ship; ``--fit`` searches
a grid of resistance, coupling and the warmth of a rack's upper node and prints the best. The same constants hold for
both models and for all rows.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Final

from costmodels.layout import Layout
from costmodels.placement import Placement
from hardware.catalog import cluster
from hardware.cluster import Cluster
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import PlacedLayout, place_layout, placed_as_given
from planner.planning import pricings_of
from planner.question import Question, request_of
from planner.request import PlanRequest

# Name, published value, weight: differences of efficiency 1/(T E) and of the gap between hottest and coolest GPU. The
# symmetric variant is told as at most; readers contradict each other about 13/11.
TARGETS: Final = (
    ("rear over front in a node", 0.27, 1.0),
    ("Llama3-70B symmetric as told, efficiency", 0.02, 0.0),
    ("Llama3-70B symmetric as placed here, efficiency", 0.02, 0.0),
    ("Llama3-70B 21/19, efficiency", 0.04, 1.0),
    ("Llama3-70B 21/19, gap", -0.08, 0.2),
    ("GPT3-175B 13/11, efficiency", -0.07, 0.25),
    ("GPT3-175B 13/11, gap", -0.17, 0.2),
)
RESISTANCES: Final = (0.065, 0.066, 0.067, 0.068)
COUPLINGS: Final = (0.026, 0.027, 0.028)
RISES: Final = (0.0, 2.0, 4.0, 5.0, 6.0, 7.0)
COOL_FIRST: Final = Placement(nodes=(0, 2, 1, 3), gpus=((0, 2, 4, 7, 1, 3, 5, 6),) * 4)
"""Equal layers with the first stages on cool accelerators: the symmetric variant as its reader tells it."""


@dataclass(frozen=True)
class Model:
    """A model of the study under one grid."""

    name: str
    seq: int
    tp: int
    even: str
    uneven: str

    def request(self, machine: Cluster) -> PlanRequest:
        """The job on a machine."""
        asked = Question(model=self.name, cluster="h200-thermal-study", global_batch=128, seq=self.seq, thermal=True)
        return replace(request_of(asked), cluster=machine)

    def placed(self, machine: Cluster, split: str) -> PlacedLayout:
        """The layout with its ranks placed as well as torchrun allows."""
        request = self.request(machine)
        return place_layout(request, pricings_of(request), self.layout(request, split))

    def grouped(self, machine: Cluster) -> PlacedLayout:
        """Equal layers, placed as the reader of the study tells it."""
        request = self.request(machine)
        return placed_as_given(pricings_of(request), self.layout(request, self.even), COOL_FIRST)

    def layout(self, request: PlanRequest, split: str) -> Layout:
        """The layout of the study with layers per stage."""
        return layout_of(request, ExplicitLayout(tp=self.tp, layers_per_stage=split))


LLAMA: Final = Model("llama3-70b", 8192, 4, "20x4", "21,19,21,19")
GPT3: Final = Model("gpt3-175b", 2048, 4, "12x8", "13,11,13,11,13,11,13,11")


def machine_of(resistance: float = 0.0, coupling: float = 0.0, rise: float = 0.0) -> Cluster:
    """The study's machine with other constants; 0.0: as it ships."""
    machine = cluster("h200-thermal-study")
    if not resistance:
        return machine
    (island,) = machine.islands
    cooling = replace(island.node.cooling, resistance_c_per_w=resistance, coupling_c_per_w=coupling, rack_rise_c=rise)
    return replace(machine, islands=(replace(island, node=replace(island.node, cooling=cooling)),))


def efficiency(placed: PlacedLayout, *, in_order: bool = False) -> float:
    """``1 / (T E)`` up to a factor."""
    cost = placed.in_order if in_order and placed.in_order else placed.cost
    return 1.0 / (cost.step.total_s * cost.power.energy_j_per_token)


def rear_over_front(placed: PlacedLayout) -> float:
    """Largest ratio of two GPUs' temperatures in one node, less one, with the ranks in order."""
    cost = placed.in_order or placed.cost
    by_node: dict[int, list[float]] = {}
    for slot in cost.power.slots:
        by_node.setdefault(slot.node, []).append(slot.temperature_c)
    return max(max(degrees) / min(degrees) - 1.0 for degrees in by_node.values())


def results(machine: Cluster) -> Iterator[float]:
    """What the model says for each target."""
    even, uneven = (LLAMA.placed(machine, split) for split in (LLAMA.even, LLAMA.uneven))
    assert even.in_order is not None
    base, gap_c = efficiency(even, in_order=True), even.in_order.power.gap_c
    yield rear_over_front(even)
    yield efficiency(LLAMA.grouped(machine)) / base - 1.0
    yield efficiency(even) / base - 1.0
    yield efficiency(uneven) / base - 1.0
    yield uneven.cost.power.gap_c / gap_c - 1.0
    even, uneven = (GPT3.placed(machine, split) for split in (GPT3.even, GPT3.uneven))
    assert even.in_order is not None
    yield efficiency(uneven) / efficiency(even, in_order=True) - 1.0
    yield uneven.cost.power.gap_c / even.in_order.power.gap_c - 1.0


def misfit(found: list[float]) -> float:
    """Weighted sum of squares; infinite where 21/19 does not win over equal layers however these are placed."""
    _, _, symmetric, asymmetric, *_ = found
    if asymmetric <= symmetric:
        return inf
    return sum((weight * (value - wanted)) ** 2 for value, (_, wanted, weight) in zip(found, TARGETS, strict=True))


def main(*, fit: bool) -> None:
    """Print the table, and the best of the grid."""
    if fit:
        tried = []
        for constants in product(RESISTANCES, COUPLINGS, RISES):
            found = list(results(machine_of(*constants)))
            tried.append((misfit(found), constants))
            print(constants, [f"{100 * value:+.1f}" for value in found], f"{tried[-1][0]:.5f}", flush=True)
        print("best:", min(tried)[1])
    print("| fact | published | model |\n|---|---|---|")
    for (name, wanted, _), value in zip(TARGETS, results(machine_of()), strict=True):
        print(f"| {name} | {100 * wanted:+.0f} % | {100 * value:+.1f} % |")


if __name__ == "__main__":
    main(fit="--fit" in sys.argv[1:])
