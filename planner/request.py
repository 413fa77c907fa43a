"""What is asked of the planner, as one frozen value."""

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from costmodels.job import TrainingJob
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from hardware.errors import InputError


class Objective(StrEnum):
    """What a layout is ranked by."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"


class Framework(StrEnum):
    """Who will run the plan: a constraint set on the search and the meaning of exported arguments."""

    MEGATRON = "megatron"
    BRIDGE = "bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    GALVATRON = "galvatron"
    NONE = "none"


DEGREES: Final = ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "zero", "micro_batch")
MOST_OF_A_DEGREE: Final = 1_000_000_000  # as many as the sequences of the largest global batch
_DEGREE_ALIASES: Final = MappingProxyType({"mbs": "micro_batch", "micro-batch": "micro_batch"})


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
    words: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # what the user typed, for the report

    def fixed_degree(self, name: str) -> int | None:
        """Return the pinned value of a degree, or None when it is free."""
        return dict(self.fixed).get(name)


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
        lowest = 0 if key == "zero" else 1
        highest = 3 if key == "zero" else MOST_OF_A_DEGREE
        if not text.strip().isdecimal() or len(text) > 20 or not lowest <= int(text) <= highest:
            allowed = "0, 1, 2 or 3" if key == "zero" else f"an integer from 1 to {highest}"
            raise InputError(f"--fix {item!r} has the value {text!r}", allowed=allowed)
        if key in found and found[key] != int(text):
            raise InputError(f"--fix gives {key} twice: {found[key]} and {int(text)}", allowed="one value for a degree")
        found[key] = int(text)
    return tuple(found.items())
