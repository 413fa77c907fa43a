"""Steps of zero-bubble schedules whose stages need not wait for the norm of all gradients."""

from dataclasses import replace

import pytest

from costmodels.job import TrainingJob
from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.software import software
from costmodels.workload import presets
from hardware.catalog import cluster_of_run

PP, MICRO_BATCHES = 8, 32


def step(schedule: Schedule, *, late: bool):
    used = replace(software("zero-bubble"), late_validation=late)
    job = TrainingJob(global_batch=MICRO_BATCHES, seq=1024, precision=precision("bf16"), software=used)
    stage = Stage(layers_per_chunk=(12,), strategies=(StrategyRun(strategy=Strategy(), count=12),))
    layout = Layout(stages=(stage,) * PP, micro_batch=1, num_microbatches=MICRO_BATCHES, schedule=schedule)
    pricing = Pricing(model=presets.model("gpt3_175b"), job=job, island=cluster_of_run("A100-SXM-80GB", PP).islands[0])
    return price_layout((pricing,), layout)


def test_stages_that_do_not_wait_for_each_other_lose_their_stagger_once():
    """ZB-2p's parallelogram: every stage works without a pause, and begins a forward later than the one before it."""
    waiting, free = (step(Schedule.ZB_2P, late=late) for late in (False, True))
    whole_s = sum(step(Schedule.ONE_F_ONE_B, late=False).stage_times_s) / PP
    saved_s = waiting.step.bubble_s - free.step.bubble_s
    assert saved_s == pytest.approx((PP - 1) * whole_s / 3.0, rel=0.15)  # a third is forward
    assert free.step.bubble_s < 0.1 * waiting.step.bubble_s
    assert free.step.compute_s == pytest.approx(waiting.step.compute_s)


def test_schedules_of_whole_backward_passes_end_with_the_norm_as_ever():
    assert step(Schedule.ONE_F_ONE_B, late=True).step == step(Schedule.ONE_F_ONE_B, late=False).step


def test_only_the_runtime_that_validates_late_is_priced_so():
    assert software("zero-bubble").late_validation
    assert not software("torchtitan").late_validation
