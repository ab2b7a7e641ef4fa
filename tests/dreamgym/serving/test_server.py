"""The server: OpenEnv's messages, limits, isolation, batches, a graceful stop."""

import json
import threading
import time

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from websockets.exceptions import ConnectionClosed, InvalidStatus

from dreamgym.envs import restarting
from dreamgym.serving.config import ServingConfig
from dreamgym.serving.worlds import real_world
from tests import doubles
from tests.dreamgym.serving.common import (
    Client,
    code,
    dream,
    plan_of,
    running,
    running_dream,
)


class Slow(doubles.RuleModel):
    """The rules, after a moment; it notes how many queries it was asked together."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.sizes = seconds, []

    def predict(self, queries):
        self.sizes.append(len(queries))
        time.sleep(self.seconds)
        return super().predict(queries)


@pytest.fixture
def server():
    with running_dream() as running_server:
        yield running_server


def test_an_episode_is_played_to_its_end_with_all_that_is_known(server):
    with Client(server.url) as client:
        first = client.reset(seed=3, split="train", details=True)
        assert (first["reward"], first["done"]) == (None, False)
        assert first["observation"]["instruction"] == "take the coin"
        facts = first["metadata"]
        assert (facts["seed"], facts["split"], facts["step"]) == (3, "train", 0)
        assert facts["model_version"] == "0123456789ab"
        assert first["observation"]["metadata"] == facts
        for action in plan_of(first):
            last = client.step(action)
        assert (last["reward"], last["done"]) == (1.0, True)
        facts = last["metadata"]
        assert (facts["success"], facts["truncated"], facts["error"]) == (
            True,
            False,
            None,
        )
        assert (facts["reasoning"], facts["confidence"]) == ("", 1.0)
        assert facts["recalled"][0]["action"] == "go right"
        state = client.ask({"type": "state"})["data"]
        assert state["step_count"] == facts["step"]
        assert state["running"] is False


def test_the_step_limit_truncates_and_a_broken_answer_is_unscored():
    broken = dream(doubles.RuleModel(broken=["dance"]), max_steps=2)
    with running_dream(broken) as server, Client(server.url) as client:
        *_, last = client.episode(["fly", "fly"], seed=1)
        assert (last["reward"], last["done"]) == (0.0, True)
        assert (last["metadata"]["truncated"], last["metadata"]["success"]) == (
            True,
            False,
        )
        *_, last = client.episode(["dance"], seed=1)
        assert (last["reward"], last["done"]) == (None, True)
        assert last["metadata"]["error"] == "dream: garbled"
        assert server.metric("dreamgym_episodes_ended_total", end="error") == 1


def test_steps_outside_an_episode_are_refused_by_name(server):
    with Client(server.url) as client:
        step = {"type": "step", "data": {"message": "go right"}}
        early = client.ask(step)
        assert code(early) == ("EXECUTION_ERROR", "step_before_reset")
        first = client.reset(seed=0)
        for action in plan_of(first):
            client.step(action)
        late = client.ask(step)
        assert code(late) == ("EXECUTION_ERROR", "step_after_end")
        assert "reset" in late["data"]["message"]
        assert client.reset(seed=0)["observation"] == first["observation"] | {
            "metadata": client.reset(seed=0)["metadata"]
        }


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ("{", ("INVALID_JSON", "invalid_json")),
        ("[" * 30_000, ("INVALID_JSON", "invalid_json")),
        ("[1]", ("VALIDATION_ERROR", "invalid_message")),
        ({"type": "nope"}, ("UNKNOWN_TYPE", "unknown_type")),
        ({"type": ["x"]}, ("UNKNOWN_TYPE", "unknown_type")),
        ({"type": "step"}, ("VALIDATION_ERROR", "invalid_message")),
        (
            {"type": "step", "data": {"action": {}}},
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            {"type": "step", "data": {"message": 3}},
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            {"type": "step", "data": {"message": "x" * 2001}},
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            '{"type": "step", "data": {"message": "\\ud800"}}',
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            {"type": "step", "data": {"message": "x"}, "request_id": "r"},
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            {"type": "reset", "data": {"seed": -1}},
            ("VALIDATION_ERROR", "invalid_message"),
        ),
        (
            {"type": "reset", "data": {"seed": 1, "split": "holiday"}},
            ("VALIDATION_ERROR", "no_such_task"),
        ),
        (
            {"type": "reset", "data": {"index": 10**6}},
            ("VALIDATION_ERROR", "no_such_task"),
        ),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_session_goes_on(
    server, message, refusal
):
    with Client(server.url) as client:
        assert code(client.ask(message)) == refusal
        assert client.reset(seed=1)["done"] is False


def test_equal_seeds_give_equal_episodes_whatever_else_runs(server):
    """And a reset without a seed says which one it drew."""
    actions = ["go right", "go right", "take coin", "go left", "go left", "go left"]

    def played(**data):
        with Client(server.url) as client:
            answers = client.episode(actions, **data)
        return [(a["observation"], a["reward"], a["done"]) for a in answers]

    alone = played(seed=11, episode_id="e")
    results, threads = {}, []
    for n in range(12):
        seed = 11 if n % 2 else n
        thread = threading.Thread(
            target=lambda n=n, seed=seed: results.update(
                {n: played(seed=seed, episode_id="e")}
            )
        )
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[n] == alone for n in range(1, 12, 2))
    assert len({json.dumps(results[n]) for n in range(12)}) > 2
    with Client(server.url) as client:
        first = client.reset()
        assert "no seed" in first["metadata"]["warning"]
        named = client.reset(seed=1, task="corridor-0")["metadata"]["warning"]
        assert "reset ignores ['task']; it reads" in named
        again = client.reset(seed=first["metadata"]["seed"])
        assert again["observation"]["text"] == first["observation"]["text"]


def test_queries_of_sessions_are_answered_together():
    model = Slow(0.05)
    with running_dream(dream(model)) as server:
        clients = [Client(server.url) for _ in range(16)]
        for client in clients:
            client.reset(seed=1)
        start = time.monotonic()
        for _ in range(3):
            for client in clients:
                client.send({"type": "step", "data": {"message": "fly"}})
            for client in clients:
                client.receive()
        seconds = time.monotonic() - start
        for client in clients:
            client.close()
        assert max(model.sizes) >= 8
        # One by one it would be 48 calls, or 2.4 s.
        assert len(model.sizes) - 1 <= 12, model.sizes
        assert seconds < 1.5
        assert server.metric("dreamgym_model_batch_size_sum") == 48


def test_a_full_server_refuses_clearly_and_has_room_again_later():
    with running_dream(max_sessions=2) as server:
        with Client(server.url), Client(server.url) as second:
            second.reset(seed=0)
            third = Client(server.url)
            refusal = third.receive()
            assert code(refusal) == ("CAPACITY_REACHED", "capacity")
            assert refusal["data"]["active_sessions"] == 2
            with pytest.raises(ConnectionClosed) as closed:
                third.receive()
            assert closed.value.rcvd.code == 1013
            assert httpx.post(f"{server.url}/reset", json={}).status_code == 503
        server.wait_for_sessions(0)
        with Client(server.url) as client:
            assert client.reset(seed=0)["done"] is False


def test_an_idle_session_ends():
    with running_dream(idle_seconds=0.2) as server, Client(server.url) as client:
        client.reset(seed=0)
        assert code(client.receive()) == ("SESSION_ERROR", "idle")
        with pytest.raises(ConnectionClosed):
            client.receive()
        server.wait_for_sessions(0)


@pytest.mark.medium
def test_a_turn_that_takes_too_long_ends_its_session_alone():
    with running_dream(dream(Slow(1.0)), turn_seconds=0.3) as server:
        with Client(server.url) as client, Client(server.url) as other:
            client.reset(seed=0)
            late = client.ask({"type": "step", "data": {"message": "fly"}})
            assert code(late) == ("SESSION_ERROR", "deadline")
            # Its place is taken until the environment has come back.
            assert server.server.table.active == 2
            assert other.reset(seed=0)["done"] is False
        server.wait_for_sessions(0)


def test_clients_that_vanish_leak_nothing():
    with running_dream(max_sessions=24) as server:
        for _ in range(4):
            clients = [Client(server.url) for _ in range(24)]
            for number, client in enumerate(clients):
                client.send({"type": "reset", "data": {"seed": number}})
                if number % 3:
                    client.receive()
                    client.send({"type": "step", "data": {"message": "go right"}})
                if number % 4:
                    client.socket.socket.close()  # without a word
                else:
                    client.receive()
                    client.close()
            server.wait_for_sessions(0)
        closes = {
            reason: server.metric("dreamgym_sessions_closed_total", reason=reason)
            for reason in ("client_gone", "close")
        }
        assert closes == {"client_gone": 72, "close": 24}
        deadline = time.monotonic() + 5
        while any(t.name.startswith("session-") for t in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.medium
def test_a_stop_lets_episodes_end_and_tells_those_that_do_not():
    with running_dream(grace_seconds=1.5) as server:
        playing, idle, lasting = (Client(server.url) for _ in range(3))
        plan = plan_of(playing.reset(seed=4))
        idle.ask({"type": "state"})
        lasting.reset(seed=4)
        server.server.stop()
        assert code(idle.receive()) == ("SESSION_ERROR", "server_stopping")
        with Client(server.url) as late:
            assert code(late.receive()) == ("CAPACITY_REACHED", "server_stopping")
        for action in plan:
            last = playing.step(action)
        assert (last["reward"], last["done"]) == (1.0, True)
        assert code(playing.receive()) == ("SESSION_ERROR", "server_stopping")
        assert code(lasting.receive()) == ("SESSION_ERROR", "server_stopping")
        server.thread.join(10)
        assert not server.thread.is_alive()
        assert server.server.table.active == 0


# --- pages -------------------------------------------------------------------


def test_pages_are_those_of_openenv(server):
    get = httpx.Client(base_url=server.url).get
    post = httpx.Client(base_url=server.url).post
    assert get("/health").json() == {"status": "healthy"}
    facts = get("/metadata").json()
    assert facts["name"] == "corridor"
    assert facts["version"] == "0123456789ab"
    assert facts["splits"] == ["train", "dev"]
    schema = get("/schema").json()
    assert schema["action"]["required"] == ["message"]
    assert set(schema) == {"action", "observation", "state"}
    paths = get("/openapi.json").json()["paths"]
    assert {"/reset", "/step", "/state", "/mcp", "/health"} <= set(paths)
    assert post("/mcp", json={}).json()["error"]["code"] == -32600
    assert post("/mcp", content=b"{").json()["error"]["code"] == -32700
    call = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}
    assert post("/mcp", json=call).json()["id"] == 4
    first = post("/reset", json={"seed": 2, "unknown": 1}).json()
    assert first["done"] is False
    assert post("/step", json={"action": {"message": "x"}}).status_code == 409
    assert post("/step", json={"message": "x"}).status_code == 422
    assert get("/state").json()["episode_id"] is None
    assert post("/reset", content=b"x" * 70_000).status_code == 413
    text = get("/metrics").text
    assert "dreamgym_sessions 0.0" in text
    assert "dreamgym_step_seconds_count" in text
    server.wait_for_sessions(0)


def test_the_task_api_names_the_tasks_that_reset_begins(server):
    api = httpx.Client(base_url=server.url)
    assert api.get("/list_environments").json() == ["corridor"]
    assert api.get("/corridor/splits").json() == ["train", "dev"]
    count = api.post("/corridor/num_tasks", json={"split": "dev"}).json()["num_tasks"]
    assert count == len(doubles.tasks("dev"))
    rows = api.post(
        "/corridor/task_range", json={"split": "dev", "start": 2, "stop": 4}
    ).json()["tasks"]
    assert [r["id"] for r in rows] == [t.id for t in doubles.tasks("dev")[2:4]]
    with Client(server.url) as client:
        first = client.reset(split="dev", index=3)
        assert first["metadata"]["task"] == rows[1]["id"]
        assert "warning" not in first["metadata"]
    beyond = api.post("/corridor/task", json={"split": "dev", "index": count})
    assert beyond.status_code == 400
    assert api.get("/elsewhere/splits").status_code == 404
    assert api.post("/corridor/num_tasks", json={"split": "x"}).status_code == 400


def test_the_page_permits_its_own_script_alone(server):
    answer = httpx.get(server.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "innerHTML" not in answer.text
    assert "http://" not in answer.text.replace("http://www.w3.org", "")


# --- who may ask -------------------------------------------------------------


def test_pages_of_other_origins_and_other_names_are_refused(server):
    page = {"Origin": "https://evil.example"}
    assert httpx.post(f"{server.url}/reset", json={}, headers=page).status_code == 403
    with pytest.raises(InvalidStatus):
        Client(server.url, origin="https://evil.example")
    name = {"Host": "evil.example"}
    assert httpx.get(f"{server.url}/metadata", headers=name).status_code == 421
    with Client(server.url, origin=server.url) as client:
        assert client.reset(seed=0)["done"] is False


def test_a_token_is_asked_for_where_there_is_one():
    token = "a-token-of-16-or-more"
    with running_dream(token=token, host="0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/metadata").status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/metadata", headers=bearer).status_code == 200
        with pytest.raises(InvalidStatus):
            Client(url)
        with Client(url, additional_headers=bearer) as client:
            assert client.reset(seed=0)["done"] is False
        protocols = ["dreamgym", f"bearer.{token}"]
        with Client(url, subprotocols=protocols) as client:
            assert client.socket.subprotocol == "dreamgym"
            assert client.reset(seed=0)["done"] is False
        with pytest.raises(InvalidStatus):
            Client(url, subprotocols=["dreamgym", "bearer.wrong-token-of-16"])


def test_others_than_this_machine_need_a_token():
    world = real_world("tests.doubles:Corridor")
    for token, message in (
        ("", "--token-env"),
        ("short", "at least 16"),
        ("ä" * 20, "A-Z"),
    ):
        with (
            pytest.raises(ValueError, match=message),
            running(world, host="0.0.0.0", token=token),
        ):
            pass


def test_limits_are_checked():
    for bad in ({"max_sessions": 0}, {"idle_seconds": 0.0}, {"grace_seconds": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}.* >"):
            ServingConfig(**bad)


# --- real environments -------------------------------------------------------


def test_a_real_environment_is_served_the_same_way():
    with running(real_world("tests.doubles:Corridor")) as server:
        with Client(server.url) as client, Client(server.url) as other:
            first = client.reset(seed=5, split="test")
            other.reset(seed=5, split="test")
            for action in plan_of(first):
                last = client.step(action)
            assert (last["reward"], last["metadata"]["success"]) == (1.0, True)
            assert other.step("fly")["metadata"]["invalid"] is True
            assert "confidence" not in last["metadata"]
        server.wait_for_sessions(0)


def test_an_environment_without_tasks_is_served_by_seeds_of_its_splits():
    with running(real_world("tests.doubles:Bare")) as server:
        with Client(server.url) as client:
            one = client.reset(seed=5, split="train")
            two = client.reset(seed=5, split="dev")
            again = client.reset(seed=5, split="train")
        assert one["metadata"]["task"].endswith("train-5")
        assert two["metadata"]["task"].endswith("dev-5")
        assert one["observation"]["text"] == again["observation"]["text"]


class Lots(doubles.Corridor):
    """Says a number that it draws, at each step."""

    def step(self, action):
        text, *rest = super().step(action)
        return f"{text}\nlot {self.np_random.integers(10**6)}", *rest


def test_equal_seeds_give_equal_lots(monkeypatch):
    monkeypatch.setattr(doubles, "Lots", Lots, raising=False)

    def lots(url, **data):
        with Client(url) as client:
            answers = client.episode(["fly", "fly", "fly"], **data)
        return [a["observation"]["text"] for a in answers[1:]]

    with running(real_world("tests.doubles:Lots")) as server:
        first = lots(server.url, seed=5, index=2)
        assert lots(server.url, seed=5, index=2) == first
        assert lots(server.url, seed=6, index=2) != first


class Fragile(doubles.Corridor):
    """Breaks at `crash`."""

    def step(self, action):
        if action == "crash":
            raise KeyError("no such room")
        return super().step(action)


def test_an_environment_that_fails_ends_its_episode_and_no_other(monkeypatch):
    monkeypatch.setattr(doubles, "Fragile", Fragile, raising=False)
    with running(real_world("tests.doubles:Fragile")) as server:
        with Client(server.url) as client, Client(server.url) as other:
            client.reset(seed=0)
            other.reset(seed=0)
            answer = client.ask({"type": "step", "data": {"message": "crash"}})
            assert code(answer) == ("EXECUTION_ERROR", "environment_failed")
            assert "no such room" in answer["data"]["message"]
            late = client.ask({"type": "step", "data": {"message": "go right"}})
            assert code(late) == ("EXECUTION_ERROR", "step_after_end")
            assert other.step("go right")["done"] is False
            assert client.reset(seed=0)["done"] is False


class Lost(doubles.Corridor):
    """Loses its connection at `lose`."""

    def step(self, action):
        if action == "lose":
            raise ConnectionError("no answer")
        return super().step(action)


class Exits(doubles.Corridor):
    """Ends the program where it is made, but for the first time."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        if self.made > 1:
            raise SystemExit(3)


