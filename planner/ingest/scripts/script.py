"""A user's shell script read as data: variables, arrays and the command that starts the training.

Nothing is run. Variables get the values that the script itself assigns; what only a running shell could know (output of
a command, the script's parameters, the environment) stays unresolved and is named. The text is parted by
:mod:`planner.ingest.scripts.words`, which statements run is followed by :mod:`planner.ingest.scripts.flow`, and what
words come to is found by :mod:`planner.ingest.scripts.values`; here are commands, assignments, functions and
redirections.

References
----------
POSIX.1-2017, Shell Command Language: simple commands, redirection, functions. Arrays and ``+=`` as in bash.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.options import whole
from planner.ingest.scripts.flow import Flow, begin_loop, begun_case, behind_pattern, follow, passed_over, turn
from planner.ingest.scripts.functions import Functions, Statement
from planner.ingest.scripts.values import ASSIGNED, MOST_VALUE, calculate, expand, substituted
from planner.ingest.scripts.words import ASSIGNMENT, JOINTS, Pieces, is_arithmetic, literal, statements

MOST_SCRIPT_BYTES: Final = 1 << 20
MOST_STATEMENTS: Final = 10_000
MOST_CALLS: Final = 20
"""Functions that call one another."""
_REDIRECTION: Final = re.compile(r"(?:\d*|&)(<<<|>>|[<>])[|&]?")
_PLACEHOLDER: Final = re.compile(r"<[^<>]+>")
_DOCUMENT: Final = ("document", "verbatim")
_KEYWORDS: Final = ("if", "then", "else", "elif", "fi", "do", "done", "while", "for", "{", "}", "!", "time", "exec")
_NAMING: Final = ("unset", "read", "printf", "mapfile", "readarray", "let")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")


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

    @property
    def program(self) -> str:
        """Name of what it runs, without its folder."""
        return self.words[0].rpartition("/")[2]


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
        Tests behind ``if`` and ``case`` that depend on what the script does not hold.
    skipped : tuple of str
        Subjects of ``case`` in a loop over what the script is given: none of its arms is read.
    """

    commands: tuple[ShellCommand, ...]
    variables: Mapping[str, str]
    directives: tuple[str, ...]
    undecided: tuple[str, ...]
    skipped: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _State(Flow):
    exported: set[str] = field(default_factory=set)
    functions: Functions = field(default_factory=Functions)
    frames: list[dict[str, tuple[str, ...] | None]] = field(default_factory=list)  # what local names hide
    read: int = 0


def read_script(
    text: str,
    where: str = "script",
    known: Mapping[str, str] = MappingProxyType({}),
    arguments: Sequence[str] | None = None,
) -> ShellScript:
    """Read a script.

    Parameters
    ----------
    text : str
        The script.
    where : str
        File that errors name.
    known : mapping of str to str
        Variables that are set when it starts.
    arguments : sequence of str, optional
        What it is given; None: not known.

    Raises
    ------
    InputError
        A quote, bracket or function is not closed, or the text or a value is too long.
    """
    if len(text) > MOST_SCRIPT_BYTES:
        raise InputError(f"{len(text)} characters", allowed=f"up to {MOST_SCRIPT_BYTES}", where=where)
    state = _State(
        values={name: (value,) for name, value in known.items()},
        arguments=None if arguments is None else tuple(arguments),
    )
    try:
        commands = _read(statements(text, where), state, where)
    except RecursionError:
        raise InputError("quotes and brackets are nested too deeply", allowed="a shell script", where=where) from None
    except InputError as error:  # of a part of it, which does not know its file
        raise InputError(error.what, allowed=error.allowed or "a shell script", where=where) from None
    state.functions.refuse_open(where)
    if opened := state.opened():
        raise InputError(f"{opened} is not closed", allowed="a shell script", where=where)
    directives = [word for line in text.splitlines() if line.startswith("#SBATCH") for word in line.split()[1:]]
    return ShellScript(
        commands=tuple(commands),
        variables=MappingProxyType({name: " ".join(values) for name, values in state.values.items()}),
        directives=tuple(directives),
        undecided=tuple(dict.fromkeys(state.undecided)),
        skipped=tuple(dict.fromkeys(state.skipped)),
    )


def _read(stream: Iterable[Statement], state: _State, where: str) -> list[ShellCommand]:
    """Commands of some statements; a call of a function becomes the commands of its body."""
    commands: list[ShellCommand] = []
    for words in stream:
        state.read += 1
        if state.read > MOST_STATEMENTS:
            raise InputError("too many statements", allowed=f"up to {MOST_STATEMENTS}", where=where)
        if state.functions.takes(words, live=state.counts()):
            continue
        if len(words) == 1 and literal(words[0]) in JOINTS:
            state.joint = literal(words[0])
            continue
        sure = state.sure()
        found = _run(words, state, where)
        state.joint = ""
        if found is None:
            continue
        name, *given = found.words
        if name in state.functions.bodies:
            commands += _call(found, state, where)
            state.status, state.asked = None, ""
        elif name == "shift" and state.arguments is not None:
            state.arguments = _shifted(state.arguments, given)
        elif name in _NAMING:
            _rename(found, state)
        elif name == "exit" and sure and not state.frames:
            break
        else:
            commands.append(found)
    return commands


def _rename(command: ShellCommand, state: _State) -> None:
    """Take over what a command does to variables by their names; values that it brings from outside are not known."""
    kind, *given = command.words
    if kind == "let":
        for expression in given:
            calculate(expression, state)
        return
    names = [word for word in given if _NAME.fullmatch(word)]
    if kind == "printf":
        names = given[1:2] if given[:1] == ["-v"] else []
    for name in names:
        state.values.pop(name, None)
    if kind == "read" and command.document and len(names) == 1:
        state.values[names[0]] = (command.document.strip(),)


