"""The stage and the command of offline DPO: a policy from pairs alone."""

import dataclasses
import json

import numpy as np
import pytest

from dreamgym import cli
from dreamgym.agent.search.tree_search import Tree
from dreamgym.build.models import load_policy, save_policy
from dreamgym.config.presets import preset
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from dreamgym.rewards.preferences import (
    Preference,
    read_preferences,
    won_over_lost,
    write_preferences,
)
from dreamgym.rl.dpo_config import DPOConfig, PlannedPairsConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import StageView
from dreamgym.stages.policies import dpo
from dreamgym.stages.table import STAGES, is_in_run
from dreamgym.training import preference_training
from dreamgym.training.preference_training import pair_turns
from tests import doubles, helpers
from worldmodel.data.records import read_episodes, write_episodes

SETTINGS = {
    "env.id": "tests.doubles:Corridor",
    "env.max_episode_steps": 6,
    "evaluate.tasks": 4,
}
SMALL = {
    "dpo.updates": 2,
    "dpo.eval_every": 2,
    "dpo.batch_pairs": 4,
    "dpo.row_tokens": 80,
    "dpo.learning_rate": 1e-2,
}
LOST = ["go right", "go left", "go right"]
OPTIONS = [word for k, v in SMALL.items() for word in ("--set", f"{k}={v}")]
NEEDS = [s.name for s in STAGES.closure(["dpo"])][:-1]


def both(split, count):
    """A won and a lost attempt at each of some tasks."""
    return [
        e
        for task in doubles.tasks(split)[:count]
        for e in (
            doubles.expert(task),
            doubles.episode(task, LOST, name=f"lost-{task.id}"),
        )
    ]


def made(tmp_path, **settings):
    """A run that is warm-started, with policies of the doubles."""
    run = Run(tmp_path / "r", preset("tiny", SETTINGS | settings))
    write_episodes(run.path("episodes.jsonl"), both("train", 6))
    write_episodes(run.path("dev.jsonl"), both("dev", 3))
    for seed, name in enumerate(("warmstart", "bc")):
        save_policy(run, name, doubles.policy(seed=seed))
    for name in NEEDS:
        key = STAGES.key(name, run.config)
        run.mark(name, {"deterministic": True, "shield": ""}, key=key)
    return run


def body(run):
    return dpo.body(StageView(run, STAGES["dpo"], STAGES))


def distance(run, one, two):
    a, b = (load_policy(run, name).model.params for name in (one, two))
    return helpers.distance(a, b)


@pytest.mark.medium
def test_collected_pairs_train_a_policy_and_dev_tasks_are_held_out(tmp_path, capsys):
    run = made(tmp_path, **SMALL, **{"dpo.pairs": "collected"})
    numbers = body(run)
    assert (numbers["pairs"], numbers["held_out"]) == (6, 3)
    assert numbers["margin"] > 0.0
    assert numbers["accuracy"] > 0.5
    assert numbers["better_is_shorter"] == pytest.approx(
        sum(len(e.transitions) < 3 for e in both("dev", 3)[::2]) / 3
    )
    assert "left out" not in capsys.readouterr().err
    assert distance(run, "dpo", "warmstart") > 1e-3
    (row,) = map(json.loads, run.path("curves/dpo.jsonl").read_text().splitlines())
    assert row["held_out/margin"] == numbers["margin"]
    assert not list(run.path("checkpoints").glob("*"))
    # From another start the same pairs make another policy.
    other = dataclasses.replace(run.config.dpo, start="bc")
    run.config = dataclasses.replace(run.config, dpo=other)
    assert body(run)["settings"]["start"] == "bc"
    assert distance(run, "dpo", "bc") < distance(run, "dpo", "warmstart")


def test_pairs_that_cannot_be_learnt_from_are_counted(tmp_path, capsys):
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)

    def saying(pair):
        step = dataclasses.replace(pair.worse[0], action="go " * 99)
        return dataclasses.replace(pair, worse=(step, *pair.worse[1:]))

    # One pair of each task that is held out counts: the first one.
    write_preferences(tmp_path / "p.jsonl", [*pairs, *map(saying, pairs)])
    file = {"dpo.pairs": str(tmp_path / "p.jsonl")}
    run = made(tmp_path, **SMALL, **file)
    numbers = body(run)
    assert (numbers["pairs"], numbers["pairs/unwritable_action"]) == (4, 4)
    assert "4 of 8 pairs are left out: 4 unwritable_action" in capsys.readouterr().err
    write_preferences(tmp_path / "p.jsonl", map(saying, pairs))
    with pytest.raises(RunError, match="4 of 4 pairs are left out: 4 unwritable"):
        body(run)


