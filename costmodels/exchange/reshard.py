"""Moving activations from the layout of one layer to that of the next, where their strategies differ."""

import numpy as np

from costmodels.collectives import NetworkConstants, all_to_all_s
from costmodels.job import TrainingJob
from costmodels.mesh import Group, place
from costmodels.workload.model import ModelSpec
from hardware.tiers import Tier


def reshard_s(
    model: ModelSpec,
    job: TrainingJob,
    layout: tuple[int, int],
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
) -> float:
    """Seconds to move one micro-batch's activations between two layouts of the same GPUs, one direction.

    Parameters
    ----------
    model, job : ModelSpec, TrainingJob
        Width, sequence, precision.
    layout : tuple of int
        Sequences of a micro-batch over all replicas of a stage, and GPUs of the stage.
    tiers : tuple of Tier
        Hierarchy from the inside out.
    constants : NetworkConstants
        Constants of the communication model.

    Returns
    -------
    float
        An all-to-all in which every GPU gives away its whole share: an upper bound, as a rank keeps what stays in
        place.

    References
    ----------
    Alpa (arXiv 2201.12023, section 4.1) prices the same edges by the collective that converts one sharding into the
    other.
    """
    samples, gpus = layout
    if gpus == 1:
        return 0.0
    share = samples * job.seq * model.residual * job.precision.activation_bytes / gpus
    group = Group(size=np.array([gpus]), stride=np.array([1]), ranks=np.array([gpus]))
    return float(all_to_all_s(np.array([share]), place(group, tiers), tiers, constants)[0])
