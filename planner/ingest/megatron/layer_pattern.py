"""Layer patterns in launch arguments: which layers are mixtures of experts, read without evaluating code."""

import ast
from typing import Final

from hardware.errors import InputError
from planner.ingest.options import whole

_ALLOWED: Final = "a whole number n (every n-th layer), or lists of 0 and 1 with + and *, such as ([0]*3+[1]*58)"
_LONGEST: Final = 100_000


def moe_pattern(text: str, layers: int) -> tuple[bool, ...]:
    """Which layers hold experts, from Megatron-LM's ``--moe-layer-freq``.

    Parameters
    ----------
    text : str
        ``n`` for every n-th layer beginning with the first (its sign does not matter), or a list expression.
    layers : int
        Layers of the model.

    Returns
    -------
    tuple of bool
        One entry a layer, True where the layer is a mixture of experts.

    Raises
    ------
    InputError
        The text is neither, or a list has another length than the model.
    """
    period = whole(text.strip().removeprefix("-"))
    if period:
        return tuple(index % period == 0 for index in range(layers))
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise InputError(f"layer pattern {text!r} is not understood", allowed=_ALLOWED) from None
    if isinstance(value, list) and not set(value) <= {0, 1}:
        raise InputError(f"layer pattern {text!r} has {max(value, key=abs)}", allowed=_ALLOWED)
    if not isinstance(value, list) or len(value) != layers:
        length = len(value) if isinstance(value, list) else 0
        raise InputError(f"layer pattern {text!r} names {length} layers, the model has {layers}", allowed=_ALLOWED)
    return tuple(bool(entry) for entry in value)


def _value(node: ast.expr) -> int | list[int]:
    """Value of a list expression made of whole numbers, lists, sums and repeats."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        entries = [_value(entry) for entry in node.elts]
        return [entry for entry in entries if isinstance(entry, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, int) != isinstance(right, int):
            body, times = (left, right) if isinstance(left, list) else (right, left)
            if isinstance(body, list) and isinstance(times, int) and len(body) * max(0, times) <= _LONGEST:
                return body * times
    raise ValueError("not a list of whole numbers")
