"""A user's launch, in whatever file it stands, in one form: arguments, a configuration, an environment, a size.

Argument lists and shell scripts give arguments; YAML and TOML are written out as the arguments or overrides that say
the same; JSON stays whole, for the frameworks that are configured by it.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from hardware.text_file import is_file, read_text_file
from planner.ingest.accelerate_settings import (
    TRL_OPTION,
    AccelerateSettings,
    is_accelerate,
    launcher_words,
    named_settings,
    settings_of,
)
from planner.ingest.layers_file import PATH, TEXT
from planner.ingest.script_files import written_files
from planner.ingest.script_pieces import whole_script
from planner.ingest.settings_files import load_yaml, plain_value, toml_options, written_out, yaml_overrides
from planner.ingest.shell_script import MOST_SCRIPT_BYTES, ShellCommand, ShellScript, read_script
from planner.ingest.shell_values import BLANK
from planner.ingest.trainer_words import as_options, is_settings
from planner.ingest.training_command import (
    TITAN_FILE,
    TrainingCommand,
    one_command,
    titan_script,
    training_command,
)
from planner.ingest.yaml_defaults import with_defaults

MOST_TESTS_TOLD: Final = 4
MOST_FOLDERS: Final = 4
"""Folders above a launch from which the files that it names may be told: it is started at the top of a checkout."""
_DEEPSPEED_CONFIG: Final = ("--deepspeed_config", "--deepspeed-config")
_TRAINERS_CONFIG: Final = ("--deepspeed",)
_NAMED_SECTIONS: Final = (("--fsdp_config", "--fsdp-config"), ("--accelerator_config", "--accelerator-config"))
"""Options of Hugging Face's Trainer that hold settings, or name a JSON file of them."""
_YAML: Final = (".yaml", ".yml")
_PER_NODE: Final = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus")
_NODES: Final = ("--nnodes", "--num_nodes", "--num-nodes", "-N")
_SLURM_PER_NODE: Final = ("--gpus-per-node", "--gres", "--ntasks-per-node")
_SLURM_NODES: Final = re.compile(r"^#SBATCH[ \t]+(?:--nodes[= \t]|-N[ \t]*)[ \t]*(\d+)\b", re.MULTILINE)
_SLURM_VARIABLES: Final = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_PROCESSES: Final = ("--num_processes", "--num-processes", "-np")
_TOTAL: Final = ("accelerate", "axolotl", "deepspeed", "mpirun")
"""Launchers with an option for all processes of all nodes."""
_ACCELERATE_CONFIG: Final = ("--config_file", "--config-file", TRL_OPTION)
_ALL_VISIBLE: Final = ("llamafactory-cli", "lmf")
"""Programs that start a process on each accelerator that they see."""
_WINDOWS: Final = (
    "the script has the line ends of Windows, which a shell takes for letters of words; it is read without"
)
_JSON: Final = re.compile(r"\s*\{\s*(?:[\"}#]|//|/\*)")
"""How an object begins, with or without a comment; a script may begin with a bracket too."""
_RECIPES: Final = ("--recipe", "--factory")
_HERE: Final = "arguments"
"""A name in the current folder, for words that no file holds."""
_TRL_CONFIG: Final = ("--config",)
_NANOTRON_CONFIG: Final = ("--config-file",)
_OF_NANOTRON: Final = "parallelism.tp="
_DEEPY: Final = "deepy.py"
_CONFIG_FOLDER: Final = ("-d", "--conf_dir")
_CONFIG_KEYS: Final = ("galvatron_config_path", "deepspeed_config")


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
        return _with_recipe(LaunchText(arguments=_with_layers(tuple(words), Path(_HERE))))
    whole = _text(path, unix=False)
    text, windows = _unix(whole), "\r\n" in whole
    if not text.strip():
        raise InputError("is empty", allowed="a launch: arguments, script, YAML, TOML or JSON", where=str(path))
    where = str(path)
    suffix = path.suffix.lower()
    if suffix == ".json" or (suffix not in (*_YAML, ".toml") and _JSON.match(text)):
        found = LaunchText(arguments=(), config=text)
    elif suffix in _YAML:
        content = load_yaml(text, where)
        found = _by_accelerate(content, path) if is_accelerate(content) else _of_yaml(content, path)
    elif suffix == ".toml":
        found = LaunchText(arguments=tuple(toml_options(text, where)))
    else:
        found = _shell(text, path)
        found = replace(found, notes=(*found.notes, _WINDOWS)) if windows and found.program else found
    return _with_recipe(replace(found, arguments=_with_layers((*found.arguments, *words), path)))


