"""An OpenEnv server as a real environment, whatever it answers."""

import contextlib
import socket
import time

import pytest

pytest.importorskip("websockets", reason="the extra remote is not installed")

from dreamgym.agent import floors
from dreamgym.envs import base, registry, restarting, vector
from dreamgym.envs.contract import checker
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.remote.connection import ProtocolError, ServerFull, ServerRefusal
from dreamgym.envs.remote.env import Unscored
from tests import doubles
from tests.dreamgym.envs.remote.faulty import FAULTS, Faulty
from worldmodel.data.records import Task

QUICK = "#reset_seconds=0.8&step_seconds=0.8"


@pytest.fixture(scope="module")
def faulty():
    with Faulty() as server:
        yield server


@contextlib.contextmanager
def env_of(server, options=QUICK):
    env = registry.make(server.url + options)
    try:
        yield env
    finally:
        env.close()


def seed_task(seed, split="train"):
    return Task(id=f"s{seed}", instruction="", split=split, options={"seed": seed})


def test_episodes_are_played_each_on_a_connection_of_its_own(faulty):
    before = faulty.opened
    with env_of(faulty) as env:
        assert env.get_wrapper_attr("max_episode_steps") == 9
        for seed in (0, 3, 0):
            task, state = base.begin(env, seed_task(seed))
            plan = doubles.plan(state)
            for action in plan:
                step = base.take(env, action)
            assert (step.terminated, step.success) == (True, True)
            assert step.rewards == {"reward": 1.0}
            assert task.initial_state == doubles.tasks("train")[seed].initial_state
            with pytest.raises(RuntimeError, match="call reset"):
                env.step("go right")
    assert faulty.opened == before + 3
    assert faulty.resets[-1] == {"seed": 0, "split": "train"}


def test_the_tasks_are_seeds_where_the_server_lists_none(faulty):
    with env_of(faulty) as env:
        assert base.as_tasks(env) is None
        tasks = base.tasks_of(env, "e", "dev", 2)
        assert [t.options["seed"] for t in tasks] == [10_000_000, 10_000_001]


# --- faults ------------------------------------------------------------------

ERRORS = {
    "late": (EnvironmentTimeout, "no answer within"),
    "dropped": (ConnectionError, "connection"),
    "closed": (ConnectionError, "connection"),
    "error": (ServerRefusal, "broken"),
    "over-long": (base.TextTooLong, "150,000 characters"),
    "huge": (ConnectionError, "connection"),
    "surrogate": (ValueError, "surrogates"),
    "schema": (ProtocolError, "observation object"),
    "reward": (ProtocolError, "expected a number or null"),
    "garbled": (ProtocolError, "expected JSON"),
    "unscored": (Unscored, "unscored"),
}


@pytest.mark.parametrize("fault", ERRORS)
def test_a_step_that_goes_wrong_ends_its_episode_with_the_reason(faulty, fault):
    kind, message = ERRORS[fault]
    with env_of(faulty) as env:
        base.begin(env, seed_task(1))
        with pytest.raises(kind, match=message):
            base.take(env, fault)
        if fault not in ("over-long", "surrogate"):  # the text alone is at fault
            with pytest.raises(RuntimeError, match="call reset"):
                env.step("go right")
        steps = len(faulty.steps)
        _, state = base.begin(env, seed_task(2))  # and the next one is sound
        assert state == doubles.tasks("train")[2].initial_state
        assert base.take(env, "fly").error is None
        assert len(faulty.steps) == steps + 1


@pytest.mark.parametrize(
    "fault", [f for f in ERRORS if f not in ("unscored", "dropped", "closed", "huge")]
)
def test_a_reset_that_goes_wrong_says_why(faulty, fault):
    kind, message = ERRORS[fault]
    seed = next(s for s, f in FAULTS.items() if f == fault)
    with env_of(faulty) as env, pytest.raises(kind, match=message):
        base.begin(env, seed_task(seed))


@pytest.mark.parametrize("seed", [902, 903])
def test_a_server_that_closes_before_it_answers_is_asked_until_the_deadline(
    faulty, seed
):
    before, start = faulty.opened, time.monotonic()
    with env_of(faulty) as env, pytest.raises(ServerFull, match="closed before"):
        base.begin(env, seed_task(seed))
    assert 0.1 < time.monotonic() - start < 2
    assert faulty.opened - before >= 2


def test_a_step_without_a_reward_counts_nothing_until_the_end(faulty):
    with env_of(faulty) as env:
        base.begin(env, seed_task(1))
        step = base.take(env, "no-reward")
        assert (sum(step.rewards.values()), step.terminated) == (0.0, False)
        step = base.take(env, "truncated")
        assert (step.terminated, step.truncated, step.success) == (False, True, False)
        assert step.rewards == {"reward": 0.25}


def test_a_full_server_is_asked_again(faulty):
    faulty.full = 2
    with env_of(faulty, "#reset_seconds=5") as env:
        _, state = base.begin(env, seed_task(4))
    assert state == doubles.tasks("train")[4].initial_state
    assert faulty.full == 0
    # The refusal, or the end of the connection, whichever the client notices first.
    message = "CAPACITY_REACHED|closed before"
    faulty.full = 1000
    try:
        with env_of(faulty) as env, pytest.raises(ServerFull, match=message):
            base.begin(env, seed_task(4))
    finally:
        faulty.full = 0


