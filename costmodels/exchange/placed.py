"""A strategy table with the groups of its axes placed on a hierarchy, and what exchanges along them cost."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodels.collectives import NetworkConstants
from costmodels.collectives.algorithms import Collective
from costmodels.job import TrainingJob
from costmodels.mesh import Axis, PlacedGroup, group_of, place
from costmodels.table import Bools, Floats, StrategyTable
from hardware.tiers import Tier


class PlacedTable:
    """A strategy table on its hierarchy, with the groups of its axes placed once."""

    def __init__(
        self,
        table: StrategyTable,
        tiers: tuple[Tier, ...],
        constants: NetworkConstants,
        place_groups: Callable[[Axis], PlacedGroup] | None = None,
    ) -> None:
        self.table = table
        self.tiers = tiers
        self.constants = constants
        self._place = place_groups or (lambda axis: place(group_of(axis, table), tiers))
        self._groups: dict[Axis, PlacedGroup] = {}

    def repeated(self, times: int) -> "PlacedTable":
        """Every row ``times`` times in a row; groups are placed before they are repeated."""
        rows = np.repeat(np.arange(len(self.table)), times)
        return PlacedTable(self.table.take(rows), self.tiers, self.constants, lambda axis: self.group(axis).take(rows))

    def group(self, axis: Axis) -> PlacedGroup:
        """Groups of an axis, shape (S,)."""
        if axis not in self._groups:
            self._groups[axis] = self._place(axis)
        return self._groups[axis]

    def seconds(self, collective: Collective, axis: Axis, message_bytes: Floats, rows: Bools | bool = True) -> Floats:
        """Seconds of a collective along an axis on the chosen rows, 0.0 on the others."""
        group = self.group(axis)
        total = np.zeros(len(self.table))
        chosen = np.flatnonzero((group.size > 1) & rows & (message_bytes > 0.0))
        if len(chosen):
            sizes = np.broadcast_to(message_bytes, total.shape)[chosen]
            total[chosen] = collective(sizes, group.take(chosen), self.tiers, self.constants)
        return total

    def tokens(self, job: TrainingJob) -> Floats:
        """Tokens of one micro-batch on one rank, before any division over tp."""
        return self.table.micro_batch * (job.seq / self.table.cp)


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanged:
    """Forward and backward seconds of one kind of exchange, the hidden part of backward, and bytes sent; (S,)."""

    forward_s: Floats
    backward_s: Floats
    hidden_s: Floats
    sent_bytes: Floats

    @classmethod
    def nothing(cls, rows: int) -> "Exchanged":
        """No exchange under any of ``rows`` strategies."""
        zero = np.zeros(rows)
        return cls(forward_s=zero, backward_s=zero, hidden_s=zero, sent_bytes=zero)

    def __add__(self, other: "Exchanged") -> "Exchanged":
        """Both, one after the other."""
        return Exchanged(
            forward_s=self.forward_s + other.forward_s,
            backward_s=self.backward_s + other.backward_s,
            hidden_s=self.hidden_s + other.hidden_s,
            sent_bytes=self.sent_bytes + other.sent_bytes,
        )
