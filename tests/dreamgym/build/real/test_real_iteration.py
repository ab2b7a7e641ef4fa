"""Fine-tuning by expert iteration: what is played, what is imitated, and the budget."""

import dataclasses
import functools

import pytest

from dreamgym.agent.config import PlanConfig
from dreamgym.build import imitation, planning
from dreamgym.build.episodes import NAMES, recorded_episodes
from dreamgym.build.real import real_iteration
from dreamgym.build.real.real_iteration import iterate
from dreamgym.config.presets import preset
from dreamgym.config.stages import ExpertIterationConfig
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import write_episodes
from worldmodel.fitting.config import FitConfig, OptimizerConfig
from worldmodel.memory import ReplayMemory

LIMIT = 14
SHOWN = doubles.tasks("train")[:8]
"""Tasks with a collected demonstration."""
DREAMED = doubles.tasks("train")[8:12]
"""Tasks that expert iteration won in the dream before."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose policy says any word at first, and whose dream is the corridor."""
    fit = FitConfig(
        steps=10,
        batch_rows=2,
        row_tokens=64,
        eval_every=10,
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=5),
    )
    settings = {
        "env.id": "tests.doubles:Corridor",
        "transfer.method": "expert_iteration",
        "transfer.iteration.refit_share": 0.0,
        "transfer.iteration.rounds": 2,
    }
    config = preset("tiny", settings)
    config = dataclasses.replace(
        config,
        bc=dataclasses.replace(config.bc, fit=fit),
        expert_iteration=ExpertIterationConfig(
            rounds=1, tasks=20, rollouts_per_task=2, epochs=3, fresh_tasks=60
        ),
    )
    with Run(tmp_path / "run", config) as run:
        run.write_json(NAMES, {})
        write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in SHOWN])
        dev = [doubles.expert(t) for t in doubles.tasks("dev")[:2]]
        write_episodes(run.path("dev.jsonl"), dev)
        dreamed = [doubles.expert(t) for t in DREAMED]
        write_episodes(run.path("expert_iteration.jsonl"), dreamed)
        run.mark("collect", {"deterministic": True, "max_episode_steps": LIMIT})
        initial = doubles.policy(action_tokens=6)
        monkeypatch.setattr(imitation, "initial_policy", lambda *_: initial)
        experience = doubles.Known(ReplayMemory())
        monkeypatch.setattr(
            real_iteration, "load_experience", lambda *_, **__: experience
        )
        yield run


@pytest.fixture
def imitated(monkeypatch):
    """The episodes of each fit, which is the real one."""
    fits, fit = [], real_iteration.fit_demonstrations

    def record(run, demonstrations, name, names):
        fits.append(list(demonstrations))
        return fit(run, demonstrations, name, names)

    monkeypatch.setattr(real_iteration, "fit_demonstrations", record)
    return fits


@pytest.fixture
def unfitted(monkeypatch):
    """Without the fits, which take long: only what is played matters."""
    monkeypatch.setattr(real_iteration, "fit_demonstrations", lambda *_, **__: warm())


@functools.cache
def warm():
    return doubles.cloned(doubles.ACTIONS, SHOWN)


def set_iteration(run, **changes):
    transfer = run.config.transfer
    iteration = dataclasses.replace(transfer.iteration, **changes)
    transfer = dataclasses.replace(transfer, iteration=iteration)
    run.config = dataclasses.replace(run.config, transfer=transfer)


def played(run, name, number):
    return recorded_episodes(run.path(f"{name}/round-{number}/episodes.jsonl"))


def ids(episodes):
    return {e.task.id for e in episodes}


@pytest.mark.medium
def test_the_control_imitates_what_it_won_in_the_real_environment(run, imitated):
    policy, numbers = iterate(run, "real_only", warm(), steps=400, dreams=False)
    first, last = (played(run, "real_only", n) for n in (1, 2))
    assert last[: len(first)] == first  # the episodes of both rounds
    assert not ids(last) & ids(SHOWN_EPISODES)  # solved tasks are not played
    won = ids(e for e in first if e.success)
    assert not ids(last[len(first) :]) & won
    for demonstrations, episodes in zip(imitated, (first, last), strict=True):
        won = ids(e for e in episodes if e.success)
        assert 0 < len(won)
        assert ids(demonstrations) == won | ids(SHOWN_EPISODES)
        assert len(demonstrations) == len(ids(demonstrations))
    assert "dreamed_demonstrations" not in numbers["rounds"][0]
    assert policy.model is not warm().model


