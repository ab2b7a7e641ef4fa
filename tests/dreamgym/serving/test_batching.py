"""Queries of many threads, answered together."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from dreamgym.serving import batching
from dreamgym.serving.batching import BatchedExperienceModel
from tests import doubles
from worldmodel.data.seed_tasks import seed_tasks
from worldmodel.experience.base import Query
from worldmodel.memory import ReplayMemory

TASKS = doubles.tasks("train")


class Counting(doubles.RuleModel):
    """The rules; a call takes a moment, and `fall` fails."""

    def __init__(self, seconds=0.02):
        super().__init__()
        self.seconds, self.sizes = seconds, []

    def predict(self, queries):
        self.sizes.append(len(queries))
        time.sleep(self.seconds)
        if any(q.action == "fall" for q in queries):
            raise ConnectionError("the model is gone")
        return super().predict(queries)


def query(number, action="go right"):
    task = TASKS[number % len(TASKS)]
    return Query(task, (), task.initial_state, action)


def test_every_query_gets_its_own_answer_and_sessions_fall_into_step():
    inner, seen = Counting(), []
    model = BatchedExperienceModel(inner, on_batch=lambda *row: seen.append(row))

    def play(number):
        (asked,) = [query(number)]
        for _ in range(10):
            (answer,) = model.predict([asked])
            assert answer == doubles.RuleModel().predict([asked])[0]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(play, range(16)))
    model.close()
    assert sum(inner.sizes) == 160
    # One by one it would be 160 calls; in step 10.
    assert len(inner.sizes) <= 30, inner.sizes
    assert [size for size, _ in seen] == inner.sizes
    assert all(seconds >= 0.02 for _, seconds in seen)


def test_a_single_session_never_waits_for_others(monkeypatch):
    monkeypatch.setattr(batching, "LINGER_SECONDS", 5.0)
    model = BatchedExperienceModel(Counting(0.0))
    start = time.monotonic()
    for _ in range(3):
        model.predict([query(0)])
    assert time.monotonic() - start < 2
    model.close()


def test_a_batch_has_a_limit():
    inner = Counting()
    model = BatchedExperienceModel(inner, max_batch=4)
    model.predict([query(n) for n in range(10)])
    model.close()
    assert inner.sizes == [4, 4, 2]


def test_an_error_reaches_those_who_asked_and_the_next_call_is_sound():
    model = BatchedExperienceModel(Counting())
    with pytest.raises(ConnectionError, match="the model is gone"):
        model.predict([query(0, "fall")])
    assert model.predict([query(0)])[0].error is None
    model.close()
    with pytest.raises(RuntimeError, match="the server stops"):
        model.predict([query(0)])


def test_what_waits_is_answered_before_the_end():
    inner = Counting(0.2)
    model = BatchedExperienceModel(inner)
    answers = []
    threads = [
        threading.Thread(target=lambda n=n: answers.extend(model.predict([query(n)])))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    model.close()
    for thread in threads:
        thread.join(5)
    assert len(answers) == 3
    assert model.waiting == 0


def test_the_cache_of_answers_is_bounded(monkeypatch):
    monkeypatch.setattr(batching, "CACHED_ANSWERS", 5)
    memory = ReplayMemory.from_episodes([doubles.expert(TASKS[0])], capacity=100)
    inner = doubles.Known(memory)
    model = BatchedExperienceModel(inner)
    for number in range(5):
        inner._answers[(number,)] = inner._rules.predict([query(number)])[0]
    model.predict([query(0)])
    wait_for(lambda: len(inner._answers) == 5)
    inner._answers[(9,)] = inner._answers[(0,)]
    model.predict([query(0)])
    wait_for(lambda: not inner._answers)
    model.close()


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tasks_are_varied_by_the_model_itself():
    model = BatchedExperienceModel(Counting())
    key = jax.random.key(0)
    groups = seed_tasks(TASKS[:2])
    assert model.vary(groups, key=key) == doubles.RuleModel().vary(groups, key=key)
    model.close()
