"""Options of Megatron-Bridge's own programs, as the recipe and the overrides that they stand for.

``scripts/training`` has ``run_recipe.py`` and ``train.sh``, ``scripts/performance`` ``run_script.py`` and
``setup_experiment.py``, which choose a recipe by its model, task, machine and number format.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from hardware.package_table import package_table
from planner.ingest.bridge.recipes import RELEASE, recipe_names, recipe_overrides
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import close_name, whole
from planner.rules.proposal import Split
from planner.rules.split import virtual_degree

PROGRAMS: Final = ("run_recipe.py", "run_script.py", "setup_experiment.py", "train.sh")
"""Programs whose options choose a recipe."""
_CHOOSERS: Final = ("--model_recipe_name", "-mr", "--model_size", "--compute_dtype")
"""Options that choose a recipe, or belong to those that do."""
_FORMATS: Final = MappingProxyType({"fp8_cs": "fp8cs", "fp8_mx": "fp8mx", "fp8_sc": "fp8sc", "fp8_ds": "fp8ds"})
_TASKS: Final = MappingProxyType({"lora": "peft", "dora": "peft", "finetune": "sft"})
_KNOWN_TASKS: Final = ("pretrain", "finetune", "sft", "peft", "lora", "dora")
_ALIKE: Final = 0.7
"""Likeness from which on a word of a recipe's name is another one misspelt: ``confg``, ``pretrian``."""
_STAGES: Final = "model.pipeline_model_parallel_size"
_VIRTUAL: Final = "model.virtual_pipeline_model_parallel_size"
_LAYOUT: Final = "model.pipeline_model_parallel_layout"
_KEEPS_ITS_RECIPES: Final = "deepseek_v3"
"""Model that keeps its recipe's layout where none of its own is of its stages and chunks."""
_FSDP: Final = "ddp.use_megatron_fsdp"
_SWITCHES: Final = (_FSDP, "model.overlap_moe_expert_parallel_comm")
_SWITCHED: Final = MappingProxyType({"0": "false", "1": "true"})
_SHORT: Final = "abc"
"""No name as short as this is the beginning of another."""
_OF_FSDP: Final = ("ddp.data_parallel_sharding_strategy=optim_grads_params", "checkpoint.ckpt_format=fsdp_dtensor")
_NOTHING: Final = ("", "none", "null")
_COUNTS: Final = ("num_gpus", "nodes", "gpus_per_node")
_GPUS_OF_NAME: Final = re.compile(r"_(\d+)gpu_")


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.bridge", "programs.toml")


