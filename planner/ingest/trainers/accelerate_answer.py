"""The answer on a launch by accelerate: whose rules judge it, what it is priced as, and which keys nobody reads."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hardware.errors import InputError
from planner.ingest.judged import JudgedLaunch, LaunchInput
from planner.ingest.plain_layout import StatedLayout
from planner.ingest.trainers.accelerate import Accelerated, Engine
from planner.ingest.trainers.accelerate_megatron import by_plugin
from planner.request import Framework
from planner.sayable import FSDP, FSDP_1, FSDP_GRID, TRAINER

_SOFTWARE: Final = "fsdp-modules"
"""Preset of PyTorch's own sharding and replicas of Hugging Face's modules, whose kernels the Trainer runs."""


_SHARDED: Final = 2
"""First stage of PyTorch's own sharding."""


def refuse_unread(given: LaunchInput) -> None:
    """Refuse a launch whose settings of accelerate hand the model to another framework than the one that judges.

    Raises
    ------
    InputError
        Says which framework reads them.
    """
    if given.text.accelerate is None:
        return
    reads = Framework.MEGATRON if by_plugin(given.text) else Framework.DEEPSPEED
    if given.framework is not reads:
        raise InputError(
            f"settings of accelerate that {given.framework} does not read",
            allowed=f"--framework {reads}",
            where="distributed_type",
        )


def with_groups(stated: StatedLayout, sharded: Accelerated | None) -> StatedLayout:
    """A layout whose states are sharded over groups of replicas, where FSDP is told so."""
    if sharded is None or not sharded.shard_group:
        return stated
    stages = tuple(
        replace(
            stage,
            strategies=tuple(
                replace(run, strategy=replace(run.strategy, shard_group=sharded.shard_group))
                for run in stage.strategies
            ),
        )
        for stage in stated.layout.stages
    )
    return replace(stated, layout=replace(stated.layout, stages=stages))


def by_accelerate(judged: JudgedLaunch, plugin: Accelerated) -> JudgedLaunch:
    """The answer with what accelerate's settings say of title, software and keys.

    PyTorch's sharding keeps fp32 shards as torchtitan's does, so a launch that it runs is priced with its recipes.
    """
    ignored = tuple(f"accelerate ignores the key {name} without a word" for name in plugin.ignored)
    names = tuple(name.partition(" ")[0] for name in plugin.ignored)
    judged = replace(judged, unknown=(*judged.unknown, *names), notes=(*judged.notes, *plugin.notes, *ignored))
    if plugin.engine is Engine.DEEPSPEED:
        sayable = judged.sayable if judged.sayable.program else TRAINER
        return replace(judged, title=f"{judged.title} by accelerate", sayable=sayable)
    sync = plugin.sync_each_batch
    waiting = () if sync else tuple(_waiting(judged))
    return replace(
        judged,
        title=plugin.title,
        framework=Framework.TORCHTITAN,
        software=_SOFTWARE,
        sayable=FSDP_GRID if plugin.grid else FSDP_1 if plugin.version == 1 else FSDP,
        state_offload=plugin.in_host,
        gradient_bytes=0.0,
        sync_each_batch=sync,
        notes=(*judged.notes, *waiting),
    )


def _waiting(judged: JudgedLaunch) -> Iterator[str]:
    """Say that gradients wait whole for the last micro-batch, where there are several and FSDP shards them."""
    layout = judged.layout
    if layout is not None and layout.num_microbatches > 1 and layout.first.zero >= _SHARDED:
        yield (
            f"gradients stay whole on every GPU until the last of {layout.num_microbatches} micro-batches reduces them "
            "(no_sync); accelerator_config with gradient_accumulation_kwargs: {sync_each_batch: true} shards them with "
            "each"
        )
