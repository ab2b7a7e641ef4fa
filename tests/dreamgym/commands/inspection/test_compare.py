"""Runs side by side: their settings, their games, what is missing."""

import dataclasses
import json

import matplotlib.image
import numpy as np
import pytest

from dreamgym import cli
from dreamgym.commands.inspection.compare import compared
from dreamgym.config.presets import preset
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.comparisons import run_comparison
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import write_episodes


def played(won):
    """One episode a game; `won` says of which number it was won."""
    out = []
    for i, task in enumerate(doubles.tasks("test")[: len(won)]):
        e = doubles.expert(task)
        end = dataclasses.replace(e.transitions[-1], success=won[i])
        e = dataclasses.replace(
            e, id=f"e{i}", success=won[i], transitions=(*e.transitions[:-1], end)
        )
        out.append(e)
    return out


@pytest.fixture
def two(tmp_path):
    a = Run(tmp_path / "a", preset("tiny"))
    b = Run(tmp_path / "b", preset("tiny", {"pretrain.rare_event_share": 0.2}, seed=1))
    write_episodes(a.path("test/dream.jsonl"), played([True, True, False, False]))
    write_episodes(a.path("test/bc.jsonl"), played([False] * 4))
    write_episodes(b.path("test/dream.jsonl"), played([True, True, True]))
    a.path("curves").mkdir()
    rows = [{"update": n, "success": n / 4, "kl": 0.1} for n in (1, 2)]
    a.path("curves/dream.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return a, b


def test_what_differs_and_what_came_of_it(two):
    result = compared([run.root for run in two])
    one, other = result["runs"]
    assert one["settings"] == {"seed": 0, "pretrain.rare_event_share": 0.1}
    assert other["settings"] == {"seed": 1, "pretrain.rare_event_share": 0.2}
    assert one["policies"]["dream"]["mean"] == 0.5
    assert other["policies"]["dream"]["episodes"] == 3
    assert [r["success"] for r in one["curve"]] == [0.25, 0.5]
    assert other["curve"] == []
    # On the three games that both played: 3 of 3 against 2 of 3.
    (paired,) = result["paired"]
    assert paired.keys() == {"dream"}
    assert paired["dream"]["mean"] == pytest.approx(1 / 3)
    assert paired["dream"]["episodes"] == 3
    json.dumps(result)


def test_the_policies_that_runs_end_with_are_compared_with_their_real_steps(two):
    a, b = two
    a.mark("collect", {"real_transitions": 70})
    b.mark("collect", {"real_transitions": 50})
    b.mark("s2r", {"real_transitions": 40})
    write_episodes(b.path("test/s2r.jsonl"), played([True, True, False, True]))
    write_episodes(b.path("test/real_only.jsonl"), played([False] * 4))  # a control
    first, last = compared([a.root, b.root])["last"]
    assert (first["policy"], first["real_steps"]) == ("dream", 70)
    assert (last["policy"], last["real_steps"]) == ("s2r", 90)
    assert last["difference"]["mean"] == 0.25  # 3 of 4 games, and 2 of 4
    text = run_comparison.table(compared([a.root, b.root]))
    assert (
        f"end with, s2r of {b.root} (90 real steps) minus dream of {a.root} (70): "
        "+0.250 ["
    ) in text


@pytest.mark.parametrize(
    ("won", "sentence"),
    [
        ([True] * 4, "- dreaming did not pay here: take the last policy of "),
        ([False] * 4, "- dreaming paid: the run with the dream ends ahead"),
        ([True, True, True, False], "- whether dreaming paid cannot be told"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_beside_a_control_it_is_said_whether_dreaming_paid(
    two, tmp_path, monkeypatch, won, sentence, is_first
):
    def spread(second, first, **_):
        mean = np.mean([a.episode.success for a in second]) - np.mean(
            [a.episode.success for a in first]
        )
        half = 0.3
        return {"mean": mean, "low": mean - half, "high": mean + half, "episodes": 4}

    monkeypatch.setattr(evaluate, "paired", spread)
    control = Run(tmp_path / "real", preset("tiny", {"train.environment": "real"}))
    write_episodes(control.path("test/dream.jsonl"), played(won))
    roots = [two[0].root, control.root]
    text = run_comparison.table(compared(roots[::-1] if is_first else roots))
    assert sentence in text
    assert text.count("dreaming") == 1
    assert "not at equal real steps" not in text
    if "did not pay" in sentence:
        assert f"of {control.root}, the control" in text
    control.mark("collect", {"real_transitions": 70})
    two[0].mark("collect", {"real_transitions": 50})
    text = run_comparison.table(compared(roots))
    assert "(not at equal real steps: 50 and 70)" in text
    # A dream that was refused has taught no policy.
    two[0].mark("dream_check", {"refused": "no ends", "forced": False})
    assert "dreaming" not in run_comparison.table(compared(roots))


def test_of_a_dream_that_is_not_over_there_is_what_it_told(two):
    a, b = two
    for n in (1, 2):
        b.track("dream", n, {"update": n, "success": n / 8})
    b.track("s2r", 1, {"update": 1, "success": 1.0})
    b.path("metrics.jsonl").write_bytes(b.path("metrics.jsonl").read_bytes() + b"{")
    one, other = compared([a.root, b.root])["runs"]
    assert [r["success"] for r in one["curve"]] == [0.25, 0.5]
    assert [r["success"] for r in other["curve"]] == [0.125, 0.25]


def test_the_table_leaves_blank_what_is_missing(two):
    text = run_comparison.table(compared([run.root for run in two]))
    rows = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["run", "seed", "pretrain.rare_event_share", "bc", "dream"]
    assert rows[2][1:] == ["0", "0.1", "0.0 % [0, 49]", "50.0 % [15, 85]"]
    assert rows[3][1:] == ["1", "0.2", "", "100.0 % [44, 100]"]
    assert "- dream: +0.333 [" in text
    assert "(3 games)" in text


def test_the_command_prints_and_plots(two, capsys, tmp_path):
    args = ["compare", *(str(run.root) for run in two), "--to", str(tmp_path / "x.png")]
    assert cli.main(args) == 0
    assert "plot: " in capsys.readouterr().out
    assert matplotlib.image.imread(tmp_path / "x.png").std() > 0.01
    assert cli.main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["settings"]["seed"] == 0


def test_one_run_or_none_is_refused(two, tmp_path):
    for roots in ([two[0].root], [two[0].root, two[0].root / "."]):
        with pytest.raises(RunError, match="two different runs or more"):
            compared(roots)
    with pytest.raises(RunError, match="no run there"):
        compared([two[0].root, tmp_path / "none"])


def test_runs_of_the_same_settings_are_compared_too(two, tmp_path):
    same = Run(tmp_path / "c", preset("tiny"))  # nothing was played yet
    result = compared([two[0].root, same.root])
    assert result["runs"][1] == {
        "name": str(same.root),
        "settings": {},
        "policies": {},
        "curve": [],
    }
    assert result["paired"] == [{}]
    assert result["last"][1] is None
    assert "- none" in run_comparison.table(result)
    run_comparison.plot(result, tmp_path / "c.png")