def test_nothing_of_a_broken_episode_is_scored(faulty):
    """A batch of real episodes: a fault ends one, unscored, and the others go on."""
    envs = vector.RealVectorEnv.growing(
        lambda: registry.make(faulty.url + QUICK), limit=4, max_steps=8
    )
    faults = ["garbled", "late", "unscored", "fly"]
    envs.reset(options={"tasks": [seed_task(n) for n in range(4)]})
    *broken, sound = envs.step(faults)
    for step, name in zip(
        broken, ("ProtocolError", "Timeout", "Unscored"), strict=True
    ):
        assert step.error is not None
        assert name in step.error
        assert (step.rewards, step.success) == ({}, False)
    assert sound.error is None
    envs.close()


def test_a_lost_episode_is_played_again_on_a_fresh_connection(faulty, monkeypatch):
    """As every environment whose process dies: the same observations, or not at all."""
    env = restarting.open_env(faulty.url + QUICK)
    base.begin(env, seed_task(7))
    base.take(env, "fly")
    lost = iter([True])

    def dropped(action):
        if next(lost, False):
            env.env.unwrapped._connection.close()
            raise ConnectionResetError("lost")
        return type(env.env.unwrapped).step(env.env.unwrapped, action)

    monkeypatch.setattr(env.env.unwrapped, "step", dropped)
    before = list(faulty.steps)
    step = base.take(env, "dance")
    assert step.error is None
    assert faulty.steps[len(before) :] == ["fly", "dance"]
    env.close()


# --- what a server says of itself --------------------------------------------


def test_pages_that_make_no_sense_are_refused_at_once():
    long = b'{"action": "' + b"x" * 5_000_000 + b'"}'
    for pages, kind, message in (
        ({"/schema": {"action": 3}}, ProtocolError, "JSON schema"),
        ({"/schema": b"<html>"}, ProtocolError, "expected JSON"),
        ({"/schema": [1]}, ProtocolError, "JSON object"),
        ({"/schema": long}, ProtocolError, "more than"),
        ({"/schema": None}, ConnectionError, "status 404"),
    ):
        with Faulty(**pages) as server, pytest.raises(kind, match=message):
            registry.make(server.url)


def test_nobody_who_listens_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionError, match="/schema: ConnectError"):
        registry.make(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("http://", "expected http://HOST:PORT"),
        ("http://h/?a=b", "expected http://HOST:PORT"),
        ("http://u:p@h", "expected http://HOST:PORT"),
        ("http://h#nope=1", "no option 'nope'; have"),
        ("http://h#step_seconds=0", "step_seconds must be > 0, got '0'"),
        ("http://h#reset_seconds=x", "reset_seconds must be > 0, got 'x'"),
        ("http://h#token_env=NOT_SET", "variable 'NOT_SET' is not set"),
    ],
)
def test_a_malformed_url_is_named(spec, message, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ValueError, match=message):
        registry.parse_spec(spec)


def test_a_token_is_sent_with_every_request(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    with Faulty() as server, env_of(server, "#token_env=MY_TOKEN") as env:
        base.begin(env, seed_task(0))
        assert set(server.headers) == {"Bearer secret"}
        assert "secret" not in repr(registry.parse_spec(f"{server.url}"))


def test_the_fields_of_texts_can_be_named():
    with Faulty() as server, env_of(server, "#action=message&observation=text") as env:
        assert base.begin(env, seed_task(0))[1]
    with (
        Faulty() as server,
        pytest.raises(ProtocolError, match="no field 'x'"),
        env_of(server, "#action=x"),
    ):
        pass


# --- our own server ----------------------------------------------------------


@pytest.mark.medium
def test_our_own_server_is_an_environment_that_keeps_the_contract():
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from dreamgym.serving.worlds import real_world
    from tests.dreamgym.serving.common import running

    with running(real_world("tests.doubles:Corridor")) as server:
        env = registry.make(server.url)
        lister = base.as_tasks(env)
        assert lister is not None
        for split in base.SPLITS:
            assert len(lister.tasks(split)) == len(doubles.tasks(split))
        real = doubles.Corridor()
        for mine, theirs in zip(
            lister.tasks("test")[:5], doubles.tasks("test"), strict=False
        ):
            task, state = base.begin(env, mine)
            assert (task.instruction, state) == ("take the coin", theirs.initial_state)
            base.begin(real, theirs)
            for action in ["fly", *doubles.plan(state)]:
                assert base.take(env, action)._replace(
                    rewards={}, reveals=None
                ) == base.take(real, action)._replace(rewards={}, reveals=None)
        report = checker.check(
            env, name=server.url, make=lambda: registry.make(server.url)
        )
        assert report.faults == ()
        env.close()
        server.wait_for_sessions(0)


def test_episodes_of_a_remote_environment_are_collected_and_played():
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from dreamgym.serving.worlds import real_world
    from tests.dreamgym.serving.common import running

    with running(real_world("tests.doubles:Corridor")) as server:
        env = restarting.open_env(server.url)
        tasks = base.begin_all(env, base.tasks_of(env, server.url, "train", 4))
        played = floors.play_scripted(
            env,
            tasks,
            lambda env, task: floors.random_actor(
                env, task, list(doubles.ACTIONS), seed=0
            ),
            source="random",
            max_steps=6,
            seed=0,
            progress=lambda *_: None,
        )
        env.close()
    assert len(played) == 4
    assert all(t.error is None and t.episode.success is not None for t in played)
