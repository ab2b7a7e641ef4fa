"""What tools show and return, and plans that break a reset: named by what is wrong."""

import dataclasses
import datetime
import enum
import math
from typing import Literal

import pytest

from dreamgym.envs.contract import checker
from dreamgym.envs.tools.signatures import Signature
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import read_action


class Odd(ToolEnv):
    """One lamp; what it observes and returns is set by a test."""

    shown = "lamp off"
    result = "on"
    plan = ()

    def tasks(self, split):
        return [Task(id=f"{split}-{i}", instruction="light it") for i in range(3)]

    def start(self, _):
        return None

    def observation(self):
        return self.shown

    @tool
    def press(self) -> str:
        """Press the lamp."""
        self.finish(True)
        return self.result

    def expert(self):
        return [self.call("press")] if not self.plan else self.plan


def played(**changes):
    env = type("Odd", (Odd,), changes)()
    env.reset(options={"task": env.tasks("train")[0]})
    return env.step(env.call("press"))[0]


@pytest.mark.parametrize("shown", [{"lamp": "off"}, [1, 2], 3, ("a", None)])
def test_an_observation_that_is_no_text_is_named(shown):
    with pytest.raises(TypeError, match="must return a text or a list of texts, got"):
        played(observation=lambda _: shown)


@pytest.mark.parametrize("shown", [["a", "b"], ("a", "b"), "a\nb", iter(["a", "b"])])
def test_an_observation_is_a_text_or_some_texts(shown):
    lines = list(shown) if not isinstance(shown, str) else shown
    assert played(observation=lambda _: lines).startswith("a\nb\nresult")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("on", "on"),
        ({"lamp": True, "watts": [1, None]}, '{"lamp": true, "watts": [1, null]}'),
        (["ä"], '["ä"]'),
        ({1}, "[1]"),
        ({"a": {1}}, '{"a": [1]}'),
        ({"a": float("nan")}, "{'a': nan}"),
    ],
)
def test_a_result_that_is_json_is_written_as_json(result, text):
    assert f"result {text}" in played(press=tool(press_that_returns(result)))


def press_that_returns(result):
    def press(self) -> str:
        """Press the lamp."""
        self.finish(True)
        return result

    return press


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ([{"tool": "press"}], "expert() must return texts, got a dict"),
        (None, "expert raised TypeError: "),
    ],
)
def test_a_plan_that_breaks_a_reset_is_a_fault_of_the_expert(plan, what):
    def expert(self):
        return self.call("press", "now") if plan is None else plan

    def generator(self):
        yield from expert(self)

    for method in (expert, generator):
        check_plan_fault(method, what)


def check_plan_fault(expert, what):
    report = checker.check(type("Odd", (Odd,), {"expert": expert})(), limit=9)
    assert any(f.what.startswith(what) for f in report.faults), report.text("odd")
    assert not any("reset raised" in f.what for f in report.faults)


def test_no_number_is_taken_out_of_a_date_or_a_time():
    class Log(ToolEnv):
        def tasks(self, split):
            text = "send 3 or 2.5 kg on 2026-07-10 at 10:30, not -4"
            return [Task(id=split, instruction=text)]

        def start(self, _):
            return None

        @tool
        def send(self, kg: float) -> str:
            """Send it."""
            return f"sent {kg}"

    env = Log()
    env.reset(options={"task": env.tasks("train")[0]})
    listed = {read_action(a).calls[0].arguments["kg"] for a in env.valid_actions()}
    assert listed == {3.0, 2.5, -4.0}


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Place:
    row: int


@pytest.mark.parametrize(
    ("hint", "instead"),
    [
        (Level, r"write Literal\['low', 'high'\]"),
        (datetime.date, "take a str, and read it in the tool"),
        (Place, "take a dict"),
        (tuple[int, int], "take a list"),
        (set[str], "take a list"),
        (dict[int, str], r"keys of JSON are texts, write dict\[str, \.\.\.\]"),
        (list[dict[str | int, str]] | None, r"keys of JSON are texts, write .*"),
    ],
)
def test_a_type_that_json_lacks_is_refused_with_one_that_it_has(hint, instead):
    def place(self, x): ...

    place.__annotations__ = {"x": hint}
    with pytest.raises(TypeError, match=rf"'x' needs a type: .*: {instead}$"):
        type("Odd", (ToolEnv,), {"place": tool(place)})


def test_a_tool_is_no_coroutine():
    async def wait(self) -> str: ...

    with pytest.raises(TypeError, match=r"wait .*: a tool cannot be async"):
        type("Odd", (ToolEnv,), {"wait": tool(wait)})


def test_texts_of_other_scripts_are_shown_as_they_are_written():
    """An agent cannot copy what stands there as escapes."""

    def paint(self, colour: Literal["蓝色", "café"] = "蓝色"): ...

    text = str(Signature.of_method(paint))
    assert 'colour: "蓝色" | "café" = "蓝色"' in text


def test_a_default_that_json_lacks_is_not_shown():
    def wait(
        self,
        seconds: float = math.inf,
        by: dict[Literal["bus"], int] = {"bus": 2},  # noqa: B006
    ): ...

    text = str(Signature.of_method(wait))
    assert text == 'wait(seconds?: float, by: dict["bus", int] = {"bus": 2})'


def test_a_tool_that_no_call_can_name_is_refused():
    def événement(self, x: str): ...

    with pytest.raises(TypeError, match=r"ASCII letters.*événement"):
        Signature.of_method(événement)
