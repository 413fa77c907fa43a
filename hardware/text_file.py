"""Files that a user names: bounded, UTF-8 with or without a byte order mark, and errors that name the path as typed."""

import codecs
import json
import tomllib
from pathlib import Path
from typing import Final

from hardware.errors import InputError

MOST_BYTES: Final = 4 * 2**20
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text_file(path: Path, *, allowed: str, most_bytes: int = MOST_BYTES) -> str:
    """Read a text file, never more of it than is allowed.

    Parameters
    ----------
    path : Path
        As the user typed it; messages name it so.
    allowed : str
        What is wanted, for messages, such as ``a TOML file``.
    most_bytes : int
        Bytes that the file may have.

    Returns
    -------
    str
        Without the byte order mark that some editors put first; line ends as they are.

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not UTF-8 text.
    """
    where = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        reason = getattr(error, "strerror", None) or "no path"
        raise InputError(f"cannot be read ({reason})", allowed=allowed, where=where) from None
    if len(data) > most_bytes:
        raise InputError(f"has more than {most_bytes} bytes", allowed=f"up to {most_bytes} bytes", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = "UTF-16" if data.startswith(_UTF_16) else f"byte {error.start}"
        raise InputError(f"not UTF-8 text ({found})", allowed=f"{allowed} in UTF-8", where=where) from None


def read_toml_file(path: Path, *, allowed: str) -> dict[str, object]:
    """Read a TOML file.

    Parameters
    ----------
    path : Path
        As the user typed it; at most 4 MiB.
    allowed : str
        What is wanted, for messages.

    Returns
    -------
    dict
        Its top-level table.

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not TOML.
    """
    text = read_text_file(path, allowed=allowed)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InputError(f"not TOML ({_reason(error)})", allowed=allowed, where=str(path)) from None


def read_json_file(path: Path, *, allowed: str, most_bytes: int = MOST_BYTES) -> dict[str, object]:
    """Read a JSON file that holds an object.

    Parameters
    ----------
    path : Path
        As the user typed it.
    allowed : str
        What is wanted, for messages.
    most_bytes : int
        Bytes that the file may have.

    Returns
    -------
    dict
        Its top-level object.

    Raises
    ------
    InputError
        The file cannot be read, is too large, or does not hold a JSON object.
    """
    text = read_text_file(path, allowed=allowed, most_bytes=most_bytes)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({_reason(error)})", allowed=allowed, where=str(path)) from None
    if not isinstance(value, dict):
        raise InputError("holds no JSON object", allowed=allowed, where=str(path))
    return value


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) and not isinstance(error, RecursionError) else "nested too deeply"
