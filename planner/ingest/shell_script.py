"""A user's shell script read as data: variables, arrays and the command that starts the training.

Nothing is run. Variables get the values that the script itself assigns; what only a running shell could know (output of
a command, the script's parameters, the environment) stays unresolved and is named.

References
----------
POSIX.1-2017, Shell Command Language: quoting, parameter expansion, field splitting. Arrays and ``+=`` as in bash.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.options import whole
from planner.ingest.shell_conditions import Branch, Case, condition, whole_number
from planner.ingest.shell_functions import Functions, Statement
from planner.ingest.shell_words import ARM_END, Pieces, closing_bracket, echoed_variable, literal, statements

MOST_SCRIPT_BYTES: Final = 1 << 20
MOST_VALUE: Final = 200_000
"""Characters that a variable may grow to; doubling assignments would fill the memory otherwise."""
MOST_STATEMENTS: Final = 10_000
BLANK: Final = "\u2420"
"""Stands for a blank inside a text whose value is not known, which stays one word."""
MOST_CALLS: Final = 20
"""Functions that call one another."""
MOST_OPERAND: Final = 40
"""Characters of a variable that arithmetic looks at."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DEFAULTED: Final = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?:(:?)([-=?+])(.*))?", re.DOTALL)
_ALL_ARGUMENTS: Final = re.compile(r"([@*])(?::\s*(\d{1,9})(?::\s*(\d{1,9}))?)?")
_WHOLE: Final = re.compile(r"\$@|\$\{@.*\}|\$\{\w+\[@\]\}")
_REDIRECTION: Final = re.compile(r"\d*(<<<|>>|[<>])\|?")
_PLACEHOLDER: Final = re.compile(r"<[^<>]+>")
_DOCUMENT: Final = ("document", "verbatim")
_KEYWORDS: Final = ("if", "then", "else", "elif", "fi", "do", "done", "while", "for", "{", "}", "!", "time", "exec")
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
class _State:
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unresolved: dict[str, None] = field(default_factory=dict)  # in the order of their first use
    branches: list[Branch | Case] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    functions: Functions = field(default_factory=Functions)
    arguments: tuple[str, ...] | None = None  # of the function that is being read, or of the script; None: not known
    frames: list[dict[str, tuple[str, ...] | None]] = field(default_factory=list)  # what local names hide
    loops: int = 0
    read: int = 0

    def counts(self) -> bool:
        """Whether a statement here runs, or may run."""
        return all(branch.live for branch in self.branches)


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
    state.functions.refuse_open(where)
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
        found = _run(words, state, where)
        if found is None:
            continue
        name, *given = found.words
        if name in state.functions.bodies:
            commands += _call(name, given, state, where)
        elif name == "shift" and state.arguments is not None:
            state.arguments = _shifted(state.arguments, given)
        else:
            commands.append(found)
    return commands


def _shifted(arguments: tuple[str, ...], given: Sequence[str]) -> tuple[str, ...]:
    """Arguments after ``shift``: one fewer, or as many as it says; more than there are takes none, as in bash."""
    count = (whole(given[0]) if given[0].isdecimal() else 1) if given else 1
    return arguments if count is None or count > len(arguments) else arguments[count:]


def _call(name: str, given: Sequence[str], state: _State, where: str) -> list[ShellCommand]:
    """Commands of a function that is called with some arguments; names that are local to it end with it."""
    if len(state.frames) >= MOST_CALLS:
        return []
    outer, state.arguments = state.arguments, tuple(given)
    state.frames.append({})
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
    words = _behind_pattern(words, state, where)
    index = 0
    while index < len(words) and literal(words[index]) in _KEYWORDS:
        _turn(literal(words[index]), state)
        index += 1
    if literal(words[index] if index < len(words) else ()) == "case" and len(words) > index + 2:
        state.branches.append(_case(words[index + 1], state, where))
        return _run(words[index + 3 :], state, where) if len(words) > index + 3 else None
    if not words or not state.counts():
        return None
    branch = state.branches[-1] if state.branches else None
    if isinstance(branch, Branch) and not branch.begun:
        branch.tests.append(_test(words[:index], words[index:], state, where))
    declared = literal(words[index]) if index < len(words) and literal(words[index]) in _DECLARING else ""
    index += bool(declared)
    own: dict[str, str] = {}
    while index < len(words):
        kind, text = words[index][0] if words[index] else ("plain", "")
        name = _ASSIGNED.match(text) if kind == "plain" else None
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
    if index >= len(words):
        return None
    exported = {name: " ".join(state.values[name]) for name in state.exported if name in state.values}
    return _command(words[index:], state, where, MappingProxyType({**exported, **own}))


def _turn(keyword: str, state: _State) -> None:
    """Follow an ``if`` to its next part, and count loops."""
    if keyword in ("do", "done"):
        state.loops = max(0, state.loops + (1 if keyword == "do" else -1))
    elif keyword == "if":
        state.branches.append(Branch(tests=[]))
    elif not state.branches or not isinstance(branch := state.branches[-1], Branch):
        return
    elif keyword == "then":
        branch.begin_arm()
    elif keyword in ("elif", "else"):
        branch.next_arm(begun=keyword == "else")
    elif keyword == "fi":
        state.branches.pop()


def _case(subject: Pieces, state: _State, where: str) -> Case:
    """A ``case`` that begins; the options of a script itself, read in a loop, count as not given."""
    if not state.counts():
        return Case(subject="", never=True)
    values, known = _looked_at([subject], state, where)
    text = " ".join(values)
    if known:
        return Case(subject=text)
    told = state.skipped if state.loops else state.undecided
    told.append(f"case {text.replace(BLANK, ' ')}")
    return Case(subject=None, never=state.loops > 0)


