"""Which policy leaves a stage: by hand, on metrics of real dev games."""

import pytest

from dreamgym.training.selection import (
    destroyed_families,
    is_better,
    is_better_in_dream,
)


def row(success, earned=0.0, **families):
    """Metrics of dev games; families as (success, games)."""
    out = {"real_success": success, "real_return": earned}
    for name, (rate, games) in families.items():
        out |= {f"real_success/{name}": rate, f"real_games/{name}": games}
    return out


@pytest.mark.parametrize(
    ("after", "before", "kept"),
    [
        (row(0.5), row(0.4), True),
        (row(0.4), row(0.5), False),
        (row(0.5, -3.0), row(0.5, -2.0), False),  # as often, but more slowly
        (row(0.5, -2.0), row(0.5, -3.0), True),  # as often, and faster
        (row(0.5, -2.0), row(0.5, -2.0), False),  # a tie keeps the start
        (row(0.0), row(0.0), False),
        ({}, row(0.0), False),  # nobody scored it
        (row(0.0), {}, True),
    ],
)
def test_only_what_wins_more_or_as_often_and_earns_more_leaves(after, before, kept):
    assert is_better(after, before) is kept


def test_a_policy_that_destroyed_a_family_does_not_leave_though_it_wins_more():
    before = row(0.5, coin=(0.5, 16), box=(0.5, 16))
    after = row(0.55, coin=(1.0, 16), box=(0.1, 16))
    # 0.5 - 0.1 = 0.4; pooled 0.3, so a standard error of sqrt(0.21 / 8) = 0.162: 2.5.
    assert destroyed_families(after, before) == ["box"]
    assert not is_better(after, before)
    # Of 4 games each the same fall is 1.2 standard errors: no evidence.
    few = row(0.55, coin=(1.0, 4), box=(0.1, 4))
    assert destroyed_families(few, row(0.5, coin=(0.5, 4), box=(0.5, 4))) == []
    # A fall of 0.1 is none of FAMILY_DROP, however many games show it.
    many = row(0.5, box=(0.4, 10_000))
    assert destroyed_families(many, row(0.5, box=(0.5, 10_000))) == []


def test_the_best_of_several_checkpoints_must_win_more_by_a_standard_error():
    before = row(0.5, -2.0, coin=(0.4, 32), box=(0.6, 32))
    # 64 games each, pooled 0.53: a standard error of sqrt(0.249 / 32) = 0.0882.
    better, much_better = (row(x, -1.0, coin=(x, 64)) for x in (0.56, 0.62))
    assert is_better(better, before)
    assert not is_better(better, before, standard_errors=1.0)
    assert is_better(much_better, before, standard_errors=1.0)
    assert not is_better(much_better, before, standard_errors=2.0)
    as_often = row(0.5, -1.0, coin=(0.5, 64))  # and faster, which may be chance, too
    assert not is_better(as_often, before, standard_errors=1.0)
    assert not is_better(
        row(1.0, coin=(1.0, 4)), row(1.0, coin=(1.0, 4)), standard_errors=1.0
    )


def test_where_nobody_wins_the_return_must_rise_by_a_standard_error():
    """By hand: errors of 0.3 and 0.4 are 0.5 together."""
    before = row(0.0, 1.0, coin=(0.0, 16)) | {"real_return_error": 0.3}
    for earned, better in ((1.4, False), (1.6, True)):
        after = row(0.0, earned, coin=(0.0, 16)) | {"real_return_error": 0.4}
        assert is_better(after, before, standard_errors=1.0) is better
        assert is_better(after, before)
    won_less = row(0.0, 9.0, coin=(0.0, 16)) | {"real_return_error": 0.4}
    won = row(0.25, 1.0, coin=(0.25, 16)) | {"real_return_error": 0.3}
    assert not is_better(won_less, won, standard_errors=1.0)


def test_dreamed_games_must_be_enough_and_won_more_often_by_a_margin():
    before = row(0.5, coin=(0.5, 16))
    for success, better in ((0.5, False), (0.54, False), (0.56, True)):
        after = row(success, coin=(success, 16))
        assert is_better_in_dream(after, before, margin=0.05) is better
    # Two games, or a start that nobody scored, decide nothing.
    two = row(0.0, coin=(0.0, 2)), row(1.0, coin=(1.0, 2))
    assert not is_better_in_dream(two[1], two[0], margin=0.05)
    assert not is_better_in_dream(row(1.0, coin=(1.0, 16)), {}, margin=0.05)
    assert not is_better_in_dream({}, before, margin=0.05)
    # More wins in the one family do not pay for the other one.
    both = row(0.5, coin=(0.5, 16), box=(0.5, 16))
    lost = row(0.6, coin=(1.0, 20), box=(0.1, 16))
    assert not is_better_in_dream(lost, both, margin=0.05)
