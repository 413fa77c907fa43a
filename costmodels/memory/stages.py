"""Sums over what each pipeline stage holds, for many layouts at once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodels.job import LATE_FILL, TrainingJob
from costmodels.memory.parts import ADDED, SIZES, ModelMemory
from costmodels.memory.peak import StageSums
from costmodels.pipeline.inflight import in_flight_total, peak_activation_bytes
from costmodels.pipeline.schedules import positions
from costmodels.positions import Contents, added_up
from costmodels.table import Bools, Floats, Ints
from costmodels.workload.model import ModelSpec

_RECEIVE_BUFFERS = 2.0  # one for an activation, one for a gradient
_UNHINDERED_PASSES = 2  # the next stage takes the first send at once; from the third pass on they wait for a send
_PASSES_ALONE = 2  # without a pipeline: the forward pass, behind the backward pass of the micro-batch before it


def stage_sums(
    model: ModelSpec, job: TrainingJob, memory: ModelMemory, contents: Contents, behind: Bools | None = None
) -> StageSums:
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
    behind : ndarray, optional
        Stages whose devices need longer for a forward pass than their hosts for its launches, shape (pp,); counts
        where software fills pipelines without waiting (``late_frees``). Default: none.

    Returns
    -------
    StageSums
        Arrays of shape (R, pp), of the heaviest rank of each stage.
    """
    held = _Held(model, job, memory, contents)
    boundary = held.of_stage(memory.boundary)
    kept = held.kept_by_chunk()
    added = held.added()
    moved = added["optimizer"] * np.array(contents.optimizer_on_host or 0.0)
    widest = held.sizes[:, :, len(ADDED) :].transpose(2, 0, 1, 3)  # working, gathered, once, away, kept, whole
    working, gathered, once, away, of_layer, _ = held.widest(widest, memory.blocks)
    loss, head_gathered, _, _, _, head_whole = held.widest(widest, held.rows_of(memory.head))
    stays = head_whole if job.software.head_stays_gathered else np.zeros_like(head_whole)
    return StageSums(
        weights=added["weights"],
        gradients=added["gradients"],
        optimizer=added["optimizer"] - moved,
        host=added["host"] + moved + held.activations(held.kept_away()),
        activations=held.activations(kept),
        one_microbatch=kept[:, :, 0],
        # activations of one layer on their way; modules that are fetched while those of the layer behind run
        working=working + np.where(held.offloaded > 0, of_layer, 0.0) + away,
        step=np.minimum(added["step"], held.of_stage(memory.step_most)),
        passing=added["passing"],
        unreduced=added["unreduced"] if job.software.gradients_wait(contents.spec.pp) else None,
        fresh=added["fresh"],
        fresh_apart=added["fresh"] * held.of_stage(memory.reduces),
        one_layer=of_layer,
        left_whole=added["left_whole"],
        late=added["late"] * held.share_ahead(memory.layers_ahead, behind),
        gathered=gathered,
        head_gathered=head_gathered + stays,
        head_whole=head_whole,
        loss=loss,
        embedding_gradient=held.widest(widest[:1], held.rows_of(memory.embedding))[0],
        buffers=_RECEIVE_BUFFERS * boundary + held.of_stage(memory.buckets) + once + away + added["copies"],
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
    def placed(self) -> Floats:
        """Number of each part on each chunk, shape (R or 1, pp, vpp, J, K)."""
        return self.contents.distinct_counts[:, self.place]

    @cached_property
    def counts(self) -> Floats:
        """Number of each part on each stage, shape (R or 1, pp, J, K)."""
        return np.asarray(self.placed.sum(axis=2), dtype=np.float64)

    @cached_property
    def sizes(self) -> Floats:
        """Sizes of every part under the strategies of every layout, shape (R, J, len(SIZES), K)."""
        return self.memory.sizes[self.contents.rows]

    def added(self) -> dict[str, Floats]:
        """Sums over the parts of each stage, with copies of the embedding table; each of shape (R, pp)."""
        sums = added_up(self.counts[:, :, None], self.sizes[:, :, : len(ADDED)])[..., 0]
        total = dict(zip(ADDED, sums, strict=True))
        head = self.memory.head
        if head is None or not (self.model.tied_embeddings or self.model.mtp_layers):
            return total
        first, last = (int(np.argwhere(self.place == at)[0, 0]) for at in (0, self.place.max()))
        if first != last:
            for name, values in total.items():
                copies = getattr(self.memory.token_table, name)[self.contents.rows]
                values[:, last] += (self.counts[:, last, :, head] * copies).sum(axis=1)
        return total

    def widest(self, sizes: Floats, rows: list[int]) -> Floats:
        """Largest of some parts on each stage, from N sizes (N, R, J, K); shape (N, R, pp)."""
        present: Floats = np.minimum(self.counts[..., rows], 1.0) * sizes[:, :, None, :, rows]
        return np.asarray(present.max(axis=(3, 4), initial=0.0))

    def rows_of(self, row: int | None) -> list[int]:
        """Return a row that may be missing as a list."""
        return [] if row is None else [row]

    def of_stage(self, values: Floats) -> Floats:
        """Largest value among the strategies of each stage; shape (R, pp)."""
        used = self.counts.sum(axis=3) > 0
        return np.asarray(np.where(used, values[self.contents.rows][:, None, :], 0.0).max(axis=2))

    @cached_property
    def layers(self) -> Floats:
        """Layers of each stage, shape (R or 1, pp)."""
        return np.asarray(self.counts[..., : self.memory.kinds].sum(axis=(2, 3)))

    @cached_property
    def offloaded(self) -> Floats:
        """Share of each stage's layers whose kept activations wait in host memory; shape (R or 1, pp)."""
        return np.minimum(self.job.software.activation_offload_layers, self.layers) / np.maximum(self.layers, 1.0)

    def share_ahead(self, layers_ahead: float, behind: Bools | None) -> Floats | float:
        """Layers that the host queues before it waits, up to a number of layers, over those of a stage.

        Where the host waits after every pass: one pass of a chunk. Where it does not, without a pipeline a backward and
        a forward pass, and with one the forward passes of the fill: all where the device is behind its host, else
        those that stand behind a send which the next stage has not taken yet.
        """
        late, spec = self.job.software.late_frees, self.contents.spec
        if not late:
            return 0.0
        passes = np.ones(spec.pp)
        if late == LATE_FILL and spec.pp == 1:
            passes = np.minimum(passes * spec.num_microbatches, _PASSES_ALONE)
        elif late == LATE_FILL:
            flying = in_flight_total(spec)
            waiting = np.maximum(0, flying - _UNHINDERED_PASSES)
            passes = waiting if behind is None else np.where(behind, flying, waiting)
        of_pass = self.placed[..., : self.memory.kinds].sum(axis=(3, 4)).max(axis=2)
        return np.asarray(np.minimum(passes * of_pass, layers_ahead) / np.maximum(self.layers, 1.0))

    def activations(self, kept: Floats) -> Floats:
        """What all micro-batches in flight keep, of ``kept`` (R, pp, vpp) by each; shape (R, pp)."""
        spec = self.contents.spec
        flying = peak_activation_bytes(spec, kept) + self.contents.extra_in_flight * kept.max(axis=2)
        slots = self.job.software.stage_slots * spec.pp
        return np.asarray(
            np.where(np.arange(spec.pp) < spec.pp - 1, np.maximum(flying, slots * kept.sum(axis=2)), flying)
        )

    @cached_property
    def of_layers_and_ends(self) -> Floats:
        """What layers, and what other parts, would keep of one micro-batch on every chunk; shape (2, R, pp, vpp)."""
        is_layer = np.arange(self.sizes.shape[-1]) < self.memory.kinds
        sizes = self.sizes[:, :, SIZES.index("kept")]
        return np.asarray(added_up(self.placed, np.stack([sizes * is_layer, sizes * ~is_layer], axis=2)))

    def kept_away(self) -> Floats:
        """What one micro-batch keeps of every chunk in host memory, shape (R, pp, vpp)."""
        modules = added_up(self.placed, self.sizes[:, :, SIZES.index("away")][:, :, None])[0]
        return np.asarray(self.of_layers_and_ends[0] * self.offloaded[:, :, None] + modules)

    def kept_by_chunk(self) -> Floats:
        """What one micro-batch keeps on every chunk, shape (R, pp, vpp)."""
        layers, ends = self.of_layers_and_ends
        kept = layers * (1.0 - self.offloaded)[:, :, None] + ends
        if self.job.software.stage_outputs_kept:
            kept = kept + self.of_stage(self.memory.boundary)[:, :, None] * (self.place < self.place.max())
        return np.asarray(kept)