def test_without_pairs_there_is_one_line(tmp_path):
    run = made(tmp_path, **SMALL, **{"dpo.pairs": "collected"})
    write_episodes(run.path("dev.jsonl"), both("dev", 3)[::2])  # nobody lost
    with pytest.raises(RunError, match="6 pairs to fit and 0 tasks held out"):
        body(run)
    run.config = dataclasses.replace(run.config, dpo=preset("tiny").dpo)
    with pytest.raises(RunError, match="no pairs to train from"):
        body(run)


def test_a_run_has_the_policy_where_it_names_pairs():
    plain = preset("tiny")
    pairs = preset("tiny", {"dpo.pairs": "collected"})
    for name in ("dpo", "evaluate/dpo"):
        assert not is_in_run(name, plain)
        assert is_in_run(name, pairs)
    assert STAGES["dpo"].share == ""  # no real step
    others = [n for n in STAGES if n not in ("dpo", "evaluate/dpo")]
    # Nor does it change anything else of a run.
    assert {n: STAGES.key(n, plain) for n in others} == {
        n: STAGES.key(n, pairs) for n in others
    }


def test_the_key_has_what_the_file_says(tmp_path):
    keys = []
    for name, text in (("x", "one"), ("y", "one"), ("y", "two")):
        (tmp_path / name).write_text(text)
        config = preset("tiny", {"dpo.pairs": str(tmp_path / name)})
        keys.append(STAGES.key("dpo", config))
    assert keys[0] == keys[1] != keys[2]


def test_a_new_run_refuses_settings_without_effect(tmp_path):
    with pytest.raises(ValueError, match=r"dpo\.beta has no effect without dpo\.pairs"):
        Run(tmp_path / "r", preset("tiny", {"dpo.beta": 0.3}))


# --- pairs of a tree search --------------------------------------------------

TASK = doubles.task(1, 3, 4)


def searched(*values, past=(), visits=2, task=TASK):
    """A tree whose actions have these values, each visited so often."""
    policy, words = (
        doubles.Scripted(doubles.expert_rule),
        ["go right", "go left", "fly"],
    )
    state, states = task.initial_state, []
    for action in past:
        states.append(state)
        state = doubles.walk(state, action).state
    turns = [doubles.turn(policy, task, past, state, w) for w in words[: len(values)]]
    tree = Tree(Snapshot(task, tuple(past), state, tuple(states)), turns, 1.0)
    for edge, value in zip(tree.root.edges, values, strict=True):
        after = doubles.walk(state, edge.turn.action).state
        edge.arrive(Step(after, {"x": value}, True, False, False))
        for _ in range(visits):
            tree.record([edge])
    return tree


def preferences(trees, *, max_pairs=8, **planned):
    played = doubles.trajectory(TASK, ["go right", "go right", "take coin"])
    config = DPOConfig(
        pairs="planned",
        max_pairs_per_task=max_pairs,
        planned=PlannedPairsConfig(**planned),
    )
    return [
        tuple([t.action for t in side] for side in (p.better, p.worse))
        for p in dpo.search_preferences(trees, [played], config)
    ]


def test_pairs_are_actions_of_one_state_with_the_steps_that_led_there():
    trees = [searched(8.0, 5.9, 6.1), searched(1.0, 4.0, past=("go right",))]
    # The largest value is 8: a margin of a quarter is 2.
    assert preferences(trees) == [
        (["go right", "go left"], ["go right", "go right"]),  # 3 apart
        (["go right"], ["go left"]),  # 2.1 apart
    ]
    assert preferences(trees, max_pairs=1) == preferences(trees, margin=0.375)
    assert preferences(trees, min_visits=3) == []
    assert len(preferences([*trees, searched(8.0, 5.9)])) == 2  # once searched twice
    assert preferences([searched(0.0, 0.0)]) == []
    (pair, _) = dpo.search_preferences(
        trees,
        [doubles.trajectory(TASK, ["go right", "go right", "take coin"])],
        DPOConfig(pairs="planned"),
    )
    assert pair.better[1].state == pair.better[0].next_state == pair.worse[1].state
    assert pair.better[1].next_state == doubles.start_state(1, 3, 4)


