"""The division of a budget of real steps, by hand."""

import pytest

from dreamgym.config import budget
from dreamgym.config.budget import BudgetConfig
from dreamgym.config.presets import preset

# 40 of 1,040 steps are set aside for the estimate: the shares are of 1,000.
SHARES = BudgetConfig(
    real_steps=1040,
    collect=0.5,
    dev=0.2,
    score=0.05,
    branch=0.1,
    select=0.2,
    evaluations=4,
)


def test_the_parts_are_shares_of_what_the_estimate_leaves():
    assert budget.division(SHARES) == {
        "collect": 500,
        "score": 50,
        "branch": 100,
        "select": 200,
        "train": 0,
        "fine_tune": 150,
    }


def test_what_collection_took_decides_about_the_rest():
    # 1,000 - 200 = 800 remain. Their shares are those of the other half: 0.05 / 0.5 of
    # them is 80, and a share of the whole would be 50.
    parts = budget.division(SHARES, 200)
    assert parts["collect"] == 500
    rest = {k: n for k, n in parts.items() if k != "collect"}
    assert rest == {
        "score": 80,
        "branch": 160,
        "select": 320,
        "train": 0,
        "fine_tune": 240,
    }
    assert not any(
        n for k, n in budget.division(SHARES, 5000).items() if k != "collect"
    )


def test_a_budget_of_which_no_float_is_a_share_is_refused():
    parts = budget.division(BudgetConfig(real_steps=10**15))
    assert parts["collect"] == 55 * 10**13 - 22
    with pytest.raises(ValueError, match=r"at most 1,000,000,000,000,000 .*, got 1000"):
        BudgetConfig(real_steps=10**400)


@pytest.mark.parametrize("steps", [41, 300, 1037, 99_999])
def test_the_parts_are_the_budget(steps):
    shares = BudgetConfig(real_steps=steps)
    for real_training in (False, True):
        parts = budget.division(shares, real_training=real_training)
        assert sum(parts.values()) == steps - budget.ESTIMATE_STEPS
        assert min(parts.values()) >= 0
    assert parts["train"] > 0
    assert parts["fine_tune"] == 0


def test_a_dev_game_is_planned_a_quarter_longer_than_the_collected_ones():
    assert budget.dev_game_steps(6.0, 11) == 7.5
    assert budget.dev_game_steps(10.0, 11) == 11  # no episode is longer


def test_dev_games_are_what_the_share_of_selection_pays_for():
    # 200 steps for 4 evaluations: 50 each, five games of 10 steps, six of 7.5.
    assert budget.dev_games(SHARES, 500, 10, 64) == 5
    assert budget.dev_games(SHARES, 500, 7.5, 64) == 6
    assert budget.dev_games(SHARES, 500, 2, 16) == 16  # the settings ask for no more
    # 50 steps pay for three games of 16: that few decide nothing.
    assert budget.dev_games(SHARES, 500, 16, 64) == 0
    assert budget.dev_games(SHARES, 500, 16, 3) == 3  # as the settings ask for
    assert budget.dev_games(SHARES, 500, 16, 0) == 0
    # The environment has fewer than are asked for, or too few to decide anything.
    assert budget.dev_games(SHARES, 500, 2, 16, listed=5) == 5
    assert budget.dev_games(SHARES, 500, 2, 16, listed=3) == 0


def test_the_minimum_pays_for_episodes_of_full_length_and_dev_episodes_up_to_50():
    for max_steps, needed in ((1, 1), (13, 13), (50, 50), (60, 50), (200, 50)):
        least = budget.minimum(SHARES, max_steps)
        for steps, enough in ((least, True), (least - 20, False)):
            shares = BudgetConfig(real_steps=steps, collect=0.5, dev=0.2)
            collected = budget.division(shares)["collect"]
            dev = int(collected * shares.dev)
            assert (dev >= needed and collected - dev >= max_steps) == enough


def test_the_minimum_of_long_episodes_is_that_of_a_train_episode():
    # Of 0.5 * 0.8 of the budget each, 501 steps, and the estimate's 40.
    assert budget.minimum(SHARES, 500) == 1293


def test_dev_tasks_go_by_the_length_of_episodes_and_not_by_the_limit_alone():
    # 327 steps: 33 episodes of 10 steps, two of each task.
    assert budget.dev_tasks(327, 10.0, 500, 40) == 17
    assert budget.dev_tasks(327, 9.3, 16, 40) == 20  # one of 16 steps each
    assert budget.dev_tasks(327, 10.0, 500, 5) == 5  # the environment has no more
    assert budget.dev_tasks(3, 500.0, 500, 40) == 1


def test_the_weight_of_the_expert_is_raised_where_demonstrations_would_be_few():
    c = BudgetConfig(demonstrations=50)
    # 500 episodes: a tenth are to be an expert's. w / (w + 0.9) = 0.1.
    assert budget.expert_weight(c, 0.05, 0.9, 500) == pytest.approx(0.1)
    assert budget.expert_weight(c, 0.3, 0.9, 500) == 0.3  # it is high enough
    # 100 episodes: half of them would be an expert's, and 40 % are the most.
    assert budget.expert_weight(c, 0.05, 0.6, 100) == pytest.approx(0.4)
    none = BudgetConfig(demonstrations=0)
    assert budget.expert_weight(none, 0.05, 0.9, 100) == 0.05
    assert budget.expert_weight(c, 0.0, 0.9, 500) == 0.0  # it leaves the expert out


def test_the_division_is_text():
    text = "\n".join(budget.lines(SHARES, 10, 64))
    assert "1,040 real steps, test tasks are free" in text
    assert "500 train, dev episodes" in text
    assert "200 selection of policies (at least 5 dev tasks an evaluation)" in text
    assert "150 fine-tuning" in text
    given = "\n".join(budget.lines(SHARES, 10, 64, collected=200, real_training=True))
    assert "200 given episodes" in given
    assert "240 training in the real environment" in given
    assert "fine-tuning" not in given


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"real_steps": -1}, "real_steps and demonstrations must be >= 0"),
        ({"evaluations": 0}, "evaluations >= 1"),
        ({"collect": 1.0}, r"collect and dev must be in \(0, 1\)"),
        ({"select": -0.1}, "must be >= 0 and at most 1 in all"),
        ({"branch": 0.5}, "must be >= 0 and at most 1 in all"),
    ],
)
def test_shares_that_cannot_be_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BudgetConfig(**values)


def test_a_budget_needs_an_environment():
    with pytest.raises(ValueError, match="give --env as well, or no --budget"):
        preset("tiny", {"budget.real_steps": 500, "env.id": ""})
