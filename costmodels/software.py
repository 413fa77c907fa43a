"""What the software of a run can do, by framework and era, from ``software.toml``."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import Dispatcher, ShardCopies, Software
from costmodels.workload.kernels import Softmax
from costmodels.workload.linear_loss import linear_loss
from hardware.errors import InputError
from hardware.package_table import package_table

FALLBACK = "generic"
_CHOICES: Final[Mapping[str, Callable[[Any], object]]] = MappingProxyType(
    {
        "dispatcher": Dispatcher,
        "softmax": Softmax,
        "linear_loss": linear_loss,
        "shard_copies": ShardCopies,
    }
)
"""Fields that are enumerations or names."""


@dataclass(frozen=True, kw_only=True)
class RunText:
    """What a run says of its software; empty where it says nothing.

    Parameters
    ----------
    framework : str
        Name of the framework, with a version if the run gives one there.
    version, date : str
        Release and date (``2025-06`` or ``2025-06-30``).
    precision : str
        Recipe of the run, as it names it.
    source : str
        Where the run was published; decides the era of frameworks that state no version.
    overlap, cuda_graphs, dispatcher, routing, offload, notes : str
        Remarks on the run, searched for known phrases.
    hardware : str
        Accelerator, as the run names it; decides where one framework compiles for unlike machines.
    gpus, tp, pp, ep : str
        Digits; they tell parts of a study apart that ran different code.
    """

    framework: str = ""
    version: str = ""
    date: str = ""
    precision: str = ""
    source: str = ""
    overlap: str = ""
    cuda_graphs: str = ""
    dispatcher: str = ""
    routing: str = ""
    offload: str = ""
    notes: str = ""
    hardware: str = ""
    gpus: str = ""
    tp: str = ""
    pp: str = ""
    ep: str = ""


@dataclass(frozen=True, kw_only=True)
class SoftwareMatch:
    """The software that a run is priced with, and why; ``known`` is whether a rule is for its framework.

    ``nearest`` names a preset that is spelled nearly so, where no rule is; empty: none.
    """

    software: Software
    reason: str
    known: bool = True
    nearest: str = ""


@dataclass(frozen=True)
class _Tables:
    presets: Mapping[str, Software]
    rules: tuple[Mapping[str, str], ...]
    hints: tuple[Mapping[str, object], ...]


@cache
def _tables() -> _Tables:
    content = package_table("costmodels", "software.toml")
    presets = {name: Software(name=name, **_facts(fields)) for name, fields in content["presets"].items()}
    return _Tables(MappingProxyType(presets), tuple(content["rules"]), tuple(content["hints"]))


def _facts(fields: Mapping[str, object]) -> dict[str, Any]:
    """Fields of a preset without the list of those that were fitted."""
    return {name: _read(name, value) for name, value in fields.items() if name != "fitted"}


def _read(name: str, value: object) -> Any:
    """A field as :class:`Software` holds it."""
    return _CHOICES[name](value) if name in _CHOICES else value


def names() -> tuple[str, ...]:
    """Return the names of all presets.

    Returns
    -------
    tuple of str
        In the order of the file.
    """
    return tuple(_tables().presets)


def software(name: str) -> Software:
    """Return a preset.

    Parameters
    ----------
    name : str
        Such as ``megatron``, ``megatron-bridge`` or ``torchtitan``; case, spaces and ``_`` do not matter.

    Returns
    -------
    Software
        What it has.

    Raises
    ------
    InputError
        No such preset.
    """
    presets = _tables().presets
    by_key = {_key(known): known for known in presets}
    found = by_key.get(_key(name))
    if found is None:
        near = _nearest(name)
        hint = f"; nearest: {near!r}" if near else ""
        raise InputError(f"software {name!r} is not known{hint}", allowed=", ".join(presets))
    return presets[found]


def software_for(run: RunText) -> SoftwareMatch:
    """Return the software of a run: the first rule that matches, with the run's own remarks put over it.

    Parameters
    ----------
    run : RunText
        What the run says.

    Returns
    -------
    SoftwareMatch
        The preset ``generic`` when no rule matches; the reason names the rule and the remarks that counted.
    """
    tables = _tables()
    preset, reason, known = FALLBACK, f"no rule for framework {run.framework!r}: {FALLBACK}", False
    for rule in tables.rules:
        if _matches(rule, run):
            preset, known = rule["preset"], True
            facts = ", ".join(f"{name} ~ {pattern!r}" for name, pattern in rule.items() if name != "preset")
            reason = f"{preset} ({facts})"
            break
    remarks = _remarks(run)
    if remarks:
        reason += "; the run says " + ", ".join(f"{name} = {value}" for name, value in remarks.items())
    base = replace(tables.presets[preset], **remarks)  # type: ignore[arg-type]
    return SoftwareMatch(software=base, reason=reason, known=known, nearest="" if known else _nearest(run.framework))


def _nearest(name: str) -> str:
    """Name of the preset that is spelled most nearly so; empty for none."""
    by_key = {_key(known): known for known in _tables().presets}
    return next((by_key[near] for near in get_close_matches(_key(name), by_key, n=1)), "")


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _matches(rule: Mapping[str, str], run: RunText) -> bool:
    """Whether every pattern of the rule is found; ``before`` needs a date that is earlier."""
    for name, pattern in rule.items():
        if name == "preset":
            continue
        if name == "before":
            if not run.date or run.date >= pattern:
                return False
        elif not re.search(pattern, getattr(run, name).lower()):
            return False
    return True


def _remarks(run: RunText) -> dict[str, object]:
    """Fields that the run's own remarks set; the first remark on a field counts."""
    found: dict[str, object] = {}
    for hint in _tables().hints:
        text = str(getattr(run, str(hint["column"]))).lower()
        values = hint["set"]
        if not isinstance(values, Mapping) or not re.search(str(hint["pattern"]), text):
            continue
        if not re.search(str(hint.get("gpus", "")), run.gpus):
            continue
        for name, value in values.items():
            found.setdefault(name, _read(name, value))
    return found
