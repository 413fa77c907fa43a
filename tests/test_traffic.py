"""Traffic reports: calls counted by hand, bytes against volumes, the bottleneck by name, other machines."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_requests import with_one_adapter

from costmodels.collectives import all_to_all_s, default_network
from costmodels.layout import Layout
from costmodels.mesh import Group, place
from hardware import catalog
from hardware.adapters import adapters_of
from hardware.cluster import FabricTier
from hardware.sharing import binding_link, nic_sharing
from hardware.tiers import island_tiers
from hardware.topology import bisection_bytes_per_s
from planner import Question, request_of
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.plan_report import RankedLayout
from planner.planning import estimate
from planner.report.traffic_json import traffic_to_json
from planner.request import PlanRequest
from planner.traffic import Traffic, network_rankings, scaling_of, traffic_of

HIDDEN, SEQ, BATCH = 6144, 4096, 128
ONE = ", one adapter"


def asked(cluster: str, model: str = "mixtral_8x22b", batch: int = BATCH) -> PlanRequest:
    request = request_of(Question(model=model, cluster=cluster.removesuffix(ONE), global_batch=batch, seq=SEQ))
    return with_one_adapter(request) if cluster.endswith(ONE) else request


def priced(request: PlanRequest, **degrees: object) -> RankedLayout:
    return estimate(request, layout_of(request, ExplicitLayout(**degrees)))  # type: ignore[arg-type]


def report(cluster: str, **degrees: object) -> Traffic:
    request = asked(cluster)
    return traffic_of(request, priced(request, **degrees))


def test_calls_and_bytes_of_a_pipeline_with_experts_inside_the_node() -> None:
    found = report(f"h200-thermal-study{ONE}", tp=1, pp=4, ep=8, dp=8, recompute="full")
    rows = {(row.purpose, row.collective): row for row in found.axes}
    experts, sends = rows["ep", "alltoall"], rows["send", "sendrecv"]
    # 14 layers x 16 micro-batches, dispatch and combine, forward, again for recompute, backward
    assert experts.count == 14 * 16 * 2 * 3
    assert experts.message_bytes == SEQ * HIDDEN * 2 * 2  # two copies of each token in bf16
    assert (experts.tier, experts.slow_bytes_per_token) == ("scale-up", 0.0)
    assert sends.count == 16 * 2
    assert sends.message_bytes == SEQ * HIDDEN * 2
    assert sends.slow_bytes_per_token == pytest.approx(sends.count * sends.message_bytes * 32 / (BATCH * SEQ))
    assert sends.exposed_share is None
    assert experts.exposed_share == pytest.approx(1.0)
    assert ("tp", "all_gather") not in rows


def test_links_are_busy_for_the_bytes_over_their_rates() -> None:
    found = report(f"h200-thermal-study{ONE}", tp=1, pp=4, ep=8, dp=8, recompute="full")
    nics = next(link for link in found.resources if link.name.startswith("NICs"))
    assert nics.busy_s == pytest.approx(32 * SEQ * HIDDEN * 2 / (12.5e9 / 8))
    assert sum(share for _, share in nics.users) == pytest.approx(1.0)
    assert found.resources == tuple(sorted(found.resources, key=lambda link: -link.busy_s))


def test_no_link_is_busy_for_longer_than_its_exchanges_take() -> None:
    request = asked("l40s-4:3", model="llama_7b", batch=32)
    found = traffic_of(request, priced(replace(request, job=replace(request.job, seq=2048)), pp=6, dp=2, zero=3))
    inside = sum(row.busy_s for row in found.axes if row.tier == "scale-up")
    sends = next(row for row in found.axes if row.purpose == "send")
    # Two stages of two GPUs lie in a node: the first sends inside it, the second to the next one.
    rate = island_tiers(request.cluster.islands[0])[0].bytes_per_s
    inside += sends.count * sends.message_bytes / 2 / rate
    assert found.resources[0].name.startswith("pcie")
    assert found.resources[0].busy_s == pytest.approx(inside)
    assert found.resources[0].share < 1.0


@pytest.mark.parametrize(("tp", "pp"), [(1, 32), (2, 16), (4, 8), (8, 4)])
def test_sends_of_stages_in_one_node_leave_it_once(tp: int, pp: int) -> None:
    """A node of 8 GPUs sends what one stage sends, however many stages it holds; each flow has its part of the NIC."""
    request = asked(f"h200-thermal-study{ONE}", model="gpt3_175b")
    found = traffic_of(request, priced(request, tp=tp, pp=pp, recompute="full"))
    sends = next(row for row in found.axes if row.purpose == "send")
    nics = next(link for link in found.resources if link.name.startswith("NICs"))
    assert sends.message_bytes == SEQ * 12_288 * 2 / tp
    assert sends.slow_bytes_per_token == pytest.approx(sends.count * sends.message_bytes * 4 * tp / (BATCH * SEQ))
    assert nics.busy_s == pytest.approx(sends.count * sends.message_bytes * tp / 12.5e9)
    assert sends.message_bytes * sends.count / sends.busy_s == pytest.approx(12.5e9 / tp, rel=0.08)


def test_wide_tp_and_ep_have_the_shared_adapter_as_their_bottleneck() -> None:
    found = report(f"h200-thermal-study{ONE}", tp=16, pp=1, ep=8, etp=4, dp=2)
    assert found.bottleneck.startswith("NICs (1 x 100 Gb/s infiniband per node, each shared by 8 GPUs)")
    users = dict(found.resources[0].users)
    assert users["tp"] > 0.1
    assert users["ep"] > 0.1
    assert found.adapters == ("nic0: GPUs 0, 1, 2, 3, 4, 5, 6, 7",)


def test_a_layout_inside_one_node_uses_no_network() -> None:
    request = asked("dgx-h200:1", model="llama3_8b")
    found = traffic_of(request, priced(request, tp=4, dp=2))
    assert [link.tier for link in found.resources] == ["scale-up"]
    assert found.adapters == ()
    assert found.sharing.step_s == 0.0
    assert network_rankings(request, [priced(request, tp=4, dp=2)]) == ()


def test_what_transfers_cost_each_other_is_what_the_step_would_save() -> None:
    found = report(f"h200-thermal-study{ONE}", tp=16, pp=2, ep=8, etp=2, dp=1, vpp=4)
    assert found.sharing.sends > 1.01
    assert found.sharing.step_s > 0.0
    assert found.sharing.waits_s > 0.0
    assert found.sharing.checkpoint >= 1.0


def test_a_report_is_plain_data() -> None:
    data = traffic_to_json(report("dgx-h100:8", tp=2, pp=2, ep=8, dp=16))
    assert set(data) == {"stage", "bottleneck", "axes", "links", "sharing", "adapters", "uneven"}


def test_rankings_on_other_networks_are_those_of_the_prices() -> None:
    request = asked(f"h200-thermal-study{ONE}")
    layouts = [priced(request, tp=1, pp=4, ep=8, dp=8, recompute="full"), priced(request, tp=8, pp=4, ep=1, dp=1)]
    slow, fast = network_rankings(request, layouts)
    assert (slow.factor, fast.factor) == (0.5, 2.0)
    for found in (slow, fast):
        assert sorted(found.order) == [1, 2]
        assert list(found.step_s) == sorted(found.step_s)
    assert all(a >= b for a, b in zip(slow.step_s, fast.step_s, strict=True))


def test_curves_over_the_number_of_gpus() -> None:
    pinned = (("tp", 2), ("pp", 1), ("cp", 1), ("micro_batch", 1))
    request = replace(asked("dgx-h100:2", model="llama3_8b", batch=32), fixed=pinned)
    found = scaling_of(request, name_of=lambda layout: str(layout.gpus))
    assert [point.gpus for point in found.fixed] == [8, 16, 32, 64]
    assert [point.global_batch for point in found.scaled] == [16, 32, 64, 128]
    assert found.fixed[1] == found.scaled[1] or found.fixed[1].step_s == found.scaled[1].step_s
    assert found.fixed[0].efficiency == pytest.approx(1.0)
    assert found.fixed[-1].efficiency < found.scaled[-1].efficiency <= 1.05
    assert found.helps_until == last_that_helps([point.tokens_per_s for point in found.fixed], [8, 16, 32, 64])


def last_that_helps(tokens_per_s: list[float], gpus: list[int]) -> int:
    """The last size up to which each doubling brought at least half of what it could: 1.5 times the throughput."""
    until = gpus[0]
    for number in range(1, len(gpus)):
        if tokens_per_s[number] < 1.5 * tokens_per_s[number - 1]:
            break
        until = gpus[number]
    return until


def test_more_gpus_stop_helping_where_the_batch_is_spread_thin() -> None:
    """Eight sequences on up to eight nodes with one slow adapter each: the curve has its end inside the table."""
    request = asked(f"h200-thermal-study{ONE}", model="llama3_8b", batch=8)
    found = scaling_of(
        replace(request, fixed=(("tp", 8), ("pp", 1), ("cp", 1))), name_of=lambda layout: str(layout.gpus)
    )
    sizes = [point.gpus for point in found.fixed]
    assert found.helps_until == last_that_helps([point.tokens_per_s for point in found.fixed], sizes)
    assert sizes[0] <= found.helps_until < sizes[-1]
    etas = [point.efficiency for point in found.fixed if point.tokens_per_s]
    assert etas[0] == pytest.approx(1.0)
    assert all(later < earlier for earlier, later in pairwise(etas))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dgx-h100", tuple((gpu,) for gpu in range(8))),
        ("dgx-1", ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))),
        ("h200-8", None),
    ],
)
def test_adapters_of_every_gpu(name: str, expected: tuple[tuple[int, ...], ...] | None) -> None:
    if expected is None:
        node = asked(f"h200-thermal-study{ONE}").cluster.islands[0].node
        expected = ((0,),) * 8
    else:
        node = catalog.node_type(name)
    assert adapters_of(node) == expected
    assert len(nic_sharing(node)) == len(set(expected))


def test_the_link_that_binds_has_a_name() -> None:
    node = catalog.node_type("dgx-1")
    one = replace(node, nics=replace(node.nics, count=1, gpudirect=False))
    assert binding_link(one) == "PCIe switch uplinks (no GPUDirect RDMA)"
    assert binding_link(node).startswith("NICs (4 x 100 Gb/s infiniband per node, each shared by 2 GPUs)")
    weak = replace(node, nics=replace(node.nics, gpu_bytes_per_s=1e9))
    assert binding_link(weak) == "PCIe links of the accelerators towards the NICs"


def test_orderings_of_layouts_on_slow_networks() -> None:
    """TP over nodes loses to TP inside; experts inside the fast domain win; on 32 H200 EP8 PP4 beats wider TP."""
    request = asked(f"h200-thermal-study{ONE}")

    def step_s(**degrees: object) -> float:
        return priced(request, **degrees).cost.step.total_s

    assert step_s(tp=16, pp=2, ep=1) > 1.5 * step_s(tp=8, pp=4, ep=1)
    inside, outside = step_s(tp=2, pp=2, ep=8, etp=1), step_s(tp=2, pp=2, ep=8, etp=2)  # experts within 8 GPUs, over 16
    assert outside > 1.2 * inside
    best = step_s(tp=1, pp=4, ep=8, dp=8, recompute="full")
    # wider tp as the study laid it out, experts split too: their groups span two and four nodes; reported: above twice
    assert step_s(tp=2, pp=2, ep=8, etp=2) > 2.0 * best
    assert step_s(tp=4, pp=1, ep=8, etp=4) > 2.0 * best


def test_oversubscription_costs_what_the_bisection_says() -> None:
    """An all-to-all over two leaves takes what has to cross the cut over the bisection, at 2:1 as at 4:1."""
    machine = catalog.cluster("dgx-h100:8")
    island = machine.islands[0]
    message = 1e12
    for ratio in (2.0, 4.0):
        tiers = (FabricTier(name="leaf", nodes=4, oversubscription=ratio), FabricTier(name="spine", nodes=0))
        cluster = replace(machine, islands=(replace(island, fabric=tiers),))
        bisection = bisection_bytes_per_s(cluster)
        assert bisection == pytest.approx(4 * 400e9 / ratio)
        summary = island_tiers(cluster.islands[0])
        group = Group(size=np.array([64]), stride=np.array([1]), ranks=np.array([64]))
        taken_s = all_to_all_s(message, place(group, summary), summary, default_network())[0]
        crossing_s = 32 * message / 2 / bisection  # half of every message of the 32 senders of one leaf
        assert crossing_s < taken_s < 1.1 * crossing_s


def test_layouts_of_one_gpu_have_no_traffic() -> None:
    request = asked("dgx-h100:1", model="llama3_8b", batch=8)
    layout: Layout = layout_of(request, ExplicitLayout(dp=1))
    assert traffic_of(request, estimate(request, layout)).bottleneck == ""
