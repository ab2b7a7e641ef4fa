"""Tool environments from a seed: contract, splits, verifier, no win by silence."""

import dataclasses
import re

import numpy as np
import pytest

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.suites.scenario import env as scenario_env
from dreamgym.envs.suites.scenario.assignments import DONE
from dreamgym.envs.suites.scenario.entities import all_names
from dreamgym.envs.suites.scenario.functions import write_value
from worldmodel.text.tools.tool_calls import expected_calls, read_action, write_call

SPECS = (
    "scenario",
    "scenario:7",
    "scenario:3?depth=5&typos=0.2",
    "scenario:11?depth=1",
)


@pytest.mark.medium
@pytest.mark.parametrize(
    "spec",
    [
        *SPECS[1:3],
        "mix:scenario:1,scenario:2*2",
        "mix:scenario:1?depth=1,scenario:2?depth=4",  # of other step limits
    ],
)
def test_they_keep_the_contract_without_a_warning(spec):
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == (), report.text(spec)
    assert report.warnings == (), report.text(spec)
    assert {"expert", "copies", "fork", "splits apart"} <= set(report.checks)


@pytest.mark.parametrize("spec", SPECS)
def test_the_reference_wins_and_needs_its_changes(spec):
    env = registry.make(spec)
    for task in env.tasks("train")[:40]:
        begun, _ = base.begin(env, task)
        plan = env.expert()
        calls = expected_calls(begun)
        assert calls is not None
        assert sum(map(len, calls)) == len(plan) - 1 == int(task.family[len("depth") :])
        steps = [base.take(env, action) for action in plan]
        assert [s.invalid for s in steps] == [False] * len(plan)
        assert [s.success for s in steps] == [False] * (len(plan) - 1) + [True]
        assert sum(sum(s.rewards.values()) for s in steps) == 1.0
        # Without its changes nothing is won; of a look-up the result may be guessed.
        for number, action in enumerate(plan[:-1]):
            base.begin(env, task)
            rest = [base.take(env, a) for i, a in enumerate(plan) if i != number]
            (call,) = read_action(action).calls
            assert rest[-1].success is env._functions[call.tool].is_read


@pytest.mark.parametrize("spec", SPECS)
def test_no_task_is_won_by_silence(spec):
    env = registry.make(spec)
    tasks = [t for split in base.SPLITS for t in env.tasks(split)]
    for task in tasks:
        for answer in (DONE, ""):
            base.begin(env, task)
            step = base.take(env, env.write_answer(answer))
            assert not step.success, (task.instruction, answer)
            assert sum(step.rewards.values()) == 0


def test_another_way_wins_and_one_change_too_many_loses():
    env = registry.make("scenario:7")
    task = next(
        t for t in env.tasks("train") if t.family == "depth2" and changes(env, t)
    )
    base.begin(env, task)
    *calls, answer = env.expert()
    steps = [base.take(env, action) for action in (*reversed(calls), answer)]
    assert steps[-1].success
    # Once more, as one action, and after a call that is refused.
    base.begin(env, task)
    assert base.take(env, calls[0].replace(" {", "_all {")).invalid
    assert base.take(env, "\n".join(calls)).state[-2:] == ("result ok",) * 2
    assert base.take(env, answer).success
    base.begin(env, task)
    for action in calls:
        base.take(env, action)
    before = env.fork()
    for action in env.valid_actions():
        made = read_action(action).calls
        if made and not env._functions[made[0].tool].is_read and action not in calls:
            break
    else:
        pytest.fail("nothing else can be changed")
    base.take(env, action)
    assert not base.take(env, answer).success
    assert base.take(before, answer).success


def changes(env, task) -> bool:
    """Whether all calls of a task change something."""
    base.begin(env, task)
    calls = [c for action in env.expert() for c in read_action(action).calls]
    return not any(env._functions[call.tool].is_read for call in calls)


def test_answers_have_a_type_and_others_do_not_end_the_episode():
    env = registry.make("scenario:1")
    answers = {}
    for task in env.tasks("train"):
        base.begin(env, task)
        asked = env._assignment.answer
        answers.setdefault(type(asked), (task, asked))
    messages = {type(None): "answer done", int: "whole number", str: "a name"}
    assert answers.keys() == messages.keys()
    for kind, (task, asked) in answers.items():
        base.begin(env, task)
        for text in ("I am not sure", "-3.5"):
            step = base.take(env, text)
            assert step.invalid
            assert not step.terminated
            assert messages[kind] in step.state[-1]
        wrong = {int: str((asked or 0) + 1) if kind is int else "", str: "Nobody"}
        step = base.take(env, wrong.get(kind, DONE))
        assert step.terminated
        assert not step.success


