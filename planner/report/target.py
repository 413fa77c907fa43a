"""What a layout is written for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a layout is written for: a format, the framework's version, and the names of the hosts in order."""

    format: str
    version: str | None = None
    hosts: tuple[str, ...] = ()
