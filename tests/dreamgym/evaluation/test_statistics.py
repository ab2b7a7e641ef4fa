"""Intervals: Wilson against published values, the paired bootstrap against theory."""

import math

import numpy as np
import pytest

from dreamgym.evaluation.statistics import (
    bonett_price,
    difference_text,
    mean_of_games,
    mean_of_worst,
    paired_by_game,
    paired_difference,
    pareto_front,
    rate,
    rate_difference,
    success_change,
    wilson,
    worst_of_games,
)


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(hits, count, low, high):
    np.testing.assert_allclose(wilson(hits, count), (low, high), atol=5.1e-5)


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), 873-890, table II, method 10
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 20), 0.6791, 1.0000),
    ],
)
def test_a_difference_of_rates_has_the_published_intervals(a, b, low, high):
    actual = rate_difference(a[0] / a[1], b[0] / b[1], (a[1], b[1]))
    np.testing.assert_allclose(actual, (low, high), atol=5.1e-5)


def test_wilson_by_hand():
    # 5 of 10, z = 2: (0.5 + 0.2 +- 2 sqrt(0.025 + 0.01)) / 1.4
    half = 2 * np.sqrt(0.035) / 1.4
    np.testing.assert_allclose(
        wilson(5, 10, z=2.0), (0.5 - half, 0.5 + half), rtol=1e-9
    )


def test_wilson_is_symmetric_and_narrows_with_the_count():
    low, high = wilson(3, 40)
    np.testing.assert_allclose(wilson(37, 40), (1 - high, 1 - low), rtol=1e-9)
    assert high - low > np.diff(wilson(30, 400))[0]
    assert low < 3 / 40 < high


def test_wilson_at_the_edges_stays_a_rate():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    assert 0.0 < wilson(5, 5)[0] < 1.0
    for hits, count in ((6, 5), (-1, 5)):
        with pytest.raises(ValueError, match=rf"\[0, {count}\], got {hits}"):
            wilson(hits, count)


@pytest.mark.parametrize(
    ("games", "alike"),
    [
        ({"a": [1, 1], "b": [0, 0]}, (1, 2)),  # the second seed says nothing new
        ({"a": [1, 0], "b": [0, 1]}, (2, 4)),  # as good as four games
        ({"a": [True], "b": [False], "c": [False]}, (1, 3)),
        ({"a": [1, 1, 1], "b": [1, 1, 1]}, (2, 2)),
        ({"a": [0.0, 0.0], "b": []}, (0, 1)),
    ],
)
def test_a_rate_counts_games_and_not_seeds(games, alike):
    result = rate(games)
    low, high = wilson(*alike)
    assert result["mean"] == alike[0] / alike[1]
    assert result["count"] == sum(map(len, games.values()))
    np.testing.assert_allclose((result["low"], result["high"]), (low, high))
    assert (rate({})["low"], rate({})["high"]) == (0.0, 1.0)


def test_the_interval_of_several_seeds_holds_the_truth_as_often_as_it_says():
    """Games of their own difficulty, three seeds each: all as one is too narrow."""
    rng = np.random.default_rng(0)
    held, naive = 0, 0
    for _ in range(400):
        chances = rng.beta(0.5, 0.5, 60)
        won = rng.random((60, 3)) < chances[:, None]
        result = rate({str(i): row.tolist() for i, row in enumerate(won)})
        low, high = wilson(int(won.sum()), 180)
        held += result["low"] < 0.5 < result["high"]
        naive += low < 0.5 < high
    assert held / 400 > 0.92
    assert naive / 400 < 0.9


def pairs(n=600, seed=0):
    """Outcomes of one hard-or-easy game each: a wins a bit more often than b."""
    rng = np.random.default_rng(seed)
    easy = rng.random(n)
    a, b = (easy < 0.6).astype(float), (easy < 0.5).astype(float)
    flips = rng.random((2, n)) < 0.02
    return np.where(flips[0], 1 - a, a), np.where(flips[1], 1 - b, b)


def test_the_interval_is_that_of_the_mean_of_differences():
    a, b = pairs()
    got = paired_difference(list(a), list(b), seed=1)
    d = a - b
    half = 1.96 * d.std() / np.sqrt(len(d))
    assert got["mean"] == pytest.approx(d.mean())
    assert got["episodes"] == len(d)
    np.testing.assert_allclose(
        (got["low"], got["high"]), (d.mean() - half, d.mean() + half), atol=0.1 * half
    )
    assert got["low"] > 0  # the first is the better one


