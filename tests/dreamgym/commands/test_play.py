"""`dreamgym play`: a person plays the dream of a run in the terminal."""

import io

import pytest

from dreamgym import cli
from dreamgym.commands import play as play_command
from dreamgym.run.display import make_console
from dreamgym.serving import dream as run_dream
from tests import doubles
from tests.dreamgym.serving.runs import fitted_run
from worldmodel.memory import ReplayMemory


class Thinking(doubles.Known):
    """The rules, with a thought."""

    def predict(self, queries):
        thought = "I \x1b[31mthink"
        return [p._replace(reasoning=thought) for p in super().predict(queries)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:9]]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    monkeypatch.setattr(run_dream, "load_experience", lambda *_, **__: Thinking(memory))
    return fitted_run(tmp_path / "a", **{"env.max_episode_steps": 6})


def played(run, *actions, **more):
    file, typed = io.StringIO(), iter([*actions, None])
    play_command.play(run, make_console(file), lambda: next(typed), **more)
    return file.getvalue()


def test_an_episode_is_shown_step_by_step(run):
    task = doubles.tasks("train")[0]
    plan = doubles.plan(task.initial_state)
    text = played(run, "fly", *plan, "go right", index=0)
    assert "It is no real environment" in text
    assert "take the coin" in text
    for line in task.initial_state:
        assert line in text
    assert "said unknown action" in text
    assert "Confidence: 1.000" in text
    assert "recalled (" in text
    assert "reward 1, return 1: won" in text
    assert text.rstrip().endswith("the episode has ended: :new or :quit")
    assert "\x1b[31m" not in text  # what a model writes never reaches the terminal
    assert "I �[31mthink" in text


def test_the_memory_of_an_episode_is_printed_and_begins_anew(run):
    text = played(run, ":memory", "fly", "go right", ":memory", index=0)
    assert text.count("fly: calls 1, refused 1") == 1
    assert text.count("go: calls 1, refused 0") == 1
    text = played(run, "fly", ":new", ":memory", index=0)
    assert "refused" not in text


def test_an_unknown_command_is_no_action(run):
    text = played(run, ":help", ":memory", index=0)
    assert ":new, :memory or :quit" in text
    assert ":help: calls" not in text


def test_new_plays_the_next_task_and_quit_ends(run):
    text = played(run, ":new", ":quit", "fly", index=0)
    assert "unknown action" not in text
    for task in doubles.tasks("train")[:2]:
        assert task.initial_state[0] in text
    with pytest.raises(ValueError, match="has tasks 0 to 5, got 6"):
        played(run, index=6)
    with pytest.raises(ValueError, match="no tasks of split 'test'"):
        played(run, split="test")


def test_the_command_reads_standard_input(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("fly\n:quit\n"))
    assert cli.main(["play", str(run.root), "--split", "dev", "--seed", "3"]) == 0
    assert "said unknown action" in capsys.readouterr().out
    assert cli.main(["play", str(run.root), "--seed", "-1"]) == 2
    assert "--seed and --index must be >= 0" in capsys.readouterr().err
