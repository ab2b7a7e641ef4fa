"""The learning check: what it says of sound environments, and of broken ones."""

import json
import random

import pytest

from dreamgym import Task, TextEnv
from dreamgym.cli import main
from dreamgym.commands import learning_check
from dreamgym.commands.learning_check import check_learning, find_warnings
from dreamgym.envs.failures import EnvironmentDown
from worldmodel.data.rates import Rate

SOUND = {
    "states": Rate.of(98, 100).json(),
    "rewards": Rate.of(9, 10).json(),
    "ends": Rate.of(9, 10).json(),
    "contradicting": Rate.of(1, 100).json(),
    "games": Rate.of(11, 12).json(),
    "lots": False,
}


class Doors(TextEnv):
    """Three halls with three doors each; to open the right one wins."""

    max_episode_steps = 6
    deterministic = True

    def tasks(self, split):
        rows = [(at, door) for at in range(3) for door in range(9)]
        random.Random(0).shuffle(rows)
        part = {"train": rows[:17], "dev": rows[17:22], "test": rows[22:]}[split]
        return [
            Task(
                id=f"{at}-{door}",
                instruction=self.goal(door),
                split=split,
                options={"at": at, "door": door},
            )
            for at, door in part
        ]

    def goal(self, door):
        return f"open door {door}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.at, self.door = task.options["at"], task.options["door"]
        self.steps, self.running = 0, True
        return self.look("ok"), {}

    def look(self, message):
        return f"hall {self.at}\nsaid {message}"

    def step(self, action):
        if not self.running:
            raise RuntimeError("call reset() first")
        self.steps += 1
        verb, _, what = action.partition(" ")
        moves = verb == "walk" and what in ("0", "1", "2")
        opens = verb == "open" and what.isdigit() and int(what) // 3 == self.at
        won = opens and int(what) == self.door
        if moves:
            self.at = int(what)
        message = "opened" if won else "empty" if opens else "ok" if moves else "no"
        late = not won and self.steps >= self.max_episode_steps
        self.running = not (won or late)
        info = {"success": won, "invalid": not (moves or opens)}
        return self.look(message), float(won), won, late, info

    def expert(self):
        way = [] if self.door // 3 == self.at else [f"walk {self.door // 3}"]
        return [*way, f"open {self.door}"]

    def valid_actions(self):
        doors = range(3 * self.at, 3 * self.at + 3)
        return [f"walk {i}" for i in range(3)] + [f"open {i}" for i in doors]


class Secret(Doors):
    """The same, and the task does not say which door."""

    def goal(self, _):
        return "open the right door"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"states": Rate.of(70, 100).json()}, "does not learn what it was shown"),
        ({"rewards": Rate.of(5, 10).json()}, "the rewards do not follow"),
        ({"ends": Rate.of(5, 10).json()}, "the ends do not follow"),
        ({"contradicting": Rate.of(10, 100).json()}, "the state hides"),
        ({"games": Rate.of(6, 12).json()}, "does not win its task"),
    ],
)
def test_each_fault_has_its_own_warning(change, what):
    assert list(find_warnings(**SOUND)) == []
    (warning,) = find_warnings(**SOUND | change)
    assert what in warning.what
    figure = next(iter(change.values()))
    assert f"{100 * figure['mean']:.0f} % of {figure['count']}" in warning.where


def test_what_was_not_counted_is_no_fault():
    shares = ("states", "rewards", "ends", "contradicting")
    nothing = dict.fromkeys(shares, Rate().json())
    assert not list(find_warnings(**SOUND | nothing))
    (warning,) = find_warnings(**SOUND | {"games": Rate().json()})
    assert "nothing to imitate" in warning.what


def test_lots_that_are_drawn_excuse_the_model_and_the_policy():
    shares = ("states", "rewards", "ends", "contradicting", "games")
    bad = dict.fromkeys(shares, Rate.of(1, 10).json())
    assert list(find_warnings(**SOUND | bad))
    assert not list(find_warnings(**SOUND | bad | {"lots": True}))


def test_a_miss_among_few_is_no_fault():
    few = {"ends": Rate.of(3, 4).json(), "games": Rate.of(4, 5).json()}
    few |= {"contradicting": Rate.of(1, 3).json()}
    assert not list(find_warnings(**SOUND | few))


@pytest.mark.usefixtures("small")
def test_an_environment_that_is_down_keeps_its_report(monkeypatch, capsys):
    def fail(*_):
        raise EnvironmentDown("nobody answers")

    monkeypatch.setattr(learning_check, "check_learning", fail)
    assert main(["check", f"{__name__}:Doors", "--learn"]) == 0
    printed = capsys.readouterr().out
    assert "keeps the contract" in printed
    assert "nothing could be learned: nobody answers" in printed


@pytest.fixture
def small(monkeypatch):
    """Two updates of a small model teach nothing."""
    few = {"pretrain.fit.steps": 2, "bc.fit.steps": 2, "collect.episodes": 8}
    few |= {"pretrain.fit.eval_every": 2, "bc.fit.eval_every": 2, "model": "nano"}
    monkeypatch.setattr(learning_check, "SETTINGS", learning_check.SETTINGS | few)
    monkeypatch.setattr(learning_check, "TRANSITIONS", 8)


@pytest.mark.medium
@pytest.mark.usefixtures("small")
def test_the_command_prints_what_was_learned(capsys):
    assert main(["check", f"{__name__}:Doors", "--learn", "--json"]) == 0
    learned = json.loads(capsys.readouterr().out)["learning"]
    assert learned["states"]["count"] == 8
    assert learned["states"]["mean"] < learning_check.STATES_RIGHT
    assert any("not learn" in w["what"] for w in learned["warnings"])
    assert learned["real_steps"] > learned["games"]["count"] > 0
    assert 0 < learned["tasks"] <= 8


class Hopeless(Doors):
    """Nobody wins, and there is no expert."""

    expert = None

    def step(self, action):
        del action
        text, _, _, late, info = super().step("walk 0")
        return text, 0.0, False, late, info | {"success": False}


@pytest.mark.medium
@pytest.mark.usefixtures("small")
def test_an_environment_that_nobody_wins_has_a_warning(capsys):
    main(["check", f"{__name__}:Hopeless", "--learn"])
    printed = capsys.readouterr().out
    assert "warning: there is nothing to imitate" in printed
    assert "games that the policy wins of those that it imitates: there were" in printed


def test_it_waits_until_the_contract_is_kept(monkeypatch, capsys):
    monkeypatch.setattr(Doors, "tasks", lambda *_: [])
    assert main(["check", f"{__name__}:Doors", "--learn"]) == 1
    assert "--learn: left out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sound_environment_is_learned_by_heart_and_one_without_a_goal_is_not():
    sound = check_learning(f"{__name__}:Doors")
    assert not sound.warnings, sound.text()
    assert sound.states["mean"] > 0.95
    assert sound.games["mean"] > 0.9
    secret = check_learning(f"{__name__}:Secret")
    assert any("does not win its task" in w.what for w in secret.warnings)