@dataclass(kw_only=True)
class _Told:
    """What options say, sorted: choices by name, overrides, and words that are none of the options."""

    choice: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def is_bridge_program(text: LaunchText) -> bool:
    """Whether a launch is of one of Megatron-Bridge's programs, by the program or by an option that chooses a recipe.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    named = text.program.rpartition("/")[2] in PROGRAMS and bool(text.recipe)
    return named or any(word.partition("=")[0] in _CHOOSERS for word in text.arguments)


def with_recipe_chosen(text: LaunchText) -> LaunchText:
    """Return a launch whose options are the overrides that they stand for, with the recipe that they choose.

    Parameters
    ----------
    text : LaunchText
        As read, of Megatron-Bridge.

    Returns
    -------
    LaunchText
        Overrides behind the options win; ``world`` is what the options count, where the launcher does not say. Options
        that are not known stay, and all where nothing chooses a recipe.
    """
    if not text.recipe and not is_bridge_program(text) and text.program.rpartition("/")[2] not in PROGRAMS:
        return text
    told = _sorted(text.arguments)
    performance = "model_recipe_name" in told.choice
    recipe = text.recipe or _chosen(told.choice)
    overrides = [*told.overrides, *(_sequence_split(told.overrides) if performance else ())]
    keys = {word.partition("=")[0] for word in overrides}
    if f"{_STAGES}=1" in overrides and _VIRTUAL not in keys:
        overrides += [f"{_VIRTUAL}=null", f"{_LAYOUT}=null"]
    elif performance and _LAYOUT not in keys and keys & {_STAGES, _VIRTUAL}:
        overrides += _own_layout(told.choice["model_recipe_name"], recipe, overrides)
    world = _world(told.choice) or text.world
    notes = (*text.notes, *(_not_shipped(told.choice, recipe) if performance and not text.recipe else ()))
    notes += (*_misspelt_recipe(text.recipe), *_misspelt_task(told.choice.get("task", "")))
    return replace(text, arguments=(*overrides, *told.left), recipe=recipe, world=world, notes=notes)


def _misspelt_recipe(recipe: str) -> Iterator[str]:
    """Say which shipped recipe a name is taken for that is none of them and differs from it in the spelling alone."""
    name, names = recipe.rpartition(".")[2], recipe_names()
    if not name or name in names:
        return
    words = name.split("_")
    meant = [one for one in names if one == f"{name}_config" or _spelt_alike(words, one.split("_"))]
    if meant:
        told = f"Megatron-Bridge {RELEASE} ships no recipe {name}, and its program takes no other"
        yield f"{told}: did you mean {meant[0]}? What {name} sets is not known"


def _spelt_alike(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two names have the same numbers, and words that are near each other."""
    if len(words) != len(others):
        return False
    differing = [(word, other) for word, other in zip(words, others, strict=True) if word != other]
    plain = all(word.isalpha() and other.isalpha() for word, other in differing)
    return plain and all(SequenceMatcher(None, word, other).ratio() >= _ALIKE for word, other in differing)


def _misspelt_task(task: str) -> Iterator[str]:
    if task and "$" not in task and task not in _KNOWN_TASKS:
        near = close_name(task, _KNOWN_TASKS)
        hint = f"; did you mean {near}?" if near else ""
        yield f"task or mode {task} is none of {', '.join(_KNOWN_TASKS)}, which Megatron-Bridge's programs know{hint}"


def gpus_in_name(recipe: str) -> int:
    """GPUs that a recipe's name states; 0 where it states none.

    Parameters
    ----------
    recipe : str
        Its name.
    """
    found = _GPUS_OF_NAME.search(recipe)
    return int(found[1][:9]) if found else 0


def _sorted(words: Sequence[str]) -> _Told:
    table = _table()
    by_name = {name: key for key, names in table["choice"].items() for name in names}
    told, index = _Told(), 0
    while index < len(words):
        word = words[index]
        index += 1
        name, sign, value = word.lstrip("-").partition("=")
        name = _whole_name(name.replace("-", "_"), (*table["settings"], *by_name, *table["others"]))
        if not (word.startswith("-") and name):
            told.left.append(word)
            continue
        takes = name not in table["others"] or table["others"][name] > 0
        if takes and not sign and index < len(words):
            value, index = words[index], index + 1
        if name in by_name:
            told.choice[by_name[name]] = value
        elif name in table["settings"]:
            told.overrides += _override(table["settings"][name], value)
    for option, choice in (("--mode", "task"), ("--peft_scheme", "scheme")):  # say whether adapters are trained
        told.left += [option, told.choice[choice]] if told.choice.get(choice) else []
    return told


def _whole_name(name: str, known: Sequence[str]) -> str:
    """The option that a name is, or begins if no other does, as argparse reads it; empty for none."""
    if name in known:
        return name
    begun = [one for one in known if len(name) > len(_SHORT) and one.startswith(name)]
    return begun[0] if len(begun) == 1 else ""


def _override(key: str, value: str) -> list[str]:
    """What an option sets: nothing for no value, but for virtual stages, which it turns off then.

    Megatron FSDP is set with the format of its checkpoints, as no run of these scripts keeps any.
    """
    if value.lower() in _NOTHING:
        return [f"{key}=null"] if key == _VIRTUAL else []
    value = _SWITCHED.get(value, value) if key in _SWITCHES else value
    sharded = key == _FSDP and value.lower() == "true"
    quoted = f"'{value}'" if key == _LAYOUT else value  # which an option needs no quotes for
    return [f"{key}={quoted}", *(_OF_FSDP if sharded else ())]


