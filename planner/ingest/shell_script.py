"""A user's shell script read as data: variables, arrays and the command that starts the training.

Nothing is run. Variables get the values that the script itself assigns; what only a running shell could know (output of
a command, the script's parameters, the environment) stays unresolved and is named.

References
----------
POSIX.1-2017, Shell Command Language: quoting, parameter expansion, field splitting. Arrays and ``+=`` as in bash.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError

MOST_SCRIPT_BYTES: Final = 1 << 20
MOST_VALUE: Final = 200_000
"""Characters that a variable may grow to; doubling assignments would fill the memory otherwise."""
MOST_STATEMENTS: Final = 10_000
MOST_OPERAND: Final = 40
"""Characters of a variable that arithmetic looks at."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DEFAULTED: Final = re.compile(r"([A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?([-=?+])(.*))?", re.DOTALL)
_KEYWORDS: Final = ("if", "then", "else", "elif", "fi", "do", "done", "while", "for", "{", "}", "!", "time", "exec")
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")
_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
)
Pieces = tuple[tuple[str, str], ...]
"""Parts of one word: ``plain`` ones are expanded and split, ``double`` ones expanded, ``single`` ones kept."""


@dataclass(frozen=True, kw_only=True)
class ShellCommand:
    """One command of a script with its words expanded, and the environment that the script has set until then."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ShellScript:
    """A script as read.

    Attributes
    ----------
    commands : tuple of ShellCommand
        In order; control flow is not followed: every branch counts, the last assignment wins.
    variables : mapping of str to str
        Values at the end; arrays joined by blanks.
    unresolved : tuple of str
        Variables and commands whose values the script does not hold.
    directives : tuple of str
        Words of ``#SBATCH`` lines.
    """

    commands: tuple[ShellCommand, ...]
    variables: Mapping[str, str]
    unresolved: tuple[str, ...]
    directives: tuple[str, ...]


@dataclass(kw_only=True)
class _State:
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unresolved: list[str] = field(default_factory=list)


def read_script(text: str, where: str = "script") -> ShellScript:
    """Read a script.

    Parameters
    ----------
    text : str
        The script.
    where : str
        File that errors name.

    Raises
    ------
    InputError
        A quote or bracket is not closed, or the text or a value is too long.
    """
    if len(text) > MOST_SCRIPT_BYTES:
        raise InputError(f"{len(text)} characters", allowed=f"up to {MOST_SCRIPT_BYTES}", where=where)
    state, commands = _State(), []
    try:
        for number, words in enumerate(statements(text, where)):
            if number >= MOST_STATEMENTS:
                raise InputError("too many statements", allowed=f"up to {MOST_STATEMENTS}", where=where)
            found = _run(words, state, where)
            if found is not None:
                commands.append(found)
    except RecursionError:
        raise InputError("quotes and brackets are nested too deeply", allowed="a shell script", where=where) from None
    directives = [word for line in text.splitlines() if line.startswith("#SBATCH") for word in line.split()[1:]]
    return ShellScript(
        commands=tuple(commands),
        variables=MappingProxyType({name: " ".join(values) for name, values in state.values.items()}),
        unresolved=tuple(dict.fromkeys(state.unresolved)),
        directives=tuple(directives),
    )


def _run(words: list[Pieces], state: _State, where: str) -> ShellCommand | None:
    """Take a statement's assignments over; return its command, if it has one."""
    index = 0
    while index < len(words) and _literal(words[index]) in _KEYWORDS:
        index += 1
    declared = index < len(words) and _literal(words[index]) in _DECLARING
    index += declared
    own: dict[str, str] = {}
    while index < len(words):
        kind, text = words[index][0] if words[index] else ("plain", "")
        name = _ASSIGNED.match(text) if kind == "plain" else None
        if name is None and not declared:
            break
        if name is None:
            state.exported.add(text)
        else:
            _assign(name, words[index], state, where)
            state.exported |= {name[1]} if declared else set()
            own[name[1]] = " ".join(state.values[name[1]])
        index += 1
    if index >= len(words):
        return None
    expanded = tuple(word for pieces in words[index:] for word in _expand(pieces, state, where))
    exported = {name: " ".join(state.values[name]) for name in state.exported if name in state.values}
    return ShellCommand(words=expanded, environment=MappingProxyType({**exported, **own})) if expanded else None


