"""What options of Megatron-LM on the course of training say together: batches that grow, and the learning rate.

References
----------
Megatron-LM ``megatron/core/num_microbatches_calculator.py``, ``megatron/core/optimizer_param_scheduler.py`` and
``megatron/training/training.py`` (``get_optimizer_param_scheduler``), core 0.13 to 0.19.
"""

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Final

from planner.ingest.options import Arguments

_FEW: Final = 2


def batches_between(first: int, increment: int, last: int) -> int:
    """Greatest number that divides every batch between the first and the last; 0 where there is none between."""
    if increment <= 0 or last - first < _FEW * increment or (last - first) % increment:
        return 0
    return gcd(first + increment, increment) if last - first > _FEW * increment else first + increment


def common_divisor(batches: Sequence[int]) -> int:
    """Greatest number that divides every batch between the first and the last; 0 where there is none between."""
    return gcd(*batches[1:-1])


def learning_rate_facts(read: Arguments) -> Mapping[str, tuple[str, ...]]:
    """What is wrong with the course of the learning rate and of the weight decay, in words; nothing where it fits.

    Parameters
    ----------
    read : Arguments
        As they were given. Without a number of iterations or samples nothing is said.
    """
    unit = "iters" if read.number("--train-iters", 0) else "samples"
    whole = read.number(f"--train-{unit}", 0)
    if whole <= 0:
        return {}
    facts: dict[str, tuple[str, ...]] = {}
    decay, warmup = read.number(f"--lr-decay-{unit}", whole), read.number(f"--lr-warmup-{unit}", 0)
    fraction = _decimal(read, "--lr-warmup-fraction")
    late = warmup >= decay if fraction is None else fraction >= 1.0
    if decay <= 0 or late:
        told = f"{warmup:,} {unit}" if fraction is None else f"a share of {fraction:g}"
        facts["--warmup-late"] = (f"{told} of the {decay:,} {unit} of its decay",)
    if read.text("--lr-decay-style") == "WSD" and not read.has(f"--lr-wsd-decay-{unit}"):
        facts["--annealing-left"] = (f"--lr-wsd-decay-{unit}",)
    start, end = _decimal(read, "--start-weight-decay"), _decimal(read, "--end-weight-decay")
    if start is not None and end is not None and not 0.0 <= start <= end:
        facts["--weight-decay-falls"] = (f"from {start:g} to {end:g}",)
    return facts


def _decimal(read: Arguments, name: str) -> float | None:
    try:
        return float(read.text(name)) if read.has(name) else None
    except ValueError:
        return None
