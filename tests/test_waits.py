"""What hides and what waits, in closed form: exchanges beside the compute of a part, hosts, slowest ranks, messages."""

from dataclasses import replace

import numpy as np
import pytest
from one_op import op_times
from small_requests import small

from costmodels.collectives import send_receive_s
from costmodels.exchange import LayerExchange, PlacedTable, layer_exchange
from costmodels.host_waits import BESIDE, host_of_wait_s
from costmodels.job import Software, TrainingJob
from costmodels.layer_costs import price_parts
from costmodels.layout import Strategy
from costmodels.memory.states import LocalParameters, parameter_bytes, state_bytes
from costmodels.overlap import exposed_s
from costmodels.part_ops import part_names, part_ops
from costmodels.precision import precision
from costmodels.pricing import Pricing
from costmodels.reliability import STEP_JITTER_CV, expected_maximum, jitter_s
from costmodels.table import Floats, StrategyTable, table_of
from costmodels.workload import presets
from costmodels.workload.op import OpKind
from costmodels.works import Work
from hardware.catalog import cluster_of_run
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate


def pricing(model: str = "llama3_8b", *, seq: int = 4096, gpus: int = 8, **software: object) -> Pricing:
    used = Software(name="test", framework="megatron", **software)  # type: ignore[arg-type]
    job = TrainingJob(global_batch=64, seq=seq, precision=precision("bf16"), software=used)
    return Pricing(model=presets.model(model), job=job, island=cluster_of_run("H100", gpus).islands[0])


def one(strategy: Strategy) -> StrategyTable:
    return table_of([strategy], pp=[1], micro_batch=[1])


def placed(asked: Pricing, table: StrategyTable) -> PlacedTable:
    return PlacedTable(table, asked.tiers, asked.constants.network)


def alone(asked: Pricing, table: StrategyTable) -> LayerExchange:
    """Exchanges of the first kind of layer before anything hides them."""
    return layer_exchange(part_names(asked)[0], asked.model, asked.job, placed(asked, table))


def computed_s(asked: Pricing, table: StrategyTable, kind: OpKind, *, backward: bool = False) -> Floats:
    """Seconds of one kind of op of the first kind of layer at the highest clock."""
    efficiency = asked.constants.efficiency
    ops = [op for op in part_ops(asked)[0] if op.kind is kind]
    times = [op_times(op, asked.job, table, asked.accelerator, efficiency=efficiency) for op in ops]
    return np.sum([time.backward_s if backward else time.forward_s for time in times], axis=0)


def test_the_backward_exchange_of_column_products_hides_behind_weight_gradients_half_of_the_products() -> None:
    asked = pricing(gpus=16, tp_backward_overlap=True)
    table = one(Strategy(tp=16, sequence_parallel=True))
    exchange, overlap = alone(asked, table), asked.constants.overlap
    window_s = 0.5 * computed_s(asked, table, OpKind.GEMM, backward=True)
    hidden_s = exchange.tp_backward_hidden_s
    assert hidden_s > overlap.window_share * window_s  # some of it shows, so that the window counts
    beside_s = exposed_s(hidden_s, window_s, overlap.window_share, contention=overlap.contention)
    found_s = price_parts(asked, table).backward_s[Work.TP, 0]
    assert found_s == pytest.approx(exchange.tp_backward_s - hidden_s + beside_s)


