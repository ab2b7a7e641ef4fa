"""Demonstrations: detours are left out, and won episodes are added by task."""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies as st

from dreamgym.agent.demonstrations import (
    expert_episodes,
    random_success,
    shortened_wins,
    valid_steps,
    without_detours,
)
from dreamgym.build.episodes import demonstrations, imitated_episodes
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages import collect
from tests import doubles
from worldmodel.data.invalid_actions import is_invalid

TASK = doubles.task(0, 2, 4)


def played(*actions, task=TASK, source="random"):
    return doubles.episode(task, list(actions), source=source)


def actions_of(episode):
    return [t.action for t in episode.transitions]


def test_loops_and_invalid_actions_are_left_out():
    detour = played(
        "fly", "go right", "fly", "go left", "go right", "go right", "take coin"
    )
    short = without_detours(detour)
    assert actions_of(short) == ["go right", "go right", "take coin"]
    assert short.success
    assert short.id == detour.id


def test_an_expert_episode_has_no_detours():
    expert = doubles.expert(TASK)
    assert without_detours(expert) == expert


@hypothesis.given(
    st.lists(st.sampled_from((*doubles.ACTIONS, "fly")), min_size=1, max_size=12)
)
def test_what_is_left_leads_from_state_to_state(actions):
    episode = played(*actions)
    path = without_detours(episode).transitions
    for before, after in itertools.pairwise(path):
        assert before.next_state == after.state
    assert not any(is_invalid(t) for t in path)
    assert len({t.state for t in path}) == len(path)
    for t in path:  # each step is as the environment answers it
        got = doubles.walk(t.state, t.action)
        assert (got.state, got.reward) == (t.next_state, t.reward)
    valid = [t for t in episode.transitions if not is_invalid(t)]
    if valid:  # it begins and ends where the episode did
        assert path[0].state == TASK.initial_state
        assert path[-1].next_state == valid[-1].next_state


def test_the_shortest_win_of_each_task_counts():
    long = played("go right", "go left", "go right", "go right", "take coin")
    other = played("go right", "take coin", task=doubles.task(0, 1, 2))
    lost = played("go left", task=doubles.task(1, 3, 4))
    short = dataclasses.replace(doubles.expert(TASK), source="noisy")
    assert [e.success for e in (long, other, short, lost)] == [True] * 3 + [False]
    kept = shortened_wins([long, other, lost, short])
    assert [(e.task, e.source) for e in kept] == [
        (TASK, "random"),
        (other.task, "random"),
    ]
    assert actions_of(kept[0]) == actions_of(short)


def test_the_success_of_random_players_is_that_of_nobody_else():
    won, lost = played("go right", "go right", "take coin"), played("go left")
    assert random_success([won, lost, lost, lost]) == 0.25
    assert random_success([won, lost, played("go left", source="noisy")]) == 0.5
    broken = dataclasses.replace(lost, success=None, error="the server is gone")
    assert random_success([won, lost, broken, broken]) == 0.5
    assert random_success([doubles.expert(TASK)]) == random_success([]) == 0.0


def test_play_without_an_aim_keeps_detours_and_loses_what_was_refused():
    walk = played("fly", "go right", "go left", "swim", "go right")
    refused = played("fly", "swim")
    (valid,) = valid_steps([walk, refused, doubles.expert(TASK)])
    assert actions_of(valid) == ["go right", "go left", "go right"]
    assert (valid.task, valid.source) == (walk.task, "random")


def test_experts_come_before_others():
    random, expert = played("go right", "go right", "take coin"), doubles.expert(TASK)
    assert expert_episodes([random, expert], 9) == [expert]
    assert expert_episodes([random], 9) == [random]


def test_policies_imitate_what_others_won_in_tasks_without_an_expert(tmp_path):
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.stage("collect", lambda: collect.body(run))
        experts, _ = demonstrations(run)
        imitated = imitated_episodes(run)
        run.mark("collect", run.numbers("collect") | {"deterministic": False})
        assert imitated_episodes(run) == experts  # the others may have been lucky
    assert imitated[: len(experts)] == experts
    others = imitated[len(experts) :]
    assert others
    assert {e.source for e in others} <= {"random", "noisy"}
    assert not {e.task.id for e in others} & {e.task.id for e in experts}
    assert all(e.success for e in others)
    alone = preset("tiny", settings | {"bc.imitate": "experts"})
    with Run(tmp_path / "alone", alone) as run:
        run.stage("collect", lambda: collect.body(run))
        assert imitated_episodes(run) == demonstrations(run)[0]