def _with_layers(words: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Arguments with the text of the file of unlike layers that they name, which they may give themselves."""
    named, text = _option(words, (PATH,)), _option(words, (TEXT,))
    file = _beside(named, path) if named and not text else None
    if file is None:
        return words
    plain = [word.replace(named, file.name) for word in words]
    return (*plain, TEXT, _text(file))


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


def _text(path: Path, *, unix: bool = True) -> str:
    """Text of a file, with the line ends of Unix or its own."""
    text = read_text_file(path, allowed="a launch: arguments, script, YAML, TOML or JSON", most_bytes=MOST_SCRIPT_BYTES)
    return _unix(text) if unix else text


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


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
    accelerate = settings_of(_launcher_file(launcher, path), launcher) if launcher else None
    found = replace(found, arguments=_of_deepy(found.arguments, path)) if found.name == _DEEPY else found
    found, assumed = _of_titan(found, path) if _option(found.arguments, TITAN_FILE) else (found, ())
    arguments, settings = _with_settings(found.arguments, path, any_trainer=accelerate is not None)
    arguments = _with_named_sections(arguments, path)
    arguments = _with_layers(arguments, path)
    full = replace(command, words=(*command.words, *arguments))
    unresolved = [name for name in command.unresolved if any(name in word for word in command.words)]
    named = [name for name in unresolved if name not in ("$@", "$*") and any(name in word for word in arguments)]
    told = f"no value in {path.name}, so options that use it are not judged: {', '.join(named).replace(BLANK, ' ')}"
    return LaunchText(
        arguments=arguments,
        unresolved=tuple(dict.fromkeys(unresolved)),
        config=_named_json(full, path, written_files(script, path.parent), settings)
        or _json_beside(accelerate.plugin_file if accelerate else "", path),
        accelerate=accelerate,
        program=found.program,
        environment=command.environment,
        world=_world(command, script) or (accelerate.processes if accelerate else 0),
        notes=(*rivals, *assumed, *([told] if named else []), *_undecided(script), *_unfound(found.arguments, path)),
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


def _named_json(command: ShellCommand, path: Path, written: Mapping[str, str], settings: Path) -> str:
    """Text of the JSON configuration that a command names: written by the script, or beside it or its settings."""
    words = command.words
    told = _option(words, _DEEPSPEED_CONFIG)
    told = told or next((word.partition("=")[2] for word in words if word.partition("=")[0].endswith(_CONFIG_KEYS)), "")
    told = told or _option(words, _TRAINERS_CONFIG)
    by_path = {str(Path(name)): text for name, text in written.items()}
    if told and str(Path(told)) in by_path:
        return _without_gaps(by_path[str(Path(told))], command, str(path))
    return _json_beside(told, path) or _json_beside(told, settings)


def _json_beside(name: str, path: Path) -> str:
    """Text of a JSON file as named, or beside the launch; empty where there is none."""
    found = _beside(name, path) if name.endswith(".json") else None
    return _text(found) if found else ""


def _beside(name: str, path: Path) -> Path | None:
    """A file as named from here, from the folder of the launch or one above it, or in that folder."""
    above = [folder / name for folder in path.resolve().parents[:MOST_FOLDERS]]
    candidates = (Path(name), *above, path.parent / Path(name).name)
    return next((candidate for candidate in candidates if is_file(candidate)), None)


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
    words = _with_named_sections(as_options(overrides), path)
    return LaunchText(arguments=words, config=_json_beside(_option(words, _TRAINERS_CONFIG), path))


def _with_named_sections(words: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Options of a trainer with the settings that one option holds as JSON, or that are in the file that it names."""
    found = list(words)
    for names in _NAMED_SECTIONS:
        told = _option(words, names)
        text = told if _JSON.match(told) else _json_beside(told, path)
        content = load_yaml(text, told) if text else {}
        found += _as_words(names[0], content) if isinstance(content, dict) else []
    return tuple(found)


def _as_words(name: str, settings: Mapping[Any, Any]) -> list[str]:
    """Settings of a section, and of those in it, as options behind its name."""
    found = []
    for key, value in settings.items():
        inner = f"{name}.{key}"
        found += _as_words(inner, value) if isinstance(value, dict) else [f"{inner}={plain_value(value)}"]
    return found


def _by_accelerate(content: Any, path: Path) -> LaunchText:
    """A configuration of accelerate alone: the trainer's options come behind it."""
    told = settings_of(content, ())
    config = _json_beside(told.plugin_file if told else "", path)
    return LaunchText(arguments=(), config=config, accelerate=told, world=told.processes if told else 0)


def _launcher_file(words: Sequence[str], path: Path) -> Mapping[str, Any]:
    """The configuration file that the launcher is given; empty for none.

    Raises
    ------
    InputError
        It is named and not found, or is no configuration of accelerate.
    """
    named = _option(words, _ACCELERATE_CONFIG)
    if not named:
        return {}
    if own := named_settings(named, words):
        return own
    file = _beside(named, path)
    content = load_yaml(_text(file), str(file)) if file else None
    if not is_accelerate(content):
        what = "is not found" if file is None else "is no configuration of accelerate"
        allowed = "a YAML file with distributed_type, beside the launch"
        raise InputError(f"{named.replace(BLANK, ' ')} {what}", allowed=allowed, where=str(path))
    return dict(content) if isinstance(content, dict) else {}


def _with_settings(
    arguments: tuple[str, ...], path: Path, *, any_trainer: bool = False
) -> tuple[tuple[str, ...], Path]:
    """Arguments of a trainer with those of the YAML file that it is given first, or as ``--config``, and that file.

    Else they are as they were. TRL's parser reads ``--config``; options behind it win.

    With ``any_trainer`` the file need not name a configuration of DeepSpeed.
    """
    first = arguments[0] if arguments and arguments[0].endswith(_YAML) and not arguments[0].startswith("-") else ""
    named = first or _option(arguments, (*_TRL_CONFIG, *_NANOTRON_CONFIG))
    file = _beside(named, path) if named.endswith(_YAML) else None
    overrides = tuple(yaml_overrides(_text(file), str(file))) if file else ()
    if any(word.startswith(_OF_NANOTRON) for word in overrides):
        return overrides, path
    if file is None or not (any_trainer or is_settings(overrides)):
        return arguments, path
    others = arguments[1:] if first else tuple(_without(arguments, _TRL_CONFIG))
    return as_options((*overrides, *others)), file


def _of_deepy(arguments: Sequence[str], path: Path) -> tuple[str, ...]:
    """Settings of the files that GPT-NeoX's launcher is given behind its program, later ones over earlier ones.

    Raises
    ------
    InputError
        A file is not beside the launch.
    """
    folder = _option(arguments, _CONFIG_FOLDER)
    plain = list(_without(arguments, _CONFIG_FOLDER))[1:]
    settings: list[str] = []
    for name in takewhile(lambda word: not word.startswith("-"), plain):
        whole = f"{Path(folder) / name}{'' if name.endswith(_YAML) else '.yml'}"
        file = _beside(whole, path)
        if file is None:
            raise InputError(f"{whole} is not found", allowed="the file beside the launch", where=str(path))
        settings += yaml_overrides(_text(file), str(file))
    return tuple(settings)


def _of_titan(found: TrainingCommand, path: Path) -> tuple[TrainingCommand, tuple[str, ...]]:
    """A launch of torchtitan 0.2 with what the TOML file that it names says; one of its own is known by its name."""
    name = _option(found.arguments, TITAN_FILE)
    others = tuple(_without(found.arguments, TITAN_FILE))
    file = _beside(name, path)
    if file is not None:
        return replace(found, arguments=(*toml_options(_text(file), str(file)), *others)), ()
    model, _, flavor = Path(name).stem.rpartition("_")
    note = f"{name.replace(BLANK, ' ')} is not beside {path.name}: what torchtitan ships under this name is taken"
    return replace(found, arguments=("--model.name", model, "--model.flavor", flavor, *others)), (note,)


def _unfound(arguments: Sequence[str], path: Path) -> Iterator[str]:
    """Say that a YAML file that a program is given as ``--config`` is not found."""
    named = _option(arguments, _TRL_CONFIG)
    if named.endswith(_YAML) and _beside(named, path) is None:
        yield f"{named.replace(BLANK, ' ')} is not found beside {path.name}, so what it sets is not read"


def _without(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Words without some options and their values."""
    value = False
    for word in words:
        name, sign, _ = word.partition("=")
        if value or name in names:
            value = not value and not sign
        else:
            yield word


def _without_gaps(text: str, command: ShellCommand, where: str) -> str:
    """A configuration that a script writes, unless it writes values into it that only a running shell knows."""
    gaps = [name for name in command.unresolved if re.search(rf"{re.escape(name)}(?!\w)", text)]
    if gaps:
        told = ", ".join(dict.fromkeys(gaps)).replace(BLANK, " ")
        raise InputError(
            f"the configuration that it writes has values that are not in the file: {told}",
            allowed="the configuration itself as --args-file, with the script's degrees behind --",
            where=where,
        )
    return text


def _option(words: Sequence[str], names: Sequence[str]) -> str:
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in names:
            return value if sign else (words[index + 1] if index + 1 < len(words) else "")
    return ""


def _world(command: ShellCommand, script: ShellScript) -> int:
    """GPUs that the launcher's options, the batch system's lines or the script's variables state; 0: none do."""
    words = command.words
    own = command.environment
    total = _count(_option(words, _PROCESSES)) or _included(_option(words, ("--include", "-i")))
    if total and command.program in _TOTAL:
        return total
    per_node = _count(_option(words, _PER_NODE)) or _slurm_per_node(script) or _count(own.get("NPROC_PER_NODE", ""))
    if not per_node and titan_script(words) >= 0:
        per_node = _count(own.get("NGPU", "8"))
    if not per_node and command.program in _ALL_VISIBLE:
        per_node = len([device for device in own.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()])
    stated = _option(words, _NODES)
    nodes = _count(stated) or _count(_option(script.directives, ("--nodes", "-N"))) or _count(own.get("NNODES", ""))
    if per_node:
        return per_node * (nodes or (0 if stated else 1))  # a number of nodes that only the running shell knows
    return _count(command.environment.get("WORLD_SIZE", script.variables.get("WORLD_SIZE", "")))


def _included(text: str) -> int:
    """Accelerators that DeepSpeed's ``--include`` names, as in ``a:0,1@b:0,1``; 0: of some host it names none."""
    hosts = [host.partition(":")[2] for host in text.split("@")]
    return sum(len(slots.split(",")) for slots in hosts) if all(hosts) else 0


def _slurm_per_node(script: ShellScript) -> int:
    """GPUs of a node that the batch system's lines ask for; tasks where they name none."""
    return next((found for name in _SLURM_PER_NODE if (found := _count(_option(script.directives, (name,))))), 0)


def _count(text: str) -> int:
    found = re.search(r"(\d+)$", text)
    return int(found[1][:9]) if found else 0
