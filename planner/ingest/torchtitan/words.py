"""Words of torchtitan's command lines: its options, those of 0.2 in the words of 0.3, switches both ways."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hardware.package_table import package_table
from planner.ingest.options import Fault

_MODEL: Final = ("name", "flavor")
SECTIONS: Final = ("training", "parallelism", "compile", "loss")
"""Sections whose options are judged."""
CHECKPOINT: Final = "activation-checkpoint:"
"""What the subcommand of activation checkpointing begins with."""
OVERRIDE: Final = "override"
"""Section that stands for those which only 0.2 has."""
_CHECKPOINT: Final = "activation_checkpoint"
"""The one of those that 0.3 has too, as a subcommand."""
_NEW: Final = ("--module", "--config")
_OVERRIDE: Final = f"--{OVERRIDE}."


def option_table() -> Mapping[str, Any]:
    """Options by section, and the names of the sections that are not judged."""
    return package_table("planner.ingest.torchtitan", "options.toml")


def of_any_version(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Options of torchtitan 0.2 in the words of 0.3; sections that only 0.2 has become one that is not judged.

    Parameters
    ----------
    arguments : sequence of str
        As after ``torchtitan.train``.

    Returns
    -------
    tuple
        The words, and whether they were those of 0.2: a model named by ``--model.name``, or a section that only 0.2 has
        where 0.3's ``--module`` and ``--config`` are not told.
    """
    newer = any(word.partition("=")[0] in _NEW for word in arguments)
    before = not newer and any(map(_only_old, arguments))
    words: list[str] = []
    told = dict.fromkeys((*_MODEL, "mode"), "")
    pending = ""
    for word in arguments:
        name, sign, value = word.removeprefix("--").partition("=")
        section, _, field = name.replace("-", "_").partition(".")
        if pending and not word.startswith("--"):
            told[pending], pending = word, ""
            continue
        key = _told_by(section, field) if word.startswith("--") else ""
        if key:
            told[key], pending = value, "" if sign else key
        else:
            aside = _only_old(word) and not (newer and section != _CHECKPOINT)
            words.append(f"{_OVERRIDE}{word.removeprefix('--')}" if aside else word)
    if told["name"] or before:
        words = [_new_name(word) for word in words]
    if told["name"]:
        words += ["--module", told["name"]]
        words += ["--config", _config(told["name"], told["flavor"])] if told["flavor"] else []
    return [*words, *([f"{CHECKPOINT}{told['mode']}"] if told["mode"] else [])], bool(told["name"]) or before


def behind_checkpoint(arguments: Sequence[str]) -> tuple[Fault, ...]:
    """Options behind the subcommand of activation checkpointing that are none of its own, which the parser refuses.

    Parameters
    ----------
    arguments : sequence of str
        Of torchtitan 0.3, whose parser (tyro) reads what is behind a subcommand as the subcommand's.
    """
    at = next((index for index, word in enumerate(arguments) if word.startswith(CHECKPOINT)), len(arguments))
    names = [word.partition("=")[0] for word in arguments[at + 1 :] if word.startswith(("--", CHECKPOINT))]
    return tuple(
        Fault(
            rule="torchtitan-unknown-behind",
            argument=name,
            message=f"{name} is unknown behind {arguments[at]}; allowed: before it",
        )
        for name in names
        if not name.replace("-", "_").startswith(f"__{_CHECKPOINT}.")
    )


def before_checkpoint(arguments: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Arguments with more options where torchtitan's parser takes them: before its subcommand, if there is one."""
    at = next((index for index, word in enumerate(arguments) if word.startswith(CHECKPOINT)), len(arguments))
    return (*arguments[:at], *more, *arguments[at:])


def _told_by(section: str, field: str) -> str:
    """What an option of 0.2 says that has another form in 0.3; empty for others."""
    if (section, field) == (_CHECKPOINT, "mode"):
        return "mode"
    return field if section == "model" and field in _MODEL else ""


def _only_old(word: str) -> bool:
    section = word.removeprefix("--").partition("=")[0].replace("-", "_").partition(".")[0]
    return word.startswith("--") and section in option_table()["old_sections"]


def _new_name(word: str) -> str:
    name, sign, value = word.partition("=")
    plain = name.removeprefix("--").replace("-", "_")
    off = ".no_" in plain
    found = option_table()["old_names"].get(plain.replace(".no_", ".", 1))
    found = found.replace(".", ".no_", 1) if found and off else found
    return f"--{found}{sign}{value}" if found else word


def _config(name: str, flavor: str) -> str:
    return f"{name}_{flavor.lower().replace('.', '_').replace('-', '_')}"


def own_name(word: str) -> str:
    """Name of an option as its user writes it, also in a section that only torchtitan 0.2 has."""
    name = word.partition("=")[0]
    old = name.removeprefix(_OVERRIDE)
    return f"--{old}" if old != name and old.partition(".")[0] in option_table()["old_sections"] else name


def opposite(name: str) -> str:
    """The option that turns a switch the other way: ``--a.no_b`` of ``--a.b``, and back."""
    section, dot, field = name.partition(".")
    return f"{section}{dot}{field.removeprefix('no_') if field.startswith('no_') else f'no_{field}'}"


def last_switches(words: Sequence[str]) -> list[str]:
    """Words without a switch that a later word turns the other way."""
    return [word for index, word in enumerate(words) if opposite(word) not in words[index + 1 :]]


def told_values(words: Sequence[str], name: str) -> tuple[str, ...] | None:
    """Values of an option among words, apart at commas; of a switch its way, ``true`` or ``false``; None: not told.

    Parameters
    ----------
    words : sequence of str
        Options with their values, as of :func:`of_any_version`; the last one counts.
    name : str
        Such as ``model.converters``, without dashes.
    """
    found: list[str] | None = None
    for word in words:
        if word.startswith("--"):
            stated, sign, value = word.partition("=")
            own = own_name(stated)[2:]
            if own in (name, opposite(name)):
                found = [value] if sign else []
                switched = "true" if own == name else "false"
                at = found
            else:
                at = []
        elif found is not None:
            at.append(word)
    if found is None:
        return None
    return tuple(part for value in found for part in value.split(",") if part) or (switched,)
