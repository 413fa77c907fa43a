"""Token dispatchers: routing probabilities against enumeration and sampling, bytes, and published bandwidths."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.collectives import all_gather_s, all_to_all_s, default_network
from costmodels.collectives.dispatch import (
    COMBINE_S,
    DISPATCH_S,
    TokenTraffic,
    combine_s,
    copies_per_token,
    dispatch_s,
)
from costmodels.collectives.routing import Routing, busiest_load, hit_probability, spread_of
from costmodels.job import Dispatcher
from costmodels.mesh import Group, PlacedGroup, place
from hardware.catalog import cluster
from hardware.tiers import Tier, island_tiers

NETWORK = default_network()


def ranks_on(machine: str, ranks: int) -> tuple[PlacedGroup, tuple[Tier, ...]]:
    tiers = island_tiers(cluster(machine).islands[0])
    size = np.array([ranks])
    return place(Group(size=size, stride=np.ones_like(size), ranks=size), tiers), tiers


def traffic(experts: int = 256, top_k: int = 8, token_bytes: float = 14336.0) -> TokenTraffic:
    routing = Routing(experts=experts, top_k=top_k)
    return TokenTraffic(tokens=np.array([4096.0]), token_bytes=token_bytes, routing=routing)


def test_copies_per_token_match_sampled_routing() -> None:
    group, _ = ranks_on("dgx-h100:4", 32)
    rng = np.random.default_rng(1)
    draws = np.array([rng.choice(64, size=6, replace=False) for _ in range(20_000)])
    ranks = draws // 2  # two experts per rank; the sender is rank 0 of node 0
    other_ranks = np.mean([len(set(row) - {0}) for row in ranks])
    other_nodes = np.mean([len({rank // 8 for rank in row} - {0}) for row in ranks])
    load = traffic(experts=64, top_k=6)
    assert copies_per_token(load, group, -1)[0] == pytest.approx(other_ranks, rel=0.01)
    assert copies_per_token(load, group, 0)[0] == pytest.approx(other_nodes, rel=0.01)


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "tokens", "spread"),
    [(64, 6, 8, 256, 0.0), (64, 6, 8, 4096, 0.3), (256, 8, 32, 512, 0.2), (128, 8, 4, 64, 0.5)],
)
def test_the_busiest_rank_gets_what_sampled_routers_give_it(
    experts: int, top_k: int, ranks: int, tokens: int, spread: float
) -> None:
    """Loads of experts with a spread, tokens drawn by them, experts dealt to ranks: mean of the maximum over draws."""
    draw = np.random.default_rng(7)
    found = []
    for _ in range(400):
        loads = 1.0 + spread * draw.standard_normal(experts).clip(-2.5, 2.5)
        loads = loads.clip(0.0)
        copies = draw.multinomial(ranks * tokens * top_k, loads / loads.sum())
        held = copies.reshape(ranks, -1).sum(axis=1)
        found.append(held.max() / held.mean())
    load = float(busiest_load(Routing(experts=experts, top_k=top_k), ranks, tokens, spread))
    assert load - 1.0 == pytest.approx(np.mean(found) - 1.0, rel=0.08)


def test_the_busiest_expert_of_a_published_router_comes_back_from_its_spread() -> None:
    """One expert on each rank and very many tokens: the busiest rank exceeds the mean by MaxVio."""
    routing = Routing(experts=64, top_k=6)
    load = busiest_load(routing, 64, 1e9, spread_of(0.72, 64))
    assert float(load) == pytest.approx(1.72, rel=5e-3)
    assert float(busiest_load(routing, 1, 4096, 0.3)) == 1.0


def test_all_ranks_that_share_an_expert_need_a_copy() -> None:
    group, _ = ranks_on("dgx-h100:1", 8)
    halved = replace(traffic(experts=8, top_k=2), etp=2)
    # four pairs of ranks; a token misses a pair's two experts with probability C(6, 2) / C(8, 2)
    assert copies_per_token(halved, group, -1)[0] == pytest.approx(7 * (1 - 15 / 28))


@pytest.mark.parametrize("dispatcher", list(Dispatcher))
def test_one_rank_dispatches_nothing(dispatcher: Dispatcher) -> None:
    group, tiers = ranks_on("dgx-h100:1", 1)
    for exchange in (dispatch_s, combine_s):
        assert exchange(traffic(), group, dispatcher, tiers, NETWORK)[0] == 0.0


def test_tables_cover_every_dispatcher() -> None:
    assert set(DISPATCH_S) == set(COMBINE_S) == set(NETWORK.dispatchers) == set(Dispatcher)


def test_all_to_all_moves_every_copy_and_all_gather_every_token() -> None:
    group, tiers = ranks_on("dgx-h100:2", 16)
    load = traffic()
    copies = 4096 * 14336 * 8
    launch = NETWORK.dispatchers[Dispatcher.ALLTOALL].launch_s
    time = dispatch_s(load, group, Dispatcher.ALLTOALL, tiers, NETWORK)[0]
    assert time == pytest.approx(launch + all_to_all_s(copies, group, tiers, NETWORK)[0])
    gathered = dispatch_s(load, group, Dispatcher.ALLGATHER, tiers, NETWORK)[0]
    assert gathered == pytest.approx(all_gather_s(4096 * 14336 * 16, group, tiers, NETWORK)[0])


def test_one_copy_per_node_wins_when_tokens_choose_more_experts_than_nodes() -> None:
    group, tiers = ranks_on("dgx-h100:2", 16)

    def gain(top_k: int) -> float:
        load = traffic(top_k=top_k)
        plain = dispatch_s(load, group, Dispatcher.ALLTOALL, tiers, NETWORK)[0]
        return float(plain / dispatch_s(load, group, Dispatcher.DEEPEP, tiers, NETWORK)[0])

    assert gain(8) > gain(4) > gain(2)
    assert gain(8) > 1.5


def test_imbalance_stretches_the_transfer() -> None:
    group, tiers = ranks_on("dgx-h100:2", 16)
    for dispatcher in (Dispatcher.ALLTOALL, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP):
        even = dispatch_s(traffic(), group, dispatcher, tiers, NETWORK)[0]
        uneven = dispatch_s(replace(traffic(), imbalance=2.0), group, dispatcher, tiers, NETWORK)[0]
        assert 1.5 < uneven / even <= 2.0


# Bandwidths as their authors count them: bytes of all copies, local ones too, per rank (scale-up) or per node.
# deepseek-ai/DeepEP docs/legacy.md (normal kernels), docs/README_Hybrid-EP.md (kernels): 4096 tokens of 7168, top-8.
PUBLISHED = [
    ("dgx-h800:1", 8, Dispatcher.DEEPEP, 1.0, 256, "ranks", 153e9),
    ("dgx-h800:1", 8, Dispatcher.DEEPEP, 2.0, 256, "ranks", 158e9),
    ("dgx-h800:2", 16, Dispatcher.DEEPEP, 1.0, 256, "nodes", 43e9),
    ("dgx-h800:4", 32, Dispatcher.DEEPEP, 2.0, 256, "nodes", 57e9),
    ("dgx-h100:2", 16, Dispatcher.HYBRIDEP, 2.0, 128, "nodes", 72e9),
    ("dgx-h100:4", 32, Dispatcher.HYBRIDEP, 2.0, 256, "nodes", 58e9),
    ("dgx-h100:8", 64, Dispatcher.HYBRIDEP, 2.0, 512, "nodes", 50e9),
    ("gb200-nvl72:18", 36, Dispatcher.HYBRIDEP, 2.0, 288, "ranks", 632e9),
]


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_bandwidths(case: tuple[str, int, Dispatcher, float, int, str, float]) -> None:
    machine, ranks, dispatcher, element_bytes, experts, counted, published = case
    group, tiers = ranks_on(machine, ranks)
    load = traffic(experts=experts, token_bytes=7168 * element_bytes)
    parts = ranks if counted == "ranks" else ranks // tiers[0].gpus
    copies = parts * float(hit_probability(experts, 8, np.array(experts / parts)))
    time = float(dispatch_s(load, group, dispatcher, tiers, NETWORK)[0])
    assert 4096 * 7168 * element_bytes * copies / time == pytest.approx(published, rel=0.15)
