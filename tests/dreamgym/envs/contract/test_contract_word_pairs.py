"""Names of two words, for which the check suggests a wrapper."""

import pytest

from dreamgym import Task, TextEnv
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Played, Trace
from dreamgym.envs.contract.texts import check_word_pairs
from dreamgym.envs.wrappers import JoinedNames
from tests.dreamgym.envs.contract.common import checked, named

ROOMS = ("living room", "dining room", "wine cellar", "coal shed")


class House(TextEnv):
    """A house of which one room is the goal."""

    deterministic = True
    max_episode_steps = 8

    def tasks(self, split):
        seed = ("train", "dev", "test").index(split)
        return [
            Task(
                id=f"{split}-{i}",
                instruction=f"Be in the {ROOMS[i]}, number {seed}.",
                split=split,
                options={"goal": i, "number": seed},
            )
            for i in range(4)
        ]

    def text(self):
        here = f"you are in the {ROOMS[self.place]}"
        return f"{here}\ndoors: {', '.join(ROOMS)}\nnumber {self.number}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.goal, self.number = task.options["goal"], task.options["number"]
        self.place, self.steps = (self.goal + 1) % 4, 0
        self.open = True
        return self.text(), {}

    def step(self, action):
        if not self.open:
            raise RuntimeError("the episode has ended")
        place = action.removeprefix("go to ")
        invalid = place not in ROOMS
        self.place = self.place if invalid else ROOMS.index(place)
        won = not invalid and self.place == self.goal
        self.steps += 1
        late = not won and self.steps == self.max_episode_steps
        self.open = not (won or late)
        info = {"success": won, "invalid": invalid}
        return self.text(), float(won), won, late, info

    def valid_actions(self):
        return [f"go to {room}" for room in ROOMS]

    def expert(self):
        return [f"go to {ROOMS[self.goal]}"]


def joined_house():
    return JoinedNames(House(), ROOMS)


def test_names_of_two_words_are_warned_of_with_their_wrapper():
    finding = named(checked(House).warnings, "names are written as two words")
    assert "coal shed, dining room, living room, wine cellar" in finding.where
    assert "JoinedNames(env, ['coal shed'," in finding.cure
    assert not [w for w in checked(joined_house).warnings if "two words" in w.what]


NAMES = ("red apple", "green pear", "blue plum")


def warnings(states, instruction, n=3):
    actions = [f"take {name}" for name in NAMES]
    steps = [
        Played("" if i == 0 else actions[i % 3], f"{i}: {state}")
        for i, state in enumerate(states)
    ]
    findings = Findings()
    traces = [
        Trace(Task(id=f"{i}", instruction=instruction), tuple(steps)) for i in range(n)
    ]
    check_word_pairs(findings, traces)
    return list(findings.warnings)


SEEN = [f"you see: {', '.join(NAMES)}"] * 10


def test_names_of_few_tasks_are_no_names():
    assert warnings(SEEN, "eat", n=3)
    assert not warnings(SEEN, "eat", n=2)


@pytest.mark.parametrize(("waits", "count"), [(7, 1), (8, 0)])
def test_names_in_few_actions_are_left_alone(waits, count):
    # Three of ten actions have a name, or three of eleven.
    others = [
        Played(f"wait {i}" if i else "", f"{i}: {SEEN[0]}") for i in range(waits + 1)
    ]
    steps = [*others, *(Played(f"take {n}", f"{n}: {SEEN[0]}") for n in NAMES)]
    findings = Findings()
    tasks = [Task(id=f"{i}", instruction="eat") for i in range(3)]
    check_word_pairs(findings, [Trace(task, tuple(steps)) for task in tasks])
    assert len(findings.warnings) == count


@pytest.mark.parametrize(
    ("states", "instruction", "count"),
    [
        (SEEN, "eat", 1),
        (SEEN[:3], "eat", 0),  # two of them were taken
        (SEEN, "take the pear", 0),  # a word of a name alone
        ([*SEEN, "a red door"], "eat", 0),  # a colour of other things, too
        ([*SEEN, "red, apple"], "eat", 0),  # words of two things
        ([s.replace("red apple", "nothing") for s in SEEN], "eat", 0),
    ],
)
def test_words_that_stand_apart_are_no_names(states, instruction, count):
    assert len(warnings(states, instruction)) == count
