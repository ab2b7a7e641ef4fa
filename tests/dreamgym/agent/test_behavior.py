"""Behavior policies: who plays, what they try, what is recorded."""

import collections
import dataclasses

import numpy as np
import pytest

from dreamgym.agent import behavior
from dreamgym.agent.config import CollectConfig
from dreamgym.envs.base import TextEnv
from tests import doubles
from tests.ledger import Ledger
from worldmodel.data.rates import Rate
from worldmodel.data.records import Task, read_episodes, write_episodes

TASKS = list(doubles.tasks("train")[:10])


def collected(env=None, episodes=60, tasks=TASKS, *, seed=0, max_steps=8, **settings):
    return behavior.collect(
        doubles.Corridor() if env is None else env,
        tasks,
        episodes,
        CollectConfig(**settings),
        seed=seed,
        max_steps=max_steps,
    )


def test_episodes_are_what_the_environment_answers(tmp_path):
    results = collected()
    assert [e.task.id for e in results] == [t.id for t in TASKS] * 6
    for e in results:
        again = doubles.episode(e.task, [t.action for t in e.transitions])
        assert [t.next_state for t in e.transitions] == [
            t.next_state for t in again.transitions
        ]
        assert e.episode_return == again.episode_return
        last = e.transitions[-1]
        assert last.terminated or last.truncated
        assert not any(t.terminated or t.truncated for t in e.transitions[:-1])
        assert e.success is last.success
    write_episodes(tmp_path / "e.jsonl", results)
    assert read_episodes(tmp_path / "e.jsonl") == results


def test_a_collection_goes_on_after_what_an_earlier_one_played():
    def collect(**arguments):
        listed, failures = Rate(), collections.Counter()
        results = behavior.collect(
            doubles.Corridor(),
            TASKS,
            40,
            CollectConfig(),
            seed=0,
            max_steps=8,
            valid_actions=True,
            listed=listed,
            failures=failures,
            **arguments,
        )
        return results, listed, failures

    played = []
    whole = collect(record=played.append)
    assert len(played) == 40
    for count in (1, 17, 40):
        later = []
        assert collect(earlier=played[:count], record=later.append) == whole
        assert later == played[count:]


def test_lists_of_valid_actions_are_recorded_where_they_are_asked_for(tmp_path):
    plain = collected(episodes=3)
    assert all(t.valid_actions == () for e in plain for t in e.transitions)
    lists = behavior.collect(
        doubles.Corridor(),
        TASKS,
        3,
        CollectConfig(),
        seed=0,
        max_steps=8,
        valid_actions=True,
    )
    steps = [t for e in lists for t in e.transitions]
    assert all(t.valid_actions == tuple(doubles.ACTIONS) for t in steps)
    # The same episodes otherwise: asking for a list draws nothing.
    bare = [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(t, valid_actions=()) for t in e.transitions
            ),
        )
        for e in lists
    ]
    assert bare == plain
    for name, episodes in (("plain", plain), ("lists", lists)):
        path = tmp_path / f"{name}.jsonl"
        write_episodes(path, episodes)
        assert read_episodes(path) == episodes
        assert ("valid_actions" in path.read_text()) == (name == "lists")


def test_sources_are_drawn_by_their_weights():
    results = collected(
        episodes=300, expert_weight=0.6, noisy_weight=0.1, random_weight=0.3
    )
    counts = collections.Counter(e.source for e in results)
    assert abs(counts["expert"] - 180) < 45
    assert abs(counts["random"] - 90) < 45
    assert all(e.success for e in results if e.source == "expert")
    lost = [e for e in results if e.source == "random" and not e.success]
    assert lost
    noisy = collected(
        episodes=40,
        expert_weight=0.0,
        noisy_weight=1.0,
        random_weight=0.0,
        expert_noise=0.0,
    )
    assert all(e.success for e in noisy)


def test_random_actors_take_valid_foreign_and_mangled_actions():
    def invalid(**settings):
        results = collected(
            episodes=200,
            expert_weight=0.0,
            noisy_weight=0.0,
            random_weight=1.0,
            max_steps=12,
            **settings,
        )
        steps = [t for e in results for t in e.transitions]
        return sum(t.invalid for t in steps) / len(steps)

    assert (
        invalid(
            other_task_action_prob=0.0,
            scrambled_action_prob=0.0,
            rewarded_action_prob=0.0,
        )
        == 0.0
    )
    assert (
        invalid(
            other_task_action_prob=0.0,
            scrambled_action_prob=0.5,
            rewarded_action_prob=0.0,
        )
        > 0.1
    )


