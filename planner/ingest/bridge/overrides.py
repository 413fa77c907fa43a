"""Overrides of Megatron-Bridge and of NeMo 2 read into the layout that they launch.

Both build Megatron-core models, so an override is read as the flag of Megatron-LM that it stands for, and the flags are
judged by that reader (:mod:`planner.ingest.megatron.arguments`).
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from costmodels.layout import Layout
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.ingest.bridge.mixed_precision import KEY as PRECISION
from planner.ingest.bridge.mixed_precision import overwritten, precision_flags, stated_precision
from planner.ingest.megatron.arguments import judge, layout_built, parse_megatron
from planner.ingest.options import Fault, close_name, refuse_faults, whole
from planner.ingest.settings_files import layout_of_lists
from planner.request import Framework
from planner.rules.layout_string import parse_positions
from planner.rules.table import CORE, rules_of_alone
from planner.rules.verdict import accepted_at_launch

_MODEL_WORDS: Final = ("--seq-length",)  # a recipe's model states it too, the override decides
_PLUGIN_GRADIENTS: Final = "trainer.plugins.grad_reduce_in_fp32"
_FORMATS: Final = MappingProxyType(
    {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
)
_SHARDED: Final = "--use-distributed-optimizer"
LAYOUT: Final = "--pipeline-model-parallel-layout"
STAGES: Final = "--pipeline-model-parallel-size"
VIRTUAL: Final = "--num-virtual-stages-per-pipeline-rank"
_NEAR_MISS: Final = 0.75
"""Likeness from which on an unknown name is taken for a known one misspelt."""
_NOTHING: Final = ("null", "none", "")
_DEGREES: Final = ("--tensor-model-parallel-size", STAGES, "--context-parallel-size")


@dataclass(frozen=True, kw_only=True)
class OverrideKey:
    """One flag of Megatron-LM and the keys that stand for it; ``kind`` is value, values, on or off."""

    flag: str
    kind: str
    keys: tuple[str, ...]
    absent: str | None


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.bridge", "override_keys.toml")


@lru_cache(maxsize=2)
def override_keys(framework: Framework) -> tuple[OverrideKey, ...]:
    """Keys of a framework, in the order of the table."""
    return tuple(
        OverrideKey(
            flag=entry["flag"], kind=entry["kind"], keys=tuple(entry[str(framework)]), absent=entry.get("absent")
        )
        for entry in _table()["key"]
        if str(framework) in entry
    )


def precision_words(framework: Framework) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Overrides and flags of every training recipe that a framework has, by its name."""
    return MappingProxyType(
        {
            name: (tuple(entry[str(framework)]), tuple(entry["flags"]))
            for name, entry in _table()["precision"].items()
            if str(framework) in entry
        }
    )


def layout_of_overrides(
    overrides: Sequence[str], model_words: Sequence[str], *, world: int, framework: Framework
) -> Layout:
    """Read overrides into a layout.

    Parameters
    ----------
    overrides : sequence of str
        ``key=value``, as Hydra or nemo_run take them; a leading ``+`` or ``++`` is allowed.
    model_words : sequence of str
        Megatron-LM arguments that build the recipe's model.
    world : int
        Number of ranks.
    framework : Framework
        Megatron-Bridge or NeMo.

    Returns
    -------
    Layout
        Of the launch; keys that are left out have Megatron-LM's defaults, not those of a recipe.

    Raises
    ------
    InputError
        An override is unknown or not ``key=value``, keys that stand for one flag differ, or the launch is refused.
    """
    read = read_overrides(overrides, framework)
    refuse_faults(read.faults, "keys that decide on a layout")
    words = [word for words in _kept(model_words) for word in words] + list(read.flags)
    launch = parse_megatron(words, world=world, version=CORE[framework])
    verdict = judge(launch)
    found = tuple(v for v in verdict.violations if v.rule not in rules_of_alone(Framework.MEGATRON))
    if verdict.layers_per_stage is None or not accepted_at_launch(found):
        reasons = "; ".join(violation.message for violation in found) or "its layers cannot be counted"
        raise InputError(f"these overrides do not launch: {reasons}")
    return layout_built(launch, verdict.layers_per_stage)


