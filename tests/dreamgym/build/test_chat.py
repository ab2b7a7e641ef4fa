"""A chat server as the dream: the stages over it, its death, what is asked and kept."""

import dataclasses
import json
import math
import shutil

import jax
import numpy as np
import pytest

from curriculum.config import CurriculumConfig, FeasibilityConfig
from dreamgym import cli
from dreamgym.build import episodes as run_episodes
from dreamgym.build import experience as run_experience
from dreamgym.build import models
from dreamgym.build.chat import ServerLost
from dreamgym.commands.inspection import show
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.config.stages import (
    FidelityConfig,
    ServerConfig,
    TrainConfig,
    UncertaintyConfig,
)
from dreamgym.rl.config import UpdateConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import output_console
from dreamgym.stages import collect, evaluate, fidelity, pretrain
from dreamgym.stages.policies import train
from tests import chat_server, doubles
from worldmodel.backbone.weights import load_model
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatUnavailable
from worldmodel.experience.base import Query
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.config import PromptedConfig

TASK = doubles.task(0, 1, 2)
LOOP = TrainConfig(
    updates=2,
    tasks_per_update=2,
    group_size=4,
    update=UpdateConfig(
        learning_rate=3e-3,
        warmup_steps=1,
        batch_rows=8,
        row_tokens=64,
        num_minibatches=2,
    ),
    curriculum=CurriculumConfig(proposals_per_update=1, generated_share=0.5),
)


def settings(url, **changes):
    """The tiny preset, tinier; a server that is waited for no longer than needed."""
    base = preset("tiny", {"env.id": "tests.doubles:Corridor"})
    quick = ChatConfig(base_url=url, model="m", retries=0, backoff=0.01, deadline=20.0)
    parts = {
        "server": ServerConfig(chat=quick, prompt=PromptedConfig(demonstrations=1)),
        "env": dataclasses.replace(base.env, max_episode_steps=3),
        "train": LOOP,
        "fidelity": FidelityConfig(transitions=6),
    }
    return dataclasses.replace(base, **(parts | changes))


def knowing(body):
    """What the corridor's rules say, read out of the prompt."""
    shown = chat_server.user_text(body)
    varies = "ACTION" not in shown
    # Of several seeds of a variation the first, else the state behind demonstrations.
    text = shown.partition("STATE\n")[2] if varies else shown.rpartition("STATE\n")[2]
    rows = text.partition("\n\n")[0].splitlines()
    state = tuple(json.loads(row.partition(" ")[2]) for row in rows)
    if varies:  # the coin moves one room on
        at, goal, end = (int(line.split()[1]) for line in state[:3])
        moved = doubles.start_state(at, (goal + 1) % (end + 1), end)
        return json.dumps({"instruction": "take the coin", "initial_state": moved})
    got = doubles.walk(state, json.loads(shown.rpartition("ACTION\n")[2]))
    outcome = "win" if got.success else "lose" if got.terminated else "go"
    reply = {"reasoning": "", "next_state": got.state, "reward": got.reward}
    return json.dumps(reply | {"outcome": outcome})


class Mortal:
    """A rule that answers so many posts, then none until it is revived."""

    def __init__(self):
        self.lives, self.answered = math.inf, []

    def __call__(self, body):
        if self.lives <= 0:
            return 503
        self.lives -= 1
        self.answered.append(json.dumps(body))
        return knowing(body)


@pytest.fixture(scope="module")
def rule():
    return Mortal()


@pytest.fixture(scope="module")
def server(rule):
    with chat_server.serving(chat_server.answering(rule)) as result:
        yield result


