"""Grids of runs: cells, their keys, the table."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dreamgym import cli
from dreamgym.build import chat as run_chat
from dreamgym.commands.studies import study, study_file
from dreamgym.config.presets import RUN_CONTROLS, preset
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.evaluation.statistics import bonett_price
from dreamgym.run import directory
from dreamgym.run import stage as stage_module
from dreamgym.run.directory import SCHEMA, RunError
from dreamgym.run.stage import Stage, StageTable
from dreamgym.stages.table import STAGES
from tests.dreamgym.commands.common import no_cost, write_study
from worldmodel.data.records import (
    Episode,
    Task,
    Transition,
    write_episodes,
)

TEXT = """
preset = "tiny"
last_stage = "collect"
[set]
"env.id" = "tests.doubles:Corridor"
[grid]
seed = [0, 1]
"collect.episodes" = [20, 30]
[variants.all]
[variants."no history"]
"experience.history" = 0
[columns]
episodes = "stages/collect.numbers.episodes"
[compare_to]
"no history" = "all"
"""


def test_cells_are_every_combination(tmp_path):
    grid = study_file.read_study(write_study(tmp_path, TEXT))
    results = list(study_file.cells(grid))
    assert len(results) == 2 * 2 * 2
    assert results[1] == {"variant": "all", "seed": 0, "collect.episodes": 30}
    configs = [study_file.config_of(grid, c) for c in results]
    assert len({c.digest() for c in configs}) == 8
    last = configs[-1]
    assert (last.seed, last.collect.episodes, last.experience.history) == (1, 30, 0)
    assert (configs[0].env.id, configs[0].experience.history) == (
        "tests.doubles:Corridor",
        preset("tiny").experience.history,
    )


def test_cells_that_did_not_run_are_blank_and_none_runs_twice(tmp_path, capsys):
    grid = study_file.read_study(write_study(tmp_path, TEXT))
    first, second = list(study_file.cells(grid))[:2]
    output = study.compute(grid, first, tmp_path / "r")
    assert output["values"] == {"episodes": 20}
    study.compute(grid, second, tmp_path / "r")
    lines = study.table(grid, tmp_path / "r").splitlines()
    assert lines[0] == "| variant | collect.episodes | seeds | episodes |"
    assert lines[2:] == [
        "| all | 20 | 1 of 2 | 20 |",
        "| all | 30 | 1 of 2 | 30 |",
        "| no history | 20 | 0 of 2 |  |",
        "| no history | 30 | 0 of 2 |  |",
    ]
    capsys.readouterr()
    study.compute(grid, first, tmp_path / "r")
    assert "done before" in capsys.readouterr().err


def test_the_front_stands_below_the_table(tmp_path):
    aims = '[pareto]\nepisodes = "max"\nsteps = "min"\n[columns]\nsteps = "a.b"'
    text = TEXT.replace("[columns]", aims)
    grid = study_file.read_study(write_study(tmp_path, text))
    assert study.table(grid, tmp_path).count("Pareto") == 0  # nothing has run
    values = {20: (20, 5.0), 30: (30, 6.0)}  # more episodes, and more steps
    for cell in study_file.cells(grid):
        number, steps = values[cell["collect.episodes"]]
        steps += cell["variant"] == "no history"  # dominated by the other variant
        row = {
            "settings": cell,
            "values": {"episodes": number, "steps": steps},
            "games": {},
        }
        path = tmp_path / "cells" / f"{study_file.config_of(grid, cell).digest()}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(row))
    front = study.table(grid, tmp_path).split("\n\n")[-1].splitlines()
    assert front == [
        "Pareto front, episodes (max), steps (min): 2 of 4 rows, by their means",
        "- all 20: episodes 20, steps 5",
        "- all 30: episodes 30, steps 6",
    ]


def test_seeds_are_averaged_with_their_range(tmp_path):
    grid = study_file.read_study(write_study(tmp_path, TEXT))
    for cell, value in zip(study_file.cells(grid), (1.0, 5.0, 2.0), strict=False):
        key = study_file.config_of(grid, cell).digest()
        path = tmp_path / f"r/cells/{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"settings": cell, "values": {"episodes": value}}))
    rows = study.table(grid, tmp_path / "r").splitlines()[2:]
    # Cells in order: seed 0 with 20 and 30 episodes, seed 1 with 20.
    assert rows[0] == "| all | 20 | 2 of 2 | 1.5 (1 to 2) |"
    assert rows[1] == "| all | 30 | 1 of 2 | 5 |"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('preset = "tiny"', 'preset = "huge"', "unknown preset 'huge'"),
        (
            'last_stage = "collect"',
            'last_stage = "tea"',
            "last_stage 'tea': expected one of",
        ),
        (
            '"collect.episodes" = [20, 30]',
            '"collect.speed" = [1]',
            "no setting 'collect.speed'",
        ),
        ('"collect.episodes" = [20, 30]', "collect = [1]", "is a group of settings"),
        ('"collect.episodes" = [20, 30]', '"collect.episodes" = 20', "expected a list"),
        ('last_stage = "collect"', 'policies = ["tea"]', "expected a list of some of"),
        ('last_stage = "collect"', 'policies = "bc"', "expected a list of some of"),
        (  # a bad setting is told with its file, whatever else is asked
            'last_stage = "collect"\n[set]',
            'last_stage = "warmstart"\npolicies = ["bc"]\n[set]\nhope = 1',
            "s.toml: .*hope",
        ),
        ("[set]", "[sets]", r"unknown \['sets'\]"),
        ("[columns]", "[columns", "expected TOML"),
        ("[columns]", "[columns]\nx = 3", "columns.x: expected a name, got 3"),
        ("[columns]", "[columns]\nx = 'test/tea'", "columns.x: no policy 'tea'"),
        ("[columns]", "[columns]\nx = 'test/bc - '", "columns.x: .*test/POLICY"),
        (
            '"no history" = "all"',
            '"no history" = "tea"',
            "compare_to: no variant 'tea'",
        ),
        ("[columns]", "[pareto]\nx = 'max'\n[columns]", "pareto.x: expected one of"),
        (
            "[columns]",
            "[pareto]\nepisodes = 'most'\n[columns]",
            "with .max. or .min., got 'most'",
        ),
        ("[columns]", "[pareto]\nepisodes = 'max'\n[columns]", "at least two"),
        ("seed = [0, 1]", "seed = [-1]", "seed must be an int of at least 0"),
        (  # which of the cells, and which of its settings
            '"experience.history" = 0',
            '"train.reward.invalid_penalty" = -1',
            "s.toml: variant 'no history', .*train.reward.invalid_penalty = -1: "
            "invalid_penalty must",
        ),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(tmp_path, old, new, message):
    with pytest.raises(RunError, match=message):
        study_file.read_study(write_study(tmp_path, TEXT.replace(old, new)))


@pytest.mark.medium
def test_a_cell_that_fails_is_told_and_the_others_run(tmp_path, monkeypatch, capsys):
    path, compute, tried = write_study(tmp_path, TEXT), study.compute, []

    def failing(grid, cell, *rest):
        tried.append(cell)
        if cell["variant"] == "all" and cell["seed"] == 0:
            raise fault
        return compute(grid, cell, *rest)

    monkeypatch.setattr(study, "compute", failing)
    fault = RunError("no successful episode")
    command = ["study", str(path), "--root", str(tmp_path / "r")]
    assert cli.main(command) == 2
    output = capsys.readouterr()
    assert len(tried) == 8
    assert "| all | 20 | 1 of 2 |" in output.out
    assert "| no history | 30 | 2 of 2 |" in output.out
    name = "variant=all seed=0 collect.episodes=20: no successful episode"
    assert f"cell {name}" in output.err  # at once, and in the end
    assert f"study: 2 cells failed, and are blank:\n  {name}\n" in output.err
    assert cli.main([*command, "--table"]) == 0
    for error in (EnvironmentDown("gone"), BlockingIOError("another command")):
        fault = error  # what `failing` raises
        tried.clear()
        assert cli.main(command) == 2
        assert len(tried) > 1
    tried.clear()
    fault = run_chat.ServerLost("nobody there")  # nor will there be for the next
    assert cli.main(command) == 2
    assert len(tried) == 1


def test_a_cell_of_a_pretrained_model_has_the_steps_of_one(tmp_path):
    """As `--model DIR` has."""
    text = TEXT.replace("[grid]", f'"model" = "{tmp_path}"\n[grid]')
    grid = study_file.read_study(write_study(tmp_path, text))
    config = study_file.config_of(grid, next(study_file.cells(grid)))
    assert config.model == str(tmp_path.resolve())
    assert config.train.update.learning_rate == 1e-5
    assert config.bc.fit.optimizer.name == "adamw"


def test_a_column_that_is_not_there_is_named(tmp_path):
    text = TEXT.replace("numbers.episodes", "numbers.speed")
    grid = study_file.read_study(write_study(tmp_path, text))
    result = study.compute(grid, next(study_file.cells(grid)), tmp_path / "r")
    assert result["values"] == {"episodes": None}
    *rows, output = study.table(grid, tmp_path / "r").splitlines()
    assert rows[2].endswith("| 1 of 2 |  |")
    assert "column 'episodes': no finished cell has a value at" in output
    with pytest.raises(RunError, match="no such file"):
        study_file.read_study(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "different"),
    [
        ("worldmodel", 21),
        ("families", 6),
        ("trust", 15),
        ("early", 63),
        ("early_rl", 12),
        ("early_start", 12),
        ("updates", 30),
        ("rewards", 6),
        ("reward_refits", 12),
        ("credit", 24),
        ("curriculum", 24),
        ("real_updates", 80),
        ("strangers", 132),
        ("strangers_without_expert", 60),
        ("copying", 12),
        ("sample_efficiency", 36),
        ("iwm", 96),
        ("grpo", 27),
        ("history", 30),
        ("reflection", 24),
        ("limits", 12),
        ("tool_rewards", 18),
    ],
)
def test_our_studies_can_be_run(name, different):
    root = Path(__file__).parents[3]
    grid = study_file.read_study(root / f"scripts/studies/{name}.toml")
    assert len(
        {study_file.config_of(grid, c).digest() for c in study_file.cells(grid)}
    ) == (different)


@pytest.mark.parametrize("name", ["real_updates", "tool_rewards", "credit", "grpo"])
def test_a_study_that_compares_updates_keeps_the_last_policy(name):
    """Else the warm start stands where updates did harm, and no gain is below 0."""
    root = Path(__file__).parents[3]
    grid = study_file.read_study(root / f"scripts/studies/{name}.toml")
    for cell in study_file.cells(grid):
        monitor = study_file.config_of(grid, cell).train.monitor
        is_watched = "watched" in cell.get("variant", "")
        assert monitor.keep_best == is_watched, cell


def test_policies_are_played_without_a_dream(tmp_path, monkeypatch):
    """Games of the two variants, won as their history says: a row each, and apart."""
    text = TEXT.replace(
        'last_stage = "collect"', 'last_stage = "warmstart"\npolicies = ["bc"]'
    )
    text = text.replace("[columns]", '[columns]\nbc = "test/bc"\nlong = "test/bc/long"')
    of = study_file.read_study(write_study(tmp_path, text))
    played = []

    def play(run):
        played.append(run.done("warmstart") is not None)
        won = run.config.experience.history > 0
        episodes = [
            Episode(
                id=f"e{i}",
                task=Task(id=f"g{i}", instruction="go", family=family),
                transitions=(Transition(state=("a",), action="go", next_state=("b",)),),
                source="test",
                success=success,
            )
            for i, (family, success) in enumerate(
                [("long", won), ("short", True), ("long", None)]
            )
        ]
        write_episodes(run.path("test/bc.jsonl"), episodes)
        return {}

    collect = Stage("collect", lambda _: {"episodes": 3}, cost=no_cost)
    warmstart = Stage("warmstart", lambda _: {}, cost=no_cost, needs=("collect",))
    evaluate = Stage(
        "evaluate/bc",
        play,
        cost=no_cost,
        needs=("warmstart",),
        reads=("experience.history",),
        writes=("test/bc.jsonl",),
    )
    table = StageTable([collect, warmstart, evaluate])
    monkeypatch.setattr(study, "STAGES", table)
    for cell in study_file.cells(of):
        result = study.compute(of, cell, tmp_path / "r")
    assert played == [True] * 2  # after the last stage; cells that agree share it
    assert result["games"]["g0"] == {"family": "long", "success": {"bc": False}}
    assert result["games"]["g2"]["success"] == {"bc": None}
    output = study.table(of, tmp_path / "r").splitlines()
    assert output[2].startswith("| all | 20 | 2 of 2 | 1.000 [0.342, 1.000] | 1.000 [")
    assert output[5].startswith(
        "| no history | 30 | 2 of 2 | 0.500 [0.095, 0.905] | 0.0"
    )
    assert output[7] == "no history 20 minus all 20, same seeds, same games:"
    _, high = bonett_price(-np.ones(1))  # a game, by two seeds
    assert output[9] == f"- long: -1.000 [-1.000, {high:+.3f}], 2 games"
    assert study.plot(of, tmp_path / "r").is_file()


LATER = """
preset = "tiny"
last_stage = "train"
[set]
"env.id" = "tests.doubles:Corridor"
[variants.all]
[variants.gate]
"uncertainty.false_abort_rate" = 0.1
[variants.members]
"ensemble.members" = 2
[variants."less history"]
"experience.history" = 1
[variants."more experts"]
"bc.max_demonstrations" = 30
[variants."other start"]
"bc.init" = "base_model"
[variants."other method"]
"warmstart.method" = "both"
"""


REFUSED_AXES = {
    "a value twice": ("[grid]\nseed = [0, 1, 0]", r"grid.seed: 0 stands twice"),
    "a cell twice": (
        "[[grid]]\nseed = [0, 1]\n[[grid]]\nseed = [1, 2]",
        r"two grids have the cell \{'seed': 1\}",
    ),
    "a variant's setting": (
        '[grid]\n"bc.fit.steps" = [3, 4]\n[variants.a]\n"bc.fit.steps" = 4',
        r"variants.a: sets 'bc.fit.steps', which \[grid\] varies",
    ),
    "nothing": ('preset = "tiny"', "nothing to study"),
    "a column of no stage": (
        '[grid]\nseed = [0]\n[columns]\nx = "stages/nonsense.seconds"',
        "columns.x: no stage 'nonsense'",
    ),
}


@pytest.mark.parametrize("name", REFUSED_AXES)
def test_a_study_that_says_something_twice_or_nothing_is_refused(name, tmp_path):
    text, message = REFUSED_AXES[name]
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(RunError, match=message):
        study_file.read_study(tmp_path / "s.toml")


@pytest.mark.medium
def test_cells_share_the_stages_they_agree_on(tmp_path, monkeypatch):
    """Stages that only leave a mark: what is asked is which of them run."""
    grid = study_file.read_study(write_study(tmp_path, LATER))
    ran = []

    def marked(stage):
        def body(run):
            ran.append(stage.name)
            for file in stage.writes:
                path = run.path(file if "." in file else f"{file}/model")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{stage.name} {len(ran)}")
            return {}

        return dataclasses.replace(stage, body=body)

    monkeypatch.setattr(study, "STAGES", StageTable(map(marked, STAGES.values())))
    roots = []
    in_dream = ["dream_check", "expert_iteration", "train"]
    trained = ["warmstart", *in_dream]
    policies = ["bc", "shield", "branch", *trained]
    fitted = ["pretrain", "ensemble", "fidelity", "reward_model", *policies]
    expected = {
        "all": ["collect", *fitted],
        # The threshold of confidence is measured on dev answers.
        "gate": ["fidelity", *in_dream],
        "members": ["ensemble", "fidelity", *in_dream],
        "less history": fitted,
        "more experts": policies,
        "other start": policies,
        "other method": ["branch", *trained],
    }
    strange = tmp_path / "r/runs/strange/manifest.json"  # of a version to come
    strange.parent.mkdir(parents=True)
    strange.write_text(json.dumps({"schema": SCHEMA, "config": {"hope": 1}}))
    left = [set(STAGES) - done for _, done in study.unfinished(grid, tmp_path / "r")]
    for names, cell in zip(left, study_file.cells(grid), strict=True):
        ran.clear()
        result = study.compute(grid, cell, tmp_path / "r")
        assert ran == expected[cell["variant"]], cell
        assert names == set(ran)  # as was foretold
        roots.append(tmp_path / "r/runs" / result["digest"])
        ran.clear()
        study.compute(grid, cell, tmp_path / "r")
        assert ran == []
    assert {frozenset(d) for _, d in study.unfinished(grid, tmp_path / "r")} == {
        frozenset(STAGES)
    }
    # What one run has of another is what that computed.
    for name in ("experience/model", "policies/bc/model", "fidelity.json"):
        assert (roots[-1] / name).read_text() == (roots[0] / name).read_text()
    assert (roots[4] / "policies/bc/model").read_text().startswith("bc ")
    assert (roots[4] / "policies/bc/model").read_text() != (
        roots[0] / "policies/bc/model"
    ).read_text()


PLAYED = """
preset = "tiny"
last_stage = "transfer"
[set]
"env.id" = "tests.doubles:Corridor"
[grid]
"budget.real_steps" = [0, 2000]
[columns]
gain = "test/dream - test/bc"
"""


def test_policies_of_the_columns_play_and_a_budget_leaves_controls_out(tmp_path):
    grid = study_file.read_study(write_study(tmp_path, PLAYED))
    free, budgeted = (study.stage_names(grid, c) for c in study_file.cells(grid))
    assert {"evaluate/bc", "evaluate/dream", "s2r", "evaluate/s2r"} <= set(budgeted)
    assert set(free) - set(budgeted) == {
        *("real_only", "evaluate/real_only"),
        *("real_only_total", "evaluate/real_only_total"),
    }
    assert "evaluate/warmstart" not in free
    named = write_study(
        tmp_path, PLAYED.replace("[set]", 'policies = ["warmstart"]\n[set]')
    )
    names = study.stage_names(
        study_file.read_study(named), next(study_file.cells(grid))
    )
    assert "evaluate/warmstart" in names
    assert "evaluate/bc" not in names


ONE_STAGE = """
preset = "tiny"
last_stage = "collect"
[variants.all]
[variants.gate]
"uncertainty.false_abort_rate" = 0.1
[variants.pessimism]
"uncertainty.penalty" = 0.1
"""


def test_stages_of_another_version_are_computed_anew_and_tables_say_so(
    tmp_path, monkeypatch, capsys
):
    grid = study_file.read_study(write_study(tmp_path, ONE_STAGE))
    table = StageTable([dataclasses.replace(STAGES["collect"], body=lambda _: {})])
    monkeypatch.setattr(study, "STAGES", table)
    first, *others = study_file.cells(grid)
    for module in (stage_module, directory):
        monkeypatch.setattr(module, "VERSION", "0.0.9")
    study.compute(grid, first, tmp_path / "r")
    assert "By dreamgym" not in study.table(grid, tmp_path / "r")
    for module in (stage_module, directory):
        monkeypatch.setattr(module, "VERSION", "0.1.0")
    capsys.readouterr()
    for cell in others:
        study.compute(grid, cell, tmp_path / "r")
    assert capsys.readouterr().err.count("collect: as in") == len(others) - 1
    assert "By dreamgym 0.0.9, 0.1.0:" in study.table(grid, tmp_path / "r")


# --- success against real steps ----------------------------------------------


def test_a_variant_can_be_a_control(tmp_path):
    """The settings of a control by its name; the cell's own settings come after it."""
    path = tmp_path / "study.toml"
    path.write_text(
        'preset = "tiny"\n[set]\n"budget.real_steps" = 900\n[grid]\nseed = [0]\n'
        '[variants.dream]\n[variants."real play"]\ncontrol = "real-play"\n'
        '"budget.collect" = 0.4\n'
    )
    study = study_file.read_study(path)
    dream, control = (study_file.config_of(study, c) for c in study_file.cells(study))
    assert dream == preset("tiny", {"budget.real_steps": 900})
    assert (control.train.environment, control.budget.collect) == ("real", 0.4)
    assert control.budget.branch == RUN_CONTROLS["real-play"]["budget.branch"]
    path.write_text(path.read_text().replace("real-play", "reel-play"))
    with pytest.raises(RunError, match=r"unknown control 'reel-play'; have .*shuffled"):
        study_file.read_study(path)
