"""Pieces of a launch script that stand elsewhere, put where it runs them: what it sources, texts of commands."""

import re
from pathlib import Path
from typing import Final

from hardware.text_file import is_file, read_text_file
from planner.ingest.scripts.script import MOST_SCRIPT_BYTES

MOST_SOURCED: Final = 3
"""Scripts that source one another."""
MOST_FOLDERS: Final = 5
"""Folders above a script below which what it sources may lie: a checkout has it in a folder of its own."""
_SOURCE: Final = re.compile(
    r"""^(?P<indent>[ \t]*)(?:source|\.)[ \t]+(?P<file>"[^"\n]+"|'[^'\n]+'|[^\s;&|"']+)[ \t]*$"""
)
_VALUE: Final = re.compile(r"\$\{\w+[^{}]*\}|\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\$\w+")
_TEXT: Final = re.compile(
    r"^[ \t]*\w+=[\"']?\$\([ \t]*cat[ \t]+<<-?[ \t]*[\"']?(?P<end>\w+)[\"']?[ \t]*\n"
    r"(?P<body>.*?)^[ \t]*(?P=end)[ \t]*\n[ \t]*\)[\"']?[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
"""A variable that holds a text behind ``<<``."""
_STARTS: Final = re.compile(r"(?:python3?|torchrun)\b[^\n]*\.py\b|torchrun[^\n]*-m\b")


def whole_script(text: str, path: Path, depth: int = 0) -> str:
    """Return a script with the scripts that it sources, and with texts of commands that it keeps in variables.

    Parameters
    ----------
    text : str
        The script.
    path : Path
        Its file. A sourced file is looked for as it is named beside the script and in the folders above it, the values
        in front of its name (``${SCRIPT_DIR}/``) taken for one of these; absolute names are the machine's, and are not
        read.
    depth : int
        How many scripts have sourced one another so far.

    Returns
    -------
    str
        Lines that source what is not there stay.
    """
    text = _TEXT.sub(_commands, text)
    if depth >= MOST_SOURCED:
        return text
    lines = []
    for line in text.split("\n"):
        found = _SOURCE.match(line)
        file = _sourced(found["file"].strip("\"'"), path) if found else None
        inner = _text_of(file) if file else ""
        lines.append(whole_script(inner, file, depth + 1) if file else line)
    return "\n".join(lines)


def _commands(found: re.Match[str]) -> str:
    """The commands of a text that a variable holds, where they start a program; else the text as it stands."""
    body = found["body"].replace("\\$", "$")
    return body if _STARTS.search(body.replace("\\\n", " ")) else found[0]


def _sourced(name: str, path: Path) -> Path | None:
    behind = name
    for value in _VALUE.finditer(name):
        behind = name[value.end() :]
    if behind.startswith("/") and behind == name:
        return None
    plain = behind.lstrip("/")
    if not plain or plain.startswith("~") or "$" in plain or "`" in plain:
        return None
    folders = path.resolve().parents[:MOST_FOLDERS]
    candidates = (folder / plain for folder in folders)
    return next((one for one in candidates if is_file(one) and one.resolve() != path.resolve()), None)


def _text_of(file: Path) -> str:
    text = read_text_file(file, allowed="a shell script", most_bytes=MOST_SCRIPT_BYTES)
    return text.replace("\r\n", "\n")
