"""Numbers with their nouns, for messages and reports."""


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as ``1 GPU`` or ``64 GPUs``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
