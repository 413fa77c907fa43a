"""Functions of a shell script: their bodies are kept as statements, read at each call with its arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hardware.errors import InputError
from planner.ingest.scripts.words import Pieces, literal, statements

Statement = list[Pieces]
_NAME: Final = re.compile(r"[\w.:-]+")


@dataclass(kw_only=True)
class Functions:
    """What a script has defined so far.

    Attributes
    ----------
    bodies : dict
        Statements of each function.
    """

    bodies: dict[str, list[Statement]] = field(default_factory=dict)
    _name: str = ""
    _depth: int = 0
    _body: list[Statement] = field(default_factory=list)

    def takes(self, words: Statement, *, live: bool) -> bool:
        """Whether a statement belongs to a definition; then it is kept, unless it stands where nothing runs.

        Parameters
        ----------
        words : list
            Of the statement.
        live : bool
            The statement runs, or may run.
        """
        if not self._name:
            self._name, words = _head(words)
            if not self._name:
                return False
            self._depth, self._body = 0, []
        if words and self._add(words):
            if live:
                self.bodies[self._name] = self._body
            self._name = ""
        return True

    def refuse_open(self, where: str) -> None:
        """Refuse a definition that the script does not close.

        Raises
        ------
        InputError
            Names the function.
        """
        if self._name:
            raise InputError(f"function {self._name} is not closed", allowed="a shell script", where=where)

    def _add(self, words: Statement) -> bool:
        """Keep a statement; whether it closes the body."""
        kind, text = words[0][0]
        if not self._depth and kind == "array":  # a body in round brackets
            self._body = list(statements(text))
            return True
        name, rest = _head(words)
        for pieces in rest if name else words:  # a function may define another
            word = literal(pieces)
            if word == "}":
                self._depth -= 1
                if self._depth <= 0:
                    return True
            elif word == "{":
                self._depth += 1
            elif not word.endswith(")") and word not in ("then", "else", "do"):
                break
        self._body.append(words)
        return False


def _head(words: Sequence[Pieces]) -> tuple[str, Statement]:
    """Name of the function that a statement begins to define, empty where it defines none, and what stands behind."""
    brackets: Pieces = (("array", ""),)
    spelled = literal(words[0]) == "function" and len(words) > 1
    first = words[spelled]
    rest = list(words[spelled + 1 :])
    name = first[0][1] if first[0][0] == "plain" else ""
    if not _NAME.fullmatch(name):
        return "", rest
    if len(first) == 2 and first[1:] == brackets:
        return name, rest
    if len(first) == 1 and rest and rest[0] == brackets:
        return name, rest[1:]
    return (name, rest) if spelled and len(first) == 1 else ("", rest)
