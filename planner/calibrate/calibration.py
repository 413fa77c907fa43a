"""The door: ``calibrate(inputs) -> Calibration``: everything that a user measured, and the profile that it gives."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hardware.catalog import accelerator as accelerator_named
from hardware.catalog import cluster as cluster_named
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.importers.nccl_log import NcclLog
from planner.calibrate.inputs import Inputs
from planner.calibrate.link_rates import cluster_of_logs
from planner.calibrate.machine import fit_machine
from planner.calibrate.observations import Observations
from planner.calibrate.runs import CalibrationRun, read_calibration_runs
from planner.calibrate.tables import Products, log_observations, product_observations, read_logs, read_products
from planner.evidence.left_out import LeftOut
from planner.profile import InputFile, MachineProfile

MOST_RUNS: Final = 2000
"""Runs of one calibration; more take minutes and teach nothing new about a dozen factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A profile, the memory fit's distrusted runs, rows that could not be used, columns that are not read.

    ``assumed`` is what prices of rows assume.
    """

    profile: MachineProfile
    distrusted_memory: tuple[str, ...]
    skipped: tuple[LeftOut, ...]
    unread: tuple[str, ...] = ()
    assumed: tuple[LeftOut, ...] = ()


def calibrate(inputs: Inputs) -> Calibration:
    """Fit the profile of a machine.

    Parameters
    ----------
    inputs : Inputs
        Runs, logs of nccl-tests, tables of matrix products: at least one file.

    Returns
    -------
    Calibration
        The same for the same files.

    Raises
    ------
    InputError
        A file cannot be read or used, or the files are of several machines.
    """
    if not (inputs.runs or inputs.nccl_tests or inputs.products):
        raise InputError("nothing to calibrate with", allowed="RUNS.csv..., --nccl-tests LOG, --gemm TABLE")
    wanted = accelerator_named(inputs.accelerator).name if inputs.accelerator else ""
    chosen = read_calibration_runs(inputs.runs, wanted)
    if len(chosen.runs) > MOST_RUNS:
        raise InputError(f"{len(chosen.runs)} runs are too many", allowed=f"up to {MOST_RUNS}")
    wanted = chosen.runs[0].accelerator.name if chosen.runs else wanted
    logs = read_logs(inputs.nccl_tests, wanted)
    cluster = _cluster(inputs, chosen.runs, logs, wanted)
    wanted = wanted or (cluster.islands[0].node.accelerator.name if cluster else "")
    if not wanted:
        raise InputError("nothing says which accelerator this is", allowed="--accelerator NAME")
    stated = chosen.runs[0].accelerator if chosen.runs else cluster.islands[0].node.accelerator if cluster else None
    part = stated or accelerator_named(wanted)  # the first two may be of a cluster file
    products = [read_products(path, part) for path in inputs.products]
    tables: list[Observations] = [product_observations(table, part) for table in products]
    if cluster is not None:
        tables += [log_observations(log, cluster) for log in logs]
    found = fit_machine(chosen.runs, tables, part.name)
    return Calibration(
        profile=replace(found.profile, files=_files(inputs, chosen.runs, logs, products)),
        distrusted_memory=found.distrusted_memory,
        skipped=(*chosen.skipped, *(one for table in products for one in table.skipped)),
        unread=chosen.unread,
        assumed=chosen.assumed,
    )


def _cluster(inputs: Inputs, runs: Sequence[CalibrationRun], logs: Sequence[NcclLog], part: str) -> Cluster | None:
    """Where logs were taken: as the user says, else on the largest machine of the runs, else by the logs' devices."""
    if not logs:
        return None
    if inputs.cluster:
        named = cluster_named(inputs.cluster)
        on = named.islands[0].node.accelerator.name
        if len(named.islands) > 1 or (part and on != part):
            raise InputError(
                f"--cluster {inputs.cluster}: {len(named.islands)} islands, the first of {on}",
                allowed=f"equal nodes of {part}" if part else "a cluster of equal nodes",
            )
        return named
    if runs:
        return max(runs, key=lambda run: run.asked.cluster.gpus).asked.cluster
    return cluster_of_logs(logs, part, [])


def _files(
    inputs: Inputs, runs: Sequence[CalibrationRun], logs: Sequence[NcclLog], products: Sequence[Products]
) -> tuple[InputFile, ...]:
    """Name every file with its digest and the rows of it that counted."""
    counted = [("runs", path, sum(run.file == path for run in runs)) for path in inputs.runs]
    counted += [("nccl-tests", path, len(log.rows)) for path, log in zip(inputs.nccl_tests, logs, strict=True)]
    counted += [("products", path, len(table.m)) for path, table in zip(inputs.products, products, strict=True)]
    return tuple(
        InputFile(name=path.name, kind=kind, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), used=used)
        for kind, path, used in counted
    )
