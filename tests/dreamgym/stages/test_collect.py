"""The stage that collects real episodes: actors, splits, what cannot be played."""

import collections
import contextlib
import dataclasses
import math
import re
import shutil

import numpy as np
import pytest

from dreamgym.agent import behavior
from dreamgym.agent.behavior import SOURCES
from dreamgym.agent.config import CollectConfig
from dreamgym.build import episodes as run_episodes
from dreamgym.build.real.step_limit import step_limit, step_limit_from_episodes
from dreamgym.commands.quickstart import quickstart
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import StageView
from dreamgym.stages import collect
from dreamgym.stages.table import STAGES
from tests import doubles, helpers
from tests.ledger import Ledger
from worldmodel.data.records import Task, read_episodes, write_episodes


def test_dev_games_are_played_by_each_actor_as_often_as_by_another(tmp_path):
    # Few demonstrations to learn from, but enough to see where imitation is best.
    shares = CollectConfig(
        train_tasks=9,
        episodes=40,
        dev_tasks=20,
        expert_weight=0.01,
        noisy_weight=0.01,
        random_weight=1.0,
    )
    run = Run(
        tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"}, collect=shares)
    )
    collect.body(run)
    train, dev = (read_episodes(run.path(n)) for n in ("episodes.jsonl", "dev.jsonl"))
    sources = collections.Counter(e.source for e in train)
    assert sources["random"] > 35
    counts = collections.Counter(e.source for e in dev)
    assert set(counts) == set(SOURCES)
    assert min(counts.values()) >= 5
    assert not {e.task.id for e in train} & {e.task.id for e in dev}


def test_an_expert_without_weight_plays_no_dev_game_either(tmp_path):
    alone = CollectConfig(
        train_tasks=9,
        episodes=20,
        dev_tasks=10,
        expert_weight=0.0,
        noisy_weight=0.0,
        random_weight=1.0,
    )
    run = Run(
        tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"}, collect=alone)
    )
    collect.body(run)
    for name in ("episodes.jsonl", "dev.jsonl"):
        assert {e.source for e in read_episodes(run.path(name))} == {"random"}


class Proposes(doubles.Corridor):
    """A corridor that lists only one of its actions."""

    def valid_actions(self):
        return ["go left"]


@pytest.mark.parametrize(
    ("environment", "share"), [(doubles.Corridor, 1.0), (Proposes, 0.0)]
)
def test_it_is_counted_whether_the_list_holds_what_the_expert_needs(
    tmp_path, monkeypatch, environment, share
):
    _, numbers = collected(tmp_path, monkeypatch, environment)
    assert numbers["listed_actions_of"] >= 10
    assert numbers["listed_actions"] == pytest.approx(share, abs=0.2)


class Unlisted(doubles.Corridor):
    """A corridor that lists no actions."""

    valid_actions = None


def test_an_environment_without_a_list_has_no_count_of_listed_actions(
    tmp_path, monkeypatch
):
    _, numbers = collected(tmp_path, monkeypatch, Unlisted)
    assert numbers["listed_actions_of"] is None


@pytest.mark.parametrize("count", [0, 3])
def test_lists_of_actions_are_recorded_for_policies_that_read_them(tmp_path, count):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "policy.admissible_actions": count,
        "collect.episodes": 4,
        "collect.dev_tasks": 2,
    }
    run = Run(tmp_path, preset("tiny", settings))
    collect.body(StageView(run, STAGES["collect"], STAGES))
    for name in ("episodes.jsonl", "dev.jsonl"):
        steps = [t for e in read_episodes(run.path(name)) for t in e.transitions]
        expected = tuple(doubles.ACTIONS) if count else ()
        assert {t.valid_actions for t in steps} == {expected}


@pytest.mark.parametrize("split", ["train", "dev"])
def test_an_environment_without_a_game_of_a_split_is_said_before_any_is_played(
    tmp_path, monkeypatch, split
):
    class Missing(doubles.Corridor):
        def tasks(self, split_):
            return [] if split_ == split else super().tasks(split_)

        def reset(self, *, seed=None, options=None):
            raise AssertionError(f"{options} is not to be played (seed {seed})")

    monkeypatch.setattr(doubles, "Missing", Missing, raising=False)
    run = Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Missing"}))
    message = f"doubles:Missing.* at least 1 task of split '{split}', got none"
    with pytest.raises(RunError, match=message):
        collect.body(run)
    assert not run.path("episodes.jsonl").exists()


