"""Tables of grids: pooled rates, differences by game, blanks."""

import numpy as np
import pytest

from dreamgym.evaluation.pages import study_table
from dreamgym.evaluation.pages.study_table import Row
from dreamgym.evaluation.statistics import bonett_price, wilson, wilson_of

COLUMNS = {
    "trained": "test/dream",
    "coin": "test/dream/coin",
    "gain": "test/dream - test/bc",
    "exact": "fidelity.exact.all",
    "seconds": "s.x",
}


def cell(seed, dream, bc, **values):
    """A cell of 4 games, two of each family; text as '10-1': won, lost, not scored."""
    won = {"1": True, "0": False, "-": None}
    games = {
        f"g{i}": {
            "family": "coin" if i < 2 else "map",
            "success": {"dream": won[d], "bc": won[b]},
        }
        for i, (d, b) in enumerate(zip(dream, bc, strict=True))
    }
    return {"settings": {"seed": seed}, "values": values, "games": games}


def shown(row, other=None):
    pairs = [] if other is None else [(row, other)]
    lines = study_table.table(["variant"], [row], COLUMNS, pairs).splitlines()
    head, values = (
        [part.strip() for part in lines[i].strip("|").split("|")] for i in (0, 2)
    )
    return dict(zip(head, values, strict=True)), lines[3:]


def test_rates_are_pooled_over_seeds_with_an_interval():
    """By hand: 3 of 4 and 1 of 3 scored are 4 of 7; of coin 2 of 2 and 1 of 2."""
    row = Row(("all",), 3, [cell(0, "1110", "0110"), cell(1, "10-0", "0000")])
    output, below = shown(row)
    # By game 2 of 2, 1 of 2, 1 of 1, 0 of 2: less 4/7 of their counts 6/7, -1/7, 3/7
    # and -8/7, squares 110/49; as far apart as 12/7 x 1.3095 independent ones.
    low, high = wilson_of(4 / 7, 7 / (110 / 84))
    assert output["seeds"] == "2 of 3"
    assert output["trained"] == f"0.571 [{low:.3f}, {high:.3f}] (0.333 to 0.750)"
    low, high = wilson(3, 4)  # 2 of 2 and 1 of 2: no further apart than four games
    assert output["coin"] == f"0.750 [{low:.3f}, {high:.3f}] (0.500 to 1.000)"
    assert output["gain"].startswith("+0.250 [")  # 1 in game 0 of 4, twice
    assert output["gain"].endswith("(+0.250 to +0.333)")
    assert ["column 'exact'", "column 'seconds'"] == [b.split(":")[0] for b in below]


def test_trainings_are_pooled_like_seeds_and_their_deviation_is_printed():
    """By hand: 1, 1/2 and 3/4 deviate by 1/4, and 4, 2 and 3 by 1."""
    cells = [
        cell(0, dream, "0000", seconds=x)
        for dream, x in (("1111", 4), ("1100", 2), ("1110", 3))
    ]
    for number, row in enumerate(cells):
        row["settings"]["train.seed"] = number
    output, _ = shown(Row(("all",), 5, cells))
    assert output["seeds"] == "3 of 5"
    assert output["trained"].endswith("(0.500 to 1.000, sd 0.25)")
    assert output["seconds"] == "3 (2 to 4, sd 1)"
    other = Row(("other",), 5, [{**row, "settings": {"seed": 0}} for row in cells[:1]])
    _, below = shown(Row(("all",), 5, cells), other)
    assert not [line for line in below if line.startswith("- trained")]  # none to pair


def test_rates_of_other_files_are_pooled_by_their_counts_and_numbers_by_range():
    cells = [
        cell(0, "----", "----", exact={"mean": 0.5, "count": 10}, seconds=2.0),
        cell(1, "----", "----", exact={"mean": 1.0, "count": 30}, seconds=4),
        cell(2, "----", "----", exact={"mean": None, "count": 0}, seconds=None),
    ]
    output, _ = shown(Row(("all",), 3, cells))
    low, high = wilson_of(35 / 40, 30)  # the seeds score the same tasks
    assert output["exact"] == f"0.875 [{low:.3f}, {high:.3f}] (0.500 to 1.000)"
    assert output["seconds"] == "3 (2 to 4)"
    assert output["trained"] == ""
    none, _ = shown(Row(("all",), 1, cells[2:]))
    assert none["exact"] == ""  # no case, in no seed


def test_one_seed_has_no_range_and_text_stays_text():
    output, _ = shown(Row(("all",), 1, [cell(0, "1111", "1111", seconds="fast")]))
    assert output["trained"] == "1.000 [0.510, 1.000]"
    low, high = bonett_price(np.zeros(4))
    assert output["gain"] == f"+0.000 [{low:+.3f}, {high:+.3f}]"
    assert output["seconds"] == "fast"


