"""What a layout is written for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a layout is written for: a format, the framework's version, the names of the hosts in order, the launcher.

    The launcher is that of the search where none is named.
    """

    format: str
    version: str | None = None
    hosts: tuple[str, ...] = ()
    launcher: str = ""
