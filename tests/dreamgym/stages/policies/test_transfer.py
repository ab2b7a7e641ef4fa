"""Fine-tuning leaves no policy that is worse on real dev games than its start."""

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.models import save_policy
from dreamgym.build.real import dev_choice, dev_play
from dreamgym.build.real.dev_choice import player_of
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.view import StageView
from dreamgym.stages.policies import transfer
from dreamgym.stages.table import STAGES
from dreamgym.training.selection import ENOUGH_WON
from tests import doubles, helpers
from worldmodel.backbone.weights import load_model
from worldmodel.data.records import write_episodes

TASKS = doubles.tasks("dev")[:4]
WON = [Trajectory(doubles.expert(t), (), None) for t in TASKS]
POLICY = doubles.policy()
LOST = [Trajectory(doubles.episode(t, ["fly"]), (), None) for t in TASKS]


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        run.mark("warmstart", {"kept": "bc"})
        run.mark("train", {"kept": "dream"})
        yield run


def set_wins(monkeypatch, wins):
    """Let each player win its number of the dev games."""

    def play_dev_games(run, name, policy, *, reserve=0):
        del run, policy, reserve
        return [*WON[: wins[name]], *LOST[wins[name] :]]

    monkeypatch.setattr(dev_play, "play_dev_games", play_dev_games)


@pytest.mark.parametrize(
    ("start", "won", "kept", "before"),
    [
        ("warmstart", 3, "s2r", 0.5),  # the warm start is bc
        ("warmstart", 2, "warmstart", 0.5),  # a tie keeps the start
        ("warmstart", 1, "warmstart", 0.5),
        ("dream", 2, "dream", 0.75),
        ("dream", 4, "s2r", 0.75),
    ],
)
def test_what_wins_no_more_dev_games_than_its_start_is_not_kept(
    run, monkeypatch, capsys, start, won, kept, before
):
    set_wins(monkeypatch, {"bc": 2, "dream": 3, "s2r": won})
    first, tuned = doubles.policy(seed=1), doubles.policy(seed=2)
    numbers = transfer._better_policy(run, "s2r", start, first, tuned)
    assert numbers["kept"] == kept
    assert numbers["dev_success_before"] == before
    assert numbers["dev_success_after"] == won / 4
    written = run.path("policies/s2r/config.json").is_file()
    assert written == (kept == start)  # the loop has written what it trained
    if written:
        model, _ = load_model(run.path("policies/s2r"))
        assert helpers.distance(model.params, first.model.params) == 0.0
        assert f"{won * 25} % won after it" in numbers["note"]
        assert "s2r: fine-tuning did not help" in capsys.readouterr().err


@pytest.mark.parametrize("number", [6, 10, 22, 64])
@pytest.mark.parametrize(
    ("fewer", "kept"), [(-1, "s2r"), (0, "s2r"), (1, "s2r"), (3, "s2r"), (4, "dream")]
)
def test_more_real_wins_are_imitated_unless_dev_games_speak_clearly_against_it(
    run, monkeypatch, number, fewer, kept
):
    # k games lost and none won are sqrt(k (n - 1) / (n - k)) standard errors, more than
    # two from four games on; of six games three are.
    games = {name: doubles.tasks("train")[:number] for name in ("won", "lost")}
    won = [doubles.trajectory(t, doubles.plan(t.initial_state)) for t in games["won"]]
    lost = [doubles.trajectory(t, ["fly"]) for t in games["lost"]]
    before = number - 1

    def play_dev_games(run, name, policy, *, reserve=0):
        del run, policy, reserve
        wins = before if name == "dream" else before - fewer
        return [*won[:wins], *lost[wins:]]

    monkeypatch.setattr(dev_play, "play_dev_games", play_dev_games)
    first, tuned = doubles.policy(seed=1), doubles.policy(seed=2)
    numbers = transfer._better_policy(run, "s2r", "dream", first, tuned, new_wins=True)
    assert numbers["kept"] == ("dream" if number == 6 and fewer == 3 else kept)


