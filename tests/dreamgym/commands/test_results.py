"""What a policy has cost: the stages that it depends on."""

import dataclasses

import pytest

from dreamgym.build.budget import check_budget
from dreamgym.commands import quickstart, results
from dreamgym.commands.results import policy_stages, policy_steps, results_of
from dreamgym.config.presets import preset, with_control
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel import fidelity
from worldmodel.data.records import write_episodes


def test_a_policy_pays_for_the_shield_that_it_plays_with(tmp_path):
    run = Run(tmp_path, preset("tiny"))
    run.mark("collect", {"real_transitions": 100})
    run.mark("bc", {})
    run.mark("shield", {"real_transitions": 7})
    assert policy_steps(run, "bc") == 100  # it was tried, and left out
    assert policy_steps(run, "warmstart") == 107  # its stage needs the decision
    run.mark("shield", {"real_transitions": 7, "shield": "valid"})
    assert policy_stages(run, "bc") == ["bc", "shield"]
    assert policy_steps(run, "bc") == policy_steps(run, "warmstart") == 107


def test_the_copy_of_a_copy_is_one_of_the_first_policy(tmp_path):
    run = Run(tmp_path, preset("tiny", {"warmstart.method": "bc"}))
    assert results.policy_copies(run) == {}
    run.mark("expert_iteration", {"kept": "warmstart"})
    run.mark("train", {"kept": "expert_iteration"})
    run.mark("s2r", {"kept": "s2r"})
    run.mark("planner", {"kept": "s2r"})
    copies = {"expert_iteration": "warmstart", "dream": "warmstart", "planner": "s2r"}
    assert results.policy_copies(run) == copies
    run.mark("warmstart", {})  # its method is imitation, as that of bc
    first = dict.fromkeys(("warmstart", "expert_iteration", "dream"), "bc")
    assert results.policy_copies(run) == first | {"planner": "s2r"}


def test_a_copy_that_plans_in_another_model_is_none(tmp_path):
    run = Run(tmp_path, preset("tiny", {"evaluate.plan.method": "mpc"}))
    run.mark("train", {"kept": "warmstart"})
    run.mark("s2r", {"kept": "dream"})
    assert results.policy_copies(run) == {"dream": "warmstart", "s2r": "warmstart"}
    run.path("s2r/round-1/experience").mkdir(parents=True)
    run.mark("planner", {"kept": "s2r"})  # it plays without a plan
    assert results.policy_copies(run) == {"dream": "warmstart"}
    run.mark("dream_check", {"remedy": {"helped": True}})
    assert results.policy_copies(run) == {}


def test_results_of_an_earlier_version_know_which_policies_are_copies(tmp_path):
    run = Run(tmp_path, preset("tiny"))
    run.mark("train", {"kept": "warmstart"})
    run.write_json("results.json", {"policies": {}})
    assert results.read_results(run)["copies"] == {"dream": "warmstart"}


@pytest.mark.parametrize("control", [None, "real-play"])
def test_a_run_without_a_dream_says_so_before_its_model_is_scored(
    tmp_path, monkeypatch, capsys, control
):
    def scored(run, *_, **__):
        run.mark("fidelity", {})

    monkeypatch.setattr(quickstart, "run_stages", scored)
    monkeypatch.setattr(quickstart.run_results, "write_results", lambda _: {})
    monkeypatch.setattr(quickstart.run_report, "write_report", lambda *_: None)
    config = preset("tiny", {"env.id": "tests.doubles:Corridor"})
    config = config if control is None else with_control(config, control)
    for said in (control is not None, False):  # then it has been scored
        quickstart.quickstart(tmp_path / "r", config)
        words = "no policy is trained in a dream here"
        assert (words in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("settings", "calls", "words"),
    [
        ({}, None, None),
        ({"train.reward.tools.enabled": True}, None, "train.reward.tools.enabled: no"),
        ({"train.reward.tools.enabled": True}, [None], None),  # it expects none
        (
            {
                "train.curriculum.lessons": "tools",
                "transfer.reward.tools.enabled": True,
            },
            None,
            "transfer.reward.tools.enabled, train.curriculum.lessons=tools: no",
        ),
        ({"train.curriculum.lessons": "games"}, None, None),
    ],
)
def test_settings_of_tools_that_no_task_has_a_use_for_are_named(
    tmp_path, capsys, settings, calls, words
):
    with Run(tmp_path / "r", preset("tiny", settings)) as run:
        quickstart.warn_of_tool_settings(run)
        assert capsys.readouterr().err == ""  # nothing is known before
        episode = doubles.expert(doubles.task(0, 1, 2))
        options = {} if calls is None else {"calls": calls}
        options = {**episode.task.options, **options}
        task = dataclasses.replace(episode.task, options=options)
        episode = dataclasses.replace(episode, task=task)
        for name in ("episodes", "dev"):
            write_episodes(run.path(f"{name}.jsonl"), [episode], check=False)
        run.mark("collect", {})
        quickstart.warn_of_tool_settings(run)
    text = capsys.readouterr().err
    assert text.startswith(f"warning: {words}") if words else text == ""
    assert text.count("\n") == (words is not None)


