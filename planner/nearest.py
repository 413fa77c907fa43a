"""Known names as they are typed, and the nearest one to a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from hardware.errors import InputError

_Choice = TypeVar("_Choice", bound=StrEnum)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; nearest: 'x'`` for a message, or nothing when no known name is close."""
    found = get_close_matches(name.strip().lower(), list(known), n=1)
    return f"; nearest: {found[0]!r}" if found else ""


def choice(kind: type[_Choice], text: str, what: str) -> _Choice:
    """Return the member of a kind that a text names.

    Parameters
    ----------
    kind : type of StrEnum
        The choices.
    text : str
        As typed; case and spaces around it do not count.
    what : str
        What is chosen, for the message.

    Raises
    ------
    InputError
        The text names none; the message has the nearest.
    """
    known = {member.value: member for member in kind}
    found = known.get(text.strip().lower())
    if found is None:
        raise InputError(f"{what} {text!r} is not known{nearest(text, known)}", allowed=", ".join(known))
    return found