@pytest.mark.parametrize("force", [False, True])
def test_a_policy_that_wins_all_dev_games_is_left_as_it_is(
    tmp_path, monkeypatch, force
):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "dream_check.force": force,
        "transfer.method": "expert_iteration",
    }
    tuned = []
    monkeypatch.setattr(
        dev_play, "play_dev_games", lambda *_: WON * (ENOUGH_WON // len(WON))
    )
    monkeypatch.setattr(
        transfer, "iterate", lambda *_, **__: tuned.append(1) or (POLICY, {})
    )
    monkeypatch.setattr(transfer, "_better_policy", lambda *_, **__: {"kept": "s2r"})
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 8, "deterministic": True})
        run.mark("train", {"kept": "dream"})
        run.mark("expert_iteration", {"rounds": 1})
        for name in ("episodes.jsonl", "dev.jsonl"):
            write_episodes(run.path(name), [doubles.expert(TASKS[0])])
        save_policy(run, "dream", POLICY)
        view = StageView(run, STAGES["s2r"], STAGES)
        numbers = transfer.body(view, "s2r", "dream")
    assert len(tuned) == force
    assert numbers["kept"] == ("s2r" if force else "dream")
    if not force:
        assert numbers["note"] == (
            "not fine-tuned: there is nothing to gain, dream wins all real dev games"
        )


@pytest.mark.parametrize(("wins", "new"), [(3, False), (4, True)])
def test_only_further_real_wins_speak_for_what_imitated_them(
    tmp_path, monkeypatch, capsys, wins, new
):
    numbers = {
        "rounds": [{"real_demonstrations": wins}],
        "collected_demonstrations": 3,
    }
    chosen = []
    monkeypatch.setattr(transfer, "iterate", lambda *_, **__: (POLICY, dict(numbers)))
    monkeypatch.setattr(
        transfer, "_better_policy", lambda *_, **how: chosen.append(how) or {}
    )
    settings = {
        "env.id": "tests.doubles:Corridor",
        "transfer.method": "expert_iteration",
        "transfer.limits": [{"name": "c", "limit": 0.0}] if new else [],
        "train.monitor.real_eval_every": 0,
    }
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 8, "deterministic": True})
        run.mark("train", {"kept": "dream"})
        run.mark("expert_iteration", {"rounds": 1})
        for name in ("episodes.jsonl", "dev.jsonl"):
            write_episodes(run.path(name), [doubles.expert(TASKS[0])])
        save_policy(run, "dream", POLICY)
        transfer.body(StageView(run, STAGES["s2r"], STAGES), "s2r", "dream")
    assert chosen == [{"new_wins": new}]
    assert ("without effect: transfer.limits;" in capsys.readouterr().err) == new


def test_a_policy_that_destroyed_a_family_is_not_kept(run, monkeypatch):
    metrics = {
        "bc": {"real_success": 0.5, "real_success/box": 0.5, "real_games/box": 32},
        "s2r": {"real_success": 0.6, "real_success/box": 0.0, "real_games/box": 32},
    }
    monkeypatch.setattr(
        dev_choice, "paired_dev_games", lambda _, *players: [p[0] for p in players]
    )
    monkeypatch.setattr(dev_choice, "dev_metrics", metrics.__getitem__)
    first, tuned = doubles.policy(seed=1), doubles.policy(seed=2)
    numbers = transfer._better_policy(run, "s2r", "warmstart", first, tuned)
    assert numbers["kept"] == "warmstart"
    assert "families lost: box" in numbers["note"]


def test_a_dream_that_was_not_kept_counts_as_the_policy_it_began_at(run):
    assert player_of(run, "dream") == "dream"
    run.mark("train", {"kept": "expert_iteration"})
    run.mark("expert_iteration", {"kept": "expert_iteration"})
    assert player_of(run, "dream") == "expert_iteration"
    run.mark("expert_iteration", {"kept": "warmstart"})
    assert player_of(run, "dream") == player_of(run, "warmstart") == "bc"


