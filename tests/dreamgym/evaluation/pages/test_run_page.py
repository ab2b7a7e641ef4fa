"""The page of a run."""

import re

from dreamgym.evaluation.comparisons.episode_comparison import episode_view
from dreamgym.evaluation.pages import run_page
from dreamgym.evaluation.pages.run_page import RunFacts
from dreamgym.evaluation.state_text import as_lines
from tests.dreamgym.evaluation.comparisons.test_episode_comparison import EPISODE, steps
from tests.dreamgym.evaluation.hostile import ATTACK
from tests.dreamgym.evaluation.pages.test_curves import LOOP
from tests.dreamgym.evaluation.pages.test_page import Tags
from tests.dreamgym.evaluation.pages.test_scorecard_page import card
from tests.dreamgym.evaluation.test_report import results, row


def facts(text="plain", episodes=()):
    return RunFacts(
        title=text,
        request=[("command", text), (text, text)],
        settings=[text],
        stages=[{"name": text, "seconds": text, "real": text}],
        episodes=episodes,
        episodes_text=text,
        next_steps=[(text, [text])],
        scorecard_command=text,
        version=text,
    )


def written(tmp_path, found, about, curves=None):
    path = tmp_path / "deep/report.html"
    run_page.write_page(path, found, curves or {"dream": LOOP}, about)
    return path.read_text()


def words(page):
    """What a reader reads: the text between the tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2]).split())


def test_the_page_holds_what_was_measured(tmp_path):
    bound = {"sentence": "A bound.", "total": 0.5, "span": 1.0}
    result = results() | {"fidelity": card(), "bound": bound}
    view = episode_view(EPISODE, steps(), as_lines)
    page = written(tmp_path, result, facts(episodes=[view]))
    text = words(page)
    assert "dream trained in the dream 50.0 %" in text
    assert "37.5 % to 62.5 % 40 (+3 unscored) 0.50 7.25 6.2 % 12,345" in text
    assert "dream minus bc +0.250 [-0.050, +0.550], 40 games not decided" in text
    assert "Family coin" in text
    assert "A bound." in text
    result["bound"] = bound | {"total": -2.0}  # no policy can lose more than 1
    assert "A bound." not in words(written(tmp_path, result, facts()))
    assert "Do not trust this dream yet" in text
    assert "go through the door room · 3 steps · really won · won in the dream" in text
    assert page.count("data:image/svg+xml") == 3  # success twice, signal
    assert 'x1="37.5" x2="62.5"' in page  # the interval as a bar


def test_the_verdict_stands_first_and_is_made_up_where_there_is_none(tmp_path):
    result = results()
    text = words(written(tmp_path, result, facts()))
    assert (
        "The policy dream succeeds in 50.0 % of 40 real test games (37.5 % to 62.5 %), "
        "bc in 25.0 %: not decided, as the interval of the difference holds 0."
    ) in text
    result["verdict"] = ["One < two.", "Three."]
    result["policies"]["dream"]["note"] = "learned nothing"
    text = words(written(tmp_path, result, facts()))
    assert "The policy dream succeeds" not in text
    at = [
        text.index(x)
        for x in (
            "One &lt; two.",
            "Three.",
            "dream: learned nothing.",
            "What was asked",
        )
    ]
    assert at == sorted(at)


def test_the_page_names_copies_and_does_not_compare_them(tmp_path):
    result = results() | {"copies": {"dream": "bc"}}
    text = words(written(tmp_path, result, facts()))
    assert "bc and dream are one policy" in text
    assert "dream minus bc" not in text


def test_what_an_interval_decides():
    pair = {"mean": 0.25, "low": 0.05, "high": 0.4, "episodes": 8}
    assert run_page._difference("a_minus_b", pair)["meaning"].startswith("better")
    pair |= {"low": -0.4, "high": -0.1, "mean": -0.2}
    assert run_page._difference("a_minus_b", pair)["meaning"].startswith("worse")
    none = {"mean": None, "low": None, "high": None, "episodes": 0}
    assert run_page._difference("a_minus_b", none)["meaning"] == ""


def test_a_run_of_episodes_alone_says_what_was_skipped(tmp_path):
    result = {
        "policies": {},
        "families": {},
        "paired": {},
        "skipped": "skipped: no env",
    }
    text = words(written(tmp_path, result, facts("why"), {"none": []}))
    assert "Nothing was played in a real environment: skipped: no env." in text
    assert "Curves" not in text


def hostile(text=ATTACK):
    """Results, facts and curves with a text in every field that is one."""
    result = results()
    result["policies"] = {text: row(0.5, note=text, errors={text: 2}), "bc": row(0.25)}
    result["paired"] = {f"{text}_minus_bc": result["paired"]["dream_minus_bc"]}
    result["families"] = {text: result["families"]["coin"]}
    result |= {
        "verdict": [text],
        "bound": {"sentence": text, "total": 0, "span": 1},
        "skipped": "",
    }
    scorecard = card(families={text: card()}, episodes=text)
    scorecard["error_detection_auroc"] = {text: 0.5}
    result["fidelity"] = scorecard
    one = steps()[0]
    answer = one.dreamed._replace(
        next_state=(text, text), reasoning=text, error=text, outcome="go"
    )
    real = one.real.__class__(state=(text,), action=text, next_state=(text, "x"))
    episode = EPISODE.__class__(
        id=text,
        source=text,
        success=True,
        transitions=(real,),
        task=EPISODE.task.__class__(id=text, instruction=text, family=text),
    )
    bad = one._replace(real=real, dreamed=answer, recalled=((0.5, real),))
    view = episode_view(episode, [bad], as_lines)
    rows = [{"update": 1, f"success/{text}": 0.5}]
    return result, facts(text, [view]), {text: rows}


def test_no_text_adds_a_tag_to_the_page(tmp_path):
    tame = Tags(written(tmp_path, *hostile("tame")[:2], hostile("tame")[2])).tags
    wild = Tags(written(tmp_path, *hostile()[:2], hostile()[2])).tags
    assert [t for t, _ in wild] == [t for t, _ in tame]
    assert not [a for _, attrs in wild for a in attrs if a.startswith("on")]
