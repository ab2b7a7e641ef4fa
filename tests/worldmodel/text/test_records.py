import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.text import records
from worldmodel.text.records import Branch, Episode, RecordError


def row(**changes) -> dict:
    """A valid episode as the file holds it, one field of it changed."""
    good = {
        "schema": records.SCHEMA, "id": "e1", "task": {"id": "t1", "instruction": "do"},
        "transitions": [step()],
    }  # fmt: skip
    return good | changes


def step(state="a", next_state="b", **changes) -> dict:
    base = {"state": state, "action": "x", "next_state": next_state, "reward": 1}
    return base | changes


def write(tmp_path, *rows):
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_lines_by_hand():
    assert records.lines("a \n\n  b\t\r\n \nc") == ("a", "  b", "c")
    assert records.lines(" \n") == ()


def test_a_short_row_gets_its_defaults(tmp_path):
    path = write(
        tmp_path,
        row(transitions=[step("a\nb\n", ["c ", "", "d"]), step(["c", "d"], "z")]),
    )
    (episode,) = records.read_episodes(path)
    first, second = episode.transitions
    assert (first.state, first.next_state) == (("a", "b"), ("c", "d"))
    assert (first.reward, first.terminated, first.invalid) == (1.0, False, None)
    assert second.state == ("c", "d")
    assert episode.task.initial_state == ("a", "b")
    assert (episode.task.split, episode.source, episode.success) == (
        "train", "unknown", None,
    )  # fmt: skip
    assert episode.total_reward == 2.0


def test_rewards_are_summed_by_name(tmp_path):
    named = step(rewards={"progress": 0.5, "format": -0.25})
    (episode,) = records.read_episodes(write(tmp_path, row(transitions=[named])))
    assert episode.transitions[0].rewards == {"progress": 0.5, "format": -0.25}
    assert episode.transitions[0].reward == 0.25


def test_episodes_are_read_back_as_written(tmp_path):
    one, two = helpers.lamp_and_door("r1"), helpers.lamp_and_door("r2")
    path = tmp_path / "new" / "folder" / "e.jsonl"
    records.write_episodes(path, [one, two])
    assert records.read_episodes(path) == [one, two]
    assert [p.name for p in path.parent.iterdir()] == ["e.jsonl"]


def test_branches_are_read_back_as_written(tmp_path):
    branch = Branch(episode="e", step=2, transition=helpers.transition(reward=0.5))
    records.write_branches(tmp_path / "b.jsonl", [branch, branch])
    assert records.read_branches(tmp_path / "b.jsonl") == [branch, branch]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
STATES = st.lists(st.lists(TEXT, max_size=3).map("\n".join), min_size=2, max_size=4)


