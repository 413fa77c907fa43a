"""What else is wrong with a launch of degrees whose model is not known, or in which a degree is no number.

What is told holds whatever the model is and whatever the number would be: each answer is one on several of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.options import Fault
from planner.rules.proposal import ModelFacts, Proposal
from planner.rules.verdict import Violation, in_all

_LAYERS: Final = 720_720
"""Divides by every number to 16, so that no split breaks over it by chance."""
ANY_MODEL: Final = (
    ModelFacts(layers=_LAYERS, max_positions=_LAYERS),
    ModelFacts(layers=2 * _LAYERS, max_positions=_LAYERS, experts=_LAYERS, top_k=1, expert_ffn=_LAYERS),
)
"""Sizes without a part that a degree must divide, with experts and without."""
_NUMBERS: Final = (1, 2, 3, 8)
_STAGES: Final = (0, 1, 2, 3)
_BATCH: Final = ("batch_size", "gradient_accumulation_steps")
_DEGREES: Final = (
    ("tensor_parallel", "tp"),
    ("tensor-model-parallel", "tp"),
    ("context_parallel", "cp"),
    ("sequence_parallel_size", "cp"),
    ("sequence-parallel-size", "cp"),
    ("pipeline_parallel_degree", "pp"),
    ("pipeline-model-parallel", "pp"),
    ("expert_parallel", "ep"),
    ("expert-parallel", "ep"),
)
"""Parts of names of options, and the degree that they state."""


def supposed_degrees(degrees: Proposal, faults: Sequence[Fault]) -> tuple[Proposal, ...]:
    """Degrees of a launch with several values where its own is none.

    Parameters
    ----------
    degrees : Proposal
        As the launch states them.
    faults : sequence of Fault
        What is wrong with its options.

    Returns
    -------
    tuple of Proposal
        Empty where an option that decides on them is none of those known here.
    """
    found: tuple[Proposal, ...] = (degrees,)
    for name in (fault.argument for fault in faults if not fault.unknown):
        values = _values(name, degrees)
        if not values:
            return ()
        found = tuple(replace(one, **value) for one in found for value in values)
        if len(found) > prod((len(_NUMBERS),) * 3):
            return ()
    return found


def _values(name: str, degrees: Proposal) -> tuple[Mapping[str, Any], ...]:
    """Values of what an option states; the degrees themselves where it states none of them."""
    if name in ("zero_optimization", "zero_optimization.stage", "--zero-stage"):
        return tuple({"zero": stage} for stage in _STAGES)
    if any(name.endswith(part) for part in _BATCH) or name == "train_micro_batch_size_per_gpu":
        whole = max(1, degrees.dp) * max(1, degrees.pp) * _LAYERS
        return ({"micro_batch": 1, "global_batch": whole},)
    if name.endswith(("seq_len", "seq-length")):
        return ({"seq": _LAYERS},)
    for part, degree in _DEGREES:
        if part in name:
            return tuple({degree: number, "dp": 0} for number in _NUMBERS)
    return () if name.startswith("--") or "." not in name else ({},)


def with_others(allowed: str, others: Sequence[str]) -> str:
    """What is allowed, with what else is wrong behind it."""
    return f"{allowed}; also wrong: {'; '.join(others)}" if others else allowed


class UnknownModelError(InputError):
    """A launch whose model is not known; ``others`` is what is wrong with it whatever its model is."""

    def __init__(self, told: str, *, allowed: str, others: Sequence[str]) -> None:
        super().__init__(told, allowed=with_others(allowed, others))
        self.others = tuple(others)


def unknown_model(told: str, allowed: str, broken: Callable[[ModelFacts], Sequence[Violation]]) -> UnknownModelError:
    """The error on a launch whose model is not known.

    Parameters
    ----------
    told, allowed : str
        What is said of the model.
    broken : callable
        Violations of a launch of a model of given sizes.
    """
    others = in_all([tuple(broken(facts)) for facts in ANY_MODEL])
    return UnknownModelError(told, allowed=allowed, others=[violation.message for violation in others])