SHOWN_EPISODES = [doubles.expert(t) for t in SHOWN]


@pytest.mark.medium
@pytest.mark.usefixtures("unfitted")
def test_what_a_mixture_leaves_out_is_solved_and_not_imitated(run, monkeypatch):
    drawn, fits = [e for e in SHOWN_EPISODES if e.task.id != SHOWN[0].id], []
    monkeypatch.setattr(real_iteration, "imitated_episodes", lambda _: drawn)
    monkeypatch.setattr(
        real_iteration, "fit_demonstrations", lambda _, e, *__: fits.append(e) or warm()
    )
    _, numbers = iterate(run, "s2r", warm(), steps=200, dreams=True)
    for number, demonstrations in zip((1, 2), fits, strict=True):
        episodes = played(run, "s2r", number)
        won = ids(e for e in episodes if e.success)
        assert won
        assert ids(demonstrations) >= won | ids(drawn)
        # No real step and no dream is spent on it again.
        assert SHOWN[0].id not in ids(episodes) | ids(demonstrations)
        row = numbers["rounds"][number - 1]
        assert row["real_demonstrations"] == len(won | ids(SHOWN_EPISODES))
    assert numbers["collected_demonstrations"] == len(SHOWN)


@pytest.mark.medium
def test_with_the_dream_unsolved_tasks_have_a_dreamed_demonstration(run, imitated):
    _, numbers = iterate(run, "s2r", warm(), steps=200, dreams=True)
    for row, demonstrations, number in zip(
        numbers["rounds"], imitated, (1, 2), strict=True
    ):
        real = ids(SHOWN_EPISODES) | ids(
            e for e in played(run, "s2r", number) if e.success
        )
        assert row["real_demonstrations"] == len(real)
        assert len(demonstrations) == len(ids(demonstrations))  # one of each task
        assert ids(demonstrations) >= real | {t.id for t in DREAMED}
        assert len(demonstrations) > len(real | {t.id for t in DREAMED})


@pytest.mark.medium
@pytest.mark.usefixtures("unfitted")
def test_each_round_refits_the_model_of_the_round_before(run, monkeypatch):
    """Under a name of its own: a fit goes on from the checkpoint of its name."""
    refits, fits, used, scored = [], [], [], []

    def refit(run, folder, name, share, *, start):
        refits.append((folder, share, start))
        fits.append(name)
        run.write_json(f"{folder}/fidelity.json", {"exact": {"predictable": MEAN}})

    def fit(run, demonstrations, name, names):
        del run, demonstrations, names
        fits.append(name)
        return warm()

    def load(run, *, folder, stage="", **_):
        del run
        (used if stage else scored).append(folder)
        return doubles.Known(ReplayMemory())

    set_iteration(run, refit_share=0.5)
    monkeypatch.setattr(real_iteration, "refit", refit)
    monkeypatch.setattr(real_iteration, "fit_demonstrations", fit)
    monkeypatch.setattr(real_iteration, "load_experience", load)
    _, numbers = iterate(run, "s2r", warm(), steps=100, dreams=True)
    assert refits == [("s2r/round-1", 0.5, ""), ("s2r/round-2", 0.5, "s2r/round-1")]
    assert used == ["s2r/round-1", "s2r/round-2"]
    assert scored == ["", "s2r/round-1"]  # the model before the refit
    assert [row["exact_on_policy"] for row in numbers["rounds"]] == [1.0, 1.0]
    assert len(set(fits)) == 4
    assert [row["exact_predictable"] for row in numbers["rounds"]] == [0.75, 0.75]


MEAN = {"mean": 0.75, "n": 4}