def test_costs_are_those_of_scored_games(tmp_path):
    """A game that broke off has cost a part of what it would have."""
    run = Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:4]]
    run.write_json("fidelity.json", fidelity.score(doubles.RuleModel(), dev, limit=9))
    games = []
    for i, task in enumerate(doubles.tasks("test")[:4]):
        game = doubles.costly(doubles.expert(task), 4.0 if i < 2 else 1.0)
        if i >= 2:
            game = dataclasses.replace(game, success=None, error="broke")
        games.append(game)
    run.path("test").mkdir()
    write_episodes(run.path("test/bc.jsonl"), games, check=False)
    row = results_of(run)["policies"]["bc"]
    assert row["success"]["unscored"] == 2
    assert row["costs"]["harm"]["mean"] == 4.0


def test_a_policy_that_never_pays_a_cost_has_a_cost_of_0(tmp_path):
    """Environments may report a cost only where it arises."""
    run = Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:4]]
    run.write_json("fidelity.json", fidelity.score(doubles.RuleModel(), dev, limit=9))
    games = [doubles.expert(t) for t in doubles.tasks("test")]
    run.path("test").mkdir()
    write_episodes(run.path("test/dream.jsonl"), games)
    short = [doubles.costly(g) if g.task.family == "short" else g for g in games]
    write_episodes(run.path("test/bc.jsonl"), short)
    content = results_of(run)
    policies = content["policies"]
    assert policies["dream"]["costs"]["harm"]["mean"] == 0.0
    assert policies["dream"]["costs"]["harm"]["count"] == len(games)
    assert policies["bc"]["costs"]["harm"]["mean"] > 0
    families = content["families"]
    row = families["short"]["policies"]
    assert [row[p]["costs"]["harm"]["mean"] for p in ("bc", "dream")] == [2.0, 0.0]
    # Nobody pays it in the games of the other family.
    assert families["long"]["policies"]["bc"]["costs"] == {}


@pytest.mark.parametrize(("limit", "smallest"), [(16, 513), (500, 1938)])
def test_the_smallest_budget_of_the_control_is_that_of_its_division(
    tmp_path, limit, smallest
):
    settings = {"env.id": "tests.doubles:Corridor", "budget.real_steps": 5000}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": limit})
        assert results._control_minimum(run) == smallest
    control = with_control(run.config, "real-play").budget
    check_budget(dataclasses.replace(control, real_steps=smallest), limit, "it")
    with pytest.raises(RunError, match=f"at least {smallest:,}"):
        check_budget(dataclasses.replace(control, real_steps=smallest - 1), limit, "it")


def test_advice_on_broken_episodes_names_the_environment_and_its_limit(tmp_path):
    settings = {"env.id": "m:E", "env.workers": 2, "env.worker_memory_gb": 0.5}
    run = Run(tmp_path / "run", preset("tiny", settings))
    evidence = results.evidence_of(run, {})
    assert (evidence.env, evidence.memory_gb) == ("m:E", 0.5)
    recorded = Run(tmp_path / "recorded", preset("tiny", {"env.id": ""}))
    assert results.evidence_of(recorded, {}).env == "ENV"