def test_equal_seeds_are_equal_environments_and_others_are_not():
    for split in base.SPLITS:
        one, two, other = (
            registry.make(f"scenario:{seed}").tasks(split) for seed in (4, 4, 5)
        )
        assert one == two
        assert not {t.instruction for t in one} & {t.instruction for t in other}
    assert (
        registry.make("scenario:4").tools.keys()
        != registry.make("scenario:5").tools.keys()
    )
    default, zero = registry.make("scenario"), registry.make("scenario:0")
    assert default.tasks("dev") == zero.tasks("dev")


@pytest.mark.parametrize("spec", SPECS)
def test_no_instruction_is_in_two_splits(spec):
    env = registry.make(spec)
    texts = {s: [t.instruction for t in env.tasks(s)] for s in base.SPLITS}
    every = [text for part in texts.values() for text in part]
    assert len(set(every)) == len(every)
    assert {s: len(part) > 50 for s, part in texts.items()} == dict.fromkeys(
        texts, True
    )
    families = [t.family for t in env.tasks("train")]
    for family in set(families):
        assert families.count(family) / len(families) == pytest.approx(
            1 / len(set(families)), abs=0.05
        )


def test_what_a_task_reads_is_a_reveal_and_stays_in_sight():
    env = registry.make("scenario")
    task = next(t for t in env.tasks("train") if t.instruction.startswith("answer"))
    base.begin(env, task)
    step = base.take(env, env.expert()[0])
    assert step.reveals
    assert step.state[0].startswith(f"called {env.expert()[0]} -> ")
    assert step.state[-1] == "result ok"
    assert base.take(env, "frobnicate").reveals is False
    assert env._text().splitlines()[0] == step.state[0]


def test_states_are_bounded_however_many_calls_there_are():
    env = registry.make("scenario:7")
    base.begin(env, env.tasks("train")[0])
    call = next(
        action
        for action in env.valid_actions()
        if env._functions[read_action(action).calls[0].tool].operation == "list"
    )
    for number in (1, 2):
        step = base.take(env, "\n".join([call] * 200))
        called = [line for line in step.state if line.startswith("called ")]
        assert step.state[0] == f"earlier calls {200 * number - len(called)}"
        assert (
            scenario_env.MAX_RESULTS - 100
            < sum(map(len, called))
            <= scenario_env.MAX_RESULTS
        )


def test_valid_actions_are_taken_and_name_what_was_seen():
    env = registry.make("scenario:2")
    rng = np.random.default_rng(0)
    for task in env.tasks("train")[:30]:
        begun, state = base.begin(env, task)
        ended = False
        while not ended:
            actions = env.valid_actions()
            assert 0 < len(actions) <= 64
            text = "\n".join((begun.instruction, *state))
            for action in actions:
                for call in read_action(action).calls:
                    for value in call.arguments.values():
                        assert isinstance(value, bool) or str(value) in text
            step = base.take(env, actions[int(rng.integers(len(actions)))])
            assert not step.invalid
            state, ended = step.state, step.terminated or step.truncated


def test_typos_are_in_half_of_the_tasks_and_the_tasks_are_the_same():
    clean, noisy = (registry.make(f"scenario:6{x}") for x in ("", "?typos=0.3"))
    pairs = list(zip(clean.tasks("train"), noisy.tasks("train"), strict=True))
    counts = [b.options["typos"] for _, b in pairs]
    assert 0.3 < sum(count > 0 for count in counts) / len(counts) < 0.5
    for a, b in pairs:
        assert (a.instruction == b.instruction) is (b.options["typos"] == 0)
        assert "typos" not in a.options
        # What a call must have, and the answer `done`, are written as they are.
        split, number = b.options["split"], b.options["number"]
        calls = scenario_env._assignment(noisy.settings, split, number).calls
        values = {write_value(v) for c in calls for v in c.arguments.values()} | {DONE}
        words, noisy_words = (set(re.findall(r"\w+", t.instruction)) for t in (a, b))
        assert words & values <= noisy_words
    number = next(i for i, count in enumerate(counts) if count)
    plans = []
    for env, task in zip((clean, noisy), pairs[number], strict=True):
        base.begin(env, task)
        plans.append(env.expert())
    assert plans[0] == plans[1]


