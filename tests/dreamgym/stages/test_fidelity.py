"""The scorecard of a run, by its own model or by a server."""

import dataclasses
import json
import random

import gymnasium
import numpy as np
import pytest

from dreamgym import cli
from dreamgym.build.fidelity import measure
from dreamgym.commands.inspection import scorecard as scorecard_command
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.envs import base
from dreamgym.envs.base import TextEnv
from dreamgym.evaluation import fidelity
from dreamgym.evaluation.evaluate import summary
from dreamgym.run.directory import Run
from dreamgym.stages import collect
from tests import chat_server, doubles
from worldmodel.data.records import (
    Episode,
    Transition,
    lines,
    read_episodes,
    write_episodes,
)
from worldmodel.experience.base import Query


@pytest.fixture
def run(tmp_path) -> Run:
    made = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    made.stage("collect", lambda: collect.body(made))
    return made


def saying(state):
    """A server that tells the same state whatever is asked."""
    reply = {"reasoning": "", "next_state": state, "reward": 0, "outcome": "go"}
    return chat_server.ok(json.dumps(reply))


def test_a_query_is_played_again_in_the_real_environment():
    env, task = doubles.Corridor(), doubles.task(0, 1, 2)
    take = Query(task, ("go right",), after(env, task, ["go right"]), "take coin")
    replays = fidelity.Replays(doubles.Corridor())
    assert replays(take).rewarded is True
    left = replays(take._replace(action="go left"))
    assert left == (after(env, task, ["go right", "go left"]), False)
    assert replays.transitions == 4  # two actions each
    assert replays(take._replace(state=("a cat",))) is None
    assert replays(take._replace(past=("take coin",) * 99)) is None
    assert replays.failed == 0
    foreign = dataclasses.replace(task, id="foreign", options={"no": "such"})
    assert replays(take._replace(task=foreign)) is None
    assert replays.failed == 1


def test_a_query_is_played_once():
    replays = fidelity.Replays(doubles.Corridor())
    task = doubles.task(0, 1, 2)  # its options are a dict
    query = Query(task, (), task.initial_state, "go right")
    assert replays(query) is replays(query) is not None
    assert replays.transitions == 1
    assert replays(query._replace(past=("go right",))) is None  # another state
    assert replays.transitions == 2


def test_a_query_is_not_played_without_the_steps_it_takes():
    left, task = 2, doubles.task(0, 1, 2)
    replays = fidelity.Replays(doubles.Corridor(), lambda: left - replays.transitions)
    way = ("go right", "go left")
    far = Query(task, way, after(doubles.Corridor(), task, way), "take coin")
    assert replays(far) is None  # three steps
    assert replays.transitions == 0
    near = Query(task, (), task.initial_state, "go right")
    assert replays(near) is not None
    left = 4
    assert replays(far) is not None
    assert replays.transitions == 4


class Moody(doubles.Corridor):
    """Where a right step leads is drawn: every other time it says something else."""

    deterministic = False
    number = 0

    def step(self, action):
        text, *rest = super().step(action)
        self.number += 1
        return (f"{text}\nit rains" if self.number % 2 else text, *rest)


def test_the_environment_played_again_is_the_ceiling():
    episodes = [
        doubles.episode(doubles.task(0, 1, 2), ["dance", "go right", "take coin"]),
        doubles.episode(doubles.task(0, 2, 4), ["go right"]),
    ]
    replays = fidelity.Replays(doubles.Corridor())
    result = replays.exact(episodes)
    assert (result["mean"], result["count"], replays.transitions) == (1.0, 4, 4)
    moody = fidelity.Replays(Moody())
    assert moody.stochastic
    assert not replays.stochastic
    result = moody.exact(episodes)
    # The first step of the first episode leads elsewhere: no other step is asked of.
    assert (result["mean"], result["count"]) == (0.5, 2)
    task = dataclasses.replace(episodes[0].task, options={"no": "such"})
    foreign = dataclasses.replace(episodes[0], task=task)
    result = replays.exact([foreign, episodes[1]])
    assert (result["mean"], result["count"], replays.failed) == (1.0, 1, 1)


