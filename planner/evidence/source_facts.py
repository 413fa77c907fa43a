"""What is known of a source of measured runs that stands over the columns of its table: ``[[facts]]`` of a file."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

_FACTS: Final = Path(__file__).with_name("source_facts.toml")


def source_facts(source: str) -> Mapping[str, str | int]:
    """Return what ``source_facts.toml`` puts in place of a table's columns.

    Parameters
    ----------
    source : str
        Where a run was published.

    Returns
    -------
    mapping
        ``recompute``, ``vocab``, ``shard_group`` and ``precision`` where they are known, with the reason; empty where
        the table stands.
    """
    return next((fact for fact in _facts() if re.search(str(fact["pattern"]), source.lower())), {})


@cache
def _facts() -> tuple[Mapping[str, str | int], ...]:
    with _FACTS.open("rb") as file:
        return tuple(tomllib.load(file)["facts"])
