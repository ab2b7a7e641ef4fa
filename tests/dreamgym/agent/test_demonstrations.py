"""Demonstrations: detours are left out, and won episodes are added by task."""

import collections
import dataclasses
import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from dreamgym.agent.demonstrations import (
    KINDS,
    best_parts,
    demonstration_kind,
    draw_mixture,
    expert_episodes,
    random_success,
    shortened_wins,
    solutions,
    valid_steps,
    without_detours,
    without_surpassed,
)
from dreamgym.agent.early_experience import examples as early
from dreamgym.build.episodes import (
    demonstrations,
    imitated_episodes,
    known_solutions,
)
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect
from tests import doubles
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode, Task, Transition, write_episodes

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


def test_a_win_of_invalid_actions_alone_stays_as_it_is():
    win = played("go right", "go right", "take coin")
    steps = tuple(dataclasses.replace(t, invalid=True) for t in win.transitions)
    win = dataclasses.replace(win, transitions=steps)
    assert shortened_wins([win]) == [win]


def test_an_expert_episode_has_no_detours():
    expert = doubles.expert(TASK)
    assert without_detours(expert) == expert


def test_a_correction_takes_the_place_of_what_was_refused():
    """CLEANER in effect: what is imitated has no trace of the failure before it."""
    erring = played("fly", "go right", "swim", "fly", "go right", "take coin")
    assert "said unknown action" in erring.transitions[1].state
    policy = doubles.policy()
    wanted = early.bc_examples(policy, [played("go right", "go right", "take coin")])
    imitated = early.bc_examples(policy, shortened_wins([erring]))
    assert [list(e.ids) for e in imitated] == [list(e.ids) for e in wanted]
    raw = early.bc_examples(policy, [erring])
    assert len(raw) == 6  # the refusals would be imitated, and be read by corrections


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


def tools_used(name, *actions, tools=True):
    """A won episode of these actions, in a task with tools or without."""
    options = {"calls": []} if tools else {}
    task = Task(id=name, instruction=name, options=options)
    steps = tuple(
        Transition(state=("s",), action=a, next_state=("s",), rewards={})
        for a in actions
    )
    return Episode(id=name, task=task, transitions=steps, source="expert", success=True)


KIND_OF = {
    "no_call": ("it rains",),
    "call": ("look()", 'look {"page": 2}', "done"),
    "tool": ('search {"q": "a"}', 'open {"page": 1}', "done"),
    "arguments": ("search()", 'book {"hotel": "Ritz", "nights": 2}', "done"),
}


def test_the_kind_of_a_demonstration_is_the_last_that_it_shows():
    assert tuple(KIND_OF) == KINDS
    for kind, actions in KIND_OF.items():
        assert demonstration_kind(tools_used("t", *actions)) == kind
        assert demonstration_kind(tools_used("t", *actions, tools=False)) is None


def counts_of(episodes):
    return collections.Counter(demonstration_kind(e) for e in episodes)


def some_of_each_kind(**counts):
    return [
        tools_used(f"{kind}{i}", *KIND_OF[kind])
        for kind, count in counts.items()
        for i in range(count)
    ]


def test_demonstrations_are_drawn_in_the_shares_of_their_kinds():
    episodes = some_of_each_kind(no_call=10, call=40, tool=9, arguments=30)
    episodes += [tools_used(f"game{i}", "go north", tools=False) for i in range(3)]
    shares = {"no_call": 1.0, "call": 4.0, "tool": 1.0, "arguments": 3.0}
    drawn = draw_mixture(episodes, shares, seed=0)
    # The 9 of tool are a ninth of 81, which all others have enough for.
    assert counts_of(drawn) == {
        "no_call": 9,
        "call": 36,
        "tool": 9,
        "arguments": 27,
        None: 3,
    }
    assert drawn == [e for e in episodes if e in drawn]
    assert draw_mixture(episodes, shares, seed=0) == drawn
    assert draw_mixture(episodes, shares, seed=1) != drawn
    # In other units they are the same shares; a kind without a share is left out.
    tenfold = {kind: 10 * share for kind, share in shares.items()}
    assert draw_mixture(episodes, tenfold, seed=0) == drawn
    halves = {"no_call": 1.0, "call": 1.0, "tool": 0.0, "arguments": 0.0}
    assert counts_of(draw_mixture(episodes, halves, seed=0)) == {
        "no_call": 10,
        "call": 10,
        None: 3,
    }
    assert draw_mixture(episodes, dict.fromkeys(KINDS, 0.0), seed=0) == episodes
    # Two fifths of 2.5, which floats make a little less than 1.
    few = some_of_each_kind(no_call=1, call=2)
    rounded = draw_mixture(few, {"no_call": 0.6, "call": 0.9}, seed=0)
    assert counts_of(rounded) == {"no_call": 1, "call": 1}


