"""Memory of one layout in full: uneven layers, virtual chunks, a strategy for every layer."""

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.parts import model_memory
from costmodels.memory.peak import components, moments, usable_memory, verdicts
from costmodels.memory.stages import stage_sums
from costmodels.positions import contents_of
from costmodels.results import MemoryUse, Moment, Verdict
from costmodels.workload.model import ModelSpec
from hardware.cluster import Accelerator


def stage_memory(
    layout: Layout,
    model: ModelSpec,
    job: TrainingJob,
    accelerator: Accelerator,
    constants: MemoryConstants | None = None,
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
    sums = stage_sums(model, job, model_memory(model, job, table, constants), contents)
    usable = usable_memory(accelerator)
    named = components(sums, usable, constants)
    verdict, moment = verdicts(named, usable, constants), moments(named, job, usable)
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
