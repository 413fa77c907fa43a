"""Every accelerator and every node type of the catalogue prices a run, and no price beats what the hardware can do."""

import csv
from collections import Counter

import pytest

from hardware import catalog
from hardware.cluster import Accelerator
from planner.evidence.nearness import STEP_TIME, shipped_runs
from planner.evidence.validate import Prediction, validate

COLUMNS = ("id", "framework", "model", "hardware", "n_gpus", "dtype", "seq_len", "global_batch_size")
GRID = {"micro_batch_size": 2, "tp": 1, "pp": 1, "cp": 1, "zero": 1, "step_time_s": 1.0}
SEQ, PARAMETERS = 1024, 124e6
A_SHARE_THAT_ANY_PART_REACHES = 0.02
"""Of the peak rate: GPT-2 of 124 million parameters, called op by op, keeps no fast accelerator busy."""


def sixteen_bits(part: Accelerator) -> str:
    return "bf16" if part.peak.bf16 else "fp16"


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prediction]:
    path = tmp_path_factory.mktemp("machines") / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*COLUMNS, *GRID, "dp"])
        writer.writeheader()
        for hardware in (*catalog.accelerator_names(), *catalog.node_type_names()):
            node = catalog.node_of_hardware(hardware).node
            values = (hardware, "megatron-lm", "gpt2", hardware, node.gpus, sixteen_bits(node.accelerator), SEQ)
            stated = dict(zip(COLUMNS, (*values, 4 * node.gpus), strict=True))
            writer.writerow({**stated, **GRID, "dp": node.gpus})
    return {prediction.run.id: prediction for prediction in validate([path])}


def test_no_row_is_left_out(predictions: dict[str, Prediction]) -> None:
    assert len(predictions) == len(catalog.accelerator_names()) + len(catalog.node_type_names())
    assert Counter(each.skipped for each in predictions.values()) == {None: len(predictions)}


def test_no_price_beats_the_peak_rate_nor_is_far_from_it(predictions: dict[str, Prediction]) -> None:
    for name, prediction in predictions.items():
        part = catalog.node_of_hardware(name).node.accelerator
        peak = getattr(part.peak, sixteen_bits(part))
        least_s = 6.0 * PARAMETERS * 4 * SEQ / peak
        assert prediction.step_time_s is not None
        assert least_s < prediction.step_time_s < least_s / A_SHARE_THAT_ANY_PART_REACHES, name


def test_parts_with_runs_in_the_evidence_are_catalogued() -> None:
    measured = set(shipped_runs(STEP_TIME).texts["hardware"])
    assert measured <= set(catalog.accelerator_names())
