"""The table and the plots of a run's results."""

import io
import json

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from dreamgym.evaluation import report


def row(mean, episodes=40, unscored=0, **changes):
    low, high = (0.0, 1.0) if mean is None else (mean - 0.125, mean + 0.125)
    return {
        "success": {
            "mean": mean,
            "low": low,
            "high": high,
            "episodes": episodes,
            "unscored": unscored,
        },
        "mean_return": mean,
        "mean_steps": None if mean is None else 7.25,
        "invalid_action_rate": None if mean is None else 0.0625,
        "real_transitions": 12345,
    } | changes


def results():
    pair = {"mean": 0.25, "low": -0.05, "high": 0.55, "episodes": 40}
    group = {
        "policies": {"bc": row(0.25), "dream": row(0.5, unscored=3)},
        "paired": {"dream_minus_bc": pair},
    }
    odd = {"policies": {"bc": row(None, 0), "dream": row(0.75)}, "paired": {}}
    return group | {"families": {"coin": odd, "": group}}


def cells(text, name):
    return [
        [c.strip() for c in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {name} |")
    ]


def test_the_table_says_what_was_measured():
    text = report.table(results())
    pooled, coin, unnamed = cells(text, "dream")
    assert unnamed == pooled
    assert "**(no family)**" in text
    assert pooled == [
        "dream",
        "50.0 %",
        "37.5 % to 62.5 %",
        "40 (+3 unscored)",
        "0.50",
        "7.25",
        "6.2 %",
        "12,345",
    ]
    assert coin[1] == "75.0 %"
    assert cells(text, "bc")[1][1:7] == ["-", "0.0 % to 100.0 %", "0", "-", "-", "-"]
    assert text.index("all families") < text.index("coin")
    assert "dream minus bc: +0.250 [-0.050, +0.550]" in text
    assert "skipped" not in text


def test_what_the_intervals_leave_out_is_said_of_trained_policies():
    result = results()
    pair = result["paired"]["dream_minus_bc"]
    assert "of one training" not in report.table(result)
    result["paired"] |= {"dream_minus_warmstart": pair}
    assert "are over games, of one training" in report.table(result)
    result["paired"] |= {"dream_minus_warmstart": pair | {"episodes": 0}}
    assert "of one training" not in report.table(result)


def test_one_policy_under_several_names_is_named_once_and_not_compared():
    result = results()
    pair = result["paired"]["dream_minus_bc"]
    result["families"] = {}
    none = {"mean": 0.0, "low": -0.03, "high": 0.03, "episodes": 40}
    result["policies"] = dict.fromkeys(("bc", "warmstart", "dream"), row(0.25))
    result["paired"] = {"dream_minus_warmstart": none, "dream_minus_bc": pair}
    sentence = "warmstart and dream are one policy: "
    text = report.table(result)
    assert "dream minus warmstart: +0.000" in text
    assert sentence not in text
    text = report.table(result | {"copies": {"dream": "warmstart"}})
    assert "minus warmstart" not in text
    assert "dream minus bc: +0.250" in text
    assert text.count(sentence) == 1
    result["paired"] |= {"warmstart_minus_bc": pair}
    text = report.table(result | {"copies": {"dream": "warmstart"}})
    assert text.count(" minus bc: ") == 1
    assert report.table(result).count(" minus bc: ") == 2
    every = {"dream": "bc", "warmstart": "bc"}
    text = report.table(result | {"copies": every})
    assert "bc, warmstart and dream are one policy: " in text
    assert " minus " not in text


@pytest.mark.parametrize(("total", "shown"), [(-0.5, True), (-1.75e6, False)])
def test_a_bound_that_says_nothing_is_left_out(total, shown):
    bound = {"total": total, "span": 10.0, "sentence": "Theorem 1 leaves it."}
    text = report.table(results() | {"bound": bound})
    assert ("Theorem 1 leaves it." in text) == shown


def test_every_line_of_the_table_has_as_many_cells():
    lines = [x for x in report.table(results()).splitlines() if x.startswith("|")]
    assert len(lines) == 12
    assert {x.count("|") for x in lines} == {9}


@pytest.mark.parametrize(
    ("spent", "sentence"),
    [
        (673, "673 of a budget of 900 (227 are unspent)"),
        (858, "858 of a budget of 900"),
    ],
)
def test_an_unspent_budget_is_said(spent, sentence):
    budgeted = results() | {"budget": {"real_steps": 900, "spent": spent}}
    (line,) = [x for x in report.table(budgeted).splitlines() if "budget" in x]
    assert line.endswith(sentence)


def test_a_run_without_real_stages_says_so():
    empty = {"policies": {}, "families": {}, "paired": {}, "skipped": "skipped: why"}
    assert report.table(empty).strip() == "real stages skipped: why"


def test_rounds_of_updates_in_the_dream_say_what_was_won():
    row = {"real_transitions": 1500, "real_success": 0.25, "dreamed_success": 0.5}
    text = report.table(results() | {"rounds": {"s2r": [row | {"updates": 3}]}})
    assert (
        "s2r, round 1: 1,500 real steps of fine-tuning so far, 25.0 % of its episodes "
        "won, 50.0 % won in the dream" in text
    )


def test_each_round_of_fine_tuning_has_a_line():
    rounds = [
        {"real_transitions": 1486, "real_demonstrations": 273},
        {
            "real_transitions": 2000,
            "real_demonstrations": 280,
            "exact_predictable": 0.75,
            "dreamed_demonstrations": 12,
        },
        {
            "real_transitions": 2500,
            "exact_on_policy": 0.625,
            "exact_predictable": 0.8,
        },
    ]
    text = report.table(results() | {"rounds": {"s2r": rounds}})
    assert (
        "s2r, round 1: 1,486 real steps of fine-tuning so far, 273 tasks won in "
        "reality since the collection began\n"
    ) in text
    assert (
        "280 tasks won in reality since the collection began, 75.0 % of predictable "
        "next states right after the refit, 12 more in the dream"
    ) in text
    assert (
        "round 3: 2,500 real steps of fine-tuning so far, 62.5 % of their predictable "
        "next states right before the refit, 80.0 % of those of dev tasks after it"
    ) in text


def test_a_single_family_is_no_table_of_its_own():
    one = results()
    one["families"] = {"": one["families"][""]}
    text = report.table(one)
    assert "**all games**" in text
    assert len(cells(text, "dream")) == 1


def picture(path):
    image = matplotlib.image.imread(path)
    assert image.ndim == 3
    return image


def test_write_leaves_table_and_plots(tmp_path):
    (tmp_path / "curves").mkdir()
    fit = [{"step": 10, "loss": 1.0, "held_out/loss": 2.0}]
    # No rollout of the last update was scored, and none of `lost` at all.
    loop = [{"update": n, "success": n / 4, "kl": 0.1} for n in (1, 2)] + [
        {"update": 3}
    ]
    output = {"fit": fit, "dream": loop, "lost": loop[2:], "odd": [{"step": 1}]}
    for name, rows in output.items():
        (tmp_path / f"curves/{name}.jsonl").write_text(
            "".join(json.dumps(r) + "\n" for r in rows)
        )
    report.write(tmp_path, results())
    assert (tmp_path / "table.md").read_text() == report.table(results())
    for name in ("curves", "success"):
        assert picture(tmp_path / f"plots/{name}.png").std() > 0.01


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_the_success_plot_shows_the_numbers(tmp_path, first):
    result = results()
    result["policies"]["bc"] = row(first)
    report.plot_success(result, tmp_path / "a.png")
    report.plot_success(results(), tmp_path / "b.png")
    a, b = picture(tmp_path / "a.png"), picture(tmp_path / "b.png")
    assert a.shape == b.shape
    assert np.abs(a - b).max() > 0.1


def test_a_policy_that_learned_nothing_is_marked():
    result = results()
    result["policies"]["dream"] |= {
        "note": "learned nothing",
        "errors": {"x": 1, "y": 2},
    }
    text = report.table(result)
    assert "| dream \\* |" in text
    assert "\n- \\* dream: learned nothing" in text
    assert "dream: 3 of 43 games were not scored: y (2), x (1)" in text
    assert "\\*" not in report.table(results())


def test_no_pair_is_no_difference():
    result = results()
    none = {"mean": None, "low": None, "high": None, "episodes": 0}
    result["paired"] = {"dream_minus_bc": none}
    assert "dream minus bc: none (no game" in report.table(result)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_table_is_drawn_on_a_terminal_and_markdown_elsewhere(is_terminal):
    result, file = results(), io.StringIO()
    result["policies"] = {"[bold]x\x1b[2J": row(0.5, note="learned nothing")}
    result |= {"paired": {}, "verdict": ["A verdict."]}
    console = Console(
        file=file,
        width=120,
        force_terminal=is_terminal,
        markup=False,
        highlight=False,
        color_system=None,
    )
    report.print_table(result, console)
    text = file.getvalue()
    assert ("| policy | success |" in text) == (not is_terminal)
    assert "[bold]x" in text  # no markup of rich's
    for words in ("37.5 % to 62.5 %", "12,345", "learned nothing", "A verdict."):
        assert words in text
    assert "\x1b[2J" not in text


def test_names_that_look_like_formulas_are_names(tmp_path):
    """A family may be called so; half a formula would end a run at its very end."""
    named = results()
    named["families"] = dict.fromkeys(("a$_$", "$x$"), named["families"]["coin"])
    report.plot_success(named, tmp_path / "success.png")
    assert (tmp_path / "success.png").stat().st_size > 1000


def test_returns_of_any_size_fit_a_column():
    result = results()
    for value, text in ((-1e300, "-1e+300"), (12.5, "12.50"), (1e7, "1e+07")):
        result["policies"]["bc"]["mean_return"] = value
        assert f"| {text} |" in report.table(result)
