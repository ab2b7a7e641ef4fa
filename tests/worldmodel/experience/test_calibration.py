import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from tests import helpers
from worldmodel.data.outcomes import outcome_of
from worldmodel.experience.base import Prediction
from worldmodel.experience.calibration import (
    PROBABILITIES,
    Calibration,
    Platt,
    calibration,
    platt,
)


def test_a_platt_scaling_by_hand():
    assert Platt()(0.25) == pytest.approx(0.25)
    assert Platt(2.0, 0.0)(0.25) == pytest.approx(1 / (1 + 9))  # odds 1:3 -> 1:9
    assert Platt(1.0, math.log(3))(0.25) == pytest.approx(0.5)
    assert math.isnan(Platt()(math.nan))
    assert 0 < Platt()(0.0) < 1e-5
    assert 1 - 1e-5 < Platt()(1.0) < 1


def test_without_cases_a_chance_stays_as_it_is():
    none = np.zeros(0)
    assert platt(none, none.astype(bool)) == Platt(1.0, 0.0)


@pytest.mark.parametrize(("slope", "offset"), [(0.4, -0.5), (1.0, 0.0), (2.5, 1.0)])
def test_the_scaling_that_made_the_cases_is_found(slope, offset):
    rng = np.random.default_rng(0)
    probabilities = rng.uniform(0.01, 0.99, 20_000)
    real = np.array([Platt(slope, offset)(p) for p in probabilities])
    result = platt(probabilities, rng.uniform(size=len(probabilities)) < real)
    assert result.slope == pytest.approx(slope, rel=0.05)
    assert result.offset == pytest.approx(offset, abs=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_platt_is_the_penalised_optimum(seed):
    rng = np.random.default_rng(seed)
    probabilities = rng.uniform(0, 1, 12) ** rng.uniform(0.2, 4)
    true = rng.uniform(size=12) < 0.7

    def loss(w):
        inside = np.clip(probabilities, 1e-6, 1 - 1e-6)
        z = w[0] * np.log(inside / (1 - inside)) + w[1]
        far = (w[0] - 1) ** 2 + w[1] ** 2
        return np.logaddexp(0, np.where(true, -z, z)).sum() + 0.35 * far

    best = minimize(loss, [1.0, 0.0], method="BFGS").x
    result = platt(probabilities, true, strength=0.7)
    if best[0] > 1e-3:
        np.testing.assert_allclose(result, best, atol=1e-4)
    else:  # the order is kept, and the offset fits it
        assert result.slope == 1e-3
        least = minimize(lambda o: loss([1e-3, o[0]]), [0.0], method="BFGS").x
        assert result.offset == pytest.approx(least[0], abs=1e-4)


def answer(t, *, confidence=0.9, wrong=False, **chances):
    state = ("fog",) if wrong else t.next_state
    return Prediction(
        state,
        t.reward,
        outcome_of(t),
        "",
        confidence,
        None,
        **({"p_reward": 0.5, "p_terminal": 0.5} | chances),
    )


def test_each_chance_is_scaled_by_its_own_truth():
    paid = helpers.transition(reward=1.0)
    over = helpers.transition(terminated=True)
    plain = helpers.transition()
    real = [paid, over, plain, plain] * 100
    # Three of four answers are wrong; half as many earn or end as was said.
    answers = [answer(t, wrong=i % 4 != 0) for i, t in enumerate(real)]
    result = calibration(answers, real)
    messages = result(answers[0])
    assert messages.confidence == pytest.approx(0.25, abs=0.02)
    assert messages.p_reward == pytest.approx(0.25, abs=0.02)
    assert messages.p_terminal == pytest.approx(0.25, abs=0.02)
    assert messages[:4] == answers[0][:4]
    assert Calibration.parsed(json.loads(json.dumps(result.json()))) == result


def test_what_a_backend_cannot_tell_stays_unknown():
    t = helpers.transition()
    unknown = dict.fromkeys(PROBABILITIES.values(), math.nan)
    result = calibration([answer(t, **unknown)] * 9, [t] * 9)
    assert result == Calibration()
    assert all(
        math.isnan(getattr(result(answer(t, **unknown)), n))
        for n in PROBABILITIES.values()
    )


def test_rates_of_a_stratified_draw_are_not_learnt():
    """Ends were drawn ten times as often as they occur: the weights say so."""
    end, plain = helpers.transition(terminated=True), helpers.transition()
    real = [end] * 100 + [plain] * 100
    answers = [answer(t, p_terminal=0.1) for t in real]
    weights = [1.0] * 100 + [10.0] * 100
    drawn = calibration(answers, real)(answers[0]).p_terminal
    weighted = calibration(answers, real, weights)(answers[0]).p_terminal
    assert drawn == pytest.approx(0.5, abs=0.02)
    assert weighted == pytest.approx(1 / 11, abs=0.01)