def test_without_an_expert_some_random_players_take_valid_actions_only():
    def collected_with(**weights):
        results = collected(
            episodes=200,
            other_task_action_prob=0.0,
            scrambled_action_prob=1.0,
            rewarded_action_prob=0.0,
            **weights,
        )
        random = [e for e in results if e.source == "random" and e.id[-1] != "0"]
        return [all(not t.invalid for t in e.transitions) for e in random]

    alone = {"expert_weight": 0.0, "noisy_weight": 0.0, "random_weight": 1.0}
    assert all(collected_with(**alone, valid_only=1.0))
    half = collected_with(**alone, valid_only=0.5)
    assert 0.4 < np.mean(half) - np.mean(collected_with(**alone, valid_only=0.0)) < 0.6
    # Beside an expert there are demonstrations without them.
    beside = {"expert_weight": 0.2, "noisy_weight": 0.0, "random_weight": 0.8}
    assert collected_with(**beside, valid_only=1.0) == collected_with(
        **beside, valid_only=0.0
    )


class Forgets(doubles.Corridor):
    """Lists `go left` at the start alone, and takes it everywhere."""

    def valid_actions(self):
        start = ["go left"] if self.steps == 0 else []
        return ["go right", "take coin", *start]


@pytest.mark.parametrize(("expert", "complete"), [(0.5, True), (0.0, False)])
def test_a_list_is_judged_by_the_expert_where_there_is_one(expert, complete):
    # No task needs `go left`. Random players have it from the start, and try it later.
    tasks = [doubles.task(2, goal, 6) for goal in range(2, 6)]
    config = CollectConfig(
        expert_weight=expert, noisy_weight=0.0, random_weight=0.5, valid_only=0.0
    )
    listed = Rate()
    behavior.collect(Forgets(), tasks, 60, config, seed=0, max_steps=9, listed=listed)
    share = listed.json()["mean"]
    assert listed.count > 20
    assert (share == 1.0) if complete else (share < 0.9)


def test_what_was_refused_is_not_tried_elsewhere():
    # Mangled words that are remembered would soon be most of what is tried.
    results = collected(
        episodes=300,
        expert_weight=0.0,
        noisy_weight=0.0,
        random_weight=1.0,
        other_task_action_prob=0.6,
        scrambled_action_prob=0.1,
        rewarded_action_prob=0.0,
    )
    played = [t.action for e in results for t in e.transitions]
    mangled = sum(a not in doubles.ACTIONS for a in played) / len(played)
    assert 0.02 < mangled < 0.12


def test_random_actors_try_what_earned_a_reward_elsewhere():
    def tries(tempting):
        results = collected(
            episodes=200,
            expert_weight=0.1,
            noisy_weight=0.0,
            random_weight=0.9,
            other_task_action_prob=0.0,
            scrambled_action_prob=0.0,
            rewarded_action_prob=tempting,
        )
        rewarding = {t.action for e in results for t in e.transitions if t.reward > 0}
        played = [t for e in results if e.source == "random" for t in e.transitions]
        vain = [t for t in played if t.action in rewarding and t.reward <= 0]
        return len(vain) / len(played)

    assert tries(0.5) > tries(0.0) + 0.2


def test_the_seed_decides():
    assert collected() == collected()
    assert collected() != collected(seed=1)


class Seeded(doubles.Corridor):
    """Says with which seed it was reset."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return f"{obs}\nseed {seed}", info


def test_every_episode_is_reset_with_a_seed_of_its_own():
    seeds = [e.transitions[0].state[-1] for e in collected(Seeded(), episodes=20)]
    assert len(set(seeds)) == 20
    assert seeds == [
        e.transitions[0].state[-1] for e in collected(Seeded(), episodes=20)
    ]
    other = collected(Seeded(), episodes=20, seed=1)
    assert not {e.transitions[0].state[-1] for e in other} & set(seeds)


def test_an_environment_without_an_expert_is_played_at_random():
    results = collected(doubles.Bare(), episodes=5)
    assert {e.source for e in results} == {"random"}


def test_tasks_without_a_plan_are_played_at_random():
    """Else a random play that won would count as an expert's."""

    class SomePlans(doubles.Corridor):
        def expert(self):
            plan = super().expert()
            return plan if len(plan) % 2 else []

    results = collected(
        SomePlans(), expert_weight=1.0, noisy_weight=0.0, random_weight=0.0
    )
    for e in results:
        planned = len(doubles.plan(e.task.initial_state)) % 2
        assert e.source == ("expert" if planned else "random")
    assert {e.source for e in results} == {"expert", "random"}


