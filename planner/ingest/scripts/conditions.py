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
_COMPARED: Final[Mapping[type, Callable[[int, int], bool]]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
)
_ALIKE: Final = ("=", "==", "!=")
"""Comparisons whose right side is a pattern inside ``[[ ]]``."""
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
_ALWAYS: Final[Mapping[str, bool]] = MappingProxyType({"true": True, ":": True, "false": False})
_LARGEST: Final = 10**12


def whole_number(text: str) -> int | None:
    """Value of an expression over whole numbers; None when it is none, or not understood."""
    if "#" in text:  # 16#ff, which Python takes for a comment
        return None
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
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # as in C, to zero
            return left - quotient * right if isinstance(node.op, ast.Mod) else quotient
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_whole(node.left), _whole(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values = [_whole(value) for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand)
    raise ValueError("not whole numbers joined by + - * / %")


def condition(words: list[str]) -> bool | None:
    """Whether a test holds.

    Parameters
    ----------
    words : list of str
        The command behind ``if``, with its variables put in; inside ``[[ ]]`` quoted parts of patterns are escaped.

    Returns
    -------
    bool or None
        None for anything but comparisons of texts or of whole numbers, or of a text with nothing, joined by ``&&``,
        ``||``, ``-a`` and ``-o`` and turned by ``!``; and for files.
    """
    if len(words) == 1 and words[0] in _ALWAYS:
        return _ALWAYS[words[0]]
    if words[:1] == ["test"]:
        return _joined(words[1:], patterns=False)
    if len(words) < 3 or (words[0], words[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    return _joined(words[1:-1], patterns=words[0] == "[[")


def both(one: bool | None, other: bool | None) -> bool | None:
    """Whether two tests hold; None: not known."""
    return False if one is False or other is False else None if one is None or other is None else True


def either(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of two tests holds; None: not known."""
    return True if one is True or other is True else None if one is None or other is None else False


def opposite(one: bool | None) -> bool | None:
    """Whether a test does not hold; None: not known."""
    return None if one is None else not one


def _joined(inner: Sequence[str], *, patterns: bool) -> bool | None:
    """Tests joined by words, of which those for *or* bind less."""
    for joints, join in ((("||",) if patterns else ("-o",), either), (("&&",) if patterns else ("-a",), both)):
        places = [place for place, word in enumerate(inner[:-1]) if word in joints and place]
        if places:
            left, right = inner[: places[0]], inner[places[0] + 1 :]
            return join(_joined(left, patterns=patterns), _joined(right, patterns=patterns))
    if len(inner) > 1 and inner[0] == "!":
        return opposite(_joined(inner[1:], patterns=patterns))
    return _single(inner, patterns=patterns)


def _single(inner: Sequence[str], *, patterns: bool) -> bool | None:
    if len(inner) == 1:
        return inner[0] != ""
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        return (inner[1] == "") == (inner[0] == "-z")
    if len(inner) != 3:
        return None
    left, compared, right = inner
    if compared in _TEXTS:
        fits = fnmatchcase(left, right) if patterns and compared in _ALIKE else _TEXTS[compared](left, right)
        return not fits if patterns and compared == "!=" else fits
    numbers = (whole_number(left), whole_number(right))
    if compared not in _NUMBERS or numbers[0] is None or numbers[1] is None:
        return None
    return _NUMBERS[compared](numbers[0], numbers[1])


@dataclass(kw_only=True)
class Branch:
    """An ``if`` that is being read.

    Attributes
    ----------
    test : bool or None
        Of the arm that is being read; None: not known, or that of a pipe.
    tests : int
        Commands that it is made of.
    taken : bool
        An earlier arm runs for sure.
    live : bool
        Statements of this arm count: it runs, or nobody knows.
    begun : bool
        Behind ``then`` or ``else``, not inside a test.
    before : dict
        Variables in front of it.
    changed : dict
        What its arms so far set variables to; None: not known.
    """

    before: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    test: bool | None = None
    tests: int = 0
    taken: bool = False
    live: bool = True
    begun: bool = False

    def add(self, joint: str, result: bool | None) -> None:
        """Add a command to the test of this arm; ``joint`` is what stands before it."""
        join = {"&&": both, "||": either}.get(joint)
        self.test = result if not self.tests else join(self.test, result) if join else None
        self.tests += 1

    def begin_arm(self) -> None:
        """``then``: the arm runs unless its test fails."""
        self.live = not self.taken and self.test is not False
        self.taken |= self.test is True
        self.begun = True

    def next_arm(self, *, begun: bool) -> None:
        """``elif`` and ``else``: the arm runs unless an earlier one does."""
        self.live = not self.taken
        self.test, self.tests, self.begun = None, 0, begun


@dataclass(frozen=True, kw_only=True)
class Group:
    """Statements in ``{ }``; they run, or may run, where ``live``.

    ``joint``: what stands before it, where it is a test behind ``if``; None: it is none.
    """

    live: bool
    joint: str | None = None


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
    before, changed : dict
        As of :class:`Branch`.
    """

    subject: str | None
    before: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
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
