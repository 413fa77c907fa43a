"""What divides the tensors of a layer: tokens of a micro-batch on a rank, and the divisor of every kind of split."""

from dataclasses import dataclass

import numpy as np

from costmodels.job import TrainingJob
from costmodels.table import Floats, StrategyTable
from costmodels.workload.model import OpaqueLayer
from costmodels.workload.op import Split


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenShares:
    """Tokens of one micro-batch that a rank keeps of a tensor, by the tensor's split; every array has shape (S,).

    ``tokens`` are those of the rank's sequence shard, ``keys`` those that a query meets (whole sequences). ``copies``
    is the number of routed copies per token and ``top_k`` on the busiest rank, over the even share.
    """

    tokens: Floats
    keys: float
    tp: Floats
    etp: Floats
    sequence: Floats
    gathered: Floats
    copies: float

    def share(self, split: Split) -> Floats:
        """Fraction of a tensor's elements per token that the rank keeps, shape (S,).

        Routed splits are per routed copy that the rank's own tokens make: expert groups are ``etp`` ranks wide, so that
        ``tp * cp * dp / etp`` groups share the copies of ``cp * dp`` token shards.
        """
        if split in (Split.COLUMN, Split.ROW, Split.HEADS, Split.TENSOR):
            return 1.0 / self.tp
        if split is Split.SEQUENCE:
            return 1.0 / self.sequence
        if split is Split.REPLICATED:
            return np.ones_like(self.tp)
        own = self.copies / self.sequence
        if split is Split.EXPERT_TOKENS:
            return own
        group = own * self.gathered
        return group if split is Split.EXPERT_COLUMN else group / self.etp


def token_shares(job: TrainingJob, table: StrategyTable) -> TokenShares:
    """Token counts of a job under every strategy.

    Parameters
    ----------
    job : TrainingJob
        Sequence length; capacity factor and imbalance of routing.
    table : StrategyTable
        Strategies, shape (S,).

    Returns
    -------
    TokenShares
        Arrays of shape (S,).
    """
    software = job.software
    sequence = table.sequence_split.astype(np.float64)
    etp = table.etp.astype(np.float64)
    return TokenShares(
        tokens=table.micro_batch * (job.seq / table.cp),
        keys=float(job.seq),
        tp=table.tp.astype(np.float64),
        etp=etp,
        sequence=sequence,
        # without sequence parallelism the etp ranks hold the same tokens already: there is nothing to gather
        gathered=np.where(table.sequence_parallel | (table.tp == 1), etp, 1.0),
        copies=software.capacity_factor or software.routing_imbalance,
    )


def sample_shares(layer: OpaqueLayer, table: StrategyTable) -> TokenShares:
    """Shares of an opaque layer, whose quantities are per sample: samples take the place of tokens.

    Parameters
    ----------
    layer : OpaqueLayer
        Which axes may divide it.
    table : StrategyTable
        Strategies, shape (S,).

    Returns
    -------
    TokenShares
        Arrays of shape (S,).
    """
    ones = np.ones(len(table), dtype=np.float64)
    return TokenShares(
        tokens=table.micro_batch / (table.cp if "cp" in layer.shardable else ones),
        keys=0.0,
        tp=table.tp.astype(np.float64),
        etp=ones,
        sequence=ones,
        gathered=ones,
        copies=1.0,
    )
