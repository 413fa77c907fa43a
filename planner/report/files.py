"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from hardware.errors import InputError
from hardware.text_file import is_file, without_waiting

_PART: Final = ".part"


def check_place(path: Path) -> None:
    """Raise InputError where :func:`write_whole` would, as far as that shows before the work is done."""
    check_name(path)
    try:
        if path.is_dir():
            raise InputError("is a folder", allowed="the name of a file", where=str(path))
        if not path.parent.is_dir():
            raise InputError(f"no folder {path.parent}", allowed="a folder that exists", where=str(path))
        os.stat(path)
    except FileNotFoundError:
        pass  # the usual case: it is to be made
    except OSError as error:  # a name that is too long, links in a circle, a folder that may not be looked into
        raise _refused(path, error) from None


def check_places(places: Mapping[str, Path], inputs: Iterable[str] = ()) -> None:
    """Check where files are to be written, before the work is done.

    Parameters
    ----------
    places : mapping of str to Path
        Option to its file.
    inputs : iterable of str
        What the command reads, as typed; names that are no files do not matter.

    Raises
    ------
    InputError
        A place cannot be written, is that of another option, or is a file that the command reads.
    """
    taken = {_place(Path(name)): name for name in inputs if is_file(Path(name))}
    used: dict[Path, str] = {}
    for option, path in places.items():
        check_place(path)
        place = _place(path)
        if place in taken:
            raise InputError(f"{option} {path} would overwrite what is read", allowed="the name of another file")
        if place in used and not (path.exists() and not path.is_file()):  # /dev/null takes any number of them
            raise InputError(f"{used[place]} and {option} name one file, {path}", allowed="a file for each")
        used[place] = option


def check_name(path: Path) -> None:
    """Refuse the name ``-``, which elsewhere means standard output; InputError says how to write one of that name."""
    if str(path) == "-":
        raise InputError("'-' is no name of a file or folder here", allowed="a name; ./- for one that is called so")


def _place(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except OSError as error:  # the current folder has been removed
        raise _refused(path, error) from None


def write_whole(path: Path, text: str) -> None:
    """Write a text file beside its place and move it there in one step.

    Parameters
    ----------
    path : Path
        Its folder must exist; a file that is there is replaced.
    text : str
        Content; written as UTF-8 with line feeds as line ends.

    Raises
    ------
    InputError
        The folder is missing, or may not be written.
    """
    check_place(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        _write_through(path, text)  # a pipe or a terminal takes the bytes; nothing may take its place
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    except OSError as error:
        raise _refused(path, error) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _refused(path, error) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write_through(path: Path, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", opener=without_waiting) as file:
            os.set_blocking(file.fileno(), True)
            file.write(text)
    except OSError as error:
        raise _refused(path, error) from error


def drop_parts(folder: Path) -> None:
    """Remove what :func:`write_whole` left in a folder when its process was killed."""
    for part in folder.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder with its parents; InputError when that is refused."""
    check_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot be written: {reason}", allowed="a place that you may write", where=str(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
