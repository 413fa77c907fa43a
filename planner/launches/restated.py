"""A launch with other degrees, in its own words: what is named as near to a launch is judged as one that says it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.bridge.overrides import LAYOUT, STAGES, VIRTUAL, override_keys
from planner.ingest.deepspeed.text import read_config
from planner.ingest.judge_stated import deepspeed_text
from planner.ingest.judged import LaunchInput
from planner.ingest.trainers.words import told_options, trains
from planner.request import Framework
from planner.rules.layout_string import layout_string
from planner.rules.nearest import Neighbour
from planner.rules.proposal import Proposal, replicas_of

_FLAGS: Final = MappingProxyType(
    {
        "tp": "--tensor-model-parallel-size",
        "pp": STAGES,
        "cp": "--context-parallel-size",
        "ep": "--expert-model-parallel-size",
        "etp": "--expert-tensor-parallel-size",
        "micro_batch": "--micro-batch-size",
        "global_batch": "--global-batch-size",
        "microbatch_group": "--microbatch-group-size-per-virtual-pipeline-stage",
    }
)
_SPLITS: Final = (
    LAYOUT,
    VIRTUAL,
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)
_SEQUENCE: Final = "--sequence-parallel"
_DEEPSPEED: Final = MappingProxyType(
    {"tp": _FLAGS["tp"], "pp": STAGES, "cp": "--ds-sequence-parallel-size", "ep": "--moe-expert-parallel-size"}
)
_EXPERTS_TP: Final = "--enable-expert-tensor-parallelism"
Setting = tuple[str, str | bool | None]
"""A flag with its value; a switch is on or off, and None is not given."""


def restated(near: Neighbour, given: LaunchInput) -> LaunchInput | None:
    """State a launch with the degrees of a neighbour.

    Parameters
    ----------
    near : Neighbour
        The degrees, and the split where layers were spread anew.
    given : LaunchInput
        The launch.

    Returns
    -------
    LaunchInput or None
        None where its framework is written otherwise (torchtitan), or its file is none that can be changed.
    """
    moved = replace(given, world=near.proposal.world)
    if given.framework is Framework.DEEPSPEED:
        return _deepspeed(near.proposal, moved)
    if given.framework is Framework.GALVATRON:
        return _galvatron(near, moved)
    if given.framework is Framework.TORCHTITAN:
        return None
    settings = _settings(near)
    if given.framework is Framework.MEGATRON:
        said = _as_flags(given.text.arguments, settings)
    else:
        said = _as_keys(settings, given, near.proposal.vpp)
    return replace(moved, text=replace(moved.text, arguments=said))


def _settings(near: Neighbour) -> list[Setting]:
    """Flags of Megatron-LM that say the changes; those of a split all anew where it is."""
    proposal, changed = near.proposal, {name for name, _, _ in near.changes}
    values = {name: getattr(proposal, name) for name in _FLAGS if name != "microbatch_group"}
    values["microbatch_group"] = proposal.switches.microbatch_group
    settings: list[Setting] = [(flag, str(values[name])) for name, flag in _FLAGS.items() if name in changed]
    if "sequence_parallel" in changed or "tp" in changed:
        settings.append((_SEQUENCE, proposal.sequence_parallel and proposal.tp > 1))
    if near.split or {"pp", "vpp"} & changed:
        split = near.layers_per_stage
        even = len({count for stage in split for count in stage}) == 1
        told = {VIRTUAL: str(proposal.vpp)} if even and proposal.vpp > 1 else {}
        told |= {} if even or proposal.pp == 1 else {LAYOUT: layout_string(split, proposal.model.mtp)}
        settings += [(flag, told.get(flag)) for flag in _SPLITS]
    return settings


def _as_flags(words: Sequence[str], settings: Sequence[Setting]) -> tuple[str, ...]:
    """An argument list with settings behind it, in place of what it says of them."""
    ours = {flag for flag, _ in settings}
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0] in ours
        if not dropping:
            kept.append(word)
    for flag, value in settings:
        if value is True:
            kept.append(flag)
        elif isinstance(value, str):
            kept += [flag, value]
    return tuple(kept)


def _as_keys(settings: Sequence[Setting], given: LaunchInput, chunks: int) -> tuple[str, ...]:
    """Overrides with settings behind them, in place of what they say of them."""
    keys = {key.flag: key.keys for key in override_keys(given.framework)}
    told = dict(settings)
    if given.framework is Framework.NEMO and isinstance(told.get(LAYOUT), str) and chunks > 1:
        told[VIRTUAL] = str(chunks)  # its strategy needs the degree beside the layout
    ours = {name for flag in told for name in keys.get(flag, ())}
    kept = [word for word in given.text.arguments if word.lstrip("+-~").partition("=")[0] not in ours]
    for flag, value in told.items():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else value
            kept += [f"{name}={text}" for name in keys.get(flag, ())]
    return tuple(kept)


def _deepspeed(wanted: Proposal, given: LaunchInput) -> LaunchInput | None:
    """A configuration with its batch, and the program's degrees."""
    text = deepspeed_text(given)
    try:
        config = read_config(text.config)
    except InputError:
        return None
    config.pop("train_batch_size", None)  # a trainer holds it against all ranks, DeepSpeed against the replicas
    micro = wanted.micro_batch
    steps = wanted.global_batch // (micro * replicas_of(wanted.world, wanted.tp, wanted.cp, wanted.pp))
    config |= {"gradient_accumulation_steps": steps, "train_micro_batch_size_per_gpu": micro}
    settings: list[Setting] = [(flag, str(getattr(wanted, name))) for name, flag in _DEEPSPEED.items()]
    if trains(text.program, told_options(text.arguments)):
        settings += [("--per-device-train-batch-size", str(micro)), ("--gradient-accumulation-steps", str(steps))]
    settings += [("--micro-batch-size", None), ("--global-batch-size", None)]
    settings.append((_SEQUENCE, wanted.sequence_parallel and wanted.tp > 1))
    settings.append((_EXPERTS_TP, wanted.model.experts > 0 and wanted.etp > 1))
    words = _as_flags(text.arguments, settings)
    return replace(given, text=replace(text, arguments=words, config=json.dumps(config)))


def _galvatron(near: Neighbour, given: LaunchInput) -> LaunchInput | None:
    """A configuration with one grid for every layer."""
    config, wanted = _object(given.text.config), near.proposal
    if config is None:
        return None
    layers = wanted.model.layers
    columns = {"tp_sizes_enc": wanted.tp, "cp_sizes_enc": wanted.cp}
    if wanted.model.experts:
        columns |= {"ep_sizes_enc": wanted.ep, "tp_of_ep_sizes_enc": wanted.etp}
    dp = replicas_of(wanted.world, wanted.tp, wanted.cp, wanted.pp)
    changed: Mapping[str, Any] = {
        **{name: ",".join([str(degree)] * layers) for name, degree in columns.items()},
        "use_sp": ",".join(["0"] * layers),
        "pp_deg": wanted.pp,
        "pp_division": ",".join(str(sum(stage)) for stage in near.layers_per_stage),
        "global_bsz": wanted.global_batch,
        "chunks": max(1, wanted.global_batch // (wanted.micro_batch * dp)),
        "vtp": wanted.tp,
        "vcp": wanted.cp,
    }
    return replace(given, text=replace(given.text, config=json.dumps({**config, **changed})))


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
