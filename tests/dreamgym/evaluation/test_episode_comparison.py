"""A dreamed episode beside the real one."""

from dreamgym.evaluation import episode_comparison
from dreamgym.evaluation.episode_comparison import ComparedStep
from tests import helpers
from worldmodel.experience.base import Prediction

EPISODE = helpers.lamp_and_door()


def moments():
    one, two, three = EPISODE.transitions
    right = Prediction(one.next_state, one.reward, "go", "so <it> is", 0.75, None)
    wrong = Prediction(("fog",), 1.0, "win", "", 0.25, None)
    return [
        ComparedStep(one, one.state, right, ((0.5, two),)),
        ComparedStep(two, one.next_state, wrong, ()),
        ComparedStep(three, ("fog",), None, ()),
    ]


def test_what_differs_is_marked():
    told = episode_comparison.text(EPISODE, moments(), width=80).splitlines()
    steps = [i for i, x in enumerate(told) if x[:2] in ("1.", "2.", "3.")]
    first, second, third = (
        told[a:b] for a, b in zip(steps, [*steps[1:], None], strict=True)
    )
    assert not [x for x in first if x[:2] in ("- ", "+ ", "! ")]
    assert "    because so <it> is" in first
    assert "    confidence 0.750" in first
    assert any("recalls (0.50)" in x for x in first)
    real = [x for x in second if x.startswith("- ")]
    assert len(real) == len(EPISODE.transitions[1].next_state)
    (dream,) = [x for x in second if x.startswith("+ ")]
    assert dream.split("|")[1].strip() == "fog"
    (end,) = [x for x in second if x.startswith("! ")]
    assert "reward 0, go" in end.split("|")[0]
    assert "reward 1, win" in end.split("|")[1]
    # The dream has ended: only reality goes on.
    assert all(x.startswith("- ") for x in third[1:])
    assert "win" in third[-1]


def test_long_lines_are_folded():
    told = episode_comparison.text(EPISODE, moments(), width=30)
    assert max(map(len, (x for x in told.splitlines() if "|" in x))) <= 30


def test_the_page_quotes_and_marks(tmp_path):
    episode_comparison.write_page(EPISODE, moments(), tmp_path / "deep/p.html")
    page = (tmp_path / "deep/p.html").read_text()
    assert "so &lt;it&gt; is" in page
    assert page.count("class='odd'") == 2 * len(EPISODE.transitions[0].state) + 3
