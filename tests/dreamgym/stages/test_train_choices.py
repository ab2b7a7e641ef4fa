"""The loop's choices in a run: resumed with replay and alarms, probes, the real one."""

import contextlib
import dataclasses
import json
import math

import pytest

from curriculum.config import (
    CurriculumConfig,
    DemonstrationStartsConfig,
    FeasibilityConfig,
    GuidedRetriesConfig,
    StepLimitConfig,
    ValueConfig,
)
from dreamgym.build import chat as run_chat
from dreamgym.build import episodes as run_episodes
from dreamgym.build import loop as run_loop
from dreamgym.build import loop_checkpoint
from dreamgym.build.models import load_policy, save_policy
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset, with_algorithm
from dreamgym.config.stages import UncertaintyConfig
from dreamgym.rewards.config import (
    JudgeConfig,
    NoveltyConfig,
    PotentialConfig,
    RewardConfig,
)
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.rl.config import ALGORITHMS, KLPenaltyConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import StageView
from dreamgym.stages.policies import train
from dreamgym.stages.table import STAGES
from dreamgym.training import TrainingState
from dreamgym.training.config import (
    AuxiliaryConfig,
    ForkConfig,
    MonitorConfig,
    ReplayConfig,
)
from dreamgym.training.limit_config import LimitConfig
from tests import doubles
from tests.dreamgym.stages.policies.test_train import (
    LOOP,
    TASKS,
    same,
    start,
    stop_after,
)
from tests.dreamgym.training.common import fresh, with_starts
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import write_episodes
from worldmodel.memory import ReplayMemory
from worldmodel.text.names import save_names

WORLD = "tests.doubles:Corridor"
ALL = dataclasses.replace(
    LOOP,
    updates=2,
    max_resample_rounds=1,
    forks_per_update=2,
    fork=ForkConfig(by="entropy", weight=0.5, prefix_mean=True),
    replay=ReplayConfig(ratio=0.5),
    monitor=MonitorConfig(
        max_length_ratio=0.1,
        response="revert",
        remedies=("entropy", "kl"),
        real_eval_every=1,
        keep_best=True,
    ),
    curriculum=dataclasses.replace(
        LOOP.curriculum,
        value=ValueConfig(estimator="posterior", decay=0.9),
        feasibility=FeasibilityConfig(rollouts=2),
        lessons="games",
        step_limit=StepLimitConfig(initial=2, updates=2),
        demonstration_starts=DemonstrationStartsConfig(share=0.3),
    ),
)


def test_an_interrupted_loop_with_all_of_it_goes_on_bit_for_bit(
    tmp_path, monkeypatch, capsys
):
    run, _, go = start(tmp_path / "whole", ALL, probe=lambda _: {"real_success": 0.5})
    episodes(run)
    policy, whole = go()
    assert "alarm, update 2: max_length_ratio, reverted" in capsys.readouterr().err
    assert whole.replay
    numbers = train._numbers(whole)
    assert 0.0 <= numbers["accepted_model"] <= 1.0
    assert whole.curve[1]["entropy_weight"] == 1e-3
    assert sum(row.get("forks", 0) for row in whole.curve) > 0
    assert all("demonstration_success" in row for row in whole.curve)
    run, _, go = start(tmp_path / "two", ALL, probe=lambda _: {"real_success": 0.5})
    episodes(run)
    stop_after(1, go, monkeypatch)
    *_, again = start(tmp_path / "two", ALL, probe=lambda _: {"real_success": 0.5})
    other, progress = again()
    assert same(progress.best, whole.best)
    assert same(other.model.params, policy.model.params)
    assert same(policy.model.params, whole.result.params)
    assert numbers["best_update"] == 1
    assert same(progress.policy, whole.policy)
    assert progress.curve == whole.curve
    assert progress.pool.state() == whole.pool.state()
    assert progress.lessons is not None
    assert progress.lessons.to_json() == whole.lessons.to_json()
    assert [list(e.ids) for e in progress.replay] == [list(e.ids) for e in whole.replay]


def test_a_halted_loop_says_why_and_keeps_the_policy_before(tmp_path, capsys):
    watch = MonitorConfig(min_entropy=99.0, response="stop")
    config = dataclasses.replace(ALL, monitor=watch)
    run, _, go = start(tmp_path, config)
    episodes(run)
    policy, progress = go()
    assert "stopped before update 1: min_entropy" in capsys.readouterr().err
    assert progress.update == 1
    assert train._numbers(progress)["stop_reason"].startswith("stopped before update 1")
    assert run.path("policies/dream/config.json").is_file()
    begun = doubles.cloned(doubles.ACTIONS, TASKS)
    assert same(policy.model.params, begun.model.params)


