"""A plan as a Galvatron launch: its JSON with a strategy for every layer, and the overrides that go with it.

Layers may have grids of their own, as long as every layer uses all GPUs of its stage. Every export is read back with
:mod:`planner.ingest.galvatron` before it is handed out.

References
----------
Hetu-Galvatron 2.4: ``galvatron/core/runtime/hybrid_parallel_config.py`` (keys of the JSON, ``check_hp_config``),
``galvatron/utils/config_utils.py`` (``config2strategy``), ``galvatron/core/runtime/args_schema.py`` (overrides).
"""

import json
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import TrainingJob
from costmodels.layout import Granularity, Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.export.galvatron_model import size_overrides
from planner.export.launch import Export, Planned, Program
from planner.export.plan_checks import (
    check_rules,
    check_sizes,
    other_mixers,
    placed_environment,
    refuse_adapters,
    refuse_linear_loss,
)
from planner.ingest.galvatron import layout_of, parse_galvatron
from planner.ingest.plain_layout import has_replicas, same_launch
from planner.request import Framework
from planner.rules.proposal import facts_of
from planner.rules.table import resolve_version

CONFIG: Final = "galvatron_config.json"
_PIPELINES: Final = MappingProxyType({Schedule.ONE_F_ONE_B: "pipedream_flush", Schedule.GPIPE: "gpipe"})
_DEFAULTS: Final = MappingProxyType({0: "ddp", 2: "zero2"})
_PRECISIONS: Final = ("bf16", "fp16", "fp32")
_PROGRAM: Final = Program(
    target=(
        '"$TRAIN_SCRIPT" "${CONFIG_YAML:-$(dirname "$TRAIN_SCRIPT")/scripts/train_dist.yaml}" '
        f'"runtime.parallel.galvatron_config_path=$here/{CONFIG}"'
    ),
    script="/path/to/galvatron/models/gpt/train_dist.py",
    user_words="runtime.train.train_iters=20",
    user_says="overrides of the YAML, such as runtime.data.data_path=...; CONFIG_YAML names the YAML",
)


def export_galvatron(plan: Planned) -> Export:
    """Write a plan as a Galvatron launch.

    Parameters
    ----------
    plan : Planned
        Layers may differ in tp, cp, ep, etp, whole recompute, and ZeRO 3 against one other stage.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout; ``galvatron_config.json`` is among its files.

    Raises
    ------
    InputError
        A part of the layout cannot be said to Galvatron; the message names it.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    known = resolve_version(Framework.GALVATRON, plan.version)
    check_sizes(plan)
    refuse_adapters(plan.job, "Galvatron")
    refuse_linear_loss(plan.job, "Galvatron", "it has none")
    if mixers := other_mixers(model):
        what = f"model {model.name}: Galvatron has no layer for {mixers[0]}"
        raise InputError(what, allowed="a model of attention layers")
    check_rules(plan, Framework.GALVATRON, known)
    config = json.dumps(galvatron_config(model, job, layout), indent=4) + "\n"
    facts = facts_of(model)
    arguments = _overrides(model, job, layout)
    read = layout_of(parse_galvatron(config, arguments, world=layout.gpus), facts)
    if not same_launch(read, layout, experts=model.has_experts):
        raise InputError("the files do not read back as the plan", allowed="report this as an error of the exporter")
    grids = {run.strategy for stage in layout.stages for run in stage.strategies}
    notes = ["data, tokenizer, learning rate and the rest of the model are those of the YAML that CONFIG_YAML names"]
    notes += ["ranks.tsv shows the grid of the first layer; other layers have theirs"] if len(grids) > 1 else []
    return Export(
        framework=Framework.GALVATRON,
        version=known,
        arguments=arguments,
        environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"), *placed_environment(plan.placement)),
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=tuple(notes),
        program=_PROGRAM,
        files=((CONFIG, config),),
    )


def galvatron_config(model: ModelSpec, job: TrainingJob, layout: Layout) -> dict[str, Any]:
    """Values of Galvatron's JSON; lists over layers are joined by commas, as its searches write them.

    Raises
    ------
    InputError
        Recompute of parts of a layer, or ZeRO stages that do not go together.
    """
    layers = [run.strategy for stage in layout.stages for run in stage.strategies for _ in range(run.count)]
    default, sharded = _data_parallel(layers, experts=model.has_experts)
    pipeline = _PIPELINES.get(layout.schedule)
    if pipeline is None:
        raise InputError(f"schedule {layout.schedule}", allowed="1f1b or gpipe in Galvatron")
    first = layers[0]
    config: dict[str, Any] = {
        "pp_deg": layout.pp,
        "tp_sizes_enc": _joined([layer.tp for layer in layers]),
        "tp_consecutive_flags": _joined([1] * len(layers)),
        "cp_sizes_enc": _joined([layer.cp for layer in layers]),
        "dp_types_enc": _joined(sharded),
        "use_sp": _joined([0] * len(layers)),
        "checkpoint": _joined([_checkpoint(layer) for layer in layers]),
        "global_bsz": job.global_batch,
        "chunks": layout.num_microbatches,
        "pp_division": _joined([stage.layers for stage in layout.stages]),
        "pipeline_type": pipeline,
        "default_dp_type": default,
        "vtp": first.tp,
        "vsp": 0,
        "vcp": first.cp,
        "vocab_sdp": sharded[0],
    }
    if model.has_experts:
        config["ep_sizes_enc"] = _joined([layer.ep for layer in layers])
        config["tp_of_ep_sizes_enc"] = _joined([layer.etp for layer in layers])
    return config


def _joined(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _data_parallel(layers: Sequence[Strategy], *, experts: bool) -> tuple[str, list[int]]:
    """Data parallelism of the layers that are not sharded wholly, and for each layer whether it is (ZeRO 3)."""
    others = {layer.zero for layer in layers if has_replicas(layer, experts=experts)} - {3}
    if len(others) > 1:
        raise InputError(
            f"ZeRO stages {sorted(others)} among the layers", allowed="3 and one of 0 and 2 in one Galvatron plan"
        )
    return _DEFAULTS[others.pop()] if others else "zero2", [int(layer.zero == 3) for layer in layers]


def _checkpoint(layer: Strategy) -> int:
    if layer.recompute.granularity is Granularity.SELECTIVE:
        raise InputError(f"recompute {layer.recompute}", allowed="full or none for each layer in Galvatron")
    return int(layer.recompute.granularity is Granularity.FULL)


def _overrides(model: ModelSpec, job: TrainingJob, layout: Layout) -> tuple[str, ...]:
    """Overrides of Galvatron's YAML that the JSON does not hold."""
    name = job.precision.name.partition("-")[0]
    if name not in _PRECISIONS:
        raise InputError(f"precision {job.precision.name}", allowed=", ".join(_PRECISIONS) + " in Galvatron")
    strategies = [run.strategy for stage in layout.stages for run in stage.strategies]
    parallel = {strategy.sequence_parallel for strategy in strategies if strategy.tp > 1}
    if len(parallel) > 1:
        raise InputError("sequence parallelism differs between layers", allowed="one switch for all in Galvatron")
    facts = facts_of(model)
    return (
        f"runtime.model.is_moe_model={str(model.has_experts).lower()}",
        f"runtime.model.num_layers={facts.layers}",
        *size_overrides(model),
        f"runtime.parallel.mixed_precision={name}",
        f"runtime.train.sequence_parallel={str(parallel != {False}).lower()}",
        f"runtime.train.seq_length={job.seq}",
        f"runtime.train.global_batch_size={job.global_batch}",
        f"runtime.train.chunks={layout.num_microbatches}",
    )
