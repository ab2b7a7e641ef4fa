"""Auditing a run: cards, kept rollouts, robustness."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from dreamgym.build.loop_checkpoint import LoopCheckpoint
from dreamgym.build.real import environments
from dreamgym.cli import main
from dreamgym.commands.audits import robustness as command
from dreamgym.commands.audits.attribution import explain_action
from dreamgym.commands.audits.card import cards, table
from dreamgym.commands.inspection.rollouts import show_rollouts
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.evaluation.card import PARTS, card, card_lines
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

TASKS = doubles.tasks("test")[:6]


def played(plans):
    return [
        doubles.trajectory(task, plan, index=i)
        for i, (task, plan) in enumerate(zip(TASKS, plans, strict=True))
    ]


def won_and_lost():
    return [doubles.plan(t.initial_state) for t in TASKS[:4]] + [["fly"], ["fly"]]


def test_a_card_by_hand():
    rows = card(played(won_and_lost()), count_tokens=len, updates=10, kept_updates=4)
    by_name = {row.name: row for row in rows}
    assert by_name["games won"][2:6] == pytest.approx(
        (4 / 6, 0.300, 0.903, 6), abs=1e-3
    )
    steps = [len(doubles.plan(t.initial_state)) for t in TASKS[:4]]
    won = by_name["steps of a won game"]
    assert (won.mean, won.count) == (sum(steps) / 4, 4)
    assert won.low <= won.mean <= won.high
    invalid = by_name["invalid actions"]
    assert invalid.count == sum(steps) + 2
    assert invalid.mean == pytest.approx(2 / invalid.count)
    assert by_name["updates with rollouts"].mean == 0.4
    assert by_name["change of success"].mean is None
    assert "dreamgym robustness" in by_name["change of success"].note
    assert {row.part for row in rows} == set(PARTS)


def test_one_won_game_has_no_interval():
    rows = {r.name: r for r in card(played(won_and_lost())[:1], count_tokens=len)}
    steps = rows["steps of a won game"]
    assert (steps.count, steps.low, steps.high) == (1, None, None)
    (line,) = [x for x in card_lines("bc", [steps]) if "steps of a won game" in x]
    assert line.endswith("| - | 1 won game |")


def test_a_card_without_a_won_or_a_scored_game():
    lost = card(played([["fly"]] * 6), count_tokens=len)
    assert {r.name: r.note for r in lost}["steps of a won game"] == "none won"
    broken = doubles.trajectory(TASKS[0], ["fly"], error="down")
    rows = {r.name: r for r in card([broken])}
    assert rows["games won"].note == "no cases"
    assert rows["games that were scored"].mean == 0.0


def test_the_cards_of_a_run_are_written(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    with pytest.raises(RunError, match="no policy has played"):
        cards(run)
    episodes = [t.episode for t in played(won_and_lost())]
    write_episodes(run.path("test/bc.jsonl"), episodes)
    text = table(cards(run))
    assert "**bc**" in text
    for part in PARTS:
        assert f"| {part} |" in text
    content = json.loads(run.path("card.json").read_text())["policies"]["bc"]
    assert content[0]["count"] == 6


def test_a_card_counts_the_costs_that_a_run_limits(tmp_path):
    limits = [{"name": "flights", "limit": 0.0, "pattern": "fly", "worst_share": 0.25}]
    run = Run(tmp_path / "r", preset("tiny", {"train.limits": limits}))
    episodes = [t.episode for t in played(won_and_lost())]
    write_episodes(run.path("test/bc.jsonl"), episodes)
    row, worst = [r for r in cards(run)["bc"] if "flights" in r.name]
    # Two of six games fly, once each as often as they have steps.
    flown = sum(t.action == "fly" for e in episodes for t in e.transitions)
    assert (row.part, row.mean) == ("safety", pytest.approx(flown / 6))
    # 1.5 of the six games: the costliest and half of the next.
    costs = sorted(sum(t.action == "fly" for t in e.transitions) for e in episodes)
    assert worst.name == "cost of the worst 25 % of games: flights"
    assert worst.mean == pytest.approx((costs[-1] + costs[-2] / 2) / 1.5)
    assert worst.low <= worst.mean <= worst.high


def test_a_policy_that_never_pays_a_cost_has_it_on_its_card(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    safe = [t.episode for t in played(won_and_lost())]
    write_episodes(run.path("test/s2r.jsonl"), safe)
    write_episodes(run.path("test/bc.jsonl"), [doubles.costly(e) for e in safe])
    means = {
        policy: [r.mean for r in rows if r.name == "cost of a game: harm"]
        for policy, rows in cards(run).items()
    }
    assert means == {"bc": [2.0], "s2r": [0.0]}


def printed(run, *args, **options) -> str:
    out = io.StringIO()
    show_rollouts(run, Console(file=out, width=200), *args, **options)
    return out.getvalue()


def test_kept_rollouts_hold_every_part_of_the_reward(tmp_path):
    run = Run(tmp_path / "r", changed(preset("tiny"), "train.keep_rollouts", 3))
    saver = LoopCheckpoint(
        run.path("checkpoints/dream"),
        None,
        run.config,
        rollouts=run.path("rollouts/dream"),
        keep=run.config.train.keep_rollouts,
    )
    rewarded = played(won_and_lost())
    saver._keep_rollouts(17, rewarded)
    kept = read_episodes(run.path("rollouts/dream/00017.jsonl"))
    assert [e.task.id for e in kept] == [TASKS[i].id for i in (0, 2, 5)]
    assert kept[0].transitions == rewarded[0].episode.transitions
    listed = printed(run, 17)
    assert all(e.id in listed for e in kept)
    steps = printed(run, 17, episode=kept[0].id)
    assert "coin +1.000" in steps
    assert all(t.action in steps for t in kept[0].transitions)
    with pytest.raises(RunError, match=r"have 17 to 17"):
        show_rollouts(run, Console(), 3)
    with pytest.raises(RunError, match="no rollout 'x'"):
        show_rollouts(run, Console(), 17, episode="x")
    with pytest.raises(RunError, match="none was kept"):
        show_rollouts(run, Console(), 17, policy="s2r")


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    saver = LoopCheckpoint(
        run.path("c"), None, run.config, rollouts=run.path("rollouts/dream"), keep=0
    )
    saver._keep_rollouts(1, played(won_and_lost()))
    assert not run.path("rollouts").exists()


def run_of(policy, tmp_path, monkeypatch, **settings):
    """Return a run of the corridor whose policy bc is this one."""
    settings |= {"env.id": "tests.doubles:Corridor"}
    run = Run(tmp_path / "r", preset("tiny", settings))
    path = run.path("policies/bc/config.json")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    monkeypatch.setattr(environments, "load_player", lambda *_: policy)
    monkeypatch.setattr(command, "test_tasks", lambda _: list(TASKS))
    monkeypatch.setattr(command, "step_limit", lambda _: 14)
    monkeypatch.setattr(environments, "step_limit", lambda _: 14)
    return run


def test_the_identity_gives_the_test_games_again(tmp_path, monkeypatch, capsys):
    # Each letter of its actions is drawn, so that other noise would give other games.
    policy = doubles.policy(action_tokens=6)
    run = run_of(policy, tmp_path, monkeypatch, **{"evaluate.temperature": 1.0})
    environments.play_test_games(run, "bc", TASKS)
    command.robustness(run, ["bc"], [], 0.1)
    assert "end otherwise" not in capsys.readouterr().err
    games = run.path("test/bc.jsonl").read_bytes()
    assert run.path("robustness/identity-0.1/bc.jsonl").read_bytes() == games
    episodes = read_episodes(run.path("test/bc.jsonl"))
    assert len({t.action for e in episodes for t in e.transitions}) > len(TASKS)


def test_a_kind_is_unfair_where_the_expert_loses_more_than_as_the_games_are():
    policies = {
        "bc": {
            "success": {"mean": 0.5},
            "difference": {"mean": -0.1, "low": -0.2, "high": 0.0, "episodes": 50},
            "changed_games": 50,
        }
    }

    def row(lost, before):
        losses = {"expert_losses": lost, "expert_losses_unperturbed": before}
        return {**losses, "policies": policies}

    kinds = {
        "identity": row(7, 7),
        "order": row(7, 7),
        "lost": row(3, 7),  # the environment draws lots
        "rename": row(5, 3),  # 3 of the games that have names
        "longer": row(None, None),
    }
    rows = {r.name: r.note for r in card([], robustness={"kinds": kinds}, policy="bc")}
    notes = {k: rows[f"change of success: {k}"] for k in kinds if k != "identity"}
    unfair = "unfair: the expert loses 2 more"
    assert notes == {"order": "", "lost": "", "rename": unfair, "longer": ""}
    lines = command.table({"kinds": kinds}).splitlines()
    cells = [line.split(" | ")[-1].rstrip(" |") for line in lines[2:]]
    assert cells == ["7", "7", "3", "5 (+2)", "-"]


class Forgetful(doubles.Corridor):
    """A corridor whose expert knows no way to a coin on its left."""

    def expert(self):
        plan = super().expert()
        return [action for action in plan if action != "go left"]


def test_an_expert_that_loses_as_the_games_are_makes_no_kind_unfair(
    tmp_path, monkeypatch
):
    policy = doubles.Scripted(lambda _, __, state: doubles.plan(state)[0])
    run = run_of(policy, tmp_path, monkeypatch)
    monkeypatch.setattr(command, "make_env", lambda _: Forgetful())
    kinds = command.robustness(run, [], ["rephrase", "longer"], 0.1)["kinds"]
    lost = [t.options["goal"] < t.options["at"] for t in TASKS]
    both = [a or b for a, b in zip(lost, lost[1:] + lost[:1], strict=True)]
    assert 0 < sum(lost) < sum(both)
    losses = [row["expert_losses"] for row in kinds.values()]
    assert losses == [sum(lost), sum(lost), sum(both)]
    assert losses == [row["expert_losses_unperturbed"] for row in kinds.values()]


def test_robustness_compares_two_games_in_a_row_with_both(tmp_path, monkeypatch):
    def rule(task, past, state):
        del task, past
        falls = state[1] == TASKS[0].initial_state[1]
        return "go left" if falls else doubles.plan(state)[0]

    run = run_of(doubles.Scripted(rule), tmp_path, monkeypatch)
    kinds = command.robustness(run, [], ["longer"], 0.1)["kinds"]
    lost = [t.initial_state[1] == TASKS[0].initial_state[1] for t in TASKS]
    both = [not a and not b for a, b in zip(lost, lost[1:] + lost[:1], strict=True)]
    success = [k["policies"]["bc"]["success"]["mean"] for k in kinds.values()]
    assert success == pytest.approx([1 - sum(lost) / 6, sum(both) / 6])
    assert 0 < success[1] < success[0]
    assert kinds["longer"]["expert_losses"] == 0
    difference = kinds["longer"]["policies"]["bc"]["difference"]
    assert (difference["mean"], difference["episodes"]) == (0.0, 6)
    steps = [
        [
            len(e.transitions)
            for e in read_episodes(run.path(f"robustness/{k}/bc.jsonl"))
        ]
        for k in ("identity-0.1", "longer-0.1")
    ]
    assert sum(steps[1]) > sum(steps[0])


def test_games_that_end_otherwise_than_the_test_games_are_said(
    tmp_path, monkeypatch, capsys
):
    policy = doubles.Scripted(lambda _, __, state: doubles.plan(state)[0])
    run = run_of(policy, tmp_path, monkeypatch)
    environments.play_test_games(run, "bc", TASKS)
    first, *others = read_episodes(run.path("test/bc.jsonl"))
    lost = dataclasses.replace(
        first,
        success=False,
        transitions=tuple(
            dataclasses.replace(t, success=None if t.success is None else False)
            for t in first.transitions
        ),
    )
    write_episodes(run.path("test/bc.jsonl"), [lost, *others])
    command.robustness(run, ["bc"], [], 0.1)
    assert "bc: 1 of 6 games as they are end otherwise" in capsys.readouterr().err


def test_robustness_compares_with_the_games_as_they_are(tmp_path, monkeypatch):
    policy = doubles.Scripted(lambda _, __, state: doubles.plan(sorted_state(state))[0])
    run = run_of(policy, tmp_path, monkeypatch)
    result = command.robustness(run, [], ["order", "lost"], 0.9)
    kinds = result["kinds"]
    assert list(kinds) == ["identity", "order", "lost"]
    assert all(row["expert_losses"] == 0 for row in kinds.values())
    # The rule reads lines by their names: their order changes nothing. It cannot see
    # where it is while replies are lost.
    assert kinds["identity"]["policies"]["bc"]["success"]["mean"] == 1.0
    assert kinds["order"]["policies"]["bc"]["difference"]["mean"] == 0.0
    assert kinds["lost"]["policies"]["bc"]["difference"]["mean"] < 0
    assert "| lost |" in command.table(result)
    write_episodes(
        run.path("test/bc.jsonl"), [t.episode for t in played(won_and_lost())]
    )
    rows = {r.name: r for r in cards(run)["bc"]}
    assert rows["change of success: lost"].count == 6
    with pytest.raises(RunError, match="no policy 'x'"):
        command.robustness(run, ["x"], [], 0.1)
    with pytest.raises(ValueError, match="kinds must be"):
        command.robustness(run, [], ["noise"], 0.1)


def sorted_state(state):
    """The lines in the corridor's own order."""
    by_name = {line.split()[0]: line for line in state}
    return tuple(by_name[name] for name in ("at", "goal", "end", "said"))