@pytest.fixture(scope="module")
def prepared(server, tmp_path_factory):
    """A run up to the dream; its warm start says each of the corridor's actions."""
    run = Run(tmp_path_factory.mktemp("prepared") / "r", settings(server.url))
    run.stage("collect", lambda: collect.body(run))
    run.stage("pretrain", lambda: pretrain.body(run))
    policy = doubles.cloned(doubles.ACTIONS, doubles.tasks("train")[4:40:9])
    lost = {"real_success": 0.0, "real_games/": 8.0}  # so that training is kept
    for name, numbers in (("warmstart", {}), ("expert_iteration", {"dreamed": lost})):
        models.save_policy(run, name, policy)
        run.stage(name, lambda numbers=numbers: dict(numbers))
    assert not server.posts  # nothing is asked before there is a policy
    return run


@pytest.fixture
def run(prepared, rule, tmp_path):
    """A copy of the prepared run, and a server that lives and knows of nothing."""
    rule.lives, rule.answered = math.inf, []
    shutil.copytree(prepared.root, tmp_path / "r")
    return Run.open(tmp_path / "r")


def dream(run):
    return run.stage("train", lambda: train.body(run))["numbers"]


@pytest.mark.medium
def test_a_policy_plans_in_the_answers_of_a_server(run, rule):
    plan = {"evaluate.tasks": 2, "evaluate.plan.method": "mpc"}
    plan |= {"evaluate.plan.depth": 2, "evaluate.plan.simulations": 6}
    for name, value in plan.items():
        run.config = changed(run.config, name, value)
    rule.lives = 0
    with pytest.raises(ServerLost, match="the same command goes on"):
        evaluate.body(run, "warmstart")
    assert not run.path("test/warmstart.jsonl").exists()
    rule.lives = math.inf
    numbers = evaluate.body(run, "warmstart")
    assert numbers["games"] == 2
    assert rule.answered
    assert numbers["dreamed_per_step"] > 0


def left(run):
    """What the loop left: parameters, and the curve."""
    model, _ = load_model(run.path("policies/dream"))
    curve = run.path("curves/dream.jsonl").read_text().splitlines()
    return jax.tree.leaves(model.params), [json.loads(row) for row in curve]


def equal(some, others):
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


# --- the stages ------------------------------------------------------------------


def test_nothing_is_fitted_and_the_numbers_say_so(prepared):
    numbers = prepared.done("pretrain")["numbers"]
    assert numbers["fitted"] == "nothing, a server is asked"
    assert not [k for k in numbers if "loss" in k]
    assert not prepared.path("curves").exists()
    episodes, _ = run_episodes.read(prepared)
    assert numbers["remembered"] == sum(len(e.transitions) for e in episodes)
    kept, _ = load_model(prepared.path("experience"))
    blank, _ = models.initial_model(prepared)
    assert equal(jax.tree.leaves(kept.params), jax.tree.leaves(blank.params))


@pytest.mark.medium
def test_a_policy_is_trained_and_after_a_death_of_the_server_as_without(
    run, prepared, rule, server, tmp_path
):
    numbers, queries = dream(run), sorted(rule.answered)
    params, curve = left(run)
    assert [row["unscored_rollouts"] for row in curve] == [0.0, 0.0]
    assert max(row["success"] for row in curve) > 0
    assert numbers["generated_tasks"] > 0
    warm, _ = load_model(run.path("policies/warmstart"))
    assert not equal(params, jax.tree.leaves(warm.params))
    # The double counts 10 tokens read and 4 written a post; no price is known.
    output = {k: v for k, v in numbers.items() if k.startswith("server")}
    assert output == {
        "server_requests": len(queries),
        "server_prompt_tokens": 10 * len(queries),
        "server_completion_tokens": 4 * len(queries),
    }

    shutil.copytree(prepared.root, tmp_path / "again")
    again, posts = Run.open(tmp_path / "again"), len(server.posts)
    rule.lives, rule.answered = len(queries) // 4, []  # while it trains
    with pytest.raises(ServerLost, match="status 503") as lost:
        dream(again)
    assert isinstance(lost.value.__cause__, ChatUnavailable)
    assert again.done("train") is None
    assert not again.path("policies/dream").exists()
    rule.lives = math.inf
    numbers_again = dream(again)
    # What was answered is not asked again, and all ends as if nothing had been.
    assert sorted(rule.answered) == queries
    params_again, curve_again = left(again)
    assert equal(params, params_again)
    assert curve == curve_again
    sent = len(server.posts) - posts
    assert sent > len(queries)
    counted = {"computed_share": numbers_again["computed_share"]}  # by each process
    assert numbers_again == numbers | {"server_requests": sent} | counted


