"""A user's launch, in whatever file it stands, in one form: arguments, a configuration, an environment, a size.

Argument lists and shell scripts give arguments; YAML and TOML are written out as the arguments or overrides that say
the same; JSON stays whole, for the frameworks that are configured by it.
"""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.launch_files import (
    JSON_BEGINS,
    TRAINERS_CONFIG,
    YAML,
    json_beside,
    launcher_file,
    named_json,
    of_deepy,
    of_swift_settings,
    of_titan,
    text_of,
    unfound,
    unix_lines,
    with_layers,
    with_named_sections,
    with_settings,
)
from planner.ingest.launch_world import world_of
from planner.ingest.option_words import option_of
from planner.ingest.scripts.pieces import whole_script
from planner.ingest.scripts.script import ShellScript, read_script
from planner.ingest.scripts.training_command import SWIFT, TITAN_FILE, one_command, training_command
from planner.ingest.scripts.values import BLANK
from planner.ingest.scripts.written_files import written_files
from planner.ingest.settings_files import load_yaml, toml_options, without_restated, written_out
from planner.ingest.trainers.accelerate_settings import AccelerateSettings, is_accelerate, launcher_words, settings_of
from planner.ingest.trainers.factory_v1 import of_factory_v1
from planner.ingest.trainers.words import as_options, is_settings
from planner.ingest.yaml_defaults import with_defaults

MOST_TESTS_TOLD: Final = 4
_SLURM_NODES: Final = re.compile(r"^#SBATCH[ \t]+(?:--nodes[= \t]|-N[ \t]*)[ \t]*(\d+)\b", re.MULTILINE)
_SLURM_VARIABLES: Final = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_WINDOWS: Final = (
    "the script has the line ends of Windows, which a shell takes for letters of words; it is read without"
)
_RECIPES: Final = ("--recipe", "--factory")
_HERE: Final = "arguments"
"""A name in the current folder, for words that no file holds."""
_DEEPY: Final = "deepy.py"


@dataclass(frozen=True, kw_only=True)
class LaunchText:
    """A launch before any framework has read it.

    Attributes
    ----------
    arguments : tuple of str
        As behind the training program.
    config : str
        JSON text; empty when there is none.
    accelerate : AccelerateSettings or None
        Settings of ``accelerate launch``; None where it is not the launcher, or states none.
    environment : mapping of str to str, or None
        What a script sets; None where no script was given.
    world : int
        GPUs that the file itself starts; 0: it does not say.
    recipe : str
        Name behind ``--recipe`` or ``--factory``.
    program : str
        Python program or module that a script starts; empty where no script was given.
    notes : tuple of str
        What the reader should know: values that are not in the file.
    unresolved : tuple of str
        Variables whose values the file does not hold.
    """

    arguments: tuple[str, ...]
    config: str = ""
    accelerate: AccelerateSettings | None = None
    environment: Mapping[str, str] | None = None
    world: int = 0
    recipe: str = ""
    program: str = ""
    notes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()


def read_launch_text(path: Path | None, words: Sequence[str]) -> LaunchText:
    """Read a launch from a file, with further arguments behind it.

    Parameters
    ----------
    path : Path or None
        Arguments, a shell script, YAML (``.yaml``, ``.yml``), TOML (``.toml``) or JSON (``.json``).
    words : sequence of str
        Arguments given outright; they come last and so win.

    Returns
    -------
    LaunchText

    Raises
    ------
    InputError
        The file is missing, too long, or not what its name says.
    """
    if path is None and (command := one_command(words)):
        return _with_recipe(_shell(command, Path(_HERE)))
    if path is None:
        return _with_recipe(LaunchText(arguments=with_layers(tuple(words), Path(_HERE))))
    whole = text_of(path, unix=False)
    text, windows = unix_lines(whole), "\r\n" in whole
    if not text.strip():
        raise InputError("is empty", allowed="a launch: arguments, script, YAML, TOML or JSON", where=str(path))
    where = str(path)
    suffix = path.suffix.lower()
    if suffix == ".json" or (suffix not in (*YAML, ".toml") and JSON_BEGINS.match(text)):
        found = LaunchText(arguments=(), config=text)
    elif suffix in YAML:
        content = load_yaml(text, where)
        found = _by_accelerate(content, path) if is_accelerate(content) else _of_yaml(content, path)
    elif suffix == ".toml":
        found = LaunchText(arguments=tuple(without_restated([*toml_options(text, where)], words)))
    else:
        found = _shell(text, path)
        found = replace(found, notes=(*found.notes, _WINDOWS)) if windows and found.program else found
    return _with_recipe(replace(found, arguments=with_layers((*found.arguments, *words), path)))


def _with_recipe(found: LaunchText) -> LaunchText:
    """Take ``--recipe NAME`` or ``--factory NAME`` off the overrides."""
    words, recipe = list(found.arguments), ""
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in _RECIPES and (sign or index + 1 < len(words)):
            recipe = value if sign else words[index + 1]
            del words[index : index + (1 if sign else 2)]
            break
    return replace(found, arguments=tuple(words), recipe=recipe.strip("'\""))


