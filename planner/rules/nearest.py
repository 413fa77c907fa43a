"""The legal proposals nearest to an illegal one: the fewest and smallest changes of degrees, batch and GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from costmodels.table import Bools, Floats
from planner.layouts.grids import divisors
from planner.layouts.splits import runs_of
from planner.request import Framework
from planner.rules.columns import Columns, proposal_columns, with_derived
from planner.rules.proposal import Proposal, Split
from planner.rules.split import layers_built, split_problems
from planner.rules.table import SPLIT_CHECK, Rule, resolve_version, rules_for
from planner.rules.verdict import check, judging, option_columns, rows_that_hold

_VARIED: Final = ("world", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "global_batch", "sequence_parallel")
_GROUP: Final = "microbatch_group"  # a switch, varied where a launch states it
_TOLD: Final = (
    "tp",
    "pp",
    "cp",
    "ep",
    "etp",
    "vpp",
    "micro_batch",
    "global_batch",
    "sequence_parallel",
    "world",
    _GROUP,
)
_ROW: Final = (*_VARIED, _GROUP)
_LARGEST_TP: Final = 64
_LARGEST_CP: Final = 64
_LARGEST_GROUP: Final = 1024
_MOST_ROWS: Final = 400_000
# A change is worth its size in doublings, plus a constant for touching the degree at all. The batch and the number of
# GPUs are the job's, so that changing them weighs more.
_TOUCH: Final = 0.5
_WEIGHTS: Final = MappingProxyType(
    {"global_batch": 8.0, "world": 12.0, "sequence_parallel": 0.25, "vpp": 0.5, _GROUP: 0.25}
)


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A legal proposal and its changes, such as ``(("tp", 24, 16),)``; ``split`` when layers were spread anew."""

    proposal: Proposal
    changes: tuple[tuple[str, int, int], ...]
    layers_per_stage: tuple[tuple[int, ...], ...]
    split: bool

    def __str__(self) -> str:
        """Return the changes in words."""
        words = [f"{name} {old} -> {new}" for name, old, new in self.changes]
        if self.split:
            chunks = len(self.layers_per_stage[0])
            apart = f" in {chunks} chunks" if chunks > 1 else ""
            words.append(f"layers per stage {runs_of(map(sum, self.layers_per_stage))}{apart}")
        return "; ".join(words)


def nearest_legal(
    proposal: Proposal, framework: Framework, *, version: str | None = None, count: int = 3
) -> tuple[Neighbour, ...]:
    """Find the legal proposals nearest to one that is not.

    Degrees, micro-batch and sequence parallelism are varied, the global batch to the nearest multiples, and the GPUs
    to the largest number that the given degrees cover, a stated group of micro-batches to what divides them; a split
    that does not fit is spread evenly. Where no such change mends a rule (a switch that excludes another) nothing is
    near.

    Parameters
    ----------
    proposal : Proposal
        Degrees from 1.
    framework : Framework
        Whose rules count.
    version : str, optional
        Of the framework.
    count : int
        How many to return.

    Returns
    -------
    tuple of Neighbour
        Nearest first; ties in the order of degrees. Empty when nothing near is legal or a degree is below 1.
    """
    if any(getattr(proposal, name) < 1 for name in _VARIED if name != "sequence_parallel"):
        return ()
    rows = np.array(_bounded(_candidates(proposal)), dtype=np.int64).reshape(-1, len(_ROW))
    rows = np.unique(rows, axis=0)
    if not len(rows):
        return ()
    rules = judging(rules_for(framework, resolve_version(framework, version)), proposal)
    ok, never = _legal(_columns(proposal, rows, rules), rules)
    index = np.flatnonzero(ok)
    order = index[np.lexsort((*reversed(rows[index].T), _distances(proposal, rows)[index]))]
    found: list[Neighbour] = []
    for row in order[: 50 * count]:
        neighbour = _neighbour(proposal, dict(zip(_ROW, (int(n) for n in rows[row]), strict=True)))
        if any(set(nearer.changes) <= set(neighbour.changes) for nearer in found):
            continue  # a nearer one does with fewer changes
        if _holds_all(neighbour.proposal, never) and not check(neighbour.proposal, framework, version):
            found.append(neighbour)
        if len(found) == count:
            break
    return tuple(found)


def _divisors(number: int, limit: int) -> list[int]:
    return [degree for degree in divisors(number) if degree <= limit]