class Wrong(doubles.RuleModel):
    """Pays for walking away from the coin: a dream that must teach the opposite."""

    def _one(self, query):
        answer = super()._one(query)
        away = query.action != doubles.plan(query.state)[0]
        return answer._replace(reward=float(away), outcome="go")


PLANNED = {
    "dpo.pairs": "planned",
    "dpo.planned.tasks": 6,
    "dpo.planned.depth": 7,
    "dpo.updates": 10,
    "dpo.eval_every": 10,
    "dpo.learning_rate": 3e-3,
    "dpo.row_tokens": 80,
    "policy.history": 0,
}


def eastern(split):
    """Tasks whose coin lies to the right, which a tiny policy can learn."""
    return [t for t in doubles.tasks(split) if t.options["at"] < t.options["goal"]]


def from_search(tmp_path, monkeypatch, model):
    """Train from a search in a dream.

    Returns its pairs, the numbers, and how far the policy has come to prefer `go right`
    over `go left` in tasks that it did not see.
    """
    run = made(tmp_path, **PLANNED)
    tasks = eastern("train")[::2]
    lost = [doubles.episode(t, LOST, name=f"lost-{t.id}") for t in tasks]
    write_episodes(run.path("episodes.jsonl"), lost)
    save_policy(run, "warmstart", doubles.cloned(doubles.ACTIONS, tasks[:4]))
    monkeypatch.setattr(dpo, "load_experience", lambda *_, **__: model)
    numbers = body(run)
    assert not list(run.path("checkpoints").glob("*"))
    ways = [
        Preference(
            task=t,
            better=doubles.episode(t, ["go right"]).transitions,
            worse=doubles.episode(t, ["go left"]).transitions,
        )
        for t in eastern("dev")
    ]
    start, config = load_policy(run, "warmstart"), run.config.dpo
    turns, _ = pair_turns(start, ways, config)
    trainer = preference_training.PreferenceTrainer(start, turns, config)
    params = load_policy(run, "dpo").model.params
    learnt = trainer.evaluate(trainer.init()._replace(params=params), turns)
    return read_preferences(run.path("dpo_pairs.jsonl")), numbers, learnt


def share_right(pairs):
    """The share of pairs that prefer the way to the coin, whose values are known."""
    steps = [p.better[-1] for p in pairs]
    return np.mean([s.action == doubles.plan(s.state)[0] for s in steps])


@pytest.mark.medium
def test_a_policy_learns_what_a_search_in_the_dream_prefers(tmp_path, monkeypatch):
    pairs, numbers, learnt = from_search(
        tmp_path / "a", monkeypatch, doubles.RuleModel()
    )
    assert 0 < numbers["pairs"] + numbers["held_out"] <= len(pairs)
    assert share_right(pairs) > 0.8
    assert learnt.accuracy > 0.8
    # The control: a dream that pays for the opposite.
    pairs, _, control = from_search(tmp_path / "b", monkeypatch, Wrong())
    assert share_right(pairs) < 0.2
    assert control.accuracy < 0.5


