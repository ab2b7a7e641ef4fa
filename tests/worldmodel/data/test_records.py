import dataclasses
import errno
import gzip
import itertools
import json
import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.data import json_reading, records
from worldmodel.data.records import Branch, Episode, RecordError


def row(**changes) -> dict:
    """A valid episode as the file holds it, one field of it changed."""
    good = {
        "schema": records.SCHEMA,
        "id": "e1",
        "task": {"id": "t1", "instruction": "do"},
        "transitions": [step()],
    }
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
        "train",
        "unknown",
        None,
    )
    assert episode.episode_return == 2.0


@pytest.mark.parametrize(
    ("episode", "end", "result"),
    [
        (True, {"terminated": True}, True),
        (False, {"terminated": True}, False),
        (None, {"terminated": True}, None),
        (None, {"terminated": True, "success": True}, True),
        (True, {}, True),
        (True, {"success": False}, False),  # won, and gone on from
    ],
)
def test_an_end_is_won_as_its_episode_says(tmp_path, episode, end, result):
    steps = [step("a", "b"), step("b", "c", **end)]
    path = write(tmp_path, row(transitions=steps, success=episode))
    (read,) = records.read_episodes(path)
    assert [t.success for t in read.transitions] == [None, result]
    records.write_episodes(tmp_path / "again.jsonl", [read])
    assert records.read_episodes(tmp_path / "again.jsonl") == [read]


@pytest.mark.parametrize("won", [True, False])
def test_an_end_that_contradicts_its_episode_is_refused(tmp_path, won):
    steps = [step("a", "b"), step("b", "c", terminated=True, success=not won)]
    path = write(tmp_path, row(transitions=steps, success=won))
    message = rf"transitions\[1\].success'.*the episode's success, {won}, at its end"
    with pytest.raises(RecordError, match=message):
        records.read_episodes(path)


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
    texts=STATES,
    action=TEXT,
    thought=TEXT,
    reward=st.floats(min_value=-1e300, max_value=1e300),
)
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
    "steps of another type": (row(transitions="x"), "'transitions'.*expected a list"),
    "id of another type": (row(id=7), "'id'.*expected text, got 7"),
    "task without instruction": (row(task={"id": "t"}), "'task'.*'instruction'"),
    "action of another type": (
        row(transitions=[step(action=None)]),
        r"transitions\[0\].action'.*expected text",
    ),
    "reward is text": (
        row(transitions=[step(reward="1")]),
        r"transitions\[0\].reward'.*a number",
    ),
    "reward is a flag": (
        row(transitions=[step(reward=True)]),
        r"transitions\[0\].reward'.*a number",
    ),
    "reward is NaN": (
        row(transitions=[step(reward=float("nan"))]),
        r"transitions\[0\].rewards'.*finite numbers",
    ),
    "reward is infinite": (
        row(transitions=[step(rewards={"a": float("-inf")})]),
        "finite numbers",
    ),
    "reward beyond floats": (row(transitions=[step(reward=10**400)]), "reward"),
    "flag is a number": (
        row(transitions=[step(terminated=1)]),
        r"terminated'.*expected true or false, got 1",
    ),
    "state of numbers": (
        row(transitions=[step(state=[1])]),
        r"\[0\].state'.*list of strings",
    ),
    "lineage of numbers": (
        row(task={"id": "t", "instruction": "i", "lineage": [1]}),
        "lineage",
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
}


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
    with pytest.raises(
        RecordError, match=r"b\.jsonl:1:.*'step'.*a whole number, got 0.5"
    ):
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


# --- streams -----------------------------------------------------------------


def test_episodes_are_read_as_they_are_asked_for(tmp_path):
    path = write(tmp_path, row(), row(id="e2"), {"schema": "other/1"})
    messages = []
    stream = records.iter_episodes(path, progress=messages.append)
    assert [next(stream).id, next(stream).id] == ["e1", "e2"]  # the third is unread
    assert len(messages) == 1
    with pytest.raises(RecordError, match=r"episodes\.jsonl:3:.*other/1"):
        next(stream)


