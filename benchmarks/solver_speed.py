"""CPU seconds of the intra-op and inter-op solvers on the sizes of docs/formulation.md.

Usage: ``python benchmarks/solver_speed.py [--verify]``. One thread; CPU time of this process.
``--verify`` also solves the submesh problems by the plain recursion over every threshold (some minutes).
"""

import itertools
import sys
import time
from collections.abc import Callable

import numpy as np

from planner.inter_op.costs import Ends, LayerRun, Position, stage_costs_s
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_many, partition_stages
from planner.inter_op.submeshes import SubmeshProblem, partition_submeshes, submesh_shapes
from planner.intra_op.problem import IntraOpProblem, Run
from planner.intra_op.solution import IntraOpSolution, SolveOptions
from planner.intra_op.solve import solve

SEEDS = range(5)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def stage(counts: list[int], size: int, *, edges: bool, linear: bool, seed: int) -> IntraOpProblem:
    """Strategies that trade time for memory, half of the way between leanest and fastest.

    ``linear``: time is linear in memory up to 1e-5 s, which leaves bounds nothing to prune.
    """
    rng = np.random.default_rng(seed)
    runs = []
    for count in counts:
        memory = np.sort(rng.uniform(0.5e9, 3e9, size))
        seconds = np.sort(rng.uniform(5e-3, 20e-3, size))[::-1]
        if linear:
            seconds = 20e-3 - 5e-12 * memory + rng.uniform(0, 1e-5, size)
        switch = rng.uniform(0, 2e-3, (size, size)) * (1 - np.eye(size)) if edges else None
        runs.append(Run(count=count, time_s=seconds, persistent_bytes=memory, switch_s=switch))
    pairs = tuple(rng.uniform(0, 2e-3, (size, size)) for _ in counts[1:]) if edges else ()
    least = sum(run.count * int(run.persistent_bytes.min()) for run in runs)
    most = sum(run.count * int(run.persistent_bytes[run.time_s.argmin()]) for run in runs)
    return IntraOpProblem(runs=tuple(runs), edges_s=pairs, limit_bytes=(least + most) // 2)


def intra_op_rows(layers: int, size: int, options: SolveOptions) -> None:
    """One row per kind of instance."""
    for linear in (False, True):
        for counts in ([layers], [layers // 4] * 4, [1] * layers):
            for edges in (False, True):
                seconds, answers = [], list[IntraOpSolution]()
                for seed in SEEDS:
                    problem = stage(counts, size, edges=edges, linear=linear, seed=seed)
                    begin = time.process_time()
                    answers.append(solve(problem, options=options))
                    seconds.append(time.process_time() - begin)
                proven = sum(answer.proven_optimal for answer in answers)
                gap = max(answer.gap for answer in answers)
                methods = ", ".join(sorted({str(answer.method) for answer in answers}))
                kind = f"{len(counts)} runs of {counts[0]}, {size} strategies"
                kind += f"{', edges' if edges else ''}{', nearly linear' if linear else ''}"
                figures = f"{np.median(seconds):7.3f} {max(seconds):7.3f}  {proven}/{len(answers)} {gap:8.1e}"
                print(f"{kind:58} {figures}  {methods}")


def crowded_stage(size: int, seed: int) -> IntraOpProblem:
    """20 layers between a head and a tail that use the strategy of the layer beside; 30 classes of activations."""
    rng = np.random.default_rng(seed)
    kind, recompute = rng.integers(0, 30, size), rng.uniform(0, 1, size)
    seconds = rng.uniform(8e-3, 14e-3, 30)[kind] * (1 + 0.33 * recompute)
    memory = rng.uniform(0.6e9, 1.6e9, 30)[kind] + (1 - recompute) * 2e9
    transient = rng.uniform(0.2e9, 2e9, size)
    switch = np.where(kind[:, None] == kind, 0.0, 1.5e-3)
    tied = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
    runs = (
        Run(count=1, time_s=seconds * 0.1, persistent_bytes=memory * 0.4, transient_bytes=transient * 0.5),
        Run(count=20, time_s=seconds, persistent_bytes=memory, transient_bytes=transient, switch_s=switch),
        Run(count=1, time_s=seconds * 0.3, persistent_bytes=memory * 0.4, transient_bytes=transient * 1.5),
    )
    least, most = 20.8 * memory.min(), 20.8 * memory[seconds.argmin()]
    return IntraOpProblem(runs=runs, edges_s=(tied, tied), limit_bytes=int(0.6 * least + 0.4 * most + 1e9))


def crowded_rows() -> None:
    """Rows of stages with hundreds of strategies."""
    for size in (40, 100, 300):
        seconds, answers = [], list[IntraOpSolution]()
        for seed in SEEDS:
            problem = crowded_stage(size, seed)
            begin = time.process_time()
            answers.append(solve(problem))
            seconds.append(time.process_time() - begin)
        proven = sum(answer.proven_optimal for answer in answers)
        figures = f"{np.median(seconds):7.3f} {max(seconds):7.3f}  {proven}/{len(answers)}"
        print(f"{f'22 layers, {size} strategies with own transient bytes':58} {figures}")


def stage_rows() -> None:
    """Rows of pipelines with unequal speeds and a heavy head: worst and median over seeds and micro-batches."""
    for layers, pp in ((80, 8), (126, 16), (126, 32)):
        for k in (1, 5):
            seconds, thresholds = [], []
            for seed in SEEDS:
                for m in (1, 16, 256):
                    problem = row(layers, pp, m, seed)
                    begin = time.process_time()
                    thresholds.append(partition_stages(problem, k=k).thresholds)
                    seconds.append(time.process_time() - begin)
            print(
                f"{layers} layers, {pp} stages, {k} best{'':20} {np.median(seconds):7.4f} {max(seconds):7.4f}  "
                f"{max(thresholds)} thresholds"
            )
    many = [row(32, 4, 16, seed) for seed in range(200)]
    together, alone = cpu_s(lambda: partition_many(many)), cpu_s(lambda: [partition_stages(p) for p in many])
    print(f"200 problems of 32 layers on 4 stages: {together:.3f} s in a batch, {alone:.3f} s one by one")


def row(layers: int, pp: int, m: int, seed: int) -> StageProblem:
    """Equal layers on stages that differ by up to 10 % in speed."""
    slowdowns = np.random.default_rng(seed).uniform(1.0, 1.1, pp)
    costs = stage_costs_s(
        (LayerRun(count=layers, time_s=1.0),), [Position(slowdown=s) for s in slowdowns], Ends(first_s=0.2, last_s=1.3)
    )
    return StageProblem(cost_s=costs, objective=one_f_one_b(m))


def gpt3_submeshes(layers: int, nodes: int, *, every: bool, memory: bool, noise: float) -> SubmeshProblem:
    """GPT-3 175B in ``layers`` pieces on nodes of 8 A100-80G: 1536 sequences of 2048, half a sequence a node at once.

    Half of 312 TFLOP/s; tensor-parallel all-reduces at 200 GB/s, activations between stages at 22 GB/s; 18 bytes per
    parameter of which 12 are sharded over data-parallel ranks; 34 bytes of activation per token, hidden unit and layer.
    Configurations: tensor parallelism 1, 2, 4, 8. ``noise`` makes layers up to so much heavier.
    """
    hidden, sequence, batch, piece = 12288, 2048, nodes // 2, 96 / layers
    shapes = submesh_shapes(nodes, 8, every_node_count=every)
    work = np.concatenate(([0.0], np.cumsum(1 + noise * np.random.default_rng(0).random(layers))))
    pieces = np.maximum(work[None, :] - work[:-1, None], 0.0)
    size = (layers, layers + 1, len(shapes), 4)
    cost_s, successors = np.full(size, np.inf), np.full(size, -1)
    flops = 72 * batch * sequence * hidden**2 * (1 + sequence / (6 * hidden)) * piece
    for z, (n, d) in enumerate(shapes):
        for config, tp in enumerate((1, 2, 4, 8)):
            dp = n * d // tp
            if tp > d or batch % dp:
                continue
            tokens = batch / dp * sequence
            exchange_s = 8 * (tp - 1) / tp * tokens * hidden * 2 * piece / 200e9
            seconds = pieces * (flops / (n * d) / 156e12 + exchange_s) + 4 * tokens * hidden / 22e9
            weights = pieces * 12 * hidden**2 * piece * (6 + 12 / dp) / tp
            activations = np.maximum(pieces * 34 * tokens * hidden * piece / tp, 1.0)
            cost_s[:, :, z, config] = np.where(pieces > 0, seconds, np.inf)
            successors[:, :, z, config] = np.clip((80e9 - weights) // activations - 1, -1, 1000)
    return SubmeshProblem(
        cost_s=cost_s,
        shapes=shapes,
        devices=nodes * 8,
        objective=one_f_one_b(1536 // batch),
        max_successors=successors if memory else None,
    )


def submesh_rows(*, verify: bool) -> None:
    """Alpa's sizes."""
    for layers, nodes in ((16, 64), (48, 64), (96, 8), (96, 64)):
        for every in (False, True):
            for memory in (False, True):
                for noise in (0.0, 0.2):
                    problem = gpt3_submeshes(layers, nodes, every=every, memory=memory, noise=noise)
                    begin = time.process_time()
                    plan = partition_submeshes(problem)
                    seconds = time.process_time() - begin
                    kind = f"{layers} layers, {8 * nodes} devices, {len(problem.shapes)} shapes"
                    kind += f"{', memory' if memory else ''}{', unlike layers' if noise else ''}"
                    line = f"{kind:58} {seconds:7.3f}  {plan.step_s:8.3f} s a step, {len(plan.stages)} stages"
                    if verify and not every and not noise:
                        plain, plain_s = plain_recursion(problem)
                        line += f"; plain recursion {plain:8.3f} s a step in {plain_s:.0f} s"
                    print(line)


def plain_recursion(problem: SubmeshProblem) -> tuple[float, float]:
    """Least step by Alpa's recursion over (stages, first layer, devices) for every threshold; and its CPU seconds.

    Stops, as Alpa does, at the first threshold that alone costs as much as the best step. Without memory limits the
    number of stages does not matter, and one table serves for all.
    """
    begin = time.process_time()
    layers, m, best = problem.layers, problem.objective.micro_batches, np.inf
    limited = problem.max_successors is not None
    allowed = [problem.cost_s]
    if limited:
        allowed = [np.where(problem.max_successors >= s, problem.cost_s, np.inf) for s in range(layers)]
    for threshold in np.unique(problem.cost_s[np.isfinite(problem.cost_s)]):
        if threshold * m >= best:
            break
        empty = np.full((layers + 1, problem.devices + 1), np.inf)
        empty[layers, 0] = 0.0
        after, sums = empty, []
        for options in allowed:
            cost = options.min(axis=3)
            table = np.full_like(empty, np.inf) if limited else empty.copy()
            source = after if limited else table
            for i, z in itertools.product(range(layers - 1, -1, -1), range(len(problem.sizes))):
                spans = np.where(cost[i, i + 1 :, z] <= threshold, cost[i, i + 1 :, z], np.inf)
                here = (spans[:, None] + source[i + 1 :, : problem.devices + 1 - problem.sizes[z]]).min(axis=0)
                table[i, problem.sizes[z] :] = np.minimum(table[i, problem.sizes[z] :], here)
            sums.append(table[0, -1])
            after = table
            if np.isinf(table).all():
                break
        best = min(best, float(min(sums)) + (m - 1) * float(threshold))
    return best, time.process_time() - begin


def main() -> None:
    """Print all tables."""
    verify = "--verify" in sys.argv[1:]
    print(f"{'intra-op':58} {'median':>7} {'worst':>7}  proven  gap      method")
    intra_op_rows(48, 8, SolveOptions())
    intra_op_rows(124, 20, SolveOptions())
    crowded_rows()
    print("counts ILP alone:")
    intra_op_rows(48, 8, SolveOptions(max_labels=0, max_deterministic_s=5.0))
    print("stages:")
    stage_rows()
    print("submeshes:")
    submesh_rows(verify=verify)


if __name__ == "__main__":
    main()
