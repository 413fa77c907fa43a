"""Hosts that run on while tensor-parallel groups exchange beyond their node: a closed form, and measured steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.host_waits import MEETING, host_of_wait_s
from costmodels.job import Software, TrainingJob
from costmodels.layer_costs import PartCosts, price_parts
from costmodels.layout import Strategy
from costmodels.precision import precision
from costmodels.pricing import Pricing
from costmodels.table import table_of
from costmodels.workload import presets
from costmodels.works import Work
from hardware.catalog import cluster_of_run
from planner.evidence.measured import read_runs
from planner.evidence.validate import predict

LAYER = 0
MULTI_NODE_RUNS = Path(__file__).parent / "reference" / "multi_node_runs.csv"


def costs(tp: int, *, hardware: str = "H100", nics: float = 1.0, **software: object) -> PartCosts:
    """Parts of short sequences on two nodes, of which the second is as far as the adapters' rate makes it."""
    used = Software(name="test", framework="megatron", scripted=True, **software)  # type: ignore[arg-type]
    job = TrainingJob(global_batch=64, seq=512, precision=precision("bf16"), software=used)
    island = cluster_of_run(hardware, 16).islands[0]
    adapters = replace(island.node.nics, bytes_per_s=island.node.nics.bytes_per_s * nics)
    island = replace(island, node=replace(island.node, nics=adapters))
    asked = Pricing(model=presets.model("llama3_8b"), job=job, island=island)
    return price_parts(asked, table_of([Strategy(tp=tp, dp=16 // tp, sequence_parallel=True)], pp=[1], micro_batch=[1]))


def forward_s(found: PartCosts) -> tuple[float, float, float]:
    """Seconds of compute, of exchanges and of waits for the host, of a layer forward."""
    works_s = found.forward_s[:, LAYER, 0]
    wait_s, exchange_s = float(works_s[Work.LAUNCH]), float(works_s[Work.TP])
    return float(works_s.sum()) - wait_s - exchange_s, exchange_s, wait_s


def host_s(found: PartCosts, *, leads: bool) -> float:
    """What a host needs for a layer, from what its device waits for it."""
    compute_s, exchange_s, wait_s = forward_s(found)
    shared_s = compute_s if leads else compute_s + exchange_s
    rest_s = float(host_of_wait_s(np.array(shared_s), np.array(wait_s), MEETING))
    return rest_s + (exchange_s if leads else 0.0)


def test_beyond_a_node_a_host_runs_on_by_the_time_of_the_exchange() -> None:
    found = [costs(16, nics=nics) for nics in (1.0, 0.5, 0.2)]
    assert [part.hosts_run_on.tolist() for part in found] == [[True]] * 3
    exchanges_s = [forward_s(part)[1] for part in found]
    assert exchanges_s == sorted(exchanges_s)
    assert exchanges_s[2] > 1.2 * exchanges_s[0]
    hosts_s = [host_s(part, leads=True) for part in found]
    assert hosts_s == pytest.approx([hosts_s[0]] * 3)
    assert forward_s(costs(16, nics=0.02))[2] == 0.0  # no host is behind at the end of a long exchange


def test_inside_a_node_or_rack_and_where_hosts_wait_they_gain_nothing() -> None:
    inside = [costs(8), costs(16, hardware="GB200"), costs(16, hosts_in_turn=True), costs(16, blocking_launches=True)]
    assert not any(part.hosts_run_on.any() for part in inside)
    slow, fast = costs(16, nics=1.0, hosts_in_turn=True), costs(16, nics=2.0, hosts_in_turn=True)
    assert host_s(slow, leads=False) == pytest.approx(host_s(fast, leads=False))


def test_measured_steps_with_groups_of_two_nodes() -> None:
    """Two to 32 sequences a micro-batch, with hosts that take up to nine tenths of the time of their devices."""
    found = [predict(run) for run in read_runs(MULTI_NODE_RUNS) if run.text("tp") == "16"]
    assert len(found) == 6
    for prediction in found:
        assert prediction.error == pytest.approx(0.0, abs=0.03), prediction.run.id
