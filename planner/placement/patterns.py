"""Ways to lay the ranks of a block on the accelerators of a node that differ in what heat and pace see of them.

Only the stage of an accelerator counts, not which of the stage's ranks it runs. Accelerators that stand one behind the
other form a column of the air stream; columns that are alike may be swapped without a difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations
from math import factorial, prod
from typing import Final

MOST_LISTED: Final = 5_040  # orders of the stages of a node that are listed one by one
MOST_GROUP_ORDERS: Final = 24
UNUSED: Final = -1

Gpus = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    """The accelerators of a node.

    Attributes
    ----------
    columns : tuple of tuple of int
        Accelerators that stand behind each other, coolest first.
    kinds : tuple of int
        Columns of one kind have equal cooling and devices row by row.
    coolness : tuple of int
        All accelerators, the one that holds the fastest pace first.
    """

    columns: tuple[Gpus, ...]
    kinds: tuple[int, ...]
    coolness: Gpus


def patterns(stages: Sequence[int], slots: NodeSlots) -> tuple[Gpus, ...]:
    """List the accelerators of the local ranks of a block, each way that differs from the others once.

    Parameters
    ----------
    stages : sequence of int
        Stage of every local rank of the block; those of a stage need not be consecutive.
    slots : NodeSlots
        The node.

    Returns
    -------
    tuple of tuple of int
        The identity first, then stages in several orders, each taking the coolest accelerators left, then all other
        ways where their number allows it (:func:`listed_whole`).
    """
    names = list(dict.fromkeys(stages))
    return _of_groups(tuple(names.index(stage) for stage in stages), slots)


@lru_cache(maxsize=256)
def _of_groups(group_of_rank: Gpus, slots: NodeSlots) -> tuple[Gpus, ...]:
    """As :func:`patterns`, with groups counted from 0 for stages: which stages they are is nothing to the node."""
    gpus = sum(len(column) for column in slots.columns)
    groups = [group_of_rank.count(group) for group in range(max(group_of_rank) + 1)]
    identity = tuple(range(len(group_of_rank)))
    if len(groups) == 1 and len(group_of_rank) == gpus:
        return (identity,)
    every = _every(groups, gpus) if listed_whole(groups, gpus) else iter(())
    found = chain(_by_coolness(groups, slots), every)
    distinct = {_canonical((*group_of_rank, *[UNUSED] * (gpus - len(group_of_rank))), slots): identity}
    for labels in found:
        distinct.setdefault(_canonical(labels, slots), _gpus_of(labels, group_of_rank))
    return tuple(distinct.values())


def listed_whole(groups: Sequence[int], gpus: int) -> bool:
    """Whether :func:`patterns` lists every way that differs."""
    rest = gpus - sum(groups)
    return factorial(gpus) // (prod(map(factorial, groups)) * factorial(rest)) <= MOST_LISTED


def _every(groups: Sequence[int], gpus: int) -> Iterator[Gpus]:
    """Stage groups of every accelerator, each order once."""
    left = [*groups, gpus - sum(groups)]
    names = [*range(len(groups)), UNUSED]
    labels = [UNUSED] * gpus

    def fill(place: int) -> Iterator[Gpus]:
        if place == gpus:
            yield tuple(labels)
            return
        for index, name in enumerate(names):
            if left[index]:
                left[index] -= 1
                labels[place] = name
                yield from fill(place + 1)
                left[index] += 1

    yield from fill(0)


def _by_coolness(groups: Sequence[int], slots: NodeSlots) -> Iterator[Gpus]:
    """Stages in some orders, each taking the coolest accelerators that are left."""
    count = len(groups)
    orders: Sequence[tuple[int, ...]]
    if factorial(count) <= MOST_GROUP_ORDERS:
        orders = list(permutations(range(count)))
    else:
        forward = tuple(range(count))
        interleaved = (*range(0, count, 2), *range(1, count, 2))
        orders = [forward, forward[::-1], interleaved, interleaved[::-1]]
    for order in orders:
        labels = [UNUSED] * len(slots.coolness)
        free = iter(slots.coolness)
        for group in order:
            for _ in range(groups[group]):
                labels[next(free)] = group
        yield tuple(labels)


def _gpus_of(labels: Gpus, group_of_rank: Gpus) -> Gpus:
    """Accelerators of the local ranks: those of each stage in the order of their indices."""
    held = {group: iter([gpu for gpu, label in enumerate(labels) if label == group]) for group in set(group_of_rank)}
    return tuple(next(held[group]) for group in group_of_rank)


def _canonical(labels: Gpus, slots: NodeSlots) -> tuple[tuple[int, Gpus], ...]:
    """What is left of a pattern when columns of a kind may be swapped."""
    columns = [tuple(labels[gpu] for gpu in column) for column in slots.columns]
    return tuple(sorted(zip(slots.kinds, columns, strict=True)))
