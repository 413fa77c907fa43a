"""Files that a launch names, found beside it, and what the launch says with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from hardware.errors import InputError
from hardware.text_file import is_file, read_text_file
from planner.ingest.megatron.layers_file import PATH, TEXT
from planner.ingest.option_words import option_of, without
from planner.ingest.scripts.script import MOST_SCRIPT_BYTES, ShellCommand
from planner.ingest.scripts.training_command import TITAN_FILE, TrainingCommand
from planner.ingest.scripts.values import BLANK
from planner.ingest.settings_files import load_yaml, plain_value, toml_options, without_restated, yaml_overrides
from planner.ingest.trainers.accelerate_settings import TRL_OPTION, is_accelerate, named_settings
from planner.ingest.trainers.factory_v1 import of_factory_v1
from planner.ingest.trainers.words import as_options, is_settings

MOST_FOLDERS: Final = 4
"""Folders above a launch from which the files that it names may be told: it is started at the top of a checkout."""
_DEEPSPEED_CONFIG: Final = ("--deepspeed_config", "--deepspeed-config")
TRAINERS_CONFIG: Final = ("--deepspeed",)
_NAMED_SECTIONS: Final = (("--fsdp_config", "--fsdp-config"), ("--accelerator_config", "--accelerator-config"))
"""Options of Hugging Face's Trainer that hold settings, or name a JSON file of them."""
YAML: Final = (".yaml", ".yml")
_ACCELERATE_CONFIG: Final = ("--config_file", "--config-file", TRL_OPTION)
JSON_BEGINS: Final = re.compile(r"\s*\{\s*(?:[\"}#]|//|/\*)")
"""How an object begins, with or without a comment; a script may begin with a bracket too."""
_TRL_CONFIG: Final = ("--config",)
_NANOTRON_CONFIG: Final = ("--config-file",)
_OF_NANOTRON: Final = "parallelism.tp="
_CONFIG_FOLDER: Final = ("-d", "--conf_dir")
_CONFIG_KEYS: Final = ("galvatron_config_path", "deepspeed_config")


def text_of(path: Path, *, unix: bool = True) -> str:
    """Text of a file, with the line ends of Unix or its own."""
    text = read_text_file(path, allowed="a launch: arguments, script, YAML, TOML or JSON", most_bytes=MOST_SCRIPT_BYTES)
    return unix_lines(text) if unix else text


def unix_lines(text: str) -> str:
    """Text with the line ends of Unix."""
    return text.replace("\r\n", "\n")


def beside(name: str, path: Path) -> Path | None:
    """A file as named from here, from the folder of the launch or one above it, or in that folder."""
    above = [folder / name for folder in path.resolve().parents[:MOST_FOLDERS]]
    candidates = (Path(name), *above, path.parent / Path(name).name)
    return next((candidate for candidate in candidates if is_file(candidate)), None)


def json_beside(name: str, path: Path) -> str:
    """Text of a JSON file as named, or beside the launch; empty where there is none."""
    found = beside(name, path) if name.endswith(".json") else None
    return text_of(found) if found else ""


def named_json(command: ShellCommand, path: Path, written: Mapping[str, str], settings: Path) -> str:
    """Text of the JSON configuration that a command names: written by the script, or beside it or its settings."""
    words = command.words
    told = option_of(words, _DEEPSPEED_CONFIG)
    told = told or next((word.partition("=")[2] for word in words if word.partition("=")[0].endswith(_CONFIG_KEYS)), "")
    told = told or option_of(words, TRAINERS_CONFIG)
    by_path = {str(Path(name)): text for name, text in written.items()}
    if told and str(Path(told)) in by_path:
        return _without_gaps(by_path[str(Path(told))], command, str(path))
    return json_beside(told, path) or json_beside(told, settings)


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


