"""The contract checker over what an agent sees, forgets, and cannot have seen."""

import re

import pytest

from dreamgym import Task, TextEnv
from dreamgym.envs.contract import memory
from dreamgym.envs.contract.experts import PlannedEpisode
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Played, Trace
from dreamgym.envs.wrappers import KeepLines, RecentReplies
from tests.dreamgym.envs.contract.common import checked, named


class Parcel(TextEnv):
    """`look` shows the code of a parcel once; `wait` hides it; `send CODE` wins."""

    max_episode_steps = 8
    plan = ("look", "wait", "send {code}")

    def tasks(self, split):
        first = {"train": 100, "dev": 200, "test": 300}[split]
        goal = "look, wait for the courier, then send the parcel"
        return [
            Task(id=f"parcel-{n}", instruction=goal, split=split, options={"n": n})
            for n in range(first, first + 40)
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.code, self.steps = f"P-{task.options['n']}", 0
        self.running, self.waited = True, False
        return "courier away", {}

    def step(self, action):
        if not self.running:
            raise RuntimeError("call reset() first")
        self.steps += 1
        self.waited = self.waited or action == "wait"
        won = self.waited and action == f"send {self.code}"
        lines = [f"courier {'here' if self.waited else 'away'}"]
        lines += [f"parcel {self.code}"] * (action == "look")
        truncated = not won and self.steps >= self.max_episode_steps
        self.running = not (won or truncated)
        return "\n".join(lines), float(won), won, truncated, {"success": won}

    def expert(self):
        return [action.format(code=self.code) for action in self.plan]

    def valid_actions(self):
        return ["look", "wait"]


class KnowingParcel(Parcel):
    """Its expert never looks."""

    plan = ("wait", "send {code}")


class ReadParcel(Parcel):
    """Its expert sends what the state shows."""

    plan = ("wait", "look", "send {code}")


class KeptParcel(KeepLines):
    def __init__(self):
        super().__init__(Parcel(), names=["parcel"])


class RepliedParcel(RecentReplies):
    def __init__(self):
        super().__init__(Parcel())


def test_a_plan_that_names_what_the_state_has_lost_is_a_warning():
    found = named(checked(Parcel).warnings, "an earlier state showed")
    assert "30 of 30 plans" in found.where
    assert "'send P-100'" in found.where
    assert "KeepLines" in found.cure


def test_a_plan_that_names_what_nobody_saw_is_a_warning():
    found = named(checked(KnowingParcel).warnings, "has not seen")
    assert "step 2, action 'send P-100'" in found.where


@pytest.mark.parametrize("env", [ReadParcel, KeptParcel, RepliedParcel])
def test_a_plan_from_what_the_state_shows_is_none(env):
    assert checked(env).warnings == ()


def _episode(number, texts, actions, instruction=""):
    steps = [Played(a, t) for a, t in zip(["", *actions], texts, strict=True)]
    trace = Trace(Task(id=f"t{number}", instruction=instruction), tuple(steps))
    return PlannedEpisode(instruction, list(actions), trace)


def _names_warned(episodes):
    findings = Findings()
    memory.check_names(findings, episodes)
    return list(findings.warnings)


def test_a_number_that_stood_nowhere_may_be_computed():
    episodes = [_episode(n, ["sum of 3", "ok"], [f"say {90 + n}"]) for n in range(10)]
    assert _names_warned(episodes) == []


def test_words_of_the_form_are_no_names():
    # `level2` is in every task: the agent can know it from others.
    episodes = [_episode(n, [f"at x{n}", "ok"], ["go level2"]) for n in range(10)]
    assert _names_warned(episodes) == []


def test_what_the_instruction_and_the_last_actions_hold_is_seen():
    instructed = [
        _episode(n, ["s", "s"], [f"get K{n}"], f"get K{n}") for n in range(10)
    ]
    repeated = [
        _episode(n, [f"key K{n}", "s", "s"], [f"get K{n}", f"use K{n}"])
        for n in range(10)
    ]
    assert _names_warned(instructed) == _names_warned(repeated) == []


@pytest.mark.parametrize("text", ["id:K{}", "item.K{}", "K{}-red", "user_K{}", "(K{})"])
def test_a_part_of_a_word_is_seen(text):
    episodes = [_episode(n, [text.format(n), "s"], [f"get K{n}"]) for n in range(10)]
    assert _names_warned(episodes) == []
    longer = [_episode(n, [f"K{n}1", "s"], [f"get K{n}"]) for n in range(10)]
    assert len(_names_warned(longer)) == 1


def test_a_few_plans_are_no_reason_to_warn():
    few = [_episode(n, ["s", "s"], [f"get K{n}"]) for n in range(2)]
    many = [_episode(n, ["s", "s"], ["wait"]) for n in range(10, 20)]
    assert _names_warned(few + many) == []
    few.append(_episode(2, ["s", "s"], ["get K2"]))
    assert len(_names_warned(few + many)) == 1


def _returns(lines):
    findings = Findings()
    steps = tuple(Played("go", text) for text in lines)
    memory.check_returns(findings, [Trace(Task(id="t", instruction=""), steps)])
    return list(findings.warnings.values())


def test_lines_that_come_back_are_a_warning():
    walk = ["hall tiled", "yard green"] * 10
    (found,) = _returns(walk)
    assert "18 of 19 new lines" in found.where
    assert "'hall tiled'" in found.where
    assert "KeepLines" in found.cure


def test_lines_that_a_wrapper_keeps_do_not_come_back():
    walk = ["hall tiled", "last seen hall tiled\nyard green"] * 10
    walk[2::2] = ["last seen yard green\nhall tiled"] * 9
    assert _returns(walk) == []


def test_a_line_that_changes_in_its_place_is_none():
    assert _returns(["light on", "light off"] * 10) == []


def test_rows_of_a_grid_are_no_lines_to_keep():
    assert _returns(["..A\n#..", "...\nA..", "..A\n#.."] * 10) == []


def test_few_returns_are_none():
    assert _returns(["hall tiled", "yard green", "hall tiled"]) == []
    lines = [f"room{n} blue" for n in range(60)] + ["hall tiled", "yard green"] * 7
    assert _returns(lines) == []


PAGES = (
    "[1] link Home\n[2] link Prices\n[3] button Buy",
    "[1] link Back\n[2] link Terms\n[3] button Send",
)


@pytest.mark.parametrize("form", ["[{}]", "{}.", "{})", "({})", "{}:", "#{}"])
def test_numbered_lines_of_pages_come_back(form):
    pages = [re.sub(r"\[(\d)\]", lambda m: form.format(m[1]), x) for x in PAGES]
    (found,) = _returns(pages * 10)
    assert "54 of 57 new lines" in found.where
    assert "name_of" in found.cure


def test_a_numbered_line_that_changes_in_its_place_is_none():
    on = "[1] link Home\n[2] box checked\n[3] button Buy"
    assert _returns([on, on.replace("checked", "empty")] * 10) == []
    assert _returns(["1. lamp on", "1. lamp off"] * 10) == []
    assert _returns(["1. ann\n2. bob", "1. bob\n2. ann"] * 10) == []


def test_rows_of_a_numbered_board_are_no_lines_to_keep():
    assert _returns(["1. X .\n2. . .", "1. . .\n2. . X"] * 10) == []
