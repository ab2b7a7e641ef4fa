"""Alarms and remedies, by hand."""

import pytest

from dreamgym.training.config import MonitorConfig
from dreamgym.training.monitor import (
    LossWeights,
    alarms,
    apply_remedies,
    best_row,
    loss_weights,
    lost_families,
    real_eval_due,
)

CALM = {
    "entropy": 0.5,
    "tokens_per_turn": 4.0,
    "invalid_action_share": 0.1,
    "update_kl": 0.01,
    "success": 0.4,
}
ALL = MonitorConfig(
    min_entropy=0.1,
    max_length_ratio=2.0,
    max_invalid_share=0.5,
    max_kl_ratio=5.0,
    max_real_drop=0.1,
    real_eval_every=1,
)


def test_a_calm_update_raises_no_alarm_and_nobody_looks_without_being_asked():
    assert alarms([CALM] * 4, CALM, ALL) == []
    wild = {
        "entropy": 0.0,
        "tokens_per_turn": 99.0,
        "invalid_action_share": 1.0,
        "update_kl": 9.0,
    }
    assert alarms([CALM] * 4, wild, MonitorConfig()) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("min_entropy", {"entropy": 0.09}),
        ("max_length_ratio", {"tokens_per_turn": 8.1}),
        ("max_invalid_share", {"invalid_action_share": 0.51}),
        ("max_kl_ratio", {"update_kl": 0.051}),
    ],
)
def test_each_sign_has_its_limit(name, change):
    assert alarms([CALM] * 4, CALM | change, ALL) == [name]
    at = {
        k: round(v - 0.11 if k == "tokens_per_turn" else v, 4)
        for k, v in change.items()
    }
    near = {
        "min_entropy": {"entropy": 0.1},
        "max_invalid_share": {"invalid_action_share": 0.5},
        "max_kl_ratio": {"update_kl": 0.05},
        "max_length_ratio": at,
    }[name]
    assert alarms([CALM] * 4, CALM | near, ALL) == []


def test_a_flag_of_the_lessons_is_an_alarm_that_can_be_switched_off():
    row = CALM | {"flags/arguments": 1.0, "flags/success": 1.0, "skills/success": 0.1}
    assert alarms([CALM] * 4, row, MonitorConfig()) == [
        "skill_collapse: arguments",
        "skill_collapse: success",
    ]
    assert alarms([CALM] * 4, row, MonitorConfig(skill_collapse=False)) == []


def test_refusals_that_nobody_tells_are_steps_that_change_nothing():
    output = {k: v for k, v in CALM.items() if k != "invalid_action_share"}
    assert alarms([], output | {"unchanged_state_share": 0.6}, ALL) == [
        "max_invalid_share"
    ]
    assert alarms([], CALM | {"unchanged_state_share": 0.6}, ALL) == []


def test_a_jump_needs_to_know_what_is_usual():
    far = CALM | {"update_kl": 1.0}
    assert alarms([CALM] * 2, far, ALL) == []
    assert alarms([CALM] * 3, far, ALL) == ["max_kl_ratio"]
    # Updates that learnt nothing are not usual ones.
    assert alarms([CALM, {"success": 1.0}, {"update_kl": 0.0}], far, ALL) == []


def test_the_dream_rises_while_the_real_games_fall():
    def rows(*pairs):
        return [CALM | {"success": d, "real_success": r} for d, r in pairs]

    *before, row = rows((0.3, 0.40), (0.4, 0.45), (0.6, 0.30))
    assert alarms(before, row, ALL) == [
        "max_real_drop"
    ]  # 0.45 to 0.30, while 0.35 to 0.43
    assert alarms(before, row | {"real_success": 0.36}, ALL) == []  # it fell by less
    both = rows((0.6, 0.45), (0.1, 0.2))
    assert alarms(both[:1], both[1], ALL) == []  # the dream fell, too
    unplayed = {k: v for k, v in row.items() if k != "real_success"}
    assert alarms(before, unplayed, ALL) == []
    # What was undone is not what it fell from.
    (undone,) = rows((0.5, 0.90))
    calm = row | {"real_success": 0.40}
    assert alarms([*before, undone | {"reverted": 1.0}], calm, ALL) == []
    assert alarms([*before, undone], calm, ALL) == ["max_real_drop"]
    # An update without a scored rollout tells nothing: 0.35 stays 0.35.
    blind = [{k: v for k, v in r.items() if k != "success"} for r in (*before, row)]
    assert alarms(before, blind[-1], ALL) == []
    assert alarms(blind[:-1], row, ALL) == []


