"""Models by name: presets, Hugging Face configurations and TOML files behind one function."""

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.model import LayerKind, LayerRun, ModelSpec, OpaqueLayer, Tower
from costmodels.workload.preset_table import PresetEntry, alike, entries, exact, normalise, spellings, stated_sizes
from costmodels.workload.resnet import SIZES, wide_resnet
from hardware.errors import InputError

_SUFFIXES = (".json", ".toml")
_SHOWN_FILES = 5  # of a folder that is no model
_SHOWN_NAMES = 3  # of presets near a wrong name
_NEAREST = 6  # spellings near a wrong name, several of which may be one preset's
_WORD: Final = re.compile(r"[a-z0-9.]+")
_SAME_SIZE: Final = 1.6
"""A name's round size and the parameters differ by up to 1.4 (Gemma 2 of 2B: 2.6 billion); 1.3b and 13b by 10."""


def _entry(name: str) -> PresetEntry | None:
    """Return the preset of a name: as it is spelled, then with other separators if its size agrees."""
    for spelling in spellings(name):
        found = exact(spelling)
        if found is not None:
            return found
        sizes = stated_sizes(spelling)
        for entry in alike(spelling):
            if not sizes or _of_size(_build(entry), sizes):
                return entry
    return None


def _of_size(spec: ModelSpec, sizes: tuple[tuple[float, ...], ...]) -> bool:
    """Whether all the sizes that a name states are a model's, all of its parameters or the active ones."""
    # Imported here: names that are spelled as their presets are should not pay for the ops of models.
    from costmodels.workload.counts import parameter_count  # noqa: PLC0415

    count = parameter_count(spec)
    own = (count.total, count.active)
    return all(
        any(1.0 / _SAME_SIZE < reading / mine < _SAME_SIZE for reading in readings for mine in own)
        for readings in sizes
    )


def _build(entry: PresetEntry) -> ModelSpec:
    if entry.name in SIZES:
        return wide_resnet(entry.name, *SIZES[entry.name])
    facts = Architecture(**entry.facts)  # type: ignore[arg-type]
    built = facts.build(entry.name, sources=(entry.source,), notes=entry.notes)
    return replace(built, tower=_tower(entry, built.hidden)) if entry.vision else built


def _tower(entry: PresetEntry, text_width: int) -> Tower | None:
    """The vision tower of a preset, told as a configuration tells it."""
    # Imported here: most presets have none.
    from costmodels.workload.huggingface.vision import tower_of  # noqa: PLC0415

    model_type, where = str(entry.vision["type"]), f"preset {entry.name}"
    vision = {name: value for name, value in entry.vision.items() if name != "type"}
    return tower_of(Fields({"vision_config": vision}, where), model_type, text_width)


def names() -> tuple[str, ...]:
    """Return the names of all presets, in the order of their families.

    Returns
    -------
    tuple of str
        Without aliases.
    """
    return tuple(entry.name for entry in entries())


def architecture(name: str) -> Architecture | None:
    """Return the facts of a transformer preset.

    Parameters
    ----------
    name : str
        A preset or an alias, in any spelling.

    Returns
    -------
    Architecture or None
        None when no transformer preset has this name.
    """
    entry = _entry(name)
    return Architecture(**entry.facts) if entry and entry.facts else None  # type: ignore[arg-type]


@cache
def find(name: str) -> ModelSpec | None:
    """Return a preset.

    Parameters
    ----------
    name : str
        A preset or an alias, in any spelling.

    Returns
    -------
    ModelSpec or None
        None when no preset has this name.
    """
    entry = _entry(name)
    return _build(entry) if entry else None


def beginning(name: str) -> ModelSpec | None:
    """Return the preset that a longer name begins with, such as ``llama3_8b`` of ``llama3_8b_pretrain_config``.

    Parameters
    ----------
    name : str
        Words joined by dashes or underscores.

    Returns
    -------
    ModelSpec or None
        The preset of the most words; None when no preset has the first ones.
    """
    words = re.split(r"[_-]", name)
    return next((found for end in range(len(words), 0, -1) if (found := find("_".join(words[:end])))), None)


