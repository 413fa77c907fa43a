"""Times of schedules against two plain simulators, closed forms and published facts."""

import doctest
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_specs import specs_of

from costmodels.pipeline import maxplus, simulate
from costmodels.pipeline.graph import Transfers
from costmodels.pipeline.program import program
from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, leaving, operations, positions
from costmodels.pipeline.simulate import makespan, timeline
from hardware.errors import InputError

OVERLAPPED, BLOCKING = Transfers.OVERLAPPED, Transfers.BLOCKING


def spec(name, pp, m, vpp=1, group_size=0):
    return PipelineSpec(schedule=Schedule(name), pp=pp, num_microbatches=m, vpp=vpp, group_size=group_size)


def specs(max_pp=5, max_groups=4):
    """Any schedule; micro-batches in groups of ``pp`` so that many of them have a steady state."""
    return specs_of(st.sampled_from(Schedule), most_pp=max_pp, most_groups=max_groups)


def random_times(spec, seed, batch=3, high=9):
    """Whole numbers, so that sums are exact; forwards, backwards, weight gradients, transfers."""
    rng = np.random.default_rng(seed)
    shape = (batch, spec.pp, spec.vpp)
    forward, backward, weight = rng.integers(0, high, (3, *shape)).astype(float)
    return forward, backward, weight, rng.integers(0, 4, (batch, spec.pp)).astype(float)


def source_of(kind, v, i, last):
    """Which operation makes the input of another one; None for the first position's forward."""
    if kind is Kind.WEIGHT:
        return (Kind.BACKWARD, v, i)
    if kind is Kind.FORWARD:
        return (Kind.FORWARD, v - 1, i) if v else None
    return (Kind.BACKWARD, v + 1, i) if v < last else (Kind.FORWARD, v, i)


def crossing(spec, v, u, p2p):
    """Time from position ``u`` to ``v``: stages are numbered round and round, or in a V."""
    low = min(v, u)
    if v == u or (spec.schedule.is_v and low == spec.pp - 1):
        return 0.0
    if spec.schedule.is_v and low >= spec.pp:
        return p2p[2 * spec.pp - 2 - low]
    return p2p[low % spec.pp]


def calls_of(spec):
    """Operations of each stage in the calls whose tensors leave together, by the number of a call's last operation."""
    calls = [{} for _ in range(spec.pp)]
    for stage, (ops, ends) in enumerate(zip(operations(spec), leaving(spec).tolist(), strict=True)):
        for op, end in zip(ops, ends, strict=True):
            calls[stage].setdefault(end, []).append(op)
    return calls


def play(spec, forward, backward, weight, p2p):
    """Event by event, in plain Python: start and end of every operation of one candidate with overlapped transfers."""
    place = positions(spec.schedule, spec.pp, spec.vpp).tolist()
    last = spec.pp * spec.vpp - 1
    cost = {Kind.FORWARD: forward, Kind.BACKWARD: backward, Kind.WEIGHT: weight}
    order, calls = operations(spec), calls_of(spec)
    done, free, end, start, left = [0] * spec.pp, [0.0] * spec.pp, {}, {}, {}
    while any(number < len(ops) for number, ops in zip(done, order, strict=True)):
        before = sum(done)
        for stage, ops in enumerate(order):
            for kind, chunk, i in ops[done[stage] :]:
                v = place[stage][chunk]
                source = source_of(kind, v, i, last)
                inside = source is not None and source[1] in place[stage]
                sent = end if inside else left
                if source is not None and source not in sent:
                    break
                ready = 0.0 if source is None else sent[source] + crossing(spec, v, source[1], p2p)
                start[kind, v, i] = max(free[stage], ready)
                free[stage] = end[kind, v, i] = start[kind, v, i] + cost[kind][stage, chunk]
                for own, there, batch in calls[stage].get(done[stage], ()):  # a call ends here
                    left[own, place[stage][there], batch] = free[stage]
                done[stage] += 1
        assert sum(done) > before, "deadlock"
    return start, end


def megatron_calls(stage, pp, m):
    """Calls of Megatron-LM's 1F1B without interleaving on one stage: computations, and groups of transfers."""
    warmup = min(pp - stage - 1, m)
    up = [] if stage == 0 else [stage - 1]
    down = [] if stage == pp - 1 else [stage]
    calls = []
    for i in range(warmup):
        calls += [[("F", b, i) for b in up], ("forward", i), [("F", b, i) for b in down]]
    if m > warmup:
        calls.append([("F", b, warmup) for b in up])
    for k in range(m - warmup):
        i = k + warmup
        calls += [("forward", i), [("F", b, i) for b in down] + [("B", b, k) for b in down], ("backward", k)]
        calls.append([("B", b, k) for b in up] + ([("F", b, i + 1) for b in up] if i + 1 < m else []))
    for k in range(m - warmup, m):
        calls += [[("B", b, k) for b in down], ("backward", k), [("B", b, k) for b in up]]
    return [call for call in calls if call]


