"""What a row of measured runs asks of the cost models where it leaves something out."""

import pytest

from costmodels.pipeline.schedules import Schedule
from planner.evidence.measured import parse_run
from planner.evidence.runs import question_of

ROW = {
    "id": "one",
    "framework": "nemo-2",
    "model": "nemotron4_340b",
    "hardware": "H100",
    "gpus_per_node": "8",
    "n_gpus": "256",
    "precision": "bf16",
    "seq_len": "4096",
    "global_batch_size": "64",
    "micro_batch_size": "1",
    "tp": "8",
    "pp": "8",
    "dp": "4",
}


@pytest.mark.parametrize(
    ("stated", "schedule", "chunks"),
    [
        ({}, Schedule.INTERLEAVED, 6),
        ({"vpp": "12"}, Schedule.INTERLEAVED, 12),
        ({"vpp": "1"}, Schedule.ONE_F_ONE_B, 1),
        ({"framework": "megatron-lm"}, Schedule.ONE_F_ONE_B, 1),
        ({"global_batch_size": "80"}, Schedule.ONE_F_ONE_B, 1),
    ],
    ids=["as the recipes", "stated", "stated as none", "another framework", "micro-batches do not fit"],
)
def test_virtual_stages_that_a_table_leaves_out_are_the_recipes(stated, schedule, chunks):
    layout = question_of(parse_run(ROW | stated)).layout
    assert layout.schedule is schedule
    assert len(layout.stages[0].layers_per_chunk) == chunks