def test_a_long_file_is_not_held_in_memory(tmp_path):
    """Of 40 MB, no more than a few lines at a time."""
    path, long = (
        tmp_path / "e.jsonl",
        json.dumps(row(id="ID") | {"more": "x" * 400_000}),
    )
    with path.open("w") as file:
        file.writelines(long.replace("ID", str(i)) + "\n" for i in range(100))
    tracemalloc.start()
    try:
        count = sum(1 for _ in records.iter_episodes(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 100
    assert peak < 6e6, peak


def test_a_byte_order_mark_of_windows_is_no_part_of_the_text(tmp_path):
    records.write_episodes(tmp_path / "a.jsonl", [helpers.lamp_and_door("r0")])
    text = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    assert records.read_episodes(tmp_path / "b.jsonl") == records.read_episodes(
        tmp_path / "a.jsonl"
    )
    (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf\n" + text)
    assert len(records.read_episodes(tmp_path / "d.jsonl")) == 1
    (tmp_path / "c.jsonl").write_bytes(text + b"\xef\xbb\xbf" + text)
    with pytest.raises(RecordError, match=r"c\.jsonl:2"):
        records.read_episodes(tmp_path / "c.jsonl")


def test_a_directory_is_no_file_of_episodes(tmp_path):
    with pytest.raises(RecordError, match=r": a directory; expected a file: "):
        records.read_episodes(tmp_path)
    with pytest.raises(RecordError, match=r": a directory; expected a file: "):
        json_reading.read_json_rows(tmp_path)
    records.write_episodes(tmp_path / "episodes.jsonl", [])
    with pytest.raises(RecordError, match=r"\(such as .*episodes\.jsonl\)"):
        records.read_episodes(tmp_path)


def test_gzip_is_told_by_its_bytes_not_its_name(tmp_path):
    episodes = [helpers.lamp_and_door(f"r{i}") for i in range(3)]
    records.write_episodes(tmp_path / "a.jsonl.gz", episodes)
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed[:2] == b"\x1f\x8b"
    (tmp_path / "packed.jsonl").write_bytes(packed)
    (tmp_path / "plain.gz").write_bytes(gzip.decompress(packed))
    for name in ("a.jsonl.gz", "packed.jsonl", "plain.gz"):
        assert records.read_episodes(tmp_path / name) == episodes
    branch = Branch(episode="e", step=0, transition=helpers.transition())
    records.write_branches(tmp_path / "b.gz", [branch])
    assert (tmp_path / "b.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert records.read_branches(tmp_path / "b.gz") == [branch]


def test_the_same_episodes_are_the_same_gzip_bytes(tmp_path, monkeypatch):
    paths = tmp_path / "a.jsonl.gz", tmp_path / "other.jsonl.gz"
    for i, path in enumerate(paths):
        monkeypatch.setattr("time.time", lambda i=i: 1e9 + i * 1e6)
        records.write_episodes(path, [helpers.lamp_and_door("r")])
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.999])
def test_a_cut_gzip_file_is_named_with_file_and_line(tmp_path, keep):
    path = tmp_path / "e.jsonl.gz"
    records.write_episodes(path, [helpers.lamp_and_door(f"r{i}") for i in range(50)])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(RecordError, match=r"e\.jsonl\.gz:\d+:.*a whole gzip file"):
        records.read_episodes(path)


@pytest.mark.parametrize("at", [12, -6])  # in the deflate stream; in the checksum
def test_a_spoilt_gzip_file_is_named(tmp_path, at):
    path = tmp_path / "e.jsonl.gz"
    records.write_episodes(path, [helpers.lamp_and_door(f"r{i}") for i in range(50)])
    spoilt = bytearray(path.read_bytes())
    spoilt[at] ^= 0xFF
    path.write_bytes(spoilt)
    with pytest.raises(RecordError, match=r"e\.jsonl\.gz:\d+:.*a whole gzip file"):
        records.read_episodes(path)


def test_a_failed_gzip_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "e.jsonl.gz"
    records.write_episodes(path, [helpers.lamp_and_door("old")])
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        records.write_episodes(path, [helpers.lamp_and_door("\ud800")])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e.jsonl.gz"]


def test_names_of_control_tokens_are_ordinary_text(tmp_path):
    text = "<think>x</think><|im_start|>user <|endoftext|> [INST] \\u003c"
    odd = row(
        id=text, transitions=[step(text, [text, text], action=text, thought=text)]
    )
    (episode,) = records.read_episodes(write(tmp_path, odd))
    (t,) = episode.transitions
    assert (episode.id, t.action, t.thought) == (text, text, text)
    assert (t.state, t.next_state) == ((text,), (text, text))
    records.write_episodes(tmp_path / "again.gz", [episode])
    assert records.read_episodes(tmp_path / "again.gz") == [episode]


def test_half_a_surrogate_pair_is_refused_a_whole_one_is_not(tmp_path):
    path = write(tmp_path, row(transitions=[step(action="\U0001f600")]))
    assert "\\ud83d\\ude00" in path.read_text()
    assert records.read_episodes(path)[0].transitions[0].action == "\U0001f600"
    path = write(tmp_path, row(transitions=[step(action="\ud83d")]))
    with pytest.raises(RecordError, match=r"e.*\.jsonl:1:.*without lone surrogates"):
        records.read_episodes(path)


def test_an_endless_integer_and_a_deep_nest_are_refused(tmp_path):
    path = tmp_path / "e.jsonl"
    for text in ('{"id": ' + "1" * 5000 + "}", "[" * 100_000):
        path.write_text(text + "\n")
        with pytest.raises(RecordError, match=r"e\.jsonl:1:.*one JSON object a line"):
            records.read_episodes(path)


# --- what docs/reference/episodes.md says ------------------------------------

EPISODES = Path(__file__).parents[3] / "docs/reference/episodes.md"


def documented(title: str) -> list[str]:
    """The JSON blocks under a heading of docs/reference/episodes.md."""
    text = EPISODES.read_text(encoding="utf-8")
    part = re.split(rf"^#+ {title}$", text, flags=re.MULTILINE)[1]
    part = re.split(r"^#+ ", part, flags=re.MULTILINE)[0]
    return re.findall(r"```json\n(.*?)\n```", part, re.DOTALL)


def test_the_documented_line_is_read(tmp_path):
    (line,) = documented("An example")
    (tmp_path / "e.jsonl").write_text(line + "\n", encoding="utf-8")
    (episode,) = records.read_episodes(tmp_path / "e.jsonl")
    assert episode.task.initial_state == episode.transitions[0].state
    assert episode.episode_return == 1.1
    assert (episode.success, episode.transitions[-1].terminated) == (True, True)


def test_every_field_is_documented():
    text = EPISODES.read_text(encoding="utf-8")
    output = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    for kind in (Episode, records.Task, records.Transition):
        assert set(kind.__dataclass_fields__) - output == set()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('{"a": NaN}', "finite numbers"),
        ('{"a": [1e999]}', "finite numbers"),
        ('{"a": ' + "[" * 600 + "]" * 600 + "}", "at most 64 nested"),
    ],
)
def test_options_that_cannot_be_written_again_are_refused(tmp_path, options, expected):
    task = {"id": "t1", "instruction": "do", "options": "OPTIONS"}
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(row(task=task)).replace('"OPTIONS"', options))
    with pytest.raises(RecordError, match=rf"e\.jsonl:1:.*options.*{expected}"):
        records.read_episodes(path)


