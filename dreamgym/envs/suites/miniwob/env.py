"""MiniWoB++: tasks on small web pages, in a real headless Chromium.

a page and a seed -> the page's elements as numbered lines (state.py)
Pages come from the `miniwob` package; its Python code and Selenium are not used: one
Chromium is driven over a pipe (browser.py), with a tab for each copy.

The page's own clock stands still between actions (page.js): no reward decays
and no page times out. The reward is the page's raw one, but at least 0. A page pays -1
for a wrong end; here that is 0, as where the steps run out, because otherwise a policy
learns that no answer is better than a wrong one. An episode succeeds with a raw reward
of 1; some pages pay a part for what is partly right.
"""

import functools
import itertools
import json
import re
from typing import Any, ClassVar

from dreamgym.envs.base import SPLITS, TextEnv, task_to_start
from dreamgym.envs.suites.miniwob import state as states
from dreamgym.envs.suites.miniwob.browser import (
    Tab,
    browser_path,
    current_browser,
    html_folder,
)
from dreamgym.envs.suites.miniwob.experts import EXPERTS
from worldmodel.data.records import Task

PAGES = html_folder()  # where something is missing, it is said before anything runs
browser_path()

TEST_ONLY = ("login-user-popup", "multi-orderings")
"""Pages that no other split has: a policy meets them first in the test."""

FIRST_SEED = {"train": 0, "dev": 10_000, "test": 20_000}
SEEDS = {"train": 64, "dev": 16, "test": 32}
"""Seeds of a page in each split; those of TWINS are left out."""

TWINS = {
    page: frozenset(map(int, seeds.split()))
    for page, seeds in {
        "search-engine": "26 58 10006 10015 20007 20015 20023",
        "enter-date": "20002 20003",
        "use-autocomplete": "20007 20011",
        "form-sequence-2": "47 48 51 63 20002 20005 20007 20010 20011 20020 20028 "
        "20030 20031",
        "click-collapsible-2": "25 29 34 37 51 53 59 63 10013 10014 20001 20004 20005 "
        "20009 20020",
    }.items()
}
"""Seeds whose instruction and first state are those of an earlier seed of the page.

So no test task begins as a train task does. Computed with release 1.1.0 of the package.
"""

MAX_STEPS = 24
MAX_COPIES = 16