class Dice(TextEnv):
    """`roll` draws from the generator that `reset` seeds, `count` does not."""

    deterministic = False

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.rolled, self.random = [], random.Random(seed)
        self.legacy = np.random.RandomState(seed)
        self.inner = InnerDie()
        self.inner.reset(seed=seed)
        return self.text(), {"instruction": "roll"}

    def text(self):
        return f"rolled {' '.join(map(str, self.rolled))} in {len(self.rolled)} rolls"

    def draw(self, kind):
        if kind == "random":
            return self.random.randrange(1000)
        if kind == "legacy":
            return int(self.legacy.randint(1000))
        if kind == "inner":
            return int(self.inner.np_random.integers(1000))
        return int(self.np_random.integers(1000))

    def step(self, action):
        verb, _, kind = action.partition(" ")
        self.rolled.append(self.draw(kind) if verb == "roll" else len(self.rolled))
        return self.text(), 0.0, False, False, {}


class InnerDie(gymnasium.Env):
    """An environment within the other one."""


@pytest.mark.parametrize("kind", ["own", "random", "legacy", "inner"])
def test_what_is_drawn_is_drawn_anew_where_a_query_is_played_again(kind):
    """A reset seeds the generators: without other seeds it would draw the same."""
    task = base.tasks_of(Dice(), "dice", "dev", 1)[0]
    way = ["roll own", f"roll {kind}", "count"]
    env = Dice()
    task, state = base.begin(env, task)
    transitions = []
    for action in way:
        text, *_ = env.step(action)
        transitions.append(
            Transition(state=state, action=action, next_state=lines(text))
        )
        state = lines(text)
    replays = fidelity.Replays(Dice())
    queries = [
        Query(task, tuple(way[:i]), t.state, t.action)
        for i, t in enumerate(transitions)
    ]
    again = [replays(query).next_state for query in queries]  # each arrives
    same = [a == t.next_state for a, t in zip(again, transitions, strict=True)]
    assert same == [False, False, True]
    episode = Episode(
        id="e",
        task=task,
        transitions=tuple(transitions),
        source="random",
        success=False,
    )
    assert fidelity.Replays(Dice()).exact([episode])["mean"] == 0.0


def test_tasks_that_are_seeds_are_played_again_by_their_seed():
    """What `tasks_of` makes for an environment that lists none."""
    tasks = base.tasks_of(doubles.Bare(), "bare", "dev", 4)
    episodes, queries = [], []
    for task in tasks:
        output, state = base.begin(doubles.Bare(), task)
        plan = doubles.plan(state)
        ts, at = [], state
        for action in plan:
            got = doubles.walk(at, action)
            ts.append(Transition(state=at, action=action, next_state=got.state))
            at = got.state
        episodes.append(
            Episode(
                id=task.id,
                task=output,
                transitions=tuple(ts),
                source="expert",
                success=True,
            )
        )
        queries.append(Query(output, tuple(plan[:-1]), ts[-1].state, plan[-1]))
    steps = sum(len(e.transitions) for e in episodes)
    replays = fidelity.Replays(doubles.Bare())
    result = replays.exact(episodes)
    assert (result["mean"], result["count"]) == (1.0, steps)
    assert [replays(q).rewarded for q in queries] == [True] * 4


def test_replays_end_where_none_reaches_its_state():
    """A task without a seed of its own begins otherwise each time."""
    task = base.tasks_of(doubles.Bare(), "bare", "dev", 1)[0]
    task, state = base.begin(doubles.Bare(), task)
    elsewhere = [Query(task, (), (f"no room {i}",), "go left") for i in range(40)]
    replays = fidelity.Replays(doubles.Bare())
    assert [replays(q) for q in elsewhere] == [None] * 40
    there = Query(task, (), state, doubles.plan(state)[0])
    assert replays(there) is None
    assert replays.transitions == 0
    replays = fidelity.Replays(doubles.Bare())
    assert replays(there) is not None
    assert [replays(q) for q in elsewhere] == [None] * 40
    again = there._replace(action="go nowhere")
    assert replays(again) is not None  # one state was reached


def after(env, task, actions):
    seen, _ = env.reset(options={"task": task})
    for action in actions:
        seen, *_ = env.step(action)
    return lines(seen)


