"""The planner: s2r with a plan, where real dev games say that the plan helps."""

import pytest

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build import planning
from dreamgym.build.models import save_policy
from dreamgym.build.real import dev_play, environments
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.view import StageView
from dreamgym.stages import evaluate
from dreamgym.stages.policies import planner
from dreamgym.stages.table import STAGES
from tests import doubles, helpers
from worldmodel.backbone.weights import load_model
from worldmodel.data.records import write_episodes

LIMIT = 8
SETTINGS = {
    "env.id": "tests.doubles:Corridor",
    "env.max_episode_steps": LIMIT,
    "train.monitor.real_eval_tasks": 16,
    "evaluate.tasks": 16,
    "planner.method": "mpc",
    "dream_check.force": False,
    "planner.simulations": 16,
}


LOTS = "it does not plan: the environment draws lots, and no dev games were played"
UNTRUSTED = (
    "it does not plan: too little of the scorecard reaches what is required, and no "
    "dev games were played"
)


class Wrong(doubles.RuleModel):
    """Pays for walking away from the coin: a dream that must not help."""

    def _one(self, query):
        answer = super()._one(query)
        away = query.action != doubles.plan(query.state)[0]
        return answer._replace(reward=float(away), outcome="go")


def scorecard(mean):
    """A scorecard whose leading numbers are all this one."""
    rate = {"mean": mean, "count": 99, "effective": 99.0}
    return {
        "exact": {"predictable": rate},
        "reward": {"recall": rate},
        "done": {"recall": rate},
        "open_loop": {"outcomes": {"agree": rate}},
    }


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """A function that returns a run whose s2r knows the actions, and wins at times."""
    model = doubles.RuleModel()

    def make(settings=None, model=model, **marks):
        monkeypatch.setattr(planning, "load_experience", lambda *_, **__: model)
        run = Run(tmp_path / "run", preset("tiny", SETTINGS | (settings or {})))
        train = [doubles.expert(t) for t in doubles.tasks("train")[:4]]
        write_episodes(run.path("episodes.jsonl"), train)
        save_policy(run, "s2r", POLICY)
        run.mark("collect", {"max_episode_steps": LIMIT, "deterministic": True})
        run.mark("dream_check", {"refused": "", "forced": False})
        run.mark("train", {"kept": "dream"})
        run.write_json("fidelity.json", scorecard(0.5))
        for stage, numbers in marks.items():
            run.mark(stage, numbers)
        return run

    return make


POLICY = doubles.cloned(doubles.ACTIONS, doubles.tasks("train")[:4])


@pytest.mark.medium
def test_a_plan_that_wins_more_dev_games_is_kept_and_plays_the_test_games(make_run):
    with make_run() as run:
        numbers = planner.body(run)
        assert numbers["kept"] == "planner"
        assert numbers["dev_success_after"] > numbers["dev_success_before"]
        model, _ = load_model(run.path("policies/planner"))
        assert helpers.distance(model.params, POLICY.model.params) == 0.0
        assert run.path("dev_games/planner.jsonl").is_file()
        run.mark("planner", numbers)
        player = planning.load_player(run, "planner")
        assert isinstance(player, PlanningPolicy)
        row = evaluate.body(run, "planner")
        assert row["dreamed_per_step"] > 1
        assert row["success"] > evaluate.body(run, "s2r")["success"]


def test_a_policy_that_wins_all_dev_games_does_not_plan(make_run, monkeypatch):
    won = [Trajectory(doubles.expert(t), (), None) for t in GAMES]
    monkeypatch.setattr(planner, "play_dev_games", lambda *_: won)
    with make_run() as run:
        numbers = planner.body(StageView(run, STAGES["planner"], STAGES))
    assert numbers["kept"] == "s2r"
    assert numbers["note"].startswith("it does not plan: there is nothing to gain")


@pytest.mark.medium
@pytest.mark.parametrize("trust", [0.5, 0.95])
def test_a_plan_in_a_wrong_dream_is_not_kept(make_run, capsys, trust):
    """The control: the policy without a plan plays the test games."""
    with make_run(model=Wrong()) as run:
        run.write_json("fidelity.json", scorecard(trust))
        numbers = planner.body(run)
        assert numbers["kept"] == "s2r"
        assert "planning did not help, so it is s2r" in numbers["note"]
        assert "planner: planning did not help" in capsys.readouterr().err
        run.mark("planner", numbers)
        assert not isinstance(planning.load_player(run, "planner"), PlanningPolicy)
        row = evaluate.body(run, "planner")
        assert row["success"] == evaluate.body(run, "s2r")["success"]


