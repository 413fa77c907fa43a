"""Training recipes by name: number formats and bytes per parameter, from ``precision.toml``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from costmodels.job import Precision
from hardware.errors import InputError
from hardware.package_table import package_table


@dataclass(frozen=True)
class _Recipes:
    """The file, ready for look-ups."""

    by_name: Mapping[str, Precision]
    by_alias: Mapping[str, str]
    families: Mapping[str, str]


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


@cache
def _recipes() -> _Recipes:
    content = package_table("costmodels", "precision.toml")
    by_name: dict[str, Precision] = {}
    by_alias: dict[str, str] = {}
    for name, fields in content["recipes"].items():
        values = dict(fields)
        for alias in (name, *values.pop("aliases", ())):
            by_alias[_key(alias)] = name
        values.setdefault("extra_weight_bytes", 0.0)
        by_name[name] = Precision(name=name, **values)
    families = {member: family for family, members in content["families"].items() for member in members}
    return _Recipes(MappingProxyType(by_name), MappingProxyType(by_alias), MappingProxyType(families))


def names() -> tuple[str, ...]:
    """Return the names of the recipes that a user may ask for.

    Returns
    -------
    tuple of str
        Without the variants for families of frameworks.
    """
    recipes = _recipes()
    variants = tuple(f"-{family}" for family in set(recipes.families.values()))
    return tuple(name for name in recipes.by_name if not name.endswith(variants))


def precision(name: str, *, framework: str = "") -> Precision:
    """Return a training recipe.

    Parameters
    ----------
    name : str
        A recipe or an alias; case, spaces and punctuation do not matter.
    framework : str
        Framework of the run (``Software.framework``): frameworks that keep other states get their variant.

    Returns
    -------
    Precision
        Bytes per parameter and per element, and which peak rates apply.

    Raises
    ------
    InputError
        No such recipe.
    """
    recipes = _recipes()
    known = recipes.by_alias.get(_key(name))
    if known is None:
        near = get_close_matches(_key(name), recipes.by_alias, n=1)
        hint = f"; nearest: {recipes.by_alias[near[0]]!r}" if near else ""
        raise InputError(f"precision {name!r} is not known{hint}", allowed=", ".join(names()))
    family = recipes.families.get(framework)
    return recipes.by_name.get(f"{known}-{family}", recipes.by_name[known])


def is_recipe(name: str) -> bool:
    """Whether :func:`precision` knows a name."""
    return _key(name) in _recipes().by_alias


def with_wide_weights(recipe: Precision) -> Precision:
    """Return a recipe whose weights stay in 16 bits, where it keeps and gathers them in the products' format.

    Parameters
    ----------
    recipe : Precision
        Any recipe; those without low-precision weights are returned as they are.

    Returns
    -------
    Precision
        Weights and their gathers in 16 bits; what products read, both copies of it, is kept over the micro-batches.

    Notes
    -----
    Megatron-core keeps low-precision weights since 0.9, with ``--fp8-param-gather``. Otherwise modules of Transformer
    Engine quantise 16-bit weights in the first micro-batch of a step (``is_first_microbatch``) and keep the result.
    """
    if recipe.weight_bytes >= recipe.activation_bytes:
        return recipe
    copies = recipe.weight_bytes + recipe.extra_weight_bytes
    return replace(
        recipe,
        weight_bytes=recipe.activation_bytes,
        extra_weight_bytes=copies,
        gather_bytes=recipe.activation_bytes,
    )
