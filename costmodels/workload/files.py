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
_BLOCKS: Final = "blocks"
_MOST_WIDTH: Final = 10**12


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
    return model_of_table(read_toml_file(path, allowed="a TOML file"), path.stem, where=str(path))


def table_of_model(model: ModelSpec) -> dict[str, object]:
    """Return what builds a model again by :func:`model_of_table`.

    Parameters
    ----------
    model : ModelSpec
        Any model.

    Returns
    -------
    dict
        Plain data; empty where the model was not built from fields of a transformer, or was changed since.
    """
    table: dict[str, object] = {
        "name": model.name,
        **({"source": model.sources[0]} if model.sources else {}),
        "notes": list(model.notes),
        "transformer": dict(model.stated),
    }
    if not model.stated or len(model.sources) > 1:
        return {}
    try:
        again = model_of_table(table, model.name, where=model.name)
    except InputError:
        return {}
    return table if again == model else {}


def model_of_table(content: Mapping[str, object], name: str, *, where: str) -> ModelSpec:
    """Build a model from the content of its file.

    Parameters
    ----------
    content : mapping
        As of :func:`read_model`, decoded.
    name : str
        Of the model, where the content has none.
    where : str
        What errors name.

    Raises
    ------
    InputError
        A field is unknown, missing or wrong.
    """
    top = Fields(content, where)
    top.only(_TOP)
    name = top.label("name", default=name)
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
    known = [field for field in dataclass_fields(Architecture) if field.name != _BLOCKS]
    table.only([*(field.name for field in known), _BLOCKS])
    facts: dict[str, object] = {_BLOCKS: _blocks(table)} if table.has(_BLOCKS) else {}
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


def _blocks(table: Fields) -> tuple[tuple[int, int], ...]:
    """Key-value heads and feed-forward width of every block."""
    given = table.values[_BLOCKS]
    rows = given if isinstance(given, list | tuple) and len(given) <= _MAX_COUNT else ()
    pairs = [row for row in rows if isinstance(row, list | tuple) and len(row) == 2]
    found = [(row[0], row[1]) for row in pairs if all(type(one) is int and 0 <= one <= _MOST_WIDTH for one in row)]
    if not rows or len(found) < len(rows):
        raise table.wrong(_BLOCKS, given, "pairs of key-value heads and feed-forward width, one for each block")
    return tuple(found)


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
        name=row.label("name"),
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
