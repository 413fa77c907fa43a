"""A profile over the constants: ones change nothing, factors move what they name, bounds and plans follow."""

from dataclasses import fields, replace

import pytest

from costmodels.pricing import Constants
from costmodels.profile import OF_FRAMEWORK, UNCHANGED, Profile, profiled
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.question import Question, request_of

FACTORS = tuple(field.name for field in fields(Profile))


def priced(profile: Profile, *, cluster: str = "dgx-h100:4", precision: str = "bf16", **layout):
    question = Question(model="llama3_8b", cluster=cluster, global_batch=64, seq=4096, precision=precision)
    request = request_of(question)
    explicit = ExplicitLayout(**({"tp": 8, "pp": 2} | layout))
    return estimate(request, layout_of(request, explicit), profiled(Constants(), profile)).cost


def test_a_profile_of_ones_is_no_profile_to_the_last_bit():
    constants = Constants()
    assert profiled(constants, Profile()) is constants
    # the arithmetic itself, not only the short cut
    almost = replace(Profile(), fp4=1.0 + 1e-15)
    assert priced(almost) == priced(Profile())


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("matrix", 0.8, "gemm"),
        ("attention", 0.8, "attention"),
        ("memory_rate", 0.8, "memory"),
        ("scale_up", 0.5, "tp"),
        ("scale_up_latency", 2.0, "tp"),
        ("scale_out", 0.5, "gradient_reduction"),
        ("scale_out_latency", 4.0, "gradient_reduction"),
        ("host", 40.0, "launch"),
    ],
)
def test_a_factor_makes_longer_what_it_names(name, value, detail):
    before, after = priced(UNCHANGED), priced(replace(UNCHANGED, **{name: value}))
    times = dict(before.step.details), dict(after.step.details)
    assert times[1][detail] > 1.01 * times[0][detail]
    assert after.step.total_s > before.step.total_s
    assert after.heaviest == before.heaviest


def test_a_format_has_a_factor_of_its_own():
    slower = replace(UNCHANGED, fp8=0.5)
    assert priced(slower) == priced(UNCHANGED)
    eight = priced(slower, precision="fp8").step.total_s
    assert eight > 1.1 * priced(UNCHANGED, precision="fp8").step.total_s


@pytest.mark.parametrize(("name", "value"), [("activations", 1.3), ("memory_offset_bytes", 2e9)])
def test_a_factor_of_memory_changes_memory_alone(name, value):
    before, after = priced(UNCHANGED), priced(replace(UNCHANGED, **{name: value}))
    assert after.step == before.step
    assert after.heaviest.total_bytes > before.heaviest.total_bytes + 0.2e9


def test_what_belongs_to_a_framework_stays_with_it():
    every = Profile(**dict.fromkeys(FACTORS, 2.0))
    machine = every.of_machine()
    for name in FACTORS:
        assert getattr(machine, name) == getattr(UNCHANGED if name in OF_FRAMEWORK else every, name)
