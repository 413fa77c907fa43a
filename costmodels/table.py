"""Struct of arrays: many strategies priced at once.

Every cost function takes such a table; a single layout is a table with one row. All arrays have shape ``(S,)``.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.layout import Recompute, Strategy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_INT_FIELDS: Final = ("tp", "cp", "dp", "ep", "etp", "zero", "shard_group")


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyTable:
    """Strategies as arrays of shape ``(S,)``.

    ``recompute`` indexes ``recomputes``. ``pp`` is needed for the strides of groups and for in-flight counts, and
    ``micro_batch`` because every size depends on it.
    """

    tp: Ints
    cp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    pp: Ints
    zero: Ints
    shard_group: Ints
    sequence_parallel: Bools
    recompute: Ints
    micro_batch: Ints
    recomputes: tuple[Recompute, ...]

    def __len__(self) -> int:
        """Return the number of strategies."""
        return len(self.tp)

    @cached_property
    def gpus(self) -> Ints:
        """GPUs of one pipeline stage, shape (S,)."""
        return self.tp * self.cp * self.dp

    @cached_property
    def edp(self) -> Ints:
        """Data-parallel degree of the experts, shape (S,)."""
        return self.gpus // (self.ep * self.etp)

    @cached_property
    def zero_group(self) -> Ints:
        """Ranks that ZeRO shards dense states over, shape (S,)."""
        return np.where(self.shard_group > 0, self.shard_group, self.dp * self.cp)

    @cached_property
    def expert_zero_group(self) -> Ints:
        """Ranks that ZeRO shards expert states over: those of the dense group with the same experts, shape (S,)."""
        within = np.maximum(1, self.zero_group * self.tp // (self.etp * self.ep))
        return np.gcd(within, self.edp)

    @cached_property
    def sequence_split(self) -> Ints:
        """Divisor of tokens outside the tensor-parallel region: tp under sequence parallelism, else 1."""
        return np.where(self.sequence_parallel, self.tp, 1)

    def take(self, index: Ints) -> "StrategyTable":
        """Rows ``index`` as a new table."""
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        return StrategyTable(recomputes=self.recomputes, **arrays)

    def strategy(self, row: int) -> Strategy:
        """Row ``row`` as a strategy."""
        ints = {name: int(getattr(self, name)[row]) for name in _INT_FIELDS}
        return Strategy(
            sequence_parallel=bool(self.sequence_parallel[row]),
            recompute=self.recomputes[int(self.recompute[row])],
            **ints,
        )


_ARRAYS: Final = (*_INT_FIELDS, "pp", "sequence_parallel", "recompute", "micro_batch")


def read_only(*nouns: object) -> None:
    """Let nobody write to the arrays that some nouns hold, because several prices share them."""
    for noun in nouns:
        for value in vars(noun).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


def joined_tables(first: StrategyTable, second: StrategyTable) -> StrategyTable:
    """Return the rows of two tables with the same recompute choices, one behind the other."""
    arrays = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in _ARRAYS}
    return StrategyTable(recomputes=first.recomputes, **arrays)


def table_of(strategies: list[Strategy], *, pp: list[int], micro_batch: list[int]) -> StrategyTable:
    """Build a table from strategies, one row each, with the pipeline degree and micro-batch of its row."""
    recomputes = tuple(dict.fromkeys(s.recompute for s in strategies))
    ints = {name: np.array([getattr(s, name) for s in strategies], dtype=np.int64) for name in _INT_FIELDS}
    return StrategyTable(
        pp=np.array(pp, dtype=np.int64),
        micro_batch=np.array(micro_batch, dtype=np.int64),
        sequence_parallel=np.array([s.sequence_parallel for s in strategies], dtype=np.bool_),
        recompute=np.array([recomputes.index(s.recompute) for s in strategies], dtype=np.int64),
        recomputes=recomputes,
        **ints,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKey:
    """A table of a few strategies as the key of what is known of it: equal where every row is."""

    strategies: tuple[Strategy, ...]
    pp: tuple[int, ...]
    micro_batch: tuple[int, ...]

    def table(self) -> StrategyTable:
        """Return the table that it is the key of."""
        return table_of(list(self.strategies), pp=list(self.pp), micro_batch=list(self.micro_batch))


def key_of(table: StrategyTable) -> TableKey:
    """Return the key of a table of a few strategies."""
    return TableKey(
        strategies=tuple(map(table.strategy, range(len(table)))),
        pp=tuple(table.pp.tolist()),
        micro_batch=tuple(table.micro_batch.tolist()),
    )