def test_the_numbers_are_of_updates_with_a_scored_rollout():
    start = fresh(TASKS)

    def numbers(*rows):
        return train._numbers(start._replace(update=len(rows), curve=list(rows)))

    lost = {"unscored_rollouts": 8.0, "rollouts": 8.0}
    updated = {"kl": 0.1, "update_kl": 0.1}
    good = lost | updated | {"unscored_rollouts": 2.0, "success": 0.25}
    result = numbers(
        lost, good, good | {"success": 0.5, "unscored_rollouts": 7.0}, lost
    )
    assert (result["success_first"], result["success_last"]) == (0.25, 0.5)
    assert (result["success_first_of"], result["success_last_of"]) == (6, 1)
    assert "kl" not in result  # the last update was none
    assert not {"success_first", "success_last"} & numbers(lost).keys()


def test_the_numbers_have_the_costs_of_the_last_update():
    rows = [
        {"rollouts": 8.0, "unscored_rollouts": 0.0, "cost/harm": cost, "update_kl": 0.1}
        for cost in (0.9, 0.25)
    ]
    numbers = train._numbers(fresh(TASKS)._replace(update=2, curve=rows))
    assert numbers["costs_last"] == {"harm": 0.25}
    assert numbers["costs_last_of"] == 8
    assert "costs_last" not in train._numbers(fresh(TASKS))


def corridor(tmp_path, **loop):
    config = preset("tiny", {"env.id": WORLD})
    loop = dataclasses.replace(LOOP, updates=1, **loop)
    return Run(tmp_path, dataclasses.replace(config, train=loop))


def test_a_probe_plays_real_dev_games(tmp_path):
    run = corridor(
        tmp_path, monitor=MonitorConfig(real_eval_every=1, real_eval_tasks=5)
    )
    with run_loop.real_evaluation(run) as probe:
        assert probe is not None
        metrics = probe(doubles.Scripted(doubles.expert_rule))
        lost = probe(doubles.Scripted(lambda *_: "go left"))
    assert metrics["real_success"] == 1.0
    steps = sum(len(doubles.plan(t.initial_state)) for t in doubles.tasks("dev")[:5])
    assert metrics["real_eval_transitions"] == steps
    assert lost["real_success"] < 0.5
    with run_loop.real_evaluation(corridor(tmp_path / "none")) as probe:
        assert probe is None


class OnlyTrain(doubles.Corridor):
    """No game to measure by."""

    def tasks(self, split):
        return [] if split == "dev" else super().tasks(split)


def test_a_probe_without_an_environment_or_a_dev_game_plays_nothing(tmp_path):
    alone = Run(tmp_path / "alone", preset("tiny", {"env.id": ""}))
    with run_loop.real_evaluation(alone) as probe:
        assert probe is None
    run = corridor(tmp_path / "no dev", monitor=MonitorConfig(real_eval_every=1))
    run.config = changed(run.config, "env.id", f"{__name__}:OnlyTrain")
    with (
        pytest.raises(RunError, match="has no dev task"),
        run_loop.real_evaluation(run),
    ):
        pass


def test_a_probe_that_nobody_scored_tells_no_success(tmp_path):
    run = corridor(
        tmp_path, monitor=MonitorConfig(real_eval_every=1, real_eval_tasks=2)
    )
    with run_loop.real_evaluation(run) as probe:
        assert probe is not None

        def broken(*_):
            raise RuntimeError("gone")

        metrics = probe(doubles.Scripted(doubles.expert_rule))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doubles.Corridor, "step", broken)
            none = probe(doubles.Scripted(doubles.expert_rule))
    assert {"real_success", "real_eval_transitions", "real_return"} < metrics.keys()
    assert none.keys() == {"real_eval_transitions"}


def episodes(run):
    some = [doubles.expert(t) for t in doubles.tasks("train")[4:40:9]]
    write_episodes(run.path("episodes.jsonl"), some)
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:2]]
    write_episodes(run.path("dev.jsonl"), dev)
    save_names(run.path("names.json"), {})
    return some


