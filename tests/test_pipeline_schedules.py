"""Orders of operations: what the frameworks issue, complete, legal and free of deadlocks."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_specs import specs_of

from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, leaving, operations, order, positions
from hardware.errors import InputError

LETTERS = "FBW"


def spec(name, pp, m, vpp=1, group_size=0):
    return PipelineSpec(schedule=Schedule(name), pp=pp, num_microbatches=m, vpp=vpp, group_size=group_size)


def text(ops, chunks=False):
    """Short form of a stage's order, such as ``F0 B0`` or, with chunks, ``F0.1``."""
    return " ".join(f"{LETTERS[op.kind]}{op.microbatch}" + (f".{op.chunk}" if chunks else "") for op in ops)


def specs():
    return specs_of(st.sampled_from(Schedule), most_pp=5, most_groups=3)


def run_order(spec):
    """Play an order with unlimited speed: each stage runs its next operation as soon as its tensor exists."""
    place = positions(spec.schedule, spec.pp, spec.vpp)
    last = spec.pp * spec.vpp - 1
    todo = [list(ops) for ops in operations(spec)]
    done = set()
    moved = True
    while moved:
        moved = False
        for stage, ops in enumerate(todo):
            while ops:
                kind, chunk, i = ops[0]
                v = int(place[stage, chunk])
                needs = {
                    Kind.FORWARD: (Kind.FORWARD, v - 1, i) if v else None,
                    Kind.BACKWARD: (Kind.BACKWARD, v + 1, i) if v < last else (Kind.FORWARD, v, i),
                    Kind.WEIGHT: (Kind.BACKWARD, v, i),
                }[kind]
                own = kind != Kind.BACKWARD or (Kind.FORWARD, v, i) in done
                if (needs is not None and needs not in done) or not own:
                    break
                done.add((kind, v, i))
                ops.pop(0)
                moved = True
    return done, todo


@given(specs())
@settings(max_examples=150, deadline=None)
def test_every_order_is_complete_and_never_deadlocks(spec):
    done, left = run_order(spec)
    assert not any(left)
    assert len(done) == spec.kinds * spec.pp * spec.vpp * spec.num_microbatches
    for ops in operations(spec):
        assert set(Counter(ops).values()) == {1}


ORDERS = tomllib.loads((Path(__file__).parent / "reference" / "pipeline_orders.toml").read_text())["order"]


def words_of(spec, stage):
    """Calls of a stage in the words of PyTorch, where a split backward that is one call is a whole one."""
    calls, ends = [[]], leaving(spec)[stage]
    for number, op in enumerate(operations(spec)[stage]):
        name = f"{op.chunk}.{op.microbatch}"
        if op.kind is Kind.WEIGHT and f"I{name}" in calls[-1]:
            calls[-1][calls[-1].index(f"I{name}")] = f"B{name}"
        else:
            backward = "I" if spec.schedule.splits_backward else "B"
            calls[-1].append(
                f"{'F' if op.kind is Kind.FORWARD else backward if op.kind is Kind.BACKWARD else 'W'}{name}"
            )
        if ends[number] == number:
            calls.append([])
    return " ".join("+".join(call) for call in calls if call)


@pytest.mark.parametrize("given_order", ORDERS, ids=lambda row: f"{row['schedule']}-{row['pp']}-{row['vpp']}")
def test_orders_are_those_of_pytorch(given_order):
    row = dict(given_order)
    stages = row.pop("stages")
    spec = PipelineSpec(**(row | {"schedule": Schedule(row["schedule"])}))
    assert [words_of(spec, stage) for stage in range(spec.pp)] == stages


def test_sizes_that_the_schedules_of_pytorch_refuse_are_refused():
    for name, pp, m, vpp, allowed in (
        ("dualpipev", 4, 7, 2, "8 or more"),
        ("interleavedzerobubble", 4, 6, 2, "a multiple of 4"),
        ("interleavedzerobubble", 4, 8, 1, "vpp 2 or more"),
        ("loopedbfs", 4, 8, 1, "vpp 2 or more"),
        ("dualpipev", 4, 8, 1, "vpp 2"),
    ):
        with pytest.raises(InputError, match=allowed):
            spec(name, pp, m, vpp)