def _literal(pieces: Pieces) -> str:
    return pieces[0][1] if len(pieces) == 1 and pieces[0][0] == "plain" else ""


def _assign(name: re.Match[str], pieces: Pieces, state: _State, where: str) -> None:
    rest = (pieces[0][0], pieces[0][1][name.end() :])
    if rest[1] == "" and len(pieces) == 2 and pieces[1][0] == "array":
        inner = statements(pieces[1][1], where)
        values = tuple(word for words in inner for part in words for word in _expand(part, state, where))
    else:
        quoted = tuple(("double" if kind == "plain" else kind, text) for kind, text in (rest, *pieces[1:]))
        values = (" ".join(_expand(quoted, state, where)),)
    old = state.values.get(name[1], ()) if name[2] else ()
    array = len(pieces) == 2 and pieces[1][0] == "array"
    state.values[name[1]] = (*old, *values) if array or not old else ((" ".join(old) + values[0]),)
    if sum(map(len, state.values[name[1]])) > MOST_VALUE:
        raise InputError(f"variable {name[1]} grows beyond {MOST_VALUE} characters", where=where)


def statements(text: str, where: str = "script") -> Iterator[list[Pieces]]:
    """Yield the statements of a script as words; separators are line ends, ``;``, ``&`` and ``|`` outside quotes."""
    words: list[Pieces] = []
    pieces: list[tuple[str, str]] = []
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and text[index + 1 : index + 2] == "\n":
            index += 2
        elif char in " \t\r\n;&|":
            words += [tuple(pieces)] if pieces else []
            pieces = []
            if char in "\n;&|" and words:
                yield words
                words = []
            index += 1
        elif char == "#" and not pieces:
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        else:
            kind, part, index = _piece(text, index, where)
            pieces.append((kind, part)) if not _joins(pieces, kind) else pieces.append((kind, pieces.pop()[1] + part))
    words += [tuple(pieces)] if pieces else []
    if words:
        yield words


def _joins(pieces: list[tuple[str, str]], kind: str) -> bool:
    return bool(pieces) and pieces[-1][0] == kind == "plain"


def _piece(text: str, index: int, where: str) -> tuple[str, str, int]:
    """One part of a word from ``index``: its kind, its text, and where it ends."""
    char = text[index]
    if char == "'":
        end = text.find("'", index + 1)
        if end < 0:
            raise InputError("a single quote is not closed", allowed="a shell script", where=where)
        return "single", text[index + 1 : end], end + 1
    if char == '"':
        end = _closing_quote(text, index + 1, where)
        return "double", text[index + 1 : end], end + 1
    if char == "\\":
        return "single", text[index + 1 : index + 2], index + 2
    if char == "`" or text.startswith(("$(", "${"), index):
        end = text.find("`", index + 1) if char == "`" else _closing_bracket(text, index + 1, where)
        if end < 0:
            raise InputError("a backquote is not closed", allowed="a shell script", where=where)
        return "plain", text[index : end + 1], end + 1
    if char == "(":
        end = _closing_bracket(text, index, where)
        return "array", text[index + 1 : end], end + 1
    end = index + 1
    while end < len(text) and text[end] not in " \t\r\n;&|'\"\\`($":
        end += 1
    return "plain", text[index:end], end


def _closing_quote(text: str, index: int, where: str) -> int:
    while index < len(text) and text[index] != '"':
        if text.startswith(("$(", "${"), index):
            index = _closing_bracket(text, index + 1, where) + 1
        else:
            index += 2 if text[index] == "\\" else 1
    if index >= len(text):
        raise InputError("a double quote is not closed", allowed="a shell script", where=where)
    return index


def _closing_bracket(text: str, index: int, where: str) -> int:
    """Index of the bracket that closes the one at ``index``; quotes and comments inside are passed over."""
    opened, closed = text[index], {"(": ")", "{": "}"}[text[index]]
    depth = 0
    while index < len(text):
        char = text[index]
        if char == "'" and opened == "(":
            index = text.find("'", index + 1)
            if index < 0:
                break
        elif char == '"':
            index = _closing_quote(text, index + 1, where)
        elif char == "#" and text[index - 1 : index] in ("\n", " ", "\t"):
            index = text.find("\n", index) % (len(text) + 1)
            continue
        depth += (char == opened) - (char == closed)
        if depth == 0:
            return index
        index += 1
    raise InputError(f"a bracket {opened} is not closed", allowed="a shell script", where=where)