@pytest.mark.medium
def test_lost_tasks_are_guided_by_what_the_run_won(tmp_path, monkeypatch):
    """And a loop that was interrupted goes on bit for bit."""
    retries = GuidedRetriesConfig(groups=2, share=0.7)
    curriculum = dataclasses.replace(LOOP.curriculum, guided_retries=retries)
    config = dataclasses.replace(LOOP, tasks_per_update=4, curriculum=curriculum)
    run, _, go = start(tmp_path / "whole", config)
    episodes(run)
    policy, whole = go()
    rows = [row for row in whole.curve if "guided_rollouts" in row]
    assert {row["guided_rollouts"] for row in rows} <= {8.0, 16.0}
    assert max(row["guided_success"] for row in rows) > 0.0
    run, _, go = start(tmp_path / "two", config)
    episodes(run)
    stop_after(1, go, monkeypatch)
    *_, again = start(tmp_path / "two", config)
    other, progress = again()
    assert progress.curve == whole.curve
    assert same(other.model.params, policy.model.params)


def test_rollouts_begin_in_what_the_run_won(tmp_path):
    config = with_starts(dataclasses.replace(LOOP, updates=2), share=0.5)
    run, _, go = start(tmp_path, config)
    lost = [doubles.episode(t, ["take nothing"]) for t in TASKS]
    episodes(run)
    write_episodes(run.path("episodes.jsonl"), lost)
    with pytest.raises(RunError, match="no successful episode"):
        go()
    episodes(run)
    _, state = go()
    assert state.curve[0]["demonstration_distance"] == 1.0
    assert state.curve[0]["demonstration_success"] > 0.0


def test_counts_of_states_go_on_after_an_interruption(tmp_path, monkeypatch):
    reward = RewardConfig(novelty=NoveltyConfig(weight=0.5, numbers=True))
    config = dataclasses.replace(LOOP, updates=2, environment="real", reward=reward)
    run, _, go = start(tmp_path / "whole", config)
    some = episodes(run)
    policy, whole = go()
    assert [row["reward/novelty"] > 0.0 for row in whole.curve] == [True, True]
    counts, collected = (
        whole.novelty.state(),
        NoveltyReward(reward.novelty, some).state(),
    )
    assert all(counts[key] >= n for key, n in collected.items())
    assert sum(counts.values()) > sum(collected.values())
    run, _, go = start(tmp_path / "two", config)
    episodes(run)
    stop_after(1, go, monkeypatch)
    *_, again = start(tmp_path / "two", config)
    other, progress = again()
    assert progress.novelty.state() == counts
    assert progress.curve == whole.curve
    assert same(other.model.params, policy.model.params)


def test_ends_of_won_episodes_say_how_near_the_goal_is_in_the_dream(tmp_path):
    potential = PotentialConfig(weight=0.5, kind="goal")
    config = dataclasses.replace(
        LOOP, updates=1, reward=RewardConfig(potential=potential)
    )
    run, _, go = start(tmp_path, config)
    episodes(run)
    lost = [doubles.episode(t, ["take nothing"]) for t in TASKS]
    write_episodes(run.path("episodes.jsonl"), lost)
    message = rf"{tmp_path}: reward.potential.kind = .goal.* none of the {len(TASKS)} "
    with pytest.raises(RunError, match=message):
        go()
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in TASKS])
    _, progress = go()
    assert progress.curve[-1]["reward/potential"] != 0.0


@pytest.mark.parametrize("name", ["tests.corridor:PlansAnywhere", WORLD])
def test_plans_say_how_near_the_goal_is_in_the_real_environment(tmp_path, name):
    run = corridor(
        tmp_path,
        environment="real",
        reward=RewardConfig(potential=PotentialConfig(weight=0.5)),
    )
    env = dataclasses.replace(run.config.env, id=name)
    warm = doubles.cloned(doubles.ACTIONS, [e.task for e in episodes(run)])
    run.config = dataclasses.replace(run.config, policy=warm.config, env=env)
    save_policy(run, "expert_iteration", warm)
    if name == WORLD:  # its expert plans from the start alone
        with pytest.raises(ValueError, match="plans_from_any_state"):
            train._train_in_environment(run)
        return
    run.stage("train", lambda: train._train_in_environment(run))
    (row,) = map(json.loads, run.path("curves/dream.jsonl").read_text().splitlines())
    assert row["reward/potential"] != 0.0


