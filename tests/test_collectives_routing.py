"""How many parts of the experts a token needs: against enumeration, counting and sampled routers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives.routing import Routing, hit_probability, needed_share


@pytest.mark.parametrize(("experts", "top_k", "part"), [(6, 2, 2), (8, 3, 4), (7, 7, 1), (9, 4, 3)])
def test_hit_probability_matches_enumeration(experts: int, top_k: int, part: int) -> None:
    draws = list(itertools.combinations(range(experts), top_k))
    hits = sum(any(expert < part for expert in draw) for draw in draws)
    assert float(hit_probability(experts, top_k, np.array(part))) == pytest.approx(hits / len(draws))


@settings(max_examples=100, deadline=None)
@given(experts=st.integers(1, 64), top_k=st.integers(1, 16), part=st.integers(1, 64))
def test_hit_probability_is_one_less_the_share_of_misses(experts: int, top_k: int, part: int) -> None:
    top_k, part = min(top_k, experts), min(part, experts)
    misses = math.comb(experts - part, top_k) / math.comb(experts, top_k)
    assert float(hit_probability(experts, top_k, np.array(part))) == pytest.approx(1.0 - misses, abs=1e-12)


def mean_parts(draws: np.ndarray, part: int) -> float:
    return float(np.mean([len(set(row)) for row in draws // part]))


@pytest.mark.parametrize("part", [1, 4, 8, 16, 32, 64, 128, 256])
def test_a_router_of_groups_needs_as_many_parts_as_sampled_tokens(part: int) -> None:
    rng = np.random.default_rng(3)
    scores = rng.random((4_000, 8, 32))
    chosen = np.argsort(rng.random((4_000, 8)), axis=1)[:, :4]
    open_groups = np.zeros((4_000, 8), dtype=bool)
    np.put_along_axis(open_groups, chosen, True, axis=1)
    scores[~open_groups] = -1.0
    draws = np.argsort(-scores.reshape(4_000, 256), axis=1)[:, :8]
    routing = Routing(experts=256, top_k=8, groups=8, group_top_k=4)
    share = float(needed_share(routing, np.array([part]))[0])
    assert share * 256 / part == pytest.approx(mean_parts(draws, part), rel=0.01)


@pytest.mark.parametrize(("experts", "top_k", "part"), [(128, 8, 16), (256, 8, 4), (64, 6, 8), (32, 4, 4), (60, 4, 15)])
def test_neighbouring_experts_in_turn_lie_in_few_parts(experts: int, top_k: int, part: int) -> None:
    tokens = np.arange(math.lcm(experts, top_k) // top_k)
    draws = (tokens[:, None] * top_k + np.arange(top_k)) % experts
    routing = Routing(experts=experts, top_k=top_k, consecutive=True)
    share = float(needed_share(routing, np.array([part]))[0])
    assert share * experts / part == pytest.approx(mean_parts(draws, part))


def test_limits_never_need_more_parts_than_free_choice() -> None:
    parts = np.array([1.0, 4.0, 32.0, 64.0, 256.0])
    free = needed_share(Routing(experts=256, top_k=8), parts)
    limited = needed_share(Routing(experts=256, top_k=8, groups=8, group_top_k=4), parts)
    assert (limited <= free + 1e-12).all()
    assert needed_share(Routing(experts=256, top_k=8, groups=8, group_top_k=8), parts) == pytest.approx(free)
