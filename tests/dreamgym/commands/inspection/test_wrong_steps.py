"""`dreamgym show RUN --wrong`: the table by action, and wrong steps."""

import io

import pytest

from dreamgym.commands.inspection import wrong_steps
from dreamgym.commands.inspection.wrong_steps import ActionRow, by_first_word
from dreamgym.config.presets import preset
from dreamgym.config.stages import EnvConfig
from dreamgym.run.directory import Run
from dreamgym.run.display import make_console
from tests import doubles
from tests.dreamgym.commands.inspection.test_report import Still
from worldmodel.data.records import write_episodes
from worldmodel.experience.base import Query
from worldmodel.fidelity.cases import Case

PLAN = ["fly", "fly", "go right", "go left", "go right", "take coin"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(
        tmp_path / "r", preset("tiny", env=EnvConfig(id="tests.doubles:Corridor"))
    )
    dev = [doubles.episode(doubles.task(0, 1, 2), PLAN)]
    write_episodes(made.path("dev.jsonl"), dev)
    monkeypatch.setattr(wrong_steps, "read", lambda _: ([], dev))
    monkeypatch.setattr(wrong_steps, "load_experience", lambda *_, **__: Still())
    return made


def printed(run, count):
    file = io.StringIO()
    wrong_steps.show_wrong_steps(run, make_console(file), count)
    return file.getvalue()


def test_right_steps_are_counted_by_the_first_word_and_wrong_ones_shown(run):
    """A dream in which nothing changes is right where nothing does."""
    text = printed(run, 2)
    # Words that the state has not shown before, such as `taken`, count as reveals.
    assert text.startswith("1 of 4 predictable next states are right:")
    assert "0 of 3     go" in text
    assert "1 of 1     fly, nothing changes" in text
    assert text.index("0 of 3") < text.index("1 of 1")
    assert text.count("the dream differs") == 2
    assert "3. go right" in text
    assert "4. go left" in text
    assert text.count("Recalled        ") == 1  # one legend, below the last step


def test_the_table_alone_is_printed_where_no_step_is_asked_for(run):
    assert "the dream differs" not in printed(run, 0)


def test_rows_by_hand():
    steps = doubles.episode(doubles.task(0, 1, 2), PLAN).transitions
    kinds = {True: "unchanged", False: "one_line"}
    cases = [
        Case(
            Query(doubles.task(0, 1, 2), (), t.state, t.action),
            t,
            kinds[t.next_state == t.state],
        )
        for t in steps
    ]
    assert by_first_word(cases, [True, True, False, False, True, True]) == [
        ActionRow("go", 1, 3),
        ActionRow("fly", 1, 1),
        ActionRow("fly, nothing changes", 1, 1),
        ActionRow("take", 1, 1),
    ]
