"""Plots of curves, by the one table of their names."""

import json

import matplotlib.image
import pytest

from dreamgym.evaluation.metric_names import PANELS, Line, Panel
from dreamgym.evaluation.pages import curves
from tests.dreamgym.evaluation.hostile import ATTACK

LOOP = [
    {
        "update": 1,
        "success": 0.25,
        "unscored_rollouts": 2.0,
        "rollouts": 8.0,
        "success/coin": 0.5,
    },
    {"update": 2, "unscored_rollouts": 8.0, "rollouts": 8.0, "kl": float("nan")},
    {
        "update": 3,
        "success": 0.75,
        "unscored_rollouts": 0.0,
        "rollouts": 8.0,
        "success/map": 1.0,
    },
]
FIT = [{"step": 10, "loss": 1.0, "held_out/loss": 2.0}, {"step": 20, "loss": 0.5}]


def lines(panel, **result):
    return dict(curves.points(panel, result))


def test_a_line_has_the_points_that_are_known():
    panel = Panel("t", "c", (Line("success"),))
    assert lines(panel, dream=LOOP, fit=FIT) == {"dream": ((1, 3), (0.25, 0.75), "-")}


def test_a_metric_can_be_a_share_of_another():
    panel = Panel(
        "t", "c", (Line("unscored_rollouts", "unscored", ":", per="rollouts"),)
    )
    assert lines(panel, dream=LOOP) == {
        "dream, unscored": ((1, 2, 3), (0.25, 1.0, 0.0), ":")
    }


def test_a_prefix_stands_for_all_families():
    panel = Panel("t", "c", prefix="success/")
    assert lines(panel, dream=LOOP) == {
        "dream, coin": ((1,), (0.5,), "-"),
        "dream, map": ((3,), (1.0,), "-"),
    }


def test_a_fit_is_drawn_by_step_and_what_is_no_number_is_left_out():
    assert lines(Panel("t", "c", (Line("held_out/loss"),)), fit=FIT) == {
        "fit": ((10,), (2.0,), "-")
    }
    assert lines(Panel("t", "c", (Line("kl"),)), dream=LOOP) == {}


def test_only_panels_with_a_line_become_figures():
    results = curves.figures({"dream": LOOP, "fit": FIT})
    titles = [f["title"] for f in results]
    assert titles == [
        "Success of rollouts",
        "Success by family",
        "Groups with a signal",
        "Held-out loss of fits",
    ]
    assert all(f["uri"].startswith("data:image/svg+xml;base64,") for f in results)
    assert curves.figures({}) == []


def test_names_of_families_are_no_tex_and_no_trouble():
    rows = [{"update": 1, f"success/{ATTACK}": 0.5, "success/_hidden": 0.1}]
    (result,) = curves.figures({"$x_{": rows})
    assert result["title"] == "Success by family"


def test_many_families_leave_room_for_the_plot():
    rows = [{"update": 1} | {f"success/{'long name' * 9}{i}": 0.5 for i in range(99)}]
    (result,) = curves.figures(
        {"dream": rows}
    )  # too little room is a warning: an error
    assert result["title"] == "Success by family"


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p.title)
def test_every_panel_says_what_it_shows(panel):
    assert panel.caption.endswith(".")
    assert panel.lines or panel.prefix


def test_a_run_gets_a_picture(tmp_path):
    (tmp_path / "curves").mkdir()
    for name, rows in (("dream", LOOP), ("fit", FIT), ("odd", [{"step": 1}])):
        text = "".join(json.dumps(r) + "\n" for r in rows)
        (tmp_path / f"curves/{name}.jsonl").write_text(text)
    (tmp_path / "curves/s2r").mkdir()
    (tmp_path / "curves/s2r/round-1.jsonl").write_text(json.dumps(FIT[0]) + "\n")
    names = ["dream", "fit", "odd", "s2r/round-1"]  # rounds of fine-tuning, too
    assert list(curves.read_curves(tmp_path / "curves")) == names
    curves.plot_curves(tmp_path / "curves", tmp_path / "deep/curves.png")
    assert matplotlib.image.imread(tmp_path / "deep/curves.png").std() > 0.01


def test_the_picture_of_a_run_has_every_panel(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda *args: drawn.append(args[1]))
    curves.plot_curves(tmp_path, tmp_path / "curves.png")
    assert drawn == list(PANELS)