GAMES = doubles.tasks("dev")[:16]


@pytest.mark.parametrize(
    ("trust", "lost", "won", "keeps"),
    [
        (0.5, 0, 0, False),  # a tie, in a dream that is often wrong
        (0.5, 0, 1, True),
        (0.95, 0, 0, True),
        (0.95, 1, 0, True),  # one of 16: 0.0625 less, and that is its standard error
        (0.95, 2, 1, True),
        (0.95, 2, 0, False),  # 0.125 less, standard error 0.085
        (0.95, 9, 4, False),
    ],
)
def test_a_good_dream_counts_where_dev_games_hardly_differ(
    make_run, monkeypatch, trust, lost, won, keeps
):
    """Of 16 dev games s2r wins the first 10; with a plan some more and some fewer."""
    before = [number < 10 for number in range(16)]
    after = [number >= lost for number in range(10)] + [n < won for n in range(6)]
    results = {"dream": before, "s2r": before, "planner": after}

    def play(run, name, policy, *, reserve=0):
        del run, policy, reserve
        return [
            Trajectory(
                doubles.expert(t) if wins else doubles.episode(t, ["fly"]), (), None
            )
            for t, wins in zip(GAMES, results[name], strict=True)
        ]

    monkeypatch.setattr(dev_play, "play_dev_games", play)
    with make_run() as run:
        run.write_json("fidelity.json", scorecard(trust))
        assert (planner.body(run)["kept"] == "planner") == keeps


@pytest.mark.medium
def test_it_is_compared_with_the_games_of_the_policy_that_s2r_is(make_run):
    """Where fine-tuning was not kept, s2r is the dream, which has played already."""
    with make_run(s2r={"kept": "dream"}) as run:
        planner.body(run)
        assert {p.stem for p in run.path("dev_games").iterdir()} == {"dream", "planner"}


def test_a_good_dream_plans_without_dev_games(make_run):
    with make_run({"train.monitor.real_eval_every": 0}) as run:
        run.write_json("fidelity.json", scorecard(1.0))
        assert planner.body(run) == {"kept": "planner", "method": "mpc"}


def test_few_dev_tasks_do_not_choose_a_plan(make_run):
    with make_run(collect={"dev_tasks": 1, "max_episode_steps": LIMIT}) as run:
        run.write_json("fidelity.json", scorecard(0.5))
        few = ": the environment lists 1 dev task, and fewer than 4 decide nothing"
        assert planner.body(run) == {"kept": "s2r", "note": UNTRUSTED + few}
        assert not run.path("dev_games").exists()


@pytest.mark.parametrize(
    ("settings", "marks", "result"),
    [
        ({"planner.method": "none"}, {}, {"status": "off"}),
        ({"train.environment": "real"}, {}, {"status": "off"}),
        ({"env.id": ""}, {}, {"status": environments.NO_ENV}),
        (
            {},
            {"dream_check": {"refused": "the dream is wrong", "forced": False}},
            {"kept": "s2r", "note": "it does not plan: the dream is wrong"},
        ),
        (
            {"train.monitor.real_eval_every": 0, "dream_check.force": True},
            {},
            {"kept": "planner", "method": "mpc"},
        ),
        (
            {"train.monitor.real_eval_every": 0, "dream_check.force": False},
            {},
            {"kept": "s2r", "note": UNTRUSTED},
        ),
        (
            {"train.monitor.real_eval_every": 0},
            {"collect": {"max_episode_steps": LIMIT, "deterministic": False}},
            {"kept": "s2r", "note": LOTS, "by_rule": True},
        ),
    ],
)
def test_nobody_plans_where_there_is_nothing_to_plan_in(
    make_run, settings, marks, result
):
    with make_run(settings, **marks) as run:
        assert planner.body(run) == result
        run.mark("planner", result)
        if "status" in result:  # there is no such policy
            assert not run.path("policies/planner").exists()
            assert evaluate.body(run, "planner") == result