def test_without_dev_games_what_was_trained_is_kept(tmp_path, capsys):
    with Run(tmp_path / "none", preset("tiny", {"env.id": ""})) as run:
        first, tuned = doubles.policy(seed=1), doubles.policy(seed=2)
        assert transfer._better_policy(run, "s2r", "warmstart", first, tuned) == {}
    assert capsys.readouterr().err == ""
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path / "few", preset("tiny", settings)) as run:
        run.mark("collect", {"dev_tasks": 3})
        assert transfer._better_policy(run, "s2r", "warmstart", first, tuned) == {}
    assert "s2r: its policy is kept, and no real dev games" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "deterministic", "limit", "missing"),
    [  # an episode has 10 steps, a group 4 of them; no dev games are paid for
        ("updates", True, 39, "a group of rollouts"),
        ("updates", True, 40, None),
        ("expert_iteration", True, 9, "an episode"),
        ("expert_iteration", True, 10, None),
        ("expert_iteration", False, 39, "a group of rollouts"),  # updates in its place
        ("expert_iteration", False, 40, None),
        ("dream_updates", False, 9, "an episode"),
        ("dream_updates", False, 10, None),
    ],
)
def test_a_policy_is_fine_tuned_where_the_budget_pays_for_what_the_method_plays(
    tmp_path, monkeypatch, capsys, method, deterministic, limit, missing
):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "env.max_episode_steps": 10,
        "budget.real_steps": 500,
        "transfer.group_size": 4,
        "transfer.method": method,
    }
    before, after = (doubles.policy(seed=seed) for seed in (1, 2))
    monkeypatch.setattr(transfer, "iterate", lambda *_, **__: (after, {}))
    monkeypatch.setattr(transfer, "_reinforce", lambda *_: (after, {}))
    monkeypatch.setattr(transfer, "dream_rounds", lambda *_, **__: (after, {}))
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"real_transitions": 400, "deterministic": deterministic})
        run.mark("train", {"kept": "dream"})
        run.mark("expert_iteration", {"rounds": 0})
        save_policy(run, "dream", before)
        body = lambda: transfer.body(run, "s2r", "dream")  # noqa: E731
        numbers = run.stage("s2r", body, limit=limit)["numbers"]
    printed = capsys.readouterr().err
    if missing is None:
        assert "kept" not in numbers
        instead = "updates, not expert_iteration: the environment draws lots"
        assert (instead in printed) == (method == "expert_iteration" and limit == 40)
        return
    assert numbers["kept"] == "dream"
    assert f"no real steps left for {missing}" in numbers["note"]
    assert numbers["by_rule"]
    assert "not fine-tuned" in printed
    model, _ = load_model(run.path("policies/s2r"))
    assert helpers.distance(model.params, before.model.params) == 0.0


@pytest.mark.parametrize(
    ("name", "environment", "members", "refused", "dreams"),
    [
        ("s2r", "dream", 0, False, True),
        ("s2r", "dream", 0, True, False),
        ("s2r", "dream", 2, False, False),  # an ensemble cannot be refitted
        ("s2r", "real", 0, False, False),
        ("real_only", "dream", 0, False, False),  # the control has no dream
    ],
)
def test_updates_in_a_refitted_dream_are_for_a_policy_of_the_dream(
    tmp_path, monkeypatch, capsys, name, environment, members, refused, dreams
):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "transfer.method": "dream_updates",
        "train.environment": environment,
        "ensemble.members": members,
        "train.monitor.real_eval_every": 0,
    }
    start = "dream" if name == "s2r" else "warmstart"
    tuned, calls = doubles.policy(seed=2), []

    def rounds(run, name, policy, *, steps, reserve):
        del run, policy, reserve
        calls.append(("dream", name, steps))
        return tuned, {"rounds": [{"real_transitions": steps}], "updates": 3}

    def real(run, name, policy, budget, reserve):
        del run, policy, reserve
        calls.append(("real", name, budget))
        return tuned, {"updates": 1}

    monkeypatch.setattr(transfer, "dream_rounds", rounds)
    monkeypatch.setattr(transfer, "_reinforce", real)
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"real_transitions": 400, "deterministic": True})
        run.mark("dream_check", {"refused": "wrong" * refused, "forced": False})
        for policy in ("dream", "warmstart"):
            run.mark({"dream": "train"}.get(policy, policy), {"kept": policy})
            save_policy(run, policy, doubles.policy(seed=1))
        view = StageView(run, STAGES[name], STAGES)  # refuses undeclared settings
        numbers = transfer.body(view, name, start)
    assert calls == [("dream" if dreams else "real", name, 100)]
    assert numbers["updates"] == (3 if dreams else 1)
    printed = capsys.readouterr().err
    instead = "s2r: updates, not dream_updates: "
    assert (f"{instead}the dream was refused: wrong" in printed) == refused
    assert (f"{instead}this experience model cannot" in printed) == bool(members)
    if dreams:
        model, _ = load_model(run.path(f"policies/{name}"))
        assert helpers.distance(model.params, tuned.model.params) == 0.0


