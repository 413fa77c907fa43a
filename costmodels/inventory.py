"""How many constants of the models were fitted to measurements, counted in the data files that hold them.

A constant counts when its source says that it was fitted. In files of ``[value, "source key"]`` pairs the key leads to
the source; elsewhere a table states ``value`` and ``source`` together, or a class of links states several numbers.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from hardware.package_table import package_table

FILES: Final = (
    ("compute", "efficiency.toml"),
    ("overlap", "overlap.toml"),
    ("communication", "collectives/network.toml"),
    ("memory", "memory/constants.toml"),
    ("power", "power/power.toml"),
    ("software", "software.toml"),
)
"""Models and the files of their constants, from the root of this package."""

_FITTED: Final = re.compile(r"\bfitted\b", re.IGNORECASE)
_OF_MACHINES: Final = ("generation", "part", "link")  # lists of tables: one for each kind of accelerator or link
_LINK_NUMBERS: Final = ("launch_s", "hop_s", "ring", "alltoall", "in_network")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstants:
    """Fitted constants of one model; ``of_machines`` of them belong to a kind of accelerator, format or link."""

    model: str
    total: int
    of_machines: int


@cache
def fitted_constants() -> tuple[FittedConstants, ...]:
    """Count the fitted constants of every model.

    Returns
    -------
    tuple of FittedConstants
        In the order of :data:`FILES`; models without any are left out.
    """
    found = (_counted(model, _read(file)) for model, file in FILES)
    return tuple(one for one in found if one.total)


def _read(file: str) -> Mapping[str, Any]:
    return package_table("costmodels", file)


def _counted(model: str, table: Mapping[str, Any]) -> FittedConstants:
    sources = table.get("sources", {})
    machines = sum(sum(1 for _ in _fitted(row, sources)) for name in _OF_MACHINES for row in table.get(name, ()))
    shared = {name: value for name, value in table.items() if name not in (*_OF_MACHINES, "sources")}
    others = sum(1 for _ in _fitted(shared, sources))
    return FittedConstants(model=model, total=machines + others, of_machines=machines)


def _fitted(value: object, sources: Mapping[str, str]) -> Iterator[float]:
    """Yield every fitted number inside a value of a file."""
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[1], str):
            yield from [float(value[0])] if _FITTED.search(sources.get(value[1], "")) else []
        else:
            for item in value:
                yield from _fitted(item, sources)
    elif isinstance(value, Mapping):
        if _FITTED.search(str(value.get("source", ""))):
            yield from _numbers(value)
        else:
            for item in value.values():
                yield from _fitted(item, sources)


def _numbers(table: Mapping[str, Any]) -> Iterator[float]:
    """Yield the numbers of a table whose source says that they were fitted."""
    names = tuple(table.get("fitted", ())) or (("value",) if "value" in table else _LINK_NUMBERS)
    for name in names:
        number = table.get(name, table.get("set", {}).get(name, 0.0))
        if number:
            yield float(number)