def test_remedies_double_what_is_there_and_begin_small():
    start = LossWeights(kl=0.02)
    once = apply_remedies(start, ("entropy", "kl", "supervised", "rewards"))
    assert once == LossWeights(kl=0.04, entropy=1e-3, auxiliary=0.1, dense_rewards=0.5)
    assert apply_remedies(once, ("entropy",)).entropy == pytest.approx(2e-3)
    assert apply_remedies(start, ()) == start


def test_weights_go_on_from_the_last_row():
    start = LossWeights(kl=0.02, auxiliary=0.3)
    assert loss_weights({}, start) == start
    assert loss_weights({"kl_weight": 0.5, "dense_weight": 0.25}, start) == LossWeights(
        kl=0.5, auxiliary=0.3, dense_rewards=0.25
    )


def test_probes_come_at_their_time():
    config = MonitorConfig(real_eval_every=3)
    due = [n for n in range(1, 12) if real_eval_due(config, n, 11)]
    assert due == [3, 6, 9, 11]  # and what training ends with
    assert not real_eval_due(MonitorConfig(), 3, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_entropy": -1.0}, "min_entropy must be >= 0, got -1.0"),
        ({"response": "panic"}, "response must be one of .*'panic'"),
        ({"remedies": ("tea",)}, "remedies must be among .*tea"),
        ({"max_real_drop": 0.1}, "real_eval_every must be >= 1"),
        ({"patience": 0}, "patience must be >= 1"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        MonitorConfig(**settings)


def test_the_best_update_is_the_first_of_equals_that_stands():
    rows = [
        {"success": 1.0},
        {"real_success": 0.2},
        {"real_success": 0.4},
        {"real_success": 0.4},
    ]
    assert best_row(rows) == 2
    assert best_row([*rows, {"real_success": 0.9, "reverted": 1.0}]) == 2
    assert best_row(rows[:1]) is None
    assert best_row([*rows, {"real_success": 0.9, "destroyed/box": 1.0}]) == 2


def test_where_nobody_wins_the_best_update_earns_most():
    returns = (0.5, 0.75, 0.25, 0.75)
    rows = [{"real_success": 0.0, "real_return": x} for x in returns]
    assert best_row(rows) == 1
    assert best_row([*rows, {"real_success": 0.1, "real_return": -1.0}]) == 4


def family_row(coin, box, n=64.0):
    return {
        "success/coin": coin,
        "scored/coin": n,
        "success/box": box,
        "scored/box": n,
        "success": (coin + box) / 2,
    }


def test_a_family_that_is_forgotten_is_named_though_the_mean_stands():
    """As a run did that won 0.60 and 0.24, then 0.73 and 0.00: alike over both."""
    before, after = [family_row(0.6, 0.3)] * 4, [family_row(0.8, 0.05)] * 4
    assert lost_families([*before, *after], 0.15) == ["box"]
    assert alarms([*before, *after[1:]], after[0], MonitorConfig()) == [
        "max_family_drop: box"
    ]
    assert (
        alarms([*before, *after[1:]], after[0], MonitorConfig(max_family_drop=0.0))
        == []
    )
    # Earlier ones count as well, whatever came between.
    between = [family_row(0.6, 0.1)] * 4
    assert lost_families([*before, *between, *after], 0.15) == ["box"]


def test_a_fall_that_chance_explains_is_none():
    before, after = [family_row(0.6, 0.3, 4.0)] * 4, [family_row(0.6, 0.1, 4.0)] * 4
    assert lost_families([*before, *after], 0.15) == []  # 16 rollouts each: 1.4 errors
    many = [family_row(0.6, 0.3, 400.0)] * 4, [family_row(0.6, 0.2, 400.0)] * 4
    assert lost_families([*many[0], *many[1]], 0.15) == []  # sure, but small
    assert lost_families([*many[0], *many[1]], 0.05) == ["box"]
    assert lost_families([family_row(0.9, 0.9)] * 4 + [family_row(0, 0)] * 3, 0.1) == []


def test_updates_that_were_undone_lose_no_skill():
    before = [family_row(0.6, 0.3)] * 4
    undone = [family_row(0.6, 0.0) | {"reverted": 1.0}] * 4
    assert lost_families([*before, *undone], 0.15) == []