def _shell(text: str, path: Path) -> LaunchText:
    """An argument list as a shell reads it, or the training command of a script."""
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if first.startswith("-") or (re.match(r"[\w.+]+=(?!\()\S*(\s|$)", first) and "." in first.partition("=")[0]):
        try:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise InputError(
                f"is not understood ({error})", allowed="arguments as a shell reads them", where=str(path)
            ) from None
        return LaunchText(arguments=tuple(words))
    script = read_script(whole_script(text, path), str(path), _of_batch_system(text))
    found, rivals = training_command(script, path)
    command = found.command
    launcher = launcher_words(command.words, found.arguments)
    accelerate = settings_of(launcher_file(launcher, path), launcher) if launcher else None
    found = replace(found, arguments=of_deepy(found.arguments, path)) if found.name == _DEEPY else found
    if found.program == SWIFT:
        found = replace(found, arguments=of_swift_settings(found.arguments, path))
    found, assumed = of_titan(found, path) if option_of(found.arguments, TITAN_FILE) else (found, ())
    arguments, settings = with_settings(found.arguments, path, any_trainer=accelerate is not None)
    arguments = with_named_sections(arguments, path)
    arguments = with_layers(arguments, path)
    full = replace(command, words=(*command.words, *arguments))
    unresolved = [name for name in command.unresolved if any(name in word for word in command.words)]
    named = [name for name in unresolved if name not in ("$@", "$*") and any(name in word for word in arguments)]
    told = f"no value in {path.name}, so options that use it are not judged: {', '.join(named).replace(BLANK, ' ')}"
    return LaunchText(
        arguments=arguments,
        unresolved=tuple(dict.fromkeys(unresolved)),
        config=named_json(full, path, written_files(script, path.parent), settings)
        or json_beside(accelerate.plugin_file if accelerate else "", path),
        accelerate=accelerate,
        program=found.program,
        environment=command.environment,
        world=world_of(command, script) or (accelerate.processes if accelerate else 0),
        notes=(*rivals, *assumed, *([told] if named else []), *_undecided(script), *unfound(found.arguments, path)),
    )


def _of_batch_system(text: str) -> Mapping[str, str]:
    """Variables that Slurm sets to the nodes that a script asks for."""
    found = _SLURM_NODES.search(text)
    return MappingProxyType(dict.fromkeys(_SLURM_VARIABLES, found[1]) if found else {})


def _undecided(script: ShellScript) -> list[str]:
    """Say which branches are all read, because only the running shell decides between them."""
    told = "; ".join(script.skipped)
    skipped = [f"options that the script itself takes count as not given, so no arm in a loop is read of: {told}"]
    if not script.undecided:
        return skipped if script.skipped else []
    told = "; ".join(script.undecided[:MOST_TESTS_TOLD])
    more = f" and {len(script.undecided) - MOST_TESTS_TOLD} more" if len(script.undecided) > MOST_TESTS_TOLD else ""
    note = f"of the branches behind these tests all are read and the last assignment counts: {told}{more}"
    return [note, *(skipped if script.skipped else [])]


def unresolved_options(text: LaunchText, names: Collection[str]) -> Mapping[str, str]:
    """Options of ``names`` whose values the file does not hold, with those values, unless a later word gives one.

    Parameters
    ----------
    text : LaunchText
        As read.
    names : collection of str
        Options to look for.
    """
    found: dict[str, str] = {}
    name = ""
    for word in text.arguments:
        value = word
        if word.startswith("--"):
            name, _, value = word.partition("=")
        if value and name in names and (word.startswith("--") is bool("=" in word)):
            found.pop(name, None)
            found |= {name: value.replace(BLANK, " ")} if any(gap in value for gap in text.unresolved) else {}
            name = ""  # the words behind an option's value are not of it
    return MappingProxyType(found)


def without_unresolved(text: LaunchText, takes_value: Callable[[str], bool]) -> tuple[str, ...]:
    """Arguments without the values that the file does not hold.

    Parameters
    ----------
    text : LaunchText
        As read.
    takes_value : callable
        Whether an option, by its name, takes a value; such an option goes with its value.
    """
    kept: list[str] = []
    for word in text.arguments:
        if not any(name in word for name in text.unresolved):
            kept.append(word)
        elif kept and kept[-1].startswith("--") and not word.startswith("-") and takes_value(kept[-1]):
            kept.pop()
    return tuple(kept)


def _of_yaml(content: object, path: Path) -> LaunchText:
    """Settings of a YAML file, with those of the files that it begins with."""
    whole, missing = with_defaults(content, path)
    found = _settings(tuple(written_out(whole, str(path))), path)
    notes = tuple(f"{name} is not found beside {path.name}, so what it sets is not read" for name in missing)
    return replace(found, notes=(*found.notes, *notes))


def _settings(overrides: tuple[str, ...], path: Path) -> LaunchText:
    """A YAML file: overrides, or settings of a trainer on DeepSpeed with the configuration that they name."""
    if not is_settings(overrides):
        return LaunchText(arguments=overrides)
    words = with_named_sections(of_factory_v1(as_options(overrides)), path)
    return LaunchText(arguments=words, config=json_beside(option_of(words, TRAINERS_CONFIG), path))


def _by_accelerate(content: Any, path: Path) -> LaunchText:
    """A configuration of accelerate alone: the trainer's options come behind it."""
    told = settings_of(content, ())
    config = json_beside(told.plugin_file if told else "", path)
    return LaunchText(arguments=(), config=config, accelerate=told, world=told.processes if told else 0)