@pytest.mark.usefixtures("unfitted")
def test_a_refit_that_finds_fewer_ends_is_left_out(run, monkeypatch, capsys):
    starts, used = [], []

    def card(ends):
        rate = {"mean": ends, "count": 40}
        return {"exact": {"predictable": MEAN}, "done": {"recall": rate}}

    def refit(run, folder, name, share, *, start):
        del name, share
        starts.append(start)
        run.path(f"{folder}/experience").mkdir(parents=True)
        run.write_json(f"{folder}/fidelity.json", card(0.3 if not start else 0.9))

    def load(run, *, folder, stage="", **_):
        del run
        if stage:
            used.append(folder)
        return doubles.Known(ReplayMemory())

    set_iteration(run, refit_share=0.5)
    run.write_json("fidelity.json", card(0.9))
    monkeypatch.setattr(real_iteration, "refit", refit)
    monkeypatch.setattr(real_iteration, "load_experience", load)
    _, numbers = iterate(run, "s2r", warm(), steps=100, dreams=True)
    assert starts == used == ["", ""]  # the model before stays, and is fitted again
    assert [row["refit_left_out"] for row in numbers["rounds"]] == [1.0, 1.0]
    text = "s2r/round-1: the refitted experience model is left out, and the one before"
    assert text in capsys.readouterr().err
    assert planning.paid_folder(run, "s2r") == ""  # nor does a policy plan in it
    run.write_json("fidelity.json", card(0.3))
    assert real_iteration.refit_round(run, "s2r/round-1", "")[0] == "s2r/round-1"


@pytest.mark.usefixtures("unfitted")
@pytest.mark.parametrize(("steps", "rounds"), [(13, 1), (150, 1), (150, 3)])
def test_no_more_real_steps_are_taken_than_it_may(run, steps, rounds):
    set_iteration(run, rounds=rounds)
    with run.real_steps.recorded(run.path("x.steps")) as counter:
        iterate(run, "real_only", warm(), steps=steps, dreams=False)
    assert counter.count <= steps
    # What is left would not pay for an episode as long as they may be.
    assert counter.count > steps - 2 * LIMIT or steps < LIMIT


@pytest.mark.medium
@pytest.mark.usefixtures("unfitted")
def test_the_policy_plans_in_the_model_of_its_round_and_the_control_does_not(
    run, monkeypatch
):
    plan = PlanConfig(method="mpc", simulations=16, depth=4)
    set_iteration(run, rounds=1, plan=plan)
    folders = []

    def load(run, *, folder, **_):
        del run
        folders.append(folder)
        return doubles.RuleModel()

    monkeypatch.setattr(planning, "load_experience", load)
    monkeypatch.setattr(real_iteration, "remedy_folder", lambda _: "remedy")
    iterate(run, "real_only", warm(), steps=300, dreams=False)
    assert not folders
    iterate(run, "s2r", warm(), steps=300, dreams=True)
    assert folders == ["remedy"]
    planned, plain = (
        sum(bool(e.success) for e in played(run, name, 1))
        for name in ("s2r", "real_only")
    )
    assert planned > plain + 3  # the dream is true here


@pytest.mark.usefixtures("unfitted")
@pytest.mark.parametrize(
    ("reveals", "agreement", "plans"),
    [(10, 0.7, True), (11, 0.7, False), (10, 0.6, False)],
)
def test_auto_plans_real_play_only_where_it_means_a_star(
    run, monkeypatch, reveals, agreement, plans
):
    monkeypatch.setattr(planning, "draw_agreement", lambda *_: agreement)
    set_iteration(run, rounds=1, plan=PlanConfig(method="auto", simulations=16))
    rate = {"mean": 0.9, "count": 99}
    exact = {"predictable": rate, "all": {"count": 100}, "reveal": {"count": reveals}}
    card = {"exact": exact, "reward": {"recall": rate}, "done": {"recall": rate}}
    run.write_json("fidelity.json", card)
    methods = []

    def plan_with(run, policy, plan, **_):
        del run
        methods.append(plan.method)
        return policy

    monkeypatch.setattr(real_iteration, "planning_policy", plan_with)
    iterate(run, "s2r", warm(), steps=100, dreams=True)
    assert methods == ["a_star" if plans else "none"]


FEW = doubles.tasks("train")[20:24]


class Unable(doubles.Corridor):
    """A corridor in which no episode starts."""

    def reset(self, **settings):
        del settings
        raise OSError("no answer")


@pytest.mark.usefixtures("unfitted")
def test_lost_tasks_are_played_again_while_steps_are_left(run, monkeypatch):
    set_iteration(run, rounds=1)
    monkeypatch.setattr(real_iteration, "training_tasks", lambda *_: FEW)
    policy = doubles.Scripted(doubles.expert_rule)
    iterate(run, "won", policy, steps=200, dreams=False)
    assert len(played(run, "won", 1)) == len(FEW)  # all won: nothing is left to play
    _, numbers = iterate(run, "s2r", policy, steps=200, dreams=True)  # nor to dream of
    assert len(played(run, "s2r", 1)) == len(FEW)
    assert numbers["rounds"][0]["dreamed_demonstrations"] == len(DREAMED)
    iterate(run, "lost", doubles.policy(action_tokens=6), steps=200, dreams=False)
    episodes = played(run, "lost", 1)
    assert not any(e.success for e in episodes)
    assert 200 - LIMIT < sum(len(e.transitions) for e in episodes) <= 200
    assert len({e.id for e in episodes}) == len(episodes) > 2 * len(FEW)
    monkeypatch.setattr(
        real_iteration,
        "real_envs",
        lambda _: RealVectorEnv([Unable(), Unable()], max_steps=LIMIT),
    )
    iterate(run, "broken", policy, steps=200, dreams=False)  # and ends
    assert played(run, "broken", 1) == []


