"""Memory against parameters that Megatron-LM built and peaks that others measured."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Stage, Strategy, StrategyRun
from costmodels.memory import allocated_bytes, reserved_bytes, stage_memory
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.architecture import Architecture
from hardware.catalog import accelerator

REFERENCE = Path(__file__).parent / "reference"
CASES = tomllib.loads((REFERENCE / "memory_parameters.toml").read_text(encoding="utf-8"))["case"]
PEAKS = tomllib.loads((REFERENCE / "memory_peaks.toml").read_text(encoding="utf-8"))["peak"]
GIB = 2.0**30
READ = {"allocated": allocated_bytes, "reserved": reserved_bytes, "device": lambda use: use.total_bytes}
# Biases of row-parallel layers are whole on every rank; the model splits them.
PARAMETER_TOLERANCE = 1.0e-4


def layout(chunks: list[list[int]], strategy: Strategy, micro: int, count: int) -> Layout:
    stages = tuple(
        Stage(layers_per_chunk=tuple(c), strategies=(StrategyRun(strategy=strategy, count=sum(c)),)) for c in chunks
    )
    schedule = Schedule.INTERLEAVED if len(chunks[0]) > 1 else Schedule.ONE_F_ONE_B
    return Layout(stages=stages, micro_batch=micro, num_microbatches=count, schedule=schedule)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_parameters_of_pipeline_ranks(case):
    model = Architecture(**case["model"]).build(case["name"])
    strategy = Strategy(**case["grid"], sequence_parallel=case["grid"]["tp"] > 1)
    job = TrainingJob(global_batch=96, seq=2048, precision=precision("bf16"), software=software("megatron"))
    uses = stage_memory(layout(case["chunks"], strategy, 1, 96), model, job, accelerator("h100-sxm-80gb"))
    for stage, dense, expert in case["stages"]:
        parts = dict(uses[stage].components)
        assert parts["weights"] == pytest.approx(2.0 * (dense + expert), rel=PARAMETER_TOLERANCE)
        assert parts["gradients"] == pytest.approx(4.0 * (dense + expert), rel=PARAMETER_TOLERANCE)
        assert parts["optimizer"] == pytest.approx(12.0 * (dense + expert), rel=PARAMETER_TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_distributed_optimizer_shards_dense_and_expert_states_apart(case):
    grid = case["grid"]
    model = Architecture(**case["model"]).build(case["name"])
    strategy = Strategy(**grid, sequence_parallel=grid["tp"] > 1, zero=1)
    job = TrainingJob(global_batch=96, seq=2048, precision=precision("bf16"), software=software("megatron"))
    uses = stage_memory(layout(case["chunks"], strategy, 1, 96), model, job, accelerator("h100-sxm-80gb"))
    for stage, dense, expert in case["stages"]:
        expected = 12.0 * (dense / (grid["dp"] * grid["cp"]) + expert / strategy.edp)
        assert dict(uses[stage].components)["optimizer"] == pytest.approx(expected, rel=PARAMETER_TOLERANCE)


@pytest.mark.parametrize("case", PEAKS, ids=[case["name"] for case in PEAKS])
def test_measured_peaks(case):
    grid, batch = case["grid"], case["batch"]
    model = Architecture(**case["model"]).build(case["name"])
    strategy = Strategy(
        **{name: value for name, value in grid.items() if name != "pp"},
        recompute=FULL_RECOMPUTE if case.get("recompute") == "full" else NO_RECOMPUTE,
    )
    layers = case.get("layers", [model.layers // grid["pp"]] * grid["pp"])
    job = TrainingJob(
        global_batch=batch["micro"] * batch["count"] * grid["dp"],
        seq=batch["seq"],
        precision=precision(case["precision"]),
        software=replace(software(case["software"]), **case.get("traits", {})),
    )
    plan = layout([[count] for count in layers], strategy, batch["micro"], batch["count"])
    uses = stage_memory(plan, model, job, accelerator("b200-sxm-180gb"))
    sizes = [READ[case["read"]](use) / GIB for use in uses]
    found = sizes if len(case["gib"]) == len(sizes) else [max(sizes)]
    assert found == pytest.approx(case["gib"], rel=case["tolerance"])