@given(
    texts=STATES, action=TEXT, thought=TEXT,
    reward=st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
def test_any_text_is_read_back(scratch, texts, action, thought, reward):
    states = [records.lines(text) for text in texts]
    steps = tuple(
        helpers.transition(a, action, b, reward, thought=thought)
        for a, b in itertools.pairwise(states)
    )
    about = records.Task(id=thought, instruction=action, initial_state=states[0])
    episode = Episode(
        id=action, task=about, transitions=steps, source="s", success=None
    )
    path = scratch / "e.jsonl"
    records.write_episodes(path, [episode])
    assert records.read_episodes(path) == [episode]


MISTAKES = {
    "wrong schema": (row(schema="other/1"), "schema.*dreamgym.episodes/1.*other/1"),
    "no schema": ({"id": "e"}, "a field 'schema'"),
    "not an object": ([1, 2], "a JSON object"),
    "no task": ({k: v for k, v in row().items() if k != "task"}, "a field 'task'"),
    "no steps": (row(transitions=[]), "'transitions'.*at least one"),
    "steps of another type": (row(transitions="x"), "'transitions'.*expected list"),
    "id of another type": (row(id=7), "'id'.*expected str, got 7"),
    "task without instruction": (row(task={"id": "t"}), "'task'.*'instruction'"),
    "action of another type": (
        row(transitions=[step(action=None)]), r"transitions\[0\].action'.*expected str",
    ),
    "reward is text": (
        row(transitions=[step(reward="1")]), r"transitions\[0\].reward'.*float",
    ),
    "reward is a flag": (
        row(transitions=[step(reward=True)]), r"transitions\[0\].reward'.*float",
    ),
    "reward is NaN": (
        row(transitions=[step(reward=float("nan"))]),
        r"transitions\[0\].rewards'.*finite numbers",
    ),
    "reward is infinite": (
        row(transitions=[step(rewards={"a": float("-inf")})]), "finite numbers",
    ),
    "reward beyond floats": (row(transitions=[step(reward=10**400)]), "reward"),
    "flag is a number": (
        row(transitions=[step(terminated=1)]), r"terminated'.*expected bool, got 1",
    ),
    "state of numbers": (
        row(transitions=[step(state=[1])]), r"\[0\].state'.*list of strings",
    ),
    "lineage of numbers": (
        row(task={"id": "t", "instruction": "i", "lineage": [1]}), "lineage",
    ),
    "states do not chain": (
        row(transitions=[step("a", "b"), step("c", "d")]),
        r"transitions\[1\].state'.*next_state of transitions\[0\], \['b'\].*\['c'\]",
    ),
    "a step after the end": (
        row(transitions=[step("a", "b", terminated=True), step("b", "c")]),
        r"transitions\[1\].state'.*no step after the episode ended",
    ),
    "a step after the cut": (
        row(transitions=[step("a", "b", truncated=True), step("b", "c")]),
        "no step after the episode ended",
    ),
    "an id again": (row(), r"'id'.*not used before \(line 1\), got 'e1'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_and_line(tmp_path, mistake):
    bad, message = MISTAKES[mistake]
    path = write(tmp_path, row(), bad)
    with pytest.raises(RecordError, match=rf"episodes\.jsonl:2:.*{message}"):
        records.read_episodes(path)


def test_blank_lines_count_as_lines(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text("\n" + json.dumps(row()) + "\n\n{]\n")
    with pytest.raises(RecordError, match=r"e\.jsonl:4:.*one JSON object a line"):
        records.read_episodes(path)


def test_a_cut_file_says_so(tmp_path):
    whole = json.dumps(row()) + "\n"
    path = tmp_path / "e.jsonl"
    path.write_text(whole + json.dumps(row(id="e2"))[:50])
    with pytest.raises(RecordError, match=r"e\.jsonl:2:.*the file ends inside it"):
        records.read_episodes(path)


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    lines = [json.dumps(row(id=f"e{i}")).encode() + b"\n" for i in range(3)]
    path = tmp_path / "e.jsonl"
    path.write_bytes(lines[0] + lines[1] + lines[2].replace(b"e2", b"\xff"))
    with pytest.raises(RecordError, match=r"e\.jsonl:3:.*UTF-8"):
        records.read_episodes(path)


def test_no_file_and_an_empty_file(tmp_path):
    with pytest.raises(RecordError, match=r"none\.jsonl: no such file"):
        records.read_episodes(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="at least one episode"):
        records.read_episodes(write(tmp_path))


def test_a_branch_file_is_no_episode_file(tmp_path):
    path = tmp_path / "b.jsonl"
    branch = Branch(episode="e", step=0, transition=helpers.transition())
    records.write_branches(path, [branch])
    with pytest.raises(RecordError, match=r"b\.jsonl:1:.*dreamgym.episodes/1"):
        records.read_episodes(path)
    path.write_text(path.read_text().replace('"step": 0', '"step": 0.5'))
    with pytest.raises(RecordError, match=r"b\.jsonl:1:.*'step'.*int, got 0.5"):
        records.read_branches(path)


@pytest.mark.parametrize("what", ["iterator fails", "not UTF-8"])
def test_a_failed_write_leaves_the_old_file(tmp_path, what):
    path = tmp_path / "e.jsonl"
    records.write_episodes(path, [helpers.lamp_and_door("old")])
    before = path.read_bytes()

    def some():
        yield helpers.lamp_and_door("new")
        if what == "iterator fails":
            raise OSError("disk full")
        yield helpers.lamp_and_door("a lone surrogate \ud800")

    with pytest.raises((OSError, UnicodeEncodeError)):
        records.write_episodes(path, some())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e.jsonl"]
