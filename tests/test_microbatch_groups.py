"""Groups of micro-batches of the interleaved schedule: read, priced, written, read back."""

from dataclasses import replace

import pytest

from costmodels.layout import Strategy
from costmodels.pipeline.inflight import in_flight_total
from costmodels.pipeline.schedules import Schedule
from costmodels.positions import pipeline_spec
from costmodels.workload import presets
from hardware.errors import InputError
from planner.export.bridge import export_bridge
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.layout_json import read_layout, write_layout
from planner.export.megatron import export_megatron
from planner.export.nemo import export_nemo
from planner.export.torchtitan import export_torchtitan
from planner.ingest.plain_layout import same_launch
from planner.ingest.torchtitan.stages import round_group
from planner.layouts.build import uniform_layout, with_strategies
from planner.planning import estimate
from planner.question import Question, job_of, request_of
from planner.request import Framework

GRID = Strategy(tp=4, dp=4, sequence_parallel=True, zero=1)
QUESTION = Question(model="llama3_70b", cluster="dgx-h100:8", global_batch=96, seq=4096)


def layout(group: int, microbatches: int = 24):
    plain = uniform_layout(GRID, ((5,) * 4,) * 4, micro_batch=1, num_microbatches=microbatches)
    return replace(plain, microbatch_group=group)


def planned(group: int, framework: Framework) -> Planned:
    return Planned(
        model=presets.model("llama3_70b"),
        job=job_of(framework, "bf16", global_batch=96, seq=4096),
        layout=layout(group),
        site=Site(hosts=tuple(f"host{index}" for index in range(8)), gpus_per_node=8),
    )


def test_larger_groups_keep_more_micro_batches_in_flight():
    """Megatron-LM warms up with 2 (pp - stage - 1) + (vpp - 1) group forwards; one more is held in the steady state."""
    for group in (0, 6, 8):
        held = in_flight_total(pipeline_spec(layout(group)))
        chunks = 2 * 3 + 3 * (group or 4) + 1
        assert held[0] == chunks
    request = request_of(QUESTION)
    usual, grouped = (estimate(request, layout(group)).cost.memory[0] for group in (0, 8))
    assert grouped.total_bytes > 1.1 * usual.total_bytes


@pytest.mark.parametrize(
    ("framework", "export", "word"),
    [
        (Framework.MEGATRON, export_megatron, "--microbatch-group-size-per-virtual-pipeline-stage"),
        (Framework.BRIDGE, export_bridge, "model.microbatch_group_size_per_vp_stage=6"),
        (Framework.NEMO, export_nemo, "trainer.strategy.microbatch_group_size_per_vp_stage=6"),
    ],
)
def test_groups_are_exported(framework, export, word):
    assert word in export(planned(6, framework)).arguments  # an export is read back before it is handed out
    usual = export(planned(0, framework)).arguments
    assert word not in usual
    assert (f"{word.partition('=')[0]}=null" in usual) == ("=" in word)


def test_groups_stay_in_a_layout_file():
    assert read_layout(write_layout(layout(6))) == layout(6)
    assert same_launch(layout(4), layout(0), experts=False)
    assert not same_launch(layout(6), layout(0), experts=False)


def test_torchtitan_forms_its_groups_itself():
    """PyTorch: M // pp rounds of equal size, so 6 micro-batches on 4 stages are one round of 6."""
    assert [round_group(Schedule.INTERLEAVED, 4, count) for count in (4, 6, 8, 10, 12, 14)] == [0, 6, 0, 5, 0, 0]
    assert round_group(Schedule.ONE_F_ONE_B, 4, 6) == 0
    told = planned(6, Framework.TORCHTITAN)
    with pytest.raises(InputError, match="groups of 6 micro-batches"):
        export_torchtitan(replace(told, layout=with_strategies(told.layout, zero=2)))
