"""Files that a user names: bounded, UTF-8 with or without a byte order mark, and errors that name the path as typed."""

import codecs
import json
import os
import select
import stat
import tomllib
from pathlib import Path
from typing import Final

from hardware.errors import InputError

MOST_BYTES: Final = 4 * 2**20
PATIENCE_S: Final = 1.0
"""How long a pipe that nobody has opened for writing may take to be opened."""
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
        The file cannot be read, is a device or a pipe that nobody writes into, is too large, or is not UTF-8 text.
    """
    where = str(path)
    try:
        data = _start_of(path, most_bytes + 1, allowed)
    except InputError:
        raise
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


def is_file(path: Path) -> bool:
    """Whether a path is that of a file; no, too, for what no path can be, such as a text of many lines."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _start_of(path: Path, most_bytes: int, allowed: str) -> bytes:
    """First bytes of a file or a pipe; devices, which may never end, and pipes without a writer are refused."""
    with open(path, "rb", buffering=0, opener=without_waiting) as stream:
        kind = os.fstat(stream.fileno()).st_mode
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise InputError("is a device", allowed=allowed, where=str(path))
        head: bytes | None = b""
        if stat.S_ISFIFO(kind):
            if not select.select([stream], [], [], PATIENCE_S)[0]:
                head = stream.read(1)  # None: someone holds the other end open and will write
            if head == b"" and not select.select([stream], [], [], 0.0)[0]:
                raise InputError("is a pipe that nobody writes into", allowed=allowed, where=str(path))
            os.set_blocking(stream.fileno(), True)
        parts = [head or b""]
        while (left := most_bytes - sum(map(len, parts))) > 0 and (part := stream.read(left)):
            parts.append(part)
    return b"".join(parts)


def without_waiting(path: str, flags: int) -> int:
    """Open a file as ``open`` does, a pipe at once where the system can: else it waits for its other end without end.

    Parameters
    ----------
    path : str
        File.
    flags : int
        Of ``os.open``.

    Returns
    -------
    int
        The descriptor.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_toml_file(path: Path, *, allowed: str, most_bytes: int = MOST_BYTES) -> dict[str, object]:
    """Read a TOML file.

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
        Its top-level table.

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not TOML.
    """
    text = read_text_file(path, allowed=allowed, most_bytes=most_bytes)
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
