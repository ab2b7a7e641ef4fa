"""What dreaming costs: seconds and real steps by hand."""

import pytest

from dreamgym.commands.estimate import estimate_run
from dreamgym.commands.payoff import payoff
from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import preset
from dreamgym.run.cost import Timings

# An update takes 0.1 s, so a dreamed step 1.1 / 16 x 0.1 = 6.875 ms and learning from a
# real one 0.05 x 0.1 = 5 ms.
TIMING = Timings(0.1, 0.001, 480_000, 640, 50_000_000)


def payoff_of(timing=TIMING, **settings):
    config = changed_by(preset("default"), {"env.max_episode_steps": 16} | settings)
    result = estimate_run(config, timing, fine_tune=False)
    return payoff(config, timing, result, None)


def test_what_dream_and_environment_cost_by_hand():
    result = payoff_of(**{"train.max_transitions": 10_000, "fidelity.transitions": 100})
    assert result.steps == 10_000
    assert result.environment == pytest.approx(1000)
    assert result.dream == pytest.approx(1 / 0.006875)
    assert result.real == pytest.approx(1 / 0.006)
    # 1,500 updates, 100 answers of a third of an update, 64 dev games of 16 steps and
    # 50 answers along the policy's own.
    fit = 150 + 3.3 + (1024 + 50) * 0.006875
    assert result.dream_seconds == pytest.approx(fit + 68.75)
    assert result.real_seconds == pytest.approx(60)
    # 10,000 real steps of x seconds take as long where x + 0.005 is a 10,000th of it.
    assert result.break_even == pytest.approx((fit + 68.75) / 10_000 - 0.005)
    speed, seconds, steps, measured = result.lines()
    assert "the environment takes 1,000 steps/s" in speed
    assert "145 steps/s in the dream and 167 in the environment" in speed
    assert "dreaming is slower here: 10,000 steps take" in seconds
    assert "where a real step takes 17.9 ms (here 1 ms)" in seconds
    assert "the dream's policy costs about 9,6" in steps
    assert "to train for 10,000 steps in the environment costs as many more" in steps
    assert (
        "with 10,000 real steps in all, real play had not won as much with 20,000"
        in measured
    )


def test_a_slow_environment_makes_dreaming_faster_and_a_budget_is_said():
    slow = TIMING._replace(step=0.02)
    settings = {"train.max_transitions": 10_000, "fidelity.transitions": 100}
    assert "dreaming is faster here" in payoff_of(slow, **settings).lines()[1]
    frugal = payoff_of(**settings, **{"budget.real_steps": 5040})
    # All of the budget but the part of fine-tuning, a fifth of 5,000.
    assert frugal.dream_real_steps == 5040 - 1000
    assert "with 5,000 real steps in all, real play won 79 %" in frugal.measured
    assert "the dream's policy costs about 4,040" in frugal.lines()[2]
    # What was measured is of the whole budget: 3,700 is nearer to 5,000 than to 2,500.
    between = payoff_of(**settings, **{"budget.real_steps": 3700})
    assert "with 5,000 real steps in all" in between.measured


def test_nothing_is_said_where_there_is_nothing_to_compare():
    assert payoff_of(**{"env.id": "", "data.episodes": "e"}) is None
    assert payoff_of(TIMING._replace(step=0.0)) is None
    assert payoff_of(**{"train.environment": "real"}) is None
