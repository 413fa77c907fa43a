"""What layouts are ranked by: energy and money against their closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.power.node import node_w
from hardware.catalog import cluster
from hardware.errors import InputError
from planner.planning import estimate, plan
from planner.question import Question, request_of
from planner.request import Objective
from planner.search.objective import objective_value, objective_values, run_cost, step_cost, step_energy_j

FEW = ("cp=1", "vpp=1")
"""A smaller space, in which energy and time disagree as well."""


def request(machine="dgx-a100:2", **more):
    words = {"model": "gpt2_xl", "cluster": machine, "global_batch": 64, "seq": 1024, "top": 4, "fixed": FEW}
    return request_of(Question(**words | more))


def priced(base, *, rent, power):
    machine = base.cluster
    islands = tuple(replace(i, node=replace(i.node, price_per_hour=rent)) for i in machine.islands)
    return replace(base, cluster=replace(machine, islands=islands, electricity_per_kwh=power, pue=1.25))


@pytest.fixture(scope="module")
def by_time():
    return plan(request())


def test_money_is_rent_by_the_hour_and_electricity(by_time):
    best = by_time.layouts[0]
    asked = priced(by_time.request, rent=20.0, power=0.10)
    hours = best.cost.step.total_s / 3600.0
    nodes = -(-best.layout.gpus // 8)
    draw = best.cost.power.gpu_w * best.layout.gpus
    assert step_energy_j(best.cost) == pytest.approx(draw * best.cost.step.total_s)
    whole = nodes * node_w(asked.cluster.islands[0].node, draw / nodes)  # hosts and fans too
    assert step_cost(asked, best.layout, best.cost) == pytest.approx(
        nodes * 20.0 * hours + whole * best.cost.step.total_s / 3.6e6 * 1.25 * 0.10
    )
    among = replace(asked, objective=Objective.COST)
    step_s, gpu_w = np.array([best.cost.step.total_s]), np.array([best.cost.power.gpu_w])
    values = objective_values(among, best.layout, step_s, gpu_w)
    assert float(values[0]) == pytest.approx(objective_value(among, best.layout, best.cost))


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.COST])
def test_ranking_follows_the_objective(objective):
    asked = replace(priced(request(), rent=1.0, power=0.3), objective=objective)
    report = plan(asked)
    values = [objective_value(asked, ranked.layout, ranked.cost) for ranked in report.layouts]
    assert len(values) > 1
    assert values == sorted(values)


def test_caps_trade_time_for_energy_and_money(by_time):
    """A sweep of power caps: least energy of the GPUs, of whole nodes, and least money where nodes are rented."""
    layout = by_time.layouts[0].layout
    base = priced(by_time.request, rent=12.0, power=0.10)
    caps = np.arange(100.0, 401.0, 20.0)
    costs = []
    for cap_w in caps:
        capped = replace(base, job=replace(base.job, power_cap_w=float(cap_w)))
        costs.append(estimate(capped, layout).cost)
    times = np.array([cost.step.total_s for cost in costs])
    assert (np.diff(times) <= 1e-12).all()
    gpus_j = np.array([step_energy_j(cost) for cost in costs])
    nodes_j = np.array([cost.power.node_energy_j_per_token for cost in costs])
    money = np.array([step_cost(base, layout, cost) for cost in costs])
    best = [int(values.argmin()) for values in (gpus_j, nodes_j, money, times)]
    assert 0 < best[0] < len(caps) - 1
    assert best == sorted(best)  # hosts, fans and rent ask for ever faster steps
    assert best[0] < best[2]
    valley = np.sign(np.diff(gpus_j[np.concatenate([[True], np.diff(times) < 0.0])]))
    assert (np.diff(valley) >= 0.0).all()


@pytest.mark.deep
@pytest.mark.parametrize("cap_w", [150.0, 280.0, 400.0])
def test_at_every_cap_the_ranking_by_energy_takes_no_more_than_that_by_time(cap_w):
    asked = request(power_cap_w=cap_w)
    fast, lean = (
        plan(replace(asked, objective=objective)).layouts[0] for objective in (Objective.TIME, Objective.ENERGY)
    )
    assert step_energy_j(lean.cost) <= step_energy_j(fast.cost)
    assert lean.cost.step.total_s >= fast.cost.step.total_s
    assert max(fast.cost.power.gpu_w, lean.cost.power.gpu_w) <= cap_w


@pytest.mark.deep
def test_least_energy_is_looked_for_beyond_the_fastest_grids():
    """Llama-3 70B on 64 H100: the thriftiest layout leaves nodes idle and is not among the ten fastest grids."""
    asked = request_of(Question(model="llama3_70b", cluster="dgx-h100:8", global_batch=128, seq=8192, top=4, fixed=FEW))
    thrifty = plan(replace(asked, objective=Objective.ENERGY)).layouts
    fast = plan(replace(asked, top=10)).layouts
    least_j = min(step_energy_j(ranked.cost) for ranked in fast)
    assert step_energy_j(thrifty[0].cost) < least_j
    assert thrifty[0].cost.step.total_s > max(ranked.cost.step.total_s for ranked in fast)
    values = [step_energy_j(ranked.cost) for ranked in thrifty]
    assert values == sorted(values)


def test_a_cluster_without_prices_cannot_be_ranked_by_cost():
    with pytest.raises(InputError, match="states no price"):
        plan(replace(request(), objective=Objective.COST, cluster=cluster("dgx-a100:2")))


def test_a_run_is_its_steps(by_time):
    best = by_time.layouts[0]
    asked = priced(by_time.request, rent=20.0, power=0.10)
    tokens = 1000.0 * 64 * 1024
    run = run_cost(asked, best.layout, best.cost, tokens)
    assert run.seconds == pytest.approx(1000.0 * best.cost.step.total_s)
    assert run.gpu_j == pytest.approx(1000.0 * step_energy_j(best.cost))
    assert run.money == pytest.approx(1000.0 * step_cost(asked, best.layout, best.cost))
    assert run.electricity == pytest.approx(run.building_j / 3.6e6 * 0.10)
    assert run.building_j > 1.25 * run.gpu_j
