"""Files that a launch script writes before the training starts: texts behind ``<<``, templates filled in by sed."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hardware.text_file import is_file, read_text_file
from planner.ingest.scripts.script import MOST_SCRIPT_BYTES, ShellCommand, ShellScript

_COPYING: Final = ("cat", "tee")
_SUBSTITUTION: Final = re.compile(
    r"s(?P<mark>[/#|,@])(?P<old>\w+)(?P=mark)(?P<new>.*)(?P=mark)(?P<flags>g?)", re.DOTALL
)


def written_files(script: ShellScript, folder: Path) -> Mapping[str, str]:
    """Texts of the files that a script writes, by the names that it gives them.

    Parameters
    ----------
    script : ShellScript
        Its commands: ``cat <<WORD > FILE``, and ``sed 's/NAME/value/' TEMPLATE | sed ... > FILE`` with plain words as
        patterns. Nothing is run.
    folder : Path
        Where the script lies, and its templates.

    Raises
    ------
    InputError
        A template is too long or no text.
    """
    found: dict[str, str] = {}
    piped = ""
    for command in script.commands:
        if command.program == "sed":
            piped = _substituted(command, found, folder, piped)
        else:
            piped = command.document if command.program in _COPYING else ""
        names = (*command.writes, *(command.words[1:2] if command.program == "tee" else ()))
        found.update(dict.fromkeys(names, piped) if piped else {})
    return MappingProxyType(found)


def _substituted(command: ShellCommand, written: Mapping[str, str], folder: Path, piped: str) -> str:
    """What ``sed`` makes of a file or of what the command before it wrote."""
    text = piped
    rules = [found for word in command.words[1:] if (found := _SUBSTITUTION.fullmatch(word))]
    for word in command.words[1:]:
        if not word.startswith("-") and not _SUBSTITUTION.fullmatch(word):
            text = written.get(word) or _template(folder, word)
    for rule in rules:
        times = -1 if rule["flags"] else 1  # of each line
        text = "\n".join(line.replace(rule["old"], rule["new"], times) for line in text.split("\n"))
    return text


def _template(folder: Path, name: str) -> str:
    for candidate in (folder / name, folder / Path(name).name):
        if is_file(candidate):
            return read_text_file(candidate, allowed="a template of text", most_bytes=MOST_SCRIPT_BYTES)
    return ""
