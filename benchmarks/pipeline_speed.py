"""Candidates per second of the pipeline simulation and its lower bound.

    python benchmarks/pipeline_speed.py

Three kinds of batches: equal stages, stages of 4 to 6 layers, and stages that differ at random by up to 20 % (the
slowest kind, because near ties between stages take long to settle). The first call compiles the schedule and is timed
apart.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline.bounds import lower_bound
from costmodels.pipeline.inflight import peak_activation_bytes
from costmodels.pipeline.program import program
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.pipeline.simulate import default_transfers, makespan

P2P_SHARE = 0.02  # of a stage's forward
CASES = (
    (PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=16, num_microbatches=128), 512),
    (PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=16, num_microbatches=128), 4096),
    (PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=16, num_microbatches=4096), 4096),
    (PipelineSpec(schedule=Schedule.INTERLEAVED, pp=16, vpp=6, num_microbatches=96), 256),
    (PipelineSpec(schedule=Schedule.INTERLEAVED, pp=8, vpp=2, num_microbatches=512), 512),
    (PipelineSpec(schedule=Schedule.ZB_H1, pp=16, num_microbatches=128), 512),
    (PipelineSpec(schedule=Schedule.ZB_2P, pp=16, num_microbatches=128), 512),
    (PipelineSpec(schedule=Schedule.ZBV, pp=16, vpp=2, num_microbatches=128), 512),
    (PipelineSpec(schedule=Schedule.GPIPE, pp=16, num_microbatches=128), 512),
)


def best_s(call: Callable[[], object], repeats: int = 5) -> float:
    """Shortest of a few runs."""
    runs = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        runs.append(time.perf_counter() - begin)
    return min(runs)


def stage_times(kind: str, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forward and backward times of a batch."""
    rng = np.random.default_rng(0)
    if kind == "equal":
        forward = np.ones(shape)
    elif kind == "layers":
        forward = rng.integers(4, 7, shape) / 5.0
    else:
        forward = rng.uniform(0.8, 1.2, shape)
    return forward, 2.0 * forward


def rates(spec: PipelineSpec, batch: int) -> list[float]:
    """Candidates per second: simulation by kind of batch, lower bound, peak memory."""
    transfers = default_transfers(spec)
    shape = (batch, spec.pp, spec.vpp)
    found = []
    for kind in ("equal", "layers", "random"):
        forward, backward = stage_times(kind, shape)
        weight = 0.5 * backward
        found.append(batch / best_s(partial(makespan, spec, forward, backward - weight, P2P_SHARE, weight, transfers)))
    bound = best_s(partial(lower_bound, spec, forward, backward - weight, P2P_SHARE, weight, transfers))
    peak = best_s(partial(peak_activation_bytes, spec, forward))
    return [*found, batch / bound, batch / peak]


def main() -> None:
    """Print one line per case."""
    columns = ("compile_s", "equal/s", "layers/s", "random/s", "bound/s", "memory/s")
    print(f"{'schedule':<12} {'pp':>3} {'vpp':>3} {'m':>5} {'batch':>6}", *(f"{name:>11}" for name in columns))
    for spec, batch in CASES:
        begin = time.perf_counter()
        program(spec, default_transfers(spec))
        compile_s = time.perf_counter() - begin
        head = f"{spec.schedule:<12} {spec.pp:>3} {spec.vpp:>3} {spec.num_microbatches:>5} {batch:>6}"
        print(head, f"{compile_s:>11.4f}", *(f"{rate:>11,.0f}" for rate in rates(spec, batch)), flush=True)


if __name__ == "__main__":
    main()