def wins_and_losses(more, fewer, count):
    """Return differences: games that the first alone won, the second alone, others."""
    return np.repeat([1.0, -1.0, 0.0], [more, fewer, count - more - fewer])


def test_the_interval_of_wins_and_losses_by_hand():
    """b = 5 and c = 1 of 20 games: p = 6/22, q = 2/22."""
    a = [1.0] * 5 + [0.0] * 1 + [1.0] * 10 + [0.0] * 4
    b = [0.0] * 5 + [1.0] * 1 + [1.0] * 10 + [0.0] * 4
    got = paired_difference(a, b, seed=0, of_wins=True)
    middle = 4 / 22
    half = 1.959964 * np.sqrt((8 / 22 - middle**2) / 22)
    assert got["mean"] == pytest.approx(0.2)
    assert got["low"] == pytest.approx(middle - half)
    assert got["high"] == pytest.approx(middle + half)
    # The example of ci.prop.ps in the R package statpsych.
    published = bonett_price(wins_and_losses(26, 4, 48))
    np.testing.assert_allclose(published, (0.2548067, 0.6251933), atol=1e-7)
    # Eight games that differ in nothing do not show that nothing differs.
    same = paired_difference([1.0, 0.0] * 4, [1.0, 0.0] * 4, seed=0, of_wins=True)
    assert same["low"] == -same["high"]
    assert same["high"] > 0.2


@pytest.mark.parametrize("games", [4, 8, 16, 64])
def test_the_interval_of_few_games_holds_the_difference_as_often_as_it_says(games):
    rng, p, q = np.random.default_rng(games), 0.3, 0.05
    held = bootstrapped = 0
    for _ in range(300):
        more, fewer, same = rng.multinomial(games, [p, q, 1 - p - q])
        d = np.repeat([1.0, -1.0, 0.0], [more, fewer, same])
        low, high = bonett_price(d)
        held += low <= p - q <= high
        means = d[rng.integers(0, games, (400, games))].mean(1)
        low, high = np.percentile(means, [2.5, 97.5])
        bootstrapped += low <= p - q <= high
    assert held / 300 > 0.92
    if games == 4:  # the control: why it is not a bootstrap
        assert bootstrapped / 300 < 0.85


def test_swapping_the_two_turns_the_sign():
    a, b = pairs()
    one = paired_difference(list(a), list(b), seed=1)
    two = paired_difference(list(b), list(a), seed=1)
    np.testing.assert_allclose(
        (two["mean"], two["low"], two["high"]),
        (-one["mean"], -one["high"], -one["low"]),
        atol=2e-3,
    )


def test_pairing_over_the_same_games_is_what_narrows_the_interval():
    a, b = pairs()
    paired = paired_difference(list(a), list(b), seed=0)
    b = np.random.default_rng(0).permutation(b)
    apart = paired_difference(list(a), list(b), seed=0)
    assert apart["mean"] == pytest.approx(paired["mean"])
    assert apart["high"] - apart["low"] > 1.5 * (paired["high"] - paired["low"])


@pytest.mark.parametrize(("games", "seeds"), [(4, 3), (8, 3), (16, 3), (16, 2)])
def test_equal_policies_over_several_seeds_rarely_differ(games, seeds):
    """Means over seeds are no whole numbers, and few games are few."""
    rng, excluded = np.random.default_rng(0), 0
    for _ in range(400):
        easy = rng.random(games)
        won = [rng.random((seeds, games)) < easy for _ in range(2)]
        rows = [
            (f"g{g}", float(won[0][s, g]), float(won[1][s, g]))
            for s in range(seeds)
            for g in range(games)
        ]
        interval = paired_by_game(rows, seed=0, of_wins=True)
        excluded += not interval["low"] <= 0 <= interval["high"]
    assert excluded / 400 < 0.06


def test_differences_of_costs_are_bootstraps_whatever_their_size():
    """Two more games would be won or lost; what they would cost nobody knows."""
    for size in (0.001, 0.5, 2.5):
        got = paired_difference([0.25 + size] * 9, [0.25] * 9, seed=0)
        for name in ("mean", "low", "high"):
            assert got[name] == pytest.approx(size)