_NEMO_KERNEL: Final = "model.config.attention_backend"


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Overrides sorted by what they mean.

    Attributes
    ----------
    flags : tuple of str
        Flags of Megatron-LM that say the same.
    faults : tuple of Fault
        Overrides that are not ``key=value``, name no field, have a wrong value, or contradict each other.
    unjudged : tuple of str
        Keys that say nothing about a layout.
    layers : int
        ``model.num_layers``; 0: as the recipe has it.
    gradients : bool
        Whether they state the number format of gradients.
    answered : tuple of str
        Flags that overrides decide on, those that they leave off too.
    one_chunk : bool
        Whether a virtual degree of 1 is stated, which Megatron-core interleaves; Megatron-LM's arguments drop it.
    """

    flags: tuple[str, ...]
    faults: tuple[Fault, ...]
    unjudged: tuple[str, ...]
    layers: int = 0
    gradients: bool = False
    answered: tuple[str, ...] = ()
    one_chunk: bool = False


def read_overrides(overrides: Sequence[str], framework: Framework) -> Overrides:
    """Sort overrides; nothing is refused here.

    Parameters
    ----------
    overrides : sequence of str
        ``key=value``, as Hydra or nemo_run take them; a leading ``+``, ``++`` or ``--`` is allowed.
    framework : Framework
        Megatron-Bridge or NeMo.
    """
    known = {name for key in override_keys(framework) for name in key.keys}
    precise = {word.partition("=")[0] for words, _ in precision_words(framework).values() for word in words}
    found: dict[str, str] = {}
    unjudged: list[str] = []
    formats, faults = _formats(overrides, framework)
    overrides = _without_deleted(overrides, framework)
    stated = {name: value for name, _, value in (override.lstrip("+-~").partition("=") for override in overrides)}
    for override in overrides:
        name, sign, value = override.lstrip("+-~").partition("=")
        name = _synonyms().get(name, name)
        if framework is Framework.BRIDGE and re.match(r"\+\w", override) and name in _always_there():
            message = f"override {override}: the configuration has {name}; allowed: {name}=... , or ++ before it"
            faults.append(_fault(framework, "value", name, message))
            continue
        text = value.strip().strip("'\"")
        if not sign:
            faults.append(_fault(framework, "value", override, f"override {override!r}; allowed: key=value"))
        elif name == _NEMO_KERNEL and framework is Framework.NEMO:
            message = f"override {override}: nemo_run reads no enumeration; allowed: the value in the recipe's code"
            faults.append(_fault(framework, "value", name, message))
        elif name in known:
            found[name] = _plain_list(text)
        elif (read := _overwritten_by(name, framework, known) or overwritten(name, text, formats)) is not None:
            faults += _overwritten_faults((name, text), (read, stated.get(read, "")), framework)
        elif name in precise or (name.startswith(f"{PRECISION}.") and _is_field(name, framework)):
            continue
        elif name in _sizes():
            found[name] = text
        elif _is_field(name, framework) or _of_other_data(name, framework):
            unjudged.append(name)
        else:
            faults.append(_unknown(name, framework, [*known, *precise]))
    words, told = _flags_of(_synchronised(found, framework), framework)
    words, beside = _virtual_beside_layout(words, framework)
    words += _size_flags(found)
    words += _sharded_by_tensors(overrides, framework, words)
    words += precision_flags(formats) if formats else _plugin_flags(overrides, framework)
    return Overrides(
        flags=tuple(words),
        faults=(*faults, *told, *beside),
        unjudged=tuple(unjudged),
        layers=whole(found.get("model.num_layers", "")) or 0,
        gradients=formats is not None or _PLUGIN_GRADIENTS in found,
        answered=tuple(key.flag for key in override_keys(framework) if any(name in found for name in key.keys)),
        one_chunk=any(name.endswith(".virtual_pipeline_model_parallel_size") and found[name] == "1" for name in found),
    )


def _without_deleted(overrides: Sequence[str], framework: Framework) -> Sequence[str]:
    """Overrides without keys that a later ``~key`` takes out, whose values Megatron-Bridge leaves as the recipe's."""
    kept: list[str] = []
    for override in overrides:
        name = override.removeprefix("~").partition("=")[0]
        if framework is Framework.BRIDGE and override.startswith("~") and _is_field(name, framework):
            kept = [word for word in kept if word.lstrip("+").partition("=")[0] != name]
        else:
            kept.append(override)
    return kept


