"""A layout in the options of the trainer that it was found for: no launch files are written for trainers."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from costmodels.layout import NO_RECOMPUTE
from planner.plan_report import RankedLayout
from planner.request import PlanRequest
from planner.sayable import OPENRLHF

_TRAINER: Final = MappingProxyType(
    {
        "micro": "per_device_train_batch_size",
        "steps": "gradient_accumulation_steps",
        "recompute": "gradient_checkpointing",
    }
)
_OPENRLHF: Final = MappingProxyType(
    {
        "micro": "train.micro_batch_size",
        "batch": "train.batch_size",
        "recompute": "model.gradient_checkpointing_enable",
    }
)
_SHARDING: Final = MappingProxyType({0: "none (replicas)", 2: "shard_grad_op", 3: "full_shard"})


def trainer_steps(request: PlanRequest, ranked: RankedLayout) -> tuple[str, ...]:
    """Say the best layout in its trainer's options; nothing for a framework that launches are written for."""
    if not request.sayable.program:
        return ()
    options = ", ".join(f"{name} {value}" for name, value in _options(request, ranked))
    return (f"{request.program}: {options}",)


def _options(request: PlanRequest, ranked: RankedLayout) -> Iterator[tuple[str, object]]:
    layout, first = ranked.layout, ranked.layout.first
    own: Mapping[str, str] = _OPENRLHF if request.sayable is OPENRLHF else _TRAINER
    values = {
        "micro": layout.micro_batch,
        "steps": layout.num_microbatches,
        "batch": request.job.global_batch,
        "recompute": str(first.recompute != NO_RECOMPUTE).lower(),
    }
    yield from ((name, values[key]) for key, name in own.items())
    if request.sayable.zero:
        yield "sharding", _SHARDING.get(first.zero, first.zero)
    else:
        yield "ZeRO stage", first.zero
    degrees = (("tensor parallelism", first.tp), ("sequence parallelism", first.cp), ("shards over", first.shard_group))
    yield from (degree for degree in degrees if degree[1] > 1)