def test_what_an_interrupted_stage_has_searched_is_of_its_models(tmp_path, monkeypatch):
    run, searches = made(tmp_path, **PLANNED), []
    trajectories = [
        doubles.trajectory(t, ["go right", "go right", "take coin"])
        for t in eastern("train")[:6]
    ]

    def search(*_):
        searches.append(run.config.seed)
        return [searched(8.0, 2.0, task=t.episode.task) for t in trajectories], (
            trajectories
        )

    monkeypatch.setattr(dpo, "_search", search)
    folder = run.path("checkpoints/dpo-search")

    def interrupt():
        with monkeypatch.context() as patch:
            patch.setattr(dpo, "train_preferences", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                body(run)
        return len(searches), len(list(folder.glob("*")))

    assert interrupt() == (1, 1)
    assert interrupt() == (1, 1)  # nothing is searched again
    for number, stage in enumerate(("warmstart", "ensemble"), 2):
        run.mark(stage, run.numbers(stage), key=f"another {stage}")
        assert interrupt() == (number, number)
    run.config = dataclasses.replace(run.config, seed=1)
    assert interrupt() == (4, 4)
    body(run)
    assert len(searches) == 4
    assert not folder.exists()
    # Nothing can be learnt of what was searched: another search is needed.
    assert interrupt() == (5, 1)
    monkeypatch.setattr(dpo, "split", lambda pairs, **_: (pairs, []))
    with pytest.raises(RunError, match="0 tasks held out"):
        body(run)
    assert len(searches) == 5
    assert not folder.exists()


# --- the command -------------------------------------------------------------


def command(run, *args):
    return cli.main(["dpo", str(run.root), *map(str, args)])


@pytest.mark.medium
def test_the_command_trains_plays_and_trains_anew(tmp_path, capsys, monkeypatch):
    run = made(tmp_path)
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)
    write_preferences(tmp_path / "p.jsonl", pairs)
    given = ("--pairs", tmp_path / "p.jsonl", *OPTIONS)
    assert command(run, *given) == 0
    output = capsys.readouterr().out
    assert "dpo: fitted to 4 pairs; of 1 tasks held out" in output
    assert f"policy: {run.path('policies/dpo')}" in output
    games = read_episodes(run.path("test/dpo.jsonl"))
    assert len(games) == 4
    marks = {name: run.done(name) for name in ("dpo", "evaluate/dpo")}
    assert "real_transitions" not in marks["dpo"]["numbers"]
    assert marks["evaluate/dpo"]["numbers"]["games"] == 4

    with monkeypatch.context() as patch:  # the same command has nothing to do
        patch.setattr(preference_training.PreferenceTrainer, "update", None)
        assert command(run, *given) == 0
    assert marks == {name: run.done(name) for name in marks}
    # Other pairs: the policy and its games are made anew, and nothing else.
    swapped = [Preference(task=p.task, better=p.worse, worse=p.better) for p in pairs]
    write_preferences(tmp_path / "p.jsonl", swapped)
    before = {name: run.done(name) for name in NEEDS}
    assert command(run, *given) == 0
    assert run.done("dpo")["key"] != marks["dpo"]["key"]
    assert run.done("evaluate/dpo")["key"] != marks["evaluate/dpo"]["key"]
    assert before == {name: run.done(name) for name in NEEDS}
    assert Run.open(run.root).config == run.config  # the run keeps its settings


@pytest.mark.medium
@pytest.mark.parametrize("end", ["no pair is left", "interrupted"])
def test_a_policy_stays_where_another_cannot_be_trained(
    tmp_path, capsys, monkeypatch, end
):
    run = made(tmp_path)
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)
    write_preferences(tmp_path / "p.jsonl", pairs)
    given = ("--pairs", tmp_path / "p.jsonl", *OPTIONS)
    assert command(run, *given) == 0

    def files():
        paths = sorted(p for p in run.root.rglob("*") if "dpo" in p.as_posix())
        kept = (p for p in paths if p.is_file() and p.suffix != ".seconds")
        return {p: p.read_bytes() for p in kept}

    before = files()
    assert len(before) >= 5
    if end == "interrupted":
        given = (*given, "--dpo.beta", "0.3")
        monkeypatch.setattr(preference_training.PreferenceTrainer, "update", _interrupt)
    else:
        long = [
            dataclasses.replace(
                p, worse=(dataclasses.replace(p.worse[0], action="go " * 99),)
            )
            for p in pairs
        ]
        write_preferences(tmp_path / "p.jsonl", long)
    assert command(run, *given) == (130 if end == "interrupted" else 2)
    capsys.readouterr()
    assert files() == before


def _interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "names no pairs to train from: give --pairs FILE, or --pairs collected"),
        (("--pairs", "gone.jsonl"), "gone.jsonl: no such file"),
        (("--pairs", "collected", "--start", "dream"), "start must be one of"),
        (("--pairs", "collected", "--set", "bc.init=base_model"), "group dpo alone"),
        (
            ("--pairs", "collected", "--set", "dpo.held_out_share=0.5"),
            "those of the dev tasks are held out",
        ),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, capsys, args, message):
    run = made(tmp_path)
    assert command(run, *args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert run.done("dpo") is None
