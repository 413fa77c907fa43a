"""Options of trainers that are misspelt: named with the known one that is near, as their parsers refuse them.

The lists of ``trainer_options.toml`` hold several releases. A script may define arguments of its own, so of one that is
no trainer's own program an option is wrong where it is a slip of the pen away from one of Hugging Face's
``TrainingArguments``; of a trainer's own program also where it is like one of its options.

References
----------
Hugging Face Transformers 5.12 ``hf_argparser.py`` (``parse_args_into_dataclasses`` and ``parse_dict`` raise on names
that are left over; its parser takes the beginning of an option for it, as argparse does). LLaMA-Factory
``hparams/parser.py`` (``_parse_args``), ms-swift ``pipelines/base.py`` (``remaining_argv``), TRL ``scripts/utils.py``
raise as well; Axolotl ``utils/schemas/config.py`` is a model that drops other keys.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from hardware.package_table import package_table
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault
from planner.ingest.trainers.accelerate_settings import accelerate_table
from planner.ingest.trainers.filled_in import trainer_of
from planner.ingest.trainers.openrlhf import OWN_NAMES, starts_openrlhf
from planner.ingest.trainers.words import told_options, trainer_table, trains

_BASE: Final = "transformers"
_DROPS: Final = "axolotl"
_COMMANDS: Final = "commands"
_LIKE: Final = 0.9
"""Likeness from which on an option of a trainer's own program is taken for a known one misspelt."""
_ONE_SLIP: Final = 6
_TWO_SLIPS: Final = 10
"""Letters of a name from which on one slip, or two, are taken for a mistake: short names are near to many."""
_SHORTEST_BEGINNING: Final = 8


@dataclass(frozen=True, kw_only=True)
class _Parser:
    """Who reads the options of a launch.

    ``known`` are names that are right; ``near`` those that a wrong one may be meant for. ``whole``: no others are
    right. ``drops``: others are passed over without a word.
    """

    name: str
    known: Collection[str]
    near: Collection[str]
    whole: bool = False
    drops: bool = False


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.trainers", "options.toml")


@lru_cache(maxsize=8)
def _names(trainer: str) -> frozenset[str]:
    """Names of a trainer's options, with those that switch one off."""
    facts = _table()[trainer]
    own = frozenset(facts["names"].split())
    base = _names(facts["base"]) if "base" in facts else frozenset()
    return own | base | {f"no_{name}" for name in own}


@lru_cache(maxsize=1)
def _read_here() -> frozenset[str]:
    """Names that some reader here understands, whoever has them, and those of ``accelerate launch``."""
    signs = {sign for facts in trainer_table().values() for sign in facts["signs"]}
    names = (*key_table()["spellings"], *key_table()["spellings"].values(), *signs)
    launcher = accelerate_table()
    sections = (key for keys in launcher["sections"].values() for key in keys)
    return frozenset(map(_plain, (*names, *launcher["top_level"], *launcher["switches"], *sections)))


def _plain(name: str) -> str:
    """Name of an option without dashes, with underscores; of a section its own name."""
    return name.lstrip("-").replace("-", "_").partition(".")[0]


