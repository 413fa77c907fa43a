"""CPU seconds and memory of searches, and explicit layouts priced per second.

    python benchmarks/search_speed.py [--quick]

Every search runs in a process of its own, so that its peak memory is its own. ``--quick`` leaves the large ones out.
"""

import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodels.layer_costs import price_parts
from costmodels.memory import components, model_memory, stage_sums, usable_memory
from costmodels.memory.peak import verdicts
from costmodels.step import price_steps
from planner import Question, plan, request_of
from planner.layouts.expand import even_contents, expand, pipeline_groups
from planner.layouts.grids import enumerate_grids
from planner.layouts.recompute_options import recompute_options
from planner.planning import pricings_of
from planner.request import Framework
from planner.rules import request_mask

MIXED = Path(__file__).parents[1] / "examples" / "clusters" / "mixed-generations.toml"
SEARCHES = {
    "llama3_70b on 64 H100": ("llama3_70b", "dgx-h100:8", 128, 8192, "bf16"),
    "gpt3_175b on 512 A100": ("gpt3_175b", "dgx-a100:64", 1536, 2048, "bf16"),
    "llama31_405b on 16,384 H100": ("llama31_405b", "dgx-h100:2048", 2048, 8192, "bf16"),
    "deepseek_v3 on 2,048 H800": ("deepseek_v3", "dgx-h800:256", 15360, 4096, "fp8"),
    "llama2_13b on 64 H100, 64 A100": ("llama2_13b", str(MIXED), 256, 4096, "bf16"),
}
QUICK = ("llama3_70b on 64 H100", "gpt3_175b on 512 A100")


def question(name: str) -> Question:
    """Return one of the searches."""
    model, cluster, batch, seq, precision = SEARCHES[name]
    return Question(model=model, cluster=cluster, global_batch=batch, seq=seq, precision=precision)


def one_search(name: str) -> None:
    """Search in this process and print the figures."""
    begin = time.process_time()
    report = plan(request_of(question(name)))
    seconds = time.process_time() - begin
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    search = report.search
    print(
        f"{name:32s} {seconds:7.2f} {mib:8.0f} {search.enumerated:9,d} {search.solved:7,d} {100 * search.gap:6.1f} "
        f"{report.layouts[0].cost.step.total_s:9.3f}"
    )


def layouts_per_second() -> float:
    """Explicit layouts of GPT-3 on 512 A100, time and memory verdict of each, priced per CPU second.

    Every legal grid under every ZeRO stage, recompute choice and virtual degree, as an exhaustive search would ask.
    """
    request = replace(request_of(question("gpt3_175b on 512 A100")), framework=Framework.NONE)
    pricing = pricings_of(request)[0]
    options = recompute_options("auto", request.framework, pricing)
    grids = enumerate_grids(request, request.cluster.gpus)
    legal = request_mask(request, grids.table).ok
    grids = grids.take(np.flatnonzero(legal))
    begin = time.process_time()
    block = expand(grids, options, np.ones((len(grids), len(options)), dtype=np.bool_)).grids
    costs = price_parts(pricing, block.table)
    memory = model_memory(request.model, request.job, block.table, pricing.constants.memory)
    usable, constants = usable_memory(pricing.accelerator), pricing.constants.memory
    count = 0
    for group in pipeline_groups(block, request.model.layers, None):
        contents = even_contents(request, group, tuple(0 for _ in range(group.spec.pp)))
        price_steps([pricing], [costs], contents)
        named = components(stage_sums(request.model, request.job, memory, contents), usable, constants)
        verdicts(named, usable, constants)
        count += len(group.rows)
    return count / (time.process_time() - begin)


def help_s() -> float:
    """CPU seconds of ``plan --help`` in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "planner", "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    names = QUICK if "--quick" in sys.argv[1:] else tuple(SEARCHES)
    print(f"{'search':32s} {'CPU s':>7s} {'MiB':>8s} {'grids':>9s} {'priced':>7s} {'gap %':>6s} {'best s':>9s}")
    for name in names:
        subprocess.run([sys.executable, __file__, "--one", name], check=True)
    first, again = layouts_per_second(), layouts_per_second()
    print(f"explicit layouts with memory, per CPU second: {first:,.0f}; schedules compiled: {again:,.0f}")
    print(f"plan --help: {help_s():.2f} CPU s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one_search(sys.argv[2])
    else:
        main()