def test_rollouts_of_rounds_are_found_by_their_names(tmp_path):
    run = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    folder = run.path("rollouts/s2r/round-1")
    folder.mkdir(parents=True)
    write_episodes(folder / "00001.jsonl", [doubles.expert(TASKS[0])])
    with pytest.raises(RunError, match=r"--policy s2r/round-1"):
        show_rollouts(run, Console(file=io.StringIO()), 1, policy="s2r")
    file = io.StringIO()
    show_rollouts(run, Console(file=file), 1, policy="s2r/round-1")
    assert "rollouts that it kept" in file.getvalue()
    with pytest.raises(RunError, match=r"--set transfer.keep_rollouts=32"):
        show_rollouts(run, Console(file=file), 1, policy="real_only")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--update", "1", "--html", "x.html"], "drop --all, --html and --step"),
        (["--update", "1", "--all"], "drop --all, --html and --step"),
        (["--policy", "s2r"], "--policy has no effect without --update or --why"),
        (["--wrong", "--step", "1"], "--wrong chooses the steps itself"),
        (["--wrong", "--why"], "--wrong chooses the steps itself"),
        (["--wrong", "-1"], "--wrong must be >= 0, got -1"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, capsys, options, message):
    Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    assert main(["show", str(tmp_path / "r"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_planners_actions_are_not_explained_by_words(tmp_path):
    run = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    for name in ("s2r", "planner"):
        run.path(f"test/{name}.jsonl").parent.mkdir(exist_ok=True)
        write_episodes(run.path(f"test/{name}.jsonl"), [doubles.expert(TASKS[0])])
    with pytest.raises(RunError, match=r"a search in the dream has chosen.*\['s2r'\]"):
        explain_action(run, policy="planner")