@pytest.mark.slow
def test_a_run_with_a_question_that_is_refused_goes_on_after_a_kill(
    run, prepared, rule, server, tmp_path
):
    """Beside it all of its batch is in the cache then."""

    def mostly(body):
        left = chat_server.user_text(body).endswith('"go left"')
        return 413 if left else rule(body)

    server.behaviours = (chat_server.answering(mostly),)
    try:
        dream(run)
        params, curve = left(run)
        assert all(0 < row["unscored/dream"] < row["rollouts"] for row in curve)
        count, rule.answered = len(rule.answered), []
        shutil.copytree(prepared.root, tmp_path / "again")
        again, rule.lives = Run.open(tmp_path / "again"), count - 3
        with pytest.raises(ServerLost, match="status 503"):
            dream(again)
        rule.lives = math.inf
        dream(again)
    finally:
        server.behaviours = (chat_server.answering(rule),)
    assert len(rule.answered) == count
    assert curve == left(again)[1]
    assert equal(params, left(again)[0])


def test_the_scorecard_is_of_the_server_and_a_death_is_told_in_a_line(
    run, rule, server, capsys
):
    posts = len(server.posts)
    numbers = run.stage("fidelity", lambda: fidelity.body(run))["numbers"]
    assert numbers["exact_all"] == numbers["rewards_found"] == 1.0
    assert numbers["ends_found"] == numbers["success_agreement"] == 1.0
    assert numbers["copy_all"] < 1.0
    assert numbers["server_requests"] == len(server.posts) - posts > 6
    show.show(run, output_console())
    assert "Confidence: not known" in capsys.readouterr().out
    rule.lives = 0
    capsys.readouterr()
    assert cli.main(["scorecard", str(run.root)]) == 2
    (output,) = capsys.readouterr().err.splitlines()
    for word in ("scorecard: unavailable: ", server.url, "the same command goes on"):
        assert word in output
    assert not run.path("scorecard/dev-server.json").exists()


# --- uncertainty -----------------------------------------------------------------


def fill(other, run, *stages):
    """Let another run, of other settings, have what stages of a run have made."""
    for name in ("episodes.jsonl", "dev.jsonl"):
        shutil.copy(run.path(name), other.path(name))
    for name in stages:
        other.stage(name, dict)


@pytest.mark.parametrize(
    ("uncertainty", "stage"),
    [
        (UncertaintyConfig(false_abort_rate=0.1), fidelity.body),
        (UncertaintyConfig(penalty=0.5), train.body),
    ],
)
def test_doubt_needs_a_server_that_says_how_sure_it_is(run, server, uncertainty, stage):
    doubting = dataclasses.replace(run.config, uncertainty=uncertainty)
    other = Run(run.root.with_name("doubting"), doubting)
    fill(other, run, "collect", "pretrain", "warmstart")
    posts = len(server.posts)
    with pytest.raises(
        RunError,
        match=f"false_abort_rate {uncertainty.false_abort_rate:g}.*log-probabilities",
    ):
        stage(other)
    assert 0 < len(server.posts) - posts <= 4  # told before much is asked