def test_the_same_loop_runs_in_the_real_environment(tmp_path):
    run = corridor(tmp_path)
    some = episodes(run)
    warm = doubles.cloned(doubles.ACTIONS, [e.task for e in some])
    run.config = dataclasses.replace(run.config, policy=warm.config)
    save_policy(run, "expert_iteration", warm)
    numbers = run.stage("train", lambda: train._train_in_environment(run))["numbers"]
    assert numbers["updates"] == 1
    assert numbers["real_transitions"] >= 16
    assert run.path("policies/dream/config.json").is_file()


@pytest.mark.parametrize("kind", ["bc", "iwm"])
def test_demonstrations_may_be_imitated_beside(tmp_path, kind):
    run = corridor(tmp_path, auxiliary=AuxiliaryConfig(objective=kind, coefficient=0.1))
    some = episodes(run)
    policy = doubles.policy()
    results = run_loop.supervised(run, policy, run.config.train)
    steps = sum(len(e.transitions) for e in some)
    assert len(results) == steps
    texts = [policy.tokenizer.decode(list(e.ids)) for e in results]
    assert any("take coin" in t for t in texts)
    assert all(any(e.mask) for e in results)


@pytest.mark.parametrize("kind", ["bc", "iwm"])
def test_no_more_demonstrations_are_imitated_than_the_warm_start_was_shown(
    tmp_path, kind
):
    run = corridor(tmp_path, auxiliary=AuxiliaryConfig(objective=kind, coefficient=0.1))
    some = episodes(run)
    run.config = changed(run.config, "bc.demonstration_share", 0.25)
    run.config = changed(run.config, "bc.imitate", "experts")
    shown, _ = run_episodes.demonstrations(run)
    assert 0 < len(shown) < len(some)
    results = run_loop.supervised(run, doubles.policy(), run.config.train)
    assert len(results) == sum(len(e.transitions) for e in shown)


@pytest.mark.parametrize("kind", ["bc", "iwm"])
@pytest.mark.parametrize("coefficient", [0.1, 0.0])
def test_updates_read_demonstrations_with_other_names_too(tmp_path, kind, coefficient):
    """Whether the loss is there from the start or the remedy brings it."""
    monitor = MonitorConfig(response="revert", remedies=("supervised",))
    auxiliary = AuxiliaryConfig(objective=kind, coefficient=coefficient)
    run = corridor(tmp_path, auxiliary=auxiliary, monitor=monitor)
    some, policy = episodes(run), doubles.policy()
    plain = run_loop.supervised(run, policy, run.config.train)
    families = {e.task.family for e in some}
    save_names(run.path("names.json"), dict.fromkeys(families, (("left", "right"),)))
    view = StageView(run, STAGES["train"], STAGES)
    parts = run_loop._parts(
        view,
        policy,
        TrainingState(0, None, None, 0, []),
        run.config.train,
        None,
        0,
        None,
    )
    examples = parts.auxiliary
    # 64 examples of one update: each is read twice at most, and once more.
    draws = math.ceil(64 / len(plain)) + 1
    assert len(examples) == draws * len(plain)
    assert list(examples[: len(plain)]) == plain
    decode = policy.tokenizer.decode
    originals = [decode(list(e.ids)) for e in plain]
    others = [decode(list(e.ids)) for e in examples[len(plain) :]]
    assert set(others) - set(originals)


@pytest.mark.parametrize(("share", "queries"), [(0.49, False), (0.5, True)])
def test_nobody_is_asked_for_tasks_that_no_batch_has_room_for(tmp_path, share, queries):
    c = dataclasses.replace(LOOP.curriculum, generated_share=share)  # of 2 tasks
    run = corridor(tmp_path, curriculum=c)
    progress = TrainingState(0, None, run_loop.pool_of(TASKS, c), 0, [])
    model = doubles.Known(ReplayMemory(capacity=1))
    parts = run_loop._parts(
        run, doubles.policy(), progress, run.config.train, model, 0, None
    )
    assert (parts.propose is not None) == queries