def test_rewards_whose_sum_is_infinite_are_refused(tmp_path):
    one = write(tmp_path, row(transitions=[step(rewards={"a": 1e308, "b": 1e308})]))
    with pytest.raises(RecordError, match=r"jsonl:1:.*rewards.*finite sum"):
        records.read_episodes(one)
    path = write(
        tmp_path,
        row(transitions=[step(reward=1e308), step("b", "c", reward=1e308)]),
    )
    with pytest.raises(RecordError, match=r"jsonl:1:.*rewards with a finite sum"):
        records.read_episodes(path)


def test_lines_and_files_have_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(json_reading, "MAX_LINE_BYTES", 1000)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(RecordError, match=r"bomb\.jsonl\.gz:1:.*1,000 bytes"):
        records.read_episodes(bomb)
    monkeypatch.setattr(json_reading, "MAX_BLANK_LINES", 10)
    blank = tmp_path / "blank.jsonl"
    blank.write_bytes(b"\n" * 100)
    with pytest.raises(RecordError, match=r"blank\.jsonl:11:.*blank lines"):
        records.read_episodes(blank)
    monkeypatch.setattr(json_reading, "MAX_FILE_BYTES", 5)
    blank.write_bytes(b"\n" * 7)
    with pytest.raises(RecordError, match=r"blank\.jsonl:6:.*5 bytes"):
        records.read_episodes(blank)