def _sequence_split(overrides: Sequence[str]) -> tuple[str, ...]:
    """Programs of ``scripts/performance`` turn sequence parallelism on with tensor parallelism, and off without."""
    tp = next((word.partition("=")[2] for word in overrides if word.startswith("model.tensor_model_")), "")
    return (f"model.sequence_parallel={str(tp != '1').lower()}",) if tp else ()


def _own_layout(model: str, recipe: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """The layout that ``scripts/performance`` gives a model of which options state stages or chunks.

    Parameters
    ----------
    model : str
        As ``--model_recipe_name`` has it.
    recipe : str
        Name of the recipe; what it sets counts where no option does.
    overrides : sequence of str
        What options set.
    """
    layouts = _table()["layouts"].get(model)
    if layouts is None:
        return ()
    shipped = dict(word.split("=", 1) for word in recipe_overrides(recipe))
    written = shipped.get(_LAYOUT, "")
    if model != _KEEPS_ITS_RECIPES and "*" in written:  # a list of stages is written out here
        return ()
    chunks = virtual_degree(Split(layout=written), 0, whole(shipped.get(_STAGES, "1")) or 1)
    said = {_STAGES: "1", _VIRTUAL: str(chunks), **shipped, **dict(word.split("=", 1) for word in overrides)}
    named = f"{said[_STAGES]}x{whole(said[_VIRTUAL]) or 1}"
    if named not in layouts and model == _KEEPS_ITS_RECIPES:
        return ()
    layout = layouts.get(named)
    return (f"{_LAYOUT}='{layout}'" if layout else f"{_LAYOUT}=null",)


def _world(choice: Mapping[str, str]) -> int:
    for name in _COUNTS:
        told = choice.get(name, "")
        if told and "$" not in told and not whole(told):
            raise InputError(f"--{name} {told}", allowed="a whole number from 1")
    if "$" in choice.get("num_gpus", ""):
        return 0  # only the running shell knows
    if total := whole(choice.get("num_gpus", "")):
        return total
    return (whole(choice.get("nodes", "1")) or 0) * (whole(choice.get("gpus_per_node", "")) or 0)


def _not_shipped(choice: Mapping[str, str], recipe: str) -> Iterator[str]:
    """Say that no recipe is of what options of a performance script choose, so that the model's own one is taken."""
    if recipe not in recipe_names() or gpus_in_name(recipe):
        return
    chosen = [choice[name] for name in ("task", "gpu", "compute_dtype", "fp8_recipe") if choice.get(name)]
    yield f"Megatron-Bridge {RELEASE} ships no recipe of {', '.join(chosen)} for this model: {recipe} is taken"


def _chosen(choice: Mapping[str, str]) -> str:
    """Name of the recipe that options choose: by model, task, GPUs, machine and format, or the first that agrees.

    Where none is of so many GPUs, one of other sizes says what it sets; its name begins as the model's.
    """
    named = (choice.get("model_name", ""), choice.get("model_size", ""))
    stem = choice.get("model_recipe_name") or choice.get("model") or "_".join(filter(None, named))
    if not stem:
        return ""
    task = choice.get("task", "pretrain")
    start = f"{stem}_{_TASKS.get(task, task)}_"
    dtype = "_".join(filter(None, (choice.get("compute_dtype", "bf16"), choice.get("fp8_recipe", ""))))
    rest = f"{choice.get('gpu', 'h100')}_{_FORMATS.get(dtype, dtype)}"
    number = choice.get("num_gpus", "")
    own = f"{start}{number}gpu_{rest}_config"
    names = recipe_names()
    if own in names:
        return own
    alike = [name for name in names if name.startswith(start) and name.endswith(f"gpu_{rest}_config")]
    return next(iter(alike), f"{start}config")
