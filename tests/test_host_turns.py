"""Hosts that start exchanges one after the other, and memory taken anew: closed forms, and steps that were measured."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.job import Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.overlap import default_overlap
from costmodels.precision import precision
from costmodels.price import price_layout
from costmodels.pricing import Constants, Pricing
from costmodels.workload import presets
from hardware.catalog import cluster_of_run
from planner.evidence.validate import validate

LAYERS = 32
FORWARD, BACKWARD = 4, 6  # two gathers and two scatters; both again, and both inputs gathered anew
MEASURED = (
    # Steps of nanotron 0.5 (Ultra-Scale Playbook, its published table of benchmarks; 1M tokens a step): layers, width,
    # ffn, GPUs, tp, pp, dp, ZeRO stage, seconds.
    (28, 3072, 8192, 16, 2, 2, 4, 1, 8.55628),
    (28, 3072, 8192, 16, 4, 2, 2, 1, 26.8816),
    (28, 3072, 8192, 16, 8, 2, 1, 0, 86.6821),
    (28, 3072, 8192, 64, 4, 8, 2, 1, 6.94496),
    (32, 4096, 14336, 32, 8, 2, 2, 1, 50.8417),
    (32, 4096, 14336, 64, 16, 4, 1, 0, 108.654),
    (32, 4096, 14336, 8, 2, 2, 2, 1, 19.4088),
)


def pricing(gpus: int, *, turn_s: float = 0.0, **software: object) -> Pricing:
    used = Software(name="test", framework="nanotron", scripted=True, **software)  # type: ignore[arg-type]
    job = TrainingJob(global_batch=64, seq=128, precision=precision("bf16"), software=used)
    constants = Constants(overlap=replace(default_overlap(), turn_s=turn_s))
    island = cluster_of_run("H100", gpus).islands[0]
    return Pricing(model=presets.model("llama3_8b"), job=job, island=island, constants=constants)


def layout_of(*, tp: int, pp: int, dp: int, recompute: Recompute = NO_RECOMPUTE, micro_batch: int = 1) -> Layout:
    strategy = Strategy(tp=tp, dp=dp, sequence_parallel=tp > 1, recompute=recompute)
    held = LAYERS // pp
    stage = Stage(layers_per_chunk=(held,), strategies=(StrategyRun(strategy=strategy, count=held),))
    return Layout(stages=(stage,) * pp, micro_batch=micro_batch, num_microbatches=64 // (dp * micro_batch))


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(
    ("recompute", "calls"), [(NO_RECOMPUTE, FORWARD + BACKWARD), (FULL_RECOMPUTE, 2 * FORWARD + BACKWARD)]
)
def test_a_stage_takes_a_turn_for_every_exchange_and_host(tp: int, recompute: Recompute, calls: int) -> None:
    layout = layout_of(tp=tp, pp=4, dp=16 // (4 * tp) or 1, recompute=recompute)
    short, long = (
        np.array(price_layout([pricing(layout.gpus, turn_s=turn_s, hosts_in_turn=True)], layout).stage_times_s)
        for turn_s in (1e-2, 3e-2)
    )
    assert (long - short)[1:3] == pytest.approx(2e-2 * tp * calls * LAYERS / 4)


@pytest.mark.parametrize(
    ("tp", "pp", "dp"),
    [(8, 1, 2), (1, 4, 4), (2, 4, 1)],
    ids=["no pipeline", "no tensor parallelism", "one node"],
)
def test_no_host_waits_for_its_turn_elsewhere(tp: int, pp: int, dp: int) -> None:
    layout = layout_of(tp=tp, pp=pp, dp=dp)
    plain, turns = (
        price_layout([pricing(layout.gpus, turn_s=1.0, hosts_in_turn=on)], layout).step for on in (False, True)
    )
    assert turns == plain


def test_turns_hide_behind_a_device_that_works_longer() -> None:
    layout = layout_of(tp=4, pp=4, dp=1)
    plain = price_layout([pricing(16)], layout)
    stage_s = min(plain.stage_times_s)
    hidden, seen = (
        price_layout([pricing(16, turn_s=share * stage_s / 8 / 40, hosts_in_turn=True)], layout)
        for share in (0.01, 2.0)
    )
    assert hidden.stage_times_s[1] == pytest.approx(plain.stage_times_s[1], rel=0.02)
    assert seen.stage_times_s[1] > 1.9 * plain.stage_times_s[1]


@pytest.mark.parametrize("run", MEASURED, ids=lambda run: f"{run[1]}-gpus{run[3]}-tp{run[4]}-pp{run[5]}")
def test_pipelines_of_nanotron_take_what_was_measured(tmp_path: Path, run: tuple[float, ...]) -> None:
    layers, hidden, ffn, gpus, tp, pp, dp, zero, step_time_s = run
    row = {
        "id": "run",
        "framework": "nanotron v0.5",
        "model": "Llama-like",
        "layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "heads": 32,
        "kv_heads": 32,
        "vocab": 131072,
        "hardware": "H100-SXM-80GB",
        "gpus_per_node": 8,
        "n_gpus": gpus,
        "scaleout_gbps_per_node": 3200 if gpus > 8 else 0,
        "intra_node": "nvlink",
        "precision": "bf16 (fp32 grad accumulation)",
        "seq_len": 4096,
        "global_batch_size": 256,
        "micro_batch_size": 1,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "zero": zero,
        "sequence_parallel": "yes",
        "recompute": "none",
        "schedule": "1F1B",
        "step_time_s": step_time_s,
    }
    path = tmp_path / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    (found,) = validate([path])
    assert found.step_time_s == pytest.approx(step_time_s, rel=0.13)


@pytest.mark.parametrize(
    ("micro_batch", "pp", "taken_anew"),
    [(1, 1, False), (16, 1, True), (16, 2, False)],
    ids=["room", "full", "pipeline"],
)
def test_layers_wait_for_memory_where_it_is_full(micro_batch: int, pp: int, taken_anew: bool) -> None:
    layout = layout_of(tp=8 // pp, pp=pp, dp=1, micro_batch=micro_batch)
    asked = pricing(8)
    asked = replace(asked, job=replace(asked.job, seq=8192))
    again = replace(asked, job=replace(asked.job, software=replace(asked.job.software, retries_when_full=True)))
    plain, slow = (price_layout([one], layout).step for one in (asked, again))
    lost_s = LAYERS * layout.num_microbatches * default_overlap().retry_s if taken_anew else 0.0
    assert slow.total_s == pytest.approx(plain.total_s + lost_s)
    assert dict(slow.details).get("retries", 0.0) == pytest.approx(lost_s)
