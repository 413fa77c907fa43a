"""What one rank computes of an op: local tokens, weight shapes, heads and experts under a table of strategies."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from costmodels.compute.attention import AttentionShape, mean_keys, query_blocks
from costmodels.compute.gemm import GemmShape
from costmodels.job import TrainingJob
from costmodels.table import Floats, Ints, StrategyTable
from costmodels.workload.op import Op, OpKind, Split

ROUTED: Final = frozenset({Split.EXPERT_COLUMN, Split.EXPERT_ROW, Split.EXPERT_TENSOR, Split.EXPERT_TOKENS})


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The distinct rows of a strategy table as far as compute is concerned; arrays of shape (U,).

    ``inverse`` (S,) maps each row of the table to its row here.
    """

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Ints
    inverse: Ints
    first: Ints

    @property
    def sequence_split(self) -> Ints:
        """Divisor of tokens outside the tensor-parallel region."""
        return np.where(self.sequence_parallel > 0, self.tp, 1)


def grid_of(table: StrategyTable, clock: Floats | float = 1.0) -> Grid:
    """Return the distinct (tp, cp, ep, etp, micro-batch, sequence parallel, clock) of a table, in sorted order."""
    return _distinct(table, clock) if np.ndim(clock) else _distinct_at_one_clock(table)


@lru_cache(maxsize=2)
def _distinct_at_one_clock(table: StrategyTable) -> Grid:
    """Remember the last tables by identity: all ops of a model ask for the same one in turn."""
    return _distinct(table, 1.0)


def _distinct(table: StrategyTable, clock: Floats | float) -> Grid:
    columns = [table.tp, table.cp, table.ep, table.etp, table.micro_batch, table.sequence_parallel.astype(np.int64)]
    key = np.zeros(len(table), dtype=np.int64)
    clocks = [] if np.ndim(clock) == 0 else [np.asarray(clock)]
    for column in (*columns, *clocks):
        # Degrees and micro-batches stay far below 2^10 each in number of distinct values, so the mixed key is exact.
        values, codes = np.unique(column, return_inverse=True)
        key = key * len(values) + codes
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    tp, cp, ep, etp, micro_batch, parallel = (column[first] for column in columns)
    return Grid(
        tp=tp, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch, sequence_parallel=parallel, inverse=inverse, first=first
    )


def rank_tokens(op: Op, grid: Grid, job: TrainingJob) -> Floats:
    """Tokens, or routed copies of tokens, that the op handles on one rank per micro-batch.

    Parameters
    ----------
    op : Op
        The op.
    grid : Grid
        Strategies, shape (U,).
    job : TrainingJob
        Sequence length and software.

    Returns
    -------
    array
        Tokens, shape (U,); samples for opaque ops. Routed copies follow Megatron-LM: under sequence parallelism a rank
        routes its own tokens and the ranks of an expert tensor group gather theirs; without it every tp rank routes
        all tokens of its sequence shard.
    """
    if op.kind is OpKind.OPAQUE:
        return grid.micro_batch / grid.cp
    tokens = grid.micro_batch * float(job.seq) / grid.cp
    if op.split in (Split.SEQUENCE, Split.EXPERT_TOKENS):
        tokens = tokens / grid.sequence_split
    if op.split in ROUTED:
        tokens = tokens * op.top_k
    if op.split in (Split.EXPERT_COLUMN, Split.EXPERT_ROW, Split.EXPERT_TENSOR):
        gathered = np.where(grid.sequence_parallel > 0, grid.etp / grid.tp, 1.0)
        tokens = tokens * gathered * _routing_load(job)
    copies: Floats = np.asarray(tokens, dtype=np.float64)
    return copies


def feature_split(op: Op, grid: Grid) -> Floats:
    """Return the divisor of an op's features on one rank, shape (U,): heads round up, columns and rows divide."""
    if op.split is Split.HEADS and op.heads:
        return op.heads / np.ceil(op.heads / grid.tp)
    if op.split in (Split.HEADS, Split.TENSOR):
        return grid.tp.astype(np.float64)
    if op.split is Split.EXPERT_TENSOR:
        return grid.etp.astype(np.float64)
    return np.ones(len(grid.tp))


def gemm_shape(op: Op, grid: Grid, job: TrainingJob) -> GemmShape:
    """Return the local product of a GEMM or grouped GEMM op; arrays of shape (U,)."""
    tokens = rank_tokens(op, grid, job)
    ones = np.ones(len(grid.tp))
    tensor = {Split.EXPERT_COLUMN: grid.etp, Split.EXPERT_ROW: grid.etp}.get(op.split, grid.tp)
    n = op.n / tensor if op.split in (Split.COLUMN, Split.EXPERT_COLUMN) else op.n * ones
    k = op.k / tensor if op.split in (Split.ROW, Split.EXPERT_ROW) else op.k * ones
    groups = np.ceil(op.experts / grid.ep) if op.kind is OpKind.GROUPED_GEMM else ones
    return GemmShape(m=tokens / groups, n=n, k=k, groups=groups)


def attention_shape(op: Op, grid: Grid, job: TrainingJob) -> AttentionShape:
    """Return the local attention of an op; arrays of shape (U,).

    Ring exchange (``cp_comm`` p2p) calls the kernel once per ring step on a share of the keys; all-to-all exchange
    gives a rank whole sequences of a share of its heads instead.
    """
    whole = job.software.cp_comm == "a2a"
    spread = grid.cp if whole else np.ones_like(grid.cp)
    tp = np.ones_like(grid.tp) if op.split is Split.REPLICATED else grid.tp
    heads = np.ceil(op.heads / (tp * spread))
    key_heads, qk_dim, v_dim = op.run_as
    kv_heads = np.maximum(key_heads / (tp * spread), 1.0)
    keys = _keys(op, float(job.seq))
    queries = job.seq * spread / grid.cp
    steps = grid.cp if job.software.cp_comm == "p2p" else np.ones_like(grid.cp)
    ones = np.ones(len(grid.tp))
    return AttentionShape(
        tokens=grid.micro_batch * queries,
        keys=keys * ones,
        call_keys=keys / steps,
        matrix_keys=float(job.seq) * ones,
        heads=heads,
        kv_heads=kv_heads,
        blocks=query_blocks(grid.micro_batch.astype(np.float64), heads, queries),
        qk_dim=qk_dim,
        v_dim=v_dim,
        listed=_listed(op) or bool(op.latent),
    )


def _listed(op: Op) -> bool:
    """Whether every query comes with a list of its keys: near ones beside compressed ones."""
    return op.compress > 0 and op.window > 0


def _keys(op: Op, seq: float) -> float:
    """Keys that the kernel computes for a query; a list is as long for the first queries as for the last."""
    if not op.compress:
        return mean_keys(seq, op.window, causal=op.causal)
    compressed = seq / op.compress
    if not _listed(op):
        return mean_keys(compressed, 0, causal=op.causal)
    return min(float(op.window), seq) + min(float(op.chosen) or compressed, compressed)


def _routing_load(job: TrainingJob) -> float:
    """Tokens of the busiest expert rank over the even share: the capacity when tokens are dropped or padded to it."""
    return job.software.capacity_factor or job.software.routing_imbalance
