"""From a measured run to what the cost models price: model, cluster, job and layout."""

from dataclasses import dataclass, fields
from typing import Final

from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import RunText, software_for
from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from costmodels.workload.stated import StatedArchitecture, model_from_architecture
from hardware.catalog import accelerator, cluster_of_run
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.grids import expert_count
from planner.measured import MeasuredRun, RunGrid
from planner.splits import even_chunks

BITS_PER_BYTE: Final = 8.0
BYTES_PER_GBIT: Final = 1e9 / BITS_PER_BYTE
BILLION: Final = 1e9
SEQUENCE_PARALLEL_FRAMEWORKS: Final = ("megatron", "bridge", "nemo", "torchtitan")

_SCHEDULES: Final = (
    ("zb-2p", Schedule.ZB_2P),
    ("zb-1p", Schedule.ZB_H1),
    ("zbv", Schedule.ZBV),
    ("gpipe", Schedule.GPIPE),
)


@dataclass(frozen=True, kw_only=True)
class PricedRun:
    """What one run asks the cost models."""

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    layout: Layout


def question_of(run: MeasuredRun) -> PricedRun:
    """Return what a run asks; its grid must be complete.

    Raises
    ------
    InputError
        The run names an unknown model, machine or precision, or its layout cannot hold its model.
    """
    grid = run.grid
    if grid is None:
        raise InputError(run.skipped or "the layout is not complete")
    model = _model(run)
    software = software_for(_words(run)).software
    job = TrainingJob(
        global_batch=grid.global_batch,
        seq=grid.seq,
        precision=_precision(run, software),
        software=software,
    )
    layout = _layout(run, grid, model, software)
    return PricedRun(model=model, cluster=_cluster(run), job=job, layout=layout)


def _precision(run: MeasuredRun, software: Software) -> Precision:
    """The recipe that a run states; where it states none that is known, 16 bits as its hardware has them."""
    sixteen_bits = "bf16" if accelerator(run.text("hardware").split("+")[0]).peak.bf16 > 0.0 else "fp16"
    for words in (run.text("dtype"), run.text("precision")):
        if words:
            try:
                return precision(words, framework=software.framework)
            except InputError:
                continue
    return precision(sixteen_bits, framework=software.framework)


def _words(run: MeasuredRun) -> RunText:
    renamed = {"version": "source_version", "dispatcher": "moe_dispatcher", "routing": "token_routing"}
    words = {field.name: run.text(renamed.get(field.name, field.name)) for field in fields(RunText)}
    words["source"] = f"{words['source']} {run.id}"  # ids carry the name of the study
    return RunText(**words)


def _model(run: MeasuredRun) -> ModelSpec:
    layers = int(run.number("layers") or 0)
    if not run.number("hidden_size"):
        found = presets.find(run.text("model"))
        if found is not None:
            return presets.proxy(found, layers) if layers and layers != found.layers else found
    return model_from_architecture(
        StatedArchitecture(
            name=run.text("model"),
            layers=layers,
            hidden=int(run.number("hidden_size") or 0),
            ffn=int(run.number("ffn_hidden_size") or 0),
            heads=int(run.number("heads") or 0),
            kv_heads=int(run.number("kv_heads") or 0),
            vocab=int(run.number("vocab") or 0),
            experts=int(run.number("experts") or 0),
            top_k=int(run.number("topk") or 0),
            seq=int(run.number("seq_len") or 0),
            parameters=(run.number("params_b") or 0.0) * BILLION,
        )
    )


def _cluster(run: MeasuredRun) -> Cluster:
    rate = run.number("scaleout_gbps_per_node")
    return cluster_of_run(
        run.text("hardware"),
        int(run.number("n_gpus") or 0),
        int(run.number("gpus_per_node") or 0),
        rate * BYTES_PER_GBIT if rate else None,
        run.text("intra_node"),
    )


def _layout(run: MeasuredRun, grid: RunGrid, model: ModelSpec, software: Software) -> Layout:
    words = f"{run.text('schedule_kind')} {run.text('schedule')}".lower()
    schedule = next((known for word, known in _SCHEDULES if word in words), Schedule.ONE_F_ONE_B)
    if grid.vpp > 1 and grid.pp > 1:
        schedule = Schedule.INTERLEAVED
    vpp = schedule.fixed_vpp or grid.vpp
    strategy = Strategy(
        tp=grid.tp,
        cp=grid.cp,
        dp=grid.dp,
        ep=grid.ep,
        etp=(grid.etp or (1 if grid.ep > 1 else grid.tp)) if expert_count(model) else 1,
        sequence_parallel=grid.tp > 1 and _sequence_parallel(run, software),
        zero=run.zero,
        shard_group=_shard_group(run, grid),
        recompute=run.recompute,
    )
    if grid.tp * grid.cp * grid.dp % (strategy.ep * strategy.etp):
        raise InputError(f"expert grid {strategy.etp} x {strategy.ep} does not divide {strategy.gpus} GPUs of a stage")
    stages = tuple(
        Stage(layers_per_chunk=chunks, strategies=(StrategyRun(strategy=strategy, count=sum(chunks)),))
        for chunks in even_chunks(model.layers, grid.pp, vpp)
    )
    return Layout(
        stages=stages, micro_batch=grid.micro_batch, num_microbatches=grid.num_microbatches, schedule=schedule
    )


def _shard_group(run: MeasuredRun, grid: RunGrid) -> int:
    return run.shard_group if run.shard_group < grid.dp * grid.cp else 0


def _sequence_parallel(run: MeasuredRun, software: Software) -> bool:
    """Where a run does not say, it is on in the frameworks that came after it (arXiv 2205.05198)."""
    stated = run.text("sequence_parallel").lower()
    return stated in ("1", "yes", "true") if stated else software.framework in SEQUENCE_PARALLEL_FRAMEWORKS