def test_differences_are_of_the_same_seeds_and_games():
    """Seed 2 of the one and seed 1 of the other have no partner, nor has game 3."""
    row = Row(("a",), 2, [cell(0, "1111", "0000"), cell(2, "0000", "0000")])
    other = Row(("b",), 2, [cell(0, "001-", "0000"), cell(1, "1111", "0000")])
    _, below = shown(row, other)
    at = below.index("a minus b, same seeds, same games:")
    assert below[at + 1].startswith("- trained: +0.667 [")
    assert below[at + 1].endswith("3 games")
    low, _ = bonett_price(np.ones(2))
    assert below[at + 2] == f"- coin: +1.000 [{low:+.3f}, +1.000], 2 games"
    assert shown(row, Row(("c",), 2, []))[1] == below[: at - 1]


def test_policies_that_both_share_differ_in_nothing():
    """Whatever interval equal games have."""
    cells = [cell(0, "1100", "0100")]
    _, below = shown(Row(("a",), 1, cells), Row(("b",), 1, cells))
    assert not [line for line in below if line.startswith("- ")]


def costly(seed, costs, calls):
    """A cell of one game for each cost; calls are hits and count by game."""
    games = {
        f"g{i}": {
            "family": "f",
            "success": {"dream": True},
            "cost": {"dream": {"harm": [cost, 1.0]}, "bc": {"harm": [1.0, 1.0]}},
            "tools": {"dream": {"missed_calls": list(call)}},
        }
        for i, (cost, call) in enumerate(zip(costs, calls, strict=True))
    }
    return {"settings": {"seed": seed}, "values": {}, "games": games}


def test_costs_and_tool_use_are_pooled_by_game_as_success_is():
    cells = [
        costly(0, [0, 0, 1], [(1, 1), (0, 1), (0, 0)]),
        costly(1, [0, 0, 0], [(1, 1), (0, 2), (0, 0)]),
    ]
    row = Row(("a",), 2, cells)
    harm = study_table.number(row, "harm", "cost/dream/harm")
    assert (harm["mean"], harm["lowest"], harm["highest"]) == (1 / 6, 0.0, 1 / 3)
    assert 0 < harm["low"] < 1 / 6 < harm["high"] < 1
    missed = study_table.number(row, "missed", "tools/dream/missed_calls")
    assert (missed["mean"], missed["count"]) == (2 / 5, 5)  # no call in game 2
    assert (missed["lowest"], missed["highest"]) == (1 / 3, 1 / 2)
    less = study_table.number(row, "less", "cost/dream/harm - cost/bc/harm")
    assert less["mean"] == pytest.approx(-5 / 6)
    large = Row(("b",), 1, [costly(0, [4.0, 2.0, 0.0], [(0, 1)] * 3)])
    assert study_table.number(large, "harm", "cost/dream/harm")["mean"] == 2.0
    columns = {"harm": "cost/dream/harm", "missed": "tools/dream/missed_calls"}
    text = study_table.table(["variant"], [large, row], columns, [(large, row)])
    # Seed 0 alone is in both: 4, 2 and -1 more cost; of two games with calls one.
    assert "- harm: +1.667 [" in text
    assert "- missed: -0.500 [" in text


def test_a_cell_without_these_numbers_is_blank():
    row = Row(("a",), 1, [cell(0, "1100", "0100")])  # of an older version
    assert study_table.number(row, "harm", "cost/dream/harm") is None
    assert study_table.number(row, "x", "tools/dream/missed_calls") is None


def test_games_played_by_several_seeds_are_one_draw():
    """The interval of a hundred copies of two games is that of the two."""
    copies = [cell(seed, "10--", "00--") for seed in range(100)]
    result = study_table.number(Row(("a",), 100, copies), "gain", COLUMNS["gain"])
    expected = (0.5, *bonett_price(np.array([1.0, 0.0])))
    assert (result["mean"], result["low"], result["high"]) == expected
    rng = np.random.default_rng(0)
    many = ["".join(rng.choice(["0", "1"], 4)) for _ in range(100)]
    cells = [cell(s, text, "0000") for s, text in enumerate(many)]
    pooled = study_table.number(Row(("a",), 100, cells), "trained", "test/dream")
    assert pooled["count"] == 400
    assert pooled["mean"] == pytest.approx(np.mean([c == "1" for t in many for c in t]))


@pytest.mark.parametrize(
    "path",
    [
        "test/",
        "test/a - b",
        "test/a/x - test/b",
        "test/a - test/b - test/c",
        "test/a/b/c",
        "test/a-test/b - fidelity.x",
        "cost/a",
        "tools/a/",
        "cost/a/x - tools/b/x",
        "cost/a/x - cost/b/y",
        "cost/a/x - test/b",
    ],
)
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(ValueError, match=r"expected (test|cost|tools)/POLICY"):
        study_table.GameColumn.of(path)


def test_the_figure_has_what_has_intervals(tmp_path):
    rows = [
        Row(("a",), 1, [cell(0, "1100", "0100")]),
        Row(("b",), 1, []),
    ]
    assert study_table.plot(rows, COLUMNS, tmp_path / "s.png")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert not study_table.plot(rows[1:], COLUMNS, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
