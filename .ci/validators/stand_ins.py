"""Stand-ins for packages that a machine without GPUs lacks: modules that import as empty shells."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable
from typing import Any


def stand_in_for(roots: Iterable[str]) -> None:
    """Let modules that are not installed, and whatever is below them, be imported as empty shells."""
    for root in roots:
        try:
            found = importlib.util.find_spec(root)
        except (ImportError, ValueError):
            found = None
        if found is None:
            sys.meta_path.append(AbsentModules(root))


class Absent:
    """Stands for any object of a module that is not installed: callable, and a decorator that changes nothing."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what is decorated, or itself."""
        plain = len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type))
        return args[0] if plain else self

    def __getitem__(self, _key: object) -> "Absent":
        return self

    def __mro_entries__(self, _bases: object) -> tuple[type, ...]:
        return (object,)


class AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules that are not installed as empty shells."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Find the root and whatever is below it."""
        if name == self.root or name.startswith(self.root + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make a package that has every attribute."""
        module = types.ModuleType(spec.name)
        vars(module).update(__path__=[], __version__="3.0.0", __getattr__=_attribute)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    is_class = name[:1].isupper() or name in ("constexpr", "dtype")
    return type(name, (), {"__init__": _accept_anything}) if is_class else Absent(name)


def _accept_anything(_self: object, *_args: object, **_kwargs: object) -> None:
    """Initialise a stand-in class."""
