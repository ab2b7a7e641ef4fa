"""`dreamgym show`: one step, all steps, a page."""

import dataclasses
import io
import os

import pytest

from dreamgym.commands.inspection import show
from dreamgym.config.presets import preset
from dreamgym.config.stages import EnvConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import make_console
from tests import doubles
from tests.dreamgym.commands.inspection.test_report import Still
from worldmodel.data.records import write_episodes


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(
        tmp_path / "r", preset("tiny", env=EnvConfig(id="tests.doubles:Corridor"))
    )
    result = doubles.episode(doubles.task(0, 1, 2), ["fly", "go right", "go left"])
    result = dataclasses.replace(result, id="mine")
    write_episodes(made.path("dev.jsonl"), [result])
    write_episodes(made.path("episodes.jsonl"), [])
    monkeypatch.setattr(show, "read", lambda _: ([], [result]))
    monkeypatch.setattr(show, "load_experience", lambda *_, **__: Still())
    return made


def shown(run, **more):
    file = io.StringIO()
    show.show(run, make_console(file), **more)
    return file.getvalue()


def test_the_first_step_that_changes_something_is_shown_with_a_legend(run):
    text = shown(run)
    assert "2. go right" in text
    assert "1. fly" not in text
    assert "3. go left" not in text
    assert "Confidence: 0.500" in text
    assert "Recalled" in text  # the legend
    assert "the dream differs" in text


class Rendering(doubles.Corridor):
    """Names the process that renders."""

    def render_state(self, state):
        return f"process {os.getpid()}: {state[0]}"


@pytest.mark.parametrize("workers", [0, 1])
def test_states_are_rendered_in_a_worker_where_the_run_has_workers(tmp_path, workers):
    env = EnvConfig(id=f"{__name__}:Rendering", workers=workers)
    run = Run(tmp_path / "with_workers", preset("tiny", env=env))
    with show.run_readable_states(run) as read:
        (first,), (second,) = read(("a",)), read(("b",))
    assert (first.split(":")[0] == f"process {os.getpid()}") is (workers == 0)
    assert [first[-3:], second[-3:]] == [": a", ": b"]
    assert first[:-1] == second[:-1]  # one process for all states


def test_a_step_can_be_named_and_all_can_be_shown(run):
    assert "1. fly" in shown(run, step=1, episode="mine")
    text = shown(run, whole=True)
    assert all(x in text for x in ("1. fly", "2. go right", "3. go left"))


def test_a_page_holds_the_step_and_the_whole_episode(run, tmp_path):
    shown(run, html=tmp_path / "deep/show.html")
    page = (tmp_path / "deep/show.html").read_text()
    assert "Step 2: <code>go right</code>" in page
    assert page.count('<section class="step">') == 1 + 3
    assert "What each part is" in page


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"episode": "yours"}, ["yours", "mine"]),
        ({"step": 4}, ["1 to 3", "4"]),
        ({"step": 0}, ["1 to 3"]),
    ],
)
def test_what_is_not_there_is_named(run, more, words):
    with pytest.raises(RunError) as error:
        shown(run, **more)
    assert all(word in str(error.value) for word in words)
