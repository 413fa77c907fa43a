"""Models by name: presets, Hugging Face configurations and TOML files behind one function."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from costmodels.workload.architecture import Architecture
from costmodels.workload.model import LayerKind, LayerRun, ModelSpec, OpaqueLayer
from costmodels.workload.resnet import SIZES, wide_resnet
from hardware.errors import InputError

_FILE = Path(__file__).with_name("models.toml")
_SUFFIXES = (".json", ".toml")
_SHOWN_FILES = 5  # of a folder that is no model


@dataclass(frozen=True)
class _Entry:
    """One preset as its file states it."""

    name: str
    facts: Mapping[str, object]
    source: str
    notes: tuple[str, ...]
    aliases: tuple[str, ...]


def normalise(name: str) -> str:
    """Return a model's name without case and without the characters ``- _ . `` and space.

    Parameters
    ----------
    name : str
        As a user writes it.

    Returns
    -------
    str
        Equal for all spellings that mean the same model.
    """
    return name.lower().translate(str.maketrans("", "", "-_. "))


def _separated(name: str) -> str:
    """Return the name with one mark for every separator, so that 1.3b and 13b stay apart."""
    return name.lower().translate(str.maketrans("-. ", "___"))


@dataclass(frozen=True)
class _Table:
    """Presets by separated spelling, and separated spellings by normalised name."""

    entries: Mapping[str, _Entry]
    spellings: Mapping[str, tuple[str, ...]]


@cache
def _table() -> _Table:
    with _FILE.open("rb") as file:
        families = tomllib.load(file)
    entries: dict[str, _Entry] = {}
    for family in families.values():
        for name, own in family["models"].items():
            facts = {**family.get("facts", {}), **own}
            source = facts.pop("source", family["source"])
            notes = tuple(facts.pop("notes", ()))
            aliases = tuple(facts.pop("aliases", ()))
            entry = _Entry(name, MappingProxyType(facts), source, notes, aliases)
            for spelling in (name, *aliases):
                entries[_separated(spelling)] = entry
    for name in SIZES:
        entries[_separated(name)] = _Entry(name, MappingProxyType({}), "", (), ())
    spellings: dict[str, tuple[str, ...]] = {}
    for spelling in entries:
        key = normalise(spelling)
        spellings[key] = (*spellings.get(key, ()), spelling)
    return _Table(MappingProxyType(entries), MappingProxyType(spellings))


def _entry(name: str) -> _Entry | None:
    """Return the preset of a name: the same separators first, then the likest of those that differ in separators."""
    table = _table()
    wanted = _separated(name)
    if wanted in table.entries:
        return table.entries[wanted]
    spellings = table.spellings.get(normalise(name), ())
    if not spellings:
        return None
    likest = max(spellings, key=lambda spelling: (SequenceMatcher(None, wanted, spelling).ratio(), spelling))
    return table.entries[likest]


def names() -> tuple[str, ...]:
    """Return the names of all presets, in the order of their families.

    Returns
    -------
    tuple of str
        Without aliases.
    """
    return tuple(dict.fromkeys(entry.name for entry in _table().entries.values()))


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
    if entry is None:
        return None
    if entry.name in SIZES:
        return wide_resnet(entry.name, *SIZES[entry.name])
    facts = Architecture(**entry.facts)  # type: ignore[arg-type]
    return facts.build(entry.name, sources=(entry.source,), notes=entry.notes)


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
        A preset (case and the characters ``- _ .`` do not matter), the path of a Hugging Face ``config.json`` or of a
        folder with one, or the path of a TOML file.

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
    found = find(name_or_path)
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
    by_key = {normalise(known): known for known in names()}
    last = name.rstrip("/").rpartition("/")[2]  # of a hub's owner/name
    near = [by_key[key] for key in get_close_matches(normalise(last), by_key, n=3)]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return InputError(
        f"model {name!r} is not known{hint}",
        allowed="a preset (`plan catalog models` lists them), a Hugging Face config.json, or a TOML file",
    )


def _read(path: Path) -> ModelSpec:
    # Imported here: most runs name a preset and should not pay for the readers.
    if path.suffix.lower() == ".json":
        from costmodels.workload.huggingface import read_config  # noqa: PLC0415

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
