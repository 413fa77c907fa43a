"""Exchanges between pipeline stages: activations over boundaries, gradients of tied embeddings."""

from functools import cached_property

import numpy as np

from costmodels.collectives import all_reduce_s
from costmodels.exchange.placed import Exchanged, Often, PlacedTable
from costmodels.job import TrainingJob
from costmodels.memory.states import reduced_bytes
from costmodels.mesh import Axis, PlacedGroup
from costmodels.table import Floats, StrategyTable
from costmodels.workload.layers import padded_vocab
from costmodels.workload.model import ModelSpec, OpaqueLayer


def boundary_bytes(model: ModelSpec, job: TrainingJob, table: StrategyTable, *, scatter_gather: bool = False) -> Floats:
    """Bytes that one rank sends over a stage boundary per micro-batch and direction, shape (S,).

    Under sequence parallelism a rank sends its tokens; without it every tp rank sends a full copy, or with
    ``scatter_gather`` its part of one. Opaque layers: the largest output of any layer.
    """
    if model.hidden == 0:
        largest = max(kind.output_bytes_per_sample for kind in model.kinds() if isinstance(kind, OpaqueLayer))
        size: Floats = table.micro_batch * largest / table.cp
        return size
    split = np.where(scatter_gather, table.tp, table.sequence_split)
    tokens: Floats = table.micro_batch * (job.seq / table.cp) / split
    return tokens * (model.residual * job.precision.activation_bytes)


def boundary_exchange(model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Exchanged:
    """Price what the activations (or gradients) of one micro-batch exchange to cross a stage boundary.

    Parameters
    ----------
    model, job, placed
        As in :func:`layer_exchange`. Where the software scatters and gathers, and without sequence parallelism, each tp
        rank sends its part and the receivers gather.

    Returns
    -------
    Exchanged
        A boundary is crossed once forward and once backward. All ranks of a stage send at once; the boundary over the
        outermost tier decides.

    References
    ----------
    Narayanan et al., arXiv 2104.04473, section 4.1 (scatter/gather optimization).
    """
    table, scatters = placed.table, job.software.scatter_gather
    size = boundary_bytes(model, job, table, scatter_gather=scatters)
    once = Often(forward=1.0, backward=1.0)
    calls = [placed.call("sendrecv", Axis.PP, size, once)]
    if scatters and model.hidden:
        gathers = ~table.sequence_parallel & (table.pp > 1)
        calls.append(placed.call("all_gather", Axis.TP, size * table.tp, once, gathers))
    return placed.add_up(calls)


def tied_embedding_s(model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> Floats:
    """Seconds of the all-reduce that keeps tied embeddings of first and last stage equal, once per step, shape (S,).

    Parameters as in :func:`layer_exchange`; 0.0 for models with an output matrix of their own or without pipeline.
    """
    table = placed.table
    if not model.tied_embeddings or not model.vocab or not (table.pp > 1).any():
        return np.zeros(len(table))
    stages = placed.group(Axis.PP)
    pair = PlacedGroup(
        size=np.minimum(stages.size, 2),
        stride=stages.stride,
        members=np.where(stages.domains > 1, 1, np.minimum(stages.size, 2)[:, None]),
        domains=np.minimum(stages.domains, 2),
    )
    degrees, index = np.unique(table.tp, return_inverse=True)
    rows = np.array([padded_vocab(model, int(tp)) / int(tp) for tp in degrees])[index]
    time = all_reduce_s(rows * (model.hidden * reduced_bytes(job)), pair, placed.tiers, placed.constants)
    return np.where(table.pp > 1, time, 0.0)


class Boundaries:
    """What crosses stage boundaries under every strategy of a table, each priced when it is first asked for.

    Parameters
    ----------
    model, job, placed
        As in :func:`boundary_exchange`.
    """

    def __init__(self, model: ModelSpec, job: TrainingJob, placed: PlacedTable) -> None:
        self.model = model
        self.job = job
        self.placed = placed

    @cached_property
    def send(self) -> Exchanged:
        """One tensor over one boundary: :func:`boundary_exchange`."""
        return boundary_exchange(self.model, self.job, self.placed)

    @cached_property
    def load(self) -> Floats:
        """Share of a rank's part of each outer tier that the send uses, shape (T - 1, S)."""
        return self.send.load(self.placed.tiers)

    @cached_property
    def tied_s(self) -> Floats:
        """Seconds to add up the gradients of a shared embedding: :func:`tied_embedding_s`."""
        return tied_embedding_s(self.model, self.job, self.placed)