@pytest.mark.parametrize("split", ["train", "dev"])
def test_games_that_all_break_at_once_are_said(tmp_path, monkeypatch, capsys, split):
    class Breaking(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            if options["task"].split == split:
                raise OSError("no answer")
            return super().reset(seed=seed, options=options)

    monkeypatch.setattr(doubles, "Breaking", Breaking, raising=False)
    shares = CollectConfig(train_tasks=2, episodes=3, dev_tasks=2)
    run = Run(
        tmp_path, preset("tiny", {"env.id": "tests.doubles:Breaking"}, collect=shares)
    )
    with pytest.raises(RunError, match=f"a step of at least 1 {split} game, got none"):
        collect.body(run)
    assert "OSError: no answer" in capsys.readouterr().err


@pytest.mark.parametrize("breaks", [True, False])
def test_a_collection_that_mostly_broke_says_so(tmp_path, monkeypatch, capsys, breaks):
    class Breaking(doubles.Corridor):
        def step(self, action):
            if self.steps and breaks:
                raise OSError("no answer")
            return super().step(action)

    collected(tmp_path, monkeypatch, Breaking)
    err = capsys.readouterr().err
    said = re.search(r"(\d+) of (\d+) episodes broke, mostly by OSError", err)
    assert bool(said) == breaks
    if said is not None:
        assert int(said[1]) > 0.1 * int(said[2])
        assert "dreamgym check --env tests.doubles:Played --tasks 30` may find" in err


def test_episodes_that_cannot_be_written_count_as_broken(tmp_path, monkeypatch, capsys):
    class Huge(doubles.Corridor):
        def step(self, action):
            obs, _, *ends, info = super().step(action)
            # The sum of two is infinite.
            return obs, 1e308, *ends, info | {"rewards": {"coin": 1e308}}

    run, numbers = collected(tmp_path, monkeypatch, Huge)
    err = capsys.readouterr().err
    kept = read_episodes(run.path("episodes.jsonl"))
    left = numbers["episodes"] + numbers["dev_episodes"]
    assert {len(e.transitions) for e in kept} == {1}
    assert numbers["episodes"] == len(kept)
    assert numbers["broken/unwritable"] == 28 - left > 14
    assert f"{28 - left} of 28 episodes broke, mostly by what a file cannot hold" in err
    assert len(re.findall("is left out: ", err)) == 6  # the first 3 of each file


def collected(tmp_path, monkeypatch, cls, limit=0):
    changes = {"env.max_episode_steps": limit}
    monkeypatch.setattr(doubles, "Played", cls, raising=False)
    shares = CollectConfig(train_tasks=9, episodes=20, dev_tasks=4, expert_weight=1.0)
    run = Run(
        tmp_path,
        preset("tiny", {"env.id": "tests.doubles:Played", **changes}, collect=shares),
    )
    return run, collect.body(run)


def test_the_step_limit_is_decided_once_and_read_by_later_stages(tmp_path, monkeypatch):
    run, numbers = collected(tmp_path / "a", monkeypatch, doubles.Corridor)
    assert numbers["max_episode_steps"] == 13
    assert "longest expert's plan, 7 actions" in numbers["max_episode_steps_reason"]
    run.stage("collect", lambda: numbers)
    assert step_limit(run) == 13
    run, numbers = collected(tmp_path / "b", monkeypatch, doubles.Corridor, limit=2)
    assert (numbers["max_episode_steps"], step_limit(run)) == (2, 2)
    longest = max(len(e.transitions) for e in read_episodes(run.path("episodes.jsonl")))
    assert longest == 2


def test_recorded_episodes_decide_it_where_there_is_no_environment():
    config = preset("tiny", {"env.id": ""})
    won = doubles.expert(max(doubles.tasks("train"), key=lambda t: t.options["goal"]))
    steps = len(won.transitions)
    lost = dataclasses.replace(won, transitions=won.transitions * 9, success=False)
    limit = step_limit_from_episodes(config, [won, lost])
    assert limit.steps == max(math.ceil(1.75 * steps), steps + 4)
    assert step_limit_from_episodes(config, [lost]).steps == 9 * steps
    three = preset("tiny", {"env.id": "", "env.max_episode_steps": 3})
    assert step_limit_from_episodes(three, [lost])[0] == 3


def test_nothing_to_imitate_says_how_the_episodes_ended(tmp_path, monkeypatch):
    class Unlucky(doubles.Corridor):
        """A third of its episodes break, a third fall, a third walk on."""

        def expert(self):
            number = self.begin[1].split()[1]
            return {"0": ["break"], "1": ["go left"] * 9}.get(number, ["wait"] * 50)

        def step(self, action):
            if action == "break":
                raise OSError("no answer")
            return super().step(action)

        def tasks(self, split):
            tasks = super().tasks(split)
            return [t for t in tasks if t.options["goal"] < 3 and not t.options["at"]]

    run, numbers = collected(tmp_path, monkeypatch, Unlucky, limit=3)
    assert numbers["truncated"] > 0
    text = run_episodes.nothing_to_imitate(read_episodes(run.path("episodes.jsonl")))
    assert re.search(
        r"among the collected \d+, of which \d+ were an expert's: \d+ were cut at the "
        r"step limit \(at most 3 steps\), \d+ ended without success, \d+ broke",
        text,
    )


def test_tasks_are_held_out_whole():
    tasks = list(doubles.tasks("train")[:10])
    results = behavior.collect(
        doubles.Corridor(), tasks, 40, CollectConfig(), seed=0, max_steps=8
    )
    train, held = run_episodes.split_by_task(results, share=0.2)
    ids = [{e.task.id for e in part} for part in (train, held)]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == 2
    assert len(train) + len(held) == 40
    assert {e.task.split for e in held} == {"dev"}
    assert {e.task.split for e in train} == {"train"}
    two = [e for e in results if e.task in (results[0].task, results[1].task)]
    train, held = run_episodes.split_by_task(two, share=0.1)
    assert train
    assert held
    with pytest.raises(RunError, match=r"at least 2 tasks .* got 1"):
        run_episodes.split_by_task([results[0]], share=0.1)


def recorded(number, outcome, family="f"):
    """Return an episode of a task of its own with one step."""
    task = Task(id=f"t{number}", instruction="go", family=family, initial_state=("a",))
    step = helpers.transition(("a",), "go", (f"b{number}",))
    return dataclasses.replace(
        helpers.episode(f"e{number}", task, [step]), success=outcome
    )


@pytest.mark.parametrize(
    ("won", "lost", "unscored", "held_out"),
    [
        (11, 6, 0, (2, 1, 0)),  # a tenth would be one task
        (3, 37, 0, (1, 3, 0)),  # a share of the wins would be none
        (2, 38, 0, (0, 4, 0)),  # the few wins are learned from
        (300, 95, 5, (30, 9, 1)),
        (0, 0, 40, (0, 0, 4)),
        (1, 1, 0, (0, 1, 0)),
        (2, 0, 0, (1, 0, 0)),
        (4, 0, 0, (1, 0, 0)),
    ],
)
def test_outcomes_are_held_out_in_proportion(won, lost, unscored, held_out):
    outcomes = [True] * won + [False] * lost + [None] * unscored
    episodes = [recorded(i, outcome) for i, outcome in enumerate(outcomes)]
    train, dev = run_episodes.split_by_task(episodes, share=0.1)
    counts = collections.Counter(e.success for e in dev)
    assert (counts[True], counts[False], counts[None]) == held_out
    assert len(train) + len(dev) == len(episodes)
    assert run_episodes.split_by_task(episodes, share=0.1) == (train, dev)


def test_families_are_held_out_in_proportion():
    # Neither sorted by family nor in equal turns.
    families = ["a", "b", "b", "a", "c"] * 8
    episodes = [recorded(i, True, family=f) for i, f in enumerate(families)]
    _, dev = run_episodes.split_by_task(episodes, share=0.1)
    assert collections.Counter(e.task.family for e in dev) == {"a": 1, "b": 2, "c": 1}


def replays(count, *, results, past=()):
    """Return plays of one task, which end with the same step and these results."""
    task = Task(id="t", instruction="go", initial_state=("a",))
    before = [helpers.transition(("a",), action, ("a",)) for action in past]
    return [
        helpers.episode(
            f"e{i}",
            task,
            [*before, helpers.transition(("a",), "go", (results[i % len(results)],))],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("episodes", "deterministic"),
    [
        (replays(60, results=["b"]), True),
        (replays(20, results=["b"]), None),  # little was repeated
        (replays(20, results=["b", "c"]), False),
        (replays(2, results=["b", "c"]), None),  # one contradiction may be a slip
        # What differs after other actions may be hidden: no lots, and no proof.
        (replays(40, results=["b"]) + replays(9, results=["c"], past="x"), None),
        (replays(30, results=["b"]) + replays(30, results=["b"], past="x"), True),
        ([], None),
    ],
)
def test_recordings_show_whether_an_environment_draws_lots(episodes, deterministic):
    assert run_episodes.recorded_determinism(episodes) is deterministic


@pytest.mark.parametrize("results", [["b"], ["b", "c"]])
def test_the_numbers_say_what_recordings_show_of_lots(tmp_path, results):
    path = tmp_path / "e.jsonl"
    write_episodes(path, [*replays(60, results=results), recorded(99, True)])
    settings = {"env.id": "", "data.episodes": str(path)}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is (len(results) == 1)


def test_a_refit_of_recordings_asks_the_new_ones_as_well(tmp_path):
    old_path, new_path = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write_episodes(old_path, [*replays(60, results=["b"]), recorded(99, True)])
    write_episodes(new_path, replays(9, results=["c"]))
    settings = {"env.id": "", "data.episodes": str(old_path)}
    with Run(tmp_path / "old", preset("tiny", settings)) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is True
    settings |= {
        "data.base_run": str(tmp_path / "old"),
        "data.episodes": str(new_path),
    }
    with Run(tmp_path / "new", preset("tiny", settings)) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is False


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_numbers_say_whether_the_environment_draws_lots(
    tmp_path, monkeypatch, deterministic
):
    monkeypatch.setattr(doubles.Corridor, "deterministic", deterministic)
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is deterministic


@pytest.mark.parametrize(
    ("declared", "slips", "deterministic"),
    [(True, True, False), (None, True, False), (None, False, True)],
)
def test_collected_steps_show_lots_that_an_environment_does_not_know_of(
    tmp_path, monkeypatch, capsys, declared, slips, deterministic
):
    """The floor is slippery half of the time, or never."""
    lots = np.random.default_rng(0)
    step = doubles.Corridor.step

    def slippery_step(self, action):
        return step(self, "wait" if slips and lots.random() < 0.5 else action)

    monkeypatch.setattr(doubles.Corridor, "deterministic", declared)
    monkeypatch.setattr(doubles.Corridor, "step", slippery_step)
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is deterministic
    warning = "counts as an environment that draws lots"
    assert (warning in capsys.readouterr().err) == bool(declared)


def test_recordings_beside_an_environment_say_what_it_lists(tmp_path, capsys):
    path = tmp_path / "e.jsonl"
    write_episodes(path, [doubles.expert(t) for t in doubles.tasks("train")[:9]])
    settings = {"env.id": "tests.doubles:Corridor", "data.episodes": str(path)}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["listed_actions_of"] == 0  # there is a list; nothing judges it
    assert numbers["listed_actions"] is None
    assert numbers["deterministic"] is True
    assert "form" not in capsys.readouterr().err


PROSE = "You are in a corridor. Looking around, you see a coin."


def test_recordings_of_another_form_than_the_environment_are_warned_of(
    tmp_path, capsys
):
    path = tmp_path / "e.jsonl"
    write_episodes(path, [of_prose(doubles.expert(t)) for t in doubles.tasks("train")])
    settings = {"env.id": "tests.doubles:Corridor", "data.episodes": str(path)}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.stage("collect", lambda: collect.body(run))
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "form" in x]
    assert "tests.doubles:Corridor: hardly a line of the first states of 3 ta" in line
    assert "You are in a corridor." in line


def of_prose(episode):
    return dataclasses.replace(
        episode,
        task=dataclasses.replace(episode.task, initial_state=(PROSE,)),
        transitions=tuple(
            dataclasses.replace(t, state=(PROSE,), next_state=(PROSE,))
            for t in episode.transitions
        ),
    )


# --- with a budget -----------------------------------------------------------


def budgeted(tmp_path, limit, **settings):
    """Collect with a budget in one stage; return the run and its numbers."""
    settings = {"env.id": "tests.ledger:Ledger", "budget.real_steps": 840} | settings
    with Run(tmp_path, preset("tiny", settings)) as run:
        body = lambda: collect.body(run)  # noqa: E731
        return run, run.stage("collect", body, limit=limit)["numbers"]


def test_collection_takes_its_part_of_a_budget(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    run, numbers = budgeted(tmp_path, 440)
    assert Ledger.taken == numbers["real_transitions"] <= 440
    # 12 % of it are for dev episodes: 52 steps pay for four tasks of at most 13 steps,
    # or for two episodes each of a few more, as long as the train episodes are.
    assert numbers["transitions"] == 388
    assert 0 < numbers["dev_transitions"] <= 52
    train = read_episodes(run.path("episodes.jsonl"))
    length = 388 / len(train)
    tasks = {e.task.id for e in read_episodes(run.path("dev.jsonl"))}
    assert len(tasks) <= max(4, math.ceil(52 / (2 * length)))
    experts = [e for e in train if e.source == "expert"]
    # `tiny` has one expert in ten; 50 of so few episodes would be most of them, and
    # 40 % of them are the most.
    assert 0.3 < len(experts) / len(train) < 0.5
    assert numbers["episodes"] > 30  # its setting is 60, which is not used


def test_a_collection_that_broke_whole_begins_anew(tmp_path, monkeypatch):
    """Once the environment is mended, the same command collects."""
    Ledger.taken = Ledger.stop_at = 0

    def fail(*_):
        raise OSError("no server")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "step", fail)
        with pytest.raises(RunError, match="got none"):
            budgeted(tmp_path, None)
    run, numbers = budgeted(tmp_path, None)
    assert numbers["episodes"] > 20
    assert not any(name.startswith("broken/") for name in numbers)
    assert len(read_episodes(run.path("episodes.jsonl"))) == numbers["episodes"]


@pytest.mark.parametrize("stop_at", [300, 425])  # among the train and dev episodes
def test_an_interrupted_collection_goes_on_where_it_was(tmp_path, capsys, stop_at):
    Ledger.taken = Ledger.stop_at = 0
    whole, _ = budgeted(tmp_path / "whole", 440)
    Ledger.taken, Ledger.stop_at = 0, stop_at
    with contextlib.suppress(KeyboardInterrupt):
        budgeted(tmp_path / "interrupted", 440)
    assert Ledger.taken == stop_at
    run, numbers = budgeted(tmp_path / "interrupted", 440)
    assert "goes on after" in capsys.readouterr().err
    assert Ledger.taken == numbers["real_transitions"] <= 440
    collected = numbers["transitions"] + numbers["dev_transitions"]
    assert Ledger.taken - 13 < collected <= Ledger.taken  # one episode was lost at most
    assert not run.path("checkpoints/collect").exists()
    # The episodes are those of a collection that nobody interrupted, but the last one,
    # which the budget cuts elsewhere.
    for name in ("episodes.jsonl", "dev.jsonl"):
        *these, _ = read_episodes(run.path(name))
        assert these == read_episodes(whole.path(name))[: len(these)]
        assert len(these) > 3


def test_an_interrupted_collection_without_a_budget_ends_as_another(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    settings = preset("tiny", {"env.id": "tests.ledger:Ledger"})
    files = ("episodes.jsonl", "dev.jsonl")
    runs = [Run(tmp_path / name, settings) for name in ("whole", "interrupted")]
    numbers = [runs[0].stage("collect", lambda: collect.body(runs[0]))["numbers"]]
    taken = Ledger.taken
    for Ledger.stop_at in (taken + 100, taken + 300):
        with pytest.raises(KeyboardInterrupt):
            runs[1].stage("collect", lambda: collect.body(runs[1]))
    Ledger.stop_at = 0
    numbers.append(runs[1].stage("collect", lambda: collect.body(runs[1]))["numbers"])
    for name in files:
        assert runs[0].path(name).read_bytes() == runs[1].path(name).read_bytes()
    lost = numbers[1].pop("real_transitions") - numbers[0].pop("real_transitions")
    assert 0 < lost < 26
    assert numbers[0] == numbers[1]


def test_a_budget_that_interrupted_attempts_spent_is_said(tmp_path):
    Ledger.taken = 0
    for Ledger.stop_at in (300, 424, 436):
        with contextlib.suppress(KeyboardInterrupt):
            budgeted(tmp_path, 440)
        assert Ledger.taken == Ledger.stop_at
        shutil.rmtree(tmp_path / "checkpoints")  # as of an older version
    with pytest.raises(RunError, match="436 real steps of collection were taken by"):
        budgeted(tmp_path, 440)
    assert Ledger.taken == 436
    Ledger.stop_at = 0


def test_a_budget_that_is_too_small_names_the_smallest(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    # 13 steps an episode: 14 / (0.55 x 0.12) + 40 = 252.1.
    with pytest.raises(RunError, match="--budget 252: expected at least 253 real step"):
        budgeted(tmp_path, 100, **{"budget.real_steps": 252})
    assert Ledger.taken == 0
    _, numbers = budgeted(tmp_path / "more", 117, **{"budget.real_steps": 253})
    assert numbers["dev_episodes"] >= 1


@pytest.mark.parametrize("empty", [True, False])
def test_recordings_of_which_nothing_can_be_dreamed_are_said_at_once(
    tmp_path, capsys, empty
):
    path = tmp_path / "e.jsonl"
    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:12]]
    if empty:  # as a chat whose first message has no text
        episodes = [
            dataclasses.replace(
                e,
                task=dataclasses.replace(e.task, initial_state=()),
                transitions=(
                    dataclasses.replace(e.transitions[0], state=()),
                    *e.transitions[1:],
                ),
            )
            for e in episodes
        ]
    write_episodes(path, episodes)
    config = preset("tiny", {"env.id": "", "data.episodes": str(path)})
    with Run(tmp_path / "run", config) as run:
        collect.body(run)
    said = "all episodes begin with an empty state" in capsys.readouterr().err
    assert said == empty


def test_given_episodes_count(tmp_path):
    path = tmp_path / "e.jsonl"
    expert = [doubles.expert(t) for t in doubles.tasks("train")[:30]]
    write_episodes(path, expert)
    steps = sum(len(e.transitions) for e in expert)
    settings = {"data.episodes": str(path)}
    least = steps + 40
    message = f"hold {steps} real transitions, which count: expected at least {least}"
    with pytest.raises(RunError, match=message):
        budgeted(tmp_path / "a", 9, **settings, **{"budget.real_steps": least - 1})
    _, numbers = budgeted(tmp_path / "b", 9, **settings, **{"budget.real_steps": least})
    assert numbers["real_transitions"] == steps


def test_an_episode_that_cannot_be_read_back_does_not_cost_the_others(tmp_path, capsys):
    sound = doubles.expert(doubles.tasks("train")[0])
    half = dataclasses.replace(sound.transitions[0], valid_actions=("open \ud800",))
    odd = dataclasses.replace(sound, id="odd", transitions=(half,))
    path = tmp_path / "episodes.jsonl"
    assert collect._write_readable(path, [odd, sound]) == [sound]
    assert read_episodes(path) == [sound]
    error = capsys.readouterr().err
    assert "'odd' is left out" in error
    assert "surrogates not allowed" in error
    with pytest.raises(RunError, match="none of 1 episodes could be written"):
        collect._write_readable(path, [odd])


def test_a_shield_that_there_is_not_costs_no_real_step(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    settings = {"env.id": "tests.ledger:Ledger", "policy.shield": "nothing:here"}
    with pytest.raises(ValueError, match="'nothing:here'"):
        quickstart(tmp_path, preset("tiny", settings))
    assert Ledger.taken == 0
    assert not list(tmp_path.iterdir())
