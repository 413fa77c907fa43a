"""The placements of a layout that are worth pricing, and whether they are all that there are.

Ranks of a node are consecutive under torchrun, so a placement permutes nodes, and accelerators inside nodes. Nodes of
one kind (equal inlets and devices) may be swapped without a difference where their blocks hold alike stages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, permutations, product
from math import factorial, prod
from typing import Final

import numpy as np

from costmodels.placement import Placement, identity, stages_of_blocks
from costmodels.power.accelerator import busy_w
from costmodels.power.heat import HeatProblem, IslandHeat
from costmodels.power.thermal import temperatures_c
from costmodels.table import Floats
from planner.placement.patterns import Gpus, NodeSlots, listed_whole, patterns

MOST_CANDIDATES: Final = 512
"""Placements of a layout that are priced together; where there are no more, all are."""
MOST_CELLS: Final = 1_048_576  # placements times accelerators that are priced together
MOST_PATTERNS: Final = 24  # of a node, in the rounds that follow where there are more placements


@dataclass(frozen=True, kw_only=True)
class Board:
    """What can be permuted.

    Attributes
    ----------
    blocks : tuple of tuple of int
        Stages of the local ranks of every block.
    kinds : tuple of int
        Kind of every node.
    slots : tuple of NodeSlots
        Per kind.
    loads : tuple of float
        Longest work per step of any stage of a block [s].
    coolness : tuple of int
        Nodes, the one that holds the fastest pace first.
    """

    blocks: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    slots: tuple[NodeSlots, ...]
    loads: tuple[float, ...]
    coolness: tuple[int, ...]

    @property
    def most(self) -> int:
        """Placements that are priced together."""
        accelerators = len(self.kinds) * len(self.slots[0].coolness)
        return min(MOST_CANDIDATES, max(MOST_CELLS // accelerators, 2))

    def groups(self, block: int) -> tuple[int, ...]:
        """Ranks of each stage of a block."""
        stages = self.blocks[block]
        return tuple(stages.count(stage) for stage in dict.fromkeys(stages))

    def patterns(self, block: int, node: int) -> tuple[Gpus, ...]:
        """Ways to lay a block on a node."""
        return patterns(self.blocks[block], self.slots[self.kinds[node]])


def board_of(problem: HeatProblem, number: int = 0) -> Board:
    """Look at a layout on the island ``number`` of those that it uses as what can be permuted there."""
    heat = problem.heats[number]
    island = problem.step.pricings[heat.island].island
    blocks = tuple(stages_of_blocks(problem.stages_of_places(heat.island), island.node.gpus))
    kinds = tuple(int(kind) for kind in heat.kind)
    firsts = [kinds.index(kind) for kind in range(max(kinds) + 1)]
    busy_s = heat.load.busy_s(heat.sustained_clock)
    warmth = _warmth(heat)
    return Board(
        blocks=blocks,
        kinds=kinds,
        slots=tuple(_slots(heat, node, warmth[node]) for node in firsts),
        loads=tuple(max(float(busy_s[heat.stages == stage][0]) for stage in set(block)) for block in blocks),
        coolness=tuple(int(node) for node in np.argsort(warmth.max(axis=1), kind="stable")),
    )


def _warmth(heat: IslandHeat) -> Floats:
    """What orders accelerators: temperature under the mean load, slow devices last; shape (nodes, G)."""
    watts = np.full(heat.inlet_c.shape, float(busy_w(heat.power, heat.load, heat.sustained_clock).mean()))
    degrees = temperatures_c(heat.cooling, watts) - heat.cooling.inlet_c + heat.inlet_c
    measured = np.where(heat.clock > 0.0, heat.clock, heat.sustained_clock) * heat.speed
    return np.asarray(degrees + 1e3 * (1.0 - measured))


def _slots(heat: IslandHeat, node: int, warmth: Floats) -> NodeSlots:
    rows = heat.cooling.rows
    places = max(len(row) for row in rows)
    alike = all(len(row) == places for row in rows)
    columns = tuple(tuple(row[place] for row in rows) for place in range(places)) if alike else (sum(rows, ()),)
    seen: dict[tuple[tuple[float, ...], ...], int] = {}
    kinds = []
    for column in columns:
        state = tuple(
            (float(heat.inlet_c[node, gpu]), float(heat.clock[node, gpu]), float(heat.speed[node, gpu]))
            for gpu in column
        )
        kinds.append(seen.setdefault(state, len(seen)))
    return NodeSlots(
        columns=columns,
        kinds=tuple(kinds),
        coolness=tuple(int(gpu) for gpu in np.argsort(warmth, kind="stable")),
    )


def every_placement(board: Board) -> tuple[Placement, ...] | None:
    """List all placements that differ, the identity first; None where there are more than :data:`MOST_CANDIDATES`."""
    count = len(board.blocks)
    if not all(listed_whole(board.groups(block), len(board.slots[0].coolness)) for block in range(count)):
        return None
    most_nodes = factorial(min(len(board.kinds), 12)) if len(set(board.kinds)) > 1 else 1
    if most_nodes > 40_320:
        return None
    found: dict[tuple[object, ...], Placement] = {}
    for nodes in _node_orders(board):
        ways = [board.patterns(block, node) for block, node in enumerate(nodes)]
        if len(found) + prod(len(way) for way in ways) > board.most:
            return None
        for gpus in product(*ways):
            found.setdefault((nodes, gpus), Placement(nodes=nodes, gpus=gpus))
    return tuple(found.values())


def _node_orders(board: Board) -> Iterator[tuple[int, ...]]:
    """Nodes for the blocks, each assignment of kinds once; the identity first."""
    count = len(board.blocks)
    seen: set[tuple[int, ...]] = set()
    if len(set(board.kinds)) == 1:
        yield tuple(range(count))
        return
    for nodes in permutations(range(len(board.kinds)), count):
        kinds = tuple(board.kinds[node] for node in nodes)
        if kinds not in seen:
            seen.add(kinds)
            yield nodes


def first_placements(board: Board) -> tuple[Placement, ...]:
    """Placements to begin with where not all are priced: node orders by coolness, one pattern for all blocks."""
    count = len(board.blocks)
    per_node = len(board.slots[0].coolness)
    heavy = sorted(range(count), key=lambda block: -board.loads[block])
    by_coolness = [0] * count
    for block, node in zip(heavy, board.coolness, strict=False):
        by_coolness[block] = node
    orders = dict.fromkeys((tuple(range(count)), tuple(by_coolness), board.coolness[:count]))
    found = {identity(sum(map(len, board.blocks)), per_node): None}
    for nodes in orders:
        ways = [board.patterns(block, node)[:MOST_PATTERNS] for block, node in enumerate(nodes)]
        for index in range(max(map(len, ways))):
            gpus = tuple(way[min(index, len(way) - 1)] for way in ways)
            found[Placement(nodes=nodes, gpus=gpus)] = None
    return tuple(islice(found, board.most))


def near(board: Board, placement: Placement) -> tuple[Placement, ...]:
    """Placements one change away: another pattern in one block, or two nodes of unlike kinds swapped.

    Of blocks with the same stages in the same pattern on nodes of one kind the first stands for all: a change of
    another one differs in nothing that is priced here.
    """
    first: dict[tuple[tuple[int, ...], Gpus, int], int] = {}
    for block, (node, gpus) in enumerate(zip(placement.nodes, placement.gpus, strict=True)):
        first.setdefault((board.blocks[block], gpus, board.kinds[node]), block)
    found: dict[Placement, None] = {}
    for block in first.values():
        for gpus in board.patterns(block, placement.nodes[block])[:MOST_PATTERNS]:
            found[_with_gpus(placement, block, gpus)] = None
    for nodes in islice(_other_nodes(board, placement.nodes, tuple(first.values())), board.most):
        found[Placement(nodes=nodes, gpus=placement.gpus)] = None
    found.pop(placement, None)
    return tuple(islice(found, board.most))


def _with_gpus(placement: Placement, block: int, gpus: Gpus) -> Placement:
    return Placement(nodes=placement.nodes, gpus=(*placement.gpus[:block], gpus, *placement.gpus[block + 1 :]))


def _other_nodes(board: Board, nodes: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Nodes with two of unlike kinds swapped, or one exchanged for a node of another kind that no block uses."""
    for first, second in combinations(blocks, 2):
        if board.kinds[nodes[first]] != board.kinds[nodes[second]]:
            swapped = list(nodes)
            swapped[first], swapped[second] = swapped[second], swapped[first]
            yield tuple(swapped)
    used = set(nodes)
    free = {board.kinds[node]: node for node in reversed(range(len(board.kinds))) if node not in used}
    for block in blocks:
        for kind, other in sorted(free.items()):
            if kind != board.kinds[nodes[block]]:
                yield (*nodes[:block], other, *nodes[block + 1 :])