def test_a_run_imitates_the_mixture_or_says_what_is_missing(tmp_path):
    episodes = some_of_each_kind(no_call=2, call=8)
    dev = [tools_used("dev", "done")]
    settings = {"bc.mixture.no_call": 1.0, "bc.mixture.call": 3.0}
    for name, extra in (("all", {}), ("drawn", settings)):
        with Run(tmp_path / name, preset("tiny", extra)) as run:
            write_episodes(run.path("episodes.jsonl"), episodes)
            write_episodes(run.path("dev.jsonl"), dev)
            run.stage("collect", dict)
            counts = counts_of(imitated_episodes(run))
            # It decides what is imitated, not what is known.
            assert len(known_solutions(run)) == len(episodes)
        assert counts == {"no_call": 2, "call": 6 if extra else 8}
    with Run(tmp_path / "more", preset("tiny", {"bc.mixture.tool": 0.5})) as run:
        write_episodes(run.path("episodes.jsonl"), episodes)
        write_episodes(run.path("dev.jsonl"), dev)
        run.stage("collect", dict)
        with pytest.raises(RunError, match=r"bc\.mixture: no .* 'tool', got .*: 8"):
            imitated_episodes(run)
        assert len(known_solutions(run)) == len(episodes)
    with pytest.raises(ValueError, match=r"call must be >= 0 and finite, got -1\.0"):
        preset("tiny", {"bc.mixture.call": -1.0})


def test_a_damaged_file_is_not_blamed_on_the_mixture(tmp_path):
    with Run(tmp_path / "run", preset("tiny", {})) as run:
        for name in ("episodes.jsonl", "dev.jsonl"):
            write_episodes(run.path(name), [doubles.expert(TASK)])
        run.mark("collect", {})
        run.path("episodes.jsonl").write_text("{}\n")
        with pytest.raises(ValueError, match=r"episodes\.jsonl:1") as error:
            imitated_episodes(run)
    assert "mixture" not in str(error.value)


def test_experts_come_before_others():
    random, expert = played("go right", "go right", "take coin"), doubles.expert(TASK)
    for shortens in (False, True):
        assert expert_episodes([random, expert], 9, shortens=shortens) == [expert]
        assert expert_episodes([random], 9, shortens=shortens) == [random]


def test_policies_imitate_what_others_won_in_tasks_without_an_expert(tmp_path):
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.stage("collect", lambda: collect.body(run))
        experts, _ = demonstrations(run)
        imitated = imitated_episodes(run)
        run.mark("collect", run.numbers("collect") | {"deterministic": False})
        assert imitated_episodes(run) == experts  # the others may have been lucky
        of_recordings = run.numbers("collect")
        del of_recordings["deterministic"]
        run.mark("collect", of_recordings)
        assert imitated_episodes(run) == experts  # nobody knows whether they were
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