def _behind_pattern(words: Statement, state: _State, where: str) -> Statement:
    """What of a statement is left behind the patterns and ends of a ``case``."""
    branch = state.branches[-1] if state.branches else None
    first = literal(words[0]) if words else ""
    if not isinstance(branch, Case):
        return [] if first == ARM_END else words
    if first == ARM_END:
        branch.end_arm()
        return []
    if first == "esac":
        state.branches.pop()
        return words[1:]
    for index, pieces in enumerate(words if not branch.inside else ()):
        kind, text = pieces[-1]
        before, bracket, behind = text.partition(")") if kind == "plain" else (text, "", "")
        body = (*pieces[:-1], (kind, before)) if before or len(pieces) == 1 else pieces[:-1]
        if kind == "array":
            branch.patterns += [pattern.strip() for pattern in text.split("|")]
        else:
            branch.patterns.append("".join(_expand(body, state, where)))
        if bracket or kind == "array":
            branch.begin_arm()
            return [*([(("plain", behind),)] if behind else []), *words[index + 1 :]]
    return words if branch.inside else []


def _test(keywords: list[Pieces], words: list[Pieces], state: _State, where: str) -> bool | None:
    """What a test behind ``if`` comes to; None when a value in it is not known."""
    if any(literal(keyword) == "!" for keyword in keywords):
        return None
    expanded, known = _looked_at(words, state, where)
    if not known:
        state.undecided.append(" ".join(expanded).replace(BLANK, " "))
    return condition(expanded) if known else None


def _looked_at(words: Sequence[Pieces], state: _State, where: str) -> tuple[list[str], bool]:
    """Words of a test or of a subject expanded, and whether all are known; what is not is no gap of a command."""
    before = dict(state.unresolved)
    expanded = [word for pieces in words for word in _expand(pieces, state, where)]
    known = not any(name in word for name in state.unresolved for word in expanded)
    state.unresolved = before
    return expanded, known


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
        unresolved=tuple(state.unresolved),
    )


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


def _expand(pieces: Pieces, state: _State, where: str) -> list[str]:
    """Words that one word becomes."""
    fields: list[str] = [""]
    quoted = False
    for kind, text in pieces:
        if kind in ("single", "array"):
            fields[-1] += text if kind == "single" else f"({text})"
            quoted = True
            continue
        quoted |= kind == "double" and not (_WHOLE.fullmatch(text) and not _any_values(text, state))
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
        end = closing_bracket(text, index + 1, "arithmetic") + 1
        return (_arithmetic(text[index + 3 : end - 2], state),), end
    if text.startswith(("$(", "`"), index):
        end = text.find("`", index + 1) if text[index] == "`" else closing_bracket(text, index + 1, "command")
        end = len(text) if end < 0 else end + 1
        echoed = echoed_variable(text[index:end].strip("`$()"))
        if echoed in state.values:
            return (" ".join(" ".join(state.values[echoed]).split()),), end
        return (_not_known(text[index:end], state),), end
    if text.startswith("${", index):
        end = closing_bracket(text, index + 1, "expansion") + 1
        return _parameter(text[index + 2 : end - 1], state), end
    name = _NAME.match(text, index + 1)
    if name is None:
        special = text[index + 1 : index + 2] in tuple("@*#?0123456789")
        return (_parameter(text[index + 1], state) if special else ("$",)), index + 1 + special
    return _parameter(name[0], state), name.end()


def _any_values(expression: str, state: _State) -> bool:
    """Whether all arguments, or the elements of an array, are any at all; those that are not known are."""
    name = expression.strip("${}")
    values = _arguments(name, state) if name.startswith("@") else state.values.get(name.removesuffix("[@]"))
    return values is None or len(values) > 0


def _arguments(name: str, state: _State) -> tuple[str, ...] | None:
    """Values of ``$@``, ``$*``, ``$#``, ``$1`` and slices such as ``${@:2}``; None where they are not known."""
    if state.arguments is None:
        return None
    if name in ("#", "#@", "#*"):
        return (str(len(state.arguments)),)
    number = whole(name)
    if number:
        return state.arguments[number - 1 : number] or ("",)
    found = _ALL_ARGUMENTS.fullmatch(name)
    if found is None:
        return None
    first = max(0, int(found[2] or 1) - 1)
    values = state.arguments[first:] if found[3] is None else state.arguments[first : first + int(found[3])]
    return values if found[1] == "@" else (" ".join(values),)


def _parameter(body: str, state: _State) -> tuple[str, ...]:
    found = _DEFAULTED.fullmatch(body)
    name = found[1] if found else body
    values = state.values[name] if name in state.values else _arguments(name, state)
    operator = found[3] if found else None
    empty = values is None or (not any(values) and (bool(found and found[2]) or name.isdecimal()))
    if found and operator and ((operator == "+" and not empty) or (operator in "-=" and empty)):
        return (" ".join(_substituted(found[4].strip("'\""), state, True)),)
    if operator == "+":
        return ("",)
    if values is not None:
        every = "[@]" in body or "[*]" in body or _ALL_ARGUMENTS.fullmatch(name)
        return values if every else values[:1] or ("",)
    braced = name.startswith(("@", "*", "#")) and len(name) > 1
    return (_not_known(f"${{{name}}}" if (name.isdigit() and len(name) > 1) or braced else f"${name}", state),)


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
    state.unresolved[word] = None
    return word