@lru_cache(maxsize=1)
def _always_there() -> frozenset[str]:
    """Keys of Megatron-Bridge that have a value in every recipe, so that none can be appended (``+key=``)."""
    valued = ("--micro-batch-size", "--global-batch-size", "--seq-length")
    keys = [key for key in override_keys(Framework.BRIDGE) if key.absent not in (None, "null") or key.flag in valued]
    return frozenset(name for key in keys for name in key.keys)


def _synchronised(found: Mapping[str, str], framework: Framework) -> Mapping[str, str]:
    """Overrides with a sharded optimizer on in both places where it is on in one: Megatron-Bridge makes them agree.

    Its recipes have it on in both, so that one override alone does not turn it off. In NeMo the optimizer decides.

    References
    ----------
    Megatron-Bridge 0.6 ``training/config.py``, ``_validate_and_sync_distributed_optimizer_settings``. NeMo 2.7
    ``lightning/pytorch/strategies/megatron_strategy.py``, ``connect``.
    """
    key = next(key for key in override_keys(framework) if key.flag == _SHARDED)
    told = [found[name].lower() for name in key.keys if name in found]
    if framework is Framework.NEMO and len(told) == len(key.keys):
        return {**found, **dict.fromkeys(key.keys, found[key.keys[-1]])}
    if framework is not Framework.BRIDGE or not told or (len(told) == len(key.keys) and set(told) == {"false"}):
        return found
    return {**found, **dict.fromkeys(key.keys, "true")} if set(told) <= {"true", "false"} else found


def _virtual_beside_layout(words: list[str], framework: Framework) -> tuple[list[str], list[Fault]]:
    """Flags without the virtual degree that a layout has as well; NeMo needs it there, and Megatron-core none other.

    References
    ----------
    Megatron-core ``transformer_config.py`` (both given: equal). NeMo ``lightning/megatron_init.py``: groups and models
    of a rank follow the strategy's degree, whatever the layout has.
    """
    values = {flag: words[index + 1] for index, flag in enumerate(words[:-1]) if flag in (LAYOUT, STAGES, VIRTUAL)}
    stages, told = whole(values.get(STAGES, "1")), values.get(VIRTUAL, "")
    if LAYOUT not in values or not stages:
        return words, []
    try:
        positions = len(parse_positions(values[LAYOUT]))
    except InputError:  # judged as the layout that it is not
        return words, []
    chunks = positions // stages
    if told:
        at = words.index(VIRTUAL)
        words = words[:at] + words[at + 2 :]
    if told == str(chunks) or (not told and (chunks < 2 or framework is not Framework.NEMO)):
        return words, []
    message = f"the pipeline layout has {chunks} virtual chunks a stage, the virtual degree is {told or 'not given'}"
    return words, [_fault(framework, "value", VIRTUAL, f"{message}; allowed: {chunks}")]


def _formats(overrides: Sequence[str], framework: Framework) -> tuple[Mapping[str, str] | None, list[Fault]]:
    """Mixed precision that overrides of Megatron-Bridge state."""
    if framework is not Framework.BRIDGE:
        return None, []
    try:
        return stated_precision(overrides), []
    except InputError as error:
        return None, [_fault(framework, "value", PRECISION, str(error))]


