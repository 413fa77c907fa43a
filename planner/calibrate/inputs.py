"""The files that a calibration is asked to use."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a user measured.

    ``accelerator`` chooses among runs of several, and names it where there are no runs; ``cluster`` says where logs
    were taken when it was not on nodes like those of the runs.
    """

    runs: tuple[Path, ...] = ()
    nccl_tests: tuple[Path, ...] = ()
    products: tuple[Path, ...] = ()
    accelerator: str = ""
    cluster: str = ""
