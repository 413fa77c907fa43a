"""A shell script cut into statements, words and the quoted and plain parts of words; nothing is expanded.

References
----------
POSIX.1-2017, Shell Command Language: token recognition and quoting.
"""

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError

_HERE: Final = re.compile(r"<<(-?)[ \t]*(?:'(\w+)'|\"(\w+)\"|\\?(\w+))")
_BLANKS: Final = r"(?: *\| *(?:tr (?:-s|-d)?[ '\"\\n]+|sed -?E? *'s/[ \\+*s]+/ ?/g'|xargs))*"
_ECHOED: Final = re.compile(r"(?:echo|printf '%s')(?: -n)? +\"?\$\{?(?P<name>[A-Za-z_]\w*)\}?\"?" + _BLANKS)
_ANSI: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_LETTER: Final = re.compile(r"\\(.)", re.DOTALL)
_LETTERS: Final = MappingProxyType({"n": "\n", "t": "\t", "r": "\r"})
"""Letters behind a backslash in ``$'...'``."""
MOST_ECHOED: Final = 200
ARM_END: Final = ";;"
"""End of an arm of ``case``, a statement of its own."""
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""How a word begins that assigns a variable, or adds to one."""
JOINTS: Final = ("&&", "||")
"""What stands between two commands of which the second may not run; a statement of its own."""
Pieces = tuple[tuple[str, str], ...]
"""Parts of one word: ``plain`` ones are expanded and split, ``double`` ones expanded, ``single`` ones kept.

A word of one ``document`` (expanded) or ``verbatim`` part is the text behind ``<<``.
"""


def statements(text: str, where: str = "script") -> Iterator[list[Pieces]]:
    """Yield the statements of a script as words; separators are line ends, ``;``, ``&`` and ``|`` outside quotes.

    ``&&`` and ``||`` are statements between two others, but words inside ``[[ ]]``.
    """
    words: list[Pieces] = []
    pieces: list[tuple[str, str]] = []
    index = 0
    while index < len(text):
        char = text[index]
        joint = text[index : index + 2] if text.startswith(JOINTS, index) else ""
        word = _operator_word(text, index, words, pieces)
        if char == "\\" and text[index + 1 : index + 2] in ("\n", ""):
            index += 2
        elif word:
            pieces.append(("plain", pieces.pop()[1] + word if _redirects(pieces) else word))
            index += len(word)
        elif char in " \t\r\n;&|":
            words += [tuple(pieces)] if pieces else []
            pieces = []
            if char in "\n;&|" and words:
                yield words
                words = []
            if joint or text.startswith(ARM_END, index):
                yield [(("plain", joint or ARM_END),)]
                index += 1
            index += 1
        elif not pieces and text.startswith("<<", index) and (here := _HERE.match(text, index)):
            start, end, rest = _here_span(text, here)
            words.append(((_here_kind(here), text[start:end]),))
            text, index = text[:start] + text[rest:], here.end()
        elif char == "#" and not pieces:
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        else:
            kind, part, index = _piece(text, index, where)
            pieces.append((kind, part)) if not _joins(pieces, kind) else pieces.append((kind, pieces.pop()[1] + part))
    words += [tuple(pieces)] if pieces else []
    if words:
        yield words


def literal(pieces: Pieces) -> str:
    """The word itself where it is one plain part, else an empty text."""
    return pieces[0][1] if len(pieces) == 1 and pieces[0][0] == "plain" else ""


def is_arithmetic(pieces: Pieces) -> bool:
    """Whether a word is ``((...))``."""
    return len(pieces) == 1 and pieces[0][0] == "array" and pieces[0][1].startswith("(") and pieces[0][1].endswith(")")


def _operator_word(text: str, index: int, words: list[Pieces], pieces: list[tuple[str, str]]) -> str:
    """What of a word stands at ``index`` that elsewhere parts commands: of ``[[ ]]`` and of a redirection."""
    if text.startswith(JOINTS, index):
        return text[index : index + 2] if _in_test(words) else ""
    return "&" if text[index] == "&" and (text.startswith("&>", index) or _redirects(pieces)) else ""


def _in_test(words: list[Pieces]) -> bool:
    """Whether a statement is inside ``[[ ]]``."""
    names = [literal(pieces) for pieces in words]
    return "[[" in names and "]]" not in names


def _redirects(pieces: list[tuple[str, str]]) -> bool:
    """Whether a word is the beginning of ``2>&1``."""
    return bool(pieces) and pieces[-1][0] == "plain" and pieces[-1][1].endswith((">", "<"))


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


def _joins(pieces: list[tuple[str, str]], kind: str) -> bool:
    return bool(pieces) and pieces[-1][0] == kind == "plain"


def _piece(text: str, index: int, where: str) -> tuple[str, str, int]:
    """One part of a word from ``index``: its kind, its text, and where it ends."""
    char = text[index]
    ansi = _ANSI.match(text, index)
    if char == "'" or ansi:
        end = ansi.end() - 1 if ansi else text.find("'", index + 1)
        if end < 0:
            raise InputError("a single quote is not closed", allowed="a shell script", where=where)
        told = _LETTER.sub(lambda found: _LETTERS.get(found[1], found[1]), ansi[1]) if ansi else text[index + 1 : end]
        return "single", told, end + 1
    if char == '"':
        end = _closing_quote(text, index + 1, where)
        return "double", text[index + 1 : end], end + 1
    if char == "\\":
        return "single", text[index + 1 : index + 2], index + 2
    if char == "`" or text.startswith(("$(", "${"), index):
        end = text.find("`", index + 1) if char == "`" else closing_bracket(text, index + 1, where)
        if end < 0:
            raise InputError("a backquote is not closed", allowed="a shell script", where=where)
        return "plain", text[index : end + 1], end + 1
    if char == "(":
        end = closing_bracket(text, index, where)
        return "array", text[index + 1 : end], end + 1
    end = index + 1
    while end < len(text) and text[end] not in " \t\r\n;&|'\"\\`($":
        end += 1
    return "plain", text[index:end], end


def _closing_quote(text: str, index: int, where: str) -> int:
    while index < len(text) and text[index] != '"':
        if text.startswith(("$(", "${"), index):
            index = closing_bracket(text, index + 1, where) + 1
        elif text[index] == "`" and "`" in text[index + 1 :]:
            index = text.index("`", index + 1) + 1
        else:
            index += 2 if text[index] == "\\" else 1
    if index >= len(text):
        raise InputError("a double quote is not closed", allowed="a shell script", where=where)
    return index


def echoed_variable(command: str) -> str:
    """Name of the variable that a command prints, at most with its blanks changed; empty for any other command.

    Such as ``echo "$A" | tr -s ' ' | xargs``, by which scripts bring words onto one line.
    """
    found = _ECHOED.fullmatch(command.strip()) if len(command) <= MOST_ECHOED else None
    return found["name"] if found else ""


def closing_bracket(text: str, index: int, where: str) -> int:
    """Index of the bracket that closes the one at ``index``; quotes and comments inside are passed over."""
    opened, closed = text[index], {"(": ")", "{": "}"}[text[index]]
    depth = 0
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
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