def model(name_or_path: str) -> ModelSpec:
    """Return the model that a user names.

    Parameters
    ----------
    name_or_path : str
        A preset (case, the characters ``- _ .``, owner, tuning and number format do not matter), the path of a Hugging
        Face ``config.json`` or of a folder with one, or the path of a TOML file.

    Returns
    -------
    ModelSpec
        The model.

    Raises
    ------
    InputError
        No such preset or file, or the file is wrong.
    """
    path = Path(name_or_path)
    if path.suffix.lower() in _SUFFIXES:
        return _read(path)
    found = None if len(path.parts) > 1 and path.is_dir() else find(name_or_path)
    if found is not None:
        return found
    if not path.is_dir():
        raise unknown(name_or_path)
    if not (path / "config.json").is_file():
        files = sorted(name for name in _names_in(path) if name.lower().endswith(_SUFFIXES))[:_SHOWN_FILES]
        hint = f"; it holds {', '.join(files)}" if files else ""
        raise InputError(
            f"the folder has no config.json{hint}",
            allowed="a folder with a Hugging Face config.json, the path of such a file, or of a TOML file",
            where=name_or_path,
        )
    return _read(path / "config.json")


def is_known(name_or_path: str) -> bool:
    """Whether a name is that of a preset, or of a file or folder, so that :func:`model` may find it."""
    path = Path(name_or_path)
    return path.suffix.lower() in _SUFFIXES or path.is_dir() or find(name_or_path) is not None


def _names_in(folder: Path) -> list[str]:
    try:
        return [file.name for file in folder.iterdir()]
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", allowed="a folder that you may read", where=str(folder)
        ) from None


def unknown(name: str) -> InputError:
    """Return the error for a name that no preset has, with the nearest names.

    Parameters
    ----------
    name : str
        As the user wrote it.

    Returns
    -------
    InputError
        To be raised.
    """
    by_key = {normalise(spelling): entry.name for entry in entries() for spelling in (entry.name, *entry.aliases)}
    *_, shortest = spellings(name)
    words = set(_WORD.findall(shortest))
    longer = [entry.name for entry in entries() if len(words) > 1 and words <= set(_WORD.findall(entry.name))]
    close = get_close_matches(normalise(shortest), by_key, n=_NEAREST)
    near = list(dict.fromkeys([*longer, *(by_key[key] for key in close)]))[:_SHOWN_NAMES]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return InputError(
        f"model {name!r} is not known{hint}",
        allowed="a preset (`plan catalog models` lists them), a Hugging Face config.json, or a TOML file",
    )


def _read(path: Path) -> ModelSpec:
    # Imported here: most runs name a preset and should not pay for the readers.
    if path.suffix.lower() == ".json":
        from costmodels.workload.huggingface.config import read_config  # noqa: PLC0415

        return read_config(path)
    from costmodels.workload.files import read_model  # noqa: PLC0415

    return read_model(path)


def proxy(base: ModelSpec, layers: int) -> ModelSpec:
    """Return the first ``layers`` layers of a model, with its embedding, head and multi-token prediction.

    Leading dense layers and the order of kinds stay as they are, as frameworks do when they are told fewer layers.

    Parameters
    ----------
    base : ModelSpec
        The whole model.
    layers : int
        Layers to keep, 1 to all.

    Returns
    -------
    ModelSpec
        Named after the model and the number of layers; the model itself when that is all of them.

    Raises
    ------
    InputError
        The model has not that many layers.
    """
    if not 1 <= layers <= base.layers:
        raise InputError(f"{base.name} cannot have {layers} layers", allowed=f"1 to {base.layers}")
    if layers == base.layers:
        return base
    return replace(base, name=f"{base.name}[{layers} layers]", runs=tuple(_first(base.runs, layers)))


def _first(runs: Iterable[LayerRun], layers: int) -> Iterable[LayerRun]:
    left = layers
    for run in runs:
        if left <= 0:
            return
        yield LayerRun(kind=run.kind, count=min(run.count, left))
        left -= run.count


def is_opaque(base: ModelSpec) -> bool:
    """Whether the model is a list of layers known by totals only.

    Parameters
    ----------
    base : ModelSpec
        A model.

    Returns
    -------
    bool
        True when no layer is a :class:`LayerKind`.
    """
    kinds: tuple[LayerKind | OpaqueLayer, ...] = base.kinds()
    return all(isinstance(kind, OpaqueLayer) for kind in kinds)