def _shifted(arguments: tuple[str, ...], given: Sequence[str]) -> tuple[str, ...]:
    """Arguments after ``shift``: one fewer, or as many as it says; more than there are takes none, as in bash."""
    count = (whole(given[0]) if given[0].isdecimal() else 1) if given else 1
    return arguments if count is None or count > len(arguments) else arguments[count:]


def _call(call: ShellCommand, state: _State, where: str) -> list[ShellCommand]:
    """Commands of a function that is called with some arguments; names that are local to it end with it."""
    if len(state.frames) >= MOST_CALLS:
        return []
    name, *given = call.words
    outer, state.arguments = state.arguments, tuple(given)
    own = {name: (value,) for name, value in call.environment.items() if name not in state.exported}
    state.frames.append({name: state.values.get(name) for name in own})
    state.values |= own
    depth = len(state.branches)
    commands = _read(state.functions.bodies[name], state, where)
    del state.branches[depth:]
    for hidden, values in state.frames.pop().items():
        if values is None:
            state.values.pop(hidden, None)
        else:
            state.values[hidden] = values
    state.arguments = outer
    return commands


def _run(words: list[Pieces], state: _State, where: str) -> ShellCommand | None:
    """Take a statement's assignments over; return its command, if it has one."""
    words = behind_pattern(words, state, where)
    if passed_over(words, state):
        return None
    index = 0
    while index < len(words) and literal(words[index]) in _KEYWORDS:
        turn(literal(words[index]), state)
        index += 1
    looped = index > 0 and literal(words[index - 1]) == "for"
    if not looped and literal(words[index] if index < len(words) else ()) == "case" and len(words) > index + 2:
        state.branches.append(begun_case(words[index + 1], state, where))
        return _run(words[index + 3 :], state, where) if len(words) > index + 3 else None
    if not words or not state.counts():
        return None
    asked = state.asked if state.joint else ""
    follow(words[:index], words[index:], state, where)
    if looped:
        begin_loop(words[index:], state, where)
        return None
    before = dict(state.values)
    first, (index, own) = index, _assignments(words, index, state, where)
    state.undecided += [asked] if own and asked else []
    if index >= len(words) or is_arithmetic(words[index]):
        return None
    if literal(words[first]) not in _DECLARING:
        state.values = before  # what stands before a command is for that command, and not for its own words
    exported = {name: " ".join(state.values[name]) for name in state.exported if name in state.values}
    return _command(words[index:], state, where, MappingProxyType({**exported, **own}))


def _assignments(words: Statement, index: int, state: _State, where: str) -> tuple[int, dict[str, str]]:
    """Take the assignments from ``index`` on over; where the command behind them begins, and what they assign."""
    declared = literal(words[index]) if index < len(words) and literal(words[index]) in _DECLARING else ""
    index += bool(declared)
    own: dict[str, str] = {}
    while index < len(words):
        kind, text = words[index][0] if words[index] else ("plain", "")
        name = ASSIGNMENT.match(text) if kind == "plain" else None
        if name is None and not declared:
            break
        if declared == "local" and state.frames:
            hidden = name[1] if name else text
            state.frames[-1].setdefault(hidden, state.values.get(hidden))
        if name is None:
            state.exported.add(text)
        else:
            _assign(name, words[index], state, where)
            state.exported |= {name[1]} if declared else set()
            own[name[1]] = " ".join(state.values[name[1]])
        index += 1
    return index, own


def _command(words: list[Pieces], state: _State, where: str, environment: Mapping[str, str]) -> ShellCommand | None:
    """A command with its words expanded; redirections are taken off, unless the word is a placeholder ``<...>``."""
    expanded: list[str] = []
    writes: list[str] = []
    document, target = "", None
    for pieces in words:
        kind, text = pieces[0]
        found = _REDIRECTION.match(text) if kind == "plain" and not _PLACEHOLDER.fullmatch(text) else None
        if kind in _DOCUMENT:
            document = "".join(substituted(text, state, "double")) if kind == "document" else text
        elif target is not None or found is not None:
            rest = pieces if found is None else ((kind, text[found.end() :]), *pieces[1:])
            named = "".join(expand(rest, state, where))
            operator = target if found is None else found[1]
            target = operator if not named else None
            writes += [named] if operator in (">", ">>") and named.strip("-0123456789") else []
        else:
            expanded += expand(pieces, state, where)
    if not expanded:
        return None
    return ShellCommand(
        words=tuple(expanded),
        environment=environment,
        document=document,
        writes=tuple(writes),
        unresolved=tuple(state.unresolved),
    )


def _assign(name: re.Match[str], pieces: Pieces, state: _State, where: str) -> None:
    rest = (pieces[0][0], pieces[0][1][name.end() :])
    if rest[1] == "" and len(pieces) == 2 and pieces[1][0] == "array":
        inner = statements(pieces[1][1], where)
        values = tuple(word for words in inner for part in words for word in expand(part, state, where))
    else:
        quoted = tuple((ASSIGNED if kind == "plain" else kind, text) for kind, text in (rest, *pieces[1:]))
        values = (" ".join(expand(quoted, state, where)),)
    old = state.values.get(name[1], ()) if name[2] else ()
    array = len(pieces) == 2 and pieces[1][0] == "array"
    state.values[name[1]] = (*old, *values) if array or not old else ((" ".join(old) + values[0]),)
    if sum(map(len, state.values[name[1]])) > MOST_VALUE:
        raise InputError(f"variable {name[1]} grows beyond {MOST_VALUE} characters", where=where)
