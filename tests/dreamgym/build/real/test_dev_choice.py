"""The choice between a trained policy and its start, by metrics of real dev games."""

import dataclasses

import pytest

from dreamgym.build.real import dev_choice, dev_play
from dreamgym.build.real.dev_choice import compare_on_dev_games, compare_with_start
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.memory import ReplayMemory


def metrics(success):
    """Metrics of 64 dev games, each of which pays as much as it wins."""
    family = {"real_success/coin": success, "real_games/coin": 64.0}
    return {"real_success": success, "real_return": success, **family}


@pytest.mark.parametrize(
    ("after", "standard_errors", "note"),
    [
        (0.56, 0.0, None),
        # 64 games each, pooled 0.53: a standard error is sqrt(0.249 / 32) = 0.0882.
        (
            0.56,
            1.0,
            "56 % won after it, 50 % before, less than one standard error more",
        ),
        (0.62, 1.0, None),
        (0.44, 1.0, "44 % won after it, 50 % before"),
    ],
)
def test_what_must_win_by_a_standard_error_says_so(
    tmp_path, capsys, after, standard_errors, note
):
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        choice = compare_with_start(
            run,
            "dream",
            doubles.policy(),
            {},
            "expert_iteration",
            None,
            lambda: (metrics(0.5), metrics(after)),
            standard_errors=standard_errors,
        )
    assert choice.better == (note is None)
    error = capsys.readouterr().err
    if note is None:
        assert (error, choice.numbers["kept"]) == ("", "dream")
        return
    assert choice.numbers["kept"] == "expert_iteration"
    assert f"the policy is expert_iteration: of the real dev games {note}" in error
    assert ("standard error" in error) == (after > 0.5)


def games(won, count=19):
    tasks = doubles.tasks("train")[:count]
    return [
        doubles.trajectory(
            t, doubles.plan(t.initial_state) if i < won else ["fly"], index=i
        )
        for i, t in enumerate(tasks)
    ]


@pytest.mark.parametrize(("broken", "better"), [(3, True), (15, False)])
def test_what_did_not_break_off_of_most_dreamed_games_decides_nothing(
    tmp_path, monkeypatch, capsys, broken, better
):
    """By hand: all others of 19 are won, and the start won one of two."""
    played = [
        t._replace(error="malformed") if i < broken else t
        for i, t in enumerate(games(19))
    ]
    monkeypatch.setattr(dev_choice, "dreamed_dev_games", lambda *_: played)
    with Run(tmp_path, preset("tiny")) as run:
        choice = compare_with_start(
            run,
            "expert_iteration",
            doubles.policy(),
            {"dreamed": metrics(0.5)},
            "warmstart",
            doubles.Known(ReplayMemory()),
        )
    assert choice.better == better
    note = "100 % won after it, 50 % before, and 15 of 19 dreamed episodes broke off"
    assert (note in capsys.readouterr().err) == (not better)


@pytest.mark.parametrize(
    ("listed", "asked", "played"),
    [
        (1, 16, 0),  # one game would decide
        (3, 16, 0),
        (4, 16, 4),
        (None, 16, 16),  # so many that nobody counted them
        (3, 3, 3),  # as the settings ask for
        (2, 3, 0),
    ],
)
def test_fewer_than_four_dev_tasks_decide_nothing(tmp_path, listed, asked, played):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "train.monitor.real_eval_tasks": asked,
    }
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {} if listed is None else {"dev_tasks": listed})
        assert dev_play.dev_games(run) == played
        assert dev_play.plays_dev_games(run, "bc") == bool(played)
        told = f": the environment lists {listed} dev task"
        assert dev_play.few_dev_tasks(run).startswith(told) == (not played)
        assert bool(dev_play.few_dev_tasks(run)) == (not played)


def test_who_asks_for_no_dev_games_is_told_nothing_of_few_dev_tasks(tmp_path):
    for number, settings in enumerate(
        ({"env.id": ""}, {"train.monitor.real_eval_every": 0})
    ):
        config = preset("tiny", {"env.id": "tests.doubles:Corridor"} | settings)
        with Run(tmp_path / str(number), config) as run:
            run.mark("collect", {"dev_tasks": 1})
            assert dev_play.few_dev_tasks(run) == ""


def test_a_choice_says_that_there_are_few_dev_tasks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dev_choice, "dreamed_dev_games", lambda *_: games(2)[:2])
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        run.mark("collect", {"dev_tasks": 2})
        names = "expert_iteration", doubles.policy(), {"dreamed": metrics(0.0)}, "start"
        choice = compare_with_start(run, *names, doubles.Known(ReplayMemory()))
        assert not choice.better
        few = "no real dev games are played: the environment lists 2 dev tasks, and few"
        assert few in choice.numbers["choice"]
        assert few in capsys.readouterr().err
        # Without a dream nothing is left to choose by.
        assert compare_with_start(run, *names, None).better
        assert f"expert_iteration: its policy is kept, and {few}" in (
            capsys.readouterr().err
        )


def compared(tmp_path, monkeypatch, **settings):
    """What a marker says of two policies whose dev games are set already."""
    monkeypatch.setattr(dev_choice, "plays_dev_games", lambda *_: True)
    return compare_on_dev_games(
        Run(tmp_path, preset("tiny")),
        ("before", doubles.policy()),
        ("after", doubles.policy()),
        start="start",
        what="it",
        **settings,
    )


@pytest.mark.parametrize(
    ("won", "expected", "standard_errors", "kept"),
    [
        (15, True, 0.0, "start"),  # one game fewer
        (15, True, 1.0, "after"),  # which is a standard error, and no more
        (13, True, 1.0, "start"),
        (16, True, 0.0, "after"),
        (16, False, 1.0, "start"),
        (17, False, 1.0, "after"),
    ],
)
def test_a_policy_that_is_expected_to_be_better_may_win_as_many(
    tmp_path, monkeypatch, won, expected, standard_errors, kept
):
    """The first one has won 16 of 19 games."""
    monkeypatch.setattr(
        dev_choice, "paired_dev_games", lambda *_: (games(16), games(won))
    )
    numbers = compared(
        tmp_path, monkeypatch, expected_better=expected, standard_errors=standard_errors
    )
    assert numbers["kept"] == kept
    assert ("note" in numbers) == (kept == "start")


def test_games_that_both_win_tell_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        dev_choice, "paired_dev_games", lambda *_: (games(19), games(19))
    )
    note = compared(tmp_path, monkeypatch)["note"]
    assert note.startswith("whether ")
    assert "helped cannot be told by games that both win" in note


@pytest.mark.parametrize(
    ("earned", "kept"),
    [
        ([0.25, 0.25, 0.5], "start"),
        ([1.0, 0.5, 0.5], "after"),
        ([0.75, 0.5, 0.5], "after"),
    ],
)
def test_where_nobody_wins_more_the_games_returns_are_compared(
    tmp_path, monkeypatch, earned, kept
):
    """The first one earned 0.75, 0.5 and 0.5 in games that it lost."""

    def paid(*returns):
        rows = []
        for t, x in zip(games(0, len(returns)), returns, strict=True):
            first, *others = t.episode.transitions
            steps = (dataclasses.replace(first, rewards={"score": x}), *others)
            e = dataclasses.replace(t.episode, transitions=steps)
            rows.append(t._replace(episode=e))
        return rows

    monkeypatch.setattr(
        dev_choice, "paired_dev_games", lambda *_: (paid(0.75, 0.5, 0.5), paid(*earned))
    )
    numbers = compared(tmp_path, monkeypatch, expected_better=True, standard_errors=0.0)
    assert numbers["kept"] == kept
