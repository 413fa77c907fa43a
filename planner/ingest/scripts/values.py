"""What the words of a shell script come to with the values that it has assigned so far; nothing is run.

What only a running shell could know stays as written, in one word, and is named.

References
----------
POSIX.1-2017, Shell Command Language: parameter expansion, field splitting. Arrays as in bash.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.options import whole
from planner.ingest.scripts.conditions import whole_number
from planner.ingest.scripts.words import Pieces, closing_bracket, echoed_variable

MOST_VALUE: Final = 200_000
"""Characters that a variable may grow to; doubling assignments would fill the memory otherwise."""
BLANK: Final = "\u2420"
"""Stands for a blank inside a text whose value is not known, which stays one word."""
MOST_OPERAND: Final = 40
"""Characters of a variable that arithmetic looks at."""
ASSIGNED: Final = "assigned"
"""Kind of the plain parts of what is assigned: expanded and not split, but quotes inside them count."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_DEFAULTED: Final = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?:(:?)([-=?+])(.*))?", re.DOTALL)
_CASED: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<how>,,|\^\^|,|\^)")
_CASES: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {
        ",,": str.lower,
        "^^": str.upper,
        ",": lambda text: text[:1].lower() + text[1:],
        "^": lambda text: text[:1].upper() + text[1:],
    }
)
_ALL_ARGUMENTS: Final = re.compile(r"([@*])(?::\s*(\d{1,9})(?::\s*(\d{1,9}))?)?")
_WHOLE: Final = re.compile(r"\$@|\$\{@.*\}|\$\{\w+\[@\]\}")
_ARITHMETIC: Final = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:(?P<operator>[-+*/%]?=)(?!=)(?P<right>.+)|(?P<step>\+\+|--)\s*)", re.DOTALL
)
_CALCULATED: Final = re.compile(r"""\s*(?:expr ([^"'`|()]+)|echo "?([^"'`|()]+?)"? *\| *bc)\s*""")
"""Commands that calculate: ``expr 2 * 4``, ``echo 2*4 | bc``."""
_ELEMENT: Final = re.compile(r"(?P<count>#)?(?P<name>[A-Za-z_]\w*)\[(?P<index>\w+|[@*])\]")
_SPECIAL: Final = re.compile(r"[\\$`]")
"""What may not stand for itself inside a part of a word."""
_QUOTED: Final = re.compile(r"'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"", re.DOTALL)


@dataclass(kw_only=True)
class Known:
    """What a script holds at some place.

    Attributes
    ----------
    values : dict
        Variables; an array has several values.
    unresolved : dict
        What it does not hold, in the order of first use.
    arguments : tuple of str or None
        Of the function that is being read, or of the script; None: not known.
    """

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unresolved: dict[str, None] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None


def expand(pieces: Pieces, state: Known, where: str) -> list[str]:
    """Words that one word becomes.

    Parameters
    ----------
    pieces : tuple
        Of the word; plain parts of what is assigned are of the kind :data:`ASSIGNED`.
    state : Known
        What the script holds; names that it does not hold are added.
    where : str
        File that errors name.

    Raises
    ------
    InputError
        The word is too long, or a bracket in it is not closed.
    """
    fields: list[str] = [""]
    quoted = False
    for kind, text in pieces:
        if kind in ("single", "array"):
            fields[-1] += text if kind == "single" else f"({text})"
            quoted = True
            continue
        quoted |= kind in ("double", ASSIGNED) and not (_WHOLE.fullmatch(text) and not _any_values(text, state))
        parts = substituted(text, state, kind)
        for number, part in enumerate(parts):
            if number:
                fields.append("")
            fields[-1] += part
        if sum(map(len, fields)) > MOST_VALUE:
            raise InputError(f"a word grows beyond {MOST_VALUE} characters", where=where)
    return fields if quoted or fields != [""] else []


def substituted(text: str, state: Known, kind: str) -> list[str]:
    """Text with variables put in; values in plain parts and whole arrays are split into several words.

    Parameters
    ----------
    text : str
        Of one part of a word.
    state : Known
        As of :func:`expand`.
    kind : str
        ``plain``, ``double`` or :data:`ASSIGNED`.
    """
    quoted = kind != "plain"
    fields, index, grown = [""], 0, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and quoted and text[index + 1 : index + 2] in ('"', "$", "\\", "`", "\n"):
            fields[-1] += text[index + 1] if text[index + 1] != "\n" else ""
            index += 2
        elif char in "$`":
            values, index = _value(text, index, state, kind)
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
            found = _SPECIAL.search(text, index + 1)
            end = found.start() if found else len(text)
            fields[-1] += text[index:end]
            index = end
    return fields


def _value(text: str, index: int, state: Known, kind: str) -> tuple[tuple[str, ...], int]:
    """Values of the expansion at ``index``, and where it ends; one that is not known stays as written."""
    if text.startswith(("$(", "`"), index) or (text.startswith("$[", index) and "]" in text[index:]):
        return _run_value(text, index, state)
    if text.startswith("${", index):
        end = closing_bracket(text, index + 1, "expansion") + 1
        return _parameter(text[index + 2 : end - 1], state, kind), end
    name = _NAME.match(text, index + 1)
    if name is None:
        special = text[index + 1 : index + 2] in tuple("@*#?0123456789")
        return (_parameter(text[index + 1], state, kind) if special else ("$",)), index + 1 + special
    return _parameter(name[0], state, kind), name.end()


def _run_value(text: str, index: int, state: Known) -> tuple[tuple[str, ...], int]:
    """Value of arithmetic or of a command's output at ``index``, and where it ends."""
    old = text.find("]", index) + 1 if text.startswith("$[", index) else 0
    if old:
        return (_arithmetic(text[index + 2 : old - 1], state),), old
    if text.startswith("$((", index):
        end = closing_bracket(text, index + 1, "arithmetic") + 1
        return (_arithmetic(text[index + 3 : end - 2], state),), end
    end = text.find("`", index + 1) if text[index] == "`" else closing_bracket(text, index + 1, "command")
    end = len(text) if end < 0 else end + 1
    command = text[index:end].strip("`$()")
    calculated = _CALCULATED.fullmatch(command.replace("\\*", "*"))
    if calculated and (number := calculate(calculated[1] or calculated[2], state)) is not None:
        return (str(number),), end
    echoed = echoed_variable(command)
    if echoed in state.values:
        return (" ".join(" ".join(state.values[echoed]).split()),), end
    return (_not_known(text[index:end], state),), end


def _any_values(expression: str, state: Known) -> bool:
    """Whether all arguments, or the elements of an array, are any at all; those that are not known are."""
    name = expression.strip("${}")
    values = _arguments(name, state) if name.startswith("@") else state.values.get(name.removesuffix("[@]"))
    return values is None or len(values) > 0


def _arguments(name: str, state: Known) -> tuple[str, ...] | None:
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


def _parameter(body: str, state: Known, kind: str) -> tuple[str, ...]:
    cased = _CASED.fullmatch(body)
    element = _element(body, state) if cased is None else _in_case(cased["name"], cased["how"], state)
    if element is not None:
        return (element,)
    found = _DEFAULTED.fullmatch(body)
    name = found[1] if found else body
    values = state.values[name] if name in state.values else _arguments(name, state)
    operator = found[3] if found else None
    empty = values is None or (not any(values) and (bool(found and found[2]) or name.isdecimal()))
    if found and operator and ((operator == "+" and not empty) or (operator in "-=" and empty)):
        default = (" ".join(substituted(_without_quotes(found[4], kind), state, "double")),)
        if operator == "=":
            state.values[name] = default
        return default
    if operator == "+":
        return ("",)
    if values is not None:
        if "[*]" in body:
            return (" ".join(values),)
        every = "[@]" in body or _ALL_ARGUMENTS.fullmatch(name)
        return values if every else values[:1] or ("",)
    braced = name.startswith(("@", "*", "#")) and len(name) > 1
    return (_not_known(f"${{{name}}}" if (name.isdigit() and len(name) > 1) or braced else f"${name}", state),)


def _in_case(name: str, how: str, state: Known) -> str:
    """Value of ``${A,,}`` or ``${A^^}``: a variable's in other letters."""
    values = state.values.get(name)
    return _not_known(f"${name}", state) if values is None else _CASES[how](" ".join(values[:1]))


def _element(body: str, state: Known) -> str | None:
    """Value of ``${A[1]}`` and ``${#A[@]}``; None where it is something else, or not known."""
    found = _ELEMENT.fullmatch(body)
    if found is None or found["name"] not in state.values:
        return None
    values, index = state.values[found["name"]], found["index"]
    if found["count"]:
        return str(len(values)) if index in "@*" else None
    number = None if index in "@*" else calculate(index, state)
    return None if number is None or number < 0 else "".join(values[number : number + 1])


def _without_quotes(text: str, kind: str) -> str:
    """The word behind ``:-`` as it counts: inside double quotes single ones are letters."""
    if kind == "double":
        return text.replace('"', "")
    return _QUOTED.sub(lambda found: found["single"] if found["single"] is not None else found["double"], text)


def calculate(body: str, state: Known) -> int | None:
    """What an expression of ``((...))`` comes to; what it assigns is taken over.

    Parameters
    ----------
    body : str
        Such as ``TP * PP`` or ``DP = WORLD / TP``.
    state : Known
        What the script holds.

    Returns
    -------
    int or None
        None where a part of it is not known; a variable that it is assigned to is not known then either.
    """
    assigned = _ARITHMETIC.fullmatch(body)
    if assigned is None:
        return _number(body, state)
    name, operator = assigned["name"], (assigned["operator"] or assigned["step"])[0]
    right = "1" if assigned["step"] else f"({assigned['right']})"
    found = _number(right if operator == "=" else f"{name} {operator} {right}", state)
    if found is None:
        state.values.pop(name, None)
    else:
        state.values[name] = (str(found),)
    return found


def _number(body: str, state: Known) -> int | None:
    """Value of an expression over whole numbers and variables."""
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", body)

    def operand(name: re.Match[str]) -> str:
        value = " ".join(state.values.get(name[0], ()))
        return value if 0 < len(value) <= MOST_OPERAND else name[0]

    return whole_number(_NAME.sub(operand, plain).replace("&&", " and ").replace("||", " or "))


def _arithmetic(body: str, state: Known) -> str:
    """Value of ``$((...))`` over whole numbers; as written when a part of it is not known."""
    found = calculate(body, state)
    return _not_known(f"$(({body}))", state) if found is None else str(found)


def _not_known(text: str, state: Known) -> str:
    """Text of which the script does not hold the value, as one word; it is named."""
    word = re.sub(r"\s", BLANK, text)
    state.unresolved[word] = None
    return word