def test_an_environment_that_is_down_says_so_and_the_session_goes_on(monkeypatch):
    monkeypatch.setattr(doubles, "Lost", Lost, raising=False)
    with (
        running(real_world("tests.doubles:Lost")) as server,
        Client(server.url) as client,
    ):
        codes = []
        for _ in range(restarting.PATIENCE + 1):
            client.reset(seed=0)
            answer = client.ask({"type": "step", "data": {"message": "lose"}})
            codes.append(code(answer)[1])
        assert "environment_down" in codes
        assert client.reset(seed=0)["done"] is False
        assert client.step("go right")["done"] is False


def test_an_environment_that_ends_the_program_ends_no_session(monkeypatch):
    monkeypatch.setattr(doubles, "Exits", Exits, raising=False)
    Exits.made = 0
    with (
        running(real_world("tests.doubles:Exits")) as server,
        Client(server.url) as client,
    ):
        answer = client.ask({"type": "reset", "data": {"seed": 0}})
        assert code(answer) == ("FACTORY_ERROR", "no_environment")


class OneSplit(doubles.Corridor):
    def tasks(self, split):
        return {"train": super().tasks("train")}[split]


def test_tasks_that_raise_are_named_before_a_world_is_served(monkeypatch):
    monkeypatch.setattr(doubles, "OneSplit", OneSplit, raising=False)
    with pytest.raises(ValueError, match=r"tasks\('dev'\) failed: KeyError: 'dev'"):
        real_world("tests.doubles:OneSplit")


def test_an_origin_that_is_no_url_is_forbidden():
    with running(real_world("tests.doubles:Corridor")) as server:
        headers = {"Origin": "http://["}
        assert httpx.get(f"{server.url}/health", headers=headers).status_code == 403


@pytest.mark.medium
def test_an_environment_in_a_process_may_crash_and_hang():
    spec = "tests.dreamgym.envs.workers.faults:Faulty"
    with running(real_world(spec, processes=True)) as server:
        with Client(server.url) as client, Client(server.url) as other:
            client.reset(seed=0)
            other.reset(seed=0)
            for action, reason in (("hang", "no answer within 2 s"), ("exit", "3")):
                answer = client.ask({"type": "step", "data": {"message": action}})
                assert code(answer) == ("EXECUTION_ERROR", "environment_failed")
                assert reason in answer["data"]["message"]
                assert other.step("go right")["done"] is False
                assert client.reset(seed=0)["done"] is False
            assert client.step("go right")["done"] is False
