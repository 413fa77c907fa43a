"""What layouts are ranked by: energy and money against their closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.power.node import node_w
from hardware.catalog import cluster
from hardware.errors import InputError
from planner.planning import plan
from planner.question import Question, request_of
from planner.request import Objective
from planner.search.objective import objective_value, objective_values, run_cost, step_cost, step_energy_j


def request(machine="dgx-a100:2", **more):
    return request_of(Question(model="gpt2_xl", cluster=machine, global_batch=64, seq=1024, top=4, **more))


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
