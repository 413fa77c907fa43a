"""Values of YAML and JSON documents that nobody vouches for."""

from typing import Any, Final

import yaml

from hardware.importers.source_text import SourceText

MOST_YAML: Final = 2**20
"""Characters."""
MOST_YAML_EVENTS: Final = 50_000
MOST_NESTING: Final = 32
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(source: SourceText, form: str) -> object:
    """Return what a YAML document holds.

    Parameters
    ----------
    source : SourceText
        At most ``MOST_YAML`` characters, without aliases and tags.
    form : str
        What it should be, for messages.

    Raises
    ------
    InputError
        Not YAML, aliases, deep nesting or more than ``MOST_YAML_EVENTS`` entries.
    """
    source.check_size(MOST_YAML, f"{form} of one cluster")
    depth = 0
    try:
        for number, event in enumerate(yaml.parse(source.text, Loader=_LOADER)):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.AliasEvent):
                raise source.wrong("an alias", line, "YAML without aliases: they can expand without end")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTING or number > MOST_YAML_EVENTS:
                raise source.wrong("too deep or too long", line, f"{MOST_NESTING} levels, {MOST_YAML_EVENTS} entries")
        return yaml.load(source.text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise source.wrong(f"not YAML: {what}", mark.line + 1 if mark else 0, form) from None
    except (RecursionError, ValueError, OverflowError) as error:
        if hasattr(error, "allowed"):
            raise
        raise source.wrong(f"not YAML: {str(error)[:80]}", allowed=form) from None


def as_mapping(value: object, source: SourceText, what: str) -> dict[Any, Any]:
    """Return a table.

    Parameters
    ----------
    value : object
        Of the document.
    source : SourceText
        For messages.
    what : str
        What it is, for messages.

    Raises
    ------
    InputError
        It is none.
    """
    if not isinstance(value, dict):
        raise source.wrong(f"{what}: not a table", allowed="keys and values")
    return value


def as_list(value: object, source: SourceText, what: str) -> list[Any]:
    """Return a list, empty for nothing.

    Parameters
    ----------
    value : object
        Of the document.
    source : SourceText
        For messages.
    what : str
        What it is, for messages.

    Raises
    ------
    InputError
        It is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise source.wrong(f"{what}: not a list", allowed="a list")
    return value


def as_name(value: object, source: SourceText, what: str) -> str:
    """Return a name; numbers are names too.

    Parameters
    ----------
    value : object
        Of the document.
    source : SourceText
        For messages.
    what : str
        What it is, for messages.

    Raises
    ------
    InputError
        It is none.
    """
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise source.wrong(f"{what}: not a name", allowed="a name")
    return str(value)


def by_name(value: object, source: SourceText, what: str, key: str = "name") -> dict[str, dict[Any, Any]]:
    """Return the tables of a list by the name that each has, in order.

    Parameters
    ----------
    value : object
        Of the document.
    source : SourceText
        For messages.
    what : str
        What an entry is, for messages.
    key : str
        Where an entry has its name.

    Raises
    ------
    InputError
        No list of tables, an entry without a name, or two of one name.
    """
    found: dict[str, dict[Any, Any]] = {}
    for number, item in enumerate(as_list(value, source, f"{what} list"), start=1):
        entry = as_mapping(item, source, f"{what} {number}")
        name = as_name(entry.get(key), source, f"{key} of {what} {number}")
        if name in found:
            raise source.wrong(f"{what} '{name}' is defined twice", allowed=f"each {what} once")
        found[name] = entry
    return found
