"""JSON values one after the other, with warnings between them, as monitoring tools print them in a loop."""

import json
import re
from typing import Any, Final

from hardware.importers.source_text import SourceText

MOST_BROKEN: Final = 1000  # values: each costs a look as deep as the parser goes


def json_values(source: SourceText, opens: str, record: str, ask: str) -> tuple[list[Any], int]:
    """Read JSON values in a row.

    Parameters
    ----------
    source : SourceText
        The file.
    opens : str
        Characters that a value may begin with.
    record : str
        Pattern of what a record begins with: after a value that breaks off reading goes on there.
    ask : str
        The command, for messages.

    Returns
    -------
    list, int
        Values in order, and the number of those that break off.

    Raises
    ------
    InputError
        Too many break off.
    """
    decoder, begin, again = json.JSONDecoder(), re.compile(f"[{re.escape(opens)}]"), re.compile(record)
    found: list[Any] = []
    broken, match = 0, begin.search(source.text)
    while match is not None:
        try:
            value, end = decoder.raw_decode(source.text, match.start())
        except (ValueError, RecursionError):
            broken += 1
            if broken > MOST_BROKEN:
                raise source.wrong(f"more than {MOST_BROKEN} broken JSON objects", allowed=ask) from None
            match = again.search(source.text, match.start() + 1)
            continue
        found.append(value)
        match = begin.search(source.text, end)
    return found, broken