@pytest.mark.parametrize("line", ["null", "[]", '{"a":', "\x00"])
def test_rows_that_are_no_objects_are_named_by_file_and_line(tmp_path, line):
    path = tmp_path / "curve.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(RecordError, match=r"curve\.jsonl:2:"):
        json_reading.read_json_rows(path)


def test_costs_are_kept_beside_the_rewards(tmp_path):
    e = helpers.lamp_and_door()
    first, *rest = e.transitions
    costly = dataclasses.replace(first, costs={"damage": 0.5})
    e = dataclasses.replace(e, transitions=(costly, *rest))
    records.write_episodes(tmp_path / "e.jsonl", [e])
    assert records.read_episodes(tmp_path / "e.jsonl") == [e]
    text = (tmp_path / "e.jsonl").read_text()
    assert text.count('"costs"') == 1  # steps without costs do not mention them
    assert costly.reward == first.reward
    bad = text.replace('{"damage": 0.5}', '{"damage": "much"}')
    (tmp_path / "bad.jsonl").write_text(bad)
    with pytest.raises(records.RecordError, match="costs"):
        records.read_episodes(tmp_path / "bad.jsonl")


def test_a_full_disk_is_named_with_the_file(tmp_path):
    path = tmp_path / "e.jsonl"
    records.write_episodes(path, [helpers.lamp_and_door("old")])
    before = path.read_bytes()
    full = OSError(errno.ENOSPC, "No space left on device")  # as of write and fsync
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*e\.jsonl'"),
        records.atomic_write(path),
    ):
        raise full
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e.jsonl"]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ('{"messages": []}', "openai"),
        ('{"conversations": [], "item_id": 1}', "agentgym"),
        ('{"observations": [], "actions": []}', "gymnasium"),
    ],
)
def test_an_object_of_another_format_names_its_importer(tmp_path, row, name):
    (tmp_path / "t.jsonl").write_text(f"{row}\n")
    with pytest.raises(RecordError, match=f"dreamgym import {name}"):
        records.read_episodes(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(RecordError, match="expected a field 'schema'"):
        records.read_episodes(tmp_path / "t.jsonl")


def changed(**changes) -> Episode:
    return dataclasses.replace(helpers.lamp_and_door(), **changes)


def test_episodes_that_could_not_be_read_are_not_written(tmp_path):
    path, good = tmp_path / "episodes.jsonl", helpers.lamp_and_door()
    records.write_episodes(path, [good])
    (step, *_) = good.transitions
    ended = dataclasses.replace(step, terminated=False, truncated=False)
    broken = [
        (good, good),  # one id twice
        (changed(transitions=()),),
        (changed(transitions=(ended, dataclasses.replace(ended, state=("else",)))),),
        (changed(transitions=(dataclasses.replace(step, rewards={"x": math.nan}),)),),
    ]
    for episodes in broken:
        with pytest.raises(RecordError, match=r"episodes.jsonl:\d: field"):
            records.write_episodes(path, episodes)
    assert records.read_episodes(path) == [good]


def test_numbers_of_numpy_are_written(tmp_path):
    path, good = tmp_path / "episodes.jsonl", helpers.lamp_and_door()
    task = dataclasses.replace(
        good.task, options={"n": np.int64(3), "x": np.float32(1)}
    )
    records.write_episodes(path, [changed(task=task)])
    (read,) = records.read_episodes(path)
    assert read.task.options == {"n": 3, "x": 1.0}


def test_a_text_is_no_state():
    message = "state must be a tuple of lines, got the text 'at kitchen'"
    with pytest.raises(TypeError, match=message):
        records.check_lines("state", "at kitchen")
    assert records.lines("at kitchen\n\nhere ") == ("at kitchen", "here")
