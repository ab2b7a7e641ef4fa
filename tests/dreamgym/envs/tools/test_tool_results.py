"""Results of tools: many at once, refused ones, surrogates, a start that fails."""

import dataclasses

import numpy as np
import pytest

from dreamgym.envs import base
from dreamgym.envs.spaces import MAX_CHARACTERS
from dreamgym.envs.tools import tool_env
from dreamgym.envs.tools.lines import result_text
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from worldmodel.data.records import Task

HALF = "\\ud83d"
"""Half of a surrogate pair as JSON writes it."""


class Desk(ToolEnv):
    """Its drawers have names; `start` fails where the task says so."""

    def start(self, task):
        self.opened = 0
        self.label = task.options.get("label", "none")
        if task.options.get("broken"):
            raise OSError("the desk is gone")
        return ""

    def observation(self):
        return [f"label {self.label}"]

    @tool
    def open(self, drawer: str) -> str:
        self.opened += 1
        return f"{drawer} number {self.opened}"

    def answer(self, text):
        self.finish(text == "done")
        return f"you said {text}"


def begun(**options):
    env = Desk()
    base.begin(env, Task(id="t", instruction="open drawers", options=options))
    return env


def test_results_of_many_calls_are_bounded_and_counted(monkeypatch):
    # "result Ada number 1" has 19 characters: two of them fit, and the last is extra.
    monkeypatch.setattr(tool_env, "MAX_RESULTS", 38)
    env, call = begun(), 'open {"drawer": "Ada"}'
    step = base.take(env, "\n".join([call] * 3))
    assert step.state == (
        "label none",
        "result Ada number 1",
        "result Ada number 2",
        "result Ada number 3",
    )
    assert not step.invalid
    step = base.take(env, "\n".join([call, *['open {"drawer": "Bob"}'] * 4]))
    assert env.opened == 8  # all of them are made
    assert step.state == (
        "label none",
        "earlier results 2",
        "result Bob number 6",
        "result Bob number 7",
        "result Bob number 8",
    )
    # What is left out is in nobody's sight, and a single result is never left out.
    assert 'open {"drawer": "Ada"}' not in env.valid_actions()
    assert 'open {"drawer": "Bob"}' in env.valid_actions()
    monkeypatch.setattr(tool_env, "MAX_RESULTS", 0)
    assert base.take(env, call).state == ("label none", "result Ada number 9")
    base.begin(env, Task(id="u", instruction="x"))
    assert "earlier" not in env._text()


def test_a_refused_call_among_those_left_out_still_counts(monkeypatch):
    monkeypatch.setattr(tool_env, "MAX_RESULTS", 0)
    env = begun()
    env.invalid_reward = -0.5
    step = base.take(env, 'shut {}\nopen {"drawer": "Ada"}')
    assert step.state[1:] == ("earlier results 1", "result Ada number 1")
    assert step.rewards["invalid"] == -0.5
    assert not step.invalid  # the other call did something


def test_no_action_makes_a_state_that_is_too_long():
    step = base.take(begun(), "\n".join(["f()"] * 1000))
    assert sum(map(len, step.state)) < MAX_CHARACTERS / 5
    assert step.state[1].startswith("earlier results ")
    shown = sum(line.startswith("result error") for line in step.state)
    assert step.state[1] == f"earlier results {1000 - shown}"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (f'open {{"drawer": "A{HALF}"}}', "an argument of open has half of a surr"),
        (f'open {{"drawer": "A", "{HALF}": 1}}', "an argument of open has half of a"),
        (f'{{"tool": "op{HALF}", "args": {{}}}}', "no tool 'op\\ud83d'; have open"),
        (f'answer {{"content": "done {HALF}"}}', "the answer has half of a surrogate"),
        ("done \ud83d", "the answer has half of a surrogate"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_and_the_episode_goes_on(action, message):
    """A text with one cannot be written as UTF-8: no record could hold the state."""
    env = begun()
    step = base.take(env, action)  # it would raise where the state had one
    assert step.state[-1].startswith(f"result error: {message}")
    assert (step.invalid, step.terminated, env.opened) == (True, False, 0)
    # A whole pair is a character like others.
    step = base.take(env, 'open {"drawer": "\\ud83d\\ude00"}')
    assert step.state[-1] == "result \U0001f600 number 1"
    assert base.take(env, "done").success


def test_half_of_a_surrogate_pair_of_a_tool_is_a_mistake_of_the_environment():
    class Broken(Desk):
        @tool
        def read(self) -> str:
            return "\ud83d"

    env = Broken()
    base.begin(env, Task(id="t", instruction=""))
    with pytest.raises(UnicodeEncodeError):
        base.take(env, "read {}")


def test_a_start_that_fails_leaves_no_episode():
    env = begun()
    assert 'open {"drawer": "drawers"}' in env.valid_actions()
    broken = Task(id="t", instruction="", options={"broken": True, "label": "Zoe"})
    with pytest.raises(OSError, match="the desk is gone"):
        env.reset(options={"task": broken})
    with pytest.raises(RuntimeError, match="call reset"):
        env.step('open {"drawer": "Ada"}')
    # Nothing of the task before, nor of this one, is in sight.
    assert env._sight().text == ""
    _, state = base.begin(env, Task(id="u", instruction=""))
    assert state == ("label none", "result ready")
    assert base.take(env, "done").success


def test_a_step_with_a_refused_call_earns_the_invalid_reward_once():
    class Strict(Desk):
        step_reward = -0.25
        invalid_reward = -0.5

    env = Strict()
    base.begin(env, Task(id="t", instruction=""))
    text, reward, *_, info = env.step("shut {}\nshut {}\nopen {}")
    assert info["rewards"] == {"task": -0.25, "invalid": -0.5}
    assert reward == -0.75
    assert base.take(env, 'open {"drawer": "Ada"}').rewards == {"task": -0.25}
    assert base.take(begun(), "shut {}").rewards == {"task": 0.0}
    assert text.count("result error") == 3


@dataclasses.dataclass
class Point:
    x: int
    y: set[int]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"pear", "apple"}, '["apple", "pear"]'),
        ({"b": frozenset({2, 1})}, '{"b": [1, 2]}'),
        ([{3, 10}], "[[10, 3]]"),  # in the order of their texts
        ((1, 2), "(1, 2)"),
        ({"a": np.int64(3), "b": [np.float32(0.5)]}, '{"a": 3, "b": [0.5]}'),
        ([np.array([[1, 2]]), np.bool_(True)], "[[[1, 2]], true]"),
        ([Point(1, {2})], '[{"x": 1, "y": [2]}]'),
        ([np.float64("nan")], f"[{np.float64('nan')!r}]"),  # JSON has no such number
        (None, "None"),
    ],
)
def test_a_result_has_the_same_text_in_every_process(value, text):
    """The order of a set of texts differs between processes of Python."""
    assert result_text(value) == text


async def later():
    return "done"


def test_a_result_that_nothing_awaits_is_an_error():
    promise = later()
    with pytest.raises(TypeError, match="must return a value, got coroutine"):
        result_text(promise)
    promise.close()
    with pytest.raises(TypeError, match="got generator"):
        result_text(x for x in "ab")

    async def later_ones():
        yield "done"

    with pytest.raises(TypeError, match="got async_generator"):
        result_text(later_ones())


def test_the_methods_of_a_tool_environment_cannot_be_async():
    async def method(*_):
        return ""

    for name in ("start", "answer", "observation", "expert"):
        with pytest.raises(TypeError, match=rf"{name} cannot be async"):
            type("Waiting", (Desk,), {name: method})