def test_what_a_mixture_leaves_out_still_guides(tmp_path, monkeypatch):
    """It says what is imitated, not what is known."""
    c = CurriculumConfig(guided_retries=GuidedRetriesConfig(groups=1))
    run = corridor(tmp_path, curriculum=c)
    some = episodes(run)
    monkeypatch.setattr(run_episodes, "draw_mixture", lambda *_, **__: some[:1])
    assert len(some) > len(run_episodes.imitated_episodes(run)) == 1
    progress = TrainingState(0, None, run_loop.pool_of(TASKS, c), 0, [])
    parts = run_loop._parts(
        run, doubles.policy(), progress, run.config.train, None, 0, None
    )
    assert [e.id for e in parts.demonstrations] == [e.id for e in some]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_is_of_both_loops(name):
    config = with_algorithm(preset("tiny"), name)
    for loop in (config.train, config.transfer):
        assert loop.update.advantage_estimator == ALGORITHMS[name].get(
            "advantage_estimator", "group_mean"
        )
        assert loop.update.learning_rate == 1e-3
    assert config.train.updates == preset("tiny").train.updates


def test_who_has_no_ratio_and_takes_from_the_lost_moves_once_a_batch():
    for name in ALGORITHMS:
        u = with_algorithm(preset("tiny"), name).train.update
        free = (
            u.surrogate.importance_level == "none"
            and u.advantage_estimator != "success_filter"
        )
        assert u.num_minibatches == (1 if free else 4), name
        assert u.warmup_steps == (5 if free else 20), name  # as many updates


def test_an_unknown_algorithm_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'trpo'.*dr_grpo.*ppo"):
        with_algorithm(preset("tiny"), "trpo")


def test_the_real_control_needs_an_environment_and_cannot_go_back():
    with pytest.raises(ValueError, match=r"train\.environment = real needs"):
        preset("tiny", {"env.id": "", "train.environment": "real"})
    with pytest.raises(
        ValueError, match=r"forks_per_update and .* must be 0, got 1 and 0"
    ):
        preset(
            "tiny",
            {"train.environment": "real"},
            train=dataclasses.replace(LOOP, forks_per_update=1),
        )
    for loop in (
        {"forks_per_update": 1},
        {"monitor.real_eval_every": 1},
        {"max_transitions": 5},
    ):
        with pytest.raises(ValueError, match=r"forks_per_update, .* and .* must be 0"):
            preset("tiny", {f"transfer.{k}": v for k, v in loop.items()})