def _bounded(rows: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
    kept = []
    for row in rows:
        kept.append(row)
        if len(kept) == _MOST_ROWS:
            break
    return kept


def _candidates(proposal: Proposal) -> Iterator[tuple[int, ...]]:
    """Rows of :data:`_VARIED` around a proposal; every dense grid covers its GPUs."""
    covered = proposal.tp * proposal.pp * proposal.cp * proposal.gtp
    worlds = dict.fromkeys((proposal.world, proposal.world // covered * covered if covered else 0))
    parallel = (0, 1) if proposal.model.experts else (int(proposal.sequence_parallel),)
    virtual = sorted({1, 2, proposal.vpp})
    micro = sorted({1, proposal.micro_batch, max(1, proposal.micro_batch // 2), 2 * proposal.micro_batch})
    for world in worlds:
        if world < 1:
            continue
        for tp, cp in product(_divisors(world, _LARGEST_TP), _divisors(world, _LARGEST_CP)):
            for pp in _divisors(world, max(1, proposal.model.layers)):
                shards = tp * cp * pp * proposal.gtp
                if world % shards:
                    continue
                dp = world // shards
                experts = _expert_grids(proposal, tp, tp * cp * dp)
                for vpp, size, on in product(virtual if pp > 1 else (1,), micro, parallel):
                    for batch in _batches(proposal.global_batch, size * dp, pp if vpp > 1 else 1):
                        groups = _groups(proposal, pp, vpp, batch // (size * dp))
                        for (ep, etp), group in product(experts, groups):
                            yield world, tp, pp, cp, ep, etp, vpp, size, batch, on if tp > 1 else 0, group


def _groups(proposal: Proposal, pp: int, vpp: int, microbatches: int) -> list[int]:
    """Groups of the interleaved schedule: as stated, and the next below and above that leave no rest."""
    told = proposal.switches.microbatch_group
    if not (proposal.switches.microbatch_group_given or told) or pp == 1 or vpp == 1:
        return [told]
    whole = _whole_groups(pp, microbatches)
    below, above = [group for group in whole if group < told], [group for group in whole if group > told]
    return [told, *below[-1:], *above[:1]]


@lru_cache(maxsize=4096)
def _whole_groups(pp: int, microbatches: int) -> tuple[int, ...]:
    most = min(microbatches, _LARGEST_GROUP)
    return tuple(group for group in range(pp, most + 1) if microbatches % group == 0)


def _value(proposal: Proposal, name: str) -> int:
    return int(proposal.switches.microbatch_group if name == _GROUP else getattr(proposal, name))


def _expert_grids(proposal: Proposal, tp: int, stage_gpus: int) -> list[tuple[int, int]]:
    experts = proposal.model.experts
    if not experts:
        return [(1, tp)]
    own = proposal.etp != proposal.tp and stage_gpus % proposal.etp == 0  # where they are equal etp follows tp
    degrees = sorted({1, tp} | ({proposal.etp} if own else set()))
    return [(ep, etp) for etp in degrees for ep in _divisors(experts, stage_gpus) if stage_gpus % (ep * etp) == 0]


def _batches(batch: int, samples: int, rounds: int) -> list[int]:
    """The batch itself where it divides, else its neighbours that do."""
    whole = samples * rounds
    if batch % whole == 0:
        return [batch]
    return [size for size in (batch // whole * whole, (batch // whole + 1) * whole) if size]


def _columns(
    proposal: Proposal, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]], rules: tuple[Rule, ...]
) -> Columns:
    base = {**proposal_columns(replace(proposal, dp=0)), **option_columns(rules, proposal)}
    wide = {name: np.broadcast_to(column, (len(rows),)) for name, column in base.items()}
    wide |= {name: rows[:, index] for index, name in enumerate(_ROW)}
    wide["dp"] = np.zeros(len(rows), dtype=np.int64)
    return with_derived(wide)


def _legal(columns: Columns, rules: tuple[Rule, ...]) -> tuple[Bools, tuple[Rule, ...]]:
    """Rows that hold every rule which some row holds, and the rules that none holds, though another split may."""
    ok: Bools = np.ones(len(columns["world"]), dtype=np.bool_)
    never = []
    for rule in rules:
        if rule.check != SPLIT_CHECK:
            holds = rows_that_hold(rule, columns)
            if holds.any():
                ok &= holds
            else:
                never.append(rule)
    return ok, tuple(never)


def _holds_all(proposal: Proposal, rules: tuple[Rule, ...]) -> bool:
    """Whether a proposal holds some rules: asked of few before :func:`check` asks all."""
    columns = {**proposal_columns(proposal), **option_columns(rules, proposal)}
    return all(rows_that_hold(rule, columns)[0] for rule in rules)


def _distances(proposal: Proposal, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
    total: Floats = np.zeros(len(rows))
    for index, name in enumerate(_ROW):
        old, new = _value(proposal, name), rows[:, index]
        if name == "etp" and not proposal.model.experts:
            continue
        if name == "sequence_parallel":
            step = (new != old) * 1.0
        elif name == _GROUP:  # as it is stated, also as 0 or less
            step = np.abs(np.log2(np.maximum(new, 1) / max(old, 1)))
        else:
            step = np.abs(np.log2((new + 1e-9) / (old + 1e-9)))
        total += _WEIGHTS.get(name, 1.0) * step + _TOUCH * (new != old)
    return total


def _neighbour(proposal: Proposal, values: dict[str, int]) -> Neighbour:
    told: dict[str, Any] = {name: values[name] for name in _VARIED}
    told["sequence_parallel"] = bool(values["sequence_parallel"])
    moved = replace(proposal, **told, dp=0, switches=replace(proposal.switches, microbatch_group=values[_GROUP]))
    even = spread(proposal.model.layers, moved.pp, moved.vpp)
    anew = (moved.pp, moved.vpp) != (proposal.pp, proposal.vpp) or bool(split_problems(proposal))
    if anew:
        moved = replace(moved, split=Split(explicit=even))
    names = [name for name in _TOLD if name != "etp" or proposal.model.experts]
    changes = [(name, _value(proposal, name), values[name]) for name in names]
    return Neighbour(
        proposal=moved,
        changes=tuple(change for change in changes if change[1] != change[2]),
        layers_per_stage=layers_built(moved) or even,
        split=anew and moved.pp > 1,
    )


def spread(layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Spread layers over stages and chunks as evenly as can be, the first positions taking one more.

    Parameters
    ----------
    layers, pp, vpp : int
        Layers of the model; stages; virtual chunks of a stage.

    Returns
    -------
    tuple of tuples of int
        Per stage, the layers of each chunk.
    """
    positions = pp * vpp
    counts = [layers // positions + (index < layers % positions) for index in range(positions)]
    return tuple(tuple(counts[stage::pp]) for stage in range(pp))