def _expand(pieces: Pieces, state: _State, where: str) -> list[str]:
    """Words that one word becomes."""
    fields: list[str] = [""]
    quoted = False
    for kind, text in pieces:
        if kind in ("single", "array"):
            fields[-1] += text if kind == "single" else f"({text})"
            quoted = True
            continue
        quoted |= kind == "double"
        parts = _substituted(text, state, kind == "double")
        for number, part in enumerate(parts):
            if number:
                fields.append("")
            fields[-1] += part
        if sum(map(len, fields)) > MOST_VALUE:
            raise InputError(f"a word grows beyond {MOST_VALUE} characters", where=where)
    return fields if quoted or fields != [""] else []


def _substituted(text: str, state: _State, quoted: bool) -> list[str]:
    """Text with variables put in; unquoted values and whole arrays are split into several words."""
    fields, index, grown = [""], 0, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and quoted and text[index + 1 : index + 2] in ('"', "$", "\\", "`", "\n"):
            fields[-1] += text[index + 1] if text[index + 1] != "\n" else ""
            index += 2
        elif char in "$`":
            values, index = _value(text, index, state)
            split = values if quoted else tuple(word for value in values for word in value.split())
            for number, value in enumerate(split):
                if number:
                    fields.append("")
                fields[-1] += value
            grown += sum(map(len, values))
            if grown > MOST_VALUE:
                raise InputError(
                    f"a word grows beyond {MOST_VALUE} characters", allowed="shorter values", where="script"
                )
        else:
            fields[-1] += char
            index += 1
    return fields


def _value(text: str, index: int, state: _State) -> tuple[tuple[str, ...], int]:
    """Values of the expansion at ``index``, and where it ends; one that is not known stays as written."""
    if text.startswith("$((", index):
        end = _closing_bracket(text, index + 1, "arithmetic") + 1
        return (_arithmetic(text[index + 3 : end - 2], state),), end
    if text.startswith(("$(", "`"), index):
        end = text.find("`", index + 1) if text[index] == "`" else _closing_bracket(text, index + 1, "command")
        end = len(text) if end < 0 else end + 1
        state.unresolved.append(text[index:end])
        return (text[index:end],), end
    if text.startswith("${", index):
        end = _closing_bracket(text, index + 1, "expansion") + 1
        return _parameter(text[index + 2 : end - 1], state), end
    name = _NAME.match(text, index + 1)
    if name is None:
        end = index + 2 if text[index + 1 : index + 2] in "@*#?0123456789" else index + 1
        if end > index + 1:
            state.unresolved.append(text[index:end])
        return (text[index:end],), end
    return _parameter(name[0], state), name.end()


def _parameter(body: str, state: _State) -> tuple[str, ...]:
    found = _DEFAULTED.fullmatch(body)
    name = found[1] if found else body
    if name in state.values:
        values = state.values[name]
        return values if "[@]" in body or "[*]" in body else (" ".join(values[:1]) if len(values) > 1 else values[0],)
    if found and found[2] in ("-", "="):
        return (" ".join(_substituted(found[3].strip("'\""), state, True)),)
    if found and found[2] == "+":
        return ("",)
    state.unresolved.append(f"${name}")
    return (f"${name}",)


def _arithmetic(body: str, state: _State) -> str:
    """Value of ``$((...))`` over whole numbers; as written when a part of it is not known."""
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", body)

    def operand(name: re.Match[str]) -> str:
        value = " ".join(state.values.get(name[0], ()))
        return value if 0 < len(value) <= MOST_OPERAND else name[0]

    filled = _NAME.sub(operand, plain)
    try:
        return str(_whole(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested beyond Python's own parser
        state.unresolved.append(f"$(({body}))")
        return f"$(({body}))"


def _whole(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and right:
            return left % right if isinstance(node.op, ast.Mod) else left // right
    raise ValueError("not whole numbers joined by + - * / %")
