"""Tools as users write them: static ones, bare types, names that are taken."""

import inspect
import typing

import pytest

from dreamgym.envs.tools.tool_env import ToolEnv, tool
from tests.dreamgym.envs.tools.test_tools import QUESTION, Quiz, begun


def test_static_tools_are_refused():
    """Their first argument would be taken for `self`."""
    for kind in (staticmethod, classmethod):

        def add(a: int, b: int) -> str:
            return str(a + b)

        # Without the check of type hints that the tests have.
        for method in (kind(tool(add)), inspect.unwrap(tool)(kind(add))):
            with pytest.raises(TypeError, match=f"'add' is a {kind.__name__}: write"):
                type("_Sums", (ToolEnv,), {"add": method})


def test_bare_types_of_typing_hold_any_values():
    class _Bag(Quiz):
        @tool
        def put(self, items: typing.List, sizes: typing.Dict) -> str:  # noqa: UP006
            """Put things."""
            return f"{len(items)} and {len(sizes)}"

    env, _, _ = begun(_Bag(), QUESTION)
    state, *_, info = env.step(env.call("put", items=["a", 2], sizes={"a": 1}))
    assert "result 2 and 1" in state
    assert not info["invalid"]


def test_attributes_that_hold_the_episode_are_not_taken_silently():
    class _Counts(Quiz):
        def start(self, task):
            self._steps = 5
            return super().start(task)

    with pytest.raises(TypeError, match=r"_Counts: start has set self\._steps, in"):
        begun(_Counts(), QUESTION)

    class _Door(Quiz):
        @tool
        def shut(self) -> str:
            """Shut it."""
            self._open = False
            return "shut"

    env, _, _ = begun(_Door(), QUESTION)
    with pytest.raises(TypeError, match=r"has set self\._open"):
        env.step(env.call("shut"))


def test_long_whole_numbers_are_listed_as_they_are():
    class _Orders(Quiz):
        def observation(self):
            return "order 12345678901234567 of 2.0 boxes"

        @tool
        def find(self, number: int) -> str:
            """Find an order."""
            return f"found {number}"

    env, _, _ = begun(_Orders(), QUESTION)
    assert env.call("find", number=12345678901234567) in env.valid_actions()
