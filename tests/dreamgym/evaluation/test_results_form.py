"""Results with one damaged part each: the error names file, field and what is right."""

import json
from pathlib import Path

import pytest

from dreamgym.evaluation.results_form import check_results
from worldmodel.data.json_reading import RecordError

RATE = {"mean": 0.5, "count": 40, "effective": 40.0}
PAIR = {"mean": 0.1, "low": -0.1, "high": 0.3, "episodes": 8}
ROW = {
    "success": {"mean": 0.5, "low": 0.2, "high": 0.8, "episodes": 8, "unscored": 0},
    "errors": {},
    "mean_return": 0.5,
    "mean_steps": 4.0,
    "invalid_action_rate": None,
    "real_transitions": 9,
    "note": None,
}
GROUP = {"policies": {"bc": ROW, "dream": ROW}, "paired": {"dream_minus_bc": PAIR}}
RESULTS = GROUP | {
    "families": {"coin": GROUP},
    "copies": {"dream": "bc"},
    "fidelity": {
        "exact": {"predictable": RATE},
        "reward": {"recall": RATE},
        "done": {"recall": RATE | {"mean": None, "count": 0}},
    },
    "off_policy": {
        "policies": {"bc": {"action_agreement": RATE, "dream_success": PAIR}},
        "outcome_agreement": None,
    },
    "budget": {"real_steps": 9, "spent": 9},
    "rounds": {"s2r": [{"real_transitions": 9}]},
    "bound": {"total": -1.0, "span": 2.0, "sentence": "It is small."},
    "verdict": ["All is well."],
}


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("policies bc success", [], "a JSON object"),
        ("policies bc success mean", "half", "a number"),
        ("policies bc success low", None, "a number"),
        ("policies bc real_transitions", None, "a whole number"),
        ("policies bc errors", [], "a JSON object"),
        ("paired dream_minus_bc", [], "a JSON object"),
        ("paired dream_minus_bc high", None, "a number"),
        ("paired dream_minus_s2r", PAIR, "a difference of two of its policies"),
        ("families coin", [], "a JSON object"),
        ("families coin policies dream success episodes", 1.5, "a whole number"),
        ("copies dream", 1, "text"),
        ("fidelity exact", [], "a JSON object"),
        ("fidelity exact predictable mean", None, "a number"),
        ("fidelity exact predictable effective", "", "a number"),
        ("fidelity training_ends", 3, "a JSON object"),
        ("off_policy policies bc action_agreement mean", "x", "a number"),
        ("off_policy policies bc dream_success", None, "a JSON object"),
        ("budget spent", None, "a whole number"),
        ("rounds s2r", {}, "a list"),
        ("bound sentence", 3, "text"),
        ("verdict", "All is well.", "a list"),
    ],
)
def test_a_damaged_part_is_named(place, value, expected):
    check_results(RESULTS, Path("results.json"))
    results = json.loads(json.dumps(RESULTS))
    *parts, last = place.split()
    target = results
    for part in parts:
        target = target[part]
    target[last] = value
    field = place.replace(" ", ".")
    with pytest.raises(RecordError) as error:
        check_results(results, Path("results.json"))
    message = f"results.json: field {field!r}: expected {expected}"
    assert str(error.value).startswith(message)