def _parser(text: LaunchText) -> _Parser | None:
    """The parser of a launch's options; None for a program that is no trainer."""
    told = told_options(text.arguments)
    if starts_openrlhf(text.program, told):
        return _Parser(name="OpenRLHF", known=frozenset(OWN_NAMES) | _names(_BASE) | _read_here(), near=OWN_NAMES)
    if not trains(text.program, told):
        return None
    trainer = trainer_of(text, told)
    if trainer and text.program in (trainer, ""):
        names = _names(trainer)
        return _Parser(
            name=trainer,
            known=names | _names(_COMMANDS) | _read_here(),
            near=names,
            whole=True,
            drops=trainer == _DROPS,
        )
    every = frozenset[str]().union(*(_names(one) for one in _table()))
    return _Parser(name="Hugging Face's Trainer", known=every | _read_here(), near=_names(_BASE))


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of a launch as the parser of its trainer takes them; that of a program that is no trainer takes all.

    ``text`` has those whose beginning alone is told with their whole names, as argparse takes them.
    """

    text: LaunchText
    parser: _Parser | None

    def faults(self) -> tuple[Fault, ...]:
        """Options that the parser refuses, each with the one that it was most likely meant for."""
        if self.parser is None:
            return ()
        meant = ((name, _meant(_plain(name), self.parser)) for name in _unknown(self.text, self.parser))
        return tuple(_fault(_as_given(name, self.text), near, self.parser) for name, near in meant if near)

    def unlisted(self) -> tuple[str, ...]:
        """Options of a trainer's own program that its releases do not have, near to another one or not."""
        if self.parser is None or not self.parser.whole:
            return ()
        return tuple(_as_given(name, self.text) for name in _unknown(self.text, self.parser))


def trainer_options(text: LaunchText) -> TrainerOptions:
    """Read the options of a launch as the parser of its trainer does.

    Parameters
    ----------
    text : LaunchText
        Of any program.
    """
    parser = _parser(text)
    if parser is None or parser.drops or not text.program:  # settings of a file are not cut short
        return TrainerOptions(text=text, parser=parser)
    words, notes = list(text.arguments), []
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        whole = _begun(name, parser) if name.startswith("--") else ""
        if whole:
            words[index] = f"--{whole}{sign}{value}"
            notes.append(f"{name} is read as --{whole}, as the parser of {parser.name} does")
    return TrainerOptions(text=replace(text, arguments=tuple(words), notes=(*text.notes, *notes)), parser=parser)


def _begun(name: str, parser: _Parser) -> str:
    """The only option that a name begins; empty where there is none, or it is known itself."""
    start = _plain(name)
    if len(start) < _SHORTEST_BEGINNING or start in parser.known or "." in name:
        return ""
    found = [other for other in parser.near if other.startswith(start)]
    return found[0] if len(found) == 1 else ""


def _unknown(text: LaunchText, parser: _Parser) -> list[str]:
    """Options of a launch that a parser does not know, each once, with their dashes."""
    names = dict.fromkeys(word.partition("=")[0] for word in text.arguments if word.startswith("--"))
    return [name for name in names if _plain(name) not in parser.known]


def _as_given(name: str, text: LaunchText) -> str:
    """An option of a command, or a setting of a file, which has no dashes there."""
    return name if text.program else name.lstrip("-")


def _fault(name: str, near: str, parser: _Parser) -> Fault:
    meant = f"--{near}" if name.startswith("-") else near
    what = f"{parser.name} drops {name} without a word" if parser.drops else f"{name} is unknown to {parser.name}"
    return Fault(rule="trainer-unknown-option", argument=name, message=f"{what}; did you mean {meant}?")


def _meant(name: str, parser: _Parser) -> str:
    """The known name that an unknown one was meant for; empty where none is near enough."""
    slips = 2 if len(name) >= _TWO_SLIPS else int(len(name) >= _ONE_SLIP)
    near = min(((_slips(name, other, slips), other) for other in _as_long(name, parser.near, slips)), default=(9, ""))
    if near[0] <= slips:
        return near[1]
    like = difflib.get_close_matches(name, parser.near, n=1, cutoff=_LIKE) if parser.whole and slips > 1 else []
    return like[0] if like else ""


def _as_long(name: str, known: Iterable[str], slips: int) -> list[str]:
    return [other for other in known if abs(len(other) - len(name)) <= slips]


def _slips(first: str, second: str, most: int) -> int:
    """Letters left out, added, changed or swapped with their neighbour between two names; above ``most``: more.

    References
    ----------
    Damerau, Communications of the ACM 7 (1964) 171: restricted edit distance.
    """
    rows = [list(range(len(second) + 1))]
    for i, letter in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
        if min(row) > most:
            break
    return rows[-1][-1] if len(rows) == len(first) + 1 else most + 1
