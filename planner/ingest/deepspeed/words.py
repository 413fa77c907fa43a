"""Words of programs on DeepSpeed in one spelling: Megatron-DeepSpeed's, GPT-NeoX's, the Hugging Face Trainer's."""

from collections.abc import Mapping, Sequence

from planner.ingest.trainers.words import FALSE, TRUE


def spelled(words: Sequence[str], spellings: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    """Arguments of a program with the options that are known spelled as in the table.

    Parameters
    ----------
    words : sequence of str
        Arguments; ``--name value`` and ``--name=value``.
    spellings : mapping of str to str
        Other spellings of options, with hyphens.
    options : mapping of str to str
        Options by name with the number of their values; ``0`` is a switch, which may be told to be on or off
        in the words of :mod:`planner.ingest.trainers.words`.

    Returns
    -------
    list of str
        Names that are not known stay as they are.
    """
    found: list[str] = []
    index = 0
    while index < len(words):
        name, sign, value = words[index].partition("=")
        index += 1
        hyphened = name.replace("_", "-") if name.startswith("--") else name
        known = spellings.get(hyphened, hyphened)
        if known not in options:
            found.append(f"{name}{sign}{value}")
        elif options[known] != "0":
            found.append(f"{known}{sign}{value}")
        else:
            told = value if sign else words[index] if index < len(words) else ""
            index += not sign and told.lower() in (*TRUE, *FALSE)
            found = [word for word in found if word != known]  # the last of a name counts
            found += [] if told.lower() in FALSE else [known]
    return found
