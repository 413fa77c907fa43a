"""Errors that a user can mend: each names the file, the field, the value, and what is allowed.

InputError (ValueError)      something the user wrote is wrong; the command line ends with exit code 2
"""


class InputError(ValueError):
    """A user's input is wrong.

    Parameters
    ----------
    what : str
        What is wrong, with the user's value, in the user's nouns.
    allowed : str
        What would be accepted instead.
    where : str
        File and field, such as ``cluster.toml: node.gpus``; empty when the value came from the command line.
    """

    def __init__(self, what: str, *, allowed: str = "", where: str = "") -> None:
        self.what = what
        self.allowed = allowed
        self.where = where
        parts = [f"{where}: {what}" if where else what]
        if allowed:
            parts.append(f"allowed: {allowed}")
        super().__init__("; ".join(parts))
