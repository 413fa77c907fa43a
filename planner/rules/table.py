"""The rules as data: reading and validating the TOML tables beside this module."""

import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from hardware.package_table import package_table
from planner.request import Framework
from planner.rules.checks import CHECKS
from planner.rules.conditions import is_condition

SPLIT_CHECK: Final = "split"
_OPTION_FILES: Final = ("megatron_training.toml", "megatron_experts.toml", "megatron_graphs.toml")
_FILES: Final = (
    *("generic.toml", "megatron.toml", "megatron_split.toml", "megatron_switches.toml", "others.toml"),
    *_OPTION_FILES,
)
CORE: Final = MappingProxyType({Framework.BRIDGE: "0.19", Framework.NEMO: "0.15"})
"""Version of Megatron-core that Megatron-Bridge 0.6 and NeMo 2.7 build on."""
_FAMILIES: Final = MappingProxyType({"megatron-family": (Framework.MEGATRON, Framework.BRIDGE, Framework.NEMO)})

NEWEST: Final = MappingProxyType(
    {
        Framework.MEGATRON: "0.19",
        Framework.BRIDGE: "0.6",
        Framework.NEMO: "2.7",
        Framework.TORCHTITAN: "0.3",
        Framework.DEEPSPEED: "0.19",
        Framework.GALVATRON: "2.4",
        Framework.NONE: "",
    }
)


class Found(StrEnum):
    """When the framework itself notices that a rule is broken."""

    PARSE = "parse"  # reading and validating arguments
    CONFIG = "config"  # building its configuration
    GROUPS = "groups"  # creating process groups
    BUILD = "build"  # building the model
    SCHEDULE = "schedule"  # entering the first step's schedule
    FORWARD = "forward"  # inside the first forward pass: no launch check sees it
    NEVER = "never"  # it runs on, wrongly


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    ``{name}`` in ``message`` and ``allowed`` stands for a column or a number of the split check, ``{--name}`` for the
    value of an option as the user wrote it.

    Attributes
    ----------
    versions : tuple of (Framework, str)
        Bounds such as ``>=0.14`` or ``<0.14`` or ``>=0.13,<0.15``; a framework without bounds: every version, but for
        those that build on Megatron-core: Megatron-LM's bounds hold for the core that they build on.
    when : tuple of str
        Columns that must all be on for the rule to apply; a leading ``!`` means off.
    """

    id: str
    frameworks: tuple[Framework, ...]
    check: str
    arguments: tuple[str, ...]
    message: str
    allowed: str
    found: Found
    source: str
    when: tuple[str, ...] = ()
    versions: tuple[tuple[Framework, str], ...] = ()

    @cached_property
    def needs_options(self) -> bool:
        """Whether the rule can be broken by a command line alone, because it asks for an option that is given."""
        return any(is_condition(name) and not name.startswith("!") for name in self.when)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Conditions on options that the rule asks about, without a leading ``!``."""
        return tuple(name.removeprefix("!") for name in (*self.arguments, *self.when) if is_condition(name))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names that the message uses, in order of first use."""
        names = [name for _, name, _, _ in string.Formatter().parse(self.message + self.allowed) if name]
        return tuple(dict.fromkeys(names))

    def applies(self, framework: Framework, version: str) -> bool:
        """Whether the rule holds for this framework in this version."""
        bounds = dict(self.versions)
        if framework in CORE and framework not in bounds:
            framework_bounds, version = bounds.get(Framework.MEGATRON, ""), CORE[framework]
        else:
            framework_bounds = bounds.get(framework, "")
        return framework in self.frameworks and _within(version, framework_bounds)


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparison.

    Raises
    ------
    InputError
        The version is not numbers joined by dots.
    """
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        raise InputError(f"framework version {version!r} is not understood", allowed="numbers such as 0.19") from None


def _within(version: str, bounds: str) -> bool:
    if not bounds:
        return True
    key = version_key(version)
    for bound in bounds.split(","):
        is_lower, limit = bound.startswith(">="), version_key(bound.lstrip("<>="))
        if (is_lower and key < limit) or (not is_lower and key >= limit):
            return False
    return True