@pytest.mark.usefixtures("unfitted")
def test_nothing_may_have_been_won_or_played_before(run):
    write_episodes(run.path("expert_iteration.jsonl"), [])
    for _ in range(2):  # the second time it finds what it wrote
        _, numbers = iterate(run, "s2r", warm(), steps=LIMIT - 1, dreams=True)
        assert [row["real_transitions"] for row in numbers["rounds"]] == [0, 0]
        assert numbers["rounds"][0]["real_demonstrations"] == len(SHOWN)


@pytest.mark.usefixtures("unfitted")
def test_a_budget_of_the_run_bounds_it_too(run):
    with run.real_steps.recorded(run.path("x.steps"), 60) as counter:
        iterate(run, "real_only", warm(), steps=400, dreams=False)
    assert 60 - 2 * LIMIT < counter.count <= 60


def test_interrupted_play_leaves_the_reserve_of_a_budget(run, monkeypatch):
    """Its steps were taken: what is played again has so many fewer of the budget."""
    play, attempts = real_iteration.evaluate.play, []

    def interrupt(*arguments, **settings):
        attempts.append(play(*arguments, **settings))
        raise KeyboardInterrupt

    def go():
        with run.real_steps.recorded(run.path("x.steps"), 150) as counter:
            iterate(run, "real_only", policy, steps=60, dreams=False, reserve=50)
        return counter.count

    set_iteration(run, rounds=1)
    monkeypatch.setattr(real_iteration, "training_tasks", lambda *_: FEW)
    policy = doubles.policy(action_tokens=6)  # which wins nothing
    with monkeypatch.context() as patch:
        patch.setattr(real_iteration.evaluate, "play", interrupt)
        with pytest.raises(KeyboardInterrupt):
            go()
    first = sum(len(t.episode.transitions) for t in attempts[0])
    assert 40 < first <= 60
    total = go()
    again = played(run, "real_only", 1)
    assert sum(len(e.transitions) for e in again) == total - first
    # Of 150 steps 50 are left; without the reserve 60 would be played again.
    assert 100 - LIMIT < total <= 100


@pytest.mark.medium
@pytest.mark.usefixtures("unfitted")
def test_interrupted_it_goes_on_with_the_round_that_was_not_finished(run, monkeypatch):
    def interrupt(*_, **settings):
        del settings
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real_iteration, "dreamed_wins", interrupt)
        with pytest.raises(KeyboardInterrupt):
            iterate(run, "s2r", warm(), steps=200, dreams=True)
    first = played(run, "s2r", 1)
    with run.real_steps.recorded(run.path("x.steps")) as counter:
        iterate(run, "s2r", warm(), steps=200, dreams=True)
    assert played(run, "s2r", 1) == first
    second = played(run, "s2r", 2)[len(first) :]
    assert counter.count == sum(len(e.transitions) for e in second)


@pytest.mark.parametrize("min_wins", [len(SHOWN), len(SHOWN) + 1])
def test_parts_that_earned_most_are_imitated_where_wins_are_few(
    run, imitated, monkeypatch, min_wins
):
    """The collected wins count; the task stays unsolved, and is played again."""
    bc = dataclasses.replace(run.config.bc, min_wins=min_wins)
    run.config = dataclasses.replace(run.config, bc=bc)
    task, other = (t for t in doubles.tasks("train")[12:14])
    part, nothing = (doubles.episode(t, ["go right"]) for t in (task, other))
    steps = [dataclasses.replace(x, rewards={"x": 1.0}) for x in part.transitions]
    part = dataclasses.replace(part, transitions=tuple(steps))
    asked = []

    def play(run, folder, policy, tasks, *_):
        del run, folder, policy
        asked.append(ids_of(tasks))
        return real_iteration.Play([part, nothing], 9)

    monkeypatch.setattr(real_iteration, "play_round", play)
    _, numbers = iterate(run, "real_only", warm(), steps=100, dreams=False)
    shown = {t.id for t in SHOWN}
    added = {task.id} if min_wins > len(SHOWN) else set()
    assert [ids(fit) for fit in imitated] == [shown | added] * 2
    for row in numbers["rounds"]:  # a part is no win
        assert row["real_demonstrations"] == numbers["collected_demonstrations"]
        assert row.get("imitated_parts", 0) == len(added)
    for tasks in asked:
        assert task.id in tasks
        assert not shown & tasks