def test_a_judge_that_cannot_be_asked_is_said_before_anything_is_made(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    judge = ChatConfig(base_url="http://127.0.0.1:1/v1", api_key_env="NO_SUCH_KEY")
    for settings, text in (
        (ChatConfig(), r"train\.reward\.judge\.chat\.base_url must be set"),
        (judge, "NO_SUCH_KEY"),
    ):
        reward = RewardConfig(sources=("judge",), judge=JudgeConfig(chat=settings))
        config = preset("tiny", train=dataclasses.replace(LOOP, reward=reward))
        with pytest.raises(ValueError, match=text):
            run_chat.check_server(config)


def test_red_flags_of_skills_are_said_too(capsys):
    pool = run_loop.pool_of(TASKS, LOOP.curriculum)
    row = {"flags/call_rate": 1.0, "alarm/max_kl_ratio": 1.0, "success": 0.5}
    loop_checkpoint._print_alarms(TrainingState(4, None, pool, 0, [row]))
    output = capsys.readouterr().err.splitlines()
    assert output[0] == "red flag, update 4: call_rate"
    assert output[1] == (
        "alarm, update 4: max_kl_ratio (`dreamgym settings max_kl_ratio` explains it)"
    )


def test_what_is_no_gain_in_returns_is_not_put_into_the_theorem(tmp_path, monkeypatch):
    """The experience model is asked for its errors only where they are of use."""
    queries = []
    monkeypatch.setattr(
        train.fidelity, "largest_errors", lambda *_, **__: queries.append(1)
    )
    known = doubles.Known(ReplayMemory(capacity=10))
    scaled = dataclasses.replace(LOOP.update, normalize_advantages="group")
    by_episode = dataclasses.replace(LOOP.update, credit="episode")
    withheld = dataclasses.replace(
        LOOP.update, kl_penalty=KLPenaltyConfig(coefficient=0.1, placement="reward")
    )
    for number, (loop, text) in enumerate(
        (
            ({"update": scaled}, train.UNPROMISED),
            ({"update": by_episode}, train.UNPROMISED),
            ({"replay": ReplayConfig(ratio=0.5)}, train.UNPROMISED),
            ({"reward": RewardConfig(outcome_weight=0.5)}, train.UNMEASURED),
            ({"update": withheld}, train.UNMEASURED),
            ({}, None),
        )
    ):
        run = corridor(tmp_path / str(number), **loop)
        output = train._lower_bound(run, known, [], [])
        assert output == (None if text is None else {"sentence": text})
        assert len(queries) == (text is None)
    assert not train._has_other_rewards(preset("tiny"))
    unused = dataclasses.replace(
        withheld, kl_penalty=KLPenaltyConfig(coefficient=0.0, placement="reward")
    )  # no KL, so none in the reward
    plain = dataclasses.replace(preset("tiny").train, update=unused)
    assert not train._has_other_rewards(preset("tiny", train=plain))
    wary = preset("tiny", uncertainty=UncertaintyConfig(penalty=0.5))
    assert train._has_other_rewards(wary)


@pytest.mark.parametrize("stage", ["train", "s2r", "real_only"])
@pytest.mark.parametrize("kind", ["bc", "iwm"])
def test_a_stage_that_updates_may_read_what_it_imitates(tmp_path, stage, kind):
    run = corridor(tmp_path, auxiliary=AuxiliaryConfig(objective=kind, coefficient=0.1))
    episodes(run)
    view = StageView(run, STAGES[stage], STAGES)
    config = run.config.train
    assert run_loop.supervised(view, doubles.policy(), config)


def test_the_best_policy_that_destroyed_a_family_is_reported(tmp_path):
    """They are not kept, and the note says how many games they won."""
    run, *_ = start(tmp_path / "run", ALL)
    rows = [
        {"real_success": 0.4, "destroyed/box": 1.0},
        {"real_success": 0.7, "destroyed/box": 1.0},
        {"real_success": 0.9, "reverted": 1.0},
    ]
    for curve, metrics in ((rows, rows[1]), (rows[2:], {})):
        progress = TrainingState(
            3, None, run_loop.pool_of(TASKS, LOOP.curriculum), 0, curve, best=object()
        )
        after = train._dev_metrics_of(run, progress, doubles.policy())
        assert after == ({}, metrics)


@pytest.mark.parametrize(
    ("keep_best", "limits"),
    [(True, ()), (False, ()), (True, (LimitConfig(name="hazard", limit=0.1),))],
)
def test_the_last_policy_is_kept_by_a_study_and_under_limits(
    tmp_path, monkeypatch, keep_best, limits
):
    """However little it wins: what won more may cost more."""
    watch = MonitorConfig(real_eval_every=1, keep_best=keep_best)
    keep_best = keep_best and not limits
    config = preset("tiny", {"env.id": WORLD})
    loop = dataclasses.replace(config.train, monitor=watch, limits=limits)
    run = Run(tmp_path, dataclasses.replace(config, train=loop))
    won = {"real_success": 1.0, "real_return": 1.0, "real_games/": 20.0}
    run.mark("expert_iteration", {"real": won})
    begun, trained = doubles.policy(), doubles.cloned(doubles.ACTIONS, TASKS)
    save_policy(run, "dream", trained)
    lost = won | {"real_success": 0.0, "real_return": 0.0}
    monkeypatch.setattr(train, "_dev_metrics_of", lambda *_: (won, lost))
    assert train._choose(run, fresh(TASKS), begun)["kept"] == (
        "expert_iteration" if keep_best else "dream"
    )
    kept = load_policy(run, "dream").model.params
    assert same(kept, begun.model.params if keep_best else trained.model.params)


@pytest.mark.parametrize("limits", [(), (LimitConfig(name="hazard", limit=0.1),)])
def test_a_start_that_wins_all_is_trained_under_limits_alone(
    tmp_path, monkeypatch, limits
):
    config = preset("tiny", {"env.id": WORLD, "dream_check.force": False})
    loop = dataclasses.replace(config.train, limits=limits)
    run = Run(tmp_path, dataclasses.replace(config, train=loop))
    won = {"real_success": 1.0, "real_return": 1.0, "real_games/": 20.0}
    run.mark("expert_iteration", {"real": won})
    run.mark("dream_check", {"refused": "", "forced": False})
    save_policy(run, "expert_iteration", doubles.policy())
    monkeypatch.setattr(train, "load_experience", lambda *_, **__: None)
    session = contextlib.nullcontext
    monkeypatch.setattr(train.run_chat, "experience_session", session)
    monkeypatch.setattr(train, "_train_in_dream", lambda *_: {"kept": "dream"})
    numbers = train.body(run)
    assert numbers["kept"] == ("dream" if limits else "expert_iteration")
    assert numbers.get("nothing_to_gain", False) == (not limits)
