"""Calibration on made-up machines: known factors come back, one bad row does not, and nothing is invented."""

import numpy as np
import pytest
from calibration_runs import Machine, noisy, rows, slower, under, write

from costmodels.profile import UNCHANGED, Profile
from hardware.errors import InputError
from planner.calibrate.calibration import calibrate
from planner.calibrate.fit import fit, left_out_steps
from planner.calibrate.inputs import Inputs
from planner.calibrate.priors import priors
from planner.evidence.nearness import left_out_half_width

pytestmark = pytest.mark.deep


def calibrated(path):
    return calibrate(Inputs(runs=(path,)))


def worst(errors) -> float:
    return max(abs(error) for error in errors)


def test_a_network_half_as_fast_is_found(tmp_path):
    path = write(tmp_path / "runs.csv", rows(slower(scale_out=0.5), 9))
    profile = calibrated(path).profile
    assert profile.factors.scale_out == pytest.approx(0.5, rel=0.05)
    assert profile.factors.matrix == pytest.approx(1.0, abs=0.02)
    assert "scale_out" in profile.learned
    assert worst(under(path, UNCHANGED)) > 0.3
    assert worst(under(path, profile.factors)) < 0.04


def test_five_rows_are_enough_and_the_sixth_is_predicted(tmp_path):
    table = rows(slower(matrix=0.85, scale_out=0.6), 9)
    profile = calibrated(write(tmp_path / "five.csv", table[:5])).profile
    rest = write(tmp_path / "rest.csv", table[5:])
    before, after = under(rest, UNCHANGED), under(rest, profile.factors)
    assert np.median(np.abs(after)) < 0.5 * np.median(np.abs(before))


def test_runs_as_predicted_teach_nothing(tmp_path):
    found = calibrated(write(tmp_path / "runs.csv", noisy(rows(Machine(), 8), 0.04)))
    assert found.profile.factors == UNCHANGED
    assert found.profile.learned == ()
    assert [run.left_out for run in found.profile.runs] == [run.before for run in found.profile.runs]


def test_one_bad_row_is_named_and_does_not_count(tmp_path):
    machine = slower(matrix=0.8)
    bad = Machine(profile=machine.profile, wrong={"run-2": 2.5})
    with_bad = calibrated(write(tmp_path / "bad.csv", rows(bad, 5))).profile
    without = calibrated(
        write(tmp_path / "good.csv", [row for row in rows(machine, 5) if row["id"] != "run-2"])
    ).profile
    assert [run.id for run in with_bad.runs if run.distrusted] == ["run-2"]
    assert with_bad.factors.matrix == pytest.approx(without.factors.matrix, abs=0.03)


def test_one_row_moves_the_profile_no_farther_than_it_says(tmp_path):
    profile = calibrated(write(tmp_path / "runs.csv", rows(slower(matrix=0.5), 1))).profile
    assert 0.5 < profile.factors.matrix < 0.95
    assert len(profile.runs) == 1


def test_peaks_without_times_fit_memory_alone(tmp_path):
    shape = Profile(activations=1.2, memory_offset_bytes=1.5e9)
    profile = calibrated(write(tmp_path / "runs.csv", rows(Machine(profile=shape, times=False, peaks=True), 9))).profile
    assert profile.factors.activations == pytest.approx(1.2, abs=0.05)
    assert profile.factors.memory_offset_bytes > 0.5e9
    assert set(profile.learned) == {"activations", "memory_offset_bytes"}
    assert profile.runs == ()
    assert profile.memory.after < 0.3 * profile.memory.before


def test_the_same_rows_give_the_same_profile(tmp_path):
    path = write(tmp_path / "runs.csv", rows(slower(scale_out=0.7), 4))
    assert calibrated(path) == calibrated(path)


def test_a_calibration_needs_something():
    with pytest.raises(InputError, match="nothing to calibrate with"):
        calibrate(Inputs())


# The fit itself, on straight lines.


def line(slopes, errors):
    return lambda steps: errors + slopes @ steps


def test_a_factor_that_no_row_depends_on_stays():
    slopes = np.array([[0.5, 0.0]] * 6)
    found = fit(line(slopes, np.full(6, -0.4)), 2, np.full(6, 0.05))
    assert found.steps[0] == pytest.approx(0.8, rel=0.1)
    assert found.steps[1] == 0.0
    assert list(found.learned) == [True, False]


def test_of_two_factors_that_rows_cannot_tell_apart_one_moves():
    slopes = np.array([[0.5, 0.45]] * 6)
    found = fit(line(slopes, np.full(6, -0.4)), 2, np.full(6, 0.05))
    assert list(found.learned) == [True, False]
    assert found.steps[1] == 0.0


def test_left_out_factors_are_those_of_the_other_rows():
    slopes = np.ones((4, 1))
    errors = np.array([-0.2, -0.2, -0.2, -0.3])
    found = fit(line(slopes, errors), 1, np.full(4, 0.5))  # all within Huber's bound: plain least squares
    expected = 0.6 / (3.0 + 0.25)
    assert left_out_steps(found, 3)[0] == pytest.approx(expected)


def test_the_half_width_is_conformal():
    assert left_out_half_width([0.1, -0.2, 0.3]) == np.inf  # too few to say
    assert left_out_half_width([0.1, -0.2, 0.3, 0.05]) == 0.3
    assert left_out_half_width([0.001] * 9) == 0.03  # no narrower than repeats of one run


def test_priors_are_as_wide_as_published_constants_differ():
    from costmodels.pricing import Constants  # noqa: PLC0415

    width = {prior.name: prior.width for prior in priors()}
    generations = Constants().efficiency.generations
    memory = np.std(np.log([generation.memory for generation in generations]), ddof=1)
    training = np.std(np.log([generation.training["bf16"] for generation in generations]), ddof=1)
    assert 0.5 < memory / width["memory_rate"] < 2.0
    assert 0.5 < training / width["matrix"] < 2.0
