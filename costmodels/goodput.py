"""What failures and checkpoints leave of the time: checkpoint interval and goodput of a long run.

Constants of runs that state none: ``goodput.toml``; equations and checks: ``docs/reliability.md``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from costmodels.job import TrainingJob
from costmodels.memory.states import parameter_bytes
from costmodels.workload.counts import parameter_count
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from hardware.package_table import package_table

DAY_S: Final = 86_400.0
LEAST_WRITE_S: Final = 1.0
"""Opening, flushing and closing the files of a checkpoint of any size [s]; assumed."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What failures and checkpoints leave of a run's time.

    Attributes
    ----------
    share : float
        Useful share of the wall time [1].
    failure_interval_s : float
        Mean time between failures of the whole job [s].
    checkpoint_bytes, write_s, interval_s : float
        Size of a checkpoint [B], time to write it [s], training time between two of them [s].
    restart_s : float
        From a failure to the first step after it: detection, a new start, reading the checkpoint [s].
    storage_bytes_per_s : float
        Rate of the storage [B/s].
    storage_assumed : bool
        Whether the cluster states no rate.
    """

    share: float
    failure_interval_s: float
    checkpoint_bytes: float
    write_s: float
    interval_s: float
    restart_s: float
    storage_bytes_per_s: float
    storage_assumed: bool


def optimal_interval_s(write_s: float, failure_interval_s: float) -> float:
    """Training time between checkpoints that loses least.

    Daly's higher-order form of Young's ``sqrt(2 delta M)``, within 0.2 % of the least loss for any ``delta < 2 M``;
    where writing takes longer than two failure intervals the interval is M.

    Parameters
    ----------
    write_s : float
        Time that a checkpoint stops the training, delta [s].
    failure_interval_s : float
        Mean time between failures, M [s].

    Returns
    -------
    float
        Seconds.

    References
    ----------
    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), equation 37;
    Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    ratio = write_s / (2.0 * failure_interval_s)
    if ratio >= 1.0:
        return failure_interval_s
    young_s = math.sqrt(2.0 * write_s * failure_interval_s)
    return young_s * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - write_s


def useful_share(interval_s: float, write_s: float, restart_s: float, failure_interval_s: float) -> float:
    """Useful share of the wall time with exponential failures that may strike at any moment, restarts included.

    ``tau / (M exp(R / M) (exp((tau + delta) / M) - 1))``.

    Parameters
    ----------
    interval_s, write_s, restart_s, failure_interval_s : float
        Training between checkpoints tau, writing delta, restart R, mean time between failures M [s]; tau above 0.

    Returns
    -------
    float
        Between 0 and 1; 0.0 where hardly anything is ever finished.

    References
    ----------
    Daly (2006), equation 20.
    """
    exponent = (interval_s + write_s + restart_s) / failure_interval_s
    if exponent > 700.0:  # exp would overflow: nothing is left
        return 0.0
    spent = math.exp(restart_s / failure_interval_s) * math.expm1((interval_s + write_s) / failure_interval_s)
    return interval_s / (failure_interval_s * spent)


def checkpoint_bytes(model: ModelSpec, job: TrainingJob) -> float:
    """Bytes of a checkpoint: weights in the working width, and the optimizer's states with its master copy.

    Gradients are not saved. 176 billion parameters under Adam with fp32 masters: 2.46 TB, saved as 2.3 TB by BLOOM
    (bigscience-workshop, training chronicles), whose embedding's optimizer states were left out. Of a frozen model
    with adapters these are saved alone.
    """
    held = parameter_bytes(job)
    saved = (
        job.precision.weight_bytes + held.optimizer
        if job.software.main_params_in_optimizer
        else (held.weights + held.optimizer)
    )
    return parameter_count(model).total * saved * job.trained_share


def goodput(model: ModelSpec, job: TrainingJob, cluster: Cluster, gpus: int) -> Goodput:
    """Return what failures and checkpoints leave of a run's time, with the best checkpoint interval.

    Writing stops the training; a checkpoint that is written in the background costs less.

    Parameters
    ----------
    model : ModelSpec
        Its parameters make the checkpoint.
    job : TrainingJob
        Number formats and optimizer.
    cluster : Cluster
        Storage rate, and nodes that write.
    gpus : int
        Accelerators of the job.
    """
    facts = _facts()
    failure_interval_s = DAY_S / (facts["failures_per_gpu_day"]["value"] * gpus)
    nodes = max(1, round(cluster.nodes * gpus / cluster.gpus))
    rate = cluster.storage_bytes_per_s or nodes * facts["storage_bytes_per_s_per_node"]["value"]
    size = checkpoint_bytes(model, job)
    write_s = max(size / rate, LEAST_WRITE_S)
    restart_s = facts["restart_s"]["value"] + write_s
    interval_s = optimal_interval_s(write_s, failure_interval_s)
    return Goodput(
        share=useful_share(interval_s, write_s, restart_s, failure_interval_s),
        failure_interval_s=failure_interval_s,
        checkpoint_bytes=size,
        write_s=write_s,
        interval_s=interval_s,
        restart_s=restart_s,
        storage_bytes_per_s=rate,
        storage_assumed=not cluster.storage_bytes_per_s,
    )


def _facts() -> Mapping[str, Any]:
    return package_table("costmodels", "goodput.toml")
