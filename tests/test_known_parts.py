"""Parts of explicit layouts are priced once for each strategy, and the shared prices are those of a fresh one."""

from dataclasses import fields, replace

import numpy as np
import pytest
from small_requests import asked, small

import costmodels.known_parts
from costmodels.known_parts import known_parts
from costmodels.layer_costs import price_parts
from costmodels.layout import Strategy
from costmodels.price import price_layout
from costmodels.table import table_of
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import plan, pricings_of


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tables that are priced for explicit layouts from now on, nothing known before."""
    costmodels.known_parts._priced.cache_clear()
    seen: list[int] = []

    def price(pricing, table):
        seen.append(len(table))
        return price_parts(pricing, table)

    monkeypatch.setattr(costmodels.known_parts, "price_parts", price)
    return seen


def test_splits_chunks_and_micro_batches_share_the_parts_of_their_strategy(monkeypatch):
    request = asked("llama3_8b", cluster="dgx-h100:1", global_batch=32, seq=4096)
    pricings, seen = pricings_of(request), counted(monkeypatch)
    alike = (
        ExplicitLayout(tp=2, pp=4, micro_batch=1),
        ExplicitLayout(tp=2, pp=4, micro_batch=1, layers_per_stage="9,8,8,7"),
        ExplicitLayout(tp=2, pp=4, micro_batch=1, vpp=2),
    )
    for explicit in alike:
        price_layout(pricings, layout_of(request, explicit))
    assert seen == [1]
    price_layout(pricings, layout_of(request, ExplicitLayout(tp=2, pp=4, micro_batch=2)))
    price_layout(pricings, layout_of(request, ExplicitLayout(tp=2, pp=2, micro_batch=1)))
    assert seen == [1, 1, 1]


def test_a_search_prices_no_strategy_of_an_explicit_layout_twice(monkeypatch):
    request = small("llama3_8b", layers=(4,), gpus=4)
    seen = counted(monkeypatch)
    found = plan(request)
    first = len(seen)
    assert len({(one.layout.first, one.layout.pp, one.layout.micro_batch) for one in found.layouts}) <= first
    again = plan(replace(request, top=request.top))
    assert again.layouts == found.layouts
    assert len(seen) == first  # another search of the same question knows all of them


@pytest.mark.parametrize("words", [{}, {"cluster": "dgx-a100:1"}, {"global_batch": 64}, {"power_cap_w": 400.0}])
def test_known_parts_are_those_of_the_pricing_that_is_asked(words):
    base = {"model": "mixtral_8x7b", "cluster": "dgx-h100:1", "global_batch": 32, "seq": 4096}
    table = table_of([Strategy(tp=2, dp=4, ep=4, zero=1, sequence_parallel=True)], pp=[1], micro_batch=[1])
    known_parts(pricings_of(asked(**base))[0], table)
    (pricing,) = pricings_of(asked(**(base | words)))
    for other in (pricing, replace(pricing, clock=0.7), replace(pricing, nodes=(0,))):
        known, fresh = known_parts(other, table), price_parts(other, table)
        for field in fields(fresh):
            value = getattr(fresh, field.name)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(known, field.name), value)


def test_shared_prices_cannot_be_written_to():
    request = asked("llama3_8b", cluster="dgx-h100:1", global_batch=32, seq=4096)
    table = table_of([Strategy(dp=8, zero=1)], pp=[1], micro_batch=[1])
    with pytest.raises(ValueError, match="read-only"):
        known_parts(pricings_of(request)[0], table).forward_s[0] = 0.0
