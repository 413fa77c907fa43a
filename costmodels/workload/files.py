"""Models in TOML: a transformer in our own field names, or a plain list of layers."""

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.model import LayerRun, ModelSpec, OpaqueLayer
from hardware.errors import InputError
from hardware.text_file import read_toml_file

_TOP: Final = ("name", "family", "source", "notes", "tokens_per_sample", "transformer", "layer")
_LAYER: Final = (
    "name",
    "count",
    "forward_gflops_per_sample",
    "parameters",
    "activation_mb_per_sample",
    "output_mb_per_sample",
    "forward_mb_per_sample",
    "tp_exchange_mb_per_sample",
    "shardable",
)
_AXES: Final = ("tp", "cp", "ep")
_GIGA: Final = 1e9
_MEGA: Final = 1e6
_MAX_COUNT: Final = 10_000


def read_model(path: Path) -> ModelSpec:
    """Read a model from a TOML file.

    Parameters
    ----------
    path : Path
        A file with a ``[transformer]`` table (the fields of
        :class:`costmodels.workload.architecture.Architecture`), or with ``[[layer]]`` tables.

    Returns
    -------
    ModelSpec
        Named by ``name``, else after the file.

    Raises
    ------
    InputError
        The file cannot be read, is not TOML, or a field is unknown, missing or wrong.
    """
    content = read_toml_file(path, allowed="a TOML file")
    where = str(path)
    top = Fields(content, where)
    top.only(_TOP)
    name = top.text("name", default=path.stem)
    if top.has("transformer") == top.has("layer"):
        raise InputError(
            "needs one of [transformer] and [[layer]]",
            allowed="a [transformer] table, or [[layer]] tables",
            where=where,
        )
    sources = (top.text("source"),) if top.has("source") else ()
    if top.has("transformer"):
        facts = _transformer(top)
        return facts.build(name, sources=sources, notes=top.texts("notes"), where=f"{where}: transformer")
    runs = _layer_runs(top)
    return ModelSpec(
        name=name,
        family=top.text("family", default="layers"),
        hidden=0,
        vocab=0,
        runs=runs,
        causal=False,
        fixed_seq=top.whole("tokens_per_sample", default=0),
        sources=sources,
        notes=top.texts("notes"),
    )


def _transformer(top: Fields) -> Architecture:
    table = top.table("transformer")
    known = [field for field in dataclass_fields(Architecture) if field.name != "blocks"]  # [[layer]] says as much
    table.only([field.name for field in known])
    facts: dict[str, object] = {}
    for field in known:
        if not table.has(field.name):
            continue
        if field.type is bool:
            facts[field.name] = table.flag(field.name)
        elif field.type is str:
            facts[field.name] = table.text(field.name)
        else:
            facts[field.name] = table.whole(field.name)
    for name in ("layers", "hidden", "vocab"):
        facts.setdefault(name, table.whole(name, least=1))  # missing: the error says so
    if top.has("family"):
        facts["family"] = top.text("family")
    return Architecture(**facts)  # type: ignore[arg-type]


def _layer_tables(top: Fields) -> list[Mapping[str, object]]:
    tables = top.values.get("layer")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, Mapping) for table in tables):
        raise top.wrong("layer", tables, "one or more [[layer]] tables")
    return tables


def _layer_runs(top: Fields) -> tuple[LayerRun, ...]:
    runs: list[LayerRun] = []
    seen: dict[str, object] = {}
    for index, table in enumerate(_layer_tables(top)):
        run = _layer_run(table, f"{top.where}: layer[{index}]")
        if seen.setdefault(run.kind.name, run.kind) != run.kind:
            raise InputError(
                f"{run.kind.name!r} names two unlike layers",
                allowed="one name per kind of layer",
                where=f"{top.where}: layer[{index}]: name",
            )
        runs.append(run)
    return tuple(runs)


def _layer_run(table: Mapping[str, object], where: str) -> LayerRun:
    row = Fields(table, where)
    row.only(_LAYER)
    shardable = row.texts("shardable")
    for axis in shardable:
        if axis not in _AXES:
            raise row.wrong("shardable", axis, ", ".join(_AXES))
    layer = OpaqueLayer(
        name=row.text("name"),
        forward_flops_per_sample=_GIGA * row.number("forward_gflops_per_sample"),
        parameters=row.whole("parameters"),
        activation_bytes_per_sample=_MEGA * row.number("activation_mb_per_sample"),
        output_bytes_per_sample=_MEGA * row.number("output_mb_per_sample"),
        shardable=shardable,
        tp_exchange_bytes_per_sample=_MEGA * row.number("tp_exchange_mb_per_sample", default=0.0),
        forward_bytes_per_sample=_MEGA * row.number("forward_mb_per_sample", default=0.0),
    )
    count = row.whole("count", default=1, least=1)
    if count > _MAX_COUNT:
        raise row.wrong("count", count, f"1 to {_MAX_COUNT}")
    return LayerRun(kind=layer, count=count)
