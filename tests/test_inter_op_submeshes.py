"""Stages on submeshes: against plain enumeration and against Alpa's recursion, written down from its equations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.inter_op.objective import PipelineObjective, interleaved, one_f_one_b
from planner.inter_op.submeshes import SubmeshProblem, partition_submeshes, submesh_shapes

INF = math.inf


def enumerate_stages(problem, first=0, left=None):
    """Every way to place the layers from ``first`` on ``left`` devices, as lists of (i, j, shape, config)."""
    left = problem.devices if left is None else left
    if first == problem.layers:
        if left == 0 or problem.allow_idle:
            yield []
        return
    for j in range(first + 1, problem.layers + 1):
        for z, (nodes, per_node) in enumerate(problem.shapes):
            if nodes * per_node > left:
                continue
            for config in range(problem.cost_s.shape[3]):
                if problem.cost_s[first, j, z, config] < INF:
                    for rest in enumerate_stages(problem, j, left - nodes * per_node):
                        yield [(first, j, z, config), *rest]


def oracle(problem):
    """Least objective and, among equals, the smallest stages."""
    best = (INF, [])
    for stages in enumerate_stages(problem):
        if problem.max_successors is not None and any(
            problem.max_successors[arc] < len(stages) - 1 - n for n, arc in enumerate(stages)
        ):
            continue
        times = [float(problem.cost_s[arc]) for arc in stages]
        objective = problem.objective
        step = float(objective.fill) * sum(times) + (objective.micro_batches - float(objective.fill)) * max(times)
        best = min(best, (step, stages))
    return best


def alpa(problem):
    """Alpa (arXiv 2201.12023, section 5.2): for every threshold, least sums by (stages, first layer, devices)."""
    cost, layers = problem.cost_s, problem.layers
    best = INF
    for threshold in np.unique(cost[np.isfinite(cost)]):
        table = {(0, layers, 0): 0.0}
        for s, k, used in itertools.product(
            range(1, layers + 1), range(layers - 1, -1, -1), range(problem.devices + 1)
        ):
            options = []
            for i, (z, (n, d)) in itertools.product(range(k + 1, layers + 1), enumerate(problem.shapes)):
                after = table.get((s - 1, i, used - n * d), INF)
                for config in range(cost.shape[3]):
                    t = cost[k, i, z, config]
                    if t <= threshold and problem.max_successors[k, i, z, config] >= s - 1:
                        options.append(after + t)
            table[s, k, used] = min(options, default=INF)
        sums = [table.get((s, 0, problem.devices), INF) for s in range(1, layers + 1)]
        best = min(best, min(sums) + (problem.objective.micro_batches - 1) * threshold)
    return best


@st.composite
def problems(draw, layers=(1, 4), memory=None, objective=None):
    count = draw(st.integers(*layers))
    nodes, per_node = draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (3, 1), (1, 4)]))
    shapes = submesh_shapes(nodes, per_node, every_node_count=draw(st.booleans()))
    configs = draw(st.integers(1, 2))
    size = (count, count + 1, len(shapes), configs)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    cost = rng.integers(0, 12, size).astype(float)
    cost[rng.random(size) < draw(st.sampled_from([0.0, 0.3]))] = INF
    limited = draw(st.booleans()) if memory is None else memory
    if objective is None:
        m = draw(st.sampled_from([1, 2, 5, 40]))
        objective = draw(st.sampled_from([one_f_one_b(m), interleaved(m, 2)]))
    return SubmeshProblem(
        cost_s=cost,
        shapes=shapes,
        devices=nodes * per_node,
        objective=objective,
        max_successors=rng.integers(-1, 4, size) if limited else None,
        allow_idle=draw(st.booleans()),
    )


@settings(max_examples=250, deadline=None)
@given(problems())
def test_partition_equals_enumeration_and_breaks_ties_lexicographically(problem):
    step, stages = oracle(problem)
    plan = partition_submeshes(problem)
    assert plan.step_s == step
    assert [(s.first, s.end, problem.shapes.index(s.shape), s.config) for s in plan.stages] == stages


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([(1, 4), (2, 2), (4, 1)]), st.sampled_from([1, 3, 20]))
def test_partition_equals_alpas_recursion(seed, layers, cluster, m):
    rng = np.random.default_rng(seed)
    shapes = submesh_shapes(*cluster)
    size = (layers, layers + 1, len(shapes), 2)
    span = np.arange(layers + 1)[None, :] - np.arange(layers)[:, None]
    devices = np.array([n * d for n, d in shapes])
    ideal = np.maximum(span, 0)[:, :, None, None] / devices[:, None] ** 0.9
    problem = SubmeshProblem(
        cost_s=np.where(span[:, :, None, None] > 0, ideal * rng.uniform(0.9, 1.3, size), INF),
        shapes=shapes,
        devices=cluster[0] * cluster[1],
        objective=one_f_one_b(m),
        max_successors=rng.integers(-1, layers, size),
    )
    assert partition_submeshes(problem).step_s == pytest.approx(alpa(problem), rel=1e-9)


def test_idle_devices_are_used_only_if_allowed():
    cost = np.full((1, 2, 1, 1), 3.0)
    fields = {"cost_s": cost, "shapes": ((1, 2),), "objective": one_f_one_b(4)}
    assert partition_submeshes(SubmeshProblem(devices=3, **fields)).step_s == INF
    assert partition_submeshes(SubmeshProblem(devices=3, allow_idle=True, **fields)).step_s == 12.0


def test_in_flight_memory_forbids_deep_pipelines():
    """A stage that allows no successor can only be the last one."""
    cost = np.full((2, 3, 1, 1), 2.0)
    cost[0, 2] = 5.0
    deep = {"cost_s": cost, "shapes": ((1, 1),), "devices": 2, "objective": one_f_one_b(10), "allow_idle": True}
    assert len(partition_submeshes(SubmeshProblem(**deep)).stages) == 2
    shallow = partition_submeshes(SubmeshProblem(max_successors=np.zeros_like(cost, dtype=int), **deep))
    assert [(s.first, s.end) for s in shallow.stages] == [(0, 2)]


def test_shapes_are_alpas():
    assert submesh_shapes(4, 8) == ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))
    assert submesh_shapes(5, 2, every_node_count=True) == ((1, 1), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2))
    with pytest.raises(ValueError, match="power of two"):
        submesh_shapes(2, 6)


def gpt3_like(layers, nodes, *, noise):
    """Compute shrinks with devices, communication does not; layers differ by ``noise``."""
    shapes = submesh_shapes(nodes, 8)
    rng = np.random.default_rng(4)
    upto = np.concatenate(([0.0], np.cumsum(1 + noise * rng.random(layers))))
    work = upto[None, :] - upto[:-1, None]
    devices = np.array([n * d for n, d in shapes])
    cost = work[:, :, None] * (1.0 / devices + 0.0004 * np.log2(devices)) + 0.001
    cost = np.stack((cost, cost * 1.07), axis=3)
    held = np.maximum(work, 1e-9)[:, :, None] * 40 / devices
    successors = np.floor(np.stack((60 - held, 120 - held), axis=3) / np.stack((held, held), axis=3)) - 1
    return SubmeshProblem(
        cost_s=cost,
        shapes=shapes,
        devices=nodes * 8,
        objective=one_f_one_b(48),
        max_successors=np.clip(successors, -1, 1000).astype(int),
    )


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_96_layers_on_512_devices_take_few_evaluations(noise):
    problem = gpt3_like(96, 64, noise=noise)
    plan = partition_submeshes(problem)
    assert plan.thresholds <= 40  # of more than 4,000 possible bottlenecks; seconds: benchmarks/solver_speed.py
    assert sum(n * d for n, d in (stage.shape for stage in plan.stages)) == 512
    assert [s.first for s in plan.stages] == [0, *(s.end for s in plan.stages[:-1])]
    assert plan.stages[-1].end == 96
    if not noise:  # many ties
        assert plan == partition_submeshes(problem)


def test_malformed_problems_are_refused():
    good = {"cost_s": np.ones((2, 3, 1, 1)), "shapes": ((1, 1),), "devices": 1, "objective": one_f_one_b(1)}
    with pytest.raises(ValueError, match="cost_s must have shape"):
        SubmeshProblem(**{**good, "cost_s": np.ones((2, 2, 1, 1))})
    with pytest.raises(ValueError, match="max_successors must have shape"):
        SubmeshProblem(**good, max_successors=np.ones(3, dtype=int))
    with pytest.raises(ValueError, match="devices must be"):
        SubmeshProblem(**{**good, "devices": 0})
    with pytest.raises(ValueError, match="non-negative"):
        partition_submeshes(SubmeshProblem(**{**good, "cost_s": -np.ones((2, 3, 1, 1))}))


def test_nothing_allowed_gives_an_empty_plan():
    problem = SubmeshProblem(cost_s=np.full((1, 2, 1, 1), INF), shapes=((1, 1),), devices=1, objective=one_f_one_b(2))
    plan = partition_submeshes(problem)
    assert (plan.stages, plan.step_s) == ((), INF)


def test_objectives_out_of_range_are_refused():
    with pytest.raises(ValueError, match="micro_batches"):
        PipelineObjective(micro_batches=0)
    with pytest.raises(ValueError, match="fill"):
        PipelineObjective(micro_batches=1, fill=2)
