"""Settings of PyTorch's allocator that a launch exports, where PyTorch itself refuses them.

PyTorch reads ``key:value,key:value`` when the allocator is first asked for memory, in every process: a value that it
does not take ends the job there, after the framework has accepted its arguments. Judged are the settings that its
releases read alike; others are left to it.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from planner.ingest.scripts.values import BLANK
from planner.rules.table import Found
from planner.rules.verdict import Violation

VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")
LEAST_SPLIT_MB: Final = 20
"""Of ``max_split_size_mb``: the size of the allocator's large buffers (c10 ``kLargeBuffer``)."""
_SOURCE: Final = "PyTorch c10/core/AllocatorConfig.cpp, parseArgs (asked of 2.13); c10/cuda/CUDAAllocatorConfig.cpp"
_RULE: Final = "allocator-settings"
_LIST: Final = re.compile(r"\[[^\]]*\]")  # values by size, with commas and colons of their own: not judged


def _switch(value: str) -> str:
    return "" if value in ("True", "False") else "True or False, with a capital letter"


def _split(value: str) -> str:
    return "" if value.isdecimal() and int(value) >= LEAST_SPLIT_MB else f"{LEAST_SPLIT_MB} or more, in MB"


def _threshold(value: str) -> str:
    try:
        inside = 0.0 < float(value) < 1.0
    except ValueError:
        inside = False
    return "" if inside else "a number between 0 and 1"


def _divisions(value: str) -> str:
    power = value.isdecimal() and int(value).bit_count() == 1
    return "" if power else "a power of two, or a list such as [256:1,512:2,>:4]"


_ALLOWED: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {
        "expandable_segments": _switch,
        "pinned_use_background_threads": _switch,
        "release_lock_on_cudamalloc": _switch,
        "max_split_size_mb": _split,
        "garbage_collection_threshold": _threshold,
        "roundup_power2_divisions": _divisions,
    }
)
"""What each setting takes, in words where a value is none of it."""


def allocator_violations(environment: Mapping[str, str] | None) -> tuple[Violation, ...]:
    """Judge the allocator's settings of a launch.

    Parameters
    ----------
    environment : mapping of str to str, or None
        What the launch sets; None where no script was given.

    Returns
    -------
    tuple of Violation
        One for each setting that PyTorch refuses; none for values that hold what the file does not know.
    """
    found: list[Violation] = []
    for name in VARIABLES:
        text = (environment or {}).get(name, "")
        if text and BLANK not in text and "$" not in text:
            found += [_violation(name, item, allowed) for item, allowed in _refused(text)]
    return tuple(found)


def _refused(text: str) -> list[tuple[str, str]]:
    """Settings that PyTorch refuses, each with what is allowed; blanks do not count."""
    items = _LIST.sub("1", text.replace(" ", "")).split(",")
    told = []
    for item in filter(None, items):
        key, colon, value = item.partition(":")
        allowed = _ALLOWED[key](value) if colon and key in _ALLOWED else "" if colon else "KEY:VALUE, parted by commas"
        told += [(item, allowed)] if allowed else []
    return told


def _violation(name: str, item: str, allowed: str) -> Violation:
    return Violation(
        rule=_RULE,
        message=f"{name}: '{item}' is not accepted by PyTorch's allocator; allowed: {allowed}",
        values={"variable": name, "setting": item},
        found=Found.GROUPS,
        source=_SOURCE,
    )
