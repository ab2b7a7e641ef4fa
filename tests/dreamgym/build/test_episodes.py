"""The episodes of a run: how often their files are read."""

import dataclasses

import pytest

from dreamgym.build.episodes import read
from dreamgym.build.experience import training_share, with_rule_traces
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel import reasoning
from worldmodel.data.json_reading import RecordError
from worldmodel.data.records import write_episodes


@pytest.fixture(name="run")
def make_run(tmp_path):
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        yield run


def write(run, name, count):
    tasks = doubles.tasks("train")[:count]
    write_episodes(run.path(name), [doubles.expert(t) for t in tasks], check=False)


def test_a_file_is_read_once_until_it_changes(run, monkeypatch):
    """Traces by rule take longest; what a caller does with its list stays its own."""
    traced, set_traces = [], reasoning.set_rule_traces

    def record(episode, **settings):
        traced.append(episode.id)
        return set_traces(episode, **settings)

    monkeypatch.setattr(reasoning, "set_rule_traces", record)
    write(run, "episodes.jsonl", 3)
    write(run, "dev.jsonl", 1)
    train, dev = read(run)
    assert (len(train), len(dev), len(traced)) == (3, 1, 4)
    assert all(t.reasoning for e in train for t in e.transitions)
    train.clear()
    assert len(read(run)[0]) == 3
    assert len(traced) == 4
    write(run, "episodes.jsonl", 2)
    assert [len(x) for x in read(run)] == [2, 1]
    assert len(traced) == 6


def test_a_missing_file_is_named(run):
    write(run, "dev.jsonl", 1)
    with pytest.raises(RecordError, match=r"episodes\.jsonl: no such file"):
        read(run)


def test_traces_have_the_style_of_the_settings(run):
    write(run, "episodes.jsonl", 2)
    write(run, "dev.jsonl", 1)
    words = [t.reasoning for e in read(run)[0] for t in e.transitions]
    settings = {"experience.reasoning_style": "sentences"}
    run.config = preset("tiny", {"env.id": run.config.env.id} | settings)
    train, _ = read(run)
    sentences = [t.reasoning for e in train for t in e.transitions]
    assert not any(" the action is " in text for text in words)
    assert all(" the action is " in text for text in sentences)
    assert training_share(run, train) == train
    plain = [reasoning.without_reasoning(e) for e in train]
    bare = [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(t, reasoning=None) for t in e.transitions
            ),
        )
        for e in train
    ]
    assert [with_rule_traces(run, e) for e in bare] == train
    assert [with_rule_traces(run, e) for e in plain] == plain
