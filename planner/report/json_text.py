"""JSON as people can read it: outer levels indented, small inner values on one line."""

import json
import math

_WIDTH = 240


def json_text(value: object) -> str:
    """Return JSON text that ends in a newline.

    Parameters
    ----------
    value : object
        Dictionaries, lists, strings, numbers, booleans and None. Numbers must be finite.

    Returns
    -------
    str
        The same value always gives the same text.

    Raises
    ------
    ValueError
        A number is not finite.
    """
    return _block(value, "") + "\n"


def _block(value: object, indent: str) -> str:
    line = _line(value)
    if line is not None and (len(line) + len(indent) <= _WIDTH or not isinstance(value, dict | list)):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(str(key))}: {_block(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple):
        rows = [inner + _block(item, inner) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _line(value: object) -> str | None:
    """Return the value on one line; None for a value too large to be worth the try."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, dict | list | tuple) and len(value) > _WIDTH // 3:
        return None
    return json.dumps(value, allow_nan=False)