def resolve_version(framework: Framework, version: str | None) -> str:
    """Version to judge by: the given one, or the newest that the rules were checked against.

    Raises
    ------
    InputError
        The version is not numbers joined by dots, or older than every rule.
    """
    if version is None or framework is Framework.NONE:
        return NEWEST[framework]
    if framework is Framework.MEGATRON and version_key(version) < (0, 13):
        raise InputError(f"Megatron-LM core {version} is older than the rules", allowed="0.13 or newer")
    version_key(version)
    return version


def newer_notes(framework: Framework, version: str | None) -> tuple[str, ...]:
    """Say that a version is newer than any that the rules were checked against; nothing where it is not.

    Raises
    ------
    InputError
        The version is not numbers joined by dots.
    """
    newest = NEWEST[framework]
    if not version or not newest or version_key(version) <= version_key(newest):
        return ()
    return (
        f"{framework} {version} is newer than the newest known, {newest}: its rules and options are those of {newest}",
    )


@lru_cache(maxsize=len(_FILES))
def _content(name: str) -> Mapping[str, Any]:
    """A table of rules as its file has it; read once, for its rules and for its defaults."""
    return package_table("planner.rules", name)


@lru_cache(maxsize=1)
def all_rules() -> tuple[Rule, ...]:
    """Every rule, in file order.

    Raises
    ------
    ValueError
        A rule table of this package is malformed.
    """
    rules = []
    for name in _FILES:
        rules += [_rule(entry, name) for entry in _content(name)["rule"]]
    doubled = sorted(name for name, times in Counter(rule.id for rule in rules).items() if times > 1)
    if doubled:
        raise ValueError(f"rule ids used twice: {doubled}")
    return tuple(rules)


def rules_of_alone(framework: Framework) -> frozenset[str]:
    """Names of the rules that no other framework has, such as those of Megatron-LM's own parser."""
    return frozenset(rule.id for rule in all_rules() if rule.frameworks == (framework,))


@lru_cache(maxsize=1)
def option_defaults() -> Mapping[str, str]:
    """Values of options that are not given, for the rules that ask for a value."""
    found: dict[str, str] = {}
    for name in _OPTION_FILES:
        found |= _content(name).get("defaults", {})
    return MappingProxyType(found)


@lru_cache(maxsize=64)
def rules_for(framework: Framework, version: str) -> tuple[Rule, ...]:
    """The rules of one framework in one version, in file order."""
    return tuple(rule for rule in all_rules() if rule.applies(framework, version))


def _rule(entry: dict[str, Any], name: str) -> Rule:
    missing = {"id", "frameworks", "check", "message", "found", "source"} - set(entry)
    unknown = set(entry) - {f for f in Rule.__dataclass_fields__ if f != "arguments"} - {"args"}
    if missing or unknown:
        raise ValueError(f"{name}: rule {entry.get('id')!r}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    if entry["check"] not in CHECKS and entry["check"] != SPLIT_CHECK:
        raise ValueError(f"{name}: rule {entry['id']!r} names the unknown check {entry['check']!r}")
    frameworks = tuple(f for word in entry["frameworks"] for f in _frameworks(word))
    rule = Rule(
        id=entry["id"],
        frameworks=frameworks,
        check=entry["check"],
        arguments=tuple(entry.get("args", ())),
        message=entry["message"],
        allowed=entry.get("allowed", ""),
        found=Found(entry["found"]),
        source=entry["source"],
        when=tuple(entry.get("when", ())),
        versions=tuple((Framework(key), bound) for key, bound in entry.get("versions", {}).items()),
    )
    if (rule.conditions or any(map(is_condition, rule.fields))) and not rule.needs_options:
        raise ValueError(f"{name}: rule {rule.id!r} asks about options, but holds for launches without any")
    return rule


def _frameworks(word: str) -> tuple[Framework, ...]:
    if word == "all":
        return tuple(Framework)
    return _FAMILIES[word] if word in _FAMILIES else (Framework(word),)