BUDGETED = {
    "env.id": "tests.doubles:Corridor",
    "env.max_episode_steps": 10,
    "budget.real_steps": 2000,
    "train.monitor.real_eval_tasks": 4,
    "transfer.method": "expert_iteration",
}
"""Fine-tuning by expert iteration with a budget and four dev games."""


@pytest.mark.parametrize(
    ("method", "recorded", "steps"),
    [  # 500 steps are left, and four dev games of 10 steps are 40
        ("none", (), 420),  # the games of the start and of s2r
        ("none", ("dream",), 460),  # the start has played
        ("mpc", ("dream",), 420),  # the planner plays after this stage
        ("mpc", (), 380),
        ("refused", ("dream",), 460),  # nobody plans in a dream that was refused
    ],
)
def test_steps_for_the_dev_games_that_follow_are_kept_back(
    tmp_path, monkeypatch, method, recorded, steps
):
    plan = "mpc" if method == "refused" else method
    settings = BUDGETED | {"planner.method": plan}
    taken = []

    def iterate(run, name, policy, *, steps, dreams, reserve):
        del run, name, dreams, reserve
        taken.append(steps)
        return policy, {}

    monkeypatch.setattr(transfer, "iterate", iterate)
    monkeypatch.setattr(transfer, "_better_policy", lambda *_, **__: {})
    monkeypatch.setattr(dev_play, "play_dev_games", lambda *_: [])
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"real_transitions": 1000, "deterministic": True})
        run.mark("train", {"kept": "dream"})
        run.mark("expert_iteration", {"rounds": 0})
        refused = "ends are missing" if method == "refused" else ""
        run.mark("dream_check", {"refused": refused, "forced": False})
        save_policy(run, "dream", doubles.policy())
        for name in recorded:
            run.path("dev_games").mkdir(exist_ok=True)
            run.path(f"dev_games/{name}.jsonl").touch()
        view = StageView(run, STAGES["s2r"], STAGES)  # refuses undeclared files
        with run.real_steps.recorded(tmp_path / "x.steps", 500):
            transfer.body(view, "s2r", "dream")
    assert taken == [steps]


def test_a_second_attempt_has_the_budget_of_the_first(tmp_path, monkeypatch):
    """The dev games that the first one has played are no further steps."""
    settings = BUDGETED | {"planner.method": "none"}
    taken = []

    def iterate(run, name, policy, *, steps, dreams, reserve):
        del run, name, dreams, reserve
        taken.append(steps)
        if len(taken) == 1:
            raise KeyboardInterrupt
        return policy, {}

    def play(run, name, policy):
        del run, policy
        (tmp_path / "dev_games").mkdir(exist_ok=True)
        (tmp_path / f"dev_games/{name}.jsonl").touch()
        return []

    monkeypatch.setattr(transfer, "iterate", iterate)
    monkeypatch.setattr(transfer, "_better_policy", lambda *_, **__: {})
    monkeypatch.setattr(dev_play, "play_dev_games", play)
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"real_transitions": 1000, "deterministic": True})
        run.mark("train", {"kept": "dream"})
        run.mark("expert_iteration", {"rounds": 0})
        run.mark("dream_check", {"refused": "", "forced": False})
        save_policy(run, "dream", doubles.policy())
        view = StageView(run, STAGES["s2r"], STAGES)
        with run.real_steps.recorded(tmp_path / "x.steps", 500):
            with pytest.raises(KeyboardInterrupt):
                transfer.body(view, "s2r", "dream")
            transfer.body(view, "s2r", "dream")
    assert taken == [420, 420]  # 40 for the start, 40 for what is fine-tuned


