"""What cells of a study hold of the test games beside success: costs and tool use."""

import dataclasses

from dreamgym.agent import floors
from dreamgym.commands.studies import study, study_file
from dreamgym.config.presets import preset
from dreamgym.envs import base
from dreamgym.evaluation.pages import study_table
from dreamgym.run.directory import Run
from tests.dreamgym.commands.common import write_study
from tests.strangers.tools import Shop
from worldmodel.data.records import write_episodes
from worldmodel.text.tools.tool_calls import write_answer

TEXT = """
preset = "tiny"
last_stage = "collect"
[set]
"env.id" = "tests.strangers.tools:Shop"
"train.limits" = [{ name = "call", limit = 0.1, pattern = "^price" }]
[columns]
bc = "test/bc"
missed = "tools/bc/missed_calls"
calls = "cost/bc/call"
noise = "cost/bc/noise"
dream = "cost/dream/call"
"""


def games():
    """Two games, one that needs a call; nobody calls there, but in the other."""
    env = Shop()
    tasks = base.begin_all(env, env.tasks("test"))
    needed = next(t for t in tasks if any(t.options["calls"]))
    other = next(t for t in tasks if not any(t.options["calls"]))

    def actor(_, task):
        fruit = task.options["asked"]
        answer = write_answer(str(task.options["prices"][fruit]))
        call = Shop.call("price", fruit=fruit)
        plan = iter([answer] if task.id == needed.id else [call, answer])
        return lambda _: next(plan)

    played = floors.play_scripted(
        env, [needed, other], actor, source="agent", seed=0, max_steps=4
    )
    episodes = [t.episode for t in played]
    steps = [
        dataclasses.replace(x, costs={"noise": 0.25}) for x in episodes[1].transitions
    ]
    return [episodes[0], dataclasses.replace(episodes[1], transitions=tuple(steps))]


def test_a_cell_has_the_costs_and_the_tool_use_that_columns_name(tmp_path):
    grid = study_file.read_study(write_study(tmp_path, TEXT))
    assert study._column_policies(grid) == ["bc", "dream"]
    (cell,) = study_file.cells(grid)
    with Run(tmp_path / "run", study_file.config_of(grid, cell)) as run:
        run.path("test").mkdir()
        needed, other = games()
        write_episodes(run.path("test/bc.jsonl"), [needed, other])
        rows = study._games(run, "test", grid)
    assert rows[needed.task.id] == {
        "family": "shop",
        "success": {"bc": True},
        "tools": {"bc": {"missed_calls": (1.0, 1.0)}},
        "cost": {"bc": {"call": (0.0, 1.0), "noise": (0.0, 1.0)}},
    }
    row = rows[other.task.id]
    # The pattern of the limit counts the call, and nothing was expected.
    assert row["cost"]["bc"] == {"call": (1.0, 1.0), "noise": (0.5, 1.0)}
    assert row.get("tools", {}).get("bc", {}).get("missed_calls", (0, 0))[1] == 0


def test_a_policy_that_never_pays_a_cost_has_a_value_in_its_column(tmp_path):
    text = TEXT.replace("cost/dream/call", "cost/dream/noise")
    grid = study_file.read_study(write_study(tmp_path, text))
    (cell,) = study_file.cells(grid)
    needed, other = games()
    with Run(tmp_path / "run", study_file.config_of(grid, cell)) as run:
        run.path("test").mkdir()
        write_episodes(run.path("test/dream.jsonl"), [needed])
        rows = study._games(run, "test", grid)
        # Also where no policy of the cell pays it, as it may be in every other cell.
        assert rows[needed.task.id]["cost"] == {"dream": {"noise": (0.0, 1.0)}}
        write_episodes(run.path("test/bc.jsonl"), [other])
        both = study._games(run, "test", grid)

    def lines(games):
        finished = {"settings": {}, "values": {}, "games": games}
        row = study_table.Row(("a",), 1, [finished])
        columns = {"noise": "cost/dream/noise", "bc": "cost/bc/noise"}
        return study_table.table(["variant"], [row], columns).splitlines()[3:]

    # A cost that nobody ever pays may be one that the environment does not report.
    text = "every game of the finished cells has 0 at 'cost/dream/noise'"
    assert lines(rows)[0] == f"column 'noise': {text}"
    assert [line for line in lines(both) if "'bc'" in line] == []


def test_how_calls_are_matched_is_the_setting_of_the_cell(tmp_path):
    text = TEXT.replace("missed_calls", "argument_score")
    grid = study_file.read_study(write_study(tmp_path, text))
    _, other = games()
    first, second = other.transitions[0], other.transitions[-1]
    calls = [None, {"tool": "price", "arguments": {"fruit": "pear"}}]
    task = dataclasses.replace(
        other.task, options=other.task.options | {"calls": calls}
    )
    late = dataclasses.replace(other, task=task, transitions=(first, second))
    scores = {}
    for match in ("step", "assignment"):
        settings = {"train.reward.tools.match": match}
        with Run(tmp_path / match, preset("tiny", settings)) as run:
            run.path("test").mkdir()
            write_episodes(run.path("test/bc.jsonl"), [late])
            game = study._games(run, "test", grid)[task.id]
            scores[match] = game.get("tools", {}).get("bc", {})
    assert scores["step"] != scores["assignment"]
