"""The words of a name that tell a part or a machine from others, as drivers, schedulers and papers write them."""

import re
from typing import Final

_BESIDE: Final = frozenset(
    (
        *("nvidia", "amd", "intel", "google", "huawei", "amazon", "aws", "corporation", "tm", "r"),
        *("instinct", "tesla", "geforce", "generation", "tensor", "core", "cores"),
        *("gpu", "gpus", "npu", "hpu", "oam", "accelerator", "card", "cards", "chip"),
    )
)
"""What is written beside the name of a part or of a machine and does not tell it from another one."""
_REMARK: Final = re.compile(r"(hbm\d?e?|gddr\d?x?|\d{2,4}w)$")
_COUNT: Final = re.compile(r"^\s*\d{1,4}\s*[x*]\s*(?=\D)", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W_]+")
_SIZE: Final = re.compile(r"(\d+)g(ib?)?$")
_SOCKET: Final = re.compile(r"sxm\d$")


def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name that tell it from others: no maker, no count before it, sizes in ``gb``, ``sxm``.

    Parameters
    ----------
    name : str
        As it is written.

    Returns
    -------
    tuple of str
        In lower case, in order; empty when nothing tells.

    Examples
    --------
    >>> name_words("NVIDIA A100-SXM4-80G")
    ('a100', 'sxm', '80gb')
    """
    words = (word for word in _WORD.findall(_COUNT.sub("", name).casefold()) if word not in _BESIDE)
    return tuple(_SOCKET.sub("sxm", _SIZE.sub(r"\1gb", word)) for word in words)


def without_remarks(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a name without kinds of memory and power limits: ``80gb`` of ``80gb hbm3 700w``."""
    return tuple(word for word in words if not _REMARK.match(word))
