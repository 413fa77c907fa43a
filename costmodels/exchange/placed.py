"""A strategy table with the groups of its axes placed on a hierarchy, and what exchanges along them cost.

Every form of parallelism states its exchanges as :class:`Call` values: which collective along which axis, how large,
how often in a pass. Prices, loads of links and traffic reports are all sums over the same calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.collectives import COLLECTIVE_S, NetworkConstants, leaving_bytes, sent_share
from costmodels.job import TrainingJob
from costmodels.mesh import Axis, PlacedGroup, group_of, place
from costmodels.table import Bools, Floats, Ints, StrategyTable
from hardware.tiers import EVEN_PACE, Pace, Tier


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """Equal exchanges along one axis; arrays of shape (S,), ``leaving_bytes`` of (T - 1, S).

    ``seconds`` is the time of one alone, ``sent_bytes`` what one rank sends in it, ``leaving_bytes`` its share of what
    crosses each outer tier. ``forward`` and ``backward`` say how often a pass makes it, ``hidden`` how many of the
    backward ones run beside matrix products, ``pace`` how it goes over the network's tiers.
    Calls that do not take place have a message of 0 bytes.
    """

    collective: str
    axis: Axis
    message_bytes: Floats
    seconds: Floats
    sent_bytes: Floats
    leaving_bytes: Floats
    forward: Floats | float
    backward: Floats | float
    hidden: Floats | float = 0.0
    pace: Pace = EVEN_PACE

    def repeated(self, times: Floats | float) -> "Call":
        """Return the call so many times as often."""
        return replace(self, forward=self.forward * times, backward=self.backward * times, hidden=self.hidden * times)


@dataclass(frozen=True, kw_only=True, eq=False)
class Often:
    """How often a forward and a backward pass make a call, and how many of the latter hide beside matrix products."""

    forward: Floats | float
    backward: Floats | float
    hidden: Floats | float = 0.0


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

    def take(self, rows: Ints) -> "PlacedTable":
        """Rows ``rows``; their groups are placed with those of all rows, once."""
        return PlacedTable(self.table.take(rows), self.tiers, self.constants, lambda axis: self.group(axis).take(rows))

    def repeated(self, times: int) -> "PlacedTable":
        """Every row ``times`` times in a row."""
        return self.take(np.repeat(np.arange(len(self.table)), times))

    def group(self, axis: Axis) -> PlacedGroup:
        """Groups of an axis, shape (S,)."""
        if axis not in self._groups:
            paces = [pace for pace in self.tiers[-1].speeds if pace.axis == axis]
            placed = self._place(axis)
            self._groups[axis] = placed.paced(paces) if paces else placed
        return self._groups[axis]

    def call(self, collective: str, axis: Axis, message_bytes: Floats, often: Often, rows: Bools | bool = True) -> Call:
        """Price one collective along an axis on the chosen rows; the others make none.

        Parameters
        ----------
        collective : str
            A key of :data:`costmodels.collectives.COLLECTIVE_S`.
        axis : Axis
            Whose groups.
        message_bytes : array
            The message [byte]; broadcasts with S.
        often : Often
            Calls per pass.
        rows : array of bool
            Which strategies make it, shape (S,).

        Returns
        -------
        Call
        """
        group = self.group(axis)
        message = np.where((group.size > 1) & rows, message_bytes, 0.0)
        seconds = np.zeros(len(self.table))
        leaving = np.zeros((len(self.tiers) - 1, len(seconds)))
        chosen = np.flatnonzero(message > 0.0)
        sent = message  # nothing is sent of no message
        if len(chosen):
            sent = message * sent_share(collective, group)
            every = len(chosen) == len(seconds)
            some, among = (message, group) if every else (message[chosen], group.take(chosen))
            seconds[chosen] = COLLECTIVE_S[collective](some, among, self.tiers, self.constants)
            if (among.domains[:, 0] > 1).any():
                leaving[:, chosen] = leaving_bytes(collective, some, among, self.tiers, self.constants)
        return Call(
            collective=collective,
            axis=axis,
            message_bytes=message,
            seconds=seconds,
            sent_bytes=sent,
            leaving_bytes=leaving,
            forward=often.forward,
            backward=often.backward,
            hidden=often.hidden,
            pace=group.pace(collective),
        )

    def tokens(self, job: TrainingJob) -> Floats:
        """Tokens of one micro-batch on one rank, before any division over tp."""
        return self.table.micro_batch * (job.seq / self.table.cp)

    def add_up(self, calls: Sequence[Call]) -> "Exchanged":
        """Return what calls come to that are made one after the other."""
        zero = np.zeros(len(self.table))
        forward, backward, hidden, sent = zero, zero, zero, zero
        leaving = np.zeros((len(self.tiers) - 1, len(zero)))
        links = np.zeros((max((len(pace.loads) for pace in self.tiers[-1].speeds), default=0), len(zero)))
        for call in calls:
            if not call.message_bytes.any():
                continue
            both = call.forward + call.backward
            forward = forward + call.forward * call.seconds
            backward = backward + call.backward * call.seconds
            hidden = hidden + call.hidden * call.seconds
            sent = sent + both * call.sent_bytes
            leaving = leaving + both * call.leaving_bytes
            if call.pace.loads:
                links = links + both * np.array(call.pace.loads)[:, None] * self._fullest_s(call)
        return Exchanged(
            forward_s=forward,
            backward_s=backward,
            hidden_s=hidden,
            sent_bytes=sent,
            leaving_bytes=leaving * self._followed()[:, None] if len(links) else leaving,
            links_s=links,
            calls=tuple(calls),
        )

    def _followed(self) -> Floats:
        """Which outer tiers count as such, shape (T - 1,): 0.0 for switches, whose links are those of the graph."""
        inner = [tier.kind for tier in self.tiers[:-1]]
        return np.array([float(kind != self.tiers[-1].kind) for kind in inner])

    def _fullest_s(self, call: Call) -> Floats:
        """Seconds for which a call uses the link of the graph that binds it, shape (S,)."""
        rates = [tier.bytes_per_s if tier.kind == self.tiers[-1].kind else np.inf for tier in self.tiers[1:]]
        alone: Floats = (call.leaving_bytes / np.array(rates)[:, None]).max(axis=0) / call.pace.speed
        return np.minimum(alone, call.seconds)


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanged:
    """Forward and backward seconds of one kind of exchange, the hidden part of backward, and bytes sent; (S,).

    ``leaving_bytes``, shape (T - 1, S), is the part of both passes' bytes that crosses each outer tier, without tiers
    whose links are followed one by one; ``links_s``, shape (G, S), the seconds on each of these.
    """

    forward_s: Floats
    backward_s: Floats
    hidden_s: Floats
    sent_bytes: Floats
    leaving_bytes: Floats
    links_s: Floats
    calls: tuple[Call, ...]

    def load(self, tiers: tuple[Tier, ...]) -> Floats:
        """Share of every outer tier, then of links of the graph, in use while the exchange runs; (T - 1 + G, S).

        Parameters
        ----------
        tiers : tuple of Tier
            The T tiers that ``leaving_bytes`` counts.
        """
        if not self.leaving_bytes.any():
            return np.zeros((len(self.leaving_bytes) + len(self.links_s), self.leaving_bytes.shape[1]))
        rates = np.array([tier.bytes_per_s for tier in tiers[1:]])[:, None]
        active_s = np.maximum(self.forward_s + self.backward_s, 1e-30)
        used: Floats = np.minimum(np.concatenate([self.leaving_bytes / rates, self.links_s]) / active_s, 1.0)
        return used