def with_layers(words: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Arguments with the text of the file of unlike layers that they name, which they may give themselves."""
    named, text = option_of(words, (PATH,)), option_of(words, (TEXT,))
    file = beside(named, path) if named and not text else None
    if file is None:
        return words
    plain = [word.replace(named, file.name) for word in words]
    return (*plain, TEXT, text_of(file))


def with_named_sections(words: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Options of a trainer with the settings that one option holds as JSON, or that are in the file that it names."""
    found = list(words)
    for names in _NAMED_SECTIONS:
        told = option_of(words, names)
        text = told if JSON_BEGINS.match(told) else json_beside(told, path)
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


def launcher_file(words: Sequence[str], path: Path) -> Mapping[str, Any]:
    """The configuration file that the launcher is given; empty for none.

    Raises
    ------
    InputError
        It is named and not found, or is no configuration of accelerate.
    """
    named = option_of(words, _ACCELERATE_CONFIG)
    if not named:
        return {}
    if own := named_settings(named, words):
        return own
    file = beside(named, path)
    content = load_yaml(text_of(file), str(file)) if file else None
    if not is_accelerate(content):
        what = "is not found" if file is None else "is no configuration of accelerate"
        allowed = "a YAML file with distributed_type, beside the launch"
        raise InputError(f"{named.replace(BLANK, ' ')} {what}", allowed=allowed, where=str(path))
    return dict(content) if isinstance(content, dict) else {}


def with_settings(arguments: tuple[str, ...], path: Path, *, any_trainer: bool = False) -> tuple[tuple[str, ...], Path]:
    """Arguments of a trainer with those of the YAML file that it is given first, or as ``--config``, and that file.

    Else they are as they were. TRL's parser reads ``--config``; options behind it win.

    With ``any_trainer`` the file need not name a configuration of DeepSpeed.
    """
    first = arguments[0] if arguments and arguments[0].endswith(YAML) and not arguments[0].startswith("-") else ""
    named = first or option_of(arguments, (*_TRL_CONFIG, *_NANOTRON_CONFIG))
    file = beside(named, path) if named.endswith(YAML) else None
    overrides = tuple(yaml_overrides(text_of(file), str(file))) if file else ()
    if any(word.startswith(_OF_NANOTRON) for word in overrides):
        return overrides, path
    if file is None or not (any_trainer or is_settings(overrides)):
        return arguments, path
    others = arguments[1:] if first else tuple(without(arguments, _TRL_CONFIG))
    return of_factory_v1(as_options((*overrides, *others))), file


def of_swift_settings(arguments: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Arguments of ms-swift's Megatron behind those of the YAML file that it is given as ``--config``.

    The settings of its ``train`` group, of which Ray starts the trainer, stand beside the common ones; ``gpus`` keeps
    the group's name. Those of other groups are not the trainer's.

    References
    ----------
    ms-swift ``examples/ray``, ``swift/ray``: groups ``train`` and ``rollout``.
    """
    named = option_of(arguments, _TRL_CONFIG)
    file = beside(named, path) if named.endswith(YAML) else None
    content = load_yaml(text_of(file), str(file)) if file else None
    if not isinstance(content, dict):
        return arguments
    group = content.get("train")
    own = group if isinstance(group, dict) else {}
    settings = {name: value for name, value in content.items() if not isinstance(value, dict)}
    settings |= {f"train.{name}" if name == "gpus" else name: value for name, value in own.items()}
    words = [f"{name}={plain_value(value)}" for name, value in settings.items()]
    return as_options((*words, *without(arguments, _TRL_CONFIG)))


def of_deepy(arguments: Sequence[str], path: Path) -> tuple[str, ...]:
    """Settings of the files that GPT-NeoX's launcher is given behind its program, later ones over earlier ones.

    Raises
    ------
    InputError
        A file is not beside the launch.
    """
    folder = option_of(arguments, _CONFIG_FOLDER)
    plain = list(without(arguments, _CONFIG_FOLDER))[1:]
    settings: list[str] = []
    for name in takewhile(lambda word: not word.startswith("-"), plain):
        whole = f"{Path(folder) / name}{'' if name.endswith(YAML) else '.yml'}"
        file = beside(whole, path)
        if file is None:
            raise InputError(f"{whole} is not found", allowed="the file beside the launch", where=str(path))
        settings += yaml_overrides(text_of(file), str(file))
    return tuple(settings)


def of_titan(found: TrainingCommand, path: Path) -> tuple[TrainingCommand, tuple[str, ...]]:
    """A launch of torchtitan 0.2 with what the TOML file that it names says; one of its own is known by its name."""
    name = option_of(found.arguments, TITAN_FILE)
    others = tuple(without(found.arguments, TITAN_FILE))
    file = beside(name, path)
    if file is not None:
        told = without_restated([*toml_options(text_of(file), str(file))], others)
        return replace(found, arguments=(*told, *others)), ()
    model, _, flavor = Path(name).stem.rpartition("_")
    note = f"{name.replace(BLANK, ' ')} is not beside {path.name}: what torchtitan ships under this name is taken"
    return replace(found, arguments=("--model.name", model, "--model.flavor", flavor, *others)), (note,)


def unfound(arguments: Sequence[str], path: Path) -> Iterator[str]:
    """Say that a YAML file that a program is given as ``--config`` is not found."""
    named = option_of(arguments, _TRL_CONFIG)
    if named.endswith(YAML) and beside(named, path) is None:
        yield f"{named.replace(BLANK, ' ')} is not found beside {path.name}, so what it sets is not read"