def _overwritten_by(name: str, framework: Framework, known: Collection[str]) -> str | None:
    """Key of NeMo's strategy or plugin that decides what another field seems to say; None for others.

    ``MegatronStrategy.connect`` sets the model's parallel attributes to its own (``set_model_parallel_attributes``) and
    lays the number formats of the precision plugin over model, optimizer and ``ddp``
    (``update_config_with_dtype_overrides``).
    """
    if framework is Framework.NEMO and name == "trainer.strategy.ddp.grad_reduce_in_fp32":
        return _PLUGIN_GRADIENTS
    field = name.rpartition(".")[2]
    read = f"trainer.strategy.{field}"
    inside_model = framework is Framework.NEMO and name in (f"model.config.{field}", f"model.{field}")
    return read if inside_model and read in known else None


def _overwritten_faults(override: tuple[str, str], read: tuple[str, str], framework: Framework) -> list[Fault]:
    """A key whose value another one decides, unless that one says the same."""
    (name, text), (other, value) = override, read
    value = value.strip().strip("'\"")
    if value == text:
        return []
    told = f"override {name}={text} is overwritten by {other}={value}" if value else f"override {name} is overwritten"
    told += "" if value else f" by {other}"
    return [_fault(framework, "overwritten", name, f"{told} without a word; allowed: {other}={text}")]


def launcher_options_off(words: Sequence[str], framework: Framework) -> list[str]:
    """Overrides without the options of the program that takes them, such as ``--mode pretrain`` or ``--yes``."""
    options = _table()["launcher_options"][str(framework)]
    kept: list[str] = []
    skip = 0
    for word in words:
        name, sign, _ = word.partition("=")
        if skip and not word.startswith("-"):
            skip -= 1
        elif name in options:
            skip = 0 if sign else options[name]
        else:
            skip = 0
            kept.append(word)
    return kept


def _sharded_by_tensors(overrides: Sequence[str], framework: Framework, words: Sequence[str]) -> list[str]:
    """Flag of a sharded optimizer where its kind shards whole tensors over the replicas (``dist_muon``).

    References
    ----------
    Megatron-core ``optimizer/layer_wise_optimizer.py``: used without the distributed optimizer.
    """
    plain = [_unquoted(override) for override in overrides]
    named = framework is Framework.BRIDGE and any(word.startswith("optimizer.optimizer=dist_") for word in plain)
    return [_SHARDED] if named and _SHARDED not in words else []


def _flags_of(found: Mapping[str, str], framework: Framework) -> tuple[list[str], list[Fault]]:
    words: list[str] = []
    faults: list[Fault] = []
    for key in override_keys(framework):
        try:
            words += _flag_words(key, found)
        except InputError as error:
            faults.append(_fault(framework, "value", key.keys[0], str(error)))
    return words, faults


def _fault(framework: Framework, kind: str, argument: str, message: str) -> Fault:
    return Fault(rule=f"{framework}-override-{kind}", argument=argument, message=message)


def _unknown(name: str, framework: Framework, known: Sequence[str]) -> Fault:
    fields = _all_fields() if framework is Framework.BRIDGE else ()
    namesakes = [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2]]  # of another section
    close = close_name(name, [*known, *fields]) or "".join(namesakes[:1])
    hint = f"; did you mean {close}?" if close else ""
    silent = framework is Framework.NEMO and name.startswith("trainer.strategy.")
    how = ": NeMo accepts it without a word and drops it" if silent else ""
    return _fault(framework, "unknown", name, f"override {name} is not known{how}{hint}")


@lru_cache(maxsize=1)
def _fields() -> Mapping[str, frozenset[str]]:
    table = package_table("planner.ingest.bridge", "fields.toml")
    return MappingProxyType({section: frozenset(names.split()) for section, names in table.items()})


@lru_cache(maxsize=1)
def _all_fields() -> tuple[str, ...]:
    return tuple(sorted(f"{section}.{name}" for section, names in _fields().items() for name in names))


def _is_field(name: str, framework: Framework) -> bool:
    """Whether a key names a setting of the framework; of sections that take any key, every name does."""
    section, _, rest = name.partition(".")
    if framework is Framework.NEMO:
        if name.startswith(("trainer.strategy.", "trainer.plugins.")):
            return rest.split(".")[1] in _table()["nemo_strategy"]["names"]
        if name.startswith("model.config."):
            return rest.split(".")[1] in _fields()["model"]
        return section in _table()["nemo_sections"]["names"] and _known_to_nemo(section, rest)
    names = _fields().get(section)
    return names is not None and (not rest or not names or rest.split(".")[0] in names)


