"""Typed reading of a mapping that a user wrote; errors name the file, the field, the value and what is allowed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeGuard

from hardware.errors import InputError

_LARGEST = 10**12  # no width, count or vocabulary is larger
_LARGEST_NUMBER = 1e30  # no time, size or rate is larger; products of a few of them are still numbers
_SHOWN = 40


@dataclass(frozen=True)
class Fields:
    """A mapping and the place that errors name.

    Parameters
    ----------
    values : Mapping
        Decoded JSON or TOML.
    where : str
        File name; a field's name is appended.
    """

    values: Mapping[str, object]
    where: str

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def whole(self, *names: str, default: int | None = None, least: int = 0, most: int = _LARGEST) -> int:
        """Return the first of the fields ``names`` that is there, a whole number.

        Parameters
        ----------
        default : int, optional
            Where none of them is there; without it that is an error.
        least, most : int
            Limits of what is accepted, both included.

        Raises
        ------
        InputError
            The field is missing, no whole number, or outside the limits.
        """
        name, value = self._first(names, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """Return the first of the fields that is there, a number that is not negative."""
        name, value = self._first(names, default)
        if not _is_number(value, 0.0, _LARGEST_NUMBER):
            raise self.wrong(name, value, f"a number, not negative, up to {_LARGEST_NUMBER:g}")
        return float(value)

    def signed(self, name: str, most: float = _LARGEST_NUMBER) -> float:
        """Return a number from ``-most`` to ``most``."""
        value = self.values.get(name)
        if not _is_number(value, -most, most):
            raise self.wrong(name, value, f"a number from {-most:g} to {most:g}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers that are not negative; empty when the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(_is_number(item, 0.0, _LARGEST_NUMBER) for item in value):
            raise self.wrong(name, value, f"a list of numbers, not negative, up to {_LARGEST_NUMBER:g}")
        return tuple(map(float, value))

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """Return the first of the fields that is there, true or false."""
        name, value = self._first(names, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """Return the first of the fields that is there, a text."""
        name, value = self._first(names, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def label(self, name: str, default: str | None = None) -> str:
        """Return a field that is the name of something: text of one line, not empty."""
        value = self.text(name, default=default)
        if not value.strip() or not value.isprintable():  # it would reach terminals, tables and files of a launch
            raise self.wrong(name, value, "a text of one line that can be printed")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty when the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, value, "a list of texts")
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers; empty when the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise self.wrong(name, value, "a list of whole numbers")
        return tuple(value)

    def table(self, name: str) -> "Fields":
        """Return a nested mapping."""
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "a table of fields")
        return Fields(value, f"{self.where}: {name}")

    def changed(self, **values: object) -> "Fields":
        """Return the fields with some values in the place of their own; None: as if a field were missing."""
        return Fields({**self.values, **values}, self.where)

    def only(self, allowed: Iterable[str]) -> None:
        """Refuse fields that are not in ``allowed``."""
        names = list(allowed)
        for name in self.values:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise InputError(f"unknown field {name!r}{hint}", allowed=", ".join(names), where=self.where)

    def wrong(self, name: str, value: object, allowed: str) -> InputError:
        """Return the error for a field's value."""
        what = "missing" if value is None else f"{_shown(value)} is not accepted"
        return InputError(what, allowed=allowed, where=f"{self.where}: {name}")

    def _first(self, names: tuple[str, ...], default: object) -> tuple[str, object]:
        for name in names:
            if self.has(name):
                return name, self.values[name]
        return names[0], default


def _is_number(value: object, least: float, most: float) -> TypeGuard[int | float]:
    """Whether a value is a number within limits; compared before it becomes a float, which some integers cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
