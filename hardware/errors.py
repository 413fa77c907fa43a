"""Errors that a user can mend: each names the file, the field, the value, and what is allowed.

InputError (ValueError)      something the user wrote is wrong; the command line ends with exit code 2
"""

from typing import Final

MOST_WORD: Final = 300
"""Characters of one word of a message; a path is shorter."""
MOST_PART: Final = 2000
"""Characters of what is wrong, and of what is allowed."""


class InputError(ValueError):
    """A user's input is wrong.

    Parameters
    ----------
    what : str
        What is wrong, with the user's value, in the user's nouns. Values too long to be read are cut in the middle, and
        what a terminal would act on is written as an escape.
    allowed : str
        What would be accepted instead.
    where : str
        File and field, such as ``cluster.toml: node.gpus``; empty when the value came from the command line.
    """

    def __init__(self, what: str, *, allowed: str = "", where: str = "") -> None:
        self.what = _readable(what)
        self.allowed = _readable(allowed)
        self.where = _readable(where)
        parts = [f"{self.where}: {self.what}" if where else self.what]
        if allowed:
            parts.append(f"allowed: {self.allowed}")
        super().__init__("; ".join(parts))

    def within(self, place: str) -> "InputError":
        """Return the same error as one of ``place``, such as the file that holds the value."""
        return InputError(self.what, allowed=self.allowed, where=f"{place}: {self.where}" if self.where else place)


def _readable(text: str) -> str:
    words = [_cut(word, MOST_WORD) for word in _cut(text, MOST_PART).split(" ")]
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(words))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 4) :]}"
