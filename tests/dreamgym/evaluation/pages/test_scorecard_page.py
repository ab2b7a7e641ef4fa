"""The scorecard as a table and as a page."""

import matplotlib.image
import numpy as np

from dreamgym.evaluation.leading_numbers import rate_text, verdict
from dreamgym.evaluation.pages import scorecard_page
from tests import helpers
from worldmodel import fidelity
from worldmodel.data.outcomes import outcome_of
from worldmodel.experience.base import Prediction


class Half:
    """Right wherever the lamp is still off."""

    def predict(self, queries):
        truth = {(t.state, t.action): t for t in helpers.lamp_and_door().transitions}
        out = []
        for i, q in enumerate(queries):
            t = truth.get((q.state, q.action), helpers.transition())
            after = t.next_state if i == 0 else ("fog",)
            out.append(
                Prediction(after, t.reward, outcome_of(t), "", 0.25 * (i + 1), None)
            )
        return out

    def vary(self, groups, *, key):
        del key
        return [None] * len(groups)


def card(**more):
    episode = helpers.lamp_and_door()
    one = fidelity.score(Half(), [episode], limit=9)
    return one | {"families": {"<b>lamps": one}} | more


def test_the_table_says_rates_with_intervals_and_cases():
    output = scorecard_page.table(card())
    assert "3 held-out transitions" in output
    row = next(
        x for x in output.splitlines() if x.strip().startswith("next state exact")
    )
    assert "33.3% [6.1%, 79.2%] n=3" in row  # Wilson, one of three
    assert "changed lines: precision" in output
    assert output.index("Do not trust this dream yet") < output.index("Next states:")
    assert "of its tasks were in the training data" not in output
    assert "2 of its tasks were in the training data" in scorecard_page.table(
        card(seen_tasks=2)
    )
    # Nothing of that kind was asked: no number is shown.
    many = next(x for x in output.splitlines() if "many lines" in x)
    assert many.endswith("- (n=0)")


def test_what_decides_stands_first_and_is_told_of_policies_before_all():
    result = card()
    result["on_policy"] = {
        "dream": {k: v for k, v in result.items() if k != "families"}
    }
    first, *_ = scorecard_page.summary(result).splitlines()
    assert first.startswith("right next states, episodes of dream")
    lines = scorecard_page.summary(result).splitlines()
    for what in ("rewards found", "ends found", "agreement on success"):
        assert sum(line.startswith(what) for line in lines) == 2
    assert lines[-1] == verdict(result)
    text = scorecard_page.table(result)
    assert "identifiers and numbers copied" in text
    assert "... that no training episode held" in text


def test_the_interval_is_of_the_effective_number_of_cases():
    rate = {"mean": 0.5, "count": 100, "effective": 4.0}
    assert rate_text(rate) == " 50.0% [15.0%, 85.0%] n=100"


def test_the_page_holds_every_number_and_quotes_names(tmp_path):
    result = card(episodes="<i>mine", seen_tasks=1)
    scorecard_page.write_page(result, tmp_path / "deep/card.html")
    page = (tmp_path / "deep/card.html").read_text()
    # What is forgotten is left out as well.
    assert "all but reveals" not in page
    assert "without reveals" not in page
    for _, value in scorecard_page.rows(result):
        assert value.strip() in page
    assert verdict(result) in page.replace("&#39;", "'")
    assert "&lt;b&gt;lamps" in page
    assert "&lt;i&gt;mine" in page
    assert "<b>lamps" not in page
    assert page.count('src="data:image/svg+xml;base64,') == 3
    assert "http:" not in page  # it needs nothing else
    assert "https:" not in page


def test_bars_stand_beside_the_baseline(tmp_path):
    result = card()
    scorecard_page.plot_states(result, tmp_path / "deep/f.png")
    one = matplotlib.image.imread(tmp_path / "deep/f.png")
    result["copy"]["all"]["mean"] = 0.9
    scorecard_page.plot_states(result, tmp_path / "deep/g.png")
    other = matplotlib.image.imread(tmp_path / "deep/g.png")
    assert np.abs(one - other).max() > 0.1
