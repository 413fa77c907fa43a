"""A user's shell script read as data: variables, arrays and the command that starts the training.

Nothing is run. Variables get the values that the script itself assigns; what only a running shell could know (output of
a command, the script's parameters, the environment) stays unresolved and is named.

References
----------
POSIX.1-2017, Shell Command Language: quoting, parameter expansion, field splitting. Arrays and ``+=`` as in bash.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.shell_conditions import Branch, condition, whole_number

MOST_SCRIPT_BYTES: Final = 1 << 20
MOST_VALUE: Final = 200_000
"""Characters that a variable may grow to; doubling assignments would fill the memory otherwise."""
MOST_STATEMENTS: Final = 10_000
BLANK: Final = "\u2420"
"""Stands for a blank inside a text whose value is not known, which stays one word."""
MOST_OPERAND: Final = 40
"""Characters of a variable that arithmetic looks at."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DEFAULTED: Final = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?::?([-=?+])(.*))?", re.DOTALL)
_REDIRECTION: Final = re.compile(r"\d*(<<<|>>|[<>])\|?")
_PLACEHOLDER: Final = re.compile(r"<[^<>]+>")
_HERE: Final = re.compile(r"<<(-?)[ \t]*(?:'(\w+)'|\"(\w+)\"|\\?(\w+))")
_DOCUMENT: Final = ("document", "verbatim")
_KEYWORDS: Final = ("if", "then", "else", "elif", "fi", "do", "done", "while", "for", "{", "}", "!", "time", "exec")
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")
Pieces = tuple[tuple[str, str], ...]
"""Parts of one word: ``plain`` ones are expanded and split, ``double`` ones expanded, ``single`` ones kept.

A word of one ``document`` (expanded) or ``verbatim`` part is the text behind ``<<``.
"""


@dataclass(frozen=True, kw_only=True)
class ShellCommand:
    """One command of a script with its words expanded, and the environment that the script has set until then.

    Attributes
    ----------
    words : tuple of str
        Without redirections.
    environment : mapping of str to str
        What the script has exported, and the command's own assignments.
    document : str
        The text behind ``<<``.
    writes : tuple of str
        Files that its output goes to.
    unresolved : tuple of str
        Variables and commands whose values the script does not hold, as far as it has been read.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    document: str = ""
    writes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShellScript:
    """A script as read.

    Attributes
    ----------
    commands : tuple of ShellCommand
        In order. Of an ``if`` the branch that runs counts, where its tests compare what the script holds; else every
        branch does, and the last assignment wins. Loops are read once.
    variables : mapping of str to str
        Values at the end; arrays joined by blanks.
    directives : tuple of str
        Words of ``#SBATCH`` lines.
    undecided : tuple of str
        Tests behind ``if`` that depend on what the script does not hold.
    """

    commands: tuple[ShellCommand, ...]
    variables: Mapping[str, str]
    directives: tuple[str, ...]
    undecided: tuple[str, ...]


@dataclass(kw_only=True)
class _State:
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unresolved: list[str] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)

    def counts(self) -> bool:
        """Whether a statement here runs, or may run."""
        return all(branch.live for branch in self.branches)


def read_script(text: str, where: str = "script", known: Mapping[str, str] = MappingProxyType({})) -> ShellScript:
    """Read a script.

    Parameters
    ----------
    text : str
        The script.
    where : str
        File that errors name.
    known : mapping of str to str
        Variables that are set when it starts.

    Raises
    ------
    InputError
        A quote or bracket is not closed, or the text or a value is too long.
    """
    if len(text) > MOST_SCRIPT_BYTES:
        raise InputError(f"{len(text)} characters", allowed=f"up to {MOST_SCRIPT_BYTES}", where=where)
    state, commands = _State(values={name: (value,) for name, value in known.items()}), []
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
        directives=tuple(directives),
        undecided=tuple(dict.fromkeys(state.undecided)),
    )


def _run(words: list[Pieces], state: _State, where: str) -> ShellCommand | None:
    """Take a statement's assignments over; return its command, if it has one."""
    index = 0
    while index < len(words) and _literal(words[index]) in _KEYWORDS:
        _turn(_literal(words[index]), state)
        index += 1
    if not state.counts():
        return None
    if state.branches and not state.branches[-1].begun:
        state.branches[-1].tests.append(_test(words[:index], words[index:], state, where))
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
    exported = {name: " ".join(state.values[name]) for name in state.exported if name in state.values}
    return _command(words[index:], state, where, MappingProxyType({**exported, **own}))


def _turn(keyword: str, state: _State) -> None:
    """Follow an ``if`` to its next part."""
    if keyword == "if":
        state.branches.append(Branch(tests=[]))
    elif not state.branches:
        return
    elif keyword == "then":
        state.branches[-1].begin_arm()
    elif keyword in ("elif", "else"):
        state.branches[-1].next_arm(begun=keyword == "else")
    elif keyword == "fi":
        state.branches.pop()


