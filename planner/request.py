"""What is asked of the planner, as one frozen value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Software, TrainingJob
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.choices import Framework, Launcher, Objective
from planner.profile import MachineProfile
from planner.sayable import EVERYTHING, Sayable
from planner.variants import chose

__all__ = [
    "DEGREES",
    "MOST_OF_A_DEGREE",
    "Framework",
    "Launcher",
    "Objective",
    "PlanRequest",
    "Variant",
    "parse_fixed",
    "pins",
]

DEGREES: Final = ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "zero", "shard_group", "micro_batch")
MOST_OF_A_DEGREE: Final = 1_000_000_000  # as many as the sequences of the largest global batch
_DEGREE_ALIASES: Final = MappingProxyType(
    {"mbs": "micro_batch", "micro-batch": "micro_batch", "shard-group": "shard_group"}
)
_LEAST: Final = MappingProxyType({"zero": 0, "shard_group": 2})  # of a degree, where it is not 1


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the ways to run a job that a request asks to try, as what it changes of the request.

    Attributes
    ----------
    choices : tuple of (str, str)
        In words, by name, such as ``("schedule", "zbv")``.
    software, optimizer_bytes : Software, float
        Of the job.
    schedule : Schedule or None
        Of the pipeline, see :attr:`PlanRequest.schedule`.
    recompute : str
        See :attr:`PlanRequest.recompute`.
    """

    choices: tuple[tuple[str, str], ...]
    software: Software
    optimizer_bytes: float
    schedule: Schedule | None
    recompute: str


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """One question to the planner.

    Attributes
    ----------
    fixed : tuple of (str, int)
        Pinned degrees, names of :data:`DEGREES`.
    recompute : str
        ``auto``, ``none``, ``selective`` or ``full``, or ``selective:module+module``.
    top : int
        Number of ranked layouts wanted.
    time_limit_s : float
        Wall-clock limit of the search; what is found by then is returned with its gap.
    thermal : bool
        Place ranks by coolness and price heat.
    launcher : Launcher
        What starts the processes; limits where ranks can be.
    profile : MachineProfile or None
        Of the machine; None: the published constants.
    schedule : Schedule or None
        Of pipelines; None: 1F1B, interleaved with several chunks a stage. With another than 1F1B every layout is a
        pipeline.
    variants : tuple of Variant
        Ways to run the job that are tried one by one; empty: as the other fields say.
    sayable : Sayable
        What its launcher can be told, where that is less than the framework's rules allow.
    """

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    framework: Framework = Framework.MEGATRON
    objective: Objective = Objective.TIME
    fixed: tuple[tuple[str, int], ...] = ()
    recompute: str = "auto"
    top: int = 10
    time_limit_s: float = 60.0
    thermal: bool = False
    launcher: Launcher = Launcher.TORCHRUN
    profile: MachineProfile | None = None
    schedule: Schedule | None = None
    variants: tuple[Variant, ...] = ()
    sayable: Sayable = EVERYTHING
    words: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # what the user typed, for the report

    def fixed_degree(self, name: str) -> int | None:
        """Return the pinned value of a degree, or None when it is free."""
        return dict(self.fixed).get(name)

    @property
    def program(self) -> str:
        """Who is planned for, in words: the framework, or the trainer that runs it."""
        return self.sayable.program or self.framework.value

    @property
    def always_piped(self) -> bool:
        """Whether a layout of one stage is no answer: it has no schedule."""
        return self.schedule not in (None, Schedule.ONE_F_ONE_B)

    def with_choices(self, made: tuple[tuple[str, str], ...]) -> "PlanRequest":
        """Return the request that a layout with its choices answers: that of its variant, where any was tried."""
        for variant in self.variants:
            if chose(variant.choices, made):
                return self.of(variant)
        return self

    def of(self, variant: Variant) -> "PlanRequest":
        """Return the request for one of its variants alone."""
        job = replace(self.job, software=variant.software, optimizer_bytes=variant.optimizer_bytes)
        tried = tuple(("try", f"{name}={value}") for name, value in variant.choices)
        return replace(
            self,
            job=job,
            schedule=variant.schedule,
            recompute=variant.recompute,
            variants=(),
            words=(*(word for word in self.words if word[0] != "try"), *tried),
        )


def pins(fixed: Sequence[str], micro_batch: str) -> tuple[str, ...]:
    """Return the items of ``--fix`` with what ``--micro-batch`` pins.

    Parameters
    ----------
    fixed : sequence of str
        Items such as ``tp=4``.
    micro_batch : str
        ``auto``, or a whole number.

    Returns
    -------
    tuple of str
        Items for :func:`parse_fixed`.

    Raises
    ------
    InputError
        The micro-batch is neither.
    """
    text = micro_batch.strip().lower()
    if text == "auto":
        return tuple(fixed)
    if not _in_range(text, 1, MOST_OF_A_DEGREE):
        raise InputError(
            f"--micro-batch {micro_batch!r} is not understood",
            allowed=f"auto, or sequences per micro-batch from 1 to {MOST_OF_A_DEGREE}",
        )
    return (*fixed, f"micro_batch={text}")


def _in_range(text: str, lowest: int, highest: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and lowest <= int(text) <= highest


def parse_fixed(items: list[str]) -> tuple[tuple[str, int], ...]:
    """Read ``--fix`` items such as ``tp=4``.

    Raises
    ------
    InputError
        An item is not ``NAME=INTEGER``, its name is no degree, its value is out of range, or a name is given twice.
    """
    found: dict[str, int] = {}
    for item in items:
        name, sep, text = item.partition("=")
        key = _DEGREE_ALIASES.get(name.strip().lower(), name.strip().lower())
        if not sep or key not in DEGREES:
            raise InputError(
                f"--fix {item!r} is not understood", allowed="NAME=INTEGER with NAME of " + ", ".join(DEGREES)
            )
        lowest = _LEAST.get(key, 1)
        highest = 3 if key == "zero" else MOST_OF_A_DEGREE
        if not _in_range(text.strip(), lowest, highest):
            allowed = "0, 1, 2 or 3" if key == "zero" else f"an integer from {lowest} to {highest}"
            raise InputError(f"--fix {item!r} has the value {text!r}", allowed=allowed)
        if key in found and found[key] != int(text):
            both = f"{found[key]} and {int(text)}"
            where = "--fix or --micro-batch give" if key == "micro_batch" else "--fix gives"
            raise InputError(f"{where} {key} twice: {both}", allowed="one value for a degree")
        found[key] = int(text)
    return tuple(found.items())