@pytest.mark.parametrize("few", [True, False])
def test_ends_of_training_episodes_are_asked_for_where_dev_ends_are_few(
    run, few, monkeypatch, capsys
):
    """The corridor's rules give all ends of both."""
    train, dev = read_episodes(run.path("episodes.jsonl")), run.path("dev.jsonl")
    first_steps = [
        dataclasses.replace(e, transitions=e.transitions[:1], success=None)
        for e in read_episodes(dev)
        if not e.transitions[0].terminated
    ]
    write_episodes(dev, first_steps if few else train)
    run.config = changed(run.config, "fidelity.transitions", 400)  # all of them
    scorecard = measure(run, doubles.RuleModel(), "fidelity")
    assert ("training_ends" in scorecard) == few
    if few:
        ends = {
            (e.task.id, e.transitions[-1].state, e.transitions[-1].action)
            for e in train
            if e.transitions[-1].terminated
        }
        assert scorecard["training_ends"]["count"] == min(len(ends), 50) > 0
        assert scorecard["training_ends"]["mean"] == 1.0
    # The command asks for the same ends as the stage.
    model = doubles.RuleModel()
    monkeypatch.setattr(scorecard_command, "load_experience", lambda *_, **__: model)
    card, _ = scorecard_command.full_scorecard(run, None, 40)
    assert card.get("training_ends") == scorecard.get("training_ends")
    # It knows what real games say, where the run has played them.
    assert "real_games" not in card
    pair = {"mean": 0.2, "low": 0.1, "high": 0.3, "episodes": 60}
    row = summary([], real_transitions=9)
    won = {
        "policies": {"s2r": row, "real_only_total": row},
        "paired": {"s2r_minus_real_only_total": pair},
        "verdict": ["Dreaming paid: it won more."],
    }
    run.write_json("results.json", won)
    card, _ = scorecard_command.full_scorecard(run, None, 40)
    assert card["real_games"].startswith("In real games it paid: +0.200 [+0.100")
    run.write_json("results.json", won | {"policies": {"s2r": {"success": []}}})
    card, _ = scorecard_command.full_scorecard(run, None, 40)
    run.path("results.json").unlink()
    assert "real_games" not in card
    assert "'policies.s2r.success': expected a JSON object" in capsys.readouterr().err


def test_copies_of_a_policy_are_asked_about_once_under_its_name(run, monkeypatch):
    for name in scorecard_command.ON_POLICY:
        games = [doubles.expert(task) for task in doubles.tasks("test")[:2]]
        write_episodes(run.path(f"test/{name}.jsonl"), games)
    run.mark("expert_iteration", {"kept": "warmstart"})
    run.mark("train", {"kept": "dream"})
    monkeypatch.setattr(scorecard_command.fidelity, "score", lambda *_, **__: {})
    scores = scorecard_command.on_policy(run, doubles.RuleModel(), 4, [])
    assert list(scores) == ["warmstart", "dream"]


@pytest.mark.slow
def test_a_server_is_scored_on_the_same_page(run, capsys):
    state = list(read_episodes(run.path("dev.jsonl"))[0].task.initial_state)
    with chat_server.serving(saying(state)) as server:
        command = ["scorecard", str(run.root), "--limit", "12", "--server", server.url]
        assert cli.main([*command, "--json"]) == 0
        card = json.loads(capsys.readouterr().out)
        num_posts = len(server.posts)
        # Again: every answer is kept.
        assert cli.main(command) == 0
        assert len(server.posts) == num_posts > 0
    output = capsys.readouterr().out
    assert "dev-server.html" in output
    assert card["transitions"] == 12
    assert card["malformed"]["mean"] == 0.0
    assert card["usage"]["prompt_tokens"] == 10 * num_posts
    assert "error_detection_auroc" not in card  # a server tells one confidence, or none
    assert card["open_loop"]["episodes"] > 0
    page = (run.root / "scorecard/dev-server.html").read_text()
    assert "12 held-out real steps" in page


@pytest.mark.slow
def test_a_server_that_is_not_there_is_an_error_and_no_card(run, capsys):
    with chat_server.serving(saying([])) as server:
        url = server.url
    assert cli.main(["scorecard", str(run.root), "--server", url]) == 2
    assert "scorecard: unavailable:" in capsys.readouterr().err
    assert not (run.root / "scorecard/dev-server.json").exists()


def test_cards_of_other_episodes_are_not_written_over(tmp_path):
    held = Run(tmp_path, preset("tiny"))
    for name, episodes, expected in (
        ("real", "a/real.jsonl", "real"),
        ("real", "b/real.jsonl", "real-2"),
        ("real", "a/real.jsonl", "real"),
        ("real", "c/real.jsonl", "real-3"),
        ("real.v1", "real.v1.jsonl", "real.v1"),
        ("dev", "other/dev.jsonl", "dev-2"),
        ("dev-server", "dev.jsonl", "dev-server-2"),  # dev is the run's own
    ):
        free = scorecard_command._free(held, name, episodes)
        assert free == expected
        held.write_json(f"scorecard/{free}.json", {"episodes": episodes})