@given(specs())
@settings(max_examples=60, deadline=None)
def test_positions_cover_the_model_once(spec):
    place = positions(spec.schedule, spec.pp, spec.vpp)
    assert sorted(place.ravel().tolist()) == list(range(spec.pp * spec.vpp))
    assert place[0, 0] == 0


def test_1f1b_by_hand():
    stages = operations(spec("1f1b", 4, 6))
    assert text(stages[0]) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"
    assert text(stages[2]) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"
    assert text(stages[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_1f1b_with_fewer_microbatches_than_warmup():
    assert text(operations(spec("1f1b", 4, 2))[0]) == "F0 F1 B0 B1"


def test_gpipe_by_hand():
    assert {text(ops) for ops in operations(spec("gpipe", 3, 3))} == {"F0 F1 F2 B0 B1 B2"}


def test_interleaved_table_of_megatron():
    """PP 2, VP 2, group 3, 5 micro-batches: the example in Megatron-LM's schedules.py."""
    ops = operations(spec("interleaved", 2, 5, vpp=2, group_size=3))
    for stage in ops:
        forwards = [(op.microbatch, op.chunk) for op in stage if op.kind is Kind.FORWARD]
        assert [i for i, _ in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
        assert [chunk for _, chunk in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
        backwards = [(op.microbatch, 1 - op.chunk) for op in stage if op.kind is Kind.BACKWARD]
        assert backwards == forwards  # backwards take the chunks in opposite order


@pytest.mark.parametrize(("pp", "vpp", "group"), [(4, 2, 0), (4, 3, 6), (8, 4, 8)])
def test_interleaved_warmup_of_megatron(pp, vpp, group):
    m = 4 * (group or pp)
    for stage, ops in enumerate(operations(spec("interleaved", pp, m, vpp=vpp, group_size=group))):
        before = next(i for i, op in enumerate(ops) if op.kind is Kind.BACKWARD)
        assert before == (pp - stage - 1) * 2 + (vpp - 1) * (group or pp) + 1


def test_zero_bubble_orders_by_hand():
    h1 = operations(spec("zb-h1", 3, 4))
    assert text(h1[0]) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert text(h1[2]) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    h2 = operations(spec("zb-2p", 2, 4))
    assert text(h2[0]) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert text(h2[1]) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_zbv_by_hand():
    """Two stages, three micro-batches: warm-up, steady and cool-down rounds of ScheduleZBVZeroBubble."""
    stages = operations(spec("zbv", 2, 3, vpp=2))
    assert text(stages[0], chunks=True) == (
        "F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0.0 W0.0 F2.1 B2.1 W2.1 B1.0 W1.0 B2.0 W2.0"
    )
    assert text(stages[1], chunks=True) == (
        "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 B1.0 B2.1 B2.0 W1.0 W2.1 W2.0"
    )
    assert positions(Schedule.ZBV, 2, 2).tolist() == [[0, 3], [1, 2]]


def test_orders_are_read_only_and_shared():
    table = order(spec("1f1b", 4, 8))
    assert order(spec("1f1b", 4, 8)) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"name": "1f1b", "pp": 0, "m": 4}, "pp 0"),
        ({"name": "1f1b", "pp": 4, "m": 0}, "num_microbatches 0"),
        ({"name": "1f1b", "pp": 4, "m": 4, "vpp": 2}, "vpp 2 with schedule 1f1b"),
        ({"name": "zbv", "pp": 4, "m": 4}, "allowed: vpp 2"),
        ({"name": "1f1b", "pp": 4, "m": 4, "group_size": 4}, "group_size 4"),
        ({"name": "interleaved", "pp": 4, "m": 8}, "vpp 1 with schedule interleaved"),
        ({"name": "interleaved", "pp": 4, "m": 3, "vpp": 2}, "num_microbatches 3"),
        ({"name": "interleaved", "pp": 4, "m": 9, "vpp": 2}, "last group of 1"),
        ({"name": "interleaved", "pp": 4, "m": 12, "vpp": 2, "group_size": 3}, "group_size 3"),
    ],
)
def test_sizes_that_cannot_run_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        spec(**sizes)


def test_interleaved_takes_a_last_group_of_at_least_pp():
    assert spec("interleaved", 4, 14, vpp=2, group_size=5).num_microbatches == 14
