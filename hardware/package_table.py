"""The tables of facts beside the modules: TOML files of the packages, each read once."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@cache
def package_table(package: str, file: str) -> Mapping[str, Any]:
    """Read a TOML file of a package; who asks again gets the same table, which nobody changes.

    Parameters
    ----------
    package : str
        Full name of the package beside whose modules the file lies, such as ``planner.ingest``.
    file : str
        Name of the file, with its folder where it is in one that is no package.

    Returns
    -------
    Mapping
        Its top-level table.
    """
    return MappingProxyType(tomllib.loads(files(package).joinpath(file).read_text(encoding="utf-8")))
