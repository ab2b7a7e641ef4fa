"""The loop: rollouts, recorder, budget, resume, proposals, progress."""

import dataclasses

import jax
import numpy as np
import pytest

from curriculum.config import CurriculumConfig, StepLimitConfig
from curriculum.generator import FunctionProposer
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.envs.counting import CountedEnv, RealSteps
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.rl.config import UpdateConfig
from dreamgym.training import LoopParts
from dreamgym.training.config import LoopConfig
from tests import doubles
from tests.dreamgym.training import common
from tests.dreamgym.training.common import Recorder, fresh, updater
from tests.ledger import Ledger

CONFIG = LoopConfig(
    updates=3,
    tasks_per_update=2,
    group_size=2,
    update=UpdateConfig(
        batch_rows=8,
        row_tokens=80,
        num_minibatches=1,
        warmup_steps=1,
        normalize_advantages="none",
    ),
    curriculum=CurriculumConfig(proposals_per_update=1),
)


def mixed(task, past, state):
    """Wins the even corridors, falls in the odd ones."""
    if int(task.id.split("-")[2]) % 2:
        return "go left"
    return doubles.expert_rule(task, past, state)


def loop(progress=None, *, config=CONFIG, recorder=None, **settings):
    tasks = doubles.tasks("train")[:8]
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    progress = fresh(tasks, config) if progress is None else progress
    return training.train(
        doubles.Scripted(mixed),
        envs,
        updater(),
        progress,
        config,
        seed=3,
        recorder=Recorder() if recorder is None else recorder,
        **settings,
    )


def test_the_loop_rolls_out_groups_and_tells_its_recorder(update_calls):
    recorder = Recorder()
    end = loop(recorder=recorder)
    assert end.update == 3
    assert len(end.curve) == 3
    assert [row["update"] for row in end.curve] == [1, 2, 3]
    total = 0
    for number, (progress, item) in enumerate(recorder.seen, start=1):
        assert progress.update == number
        names = [t.episode.task.id for t in item]
        assert names[0::2] == names[1::2]  # each task twice, side by side
        assert len(names) == 4
        total += sum(len(t.turns) for t in item)
        assert progress.transitions == total == progress.curve[-1]["transitions"]
    assert not update_calls.examples  # a rule's group never differs


def test_a_loop_that_goes_on_equals_one_that_was_never_stopped():
    recorder = Recorder()
    whole = loop(recorder=recorder)
    first = loop(config=dataclasses.replace(CONFIG, updates=1))
    pool = pool_of(doubles.tasks("train")[:2], CONFIG.curriculum)
    pool.load(first.pool.state())
    again = loop(first._replace(pool=pool))
    assert again.curve == whole.curve
    assert again.pool.entries == whole.pool.entries
    assert again.transitions == whole.transitions


def test_the_loop_ends_at_its_budget():
    one = loop(config=dataclasses.replace(CONFIG, updates=1)).transitions
    end = loop(config=dataclasses.replace(CONFIG, updates=50), budget=one + 1)
    assert end.update == 2
    assert end.transitions > one
    assert loop(budget=0).update == 0


def test_invented_tasks_enter_the_pool_and_then_the_batch():
    model = doubles.RuleModel()

    def propose(groups):
        return model.vary(groups, key=jax.random.key(0))

    config = LoopConfig(
        updates=3,
        tasks_per_update=4,
        group_size=2,
        update=CONFIG.update,
        curriculum=CurriculumConfig(proposals_per_update=3, generated_share=0.5),
    )
    recorder = Recorder()
    parts = LoopParts(propose=FunctionProposer(propose))
    end = loop(config=config, recorder=recorder, parts=parts)
    made = [e for e in end.pool.entries.values() if e.generated]
    assert made
    for progress, item in recorder.seen:
        output = progress.curve[-1]
        share = np.mean([t.episode.task.split == "generated" for t in item])
        assert output["tasks/generated_share"] == pytest.approx(share)
        assert share <= 0.5
        counts = sum(
            output.get(f"tasks/{k}", 0) for k in ("accepted", "duplicate", "form")
        )
        assert counts == 3
    assert end.curve[-1]["tasks/generated_share"] > 0


def test_progress_is_shown_with_the_number_of_the_update():
    shown = []
    loop(show=lambda *x: shown.append(x))
    assert sorted({n for n, _, _ in shown}) == [0, 1, 2]
    assert shown[-1] == (2, 4, 4)


@pytest.mark.parametrize(
    ("setting", "value"), [("group_size", 1), ("updates", 0), ("tasks_per_update", 0)]
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        LoopConfig(**{setting: value})


@pytest.mark.usefixtures("update_calls")
def test_training_ends_at_its_limit():
    whole = common.loop(common.CONFIG)
    first = whole.curve[0]["transitions"]
    end = common.loop(
        dataclasses.replace(common.CONFIG, max_transitions=int(first) + 1)
    )
    assert end.update == 2
    assert (
        common.loop(
            dataclasses.replace(common.CONFIG, max_transitions=int(first))
        ).update
        == 1
    )


def test_an_error_leaves_the_environments_with_their_own_step_limit():
    def broken(*_):
        raise RuntimeError("no action")

    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    horizon = StepLimitConfig(initial=3, updates=2)
    curriculum = dataclasses.replace(common.CONFIG.curriculum, step_limit=horizon)
    config = dataclasses.replace(common.CONFIG, curriculum=curriculum)
    with pytest.raises(RuntimeError, match="no action"):
        training.train(
            doubles.Scripted(broken),
            envs,
            updater(),
            fresh(doubles.tasks("train")[:8], config),
            config,
            seed=3,
            recorder=Recorder(),
        )
    assert envs.max_steps == 9


def real_loop(bound, config):
    """The loop on real environments with a bound; returns the end and the recorder."""
    steps, recorder = RealSteps(), Recorder()
    steps.limit = bound
    envs = RealVectorEnv([CountedEnv(Ledger(), steps) for _ in range(4)], max_steps=6)
    Ledger.taken = Ledger.stop_at = 0
    end = training.train(
        doubles.Scripted(mixed),
        envs,
        updater(),
        fresh(doubles.tasks("train")[:8], config),
        config,
        seed=3,
        recorder=recorder,
        parts=LoopParts(steps_left=lambda: steps.left - 5),
    )
    return end, recorder


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("bound", [10, 17, 40, 100])
def test_rollouts_take_no_more_steps_than_are_left(update_calls, bound, rounds):
    config = dataclasses.replace(
        CONFIG, updates=50, tasks_per_update=3, max_resample_rounds=rounds
    )
    end, recorder = real_loop(bound, config)
    del update_calls
    assert Ledger.taken == end.transitions <= bound - 5
    rollouts = [t for _, rows in recorder.seen for t in rows]
    assert all(t.error is None for t in rollouts)  # no episode was cut
    # A group of two episodes of six steps may take 12: what is left pays for none.
    assert bound - 5 - end.transitions < 12
    assert (end.update > 0) == (bound - 5 >= 12)
    assert len(recorder.seen[-1][1]) % 2 == 0 if recorder.seen else True


def test_the_last_updates_have_fewer_groups():
    config = dataclasses.replace(CONFIG, updates=50, tasks_per_update=3)
    _, recorder = real_loop(5 + 24, config)  # two groups at first
    sizes = [len(rows) for _, rows in recorder.seen]
    assert sizes[0] == 4
    assert sizes[-1] == 2