def test_variations_are_new_tasks_of_the_same_depth():
    env = registry.make("scenario:8")
    held_out = {t.instruction for s in ("dev", "test") for t in env.tasks(s)}
    task = env.tasks("train")[6]
    variations = env.variations(task, np.random.default_rng(0))
    assert variations == env.variations(task, np.random.default_rng(0))
    assert len({v.id for v in variations}) == len(variations) == 8
    for other in variations:
        assert (other.family, other.lineage) == (task.family, (task.id,))
        assert other.instruction not in held_out
        base.begin(env, other)
        assert [base.take(env, a) for a in env.expert()][-1].success


def test_what_is_held_out_is_no_variation(monkeypatch):
    def held_out(settings, split, number):
        return drawn(settings, "generated" if split == "dev" else split, number)

    def numbers(tasks):
        return [task.options["number"] for task in tasks]

    env = registry.make("scenario:8")
    task = env.tasks("train")[6]
    before = numbers(env.variations(task, np.random.default_rng(0)))
    # Let the third of them be a dev task as well.
    drawn = scenario_env._assignment
    monkeypatch.setattr(scenario_env, "_assignment", held_out)
    split = {"dev": [before[2]], "test": []}
    monkeypatch.setattr(scenario_env, "_distinct", lambda _: split)
    after = numbers(env.variations(task, np.random.default_rng(0)))
    assert after[:7] == [*before[:2], *before[3:]]
    assert after[7] not in before


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "-1",
        "1_0",
        " 7",
        "1?depth=0",
        "1?depth=7",
        "1?typos=2",
        "1?typos=nan",
        "1?size=3",
    ],
)
def test_names_that_mean_nothing_are_refused(name):
    with pytest.raises(ValueError, match=r"scenario:.*: expected"):
        registry.make(f"scenario:{name}")


@pytest.mark.parametrize(
    "options", [{}, {"split": "train", "number": 400}, {"split": "x", "number": 0}]
)
def test_tasks_of_others_are_refused(options):
    env = registry.make("scenario")
    known = {"scenario": 0, "depth": 3}
    with pytest.raises(ValueError, match=r"task 't': (options must name|number must)"):
        base.begin(env, Task(id="t", instruction="", options=known | options))
    for other in ("scenario:1", "scenario:0?depth=5"):
        (task, *_) = registry.make(other).tasks("train")
        with pytest.raises(ValueError, match=r"is of scenario:.*this environment is"):
            base.begin(env, task)
        with pytest.raises(RuntimeError, match="reset"):
            env.step("done")
    with pytest.raises(ValueError, match="split must be one of"):
        env.tasks("generated")


def test_a_recorded_task_is_played_again():
    env = registry.make("scenario:9")
    begun, state = base.begin(env, env.tasks("test")[3])
    again, same = base.begin(env, dataclasses.replace(begun))
    assert (again, same) == (begun, state)


def test_a_store_keeps_names_and_numbers_of_its_form():
    env = next(
        env
        for env in (registry.make(f"scenario:{seed}") for seed in range(20))
        if any(f.operation == "create" for f in env._functions.values())
    )
    for ask in (env.expert, env.valid_actions):
        with pytest.raises(RuntimeError, match="reset"):
            ask()
    base.begin(env, env.tasks("train")[0])
    create = next(f for f in env._functions.values() if f.operation == "create")
    field_values = {int: 5, bool: False, str: next(iter(all_names(env._store)))}
    good = {
        name: next(iter(env._store[create.row_types[name]]))
        if name in create.row_types
        else field_values.get(hint) or getattr(hint, "__args__", [False])[0]
        for name, hint in create.signature.hints.items()
    }
    for name in ("Foo\nresult right", "", "foo", "F" + "o" * 60, "F\ud800"):
        step = base.take(env, write_call(create.name, {**good, "name": name}))
        assert step.invalid, name
        "\n".join(step.state).encode()
    for key, value in good.items():
        if type(value) is int:
            action = write_call(create.name, {**good, "name": "Foo", key: 10**20})
            assert base.take(env, action).invalid
    assert not base.take(env, write_call(create.name, {**good, "name": "Foo"})).invalid
