"""Memory of one layout in full: uneven layers, virtual chunks, a strategy for every layer."""

from functools import lru_cache
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.parts import ModelMemory, model_memory
from costmodels.memory.peak import components, emptied, moments, usable_memory, verdicts
from costmodels.memory.stages import stage_sums
from costmodels.positions import contents_of
from costmodels.results import MemoryUse, Moment, Verdict
from costmodels.table import Bools, StrategyTable, TableKey, key_of, read_only
from costmodels.workload.model import ModelSpec
from hardware.cluster import Accelerator

KEPT: Final = 512  # sizes of all parts under a few strategies, some 10 KiB each


def stage_memory(
    layout: Layout,
    model: ModelSpec,
    job: TrainingJob,
    accelerator: Accelerator,
    constants: MemoryConstants | None = None,
    behind: Bools | None = None,
) -> tuple[MemoryUse, ...]:
    """Memory of the heaviest rank of every stage of a layout.

    Parameters
    ----------
    layout : Layout
        Stages, micro-batches, schedule; its layers must be those of the model.
    model : ModelSpec
        The model.
    job : TrainingJob
        Sequence length, precision, software.
    accelerator : Accelerator
        The device.
    constants : MemoryConstants, optional
        Default: :func:`costmodels.memory.constants.default_memory`.
    behind : ndarray, optional
        Stages whose devices are behind their hosts, as of :func:`costmodels.memory.stages.stage_sums`, shape (pp,).

    Returns
    -------
    tuple of MemoryUse
        In stage order, with the components of :func:`costmodels.memory.peak.components`.

    Raises
    ------
    InputError
        The schedule cannot run with the layout's sizes.
    """
    constants = constants or default_memory()
    contents, table = contents_of(layout, model)
    sums = stage_sums(model, job, known_memory(model, job, table, constants), contents, behind)
    usable = usable_memory(accelerator)
    named = components(sums, usable, constants)
    verdict, moment = verdicts(named, usable, constants), moments(named, job, usable)
    # a memory that has been full is no safe one, whatever is left in it
    verdict = np.where(emptied(sums, usable, constants) & (verdict == Verdict.FITS), Verdict.RISKY.value, verdict)
    return tuple(
        MemoryUse(
            stage=stage,
            components=tuple((name, float(size[0, stage])) for name, size in named.items()),
            usable_bytes=usable,
            verdict=Verdict(verdict[0, stage]),
            moment=Moment(moment[0, stage]) if verdict[0, stage] == Verdict.OOM else Moment.NONE,
            host_bytes=float(sums.host[0, stage]),
        )
        for stage in range(layout.pp)
    )


def known_memory(model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants) -> ModelMemory:
    """Return what :func:`costmodels.memory.parts.model_memory` gives for a few strategies, once for all layouts.

    Parameters
    ----------
    model, job, table, constants
        As there; the table has the strategies of one layout.

    Returns
    -------
    ModelMemory
        Shared: its arrays cannot be written to.
    """
    return _known(model, job, constants, key_of(table))


@lru_cache(maxsize=KEPT)
def _known(model: ModelSpec, job: TrainingJob, constants: MemoryConstants, key: TableKey) -> ModelMemory:
    memory = model_memory(model, job, key.table(), constants)
    read_only(memory, memory.token_table, *memory.parts)
    return memory
