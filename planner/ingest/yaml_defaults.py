"""YAML settings that begin with those of other files, named by ``defaults``, as Hydra and NeMo RL have them.

References
----------
Hydra, its page on the defaults list: ``group: option`` is ``group/option.yaml`` under ``group``, ``_self_`` the place
of the file's own settings, which else win. NeMo RL ``nemo_rl/utils/config.py``: paths of whole files, beside this one.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hardware.text_file import is_file, read_text_file
from planner.ingest.settings_files import load_yaml

MOST_FILES: Final = 12
_KEY: Final = "defaults"
_SELF: Final = "_self_"
_YAML: Final = (".yaml", ".yml")
_MOST_BYTES: Final = 1 << 20


def with_defaults(content: object, path: Path, left: list[int] | None = None) -> tuple[object, tuple[str, ...]]:
    """Settings with those of the files that they begin with, and the names of files that are not there.

    Parameters
    ----------
    content : object
        Of the YAML file.
    path : Path
        The file.
    left : list of int, optional
        How many files there still may be.

    Raises
    ------
    InputError
        A file that they begin with is not YAML, or too long.
    """
    if not isinstance(content, dict) or not isinstance(content.get(_KEY), str | list):
        return content, ()
    left = [MOST_FILES] if left is None else left
    told = content[_KEY]
    own = {key: value for key, value in content.items() if key != _KEY}
    entries = [told] if isinstance(told, str) else list(told)
    entries = entries if _SELF in entries else [*entries, _SELF]
    found: dict[Any, Any] = {}
    missing: list[str] = []
    for entry in entries:
        if entry == _SELF:
            found = _merged(found, own)
            continue
        for name, package in _files(entry):
            file = path.parent / name
            left[0] -= 1
            if left[0] < 0 or not is_file(file):
                missing.append(name)
                continue
            text = read_text_file(file, allowed="a YAML mapping of settings", most_bytes=_MOST_BYTES)
            inner, gone = with_defaults(load_yaml(text, str(file)), file, left)
            missing += gone
            found = _merged(found, _inside(inner, package))
    return found, tuple(missing)


def _files(entry: object) -> Iterator[tuple[str, Sequence[str]]]:
    """File of an entry, and the keys that its settings stand under."""
    if isinstance(entry, str):
        whole = entry.endswith(_YAML)
        yield (entry if whole else f"{entry}.yaml"), (() if whole else entry.strip("/").split("/")[:-1])
    elif isinstance(entry, dict) and len(entry) == 1:
        group, option = next(iter(entry.items()))
        folder, _, package = str(group).partition("@")
        if isinstance(option, str) and " " not in folder:
            yield f"{folder.strip('/')}/{option}.yaml", (package or folder.strip("/").replace("/", ".")).split(".")


def _inside(content: object, package: Sequence[str]) -> Mapping[Any, Any]:
    inner = content if isinstance(content, dict) else {}
    for key in reversed(package):
        inner = {key: inner}
    return inner


def _merged(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    """Settings of two files; those of the second win."""
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found
