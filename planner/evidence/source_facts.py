"""What is known of a source of measured runs that stands over the columns of its table: ``[[facts]]`` of a file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from hardware.package_table import package_table


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What is put in place of what a table says, or beside it; zero and empty where the table stands.

    ``columns`` are texts of columns; ``vocab`` the vocabulary, not padded; ``shard_group`` the ranks that ZeRO or FSDP
    shards over.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    vocab: int = 0
    shard_group: int = 0


def source_facts(source: str) -> SourceFacts:
    """Return what ``source_facts.toml`` says of a source.

    Parameters
    ----------
    source : str
        Where a run was published.

    Returns
    -------
    SourceFacts
        The first facts whose pattern is found in it.
    """
    return next((facts for pattern, facts in _facts() if re.search(pattern, source.lower())), SourceFacts())


@cache
def _facts() -> tuple[tuple[str, SourceFacts], ...]:
    tables = package_table("planner.evidence", "source_facts.toml")["facts"]
    return tuple(
        (
            str(table["pattern"]),
            SourceFacts(
                columns=MappingProxyType(dict(table.get("columns", {}))),
                vocab=int(table.get("vocab", 0)),
                shard_group=int(table.get("shard_group", 0)),
            ),
        )
        for table in tables
    )