@pytest.mark.usefixtures("unfitted")
def test_a_dreamed_part_takes_the_place_of_no_earlier_win(run, monkeypatch):
    """The refitted dream loses a task that expert iteration won in it."""
    part = doubles.episode(DREAMED[0], ["go left"])
    steps = [dataclasses.replace(x, rewards={"x": 0.25}) for x in part.transitions]
    part = dataclasses.replace(part, transitions=tuple(steps), success=False)
    monkeypatch.setattr(real_iteration, "dreamed_wins", lambda *_, **__: [part])
    nothing = real_iteration.Play([], 0)
    monkeypatch.setattr(real_iteration, "play_round", lambda *_: nothing)
    _, numbers = iterate(run, "s2r", warm(), steps=100, dreams=True)
    for row in numbers["rounds"]:
        assert row["dreamed_demonstrations"] == len(DREAMED)
        assert "imitated_parts" not in row


def ids_of(tasks):
    return {t.id for t in tasks}


class Breaking(doubles.Corridor):
    """A corridor that breaks at the third step of every other game."""

    games = 0

    def reset(self, **kwargs):
        self.steps = 0
        type(self).games += 1
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.games % 2:
            raise KeyError("broken")
        return super().step(action)


@pytest.mark.usefixtures("unfitted")
def test_steps_of_episodes_that_broke_count_in_later_rounds(run, monkeypatch):
    monkeypatch.setattr(doubles, "Corridor", Breaking)
    envs = lambda *_: RealVectorEnv([Breaking()], max_steps=LIMIT)  # noqa: E731
    monkeypatch.setattr(real_iteration, "real_envs", envs)
    _, numbers = iterate(run, "real_only", warm(), steps=200, dreams=False)
    steps = [row["real_transitions"] for row in numbers["rounds"]]
    recorded = [
        real_iteration.count_transitions(played(run, "real_only", n)) for n in (1, 2)
    ]
    assert steps[0] > recorded[0] > 0
    assert steps[1] <= 200
    # Read back, the counts are the same.
    _, again = iterate(run, "real_only", warm(), steps=200, dreams=False)
    assert again["rounds"] == numbers["rounds"]


@pytest.mark.usefixtures("unfitted")
def test_tasks_that_cannot_be_begun_are_not_dreamed_of(run, monkeypatch):
    """Where all others are won, nothing is dreamed, and the round goes on."""
    empty = dataclasses.replace(doubles.tasks("train")[20], initial_state=())
    monkeypatch.setattr(real_iteration, "training_tasks", lambda *_: [*SHOWN, empty])
    nothing = real_iteration.Play([], 0)
    monkeypatch.setattr(real_iteration, "play_round", lambda *_: nothing)
    asked = []

    def dreamed_wins(run, experience, policy, tasks, *_, **__):
        del run, experience, policy
        asked.append(list(tasks))
        return []

    monkeypatch.setattr(real_iteration, "dreamed_wins", dreamed_wins)
    iterate(run, "s2r", warm(), steps=100, dreams=True)
    assert asked == [[], []]


@pytest.mark.medium
def test_names_are_looked_for_in_what_was_played(run, monkeypatch):
    given, searched = [], []

    def fit(run, demonstrations, name, names):
        del run, demonstrations, name
        given.append(names)
        return warm()

    def names_with(run, played):
        del run
        searched.append(len(played))
        return {"corridor": (("a", "b"),)}

    monkeypatch.setattr(real_iteration, "fit_demonstrations", fit)
    monkeypatch.setattr(real_iteration, "names_with", names_with)
    iterate(run, "real_only", warm(), steps=60, dreams=False)
    assert given
    assert set(map(str, given)) == {str({"corridor": (("a", "b"),)})}
    assert searched == sorted(searched)
    assert searched[0] > 0