def play_blocking(pp, m, forward, backward, p2p):
    """Rendezvous of the calls above: a transfer starts when both sides posted it, both wait until it is over."""
    calls = [megatron_calls(stage, pp, m) for stage in range(pp)]
    now, posted, over = [0.0] * pp, {}, {}
    while any(calls):
        moved = False
        for stage, todo in enumerate(calls):
            while todo:
                call = todo[0]
                if isinstance(call, tuple):
                    now[stage] += (forward if call[0] == "forward" else backward)[stage]
                else:
                    for tensor in call:
                        posted.setdefault(tensor, {}).setdefault(stage, now[stage])
                        if len(posted[tensor]) == 2:
                            over[tensor] = max(posted[tensor].values()) + p2p[tensor[1]]
                    if not all(tensor in over for tensor in call):
                        break
                    now[stage] = max([now[stage], *(over[tensor] for tensor in call)])
                todo.pop(0)
                moved = True
        assert moved, "deadlock"
    return now


@given(specs(), st.integers(0, 2**32 - 1))
@settings(max_examples=120, deadline=None)
def test_timeline_is_that_of_a_plain_simulator(spec, seed):
    forward, backward, weight, p2p = random_times(spec, seed)
    result = timeline(spec, forward, backward, p2p, weight, OVERLAPPED)
    if not spec.schedule.splits_backward:
        backward, weight = backward + weight, 0 * weight
    place = positions(spec.schedule, spec.pp, spec.vpp)
    v = place[result.stage, result.chunk].tolist()
    for candidate in range(len(forward)):
        start, end = play(spec, forward[candidate], backward[candidate], weight[candidate], p2p[candidate])
        keys = [(Kind(k), at, i) for k, at, i in zip(result.kind.tolist(), v, result.microbatch.tolist(), strict=True)]
        assert result.start_s[candidate].tolist() == [start[key] for key in keys]
        assert result.end_s[candidate].tolist() == [end[key] for key in keys]


@given(specs(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=150, deadline=None)
def test_makespan_summarises_the_timeline(spec, seed, blocking):
    transfers = BLOCKING if blocking and spec.schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) else OVERLAPPED
    times = random_times(spec, seed)
    line = timeline(spec, times[0], times[1], times[3], times[2], transfers)
    result = makespan(spec, times[0], times[1], times[3], times[2], transfers)
    assert result.makespan_s.tolist() == line.end_s.max(axis=1).tolist()
    for stage in range(spec.pp):
        on = line.stage == stage
        assert result.start_s[:, stage].tolist() == line.start_s[:, on].min(axis=1).tolist()
        assert result.finish_s[:, stage].tolist() == line.end_s[:, on].max(axis=1).tolist()
        assert result.busy_s[:, stage].tolist() == (line.end_s - line.start_s)[:, on].sum(axis=1).tolist()
    assert (result.bubble_s >= 0.0).all()
    assert (result.span_s <= result.makespan_s).all()