def _known_to_nemo(section: str, rest: str) -> bool:
    """Whether a section of a recipe has a field, or the part of it that is named; a data module may have others."""
    fields = _table()["nemo_fields"]
    field, _, inner = rest.partition(".")
    if inner and f"{section}.{field}" in fields:
        return inner.partition(".")[0] in fields[f"{section}.{field}"]
    known = fields.get(section)
    if not field or known is None or field in known:
        return True
    return section == "data" and not difflib.get_close_matches(field, known, n=1, cutoff=_NEAR_MISS)


def _of_other_data(name: str, framework: Framework) -> bool:
    """Whether a key of ``dataset`` is like none known: recipes of fine-tuning have data with settings of their own."""
    section, _, field = name.partition(".")
    if framework is not Framework.BRIDGE or section != "dataset":
        return False
    return not difflib.get_close_matches(field, _fields()[section], n=1, cutoff=_NEAR_MISS)


def _synonyms() -> Mapping[str, str]:
    return MappingProxyType(_table()["synonyms"])


def _sizes() -> Mapping[str, str]:
    return MappingProxyType(_table()["sizes"])


def _size_flags(found: Mapping[str, str]) -> list[str]:
    """Flags of the sizes of a model that overrides state."""
    words: list[str] = []
    for name, flag in _sizes().items():
        value = found.get(name, "")
        if value and value.lower() not in _NOTHING:
            words += [*(["--group-query-attention"] if flag == "--num-query-groups" else []), flag, value]
    return words


def _plain_list(text: str) -> str:
    """A pipeline layout of lists as a layout string; other values as they are."""
    if not text.startswith("[["):
        return text
    stages = [re.findall(r"[\w*]+", stage) for stage in text.strip("[]").split("],")]
    return layout_of_lists(stages)


def _kept(model_words: Sequence[str]) -> list[list[str]]:
    """Model arguments, one option with its values each, without those that overrides decide."""
    options: list[list[str]] = []
    for word in model_words:
        if word.startswith("--") or not options:
            options.append([])
        options[-1].append(word)
    return [option for option in options if option[0] not in _MODEL_WORDS]


def _flag_words(key: OverrideKey, found: Mapping[str, str]) -> list[str]:
    told = {found[name] for name in key.keys if name in found}
    if not told:
        return []
    if len(told) > 1:
        raise InputError(f"{' and '.join(key.keys)} differ: {', '.join(sorted(told))}", allowed="one value")
    value = told.pop()
    if key.kind in ("on", "off"):
        if value.lower() not in ("true", "false"):
            raise InputError(f"{key.keys[0]}={value}", allowed="true or false")
        return [key.flag] if (value.lower() == "true") == (key.kind == "on") else []
    if value.lower() in _NOTHING:
        if key.flag in _DEGREES:
            raise InputError(f"{key.keys[0]}={value}", allowed="a whole number from 1")
        return []
    if key.kind == "values":
        words = [word.strip().strip("'\"") for word in value.strip("[]").split(",") if word.strip()]
        return [key.flag, *words] if words else []
    if key.flag.endswith("-dtype"):
        value = value.removeprefix("torch.")
        value = _FORMATS.get(value, value)
    return [key.flag, value]


def _plugin_flags(overrides: Sequence[str], framework: Framework) -> list[str]:
    """Flags of the recipe whose every override is given; the one with most of them, none when nothing says."""
    plain = {_unquoted(override) for override in overrides}
    fitting = [entry for entry in precision_words(framework).values() if set(map(_unquoted, entry[0])) <= plain]
    return list(max(fitting, key=lambda entry: len(entry[0]))[1]) if fitting else []


def _unquoted(override: str) -> str:
    return override.lstrip("+").replace("'", "").replace('"', "")
