"""CPU time of pricing many strategies at once, and of the command line's help: python benchmarks/pricing_speed.py."""

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from costmodels.layer_costs import price_parts
from costmodels.layout import Strategy
from costmodels.memory import model_memory
from costmodels.table import StrategyTable, table_of
from planner.planning import pricings_of
from planner.question import Question, request_of

ROWS = 2_000
REPEATS = 5


def random_table() -> StrategyTable:
    """Return strategies of up to 2,048 GPUs a stage, all different kinds of degrees."""
    rng = np.random.default_rng(4)
    degrees = 2 ** rng.integers(0, 4, (4, ROWS))
    strategies = [
        Strategy(tp=int(t), cp=int(c), dp=8 * int(d), ep=8, sequence_parallel=bool(t > 1), zero=int(z))
        for t, c, d, z in zip(*degrees[:3], rng.integers(0, 4, ROWS), strict=True)
    ]
    return table_of(strategies, pp=[int(p) for p in degrees[3]], micro_batch=[1] * ROWS)


def least_s(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some repeats."""
    taken = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def main() -> None:
    """Print the table."""
    for model in ("llama3_70b", "deepseek_v3"):
        request = request_of(Question(model=model, cluster="dgx-h100:256", global_batch=2048, seq=4096))
        pricing = pricings_of(request)[0]
        parts_s = least_s(lambda p=pricing: price_parts(p, random_table()))  # type: ignore[misc]
        memory_s = least_s(lambda p=pricing: model_memory(p.model, p.job, random_table()))  # type: ignore[misc]
        print(f"{model:12s} {ROWS} strategies: times {parts_s * 1e3:6.1f} ms, memory {memory_s * 1e3:6.1f} ms")
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "planner", "--help"], check=True, capture_output=True)
    print(f"plan --help  {time.perf_counter() - begin:.2f} s wall")


if __name__ == "__main__":
    main()
