"""The nearest known name to one that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; nearest: 'x'`` for a message, or nothing when no known name is close."""
    found = get_close_matches(name.strip().lower(), list(known), n=1)
    return f"; nearest: {found[0]!r}" if found else ""