def test_a_server_that_says_how_sure_it_is_may_be_doubted(run):
    with chat_server.serving(knowing_surely) as sure:
        config = settings(sure.url, uncertainty=UncertaintyConfig(false_abort_rate=0.1))
        other = Run(run.root.with_name("sure"), config)
        fill(other, run, "collect", "pretrain")
        fidelity.body(other)
        # Every answer is right and as sure as the other: none may be cut.
        card = other.read_json("fidelity.json")
        scale = Calibration.parsed(card["calibration"])
        other.stage("fidelity", dict)
        answers = [
            run_experience.load_experience(other, scaled=scaled).predict([query])[0]
            for scaled in (False, True)
            for query in [Query(TASK, (), TASK.initial_state, "go right")]
        ]
    sure = [answer.confidence for answer in answers]
    np.testing.assert_allclose(sure[0], math.exp(-0.5))
    assert sure[1] == scale.confidence(sure[0]) > sure[0]
    assert card["threshold"] == pytest.approx(sure[1])


@pytest.mark.parametrize("signal", ["nearest_neighbor", "self_consistency"])
def test_a_server_that_says_nothing_of_it_may_be_doubted_by_other_signs(
    run, server, signal
):
    """Every answer is right, agrees with every other, and is near one of the memory."""
    uncertainty = UncertaintyConfig(false_abort_rate=0.1, signal=signal)
    other = Run(
        run.root.with_name(signal), settings(server.url, uncertainty=uncertainty)
    )
    fill(other, run, "collect", "pretrain")
    posts = len(server.posts)
    other.stage("fidelity", lambda: fidelity.body(other))
    card = other.read_json("fidelity.json")
    experience = run_experience.load_experience(other)
    (answer,) = experience.predict([Query(TASK, (), TASK.initial_state, "go right")])
    assert (
        answer.confidence == 1.0
        if signal == "self_consistency"
        else 0 < answer.confidence
    )
    assert 0 < card["threshold"] <= 1.0
    num_posts = len(server.posts) - posts
    assert num_posts >= 4 * card["transitions"] * (signal == "self_consistency")


def knowing_surely(handler, body):
    text = knowing(body)
    at = text.index('"next_state"')
    rows = [(text[:at], -9.0), (text[at:], -0.5)]
    output = {"content": [{"token": t, "logprob": x} for t, x in rows]}
    chat_server.ok(text, logprobs=output)(handler, body)


# --- settings --------------------------------------------------------------------


def test_the_settings_name_the_key_and_open_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    chat = ChatConfig(base_url="https://h/v1", model="m", api_key_env="MY_KEY")
    config = preset("tiny", server=ServerConfig(chat=chat))
    made = Run(tmp_path / "r", config)
    assert "sk-secret" not in made.path("manifest.json").read_text()
    assert Run.open(tmp_path / "r").config == config
    plain = preset("tiny")
    assert plain.digest() != config.digest()
    made.mark("collect", {})
    with pytest.raises(RunError, match="server: "):
        Run(tmp_path / "r", plain)


TRIED = CurriculumConfig(feasibility=FeasibilityConfig(samples=2))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "uncertainty.signal = self_consistency",
            {"uncertainty": UncertaintyConfig(signal="self_consistency")},
        ),
        (
            "train.curriculum.feasibility.samples",
            {"train": dataclasses.replace(LOOP, curriculum=TRIED)},
        ),
    ],
)
def test_agreement_needs_noise(name, changes):
    chat = ChatConfig(base_url="http://h/v1", model="m")
    cold = dataclasses.replace(chat, temperature=0.0)
    with pytest.raises(ValueError, match=rf"{name} .*temperature must be > 0"):
        preset("tiny", server=ServerConfig(chat=cold), **changes)
    preset("tiny", server=ServerConfig(chat=chat), **changes)
    preset("tiny", server=ServerConfig(chat=cold))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pretrain.permute_outcomes", True),
        ("data.base_run", "runs/a"),
        ("pretrain.rare_event_share", 0.5),
        ("ensemble.members", 2),
    ],
)
def test_what_is_about_a_fit_is_not_asked_of_a_server(name, value):
    config = settings("http://h/v1")
    with pytest.raises(ValueError, match=f"{name} is about a fitted .*not fitted"):
        changed(config, name, value)
