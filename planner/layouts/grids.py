"""Enumeration of the uniform grids tp x cp x pp x dp with their expert grids, micro-batches and ZeRO stages.

The space is finite and stated: every divisor is tried, not only powers of two, and clusters may be used in part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.layout import NO_RECOMPUTE
from costmodels.table import Ints, StrategyTable, joined_tables
from costmodels.workload.model import Attention, LayerKind, ModelSpec, MoeFfn, OpaqueLayer
from hardware.cluster import Island
from planner.request import Framework, PlanRequest

MAX_TP: Final = 64
MAX_CP: Final = 64
MAX_MICRO_BATCH: Final = 512
SHORTEST_CP_SHARD: Final = 512  # tokens of a context-parallel rank below which no framework gains
LARGEST_IDLE_SHARE: Final = 0.5  # more idle GPUs can pay only where exchanges between nodes take most of the time

WITHOUT_SEQUENCE_PARALLEL: Final = (Framework.DEEPSPEED,)
ROUND_COUNTS: Final = 4  # counts below the whole island that are planned too
_ZERO_STAGES: Final = MappingProxyType(
    {
        Framework.MEGATRON: (1, 2, 3),
        Framework.BRIDGE: (1, 2, 3),
        Framework.NEMO: (1, 2, 3),
        Framework.TORCHTITAN: (2, 3),
        Framework.DEEPSPEED: (0, 1, 2, 3),
        Framework.GALVATRON: (0, 2, 3),
        Framework.NONE: (0, 1, 2, 3),
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grids:
    """Candidate grids, one per row; arrays of shape (S,). Recompute and virtual stages are chosen later.

    ``gpus`` is the number of GPUs that a row uses.
    """

    table: StrategyTable
    num_microbatches: Ints
    gpus: Ints

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.table)

    def take(self, index: Ints) -> "Grids":
        """Rows ``index`` as new grids."""
        return Grids(table=self.table.take(index), num_microbatches=self.num_microbatches[index], gpus=self.gpus[index])


def joined(first: Grids, second: Grids) -> Grids:
    """Return the rows of two grids, one behind the other."""
    return Grids(
        table=joined_tables(first.table, second.table),
        num_microbatches=np.concatenate([first.num_microbatches, second.num_microbatches]),
        gpus=np.concatenate([first.gpus, second.gpus]),
    )


def divisors(number: int) -> tuple[int, ...]:
    """Every divisor of a positive integer, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def divisor_counts(lowest: int, highest: int) -> Ints:
    """How many divisors each integer from ``lowest`` to ``highest`` has, shape (highest - lowest + 1,).

    A sieve over the smaller divisor of each pair, so that clusters of millions of accelerators take no longer than a
    glance.
    """
    counts = np.zeros(highest - lowest + 1, dtype=np.int64)
    for divisor in range(1, isqrt(highest) + 1):
        first = max(divisor * divisor, -(-lowest // divisor) * divisor)
        counts[first - lowest :: divisor] += 2
        if divisor * divisor >= lowest:
            counts[divisor * divisor - lowest] -= 1
    return counts


def world_sizes(island: Island) -> tuple[int, ...]:
    """GPU counts worth planning, falling: all; one node (or, within a node, one GPU) less; and a few rounder counts.

    Leaving GPUs idle can only pay where the rest divides better, so of all counts in whole nodes down to one half those
    with most divisors are offered, larger ones first.
    """
    step = 1 if island.nodes == 1 else island.node.gpus
    lowest = max(1, int(np.ceil(island.gpus * LARGEST_IDLE_SHARE)))
    fewer = np.arange(island.gpus - step, lowest - 1, -step)
    counts = divisor_counts(lowest, island.gpus)[fewer - lowest]
    roundest = fewer[np.argsort(-counts, kind="stable")[:ROUND_COUNTS]]
    return tuple(sorted({island.gpus, *fewer[:1].tolist(), *roundest.tolist()}, reverse=True))


def halved_sizes(island: Island) -> tuple[int, ...]:
    """GPU counts below those of :func:`world_sizes`, falling: nodes (or GPUs of a single one) halved down to one.

    Behind a slow network a single node can be faster than many.
    """
    units = island.nodes if island.nodes > 1 else island.gpus
    lowest = island.gpus * LARGEST_IDLE_SHARE
    counts = (island.gpus // units * (units >> halvings) for halvings in range(1, units.bit_length()))
    return tuple(count for count in counts if count < lowest)


def enumerate_grids(request: PlanRequest, world: int) -> Grids:
    """All grids over exactly ``world`` GPUs that multiply out, before any rule of legality.

    Parameters
    ----------
    request : PlanRequest
        Gives the model's divisibility, the batch, the framework's ZeRO stages and the pinned degrees.
    world : int
        GPUs to use.

    Returns
    -------
    Grids
        Rows in a fixed order; may be empty.
    """
    rows = list(_grid_rows(request, world))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 9).T
    table = _table(request, columns)
    return Grids(
        table=table,
        num_microbatches=request.job.global_batch // np.maximum(1, table.dp * table.micro_batch),
        gpus=np.full(len(table), world, dtype=np.int64),
    )


def _table(request: PlanRequest, columns: Ints) -> StrategyTable:
    """Strategies without recompute from columns tp, cp, pp, dp, ep, etp, micro-batch, ZeRO stage and its group."""
    tp, cp, pp, dp, ep, etp, micro_batch, zero, shard_group = columns
    return StrategyTable(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=etp,
        pp=pp,
        zero=zero,
        shard_group=shard_group,
        sequence_parallel=(tp > 1) & (request.framework not in WITHOUT_SEQUENCE_PARALLEL),
        recompute=np.zeros_like(tp),
        micro_batch=micro_batch,
        recomputes=(NO_RECOMPUTE,),
    )


def _grid_rows(request: PlanRequest, world: int) -> Iterator[tuple[int, ...]]:
    model = request.model
    for tp in _choices(request, "tp", _tp_degrees(model, world)):
        if world % tp:
            continue
        for cp in _choices(request, "cp", _cp_degrees(model, request.job.seq, world // tp)):
            if (world // tp) % cp:
                continue
            rest = world // (tp * cp)
            for pp in _choices(request, "pp", tuple(d for d in divisors(rest) if d <= model.layers)):
                if rest % pp or not _allows(request, "dp", rest // pp) or (pp == 1 and request.always_piped):
                    continue
                yield from _batch_rows(request, tp, cp, pp, rest // pp)


def _batch_rows(request: PlanRequest, tp: int, cp: int, pp: int, dp: int) -> Iterator[tuple[int, ...]]:
    """Rows of one dense grid: micro-batches, ZeRO stages and expert grids."""
    if request.job.global_batch % dp:
        return
    per_replica = request.job.global_batch // dp
    sizes = tuple(d for d in divisors(per_replica) if d <= MAX_MICRO_BATCH)
    stages = (request.sayable.zero or _ZERO_STAGES[request.framework]) if dp * cp > 1 else (0,)
    experts = tuple(_expert_grids(request, tp, tp * cp * dp))
    for micro_batch in _choices(request, "micro_batch", sizes):
        if per_replica % micro_batch:
            continue
        for zero in _choices(request, "zero", stages):
            said = [(ep, etp) for ep, etp in experts if request.sayable.says_grid(tp, cp, pp, ep, zero)]
            for group in _shard_groups(request, dp * cp, zero):
                for ep, etp in said:
                    yield tp, cp, pp, dp, ep, etp, micro_batch, zero, group


def _shard_groups(request: PlanRequest, ranks: int, zero: int) -> tuple[int, ...]:
    """Ranks that ZeRO shards over as pinned, none where it cannot; 0: all that hold the same weights."""
    pinned = request.fixed_degree("shard_group")
    if pinned and pinned != ranks and not groups_allowed(request, pinned):
        return ()
    if pinned is None or (zero and pinned == ranks):
        return (0,)
    return (pinned,) if zero and ranks % pinned == 0 else ()


def groups_allowed(request: PlanRequest, ranks: int) -> bool:
    """Whether what runs a request can shard over groups of so many ranks."""
    nodes = {island.node.gpus for island in request.cluster.islands}
    return request.sayable.groups and (not request.sayable.of_nodes or ranks in nodes)


def _expert_grids(request: PlanRequest, tp: int, stage_gpus: int) -> Iterator[tuple[int, int]]:
    experts = expert_count(request.model)
    if not experts:
        if _allows(request, "ep", 1) and _allows(request, "etp", 1):
            yield 1, 1
        return
    for etp in _choices(request, "etp", tuple(d for d in divisors(tp) if d in (1, tp))):
        if stage_gpus % etp:
            continue
        for ep in _choices(request, "ep", divisors(experts)):
            if (stage_gpus // etp) % ep == 0:
                yield ep, etp


def expert_count(model: ModelSpec) -> int:
    """Experts of the model's MoE layers; 0 for a dense model."""
    counts = [
        kind.ffn.experts for kind in model.kinds() if isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn)
    ]
    return max(counts, default=0)


def attention_heads(model: ModelSpec) -> int:
    """Greatest number that every attention layer's head count is a multiple of; 0 without attention."""
    mixers = [mixer for kind in model.kinds() if isinstance(kind, LayerKind) for mixer in kind.mixers]
    heads = [mixer.heads for mixer in mixers if isinstance(mixer, Attention)]
    return int(np.gcd.reduce(heads)) if heads else 0


def _tp_degrees(model: ModelSpec, world: int) -> tuple[int, ...]:
    heads = attention_heads(model)
    if heads:
        degrees = divisors(heads)
    elif any(isinstance(kind, OpaqueLayer) and "tp" in kind.shardable for kind in model.kinds()):
        degrees = divisors(world)
    else:
        degrees = tuple(d for d in (1, 2, 4, 8) if d <= world)
    if any(isinstance(kind, OpaqueLayer) and "tp" not in kind.shardable for kind in model.kinds()):
        degrees = (1,)
    return tuple(d for d in degrees if d <= min(MAX_TP, world))


def _cp_degrees(model: ModelSpec, seq: int, limit: int) -> tuple[int, ...]:
    if not model.hidden:
        return (1,)
    fits = (d for d in divisors(seq) if d <= min(MAX_CP, limit) and seq % (2 * d) == 0)
    return tuple(d for d in fits if d == 1 or seq // d >= SHORTEST_CP_SHARD) or (1,)


def _choices(request: PlanRequest, name: str, free: tuple[int, ...]) -> tuple[int, ...]:
    pinned = request.fixed_degree(name)
    return free if pinned is None else (pinned,)


def _allows(request: PlanRequest, name: str, value: int) -> bool:
    pinned = request.fixed_degree(name)
    return pinned is None or pinned == value


def kernel_table(request: PlanRequest, most_gpus: int) -> StrategyTable:
    """Every combination of the degrees that decide the sizes of a rank's kernels, whatever pp, dp and ZeRO.

    Parameters
    ----------
    request : PlanRequest
        Model, batch, pinned degrees.
    most_gpus : int
        Largest number of GPUs of a layout.

    Returns
    -------
    StrategyTable
        A superset of the (tp, cp, ep, etp, micro-batch) of :func:`enumerate_grids` for any number of GPUs.
    """
    rows = []
    sizes = tuple(d for d in divisors(request.job.global_batch) if d <= MAX_MICRO_BATCH)
    for tp in _choices(request, "tp", _tp_degrees(request.model, most_gpus)):
        for cp in _choices(request, "cp", _cp_degrees(request.model, request.job.seq, most_gpus // tp)):
            stage = tp * cp * max(1, expert_count(request.model)) * tp
            for ep, etp in _expert_grids(request, tp, stage):
                picked = _choices(request, "micro_batch", sizes)
                rows += [(tp, cp, 1, stage // (tp * cp), ep, etp, size, 0, 0) for size in picked]
    return _table(request, np.array(rows, dtype=np.int64).reshape(-1, 9).T)
