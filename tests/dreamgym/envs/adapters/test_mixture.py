"""Mixtures of environments: proportions, dispatch, capabilities, refusals."""

import collections

import numpy as np
import pytest

from dreamgym import Task, TextEnv
from dreamgym.envs import base, limits, registry
from dreamgym.envs.adapters import mixture
from dreamgym.envs.contract import checker
from tests import doubles

CORRIDOR = "tests.doubles:Corridor"
SWITCH = "tests.dreamgym.envs.adapters.test_mixture:Switch"
BLIND = "tests.dreamgym.envs.adapters.test_mixture:Blind"
DECLARED = "tests.dreamgym.envs.adapters.test_mixture:Declared"
LOST_EARLY = "tests.dreamgym.envs.adapters.test_mixture:LostEarly"


class Blind(TextEnv):
    """A lamp that is lit by its name; nothing is listed, and nobody knows how."""

    max_episode_steps = 3

    def tasks(self, split):
        return [
            Task(id=f"{split}-{i}", instruction="", split=split, options={"lamp": i})
            for i in range(7)
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamp = options["task"].options["lamp"]
        return f"lamp {self.lamp} dark", {"instruction": f"light lamp {self.lamp}"}

    def step(self, action):
        won = action == f"light {self.lamp}"
        return (
            f"lamp {self.lamp} {'lit' if won else 'dark'}",
            float(won),
            won,
            False,
            {"success": won},
        )


class Switch(Blind):
    """The same with an expert, a list of actions, variations and forks."""

    deterministic = False
    max_copies = 3

    def expert(self):
        return [f"light {self.lamp}"]

    def valid_actions(self):
        return ["wait", f"light {self.lamp}"]

    def variations(self, task, rng):
        yield Task(
            id=f"{task.id}-more",
            instruction="",
            split="generated",
            options={"lamp": task.options["lamp"] + 100 + int(rng.integers(3))},
            lineage=(*task.lineage, task.id),
        )


def test_tasks_come_in_turn_and_in_proportion():
    env = registry.make(f"mix:{CORRIDOR},{SWITCH}*2")
    tasks = env.tasks("test")
    assert [t.options["env"] for t in tasks[:6]] == [CORRIDOR, SWITCH, SWITCH] * 2
    counts = collections.Counter(t.options["env"] for t in tasks)
    assert counts == {CORRIDOR: 3, SWITCH: 6}  # of 7 lamps the last has no partner
    assert len({t.id for t in tasks}) == len(tasks)
    families = {t.family for t in tasks}
    assert SWITCH in families
    own = doubles.tasks("test")[0].family
    assert f"{CORRIDOR}/{own}" in families
    assert not {t.id for t in tasks} & {t.id for t in env.tasks("train")}


def test_each_task_is_played_as_in_its_own_environment():
    mixed = registry.make(f"mix:{CORRIDOR},{SWITCH}")
    for spec in (CORRIDOR, SWITCH):
        alone = registry.make(spec)
        tasks = [t for t in mixed.tasks("train") if t.options["env"] == spec]
        for own, outer in zip(alone.tasks("train"), tasks, strict=False):
            (own_task, state), (task, same) = (
                base.begin(alone, own),
                base.begin(mixed, outer),
            )
            assert (task.instruction, same) == (own_task.instruction, state)
            assert mixed.expert() == alone.expert()
            assert mixed.valid_actions() == alone.valid_actions()
            for action in alone.expert():
                assert base.take(mixed, action) == base.take(alone, action)


def test_a_short_game_ends_at_its_own_limit():
    env = registry.make(f"mix:{CORRIDOR},{SWITCH}")
    task = next(t for t in env.tasks("train") if t.options["env"] == SWITCH)
    base.begin(env, task)
    steps = [base.take(env, "wait") for _ in range(3)]
    assert [s.truncated for s in steps] == [False, False, True]


class Declared(doubles.Corridor):
    max_episode_steps = doubles.STEPS


class LostEarly(Declared):
    """Calls it a limit where the fifth step loses."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.steps == 5 and not terminated:
            self.open, truncated = False, True
        return obs, reward, terminated, truncated, info


def test_each_task_has_the_limit_of_its_environment():
    env = registry.make(f"mix:{DECLARED},{SWITCH},{CORRIDOR}")
    declared = {
        task.options["env"]: limits.step_limit_of(env, task)
        for task in env.tasks("train")[:3]
    }
    assert declared == {DECLARED: doubles.STEPS, SWITCH: 3, CORRIDOR: None}
    assert limits.declared_step_limit(env) is None
    (task, *_) = doubles.tasks("train")
    assert limits.step_limit_of(doubles.Corridor(), task) is None
    assert limits.step_limit_of(Declared(), task) == doubles.STEPS


@pytest.mark.parametrize(("other", "early"), [(DECLARED, False), (LOST_EARLY, True)])
def test_only_ends_before_the_limit_of_an_environment_are_early(other, early):
    report = checker.check(registry.make(f"mix:{other},{SWITCH}"))
    places = [w.where for w in report.warnings if "before its limit" in w.what]
    assert [place.startswith(f"task '{other}/") for place in places] == [True] * early


def test_a_mixture_has_what_its_environments_have():
    both = registry.make(f"mix:{CORRIDOR},{SWITCH}")
    assert base.as_expert(both)
    assert base.as_valid_actions(both)
    assert not base.is_deterministic(both)
    assert not base.plans_from_any_state(both)
    anywhere = "mix:tests.corridor:PlansAnywhere"
    assert base.plans_from_any_state(registry.make(anywhere))
    assert not base.plans_from_any_state(registry.make(f"{anywhere},{CORRIDOR}"))
    assert both.max_copies == 3
    some = registry.make(f"mix:{SWITCH},{BLIND}")
    assert some.max_episode_steps == 3
    assert base.as_valid_actions(some) is None
    assert base.as_forkable(some) is None
    plans = []
    for task in some.tasks("train")[:2]:
        base.begin(some, task)
        plans.append(list(some.expert()))
    assert plans == [["light 0"], []]
    assert base.as_expert(registry.make(f"mix:{BLIND}")) is None


@pytest.mark.parametrize(
    ("flags", "joint"),
    [
        ([True, True], True),
        ([True, None], None),
        ([None, False], False),
        ([True, False], False),
    ],
)
def test_a_mixture_knows_of_lots_what_its_environments_know(flags, joint):
    assert mixture._joint_determinism(flags) is joint


def test_variations_are_tasks_of_the_mixture():
    env = registry.make(f"mix:{BLIND},{SWITCH}")
    blind, switch = env.tasks("train")[:2]
    assert list(env.variations(blind, np.random.default_rng(0))) == []
    (varied,) = env.variations(switch, np.random.default_rng(0))
    assert varied.lineage == (switch.id,)
    assert (varied.split, varied.options["env"]) == ("generated", SWITCH)
    _, state = base.begin(env, varied)
    assert state == (f"lamp {varied.options['lamp']} dark",)


def test_an_environment_with_too_few_tasks_is_named():
    env = registry.make(f"mix:{CORRIDOR},{SWITCH}*8")
    with pytest.raises(ValueError, match=r"Switch has 7 tasks of split 'dev'"):
        env.tasks("dev")


def test_commas_in_brackets_are_of_a_name_and_deadlines_are_the_longest():
    lake = 'gym:FrozenLake-v1?desc=["SF","FG"]&is_slippery=false'
    env = registry.make(f"mix:{lake},{SWITCH}")
    assert [part.spec for part in env.parts] == [lake, SWITCH]
    assert (env.reset_seconds, env.step_seconds) == (120.0, 30.0)


def test_no_step_is_taken_after_a_reset_that_failed():
    env = registry.make(f"mix:{SWITCH}")
    (task, *_), bad = env.tasks("train"), Task(id="t", instruction="")
    base.begin(env, task)
    with pytest.raises(ValueError, match="an option 'env'"):
        env.reset(options={"task": bad})
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("wait")


def test_options_of_a_task_may_have_any_name():
    env = registry.make(f"mix:{SWITCH}")
    own = Task(id="t", instruction="", options={"lamp": 3, "env": "x", "inner": 1})
    outer = mixture._outer_task(env.parts[0], own)
    assert mixture._inner_task(outer) == own
    assert base.begin(env, outer)[1] == ("lamp 3 dark",)


def test_a_fork_goes_on_apart():
    forking = "tests.ledger:ForkingLedger"
    env = registry.make(f"mix:{forking}")
    for task in env.tasks("train"):
        base.begin(env, task)
        if len(plan := list(env.expert())) > 2:
            break
    base.take(env, plan[0])
    fork = env.fork()
    ends = [[base.take(e, a) for a in plan[1:]][-1] for e in (fork, env)]
    assert ends[0] == ends[1]
    assert ends[0].success


def test_a_mixture_keeps_the_contract():
    spec = f"mix:{CORRIDOR},{SWITCH}"
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == (), report.text(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mix:", "expected NAME or NAME"),
        (f"mix:{CORRIDOR}*0", "a weight of 1 to 100"),
        (f"mix:{CORRIDOR},{CORRIDOR}", "each one once"),
        ("mix:mix:textworld", "expected NAME or NAME"),
        (f"mix:{CORRIDOR},nowhere", "unknown environment 'nowhere'"),
    ],
)
def test_what_is_no_mixture_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec)


def test_a_task_of_another_environment_is_refused():
    env = registry.make(f"mix:{CORRIDOR}")
    with pytest.raises(ValueError, match="expected an option 'env' of"):
        base.begin(env, Task(id="t", instruction="", options={"env": "other"}))
    obs, _ = env.reset(seed=3)  # without a task, a train task is drawn
    assert obs


def test_the_generators_of_the_environment_that_plays_are_seeded_anew():
    """Else a scorecard would not see what is random in it."""
    env = registry.make("mix:gym:Blackjack-v1,gym:FrozenLake-v1")
    task = next(t for t in env.tasks("train") if "FrozenLake" in t.options["env"])
    plays = set()
    for seed in range(12):
        base.begin(env, task)
        base.seed_anew(env, seed)
        plays.add(base.take(env, "move right").state)
    assert len(plays) > 1