def _test(keywords: list[Pieces], words: list[Pieces], state: _State, where: str) -> bool | None:
    """What a test behind ``if`` comes to; None when a value in it is not known."""
    if any(_literal(keyword) == "!" for keyword in keywords):
        return None
    before = len(state.unresolved)
    expanded = [word for pieces in words for word in _expand(pieces, state, where)]
    unknown = any(name in word for name in set(state.unresolved) for word in expanded)
    del state.unresolved[before:]
    if unknown:
        state.undecided.append(" ".join(expanded).replace(BLANK, " "))
    return None if unknown else condition(expanded)


def _command(words: list[Pieces], state: _State, where: str, environment: Mapping[str, str]) -> ShellCommand | None:
    """A command with its words expanded; redirections are taken off, unless the word is a placeholder ``<...>``."""
    expanded: list[str] = []
    writes: list[str] = []
    document, target = "", None
    for pieces in words:
        kind, text = pieces[0]
        found = _REDIRECTION.match(text) if kind == "plain" and not _PLACEHOLDER.fullmatch(text) else None
        if kind in _DOCUMENT:
            document = "".join(_substituted(text, state, True)) if kind == "document" else text
        elif target is not None or found is not None:
            rest = pieces if found is None else ((kind, text[found.end() :]), *pieces[1:])
            named = "".join(_expand(rest, state, where))
            operator = target if found is None else found[1]
            target = operator if not named else None
            writes += [named] if named and operator in (">", ">>") else []
        else:
            expanded += _expand(pieces, state, where)
    if not expanded:
        return None
    return ShellCommand(
        words=tuple(expanded),
        environment=environment,
        document=document,
        writes=tuple(writes),
        unresolved=tuple(dict.fromkeys(state.unresolved)),
    )


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
        elif not pieces and text.startswith("<<", index) and (here := _HERE.match(text, index)):
            words.append(((_here_kind(here), _here_text(text, here)),))
            text, index = _without_here_text(text, here), here.end()
        elif char == "#" and not pieces:
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        else:
            kind, part, index = _piece(text, index, where)
            pieces.append((kind, part)) if not _joins(pieces, kind) else pieces.append((kind, pieces.pop()[1] + part))
    words += [tuple(pieces)] if pieces else []
    if words:
        yield words


def _here_kind(here: re.Match[str]) -> str:
    return "document" if here[4] and not here[0].endswith("\\" + here[4]) else "verbatim"


def _here_span(text: str, here: re.Match[str]) -> tuple[int, int, int]:
    """Where the text behind ``<<WORD`` begins, ends, and where the line after its ``WORD`` begins."""
    start = text.find("\n", here.end()) % (len(text) + 1) + 1
    tabs = r"\t*" if here[1] else ""
    closing = re.compile(rf"^{tabs}{here[2] or here[3] or here[4]}[ \t]*$", re.MULTILINE).search(text, start)
    if closing is None:
        return start, len(text), len(text)
    return start, closing.start(), min(len(text), closing.end() + 1)


def _here_text(text: str, here: re.Match[str]) -> str:
    start, end, _ = _here_span(text, here)
    return text[start:end]


def _without_here_text(text: str, here: re.Match[str]) -> str:
    start, _, rest = _here_span(text, here)
    return text[:start] + text[rest:]


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
        elif text[index] == "`" and "`" in text[index + 1 :]:
            index = text.index("`", index + 1) + 1
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
        return (_not_known(text[index:end], state),), end
    if text.startswith("${", index):
        end = _closing_bracket(text, index + 1, "expansion") + 1
        return _parameter(text[index + 2 : end - 1], state), end
    name = _NAME.match(text, index + 1)
    if name is None:
        special = text[index + 1 : index + 2] in tuple("@*#?0123456789")
        return (_not_known(text[index : index + 2], state) if special else "$",), index + 1 + special
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
    return (_not_known(f"${{{name}}}" if name.isdigit() and len(name) > 1 else f"${name}", state),)


def _arithmetic(body: str, state: _State) -> str:
    """Value of ``$((...))`` over whole numbers; as written when a part of it is not known."""
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", body)

    def operand(name: re.Match[str]) -> str:
        value = " ".join(state.values.get(name[0], ()))
        return value if 0 < len(value) <= MOST_OPERAND else name[0]

    found = whole_number(_NAME.sub(operand, plain))
    return _not_known(f"$(({body}))", state) if found is None else str(found)


def _not_known(text: str, state: _State) -> str:
    """Text of which the script does not hold the value, as one word; it is named."""
    word = re.sub(r"\s", BLANK, text)
    state.unresolved.append(word)
    return word
