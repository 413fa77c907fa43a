"""Options among the words of a command, before any framework has read them."""

from collections.abc import Iterator, Sequence


def option_of(words: Sequence[str], names: Sequence[str]) -> str:
    """Value of the first of some options, behind it or behind its ``=``; empty where there is none."""
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in names:
            return value if sign else (words[index + 1] if index + 1 < len(words) else "")
    return ""


def without(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Words without some options and their values."""
    value = False
    for word in words:
        name, sign, _ = word.partition("=")
        if value or name in names:
            value = not value and not sign
        else:
            yield word
