"""Several ways to run a job, tried one by one: words such as ``schedule=1f1b,zbv``, and what each framework offers.

What a framework has of schedules and of exchanges of context parallelism stands in ``variants.toml`` with its source;
other names are switches of :mod:`costmodels.software_words`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from costmodels.pipeline.schedules import Schedule
from costmodels.software_words import STATED
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.choices import Framework

SCHEDULE: Final = "schedule"
CP_COMM: Final = "cp_comm"
NAMES: Final = (SCHEDULE, *STATED)
MOST: Final = 32  # searches, one for each combination
_ALL: Final = "all"
_USUAL: Final = (Schedule.ONE_F_ONE_B.value, Schedule.INTERLEAVED.value)
_TOGETHER: Final = "+".join(_USUAL)
"""One search has both: pipelines of one chunk a stage and of several."""

Choices = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a framework has under a name: values with a price and others.

    Of some values: the choices that they need besides, the only recompute that goes with them, what to know of them.
    """

    values: tuple[str, ...]
    unpriced: tuple[str, ...]
    needs: Mapping[str, Choices]
    recompute: Mapping[str, str]
    notes: Mapping[str, str]


@cache
def offers() -> Mapping[tuple[str, Framework], Offer]:
    """Return what every framework offers, by name and framework."""
    found: dict[tuple[str, Framework], Offer] = {}
    for table in package_table("planner", "variants.toml")["offer"]:
        offer = Offer(
            values=tuple(table["values"]),
            unpriced=tuple(table.get("unpriced", ())),
            needs={value: tuple(needs.items()) for value, needs in table.get("needs", {}).items()},
            recompute=table.get("recompute", {}),
            notes=table.get("notes", {}),
        )
        found |= {(table["name"], Framework(framework)): offer for framework in table["frameworks"]}
    return MappingProxyType(found)


def schedule_named(choices: Choices) -> Schedule | None:
    """Return the schedule that some choices name; None where they leave it at 1F1B and interleaved."""
    word = dict(choices).get(SCHEDULE, _TOGETHER)
    return None if word == _TOGETHER else Schedule(word)


def chose(choices: Choices, made: Choices) -> bool:
    """Whether a layout, whose choices were ``made`` so, is of the search with ``choices``."""
    told = dict(made)
    return all(told.get(name) in (value.split("+") if name == SCHEDULE else (value,)) for name, value in choices)


def notes_of(choices: Choices, framework: Framework) -> tuple[str, ...]:
    """What to know of some choices in a framework."""
    return tuple(offer.notes[value] for offer, value in _offered(choices, framework) if value in offer.notes)


def recompute_with(choices: Choices, framework: Framework, asked: str) -> str:
    """Return what layers may recompute with some choices, as of a request.

    Raises
    ------
    InputError
        Something else is asked.
    """
    for offer, value in _offered(choices, framework):
        needed = offer.recompute.get(value, asked)
        if asked not in ("auto", needed):
            raise InputError(f"--recompute {asked} with {value} in {framework}", allowed=f"{needed}, or auto")
        asked = needed
    return asked


def _offered(choices: Choices, framework: Framework) -> list[tuple[Offer, str]]:
    """Values of some choices with the offers that they are of."""
    known = ((offers().get((name, framework)), value) for name, value in choices)
    return [(offer, value) for offer, value in known if offer is not None]


def combinations(tries: Sequence[str], framework: Framework, fixed_vpp: int | None) -> tuple[Choices, ...]:
    """Read what is to be tried.

    Parameters
    ----------
    tries : sequence of str
        Items such as ``schedule=1f1b,zbv``; ``all`` stands for what the framework offers.
    framework : Framework
        Who runs the plan.
    fixed_vpp : int or None
        Virtual chunks of a stage where they are pinned.

    Returns
    -------
    tuple of Choices
        Every combination in the order of the words, each with what its values need besides; 1F1B and interleaved are
        one.

    Raises
    ------
    InputError
        A name or a value is not known, the framework does not have it, or nothing is left.
    """
    tried: dict[str, tuple[str, ...]] = {}
    for item in tries:
        name, values = _item(item, framework)
        if name in tried:
            raise InputError(f"--try gives {name} twice", allowed=f"--try {name}=V1,V2 once")
        tried[name] = _running(values, fixed_vpp, item) if name == SCHEDULE else values
    found: dict[Choices, None] = {}
    for values in itertools.product(*tried.values()):
        whole = _with_needs(tuple(zip(tried, values, strict=True)), framework)
        if whole is not None:
            found[whole] = None
    if not found:
        raise InputError(
            f"--try {', --try '.join(tries)}: no two of them go together",
            allowed="; ".join(_needs_words(framework)) or "other values",
        )
    if len(found) > MOST:
        raise InputError(f"--try asks {len(found)} combinations", allowed=f"up to {MOST}")
    return tuple(found)


def _item(item: str, framework: Framework) -> tuple[str, tuple[str, ...]]:
    """Name and values of one item."""
    word, sep, text = item.partition("=")
    name = word.strip().lower().replace("-", "_")
    text = text.replace("+", ",") if name == SCHEDULE else text  # as one search of both is written
    values = tuple(dict.fromkeys(value.strip().lower() for value in text.split(",") if value.strip()))
    if not sep or name not in NAMES or not values:
        raise InputError(f"--try {item!r} is not understood", allowed=f"NAME=V1,V2 with NAME of {', '.join(NAMES)}")
    offer = offers().get((name, framework))
    if offer is None:
        if _ALL in values:
            raise InputError(f"--try {item!r}: {name} has no list of values", allowed=f"{name}=V1,V2 by name")
        return name, values
    if not offer.values:
        raise InputError(f"--try {item!r}: {framework} has no option for {name}", allowed="a search without it")
    if values == (_ALL,):
        values = offer.values
    known = ", ".join(offer.values)
    for value in values:
        if value not in offer.values:
            why = "has no price here" if value in offer.unpriced else f"is not of {framework}"
            raise InputError(f"--try {item!r}: {name} {value} {why}", allowed=f"{known} or all")
    return name, values


def _running(values: tuple[str, ...], fixed_vpp: int | None, item: str) -> tuple[str, ...]:
    """Schedules that go with a pinned number of chunks; where all are asked the others are left out."""
    fits = tuple(value for value in values if fixed_vpp is None or _takes(Schedule(value), fixed_vpp))
    if not fits or (fits != values and not item.strip().lower().endswith(f"={_ALL}")):
        wrong = next(value for value in values if value not in fits)
        raise InputError(
            f"--try {item!r} and --fix vpp={fixed_vpp}: {wrong} has another number of virtual chunks",
            allowed="schedules that have so many, or a free vpp",
        )
    if not set(_USUAL) <= set(fits):
        return fits
    return tuple(dict.fromkeys(_TOGETHER if value in _USUAL else value for value in fits))


def _takes(schedule: Schedule, vpp: int) -> bool:
    return vpp == schedule.fixed_vpp if schedule.fixed_vpp is not None else vpp > 1


def _with_needs(choices: Choices, framework: Framework) -> Choices | None:
    """Choices with what they need besides; None where they contradict each other."""
    told = dict(choices)
    for offer, value in _offered(choices, framework):
        for needed, of in offer.needs.get(value, ()):
            if told.setdefault(needed, of) != of:
                return None
    return tuple(told.items())


def _needs_words(framework: Framework) -> list[str]:
    return [
        f"{name} {value} with {', '.join(f'{needed}={of}' for needed, of in needs)}"
        for (name, owner), offer in offers().items()
        if owner is framework
        for value, needs in offer.needs.items()
    ]