@pytest.mark.parametrize(
    ("left", "recorded", "plays"),
    [(79, (), False), (80, (), True), (40, ("s2r",), True), (39, ("s2r",), False)],
)
def test_dev_games_are_played_where_what_is_planned_for_them_is_left(
    tmp_path, left, recorded, plays
):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "env.max_episode_steps": 10,
        "budget.real_steps": 2000,
        "train.monitor.real_eval_tasks": 4,
    }
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", {"real_transitions": 1000})
        assert dev_play.dev_games(run) == 4
        for name in recorded:
            run.path("dev_games").mkdir(exist_ok=True)
            run.path(f"dev_games/{name}.jsonl").touch()
        with run.real_steps.recorded(tmp_path / "x.steps", left):
            assert dev_play.plays_dev_games(run, "dream", "s2r") == plays
            assert dev_play.plays_dev_games(run)


DEV = doubles.tasks("dev")[:4]


@pytest.mark.parametrize(("left", "played"), [(None, 4), (40, 4), (39, 3), (12, 1)])
def test_where_the_budget_ends_policies_are_compared_on_what_both_played(
    tmp_path, monkeypatch, left, played
):
    """Games of 10 steps at most, of which an untrained policy takes all."""
    settings = {
        "env.id": "tests.doubles:Corridor",
        "env.max_episode_steps": 10,
        "train.monitor.real_eval_tasks": 4,
    }
    policy = doubles.policy(action_tokens=6)
    with Run(tmp_path, preset("tiny", settings)) as run:
        monkeypatch.setattr(dev_play, "dev_tasks", lambda _: DEV)
        dev_play.play_dev_games(run, "bc", policy)
        for _ in range(2):  # the second time the games that were played are read
            with run.real_steps.recorded(tmp_path / "x.steps", left) as counter:
                start, tuned = dev_play.paired_dev_games(
                    run, ("bc", policy), ("s2r", policy)
                )
            assert counter.count == 10 * played
            assert [t.episode.task.id for t in start] == [
                t.episode.task.id for t in tuned
            ]
            assert len(start) == played


def test_dev_games_need_the_steps_of_a_longest_one(tmp_path, monkeypatch):
    """Short collected games do not promise that a policy's games are short."""
    settings = {
        "env.id": "tests.doubles:Corridor",
        "env.max_episode_steps": 50,
        "train.monitor.real_eval_tasks": 4,
    }
    policy = doubles.policy(action_tokens=6)
    collected = {"dev_episodes": 10, "dev_transitions": 50}
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("collect", collected)
        monkeypatch.setattr(dev_play, "dev_tasks", lambda _: DEV)
        # 6.25 steps are planned for a game; the fourth one may begin after three.
        with run.real_steps.recorded(tmp_path / "x.steps", 68):
            assert not dev_play.plays_dev_games(run, "bc")
        with run.real_steps.recorded(tmp_path / "y.steps", 69):
            assert dev_play.plays_dev_games(run, "bc")
            assert not dev_play.plays_dev_games(run, "bc", "dream")
            assert dev_play.dev_game_steps(run, "bc", later=1) == 50  # as planned
        # Whoever plays all the same leaves no file that a later call stumbles over.
        with run.real_steps.recorded(tmp_path / "z.steps", 49):
            assert dev_play.play_dev_games(run, "bc", policy) == []
        assert not run.path("dev_games/bc.jsonl").exists()
        # An empty one, as an earlier version wrote it, is played again.
        run.path("dev_games").mkdir()
        run.path("dev_games/bc.jsonl").touch()
        assert len(dev_play.play_dev_games(run, "bc", policy)) == 4


def test_long_games_of_one_player_leave_the_other_its_own(tmp_path, monkeypatch):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "env.max_episode_steps": 10,
        "train.monitor.real_eval_tasks": 4,
    }
    policy = doubles.policy(action_tokens=6)  # takes all steps of a game
    with Run(tmp_path, preset("tiny", settings)) as run:
        monkeypatch.setattr(dev_play, "dev_tasks", lambda _: [*DEV, *DEV])
        with run.real_steps.recorded(tmp_path / "x.steps", 80):
            games = dev_play.paired_dev_games(run, ("bc", policy), ("s2r", policy))
    assert [len(g) for g in games] == [4, 4]
