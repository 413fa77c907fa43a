"""Sums over what each pipeline stage holds, for many layouts at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.job import TrainingJob
from costmodels.memory.layer import LayerMemory
from costmodels.memory.parts import ModelMemory
from costmodels.memory.peak import StageSums
from costmodels.pipeline.inflight import peak_activation_bytes
from costmodels.pipeline.schedules import positions
from costmodels.positions import Contents
from costmodels.table import Floats, Ints
from costmodels.workload.model import ModelSpec

_RECEIVE_BUFFERS = 2.0  # one for an activation, one for a gradient

Pick = Callable[[LayerMemory], Floats]


def stage_sums(model: ModelSpec, job: TrainingJob, memory: ModelMemory, contents: Contents) -> StageSums:
    """Add up the parts of every stage of R layouts with one pipeline shape.

    Parameters
    ----------
    model : ModelSpec
        The model: ties of the embedding, multi-token prediction.
    job : TrainingJob
        Software: offloading, what stages keep.
    memory : ModelMemory
        Parts under S strategies.
    contents : Contents
        Which parts lie where under which strategy, and the schedule.

    Returns
    -------
    StageSums
        Arrays of shape (R, pp), of the heaviest rank of each stage.
    """
    held = _Held(model, job, memory, contents)
    boundary = held.of_stage(memory.boundary)
    kept = held.kept_by_chunk()
    blocks = memory.blocks
    return StageSums(
        weights=held.added(lambda part: part.weights),
        gradients=held.added(lambda part: part.gradients),
        optimizer=held.added(lambda part: part.optimizer),
        host=held.added(lambda part: part.host),
        activations=peak_activation_bytes(contents.spec, kept) + contents.extra_in_flight * kept.max(axis=2),
        one_microbatch=kept[:, :, 0],
        working=held.widest(lambda part: part.working, blocks) + held.offload_buffer(),
        step=held.added(lambda part: part.step),
        passing=held.added(lambda part: part.passing),
        late=held.late(memory.layers_ahead),
        gathered=held.widest(lambda part: part.gathered, blocks),
        loss=held.widest(lambda part: part.working + part.gathered, held.rows_of(memory.head)),
        embedding_gradient=held.widest(lambda part: part.working, held.rows_of(memory.embedding)),
        buffers=_RECEIVE_BUFFERS * boundary
        + held.of_stage(memory.buckets)
        + held.widest(lambda part: part.once, blocks)
        + held.added(lambda part: part.copies),
        groups=held.of_stage(memory.groups),
    )


@dataclass(frozen=True, eq=False)
class _Held:
    """Parts by stage and chunk: ``place`` is the position of every (stage, chunk)."""

    model: ModelSpec
    job: TrainingJob
    memory: ModelMemory
    contents: Contents

    @cached_property
    def place(self) -> Ints:
        spec = self.contents.spec
        return positions(spec.schedule, spec.pp, spec.vpp)

    @cached_property
    def counts(self) -> Floats:
        """Number of each part on each stage, shape (R, pp, J, K)."""
        return np.asarray(self.contents.counts[:, self.place].sum(axis=2), dtype=np.float64)

    def sizes(self, pick: Pick) -> Floats:
        """Size of every part under the strategies of every layout, shape (R, J, K)."""
        return np.stack([pick(part)[self.contents.rows] for part in self.memory.parts], axis=-1)

    def added(self, pick: Pick) -> Floats:
        """Sum over the parts of each stage, with copies of the embedding table; shape (R, pp)."""
        sizes = self.sizes(pick)
        total: Floats = np.einsum("rsjk,rjk->rs", self.counts, sizes)
        head = self.memory.head
        if head is None or not (self.model.tied_embeddings or self.model.mtp_layers):
            return total
        first, last = (int(np.argwhere(self.place == at)[0, 0]) for at in (0, self.place.max()))
        if first != last:
            copies = pick(self.memory.token_table)[self.contents.rows]
            total[:, last] += (self.counts[:, last, :, head] * copies).sum(axis=1)
        return total

    def widest(self, pick: Pick, rows: list[int]) -> Floats:
        """Largest of some parts on each stage; shape (R, pp)."""
        sizes = self.sizes(pick)[:, None, :, rows]
        present: Floats = np.minimum(self.counts[..., rows], 1.0) * sizes
        return np.asarray(present.max(axis=(2, 3), initial=0.0))

    def rows_of(self, row: int | None) -> list[int]:
        """Return a row that may be missing as a list."""
        return [] if row is None else [row]

    def of_stage(self, values: Floats) -> Floats:
        """Largest value among the strategies of each stage; shape (R, pp)."""
        used = self.counts.sum(axis=3) > 0
        return np.asarray(np.where(used, values[self.contents.rows][:, None, :], 0.0).max(axis=2))

    @cached_property
    def offloaded(self) -> Floats:
        """Share of each stage's layers whose kept activations wait in host memory; shape (R, pp)."""
        layers = self.counts[..., : self.memory.kinds].sum(axis=(2, 3))
        return np.asarray(np.minimum(self.job.software.activation_offload_layers, layers) / np.maximum(layers, 1.0))

    def late(self, layers_ahead: float) -> Floats:
        """Freed but not yet reusable; a pipeline's exchanges let the host wait for the device. Shape (R, pp)."""
        total = self.added(lambda part: part.late)
        if self.contents.spec.pp > 1:
            return np.zeros_like(total)
        layers = self.counts[..., : self.memory.kinds].sum(axis=(2, 3))
        return np.asarray(total * np.minimum(1.0, layers_ahead / np.maximum(layers, 1.0)))

    def offload_buffer(self) -> Floats:
        """One layer's activations on their way; shape (R, pp)."""
        return np.where(self.offloaded > 0, self.widest(lambda part: part.kept, self.memory.blocks), 0.0)

    def kept_by_chunk(self) -> Floats:
        """What one micro-batch keeps on every chunk, shape (R, pp, vpp)."""
        sizes = self.sizes(lambda part: part.kept)
        layers, ends = slice(None, self.memory.kinds), slice(self.memory.kinds, None)
        placed = self.contents.counts[:, self.place]
        kept = np.einsum("rscjk,rjk->rsc", placed[..., layers], sizes[..., layers])
        kept = kept * (1.0 - self.offloaded)[:, :, None]
        kept = kept + np.einsum("rscjk,rjk->rsc", placed[..., ends], sizes[..., ends])
        if self.job.software.stage_outputs_kept:
            kept = kept + self.of_stage(self.memory.boundary)[:, :, None] * (self.place < self.place.max())
        return np.asarray(kept)
