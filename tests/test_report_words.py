"""Numbers and names as text prints them."""

from dataclasses import replace

import plan_samples as samples
import pytest

from costmodels.layout import FULL_RECOMPUTE, Strategy, StrategyRun
from hardware.nouns import count
from planner.layouts.explicit import parse_layers
from planner.layouts.splits import runs_of
from planner.report.words import (
    digits,
    grids_text,
    interval,
    islands_text,
    large,
    layers_text,
    layers_words,
    layout_text,
    listed,
    percent,
    recompute_text,
    seconds,
    stage_layers_text,
    strategy_text,
    uniform,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3456, "12.35 s"),
        (9.625, "9.625 s"),
        (0.25, "0.250 s"),
        (0.0123456, "12.35 ms"),
        (3e-5, "30.00 us"),
        (123456.0, "123,456 s"),
        (0.0, "0 us"),
        (-2.7e-15, "0 us"),  # what a difference of equal sums leaves
        (-2.0, "-2.000 s"),
    ],
)
def test_seconds_keep_four_digits_and_name_their_unit(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("low_s", "high_s", "text"),
    [(14.21, 17.93, "14.21 to 17.93 s"), (0.0014, 0.00181, "1.400 to 1.810 ms"), (0.09, 0.12, "0.0900 to 0.120 s")],
)
def test_both_ends_of_an_interval_are_in_one_unit(low_s, high_s, text):
    assert interval(low_s, high_s) == text


def test_islands_are_listed_in_the_order_of_the_stages():
    layout = samples.layouts()[0].layout
    first, *others = layout.stages
    assert islands_text(layout) == "0"
    moved = replace(layout, stages=(first, *(replace(stage, island=1) for stage in others)))
    assert islands_text(moved) == "0,1"


@pytest.mark.parametrize(("value", "text"), [(70.55e9, "70.55G"), (999.0, "999.0"), (1.5e15, "1.500P")])
def test_large_numbers_get_a_prefix(value, text):
    assert large(value) == text


def test_small_words():
    assert percent(0.12345) == "12.3 %"
    assert count(1, "GPU") == "1 GPU"
    assert count(2000, "GPU") == "2,000 GPUs"
    assert count(3, "batch", "batches") == "3 batches"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a"]) == "a"
    assert digits(0.5) == "0.500"
    assert digits(0.0015312) == "0.00153"
    assert digits(0.0279) == "0.0279"


@pytest.mark.parametrize(
    "split",
    [((10,),) * 8, ((21,), (21,), (19,), (19,)), ((9,), (10,), (10,), (10,), (9,)), ((5, 5),) * 8, ((3, 2), (2, 2))],
)
def test_layers_are_written_as_they_are_read(split):
    layout = samples.layout(Strategy(), split)
    assert parse_layers(layers_text(layout)) == split


def test_layer_texts():
    even = samples.layout(Strategy(), ((5, 5),) * 8)
    assert layers_text(even) == "5/5x8"
    assert stage_layers_text(even) == "10x8"
    assert layers_words(even) == "10x8, in 2 chunks of 5"
    assert layers_words(samples.layout(Strategy(), ((21,), (19,)))) == "21,19"
    assert layers_words(samples.layout(Strategy(), ((10, 11), (10, 9)))) == "21,19, in 2 chunks of 9 to 11"
    assert runs_of([1, 1, 2, 2, 2]) == "1,1,2x3"


def test_layout_text_names_what_is_not_usual():
    assert layout_text(samples.layout(Strategy(tp=4, dp=2, zero=1), ((40,), (40,)))) == "TP4 PP2 DP2"
    sharded = samples.layout(Strategy(tp=2, cp=2, dp=4, ep=8, etp=2, zero=3), ((80,),))
    assert layout_text(sharded) == "TP2 PP1 CP2 DP4 EP8 ETP2 ZeRO3"
    assert layout_text(samples.layout(Strategy(zero=0), ((80,),))) == "TP1 PP1 DP1"


def test_layout_text_marks_layers_that_differ():
    base = samples.layout(Strategy(tp=4, dp=2, zero=1), ((40,), (40,)))
    other = StrategyRun(strategy=Strategy(tp=2, dp=4, zero=1), count=40)
    mixed = replace(base, stages=(base.stages[0], replace(base.stages[1], strategies=(other,))))
    assert not uniform(mixed)
    assert layout_text(mixed).endswith(" *")


def test_strategy_text():
    assert strategy_text(Strategy(tp=2, dp=16, zero=2, recompute=FULL_RECOMPUTE)) == "TP2 DP16 ZeRO2, recompute full"
    assert strategy_text(Strategy()) == "TP1 DP1"


def test_recompute_text_counts_layers():
    base = samples.layout(Strategy(), ((40,), (40,)))
    assert recompute_text(base) == "none"
    runs = (
        StrategyRun(strategy=Strategy(recompute=FULL_RECOMPUTE), count=12),
        StrategyRun(strategy=Strategy(), count=28),
    )
    partly = replace(base, stages=(replace(base.stages[0], strategies=runs), base.stages[1]))
    assert recompute_text(partly) == "full 12/80"
    assert uniform(partly)


def test_both_grids_stand_side_by_side_with_experts():
    layout = samples.layout(Strategy(tp=2, cp=1, dp=16, ep=8, etp=1), ((80,),))
    assert grids_text(layout) == "attention tp 2 x cp 1 x dp 16, experts etp 1 x ep 8 x edp 4"
    assert grids_text(samples.layout(Strategy(tp=2, dp=4), ((80,),))) == "tp 2 x cp 1 x dp 4"
