"""What a search has seen: priced candidates, the best of each grid, counts by what removed the others."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from costmodels.layout import Granularity, Recompute
from costmodels.pipeline.schedules import Schedule
from costmodels.results import Verdict

Key = tuple[int, ...]

SIZES_KEPT: Final = 2  # micro-batches of a grid whose splits are refined beside the best of each virtual degree
NEAR_BEST: Final = 1.1  # times the best of a grid as it is split: what another split of another micro-batch may make up
TIGHT_KEPT: Final = 3  # variants of a grid that do not fit as they are split, kept for other splits


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One priced layout of the uniform search; ``layers`` per pipeline position in model order.

    ``prefix`` is the number of layers of every position that recompute in full (0: all layers use ``recompute``).
    """

    total_s: float
    layers: tuple[int, ...]
    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    zero: int
    shard_group: int
    micro_batch: int
    num_microbatches: int
    vpp: int
    schedule: Schedule
    recompute: Recompute
    prefix: int
    sequence_parallel: bool
    memory_bytes: float
    verdict: Verdict

    @property
    def key(self) -> Key:
        """What makes two layouts differ for a user: the grid."""
        return self.tp, self.cp, self.pp, self.dp, self.ep, self.etp

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key with an explicit tie-break: time, then the simplest layout."""
        modules = len(self.recompute.modules) + 10 * (self.recompute.granularity is Granularity.FULL)
        return (
            self.total_s, self.pp, self.vpp, self.tp, self.cp, self.ep, self.etp, self.zero, self.micro_batch, modules,
            self.prefix, self.shard_group,
        )  # fmt: skip


@dataclass(kw_only=True)
class Tally:
    """What the search has seen so far."""

    accepted: Verdict  # fits: only what fits with a safe margin is kept; risky: whatever is not out of memory
    wanted: int  # grids that are kept
    best: dict[Key, Candidate] = field(default_factory=dict)
    variants: dict[tuple[Key, int, int], Candidate] = field(default_factory=dict)  # by grid, vpp, micro-batch
    tight: dict[Key, list[Candidate]] = field(default_factory=dict)  # of each grid the fastest that just do not fit
    nearest: Candidate | None = None  # least over its memory, when nothing fits
    enumerated: int = 0
    solved: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    open_bound_s: float = float("inf")  # least bound among what was not expanded
    cut: Counter[str] = field(default_factory=Counter)  # what the time limit has left as it was

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate if it is the best of its grid, or among the fastest of those that just do not fit."""
        if candidate.verdict is Verdict.OOM or (self.accepted is Verdict.FITS and candidate.verdict is Verdict.RISKY):
            known = [*self.tight.get(candidate.key, ()), candidate]
            self.tight[candidate.key] = sorted(known, key=lambda other: other.order)[:TIGHT_KEPT]
            return
        held = self.best.get(candidate.key)
        if held is None or candidate.order < held.order:
            self.best[candidate.key] = candidate
        name = (candidate.key, candidate.vpp, candidate.micro_batch)
        variant = self.variants.get(name)
        if variant is None or candidate.order < variant.order:
            self.variants[name] = candidate

    def near_best(self, key: Key, most: int) -> list[Candidate]:
        """The best variants of a grid, best first: an uneven split may change which of them wins.

        At most ``most`` of unlike virtual degrees, and :data:`SIZES_KEPT` of other micro-batches near the best.
        """
        found = sorted((one for (grid, *_), one in self.variants.items() if grid == key), key=lambda one: one.order)
        by_vpp, by_size = dict[int, Candidate](), dict[int, Candidate]()
        for one in found:
            by_vpp.setdefault(one.vpp, one)
            by_size.setdefault(one.micro_batch, one)
        kept, near_s = list(by_vpp.values())[:most], NEAR_BEST * found[0].total_s
        others = [one for one in by_size.values() if one not in kept and one.total_s <= near_s][:SIZES_KEPT]
        return sorted([*kept, *others], key=lambda one: one.order)

    def threshold_s(self) -> float:
        """Time beyond which nothing can be among the grids wanted any more."""
        times = sorted(candidate.total_s for candidate in self.best.values())
        return times[self.wanted - 1] if len(times) >= self.wanted else float("inf")

    def best_s(self) -> float:
        """Time of the best layout; infinite when there is none."""
        return min((candidate.total_s for candidate in self.best.values()), default=float("inf"))

    def absorb(self, other: "Tally") -> None:
        """Add the counts of another search; its candidates stay its own."""
        self.enumerated += other.enumerated
        self.solved += other.solved
        self.pruned += other.pruned
        self.rejected += other.rejected
        self.cut += other.cut
        self.open_bound_s = min(self.open_bound_s, other.open_bound_s)