@pytest.mark.parametrize(
    ("imitate", "deterministic", "kept"),
    [
        ("won_episodes", True, 3),
        ("corrected", True, 3),
        ("experts", True, 6),
        ("won_episodes", False, 6),
        ("won_episodes", None, 6),  # recordings, and nobody knows
    ],
)
def test_without_an_expert_others_wins_are_imitated_without_detours(
    tmp_path, imitate, deterministic, kept
):
    """Where the environment is known to be deterministic, if the settings allow it."""
    path = ("go right", "go right", "take coin")
    there_and_back = ("go right", "go left")
    long = played("fly", *there_and_back, *path)
    longer = played(*there_and_back, *there_and_back, *path)
    longer = dataclasses.replace(longer, id="longer")
    settings = {"env.id": "tests.doubles:Corridor", "bc.imitate": imitate}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        for name in ("episodes.jsonl", "dev.jsonl"):
            write_episodes(run.path(name), [longer, long])
        known = {} if deterministic is None else {"deterministic": deterministic}
        run.mark("collect", known)
        (imitated,) = imitated_episodes(run)
        ((train,), (dev,)) = demonstrations(run)
    assert imitated == train == dev
    assert len(imitated.transitions) == kept
    assert actions_of(imitated) == (list(path) if kept == 3 else actions_of(long))


def test_an_experts_wins_are_corrected_where_the_settings_say_so(tmp_path):
    erring = played("fly", "go right", "go right", "take coin", source="expert")
    for imitate, expected in (
        ("won_episodes", ["fly", "go right", "go right", "take coin"]),
        ("corrected", ["go right", "go right", "take coin"]),
    ):
        settings = {"env.id": "tests.doubles:Corridor", "bc.imitate": imitate}
        with Run(tmp_path / imitate, preset("tiny", settings)) as run:
            write_episodes(run.path("episodes.jsonl"), [erring])
            write_episodes(run.path("dev.jsonl"), [doubles.expert(TASK)])
            run.mark("collect", {"deterministic": True})
            (episode,) = imitated_episodes(run)
            assert actions_of(episode) == expected
            # What is branched has to be played again as it was.
            assert actions_of(demonstrations(run)[0][0]) == actions_of(erring)
            run.mark("collect", {"deterministic": False})
            assert actions_of(imitated_episodes(run)[0]) == actions_of(erring)


def paid(episode, *rewards):
    """Return an episode with these rewards of its steps."""
    steps = [
        dataclasses.replace(t, rewards={"score": r})
        for t, r in zip(episode.transitions, rewards, strict=True)
    ]
    return dataclasses.replace(episode, transitions=tuple(steps))


FAR = [doubles.task(0, 1, 9), doubles.task(0, 1, 8), doubles.task(0, 1, 7)]


def test_a_part_ends_where_the_most_was_earned():
    """By hand: 0.5, then 0.75 after three steps, of which one was refused."""
    steps = ("go right", "fly", "go right", "go left", "go left")
    progress = paid(played(*steps, task=FAR[0]), 0.5, 0.0, 0.25, -0.5, 0.25)
    nothing = [paid(played("go right", task=t), 0.0) for t in FAR[1:]]
    (part,) = best_parts([progress, *nothing])
    assert actions_of(part) == ["go right", "go right"]
    assert part.episode_return == 0.75
    assert not part.success
    # A win of its task leaves nothing to show, and one that broke shows nothing.
    won = dataclasses.replace(nothing[0], task=FAR[0], success=True)
    assert best_parts([progress, won, *nothing]) == []
    for error in ("the server is gone", None):
        unscored = dataclasses.replace(progress, success=None, error=error)
        assert best_parts([unscored, *nothing]) == best_parts([]) == []


def test_what_a_loop_earned_is_no_worth_of_a_part():
    """By hand: to and fro for 3, then 0.25; what is left of it earns 0.25."""
    walk = ("go right", "go left", "go right", "go left", "go right", "go right")
    circling = paid(played(*walk, task=FAR[0]), 0.75, 0.75, 0.75, 0.75, 0.0, 0.25)
    straight = paid(played("go right", "go right", task=FAR[0]), 0.25, 0.25)
    nothing = paid(played("go right", task=FAR[1]), 0.0)
    assert best_parts([circling, straight, nothing]) == [straight]
    (whole,) = best_parts([circling, nothing], shortens=False)
    assert whole == circling
    # Sums of equal rewards in another order are equal but for rounding.
    one, other = (
        paid(played(*walk[:3], task=t), *r)
        for t, r in zip(FAR, ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), strict=False)
    )
    assert best_parts([one, other], shortens=False) == []