def test_draws_may_be_few_and_the_seed_decides():
    a, b = np.random.default_rng(2).normal(size=(2, 40))
    runs = [paired_difference(list(a), list(b), seed=s, draws=300) for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_nothing_says_nothing_and_unequal_lengths_are_refused():
    got = paired_difference([], [], seed=0)
    assert (got["mean"], got["low"], got["high"], got["episodes"]) == (
        None,
        None,
        None,
        0,
    )
    assert difference_text(got) == "none (no game was scored for both)"
    assert difference_text({"mean": 0.1, "low": -0.2, "high": 0.4}) == (
        "+0.100 [-0.200, +0.400]"
    )
    with pytest.raises(ValueError, match="one length, got 2, 1"):
        paired_difference([1.0, 0.0], [1.0], seed=0)


def test_a_change_of_success_is_said_in_shares_and_lost_families():
    assert success_change(0.55, 0.5, ["box"]) == (
        "55 % won after it, 50 % before (families lost: box)"
    )
    assert success_change(None, 0.5) == ("an unknown share won after it, 50 % before")
    assert success_change(None, None).startswith("none could be scored, neither")


def test_the_front_by_hand():
    # (1, 3) and (3, 1) and (2, 2) are nowhere both worse; (1, 2) is worse than (2, 2),
    # and of two equal points both stand.
    points = np.array([[1, 3], [3, 1], [2, 2], [1, 2], [2, 2], [3, 0.5]], float)
    front = pareto_front(points)
    assert front.tolist() == [True, True, True, False, True, False]


def test_the_front_is_that_of_a_plain_loop_and_never_empty():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        points = rng.integers(0, 4, (size, 3)).astype(float)
        front = pareto_front(points)
        for i, point in enumerate(points):
            dominated = any(
                (other >= point).all() and (other > point).any() for other in points
            )
            assert front[i] == (not dominated)
        assert front.any()
        assert (pareto_front(points * [2, 5, 1]) == front).all()


def test_a_mean_of_games_is_a_share_where_each_value_is_0_or_1():
    nothing = mean_of_games({f"g{i}": [0.0] for i in range(20)}, seed=0)
    assert (nothing["mean"], nothing["low"]) == (0.0, 0.0)
    assert nothing["high"] == pytest.approx(wilson(0, 20)[1])  # a bootstrap says 0
    amounts = mean_of_games({"a": [3.0, 1.0], "b": [0.0]}, seed=0)
    assert amounts["mean"] == pytest.approx(4 / 3)
    assert (amounts["low"], amounts["high"]) == (0.0, 2.0)  # twice b, twice a


@pytest.mark.parametrize("count", [1, 7, 10, 25, 60, 100, 320])
def test_the_interval_of_none_and_of_all_holds_the_rate(count):
    assert wilson(0, count)[0] == 0.0
    assert wilson(count, count)[1] == 1.0
    for hits in range(count + 1):
        low, high = wilson(hits, count)
        assert low <= hits / count <= high


def test_the_mean_of_the_worst_by_hand():
    assert mean_of_worst([1.0, 0.0, 3.0, 2.0], 1.0) == 1.5
    assert mean_of_worst([1.0, 0.0, 3.0, 2.0], 0.5) == 2.5
    assert mean_of_worst([1.0, 0.0, 3.0, 2.0], 0.25) == 3.0
    # 1.5 of four games: all of the worst and half of the next.
    assert mean_of_worst([1.0, 0.0, 3.0, 2.0], 0.375) == pytest.approx(4 / 1.5)
    assert mean_of_worst([2.0], 0.1) == 2.0


def test_the_worst_games_of_few_costs_have_the_interval_of_their_share():
    games = {str(i): [float(i < 3)] for i in range(80)}
    row = worst_of_games(games, 0.2, seed=0)
    low, high = wilson(3, 80)
    assert row["mean"] == pytest.approx(3 / 16)
    assert (row["low"], row["high"]) == pytest.approx((low / 0.2, high / 0.2))
    assert (row["share"], row["count"]) == (0.2, 80.0)
    all_cost = worst_of_games({"a": [1], "b": [1]}, 0.5, seed=0)
    assert (all_cost["mean"], all_cost["high"]) == (1.0, 1.0)


def test_the_interval_of_the_worst_games_covers_their_mean():
    """Of exponential costs: the worst fifth has the mean 1 + ln 5."""
    rng, covered = np.random.default_rng(0), 0
    for i in range(60):
        games = {str(k): [x] for k, x in enumerate(rng.exponential(size=100))}
        row = worst_of_games(games, 0.2, seed=i)
        assert row["low"] <= row["mean"] <= row["high"]
        covered += row["low"] <= 1 + math.log(5) <= row["high"]
    assert covered >= 52


def test_a_lost_family_without_a_name_is_named():
    assert success_change(0.1, 0.9, [""]).endswith("(families lost: the only one)")
