"""The planner's own version."""

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


@cache
def version() -> str:
    """Return the version of the installed planner; ``unknown`` in a source tree that is not installed."""
    try:
        return installed_version("parallelism-planner")
    except PackageNotFoundError:
        return "unknown"
