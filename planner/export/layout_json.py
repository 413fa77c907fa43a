"""A layout as framework-neutral JSON, and back.

The JSON states everything that a :class:`costmodels.layout.Layout` states, and nothing else, so that reading what was
written gives the same layout.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from costmodels.layout import Granularity, Layout, RankOrder, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from hardware.errors import InputError

SCHEMA: Final = 1
_Word = TypeVar("_Word", Schedule, Granularity, RankOrder)
_DEGREES: Final = ("tp", "cp", "dp", "ep", "etp", "zero", "shard_group")


def layout_to_dict(layout: Layout) -> dict[str, Any]:
    """State a layout in plain values.

    Returns
    -------
    dict
        Ready for JSON; ``stages`` in order, each with its layers per virtual chunk and its strategies in layer order.
    """
    return {
        "schema": SCHEMA,
        "schedule": str(layout.schedule),
        "micro_batch": layout.micro_batch,
        "num_microbatches": layout.num_microbatches,
        "rank_order": str(layout.rank_order),
        "microbatch_group": layout.microbatch_group,
        "stages": [
            {
                "island": stage.island,
                "layers_per_chunk": list(stage.layers_per_chunk),
                "strategies": [{"layers": run.count, **_strategy(run.strategy)} for run in stage.strategies],
            }
            for stage in layout.stages
        ],
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    degrees = {name: getattr(strategy, name) for name in _DEGREES}
    recompute = {"granularity": str(strategy.recompute.granularity), "modules": list(strategy.recompute.modules)}
    return {**degrees, "sequence_parallel": strategy.sequence_parallel, "recompute": recompute}


def write_layout(layout: Layout) -> str:
    """Write a layout as JSON text, ending with a newline."""
    return json.dumps(layout_to_dict(layout), indent=2) + "\n"


def read_layout(text: str, where: str = "layout") -> Layout:
    """Read a layout from JSON text.

    Parameters
    ----------
    text : str
        As :func:`write_layout` writes it.
    where : str
        File that errors name.

    Raises
    ------
    InputError
        The text is not JSON, or a field is missing, of the wrong type or out of range.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", allowed="a layout as written by this tool", where=where) from None
    return layout_from_dict(content, where)


def layout_from_dict(content: object, where: str = "layout") -> Layout:
    """Read a layout from plain values.

    Raises
    ------
    InputError
        A field is missing, of the wrong type or out of range.
    """
    table = _table(content, where)
    if table.get("schema") != SCHEMA:
        raise InputError(f"schema {table.get('schema')!r}", allowed=f"{SCHEMA}", where=f"{where}: schema")
    stages = tuple(
        _stage(entry, f"{where}: stages[{index}]") for index, entry in enumerate(_list(table, "stages", where))
    )
    if not stages:
        raise InputError("no stages", allowed="one or more", where=f"{where}: stages")
    if len({len(stage.layers_per_chunk) for stage in stages}) > 1:
        raise InputError("stages hold different numbers of chunks", allowed="one number", where=f"{where}: stages")
    return Layout(
        stages=stages,
        micro_batch=_whole(table, "micro_batch", where, least=1),
        num_microbatches=_whole(table, "num_microbatches", where, least=1),
        schedule=_word(Schedule, table, "schedule", where),
        rank_order=_word(RankOrder, table, "rank_order", where) if "rank_order" in table else RankOrder.DP_INSIDE,
        microbatch_group=_whole(table, "microbatch_group", where, least=0) if "microbatch_group" in table else 0,
    )


def _stage(entry: object, where: str) -> Stage:
    table = _table(entry, where)
    chunks = tuple(
        _number(count, f"{where}: layers_per_chunk", least=0) for count in _list(table, "layers_per_chunk", where)
    )
    runs = tuple(
        _run(run, f"{where}: strategies[{index}]") for index, run in enumerate(_list(table, "strategies", where))
    )
    if not chunks or not runs:
        raise InputError("a stage without chunks or strategies", allowed="one or more of each", where=where)
    if sum(run.count for run in runs) != sum(chunks):
        held, told = sum(chunks), sum(run.count for run in runs)
        raise InputError(f"strategies for {told} layers, chunks of {held}", allowed="equal sums", where=where)
    return Stage(layers_per_chunk=chunks, strategies=runs, island=_whole(table, "island", where, least=0))


def _run(entry: object, where: str) -> StrategyRun:
    table = _table(entry, where)
    degrees = {name: _whole(table, name, where, least=0 if name in ("zero", "shard_group") else 1) for name in _DEGREES}
    if degrees["zero"] > 3:
        raise InputError(f"ZeRO stage {degrees['zero']}", allowed="0 to 3", where=f"{where}: zero")
    parallel = table.get("sequence_parallel")
    if not isinstance(parallel, bool):
        raise InputError(f"{parallel!r}", allowed="true or false", where=f"{where}: sequence_parallel")
    told = _table(table.get("recompute"), f"{where}: recompute")
    modules = _list(told, "modules", f"{where}: recompute")
    if not all(isinstance(module, str) for module in modules):
        raise InputError(f"{modules!r}", allowed="names of modules", where=f"{where}: recompute: modules")
    recompute = Recompute(
        granularity=_word(Granularity, told, "granularity", f"{where}: recompute"), modules=tuple(modules)
    )
    strategy = Strategy(**degrees, sequence_parallel=parallel, recompute=recompute)
    return StrategyRun(strategy=strategy, count=_whole(table, "layers", where, least=0))


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{type(value).__name__} instead of an object", allowed="an object", where=where)
    return value


def _list(table: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = table.get(name)
    if not isinstance(value, list):
        raise InputError("missing or no list", allowed="a list", where=f"{where}: {name}")
    return value


def _whole(table: Mapping[str, Any], name: str, where: str, *, least: int) -> int:
    return _number(table.get(name), f"{where}: {name}", least=least)


def _number(value: object, where: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{value!r}", allowed=f"a whole number from {least}", where=where)
    return value


def _word(kind: type[_Word], table: Mapping[str, Any], name: str, where: str) -> _Word:
    value = table.get(name)
    try:
        return kind(str(value))
    except ValueError:
        allowed = ", ".join(str(member) for member in kind)
        raise InputError(f"{value!r}", allowed=allowed, where=f"{where}: {name}") from None
