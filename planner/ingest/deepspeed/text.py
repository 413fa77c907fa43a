"""The text of a DeepSpeed configuration: JSON with what Hjson, which DeepSpeed reads it with, allows around it."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from hardware.errors import InputError

_TEXT: Final = r'(?P<text>"(?:[^"\\]|\\.)*+(?:"|\Z))'
_COMMENTS: Final = re.compile(_TEXT + r"|#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMAS: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])", re.DOTALL)
"""What goes, beside texts, which stay."""


def read_config(text: str) -> dict[str, Any]:
    """Read a configuration: JSON, also with comments (``#``, ``//``, ``/* */``) and commas behind last values.

    Parameters
    ----------
    text : str
        As in ``ds_config.json``.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        It is no JSON object, or states a key twice, which DeepSpeed refuses.

    References
    ----------
    DeepSpeed 0.19 ``runtime/config.py`` (``hjson.load``) and ``runtime/config_utils.py``
    (``dict_raise_error_on_duplicate_keys``).
    """
    try:
        found = json.loads(plain_json(text), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", allowed="a DeepSpeed configuration") from None
    if not isinstance(found, dict):
        raise InputError(f"{type(found).__name__} instead of an object", allowed="a DeepSpeed configuration")
    return found


def plain_json(text: str) -> str:
    """Return the text without comments and without commas behind last values; plain JSON stays as it is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        for around in (_COMMENTS, _LAST_COMMAS):
            text = around.sub(lambda found: found["text"] or "", text)
    return text


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{', '.join(twice)} stated twice", allowed="each key once, as DeepSpeed takes it")
    return dict(pairs)
