"""What a user states of the software of a job, in words: an older release, and switches such as ``compiled=off``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import Dispatcher, Software, TrainingJob
from costmodels.memory.offloaded import OFFLOAD_MODULES
from costmodels.precision import precision
from costmodels.software import names, software
from hardware.errors import InputError

_ON: Final = MappingProxyType({"on": True, "off": False, "true": True, "false": False})
_SWITCHES: Final = (
    "flash_attention",
    "tp_overlap",
    "grad_overlap",
    "sync_each_batch",
    "param_overlap",
    "p2p_overlap",
    "expert_overlap",
    "cuda_graphs",
    "graphed_experts",
    "fused_loss",
    "grouped_gemm",
    "compiled",
    "dropout",
)
_CHOICES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "dispatcher": tuple(Dispatcher),
        "attention_kernel": ("cudnn", "fa2", "fa1", "triton"),
        "cp_comm": ("p2p", "a2a", "allgather"),
    }
)
_NUMBERS: Final = MappingProxyType(
    {
        "gradient_bytes": (1.0, 8.0),
        "reduce_bytes": (1.0, 4.0),
        "optimizer_bytes": (0.0, 16.0),
        "capacity_factor": (0.0, 16.0),
        "routing_imbalance": (1.0, 64.0),
        "optimizer_offload_share": (0.001, 1.0),
        "offload_modules_share": (0.0, 1.0),
    }
)
"""Least and most. ``optimizer_bytes`` is the job's: the optimizer's states per parameter beside master weights."""
_LISTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({"offload_modules": OFFLOAD_MODULES})
"""Fields of several names, joined by ``+``."""
STATED: Final = (*_SWITCHES, *_CHOICES, *_NUMBERS, *_LISTS)
"""Fields of :class:`Software` that a user may state, and ``optimizer_bytes`` of the job."""
_EAGER: Final = MappingProxyType({"fused_kernels": False, "fused_norms": False, "scripted": True})
"""What goes with ``compiled=off`` where the preset is compiled: PyTorch's own kernels, started one by one."""


def stated_job(job: TrainingJob, words: Sequence[str], recipe: str, *, any_framework: bool = False) -> TrainingJob:
    """Return a job with the software that a user states over it.

    Parameters
    ----------
    job : TrainingJob
        As its framework is priced today.
    words : sequence of str
        Names of presets (``megatron-2023``) and switches (``compiled=off``, ``dispatcher=deepep``,
        ``gradient_bytes=4``), later ones over earlier ones and switches over presets, wherever they stand. ``-`` and
        ``_`` are one.
    recipe : str
        The training recipe as typed; software that keeps other states has its own variant.
    any_framework : bool
        Presets of other frameworks are taken too.

    Raises
    ------
    InputError
        A word is not understood, or names another framework's software.
    """
    for word in sorted(words, key=lambda word: "=" in word):  # a preset behind a switch would silently undo it
        name, sep, value = word.partition("=")
        if not sep:
            tools = _preset(name, job.software, any_framework=any_framework)
            job = replace(job, software=tools, precision=precision(recipe, framework=tools.framework))
            continue
        (field,) = stated_switches([word])
        if field not in STATED:
            raise InputError(
                f"--software {word!r}: {name.strip()} is not known",
                allowed=f"a preset, or a switch of {', '.join(STATED)} with its value, such as compiled=off",
            )
        told = _value(word, field, value.strip().lower())
        if field == "optimizer_bytes":
            job = replace(job, optimizer_bytes=float(told))
        else:
            job = replace(job, software=_with(job.software, field, told))
    return job


def said_switches(tools: Software, usual: Software) -> tuple[str, ...]:
    """Return the switches that make one software of another, as :func:`stated_job` reads them.

    Parameters
    ----------
    tools, usual : Software
        What a job runs, and what its framework's jobs run; what no switch states is passed over.
    """
    names = [*_SWITCHES, *_CHOICES, "capacity_factor", *_LISTS, "offload_modules_share"]
    found = [(name, getattr(tools, name)) for name in names if getattr(tools, name) != getattr(usual, name)]
    return tuple(f"{name}={_said(value)}" for name, value in found)


def _said(value: object) -> object:
    """A field's value as a user writes it."""
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return ("on" if value else "off") if isinstance(value, bool) else value


def stated_switches(words: Sequence[str]) -> tuple[str, ...]:
    """Return the fields that words state by a switch, as :data:`STATED` has them; presets are left out."""
    names = (word.partition("=")[0] for word in words if "=" in word)
    return tuple(dict.fromkeys(name.strip().lower().replace("-", "_") for name in names))


def _preset(name: str, base: Software, *, any_framework: bool) -> Software:
    mine = [known for known in names() if any_framework or software(known).framework == base.framework]
    try:
        found = software(name.strip())
    except InputError:
        found = None
    if found is None or found.name not in mine:
        owner = "" if found is None else f" is of {found.framework}, not of {base.framework}:"
        raise InputError(
            f"--software {name.strip()!r}{owner or ' is not known'}".rstrip(":"),
            allowed=f"{', '.join(mine)}, or a switch such as compiled=off",
        )
    return found


def _value(word: str, field: str, value: str) -> Any:
    """The value of a switch as its field holds it."""
    if field in _SWITCHES and value in _ON:
        return _ON[value]
    if field in _CHOICES and value in _CHOICES[field]:
        return Dispatcher(value) if field == "dispatcher" else value
    if field in _LISTS:
        found = () if value == "none" else tuple(dict.fromkeys(value.split("+")))
        if set(found) <= set(_LISTS[field]):
            return found
        allowed = f"none, or names of {', '.join(_LISTS[field])} joined by +"
        raise InputError(f"--software {word!r}", allowed=f"{field}= with {allowed}")
    if field in _NUMBERS:
        least, most = _NUMBERS[field]
        try:
            number = float(value)
        except ValueError:
            number = least - 1.0
        if least <= number <= most:
            return number
        allowed = f"a number from {least:g} to {most:g}"
    else:
        allowed = ", ".join(_CHOICES.get(field, ("on", "off")))
    raise InputError(f"--software {word!r}", allowed=f"{field}= with {allowed}")


def _with(tools: Software, field: str, value: Any) -> Software:
    """Software with a field stated; PyTorch's own kernels run without a compiler, a fused loss is on whole logits."""
    changes: dict[str, Any] = {field: value} | ({"linear_loss": None} if field == "fused_loss" else {})
    if field == "compiled":
        changes |= {"scripted": False} if value else (dict(_EAGER) if tools.compiled else {})
    return replace(tools, **changes)
