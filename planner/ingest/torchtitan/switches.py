"""Switches of a launch of torchtitan: what it compiles, and what it refuses together.

References
----------
torchtitan 0.3.0: ``config/configs.py`` (CompileConfig), ``trainer.py``.
"""

from types import MappingProxyType
from typing import Final

from planner.ingest.torchtitan.command_line import TitanLaunch
from planner.ingest.torchtitan.words import CHECKPOINT
from planner.rules.proposal import ModelFacts
from planner.rules.table import Found, all_rules
from planner.rules.verdict import Violation

COMPILED: Final = "--compile.enable"
UNCOMPILED: Final = "--compile.no_enable"
_ASYNC: Final = "--compile.enable_async_tensor_parallel"
UNCAPTURED: Final = "--training.disable_cuda_graphs"
MENDING: Final = MappingProxyType({COMPILED: "compile", UNCAPTURED: "disable_cuda_graphs"})
"""Switches that mend a launch, and their short names."""
_P: Final = "--parallelism."
_SPLITTING: Final = ("zbvzerobubble", "interleavedzerobubble", "dualpipev")
"""Schedules that compute gradients of inputs and of weights apart."""


def compiles(launch: TitanLaunch) -> bool:
    """Whether the launch compiles its model, which torchtitan does only where it is told to."""
    parts = ",".join(launch.arguments.texts("--compile.components")) or "model,loss"
    return launch.arguments.has(COMPILED) and "model" in parts.split(",")


def priced_as(launch: TitanLaunch) -> str:
    """Software that the launch is priced as; empty as plans for torchtitan are."""
    if not compiles(launch):
        return "torchtitan-eager"
    return "torchtitan-async-tp" if launch.arguments.has(_ASYNC) else ""


def switch_violations(launch: TitanLaunch, checkpoint: str, model: ModelFacts) -> tuple[Violation, ...]:
    """Switches that torchtitan refuses together.

    Parameters
    ----------
    launch : TitanLaunch
        See :func:`parse_torchtitan`.
    checkpoint : str
        Word of its activation checkpointing.
    model : ModelFacts
        Sizes of the model.
    """
    read = launch.arguments
    needs = [
        name
        for name, asked in (
            (_ASYNC, read.has(_ASYNC)),
            (f"{CHECKPOINT}memory-budget", checkpoint == "memory-budget"),
        )
        if asked and not compiles(launch)
    ]
    found = [_refused(f"{name} without a compiled model", COMPILED, "torchtitan-compiled") for name in needs]
    pp, ep = read.number(_P + "pipeline_parallel_degree", 1), read.number(_P + "expert_parallel_degree", 1)
    schedule = read.text(_P + "pipeline_parallel_schedule", "")
    if pp > 1 and schedule.lower() in _SPLITTING:
        found += _of_split_backward(schedule, compiled=compiles(launch))
    told = f"pp {pp}" if pp > 1 else f"experts over ep {ep}" if model.experts and ep > 1 else ""
    if told and not launch.old and not read.has(UNCAPTURED):
        what = f"CUDA graphs, which are on, do not capture {told}"
        found.append(_refused(what, UNCAPTURED, "torchtitan-cuda-graphs"))
    return (*found, *_dense_grid(launch, model, ep))


def _of_split_backward(schedule: str, *, compiled: bool) -> list[Violation]:
    """What does not go with backward passes in two halves, as the rules of plans say it, with the options of a launch.

    Of checkpointing the rules say it themselves.
    """
    broken = {"torchtitan-split-compiled": UNCOMPILED if compiled else ""}
    return [
        Violation(
            rule=rule.id,
            message=f"{rule.message} ({schedule}); allowed: {broken[rule.id]}",
            values={"argument": broken[rule.id]},
            found=rule.found,
            source=rule.source,
        )
        for rule in all_rules()
        if broken.get(rule.id)
    ]


def _dense_grid(launch: TitanLaunch, model: ModelFacts, ep: int) -> tuple[Violation, ...]:
    """The mesh of experts is made of a model without experts too: ep divides what is sharded."""
    read = launch.arguments
    tp, cp = read.number(_P + "tensor_parallel_degree", 1), read.number(_P + "context_parallel_degree", 1)
    pp, replicas = (
        read.number(_P + "pipeline_parallel_degree", 1),
        read.number(_P + "data_parallel_replicate_degree", 1),
    )
    if model.experts or ep < 2 or min(tp, cp, pp, replicas) < 1:
        return ()
    stated = read.number(_P + "data_parallel_shard_degree", -1)
    shard = stated if stated > 0 else launch.world // (replicas * cp * tp * pp)
    sharded = shard * cp * tp
    if sharded % ep == 0:
        return ()
    option = _P + "expert_parallel_degree"
    return (
        Violation(
            rule="torchtitan-ep-grid",
            message=f"ep {ep} does not divide sharded dp x cp x tp = {sharded}; allowed: {option} 1",
            values={"argument": option},
            found=Found.GROUPS,
            source="torchtitan 0.3, distributed/parallel_dims.py: the sparse mesh is made for every model",
        ),
    )


def _refused(what: str, option: str, rule: str) -> Violation:
    return Violation(
        rule=rule,
        message=f"{what}; allowed: {option}",
        values={"argument": option},
        found=Found.PARSE,
        source="torchtitan 0.3, trainer.py (Trainer.Config.__post_init__) and config/configs.py (CompileConfig)",
    )
