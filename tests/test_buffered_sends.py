"""Pipelines of software whose stages send from buffers: no stage of 1F1B waits for a tensor to move."""

from dataclasses import replace

import numpy as np
import pytest
from small_requests import pricing_of, small

from costmodels.explicit_step import priced_step
from costmodels.layout import Strategy
from costmodels.pipeline.graph import Transfers
from costmodels.pipeline.simulate import default_transfers, makespan, timeline
from costmodels.software import software
from planner.advice.pipeline_times import pipeline_times
from planner.layouts.build import uniform_layout

STAGES = 4


def priced(*, buffered: bool):
    """Request, layout and step of a pipeline of equal stages inside a node."""
    request = small(gpus=STAGES, layers=(STAGES,))
    used = replace(request.job.software, buffered_sends=buffered)
    request = replace(request, job=replace(request.job, software=used))
    layout = uniform_layout(Strategy(), ((1,),) * STAGES, micro_batch=1, num_microbatches=8)
    return request, layout, priced_step((pricing_of(request),), layout)


@pytest.mark.parametrize(("buffered", "transfers"), [(True, Transfers.OVERLAPPED), (False, Transfers.BLOCKING)])
def test_the_step_and_its_trace_move_tensors_as_the_software_does(buffered: bool, transfers: Transfers) -> None:
    request, layout, step = priced(buffered=buffered)
    send_s = step.times.send_s[0] / STAGES
    assert send_s > 0.0
    forward_s, backward_s = step.work.forward_all_s, step.work.backward_all_s
    alone = makespan(step.contents.spec, forward_s, backward_s, send_s, transfers=transfers)
    assert step.times.makespan_s == pytest.approx(alone.makespan_s)
    drawn = pipeline_times(request, layout)
    ends_s = timeline(drawn.spec, drawn.forward_s, drawn.backward_s, drawn.send_s, None, drawn.transfers).end_s
    assert np.max(ends_s) == pytest.approx(step.times.makespan_s[0])


def test_what_no_stage_waits_for_takes_no_time_of_the_busiest_one() -> None:
    waits, free = (priced(buffered=on)[2].times for on in (False, True))
    assert free.makespan_s[0] < waits.makespan_s[0]
    assert free.works_s == pytest.approx(waits.works_s)


def test_oneflow_sends_from_buffers_where_megatron_waits() -> None:
    _, _, step = priced(buffered=False)
    assert default_transfers(step.contents.spec, buffered=software("oneflow").buffered_sends) is Transfers.OVERLAPPED
    assert default_transfers(step.contents.spec, buffered=software("megatron").buffered_sends) is Transfers.BLOCKING
