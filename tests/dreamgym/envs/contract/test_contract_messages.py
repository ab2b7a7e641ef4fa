"""What the contract checker says of a mistake, and that it says it once."""

import dataclasses
import json
import re

import pytest

from dreamgym import cli
from tests import doubles
from tests.dreamgym.envs.contract.common import SharedState, checked, named


class AnyArguments(doubles.Corridor):
    def reset(self, **rest):
        return super().reset(**rest)


class FourValues(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class NoOptions(doubles.Corridor):
    def reset(self, seed=None):
        return super().reset(seed=seed)


class NoAction(doubles.Corridor):
    def step(self):
        return super().step("go left")


class Numbered(doubles.Corridor):
    def tasks(self, split):
        return [
            dataclasses.replace(t, id=str(n))
            for n, t in enumerate(super().tasks(split))
        ]


class Falls(doubles.Corridor):
    def expert(self):
        return ["go left"] * 9


def test_a_reset_with_any_keywords_is_only_warned_of():
    report = checked(AnyArguments)
    assert report.faults == ()
    (warning,) = report.warnings
    assert warning.what.startswith("reset takes its arguments as **rest")
    assert "options=None" in warning.cure


def test_what_gymnasium_finds_behind_such_a_reset_is_still_told():
    class Unseeded(AnyArguments):
        def reset(self, **rest):
            del rest["seed"]
            return super().reset(**rest)

    assert named(checked(Unseeded).faults, r"Gymnasium's check: .*super\(\).reset")


def test_four_values_of_a_step_are_counted():
    (fault,) = checked(FourValues).faults
    assert fault.cure == (
        "return five values (it returned 4): terminated and truncated apart"
    )


@pytest.mark.parametrize(("env", "name"), [(NoOptions, "reset"), (NoAction, "step")])
def test_wrong_arguments_are_told_once_and_at_the_place_of_the_method(env, name):
    (fault,) = [f for f in checked(env).faults if f.what.startswith(f"{name} raised")]
    line = env.__dict__[name].__code__.co_firstlineno
    assert fault.what.endswith(f"(test_contract_messages.py:{line})")
    assert fault.cure.startswith(f"write def {name}(self, ")
    assert not [f for f in checked(env).faults if "Gymnasium's check" in f.what]


def test_ids_in_common_are_told_apart_from_tasks_in_common():
    faults = checked(Numbered).faults
    assert len(faults) == 3
    fault = named(faults, "^the splits train and dev have task ids in common$")
    assert "unique over all splits" in fault.cure


def test_a_plan_that_does_not_win_is_told_once():
    report = checked(Falls)
    assert [f.what for f in report.faults] == ["the expert's plan does not win"]
    assert not [w for w in report.warnings if "won" in w.what]


def test_copies_that_disturb_each_other_are_told_with_both_texts():
    fault = named(checked(SharedState).faults, "disturb each other")
    assert re.search(r"step \d+, action 'go .*': .*step \d+' and then '", fault.where)


class Twins(doubles.Corridor):
    def tasks(self, split):
        return [
            dataclasses.replace(
                t,
                id=f"{split}-{i}",
                split=split,
                options={**t.options, "number": f"{split}-{i}"},  # nobody reads it
            )
            for i, t in enumerate(super().tasks("train"))
        ]


def test_twins_are_told_what_they_have_in_common():
    warning = named(checked(Twins).warnings, "same instruction and first state")
    assert "under other ids" in warning.where
    assert "put equal ones into one split" in warning.cure
    assert "leave it if they differ only in something hidden" in warning.cure


def test_the_environment_is_also_taken_without_its_option(capsys):
    assert cli.main(["check", "tests.doubles:Corridor"]) == 0
    assert "tests.doubles:Corridor keeps the contract" in capsys.readouterr().out
    words = ["check", "tests.doubles:Corridor", "--env", "textworld"]
    assert cli.main(words) == 2
    assert "two environments" in capsys.readouterr().err


def test_what_an_environment_prints_does_not_stand_in_the_report(
    tmp_path, monkeypatch, capsys
):
    source = """
from tests import doubles

class Loud(doubles.Corridor):
    def step(self, action):
        print("step", action)
        return super().step(action)
"""
    (tmp_path / "loud.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check", "--env", "loud:Loud", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["faults"] == []
    assert "step go" in err


class ManyFaults(doubles.Corridor):
    """A reward that is a text hides neither a fork, a rendering nor variations."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.steps == 2:
            info["costs"] = [1]
        return obs, "x" if self.steps == 3 else reward, terminated, truncated, info

    def fork(self):
        return self

    def render_state(self, state):
        return len(state)

    def variations(self, task, rng):
        del rng
        return [task]


class ManyBytes(ManyFaults):
    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs.encode(), info


class ManyResets(ManyFaults):
    def reset(self, **kwargs):
        raise ValueError(f"reset {sorted(kwargs)}")


@pytest.mark.parametrize("env", [ManyFaults, ManyBytes])
def test_a_fault_hides_no_other_one(env):
    faults = checked(env).faults
    named(faults, "a reward must be a finite number, got 'x'")
    named(faults, r"info\['costs'\] must be a dict")
    named(faults, "render_state.. must return a text, got a int")
    named(faults, "a fork changes the environment")
    named(faults, "variations hold the task itself")
    assert any("got bytes" in f.what for f in faults) == (env is ManyBytes)


def test_a_reset_that_raises_hides_no_fault_of_variations():
    named(checked(ManyResets).faults, "variations hold the task itself")


class HeldOutVariations(doubles.Corridor):
    """A variation is a test task under another id."""

    def variations(self, task, rng):
        del rng
        lineage = (*task.lineage, task.id)
        values = {"id": f"new-{task.id}", "split": "generated", "lineage": lineage}
        return [dataclasses.replace(self.tasks("test")[0], **values)]


def test_a_variation_that_is_a_test_task_is_a_fault():
    (fault,) = checked(HeldOutVariations).faults
    assert fault.what == "variations hold tasks of dev or test"
    assert re.search(
        r"'new-corridor-.* options of task 'corridor-.* of test", fault.where
    )


class OneDev(doubles.Corridor):
    def tasks(self, split):
        return super().tasks(split)[: 1 if split == "dev" else None]


def test_few_dev_tasks_are_warned_of():
    (warning,) = checked(OneDev).warnings
    assert warning.what == "tasks('dev') holds fewer than 4 tasks"


class Nested(doubles.Corridor):
    """Options of its tasks are nested 600 levels deep."""

    def tasks(self, split):
        deep = []
        for _ in range(600):
            deep = [deep]
        tasks = super().tasks(split)
        return [
            dataclasses.replace(t, options={**t.options, "deep": deep}) for t in tasks
        ]


def test_options_that_no_copy_can_be_made_of_are_named():
    faults = checked(Nested).faults
    assert "a few levels deep" in named(faults, "options are nested too deeply").cure
    assert not [f for f in faults if "RecursionError" in f.what]
