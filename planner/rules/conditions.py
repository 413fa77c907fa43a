"""Conditions of rules on single options of a command line: ``--name``, ``--name=value|value``, ``--name:number``.

======================  ==========================================================================================
``--name``              1 when the option is given
``--name=a|b``          1 when one of its values, or its default when it is not given, is among those listed
``--name:number``       its first value as a whole number; 0 when it is not given or none
``--name:billionths``   its first value times 10^9, rounded, for options with fractions; 0 when it is not given
``--name:count``        how many values it has
======================  ==========================================================================================
"""

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "--"
_LARGEST: Final = 10**17
_BILLION: Final = 10**9

Options = Mapping[str, tuple[str, ...]]


def is_condition(name: str) -> bool:
    """Whether a name of a rule asks about an option; a leading ``!`` does not matter."""
    return name.removeprefix("!").startswith(PREFIX)


def value_of(condition: str, options: Options, defaults: Mapping[str, str]) -> int:
    """Number that a condition stands for.

    Parameters
    ----------
    condition : str
        One of the forms above, without a leading ``!``.
    options : mapping of str to tuple of str
        Options that were given, with their values.
    defaults : mapping of str to str
        Values of options that were not given, where a rule asks for them.
    """
    name, equals, wanted = condition.partition("=")
    if equals:
        default = (defaults[name],) if name in defaults else ()
        return int(bool(set(wanted.split("|")) & set(options.get(name, default))))
    name, _, form = condition.partition(":")
    values = options.get(name, ())
    if not form:
        return int(name in options)
    if form == "count":
        return len(values)
    return _number(values[0] if values else defaults.get(name, "0"), _BILLION if form == "billionths" else 1)


def _number(text: str, scale: int) -> int:
    try:
        number = float(text) * scale
    except ValueError:
        return 0
    return round(number) if abs(number) < _LARGEST else 0
