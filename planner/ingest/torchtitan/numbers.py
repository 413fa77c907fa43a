"""Number formats of a launch of torchtitan, and options that change its price and have none.

References
----------
torchtitan 0.3.0: ``config/configs.py``, ``components/quantization``; 0.2.2: the same and ``config/job_config.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from planner.ingest.options import Fault
from planner.ingest.torchtitan.command_line import LAYERS_APART, TitanLaunch
from planner.ingest.torchtitan.models import entry_of
from planner.ingest.torchtitan.words import opposite, option_table, own_name, told_values
from planner.nearest import nearest

_CONVERTERS: Final = "model.converters"
_SWITCHED: Final = "float8.enable_float8_linear"
"""What swapped linear layers before converters did (torchtitan of 2024, ``config_manager.py``)."""
_WIDE_GRADIENTS: Final = "rowwise_with_gw_hp"
_RECIPES: Final = ("tensorwise", "rowwise", _WIDE_GRADIENTS)
_SECTIONS: Final = ("quantize.", "float8.", "mx.")
_BUDGET: Final = "activation_checkpoint.memory_budget"
_GATHER: Final = "enable_fsdp_float8_all_gather"
_FLOAT8_EXPERTS: Final = "quantize.grouped_mm.float8"
_ALONE: Final = ("pipeline", "context")
_BF16: Final = ("output", "lm_head", "router.gate", "auto_filter_small_kn")
"""Parts that keep 16 bits in the price too, and the word for products too small to gain."""
_NAMED: Final = ("float8", "mxfp8", "nvfp4")
_RECIPE: Final = ("quantize.linear.float8.recipe_name", "float8.recipe_name")
_TENSOR_SCALED: Final = MappingProxyType({"row_scales": False, "low_precision_gathers": True})
"""One scale per tensor (until 0.2): tensor-parallel ranks gather what products read (``float8_tensorwise_tp``)."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Training recipe of a launch; what the framework refuses of it; what must be told.

    ``software`` are fields of :class:`costmodels.job.Software` that go with the recipe.
    """

    precision: str
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    software: Mapping[str, bool] = field(default_factory=dict)


def numbers_of(launch: TitanLaunch, *, experts: bool) -> Numbers:
    """Read the training recipe of a launch.

    Parameters
    ----------
    launch : TitanLaunch
        See :func:`planner.ingest.torchtitan.command_line.parse_torchtitan`.
    experts : bool
        Whether its model has experts, whose products have a converter of their own.
    """
    config = launch.arguments.text("--config")
    dense = _dense_recipe(launch)
    names = _converters(launch)
    if not names:
        entry = {} if launch.old else entry_of(config)
        told = next((word for word in _NAMED if word in config and not entry and not launch.old), "")
        unknown = f"configuration {config} is not known: what it computes in {told} is priced as {dense}"
        return Numbers(precision=str(entry.get("precision", dense)), notes=(unknown,) if told else ())
    table = option_table()["converters"]
    known = [table[name] for name in names if name in table]
    faults = tuple(_unknown(name, table) for name in names if name not in table and name.startswith("quantize"))
    others = [name for name in names if name not in table and not name.startswith("quantize")]
    notes = [f"what the converter {name} changes has no price here" for name in others]
    formats = {str(entry["precision"]) for entry in known}
    parts = {str(entry["part"]) for entry in known}
    if len(formats) > 1:
        message = f"--{_CONVERTERS} {','.join(names)}: formats of different kinds cannot be combined"
        faults += (_fault(_CONVERTERS, message),)
    if not formats or _emulated(launch):
        notes += [f"emulated float8 has no price here: priced as {dense}"] if formats else []
        return Numbers(precision=dense, faults=faults, notes=tuple(notes))
    if "linear" not in parts:
        notes.append(f"{', '.join(names)} changes experts alone, which has no price of its own: priced as {dense}")
        return Numbers(precision=dense, faults=faults, notes=tuple(notes))
    precision = next(iter(sorted(formats)))
    if experts and "experts" not in parts:
        notes.append("products of experts stay in 16 bits without a converter of their own: priced as the others")
    faults += _of_experts(launch, names)
    further, told_notes = _of_recipe(launch, precision)
    return Numbers(
        precision=precision,
        faults=(*faults, *further),
        notes=(*notes, *told_notes),
        software=_software_of(launch, precision),
    )


def _software_of(launch: TitanLaunch, precision: str) -> Mapping[str, bool]:
    """Fields of the software that a recipe of float8 sets."""
    if precision == "fp8-cs" and _setting(launch, *_RECIPE) == _WIDE_GRADIENTS:
        return {"wide_weight_gradients": True}
    return _TENSOR_SCALED if _scaled_by_tensor(launch, precision) else {}


def _scaled_by_tensor(launch: TitanLaunch, precision: str) -> bool:
    """Whether linear layers in float8 have one scale per tensor: the default until 0.2, gone since 0.3."""
    recipe = _setting(launch, *_RECIPE)
    return launch.old and precision == "fp8-cs" and recipe in ("", "tensorwise")


def _dense_recipe(launch: TitanLaunch) -> str:
    """Recipe of a launch whose configuration names none."""
    if launch.arguments.text("--training.dtype") == "bfloat16":
        return "bf16-pure"
    return "fp32" if launch.arguments.text("--training.mixed_precision_param") == "float32" else "bf16"


def _converters(launch: TitanLaunch) -> tuple[str, ...]:
    named = told_values(launch.unjudged, _CONVERTERS) or ()
    return ("float8",) if not named and told_values(launch.unjudged, _SWITCHED) == ("true",) else named


def _setting(launch: TitanLaunch, *names: str) -> str:
    """Value of the first of some options that is told, with commas; empty: none is."""
    return next((",".join(told) for name in names if (told := told_values(launch.unjudged, name))), "")


def _emulated(launch: TitanLaunch) -> bool:
    return _setting(launch, "quantize.linear.float8.emulate", "float8.emulate") == "true"


def _of_recipe(launch: TitanLaunch, precision: str) -> tuple[list[Fault], list[str]]:
    """What is refused and told of the settings of one kind of linear layers."""
    faults, notes = [], []
    if precision == "mxfp8":
        recipe = _setting(launch, "quantize.linear.mx.recipe_name", "mx.recipe_name")
        if recipe and not recipe.startswith("mxfp8"):
            notes.append(f"mx recipe {recipe} has no price here: priced as mxfp8")
        tp = launch.arguments.number("--parallelism.tensor_parallel_degree", 1)
        if launch.old and tp > 1 and launch.arguments.has("--compile.enable"):
            told = "a compiled model with mxfp8 over tp is refused; allowed: --compile.no_enable, or tp 1"
            faults.append(_fault(_CONVERTERS, told))
        ways = ("quantize.linear.mx.filter_fqns", "mx.filter_fqns")
    else:
        name = _RECIPE[0]
        recipe = _setting(launch, *_RECIPE)
        gathered = _setting(launch, f"quantize.linear.float8.{_GATHER}", f"float8.{_GATHER}") == "true"
        if recipe and recipe not in _RECIPES:
            faults.append(_fault(name, f"float8 recipe {recipe!r} is unknown; allowed: {', '.join(_RECIPES)}"))
        elif recipe and gathered:
            faults.append(_fault(name, f"float8 recipe {recipe} with {_GATHER}; allowed: one of both"))
        if gathered:
            notes.append("weights that FSDP gathers in float8 have no price here: priced as gathered in 16 bits")
        ways = ("quantize.linear.float8.filter_fqns", "float8.filter_fqns")
    kept = [part for part in _setting(launch, *ways).split(",") if part and part not in _BF16]
    if kept:
        notes.append(f"{', '.join(kept)} stays in 16 bits, which has no price of its own: priced as the other products")
    return faults, notes


def _of_experts(launch: TitanLaunch, names: Sequence[str]) -> tuple[Fault, ...]:
    """What 0.2 refuses beside float8 experts (``Float8GroupedMMConverter``)."""
    if not launch.old or _FLOAT8_EXPERTS not in names:
        return ()
    degrees = ((word, launch.arguments.number(f"--parallelism.{word}_parallel_degree", 1)) for word in _ALONE)
    messages = [
        f"{_FLOAT8_EXPERTS} with {word} parallelism {degree}; allowed: 1" for word, degree in degrees if degree > 1
    ]
    return tuple(_fault(_CONVERTERS, message) for message in messages)


def _unknown(name: str, table: Mapping[str, Any]) -> Fault:
    return _fault(_CONVERTERS, f"converter {name!r} is unknown{nearest(name, table)}; allowed: {', '.join(table)}")


def _fault(name: str, message: str) -> Fault:
    return Fault(rule="torchtitan-converters", argument=f"--{name}", message=message)


def unpriced_notes(launch: TitanLaunch) -> tuple[str, ...]:
    """Options of a launch that change time or memory and have no price, with what is priced in their place."""
    notes = []
    for name, entry in option_table()["unpriced"].items():
        degree = entry.get("degree", "")
        if degree and launch.arguments.number(f"--parallelism.{degree}", 1) < 2:
            continue
        value = _stated(launch, name)
        if value and value not in str(entry["default"]).split():
            notes.append(f"--{name} {value}: {entry['told']}")
    parts = launch.arguments.texts("--compile.components")
    if launch.arguments.has("--compile.enable") and parts and "loss" not in ",".join(parts).split(","):
        notes.append("--compile.components without loss: a loss that is not compiled is priced as compiled")
    return tuple(notes)


def _stated(launch: TitanLaunch, name: str) -> str:
    section, _, field = name.partition(".")
    for option, switched in ((f"--{name}", "true"), (f"--{section}.no_{field}", "false")):
        if launch.arguments.has(option):
            return launch.arguments.text(option) or switched
    return _setting(launch, name)


def unjudged_names(launch: TitanLaunch) -> tuple[str, ...]:
    """Options that say nothing about a layout, its time or its memory."""
    read = {_CONVERTERS, _SWITCHED, LAYERS_APART, *option_table()["unpriced"]}
    read |= {_BUDGET} if launch.checkpoint == "memory-budget" else set()  # the note on it stands for the budget
    sections = _SECTIONS if _converters(launch) else ()
    names = (own_name(word) for word in launch.unjudged if word.startswith("--"))
    return tuple(
        name for name in names if not {name[2:], opposite(name[2:])} & read and not name[2:].startswith(sections)
    )