@given(st.integers(1, 6), st.integers(1, 24), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_blocking_1f1b_is_that_of_megatron_calls(pp, m, seed):
    sizes = spec("1f1b", pp, m)
    forward, backward, _, p2p = random_times(sizes, seed)
    line = timeline(sizes, forward, backward, p2p, transfers=BLOCKING)
    result = makespan(sizes, forward, backward, p2p)  # blocking is 1F1B's default
    for c in range(len(forward)):
        waits = play_blocking(pp, m, forward[c, :, 0], backward[c, :, 0], p2p[c])
        last_send = np.array([0.0, *p2p[c][:-1]])  # after its last backward a stage still sends the gradient
        assert (result.finish_s[c] + last_send <= np.array(waits)).all()
        assert result.makespan_s[c] == max(waits)
        assert result.finish_s[c].tolist() == [line.end_s[c, line.stage == s].max() for s in range(pp)]


MANY = [
    ("1f1b", 1, 1, 0),
    ("1f1b", 3, 1, 0),
    ("1f1b", 6, 1, 0),
    ("interleaved", 3, 2, 0),
    ("interleaved", 2, 3, 5),
    ("zb-h1", 4, 1, 0),
    ("zb-2p", 4, 1, 0),
    ("zbv", 3, 2, 0),
    ("gpipe", 4, 1, 0),
]


@pytest.mark.parametrize(("name", "pp", "vpp", "group"), MANY)
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_many_microbatches_are_extrapolated_exactly(name, pp, vpp, group, extra):
    """Equal, nearly equal and unequal stages; whole numbers, so every shift and sum is exact."""
    step = group or pp if name == "interleaved" else 1
    sizes = spec(name, pp, 90 // step * step + extra * step, vpp, group)
    rng = np.random.default_rng(extra)
    shape = (40, pp, vpp)
    forward = np.concatenate([np.full(shape, 60.0), rng.integers(58, 62, shape), rng.integers(1, 99, shape)])
    backward, weight = 2.0 * forward, 1.0 * forward
    backward[::3] = rng.integers(1, 200, backward[::3].shape)
    p2p = rng.integers(0, 30, (len(forward), pp)) * rng.integers(0, 2, (len(forward), 1))
    for transfers in [OVERLAPPED] + [BLOCKING] * (name == "1f1b"):
        line = timeline(sizes, forward, backward, p2p, weight, transfers)
        result = makespan(sizes, forward, backward, p2p, weight, transfers)
        assert result.makespan_s.tolist() == line.end_s.max(axis=1).tolist()
        last = [line.end_s[:, line.stage == stage].max(axis=1) for stage in range(pp)]
        assert result.finish_s.tolist() == np.transpose(last).tolist()


@pytest.mark.parametrize(("name", "pp", "vpp", "group"), MANY[:-1])
def test_cost_does_not_grow_with_microbatches(name, pp, vpp, group):
    step = group or pp
    few, _ = program(spec(name, pp, 50 * step, vpp, group), OVERLAPPED)
    many, copies = program(spec(name, pp, 500_000 * step, vpp, group), OVERLAPPED)
    assert many is few
    assert copies > 400_000
    forward = np.random.default_rng(1).uniform(0.9, 1.1, (4, pp, vpp))
    forward[:, 0] *= 2.0  # one clear bottleneck: the steady rate is that of stage 0
    sizes = [spec(name, pp, n * step, vpp, group) for n in (1000, 2000, 500_000)]
    first, second, far = (makespan(s, forward, forward, 0.01, forward).makespan_s for s in sizes)
    assert far == pytest.approx(first + (second - first) * 499.0, rel=1e-12)


@pytest.mark.parametrize("way", ["steps", "powers", "windows"])
@pytest.mark.parametrize(("name", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved", 3, 2), ("zbv", 3, 2)])
def test_every_way_through_the_steady_state_agrees(monkeypatch, name, pp, vpp, way):
    """Block by block, by powers of the block's matrix, and with a look for a period after every few blocks."""
    sizes = spec(name, pp, 40 * pp, vpp)
    rng = np.random.default_rng(5)
    forward = rng.integers(40, 60, (30, pp, vpp)).astype(float)
    expected = timeline(sizes, forward, 2 * forward, 7.0, forward, OVERLAPPED).end_s.max(axis=1)
    monkeypatch.setattr(simulate, "_squaring_pays", lambda *_: way == "powers")
    if way != "windows":
        monkeypatch.setattr(simulate, "SHIFT_RTOL", -1.0)  # no period is ever found
    assert makespan(sizes, forward, 2 * forward, 7.0, forward, OVERLAPPED).makespan_s.tolist() == expected.tolist()


@given(st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_maxplus_powers_are_repeated_products(size, times, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 9, (size, size, 2)).astype(float)
    matrix[rng.random(matrix.shape) < 0.3] = -np.inf
    state = rng.integers(0, 9, (size, 2)).astype(float)
    expected = state
    for _ in range(times):
        rows = [[max(matrix[i, j, b] + expected[j, b] for j in range(size)) for b in range(2)] for i in range(size)]
        expected = np.array(rows)
    assert np.array_equal(maxplus.repeat(matrix, state, times), expected)


@pytest.mark.parametrize("pp", [1, 2, 5, 8, 12])
def test_every_schedule_but_gpipe_has_a_steady_block(pp):
    sizes = [spec(name, pp, 12 * pp + 20, 2 if name == "zbv" else 1) for name in ("1f1b", "zb-h1", "zb-2p", "zbv")]
    if pp > 1:
        sizes += [spec("interleaved", pp, 7 * g + r, 3, g) for g in (pp, pp + 1, 2 * pp) for r in (0, *range(pp, g))]
    assert all(program(size, OVERLAPPED)[1] > 1 for size in sizes)
    assert program(sizes[0], BLOCKING)[1] > 1


def test_random_times_are_extrapolated_to_rounding():
    rng = np.random.default_rng(7)
    sizes = spec("1f1b", 8, 600)
    forward = rng.uniform(0.8, 1.2, (50, 8))
    backward = forward * rng.uniform(1.9, 2.1, (50, 8))
    line = timeline(sizes, forward, backward, 0.05, transfers=OVERLAPPED)
    result = makespan(sizes, forward, backward, 0.05, transfers=OVERLAPPED)
    assert result.makespan_s == pytest.approx(line.end_s.max(axis=1), rel=1e-12)


def test_batches_larger_than_one_pass_are_joined_in_order():
    sizes = spec("1f1b", 2, 4)
    forward = np.arange(1.0, 2501.0)[:, None]
    assert makespan(sizes, forward, forward).makespan_s == pytest.approx(10.0 * forward[:, 0])


def test_shapes_broadcast():
    sizes = spec("interleaved", 2, 4, vpp=2)
    full = np.broadcast_to(np.array([[[1.0], [2.0]]]), (3, 2, 2))
    expected = makespan(sizes, full, full, np.full((3, 2), 0.5)).makespan_s
    assert expected.shape == (3,)
    assert makespan(sizes, [1.0, 2.0], [1.0, 2.0], 0.5).makespan_s.tolist() == expected[:1].tolist()
    assert makespan(sizes, [[1.0, 2.0]], full, [0.5, 0.5]).makespan_s.tolist() == expected.tolist()


def test_wrong_times_are_refused():
    sizes = spec("1f1b", 4, 8)
    with pytest.raises(ValueError, match="do not fit"):
        makespan(sizes, np.ones((2, 3)), 1.0)
    with pytest.raises(ValueError, match="not negative"):
        makespan(sizes, -1.0, 1.0)
    with pytest.raises(ValueError, match="finite"):
        makespan(sizes, np.nan, 1.0)
    with pytest.raises(ValueError, match="weight_grad_s is needed"):
        makespan(spec("zb-h1", 4, 8), 1.0, 1.0)
    with pytest.raises(InputError, match="blocking transfers with schedule zbv"):
        makespan(spec("zbv", 4, 8, vpp=2), 1.0, 1.0, 0.1, 1.0, BLOCKING)


def test_interleaving_gains_over_ten_percent_at_small_batch_and_less_as_it_grows():
    """Narayanan et al., arXiv 2104.04473: "improves throughput by 10+ %", and the gap closes with the batch size.

    As there: 12 stages, two chunks per stage, micro-batches of one sequence. A transfer takes 5 % of a stage's forward.
    """
    gains = []
    for m in (12, 24, 36, 48, 60):
        plain = makespan(spec("1f1b", 12, m), 1.0, 2.0, 0.05).makespan_s[0]
        chunked = makespan(spec("interleaved", 12, m, vpp=2), 0.5, 1.0, 0.05).makespan_s[0]
        gains.append(plain / chunked - 1.0)
    assert gains[0] > 0.10
    assert all(earlier > later > 0.0 for earlier, later in itertools.pairwise(gains))


def test_zero_bubble_cuts_the_bubble_as_published():
    """Qi et al., arXiv 2401.10241: with T_F = T_B = T_W, ZB-H1 has a third of 1F1B's bubble and ZB-H2 none."""
    pp, m = 8, 32
    plain = makespan(spec("1f1b", pp, m), 1.0, 2.0, transfers=OVERLAPPED)
    h1, h2 = (makespan(spec(name, pp, m), 1.0, 1.0, 0.0, 1.0) for name in ("zb-h1", "zb-2p"))
    v = makespan(spec("zbv", pp, m, vpp=2), 0.5, 0.5, 0.0, 0.5)
    work = 3.0 * m
    assert h1.span_s[0] - work == pytest.approx((plain.span_s[0] - work) / 3.0)
    assert h2.span_s[0] == pytest.approx(work)
    assert v.span_s[0] == pytest.approx(work)


@pytest.mark.parametrize("slow", range(4))
def test_one_slow_stage_sets_the_rate(slow):
    forward = np.ones(4)
    forward[slow] = 1.3
    few, many = (makespan(spec("1f1b", 4, m), forward, 2 * forward).makespan_s[0] for m in (50, 150))
    assert (many - few) / 100.0 == pytest.approx(3.9)


def test_documentation_runs():
    page = Path(__file__).parent.parent / "docs" / "pipeline.md"
    assert doctest.testfile(str(page), module_relative=False) == (0, 8)


def test_times_scale():
    sizes = spec("interleaved", 3, 9, vpp=2)
    forward, backward, _, p2p = random_times(sizes, 3)
    once = makespan(sizes, forward, backward, p2p)
    twice = makespan(sizes, 2 * forward, 2 * backward, 2 * p2p)
    assert twice.makespan_s.tolist() == (2 * once.makespan_s).tolist()
