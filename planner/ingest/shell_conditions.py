"""What a shell script's arithmetic and tests come to, as far as whole numbers and texts decide them.

References
----------
POSIX.1-2017, Shell Command Language, ``test``; ``[[`` and ``((`` as in bash.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
)
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
)
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = MappingProxyType(
    {
        "-eq": operator.eq,
        "-ne": operator.ne,
        "-gt": operator.gt,
        "-ge": operator.ge,
        "-lt": operator.lt,
        "-le": operator.le,
    }
)
_LARGEST: Final = 10**12


def whole_number(text: str) -> int | None:
    """Value of an expression over whole numbers; None when it is none, or not understood."""
    try:
        return _whole(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested beyond Python's own parser
        return None


def _whole(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and right:
            return left % right if isinstance(node.op, ast.Mod) else left // right
    raise ValueError("not whole numbers joined by + - * / %")


def condition(words: Sequence[str]) -> bool | None:
    """Whether a test holds.

    Parameters
    ----------
    words : sequence of str
        The command behind ``if``, with its variables put in.

    Returns
    -------
    bool or None
        None for anything but one comparison of texts or of whole numbers, or of a text with nothing.
    """
    if len(words) < 3 or (words[0], words[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    inner = words[1:-1]
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        return (inner[1] == "") == (inner[0] == "-z")
    if len(inner) != 3:
        return None
    left, compared, right = inner
    if compared in _TEXTS:
        pattern = words[0] == "[[" and any(mark in right for mark in "*?[")
        return None if pattern else _TEXTS[compared](left, right)
    numbers = (whole_number(left), whole_number(right))
    if compared not in _NUMBERS or numbers[0] is None or numbers[1] is None:
        return None
    return _NUMBERS[compared](numbers[0], numbers[1])


@dataclass(kw_only=True)
class Branch:
    """An ``if`` that is being read.

    Attributes
    ----------
    tests : list of bool or None
        Of the arm that is being read; several are joined by what is not looked at.
    taken : bool
        An earlier arm runs for sure.
    live : bool
        Statements of this arm count: it runs, or nobody knows.
    begun : bool
        Behind ``then`` or ``else``, not inside a test.
    """

    tests: list[bool | None]
    taken: bool = False
    live: bool = True
    begun: bool = False

    def begin_arm(self) -> None:
        """``then``: the arm runs unless its test fails."""
        result = self.tests[0] if len(self.tests) == 1 else None
        self.live = not self.taken and result is not False
        self.taken |= result is True
        self.begun = True

    def next_arm(self, *, begun: bool) -> None:
        """``elif`` and ``else``: the arm runs unless an earlier one does."""
        self.live = not self.taken
        self.tests, self.begun = [], begun


@dataclass(kw_only=True)
class Case:
    """A ``case`` that is being read.

    Attributes
    ----------
    subject : str or None
        What is compared with the patterns; None: not known, so that every arm may run.
    never : bool
        No arm counts: options of the script itself, read in a loop.
    taken : bool
        An earlier arm runs for sure.
    live : bool
        Statements of this arm count.
    inside : bool
        Behind a pattern, not before one.
    """

    subject: str | None
    never: bool = False
    taken: bool = False
    live: bool = True
    inside: bool = False
    patterns: list[str] = field(default_factory=list)

    def begin_arm(self) -> None:
        """``)``: the arm runs where one of its patterns fits and no earlier arm did."""
        fits = self.subject is None or any(fnmatchcase(self.subject, pattern) for pattern in self.patterns)
        self.live = fits and not self.taken and not self.never
        self.taken |= fits and self.subject is not None
        self.inside, self.patterns = True, []

    def end_arm(self) -> None:
        """``;;``."""
        self.live, self.inside = True, False