class MiniWoB(TextEnv):
    """Pages of MiniWoB++ as one environment, a family for each page.

    It is deterministic: equal tasks and actions give equal texts. An action that cannot
    be done leaves the page, and changes nothing but the message.
    """

    deterministic = True
    max_copies = MAX_COPIES
    pages: ClassVar[tuple[str, ...]] = tuple(EXPERTS)

    def __init__(self, *, max_steps: int = MAX_STEPS):
        super().__init__()
        if max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {max_steps}")
        self.max_episode_steps = max_steps
        self._tab: Tab | None = None
        self._key: tuple[str, int] | None = None
        self._elements: tuple[states.Element, ...] = ()
        self._instruction, self._open, self._steps = "", False, 0
        self._refs: dict[int, int] = {}
        self._words: set[str] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Open the page of `options["task"]`, or of a train task drawn by `seed`.

        Raises:
          ValueError: the task's options name no page that is studied, or no seed.
          ConnectionError: the browser is lost.
        """
        super().reset(seed=seed)
        task = task_to_start(self, options)
        page, number = task.options.get("page"), task.options.get("seed")
        if page not in EXPERTS or not isinstance(number, int):
            raise ValueError(
                f"task {task.id!r}: options must name a page of {list(EXPERTS)} and a "
                f"seed, got {dict(task.options)}"
            )
        self._open = False
        answer = self._begin(page, number)
        self._key, self._instruction = (page, number), answer["utterance"]
        self._refs, self._steps, self._open = {}, 0, True
        self._words = set(_page_words(page) | set(_WORD.findall(self._instruction)))
        self._read(answer["page"]["tree"])
        info = {"instruction": self._instruction, "success": False}
        return self._text("ok"), info

    def _begin(self, page: str, seed: int) -> dict[str, Any]:
        """Load a page, and start its episode of a seed."""
        if self._tab is None or not self._tab.alive:
            self._tab = Tab(current_browser())
        self._tab.open(PAGES / f"{page}.html")
        # Not the number alone: the pages' generator takes 1, 11 and 111 for the same.
        return self._tab.evaluate(f"dreamgym.begin({json.dumps(f'{page} {seed}')})")

    def _read(self, tree: states.Node) -> bool:
        """Read the elements of the page; return whether a word of them is new."""
        self._elements = states.page_elements(tree, self._refs)
        words = {w for e in self._elements for w in _WORD.findall(" ".join(e.lines()))}
        new = words - self._words
        self._words |= new
        return bool(new)

    def _text(self, message: str) -> str:
        return "\n".join(states.page_state(self._elements, message))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action: `click N`, `type N TEXT` or `select N OPTION`.

        Raises:
          RuntimeError: there is no running episode.
          ConnectionError: the browser is lost.
        """
        if not self._open or self._tab is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        done = states.command(action, self._elements)
        message, reward, ended, new = done, 0.0, False, False
        if isinstance(done, states.Command):
            before = self._elements
            self._words |= set(_WORD.findall(done.text))
            arguments = [done.verb, done.element.node, done.text]
            answer = self._tab.evaluate(f"dreamgym.act(...{json.dumps(arguments)})")
            new = self._read(answer["tree"])
            refused = not answer["taken"] and self._elements == before
            message = "it takes no such text" if refused else "ok"
            reward, ended = round(float(answer["reward"]), 2), answer["ended"]
        self._steps += 1
        truncated = not ended and self._steps >= self.max_episode_steps
        self._open = not (ended or truncated)
        rewards = {"page": max(reward, 0.0)}
        info = {"rewards": rewards, "success": ended and reward >= 1}
        info |= {"invalid": message != "ok", "reveals": new}
        return self._text(str(message)), rewards["page"], ended, truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split, the pages in turn."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        mixed = len(self.pages) > 1
        pages = [
            _tasks(page, split)
            for page in self.pages
            if split == "test" or not (mixed and page in TEST_ONLY)
        ]
        turns = itertools.zip_longest(*pages)
        return [task for turn in turns for task in turn if task is not None]

    def expert(self) -> list[str]:
        """Return the actions of the page's expert, who tries them in a tab of its own.

        Raises:
          RuntimeError: there was no reset.
          ConnectionError: the browser is lost.
        """
        if self._key is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return list(_plan(*self._key))

    def valid_actions(self) -> list[str]:
        """Return clicks, options and texts that the page takes, in a fixed order."""
        return states.valid_actions(self._instruction, self._elements)

    def close(self) -> None:
        """Close the tab; the browser is shared and ends with Python."""
        if self._tab is not None:
            self._tab.close()
        self._tab, self._open = None, False


_WORD = re.compile(r"[^\W_]+")


@functools.cache
def _page_words(page: str) -> frozenset[str]:
    """Words that a page has in every episode: those of its source, and messages."""
    return frozenset(_WORD.findall((PAGES / f"{page}.html").read_text()))


def _tasks(page: str, split: str) -> list[Task]:
    first, twins = FIRST_SEED[split], TWINS.get(page, frozenset())
    return [
        Task(
            id=f"{page}-{split}-{seed}",
            instruction="",
            env="miniwob",
            family=page,
            split=split,
            options={"page": page, "seed": seed},
        )
        for seed in range(first, first + SEEDS[split])
        if seed not in twins
    ]


@functools.cache
def _scout() -> MiniWoB:
    return MiniWoB()


@functools.lru_cache(maxsize=10_000)
def _plan(page: str, seed: int) -> tuple[str, ...]:
    """The expert's actions in the episode of a seed."""
    env, expert = _scout(), EXPERTS[page]
    task = Task(id=page, instruction="", options={"page": page, "seed": seed})
    env.reset(options={"task": task})
    plan: list[str] = []
    while env._open:
        plan.append(expert(env._instruction, env._elements, plan))
        env.step(plan[-1])
    return tuple(plan)


def one_page(page: str) -> type[MiniWoB]:
    """Return the environment of one page, with train, dev and test seeds of its own.

    Raises:
      ValueError: the page is not studied; the message lists those that are.
    """
    if page not in EXPERTS:
        raise ValueError(
            f"unknown task of MiniWoB++ {page!r}: expected one of {sorted(EXPERTS)}"
        )
    return type("MiniWoB", (MiniWoB,), {"pages": (page,), "__doc__": MiniWoB.__doc__})
