"""The run's reward model, and the scorer that settings ask for."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from dreamgym import cli
from dreamgym.build import chat as run_chat
from dreamgym.build import rewards
from dreamgym.build.chat import ServerLost
from dreamgym.config.presets import preset
from dreamgym.rewards import reward_model
from dreamgym.rewards.config import (
    JudgeConfig,
    RewardConfig,
    RewardModelRefitConfig,
    RewardModelSourceConfig,
)
from dreamgym.rewards.hard_negatives import KINDS, hard_negatives
from dreamgym.rewards.preferences import (
    read_preferences,
    won_over_lost,
    write_preferences,
)
from dreamgym.rewards.reward_model import RewardModel
from dreamgym.rewards.reward_model_config import RewardModelConfig
from dreamgym.rewards.reward_model_refit import OutcomeRefit
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import reward_model as reward_model_stage
from tests import doubles
from tests.chat_server import answering, ok, serving, status, user_text
from worldmodel.backbone.scalar_head import with_scalar_head
from worldmodel.backbone.weights import save_model
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatUnavailable
from worldmodel.data.records import write_episodes

CONFIG = RewardModelConfig(
    steps=60, batch_pairs=4, row_tokens=64, learning_rate=1e-2, save_every=30
)


def judged_by(url: str) -> JudgeConfig:
    return JudgeConfig(chat=ChatConfig(base_url=url))


def both(split, count, lost=("go right", "go left", "go right")):
    """A won and a lost attempt at each of some tasks."""
    return [
        e
        for task in doubles.tasks(split)[:count]
        for e in (
            doubles.expert(task),
            doubles.episode(task, list(lost), name=f"l-{task.id}"),
        )
    ]


def made(tmp_path, train=40, dev=8, **changes) -> Run:
    run = Run(tmp_path / "r", preset("tiny", {"env.id": ""}, **changes))
    write_episodes(run.path("episodes.jsonl"), both("train", train))
    write_episodes(run.path("dev.jsonl"), both("dev", dev))
    save_model(run.path("experience"), doubles.model(), doubles.tokenizer())
    run.stage("pretrain", dict)
    return run


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    run = made(tmp_path_factory.mktemp("fitted"))
    numbers = rewards.fit(run, CONFIG)
    run.mark(rewards.STAGE, numbers)
    return run, numbers


@pytest.mark.medium
def test_a_runs_own_episodes_make_its_model(fitted):
    run, numbers = fitted
    assert (numbers["pairs"], numbers["held_out"]) == (40, 8)
    assert numbers["accuracy"] == numbers["ranked_right"] / 8 > 0.8
    low, high = numbers["interval"]
    assert low < numbers["accuracy"] <= high
    assert 0 <= numbers["better_is_shorter"] <= 1
    assert run.path("curves/reward_model.jsonl").is_file()
    assert list(run.path("checkpoints").glob("*")) == []
    assert "of 8 tasks held out" in rewards.summary(numbers)


def test_hard_negatives_are_ranked_by_kind(fitted):
    _, numbers = fitted
    kinds = numbers["hard_negatives"]
    assert list(kinds) == [k for k in KINDS if k in kinds]
    for kind, row in kinds.items():
        assert row["accuracy"] == row["ranked_right"] / row["held_out"]
        low, high = row["interval"]
        assert 0 <= low <= row["accuracy"] <= high <= 1
        # No copy is longer than its original, so length alone ranks none right.
        assert row["better_is_shorter"] == 0.0, kind
    # All held-out pairs are ranked right by the actions alone: their order is lost on
    # it. A model of no fit ranks nothing.
    assert kinds["order_reversed"]["accuracy"] < 0.5
    assert kinds["action_replaced"]["accuracy"] > 0.5
    raw = RewardModel(
        with_scalar_head(doubles.model()), doubles.tokenizer(), history=4, width=64
    )
    copies = hard_negatives(both("dev", 8), seed=0)["action_replaced"]
    assert rewards._ranking(raw, copies, tie=rewards.TIE)["ranked_right"] == 0
    assert kinds["action_replaced"]["held_out"] == 8
    lines = rewards.hard_negative_lines(numbers)
    assert lines[0].startswith("step left out: of ")
    assert "of 8 won attempts it ranks" in "\n".join(lines)


class Blind(RewardModel):
    """A model that scores each step alike, but for rounding."""

    def __init__(self):
        pass

    def margins(self, pairs):
        return np.array([1e-6, -1e-6] * len(pairs))[: len(pairs)]


def test_a_margin_of_rounding_is_no_rank():
    pairs = won_over_lost(both("dev", 4), max_pairs=1, seed=0)
    assert rewards._ranking(Blind(), pairs, tie=rewards.TIE)["ranked_right"] == 0
    assert rewards._ranking(Blind(), pairs)["ranked_right"] == 2


def test_kinds_without_a_copy_are_named():
    row = {"held_out": 4, "ranked_right": 3, "accuracy": 0.75, "interval": [0.3, 0.95]}
    rows = {"order_reversed": row | {"better_is_shorter": 0.0}}
    first, last = rewards.hard_negative_lines({"hard_negatives": rows})
    assert first == (
        "order reversed: of 4 won attempts it ranks 75.0% right (95 % interval 30.0% "
        "to 95.0%; `the shorter is better` 0.0%)"
    )
    assert last == (
        "no held-out won attempt has such a copy: step left out, action refused, "
        "action replaced, ending of another task"
    )


def test_what_is_done_is_not_done_again(fitted, monkeypatch):
    run, numbers = fitted
    with monkeypatch.context() as patch:
        patch.setattr(reward_model, "fit", None)
        again = rewards.fit(run, CONFIG)
        assert again["accuracy"] == numbers["accuracy"]
        with pytest.raises(TypeError):  # other settings are another fit
            rewards.fit(run, dataclasses.replace(CONFIG, steps=61))


def scored(run, config, episode):
    with rewards.reward_function(run, config, "train") as scorer:
        return scorer.score([episode])


def test_the_scorer_takes_the_runs_model_or_the_one_named(fitted, tmp_path):
    run, _ = fitted
    (e, _) = both("dev", 1)
    c = RewardConfig(
        sources=("reward_model",), reward_model=RewardModelSourceConfig(confidence=0.0)
    )
    named = dataclasses.replace(
        c,
        reward_model=RewardModelSourceConfig(
            confidence=0.0, model=str(run.path("reward_model"))
        ),
    )
    other = made(tmp_path, train=1, dev=1)
    results = scored(run, c, e)
    assert results == scored(other, named, e)
    assert set(results[0].sources) == {"reward_model"}
    gone = dataclasses.replace(
        c, reward_model=RewardModelSourceConfig(model=str(tmp_path / "gone"))
    )
    with pytest.raises(
        RunError, match=r"gone: expected a reward .*reward-model .*none"
    ):
        scored(other, gone, e)


def test_a_run_fits_a_reward_model_where_its_rewards_want_one(fitted, tmp_path):
    whole, fit = fitted
    c = RewardConfig(
        sources=("reward_model",), reward_model=RewardModelSourceConfig(confidence=0.0)
    )
    run, (e, _) = made(tmp_path), both("dev", 1)
    run.config = dataclasses.replace(run.config, reward_model=CONFIG)
    assert reward_model_stage.body(run) == {"pairs": 0}  # nobody asks for one
    with pytest.raises(RunError, match="expected a reward model"):
        scored(run, c, e)
    dream = dataclasses.replace(run.config.train, reward=c)
    run.config = dataclasses.replace(run.config, train=dream)
    numbers = reward_model_stage.body(run)
    assert numbers["pairs"] == fit["pairs"]
    assert numbers["accuracy"] == fit["accuracy"]
    assert scored(run, c, e) == scored(whole, c, e)
    named = dataclasses.replace(
        c, reward_model=RewardModelSourceConfig(model="elsewhere")
    )
    assert not named.fits_reward_model
    assert c.fits_reward_model


def test_a_refit_needs_the_pairs_that_lie_beside_the_model(fitted, tmp_path):
    run, numbers = fitted
    original = read_preferences(run.path("reward_model/pairs.jsonl"))
    assert len(original) == numbers["pairs"] == 40

    def refit(every, model=""):
        source = RewardModelSourceConfig(
            model=model, refit=RewardModelRefitConfig(every=every)
        )
        c = RewardConfig(sources=("reward_model",), reward_model=source)
        with rewards.reward_function(run, c, "train") as built:
            return rewards.reward_model_refit(run, c, built.reward_model)

    assert refit(0) is None
    part = refit(2)
    assert part is not None
    assert part._original == original
    copy = tmp_path / "copy"
    shutil.copytree(run.path("reward_model"), copy)
    (copy / "pairs.jsonl").unlink()
    assert refit(0, str(copy)) is None
    with pytest.raises(RunError, match=r"pairs\.jsonl: no such file.*reward-model"):
        refit(2, str(copy))


def test_the_scorer_asks_the_judge_that_is_named(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    (e, _) = both("dev", 1)
    e = dataclasses.replace(e, transitions=e.transitions[-1:])
    with serving(ok(json.dumps({"why": "won", "scores": [10]}))) as server:
        judge = JudgeConfig(chat=ChatConfig(base_url=server.url), max_reward=3.0)
        c = RewardConfig(sources=("judge",), judge=judge)
        for _ in range(2):  # the second answer stands in the run
            (result,) = scored(run, c, e)
            assert result.rewards == ({"judge": 3.0},)
        assert len(server.posts) == 1
    usage = json.loads(run.path("stages/train.usage.json").read_text())["judge"]
    assert (usage["requests"], usage["cached"]) == (2, 1)
    with pytest.raises(ValueError, match="base_url must be the URL"):
        scored(run, RewardConfig(sources=("judge",)), e)


def test_the_judge_runs_programs_in_the_sandbox(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    (e, _) = both("dev", 1)
    e = dataclasses.replace(e, transitions=e.transitions[-1:])

    def rule(body):
        seen = user_text(body)
        if "OUTPUT" not in seen:
            code = "print(sum(range(10)))\n1 / 0"
            return json.dumps({"why": "the sum", "python": code, "scores": []})
        right = "45" in seen and "ZeroDivisionError" in seen
        return json.dumps({"why": "", "python": "", "scores": [10 * right]})

    with serving(answering(rule)) as server:
        chat = ChatConfig(base_url=server.url)
        judge = JudgeConfig(chat=chat, max_reward=3.0, python_runs=1)
        (result,) = scored(run, RewardConfig(sources=("judge",), judge=judge), e)
    assert result.rewards == ({"judge": 3.0},)
    assert rewards._program_output("x = 1") == "nothing was printed"


def test_a_judge_that_refuses_us_ends_the_stage_with_what_to_do(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    with serving(status(401)) as server:
        c = RewardConfig(sources=("judge",), judge=judged_by(server.url))
        with pytest.raises(ServerLost, match=r"refused: .*401.*the judge.*goes on"):
            scored(run, c, both("dev", 1)[0])


def test_the_dreams_server_that_is_lost_is_not_called_the_judge(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    c = RewardConfig(sources=("judge",), judge=judged_by("http://h/v1"))

    def dream():
        with run_chat.client_session(None), rewards.reward_function(run, c, "train"):
            raise ChatUnavailable("the dream's")

    with pytest.raises(ServerLost, match="the dream's; what it answered") as lost:
        dream()
    assert "judge" not in str(lost.value)


def test_pairs_of_a_file_are_held_out_by_task(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    episodes = both("train", 10)
    episodes += [dataclasses.replace(e, id=f"{e.id}-2") for e in episodes[:4]]
    pairs = won_over_lost(episodes, max_pairs=4, seed=0)
    write_preferences(tmp_path / "p.jsonl", pairs)
    config = dataclasses.replace(
        CONFIG, held_out_share=0.3, preferences=str(tmp_path / "p.jsonl")
    )
    fit, held = rewards.preference_pairs(
        run,
        config.preferences,
        max_pairs_per_task=config.max_pairs_per_task,
        held_out_share=config.held_out_share,
    )
    assert len(held) == 3  # one pair of each of three tasks
    assert not {p.task.id for p in fit} & {p.task.id for p in held}


def test_pairs_of_test_tasks_are_left_out_of_a_file(tmp_path, capsys):
    run = made(tmp_path, train=1, dev=1)
    pairs = won_over_lost(both("train", 8), max_pairs=4, seed=0)
    tasks = [dataclasses.replace(p.task, split="test") for p in pairs[:3]]
    tested = [
        dataclasses.replace(p, task=t) for p, t in zip(pairs[:3], tasks, strict=True)
    ]
    write_preferences(tmp_path / "p.jsonl", [*tested, *pairs[3:]])
    fit, held = rewards.preference_pairs(
        run, str(tmp_path / "p.jsonl"), max_pairs_per_task=4, held_out_share=0.4
    )
    assert {p.task.split for p in (*fit, *held)} == {"train"}
    printed = capsys.readouterr().err
    assert f"3 of {len(pairs)} pairs are of test tasks and left out" in printed
    write_preferences(tmp_path / "q.jsonl", tested)
    with pytest.raises(RunError, match="0 pairs to fit"):
        rewards.preference_pairs(
            run, str(tmp_path / "q.jsonl"), max_pairs_per_task=4, held_out_share=0.4
        )


def test_tasks_that_were_not_both_won_and_lost_are_no_pairs(tmp_path):
    run = made(tmp_path, train=1, dev=1)
    write_episodes(run.path("dev.jsonl"), [doubles.expert(doubles.tasks("dev")[0])])
    with pytest.raises(RunError, match=r"1 pairs to fit and 0 tasks held out"):
        rewards.fit(run, CONFIG)


@pytest.mark.medium
def test_the_command_fits_and_tells(tmp_path, capsys):
    run = made(tmp_path, train=4, dev=4)
    args = ["reward-model", str(run.root), "--steps", "2"]
    capsys.readouterr()
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert out.startswith("reward model: fitted to 4 pairs; of 4 tasks held out")
    assert "\n  action replaced: of 4 won attempts it ranks" in out
    assert cli.main([*args, "--pairs", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err


# --- shares of the outcome ---------------------------------------------------

SHARES = dataclasses.replace(CONFIG, objective="progress", steps=80)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    run = made(tmp_path_factory.mktemp("shared"))
    run.path("reward_model").mkdir()
    run.path("reward_model/pairs.jsonl").write_text("of a fit to pairs\n")
    numbers = rewards.fit(run, SHARES)
    run.mark(rewards.STAGE, numbers)
    return run, numbers


@pytest.mark.medium
def test_a_fit_to_outcomes_says_how_well_the_sums_predict_them(shared):
    run, numbers = shared
    assert (numbers["episodes"], numbers["held_out"]) == (80, 16)
    assert (numbers["held_out_tasks"], numbers["held_out_won"]) == (8, 8)
    assert numbers["error"] < 0.1 < numbers["constant"]["error"] == 0.25
    assert numbers["accuracy"] > 0.9
    assert numbers["constant"]["accuracy"] == 0.5
    low, high = numbers["interval"]
    assert low < numbers["accuracy"] <= high
    # Won attempts have 1 to 7 steps, lost ones 3: length says little.
    assert numbers["length"]["error"] > numbers["error"]
    assert RewardModel.load(run.path("reward_model")).objective == "progress"
    assert not run.path("reward_model/pairs.jsonl").exists()
    assert rewards.fit(run, SHARES) == numbers  # is not fitted again


def test_outcome_errors_by_hand():
    # Predicted 0.75, 0.25, 1: squared errors 1/16, 1/16, 1; the third is wrong.
    won, lost = both("dev", 1)
    row = rewards._outcome_errors([won, lost, lost], np.array([0.75, 0.25, 1.0]))
    assert row["error"] == pytest.approx(1.125 / 3)
    assert row["accuracy"] == pytest.approx(2 / 3)


def test_shares_are_paid_and_refitted_to_the_runs_episodes(shared):
    run, numbers = shared
    won, lost = both("dev", 1)
    c = RewardConfig(sources=("reward_model",))
    paid = [
        sum(row["reward_model"] for row in scored(run, c, e)[0].rewards)
        for e in (won, lost)
    ]
    assert paid == pytest.approx([1.0, 0.0], abs=0.5)
    refit = RewardModelRefitConfig(every=2)
    due = dataclasses.replace(c, reward_model=RewardModelSourceConfig(refit=refit))
    with rewards.reward_function(run, due, "train") as built:
        part = rewards.reward_model_refit(run, due, built.reward_model)
    assert isinstance(part, OutcomeRefit)
    assert len(part._original) == numbers["episodes"]
    row = part.refit([won, lost], 2)
    assert row["reward_refit/attempts"] == 2.0
    assert row["reward_refit/error_after"] < row["reward_refit/error_before"]
    pairs = dataclasses.replace(refit, max_pairs_per_task=2)
    for source, message in (
        (RewardModelSourceConfig(refit=pairs), "max_pairs_per_task = 2 is about pairs"),
        (RewardModelSourceConfig(confidence=0.2), "confidence = 0.2 has no effect"),
    ):
        with pytest.raises(RunError, match=rf"reward_model: .*{message}"):
            scored(run, dataclasses.replace(c, reward_model=source), won)


def test_a_new_run_with_shares_refuses_what_has_no_effect(tmp_path):
    changes = {
        "env.id": "",
        "reward_model.objective": "progress",
        "train.reward.sources": ["reward_model"],
        "train.reward.reward_model.confidence": 0.2,
    }
    message = r"train\.reward\.reward_model\.confidence = 0\.2 has no effect"
    with pytest.raises(ValueError, match=message):
        Run(tmp_path / "a", preset("tiny", changes))
    # Another run's model says itself what it is.
    elsewhere = {"train.reward.reward_model.model": "elsewhere"}
    Run(tmp_path / "b", preset("tiny", changes | elsewhere))


def test_outcomes_that_are_all_alike_are_nothing_to_attribute(tmp_path):
    run = made(tmp_path, train=2, dev=1)
    won = [doubles.expert(t) for t in doubles.tasks("train")[:2]]
    write_episodes(run.path("episodes.jsonl"), won)
    with pytest.raises(RunError, match=r"2 won and 0 lost episodes .*2 held out"):
        rewards.fit(run, SHARES)


def test_the_command_fits_to_outcomes(tmp_path, capsys):
    run = made(tmp_path, train=4, dev=4)
    args = ["reward-model", str(run.root), "--steps", "2", "--objective", "progress"]
    capsys.readouterr()
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert out.startswith("reward model: fitted to the outcomes of 8 episodes; of 8 ")
    assert "\n  the mean outcome of the fitted episodes: 0.250, 50.0%\n" in out
    assert cli.main([*args, "--pairs", str(tmp_path / "p.jsonl")]) == 2
    assert "not to the pairs of a file" in capsys.readouterr().err
