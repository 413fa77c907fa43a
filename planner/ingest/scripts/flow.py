"""Which statements of a shell script run: ``if``, ``case``, loops, groups, and what stands behind ``&&`` and ``||``.

Nothing is run: tests are decided where they compare what the script holds, and told where they do not.

References
----------
POSIX.1-2017, Shell Command Language: lists and compound commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import escape
from types import MappingProxyType
from typing import Final

from planner.ingest.scripts.conditions import Branch, Case, Group, both, condition, either, opposite
from planner.ingest.scripts.functions import Statement
from planner.ingest.scripts.values import BLANK, Known, calculate, expand
from planner.ingest.scripts.words import ARM_END, ASSIGNMENT, Pieces, is_arithmetic, literal

_COMPOUND: Final = ("if", "for", "while", "until", "case")
_TESTS: Final = ("[", "[[", "true", "false", "test")
_OPENED: Final = MappingProxyType({Branch: "an if", Case: "a case", Group: "a bracket {"})


@dataclass(kw_only=True)
class Flow(Known):
    """What a script holds at some place, and how far the reading has come in what decides which statements run.

    Attributes
    ----------
    branches : list
        What is open, the innermost last.
    undecided : list of str
        Tests and subjects of ``case`` that depend on what the script does not hold.
    skipped : list of str
        Subjects of ``case`` in a loop over what the script is given.
    joint : str
        What stands before the statement that is being read: ``&&``, ``||`` or nothing.
    status : bool or None
        What the statement before came to; None: not known.
    asked : str
        The text of that, where it depends on what is not known.
    loops : int
        How many are open.
    """

    branches: list[Branch | Case | Group] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    joint: str = ""
    status: bool | None = None
    asked: str = ""
    loops: int = 0

    def counts(self) -> bool:
        """Whether a statement here runs, or may run."""
        return all(branch.live for branch in self.branches)

    def sure(self) -> bool:
        """Whether a statement here runs for sure."""
        return not self.branches and not self.loops and not (self.joint and self.status is None)

    def opened(self) -> str:
        """What is not closed, the innermost; empty for nothing."""
        return _OPENED[type(self.branches[-1])] if self.branches else ""


def passed_over(words: Statement, flow: Flow) -> bool:
    """Whether a statement does not run, for what the one before it came to; a group of them is passed over whole.

    Parameters
    ----------
    words : sequence of Pieces
        Of the statement.
    flow : Flow
        Takes a group that begins.
    """
    if not flow.joint or flow.status is not (flow.joint == "||") or _is_test(flow):
        return False
    first = literal(words[0]) if words else ""
    if first == "{":
        flow.branches.append(Group(live=False))
    return first not in _COMPOUND


def _is_test(flow: Flow) -> bool:
    """Whether what is read is the test of an ``if``."""
    branch = flow.branches[-1] if flow.branches else None
    return isinstance(branch, Branch) and not branch.begun


def follow(keywords: Statement, words: Statement, flow: Flow, where: str) -> None:
    """Keep what a statement comes to, for ``if`` and for what stands behind ``&&`` and ``||``.

    Parameters
    ----------
    keywords : sequence of Pieces
        Before the statement's own words.
    words : sequence of Pieces
        The statement's own.
    flow : Flow
        Takes the result, and the text of a test that is not decided.
    where : str
        File that errors name.
    """
    branch = flow.branches[-1] if flow.branches else None
    if isinstance(branch, Branch) and not branch.begun:
        if not words:
            return
        result, asked = _test(keywords, words, flow, where)
        flow.undecided += [asked] if asked else []
        branch.add(flow.joint, result)
        return
    if not words and literal(keywords[-1]) == "}":
        return
    tests = bool(words) and (literal(words[0]) in _TESTS or is_arithmetic(words[0]))
    assigns = bool(words) and all(ASSIGNMENT.match(pieces[0][1]) and pieces[0][0] == "plain" for pieces in words)
    result, asked = _test(keywords, words, flow, where) if tests else (True if assigns else None, "")
    join = {"&&": both, "||": either}.get(flow.joint)
    flow.status = join(flow.status, result) if join else result
    flow.asked = asked or (flow.asked if flow.joint else "")


def begin_loop(words: Statement, flow: Flow, where: str) -> None:
    """``for NAME in ...``: its value is known where there is one.

    Parameters
    ----------
    words : sequence of Pieces
        Behind ``for``.
    flow : Flow
        Takes the variable.
    where : str
        File that errors name.
    """
    name = literal(words[0]) if words else ""
    values = [word for pieces in words[2:] for word in expand(pieces, flow, where)]
    if len(values) == 1:
        flow.values[name] = (values[0],)
    else:
        flow.values.pop(name, None)


def turn(keyword: str, flow: Flow) -> None:
    """Follow an ``if`` to its next part, count loops, and keep groups.

    Parameters
    ----------
    keyword : str
        Such as ``then`` or ``{``; others change nothing.
    flow : Flow
        Where the reading stands.
    """
    if keyword in ("do", "done"):
        flow.loops = max(0, flow.loops + (1 if keyword == "do" else -1))
    elif keyword == "if":
        flow.branches.append(Branch(before=dict(flow.values)))
    elif keyword in ("{", "}"):
        _turn_group(keyword, flow)
    elif not flow.branches or not isinstance(branch := flow.branches[-1], Branch):
        return
    elif keyword == "then":
        branch.begin_arm()
    elif keyword in ("elif", "else"):
        _leave_arm(branch, flow)
        branch.next_arm(begun=keyword == "else")
    elif keyword == "fi":
        _leave(branch, flow)
        flow.branches.pop()


def _leave_arm(branch: Branch | Case, flow: Flow) -> None:
    """Keep what an arm has set, and begin the next one with what held before: at most one of them runs."""
    for name in {*flow.values, *branch.before}:
        if flow.values.get(name) != branch.before.get(name):
            branch.changed[name] = flow.values.get(name)
    flow.values.clear()
    flow.values.update(branch.before)


def _leave(branch: Branch | Case, flow: Flow) -> None:
    """End a statement with arms: each variable has the value that the last of those set it to which may have run."""
    _leave_arm(branch, flow)
    for name, value in branch.changed.items():
        if value is None:
            flow.values.pop(name, None)
        else:
            flow.values[name] = value


def _turn_group(keyword: str, flow: Flow) -> None:
    """Follow statements in ``{ }``."""
    if keyword == "{":
        flow.branches.append(Group(live=True, joint=flow.joint if _is_test(flow) else None))
    elif flow.branches and isinstance(group := flow.branches[-1], Group):
        flow.branches.pop()
        branch = flow.branches[-1] if flow.branches else None
        if group.joint is not None and isinstance(branch, Branch):
            branch.add(group.joint, flow.status)
            flow.undecided += [flow.asked] if flow.status is None and flow.asked else []


def begun_case(subject: Pieces, flow: Flow, where: str) -> Case:
    """A ``case`` that begins; the options of a script itself, read in a loop, count as not given.

    Parameters
    ----------
    subject : Pieces
        What is compared with the patterns.
    flow : Flow
        Takes the text of one that is not known.
    where : str
        File that errors name.
    """
    before = dict(flow.values)
    if not flow.counts():
        return Case(subject="", never=True, before=before)
    values, known = _looked_at([subject], flow, where)
    text = " ".join(values)
    if known:
        return Case(subject=text, before=before)
    told = flow.skipped if flow.loops else flow.undecided
    told.append(f"case {text.replace(BLANK, ' ')}")
    return Case(subject=None, never=flow.loops > 0, before=before)


def behind_pattern(words: Statement, flow: Flow, where: str) -> Statement:
    """What of a statement is left behind the patterns and ends of a ``case``.

    Parameters
    ----------
    words : sequence of Pieces
        Of the statement.
    flow : Flow
        Its ``case`` goes to the next arm, or ends.
    where : str
        File that errors name.
    """
    branch = flow.branches[-1] if flow.branches else None
    first = literal(words[0]) if words else ""
    if not isinstance(branch, Case):
        return [] if first == ARM_END else words
    if first == ARM_END:
        _leave_arm(branch, flow)
        branch.end_arm()
        return []
    if first == "esac":
        _leave(branch, flow)
        flow.branches.pop()
        return words[1:]
    for index, pieces in enumerate(words if not branch.inside else ()):
        kind, text = pieces[-1]
        before, bracket, behind = text.partition(")") if kind == "plain" else (text, "", "")
        body = (*pieces[:-1], (kind, before)) if before or len(pieces) == 1 else pieces[:-1]
        if kind == "array":
            branch.patterns += [pattern.strip() for pattern in text.split("|")]
        else:
            branch.patterns.append("".join(expand(body, flow, where)))
        if bracket or kind == "array":
            branch.begin_arm()
            return [*([(("plain", behind),)] if behind else []), *words[index + 1 :]]
    return words if branch.inside else []


def _test(keywords: Statement, words: Statement, flow: Flow, where: str) -> tuple[bool | None, str]:
    """What a command comes to, and its text where that depends on a value that is not known."""
    if len(words) == 1 and is_arithmetic(words[0]):
        number = calculate(words[0][0][1][1:-1], flow)
        result, asked = (None, words[0][0][1]) if number is None else (number != 0, "")
    else:
        expanded, known = _looked_at(words, flow, where)
        result = condition(expanded) if known else None
        asked = "" if result is not None else " ".join(expanded).replace(BLANK, " ")
    return (opposite(result) if any(literal(keyword) == "!" for keyword in keywords) else result), asked


def _looked_at(words: Sequence[Pieces], flow: Flow, where: str) -> tuple[list[str], bool]:
    """Words of a test or of a subject expanded, and whether all are known; what is not is no gap of a command."""
    before = dict(flow.unresolved)
    # inside [[ ]] nothing is split, and quoted letters of a pattern stand for themselves
    inside = bool(words) and literal(words[0]) == "[["
    expanded: list[str] = []
    for index, pieces in enumerate(words):
        if inside and index and literal(words[index - 1]) in ("=", "==", "!="):
            parts = ((kind, "".join(expand(((kind, text),), flow, where))) for kind, text in pieces)
            expanded.append("".join(text if kind == "plain" else escape(text) for kind, text in parts))
        elif inside:
            expanded.append(" ".join(expand(pieces, flow, where)))
        else:
            expanded += expand(pieces, flow, where)
    known = not any(name in word for name in flow.unresolved for word in expanded)
    flow.unresolved = before
    return expanded, known
