"""Copies of examples with exchanged names, and which stage finds the names."""

import pytest

from dreamgym.build.episodes import NAMES, names_with, read_names
from dreamgym.build.experience import fit_data, load_experience, read_scorecard
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import pretrain
from tests import doubles
from tests.worldmodel.text.test_names import ROOMS, walks
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import Episode, Task, Transition, write_episodes
from worldmodel.fitting import supervised
from worldmodel.reasoning.rule import explain
from worldmodel.text.names import save_names

NONE, GROUPS = {}, {"rooms": (ROOMS,)}


@pytest.fixture
def run(tmp_path):
    """A run that collected walks through rooms, whose fit reads them many times."""
    settings = {"env.id": "tests.doubles:Corridor", "pretrain.fit.steps": 200}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), walks(reveals=False))
        write_episodes(run.path("dev.jsonl"), walks()[:1])
        run.mark("collect", {})
        yield run


def texts(run, names, count=3):
    """Return the data of a fit to a few walks, and its examples as text."""
    tok = doubles.tokenizer()
    data = fit_data(run, tok, walks(reveals=False)[:count], names=names)
    return data.numbers, [tok.decode(e.ids) for e in data.examples]


def test_copies_of_transitions_have_other_names(run):
    recorded, plain = texts(run, NONE)
    drawn, copies = texts(run, GROUPS)
    assert recorded["redrawn_examples"] == 0
    distinct = recorded["distinct_transitions"]
    assert drawn["redrawn_examples"] >= distinct
    # Variations of tasks are as small a part of the examples in both, one more or less
    # for each of the three tasks, some of which read alike with other names.
    assert abs(len(plain) - len(copies)) <= 3
    assert plain[distinct : 2 * distinct] == plain[:distinct]
    # The first copy is what was recorded; some later ones are not.
    assert copies[:distinct] == plain[:distinct]
    others = copies[distinct : 2 * distinct]
    assert others != plain[:distinct]
    # No walk among these enters the study, and some copy does.
    assert not any("in study" in text for text in plain[:distinct])
    assert any("in study" in text for text in copies)


@pytest.mark.parametrize("exchanged", [True, False])
def test_pretrain_writes_the_names_that_its_setting_allows(
    tmp_path, monkeypatch, exchanged
):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "pretrain.exchange_names": exchanged,
    }
    monkeypatch.setattr(
        supervised, "fit", lambda model, *_, **__: (model, [{"step": 1, "loss": 0.0}])
    )
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), walks(reveals=False))
        write_episodes(run.path("dev.jsonl"), walks()[:1])
        run.mark("collect", {})
        pretrain.body(run)
        assert read_names(run) == ({"rooms": (ROOMS,)} if exchanged else {})


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"exact": {}, "done": {}, "reward": {}},
        {"exact": [], "done": {}, "reward": {}},
        {"exact": {"predictable": 0.9}, "done": {}, "reward": {}},
        {"exact": {"predictable": {"mean": 0.9}}, "done": {}, "reward": {}},
    ],
)
def test_what_is_no_scorecard_is_measured_again(run, content):
    run.write_json("fidelity.json", content)
    with pytest.raises(RunError, match=r"fidelity\.json.* it is measured again"):
        read_scorecard(run)


def test_a_scorecard_is_read(run):
    rate = {"mean": 0.9, "count": 10, "effective": 10.0}
    card = {
        "exact": {"predictable": rate},
        "reward": {"recall": rate},
        "done": {"recall": rate},
    }
    run.write_json("remedy/fidelity.json", card)
    assert read_scorecard(run, "remedy") == card


@pytest.mark.parametrize("enabled", [True, False])
def test_the_model_of_a_run_quotes_as_the_traces_of_its_episodes(tmp_path, enabled):
    settings = {"env.id": "tests.doubles:Corridor"}
    settings["experience.whole_quotes"] = enabled
    shelves = [f"shelf {n} holds {n} cups" for n in range(4)]
    step = Transition(
        state=tuple(shelves),
        action="look at shelf 2",
        next_state=(*shelves[:2], "shelf 2 holds no cup", shelves[3]),
    )
    assert f"look at shelf 2 {shelves[2]}" in explain(step, status=False)
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        task = Task(id="t", instruction="look", family="shelves")
        episodes = [
            Episode(
                id=f"e{i}", task=task, transitions=(step,), source="s", success=True
            )
            for i in range(60)
        ]
        for name in ("episodes.jsonl", "dev.jsonl"):
            write_episodes(run.path(name), episodes)
        run.mark("collect", {})
        run.mark("pretrain", {})
        save_model(run.path("experience"), doubles.model(), doubles.tokenizer())
        experience = load_experience(run)
    assert experience._quoting == ({"shelves"} if enabled else set())


@pytest.mark.parametrize("exchanged", [True, False])
def test_what_was_played_since_shows_further_names(tmp_path, exchanged):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "pretrain.exchange_names": exchanged,
    }
    episodes = walks(reveals=False)
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), episodes[:6])
        write_episodes(run.path("dev.jsonl"), episodes[:1])
        save_names(run.path(NAMES), {})
        assert names_with(run, []) == {}
        expected = {"rooms": (ROOMS,)} if exchanged else {}
        assert names_with(run, episodes[6:]) == expected
        # Of eight walks a trial has to decide; what it has accepted stays.
        assert names_with(run, episodes[6:8]) == {}
        save_names(run.path(NAMES), {"rooms": (ROOMS,)})
        expected = {"rooms": (ROOMS[1:],)} if exchanged else {}
        assert names_with(run, episodes[6:8]) == expected