def test_only_more_than_all_earn_counts_and_the_best_of_a_task():
    def walked(task, *rewards):
        return paid(played(*["go right"] * len(rewards), task=task), *rewards)

    low, high = walked(FAR[0], 0.5), walked(FAR[0], 0.0, 0.75)
    short = walked(FAR[0], 0.75)
    common = [walked(FAR[1], 0.25), walked(FAR[2], 0.25), walked(FAR[2], 0.25)]
    assert best_parts([low, high, short, *common]) == [short]
    # Paid alike for every step, nobody did more than another one.
    assert best_parts([walked(t, 1.0, 1.0) for t in FAR]) == []
    # What costs a price in every step is no progress, whoever paid least.
    assert best_parts([walked(FAR[0], -1.0), walked(FAR[1], -1.0, -1.0)]) == []


def test_parts_are_imitated_only_where_wins_are_few():
    win = played("go right", "go right", "take coin")
    progress = paid(played("go right", task=FAR[0]), 0.5)
    nothing = [paid(played("go right", task=t), 0.0) for t in FAR[1:]]
    episodes = [win, progress, *nothing]
    assert solutions(episodes, 1) == [win]
    assert solutions(episodes, 2) == [win, progress]
    assert solutions(episodes, 2, ["another task"]) == [win]
    assert solutions(episodes, 2, [win.task.id]) == [win, progress]  # counted once
    assert solutions(episodes, 0) == [win]


def test_a_win_surpasses_the_parts_of_its_task_and_a_part_a_lower_one():
    win = played("go right", "go right", "take coin")
    part = paid(played("go right"), 0.5)
    low, high = (paid(played("go right", task=FAR[0]), r) for r in (0.25, 0.5))
    assert without_surpassed([part, low, win, high]) == [win, high]
    assert without_surpassed([low, low]) == [low]  # of equal ones the first
    assert without_surpassed([win, win]) == [win, win]


@pytest.mark.parametrize("source", ["expert", "random"])
def test_a_share_of_the_demonstrations_leaves_the_others_out(tmp_path, source):
    """The tasks of what was left out are not known from elsewhere."""
    experts = [
        dataclasses.replace(doubles.expert(t), source=source)
        for t in doubles.tasks("train")[:8]
    ]
    others = [
        dataclasses.replace(doubles.expert(t), source="random", id=f"random-{t.id}")
        for t in doubles.tasks("train")[4:12]
    ]
    collected = [*experts, *others] if source == "expert" else experts
    for share, limit, count in ((1.0, 20, 8), (0.5, 20, 4), (1.0, 2, 2)):
        settings = {"bc.demonstration_share": share, "bc.max_demonstrations": limit}
        with Run(tmp_path / f"{share}-{limit}", preset("tiny", settings)) as run:
            write_episodes(run.path("episodes.jsonl"), collected)
            write_episodes(run.path("dev.jsonl"), experts[:1])
            run.mark("collect", {"deterministic": True})
            chosen, _ = demonstrations(run)
            known = known_solutions(run)
        assert len(chosen) == count
        further = {e.task.id for e in others[4:]} if source == "expert" else set()
        assert {e.task.id for e in known} == {e.task.id for e in chosen} | further


def test_a_run_imitates_parts_where_nothing_was_won(tmp_path):
    """And says so if there is nothing to imitate either."""
    progress = paid(played("go right", task=FAR[0]), 0.5)
    nothing = [paid(played("go right", task=t), 0.0) for t in FAR[1:]]
    for min_wins in (20, 0):
        settings = {"bc.min_wins": min_wins}
        with Run(tmp_path / f"wins-{min_wins}", preset("tiny", settings)) as run:
            write_episodes(run.path("episodes.jsonl"), [progress, *nothing])
            write_episodes(run.path("dev.jsonl"), nothing)
            run.mark("collect", {"deterministic": True})
            if min_wins:
                experts, dev_experts = demonstrations(run)
                for imitated in (known_solutions(run), experts):
                    assert [e.id for e in imitated] == [progress.id]
                assert dev_experts == []
            else:
                with pytest.raises(RunError, match=r"rewards on the way \(bc\.min"):
                    known_solutions(run)
    with pytest.raises(ValueError, match=r"min_wins must be >= 0, got -1"):
        preset("tiny", {"bc.min_wins": -1})
