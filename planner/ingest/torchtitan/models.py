"""Configurations of torchtitan's registry, by name and by the sizes of their models."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from hardware.package_table import package_table
from planner.ingest.torchtitan.words import SECTIONS
from planner.rules.proposal import ModelFacts, facts_of

SIZES: Final = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "vocab")


@lru_cache(maxsize=1)
def registry() -> tuple[dict[str, Any], ...]:
    """Configurations of torchtitan with the sizes of their models."""
    return tuple(package_table("planner.ingest.torchtitan", "models.toml")["config"])


def entry_of(config: str) -> Mapping[str, Any]:
    """Entry of a configuration by its name; empty when it is not known."""
    return next((entry for entry in registry() if entry["config"] == config), {})


def defaults_of(config: str) -> Mapping[str, tuple[str, ...]]:
    """Options that a configuration sets, with their values; switches have none.

    Parameters
    ----------
    config : str
        Such as ``llama3_70b``; one that is not known sets nothing.
    """
    entry = entry_of(config)
    found: dict[str, tuple[str, ...]] = {}
    for section in SECTIONS:
        for field, value in entry.get(section, {}).items():
            if isinstance(value, bool):
                found[f"--{section}.{field}" if value else f"--{section}.no_{field}"] = ()
            else:
                found[f"--{section}.{field}"] = (str(value),)
    return MappingProxyType(found)


def same_sizes(entry: Mapping[str, Any], facts: ModelFacts) -> bool:
    """Whether a configuration builds a model of these sizes."""
    return all(entry[size] == getattr(facts, size) for size in SIZES)


def model_of_config(config: str) -> ModelSpec | None:
    """Return the preset that a configuration of torchtitan builds.

    Parameters
    ----------
    config : str
        Such as ``llama3_70b``.

    Returns
    -------
    ModelSpec or None
        None when no preset has the name, or none has the configuration's sizes.
    """
    entry = entry_of(config)
    named = presets.find(config)
    if not entry:
        return named
    if named is not None and same_sizes(entry, facts_of(named)):
        return _built(named)
    fitting = (presets.find(name) for name in presets.names())
    found = (model for model in fitting if model is not None and same_sizes(entry, facts_of(model)))
    return next(map(_built, found), None)


def _built(model: ModelSpec) -> ModelSpec:
    """A model as the registry's configurations build it: without layers that predict further tokens."""
    return replace(model, mtp_layers=0, mtp_kind=None)