@pytest.mark.parametrize("cp", [2, 4])
def test_the_first_keys_and_values_of_a_ring_are_there_so_attention_hides_all_exchanges_but_for_one_step(
    cp: int,
) -> None:
    asked = pricing(seq=1024, gpus=16, cp_comm="p2p")
    table = one(Strategy(tp=16 // cp, cp=cp, sequence_parallel=True))
    exchange, overlap = alone(asked, table), asked.constants.overlap
    window_s = (cp - 1) / cp * computed_s(asked, table, OpKind.ATTENTION)
    assert exchange.cp_forward_s > overlap.window_share * window_s
    shown_s = exposed_s(exchange.cp_forward_s, window_s, overlap.window_share, contention=overlap.contention)
    assert price_parts(asked, table).forward_s[Work.CP, 0] == pytest.approx(shown_s)


def test_host_and_device_meet_where_tokens_are_counted_and_a_pass_takes_the_root_of_their_squares() -> None:
    """A capacity of one token for each token fixes the sizes: the pass takes nearly the longer, here the host."""
    table = one(Strategy(dp=8, ep=8))
    counted, fixed = (
        price_parts(pricing("qwen3_30b_a3b", seq=512, capacity_factor=capacity), table).forward_s[:, 0, 0]
        for capacity in (0.0, 1.0)
    )
    works = [work for work in Work if work is not Work.LAUNCH]
    assert fixed[Work.LAUNCH] > 0.0
    host_s = host_of_wait_s(fixed[works].sum(), fixed[Work.LAUNCH], BESIDE)
    assert host_s == pytest.approx(fixed.sum(), rel=0.01)
    assert counted.sum() == pytest.approx(np.hypot(counted[works].sum(), host_s))


@pytest.mark.parametrize(
    ("ranks", "expected", "error"),
    [(1, 0.0, 0.0), (2, 0.56419, 0.045), (5, 1.16296, 0.015), (10, 1.53875, 0.006), (100, 2.50759, 0.004)],
)
def test_the_slowest_of_some_ranks_is_the_largest_of_as_many_normals(ranks: int, expected: float, error: float) -> None:
    """Harter, Expected Values of Normal Order Statistics, Biometrika 48 (1961)."""
    assert float(expected_maximum(np.array(ranks))) == pytest.approx(expected, rel=error)


def test_the_wait_for_the_slowest_rank_is_that_of_a_simulation() -> None:
    """Steps of 64 ranks whose times scatter by the constant's share: what the slowest takes more than the mean."""
    times = np.random.default_rng(5).normal(2.0, 2.0 * STEP_JITTER_CV, (20_000, 64))
    simulated = float((times.max(axis=1) - 2.0).mean())
    assert float(jitter_s(np.array([2.0]), np.array([64]))[0]) == pytest.approx(simulated, rel=0.02)
    asked = small("llama32_1b", (4,), 4)
    steps = [estimate(asked, layout_of(asked, ExplicitLayout(tp=1, dp=ranks))).cost.step for ranks in (1, 4)]
    waits = [step.sync_s / (step.total_s - step.sync_s) for step in steps]
    assert waits == [0.0, pytest.approx(STEP_JITTER_CV * float(expected_maximum(4)))]


def test_an_empty_message_between_nodes_takes_the_hop_between_nodes() -> None:
    asked = pricing(gpus=16)
    inner, outer = asked.tiers[:2]
    network = asked.constants.network
    near_s, far_s = (
        float(send_receive_s(0.0, placed(asked, table_of([strategy], pp=[2], micro_batch=[1])).group(axis), *rest)[0])
        for axis, strategy in (("pp", Strategy(tp=1)), ("pp", Strategy(tp=8)))
        for rest in [(asked.tiers, network)]
    )
    assert far_s - near_s == pytest.approx(network.hop_s(outer) - network.hop_s(inner))


def test_states_of_experts_are_sharded_over_the_ranks_that_repeat_them() -> None:
    """tp 4 x dp 4 are 16 ranks; experts over ep 2 x etp 2 of them are repeated 4 times."""
    asked = pricing("qwen3_30b_a3b").job
    table = one(Strategy(tp=4, dp=4, ep=2, etp=2, sequence_parallel=True, zero=1))
    held = LocalParameters(dense=np.zeros(1), expert=np.full(1, 1e9))
    assert state_bytes(held, asked, table).optimizer[0] == pytest.approx(parameter_bytes(asked).optimizer * 1e9 / 4)
    folded = replace(held, expert=held.expert / 2)
    more = one(Strategy(tp=4, dp=4, ep=4, etp=2, sequence_parallel=True, zero=1))
    assert state_bytes(folded, asked, more).optimizer == pytest.approx(state_bytes(held, asked, table).optimizer)