def test_errors_of_a_type_are_printed_a_few_times_and_all_counted(capsys):
    class Late(doubles.Corridor):
        def step(self, action):
            if self.steps:
                raise OSError("no answer")
            return super().step(action)

    failures = collections.Counter()
    behavior.collect(
        Late(), TASKS, 20, CollectConfig(), seed=0, max_steps=8, failures=failures
    )
    # Some tasks are won at the first step.
    assert behavior.MAX_PRINTED < failures["OSError"] <= 20
    err = capsys.readouterr().err
    assert err.count("OSError: no answer") == behavior.MAX_PRINTED
    assert err.count("further errors OSError are counted only") == 1


def test_an_environment_that_breaks_leaves_its_episode_unscored(tmp_path):
    class Crashing(doubles.Corridor):
        def step(self, action):
            if self.steps == 1 and "end 2" in self.state:
                raise OSError("no answer")
            return super().step(action)

    results = collected(Crashing(), episodes=20)
    broken = [e for e in results if e.success is None]
    assert broken
    assert all("end 2" in e.task.initial_state for e in broken)
    assert any(e.success for e in results)
    write_episodes(tmp_path / "e.jsonl", results)
    read_episodes(tmp_path / "e.jsonl")


def test_episodes_are_played_until_the_steps_are_taken():
    env, bound = Ledger(), 57
    Ledger.taken = Ledger.stop_at = 0
    results = behavior.collect(
        env,
        TASKS,
        None,
        CollectConfig(),
        seed=0,
        max_steps=8,
        steps_left=lambda: bound - Ledger.taken,
    )
    assert sum(len(e.transitions) for e in results) == Ledger.taken == bound
    *whole, last = results
    assert all(e.transitions[-1].terminated or len(e.transitions) == 8 for e in whole)
    assert last.transitions[-1].truncated or last.transitions[-1].terminated
    # The same episodes as without a bound, as far as it reaches.
    free = collected(doubles.Corridor(), episodes=len(results))
    assert whole == free[:-1]
    assert last.transitions[:-1] == free[-1].transitions[: len(last.transitions) - 1]


def test_an_environment_that_begins_nothing_does_not_hold_the_collector():
    class Closed(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            raise OSError(f"no answer to {seed}, {options}")

    results = behavior.collect(
        Closed(),
        TASKS,
        None,
        CollectConfig(),
        seed=0,
        max_steps=8,
        steps_left=lambda: 100,
    )
    assert results == []


class Unlisted(TextEnv):
    """One of three switches lights the lamp; nothing is listed, nobody knows how."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right = int((options or {})["task"].options["seed"]) % 3
        return "\n".join(f"switch {i}" for i in range(3)), {}

    def step(self, action):
        won = action == f"press {self.right}"
        refused = action not in [f"press {i}" for i in range(3)]
        info = {"success": won, "invalid": refused}
        text = "\n".join(f"switch {i}" for i in range(3))
        return f"{text}\nsaid {action}", float(won), won, False, info


def switch_tasks(instruction):
    return [
        Task(id=str(i), instruction=instruction, options={"seed": i}) for i in range(9)
    ]


def test_what_is_not_listed_is_guessed_from_the_instruction():
    tasks = switch_tasks("Light the lamp: press N.")
    results = collected(Unlisted(), 60, tasks)
    won = [e for e in results if e.success]
    assert len(won) > 20

    def refused(episodes):
        return np.mean([bool(t.invalid) for e in episodes for t in e.transitions])

    # What was taken is tried again: later players are refused less than first ones.
    first = [collected(Unlisted(), 1, tasks, seed=seed)[0] for seed in range(40)]
    assert refused(results[30:]) < refused(first) - 0.2
    # Letters, as Gymnasium draws them, are never said.
    words = set("Light the lamp: press N. said switch 0 1 2".replace(".", "").split())
    said = {w for e in results for t in e.transitions for w in t.action.split()}
    assert said <= words | {"lamp"}


def test_the_actions_of_an_expert_are_tried_as_they_are():
    """What there is no list for, but an expert, is not guessed."""

    class Expert(Unlisted):
        def expert(self):
            return [f"press {self.right}"]

    results = collected(Expert(), 200, switch_tasks("Light the lamp: press N."))
    actions = [t.action for e in results[100:] for t in e.transitions]
    pressed = np.mean([a.startswith("press ") and len(a) == 7 for a in actions])
    assert pressed > 0.85  # the others are scrambled words


@pytest.mark.parametrize("method", ["expert", "valid_actions"])
def test_a_text_in_place_of_a_list_is_not_played_letter_by_letter(method, capsys):
    Spelt = type("Spelt", (doubles.Corridor,), {method: lambda _: "go right"})
    episodes = collected(Spelt(), episodes=12)
    actions = {t.action for e in episodes for t in e.transitions}
    assert not actions & set("go right")
    assert "must return a list, got the text 'go right'" in capsys.readouterr().err
