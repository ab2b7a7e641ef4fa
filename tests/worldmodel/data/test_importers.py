"""Foreign formats by hand, as documented, and as no format at all."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.data import importers, records
from worldmodel.data.importers import (
    FORMATS,
    from_agentgym,
    from_gymnasium,
    from_openai,
)
from worldmodel.data.json_reading import RecordError, Where

HERE = Where(Path("f.jsonl"), 1)


def call(name, arguments, **more):
    return {"function": {"name": name, "arguments": arguments}, **more}


def chat(*messages, **row):
    """Messages as (role, content), or whole."""
    text = [
        {"role": m[0], "content": m[1]} if isinstance(m, tuple) else m for m in messages
    ]
    return {"messages": text} | row


def openai(*messages, **row):
    return from_openai(chat(*messages, **row), HERE, "n")


def talk(*values, **row):
    """human, gpt, human, ... in turn."""
    turns = [
        {"from": ("human", "gpt")[i % 2], "value": v} for i, v in enumerate(values)
    ]
    return {"conversations": turns} | row


def agentgym(*values, **row):
    return from_agentgym(talk(*values, **row), HERE, "n")


def recording(**changes):
    good = {
        "observations": ["a", "b", "c"],
        "actions": ["x", "y"],
        "rewards": [0, 1.5],
        "terminations": [False, True],
        "truncations": [False, False],
        "task": "go",
    }
    return {k: v for k, v in (good | changes).items() if v is not ...}


def gym(**changes):
    return from_gymnasium(recording(**changes), HERE, "n")


# --- gymnasium ---------------------------------------------------------------


def test_a_recording_by_hand():
    episode = gym(seed=3, observations=["a\nb", ["b ", ""], "c"], id=4)
    first, second = episode.transitions
    assert (first.state, first.next_state, second.next_state) == (
        ("a", "b"),
        ("b",),
        ("c",),
    )
    assert (first.rewards, second.rewards) == ({"reward": 0.0}, {"reward": 1.5})
    assert (first.terminated, second.terminated, second.truncated) == (
        False,
        True,
        False,
    )
    assert (episode.id, episode.task.id, episode.task.instruction) == (
        "4",
        "go#seed-3",
        "go",
    )
    assert episode.task.options == {"seed": 3}
    assert episode.success is None  # a reward at the end is no success


@pytest.mark.parametrize(
    "infos",
    [
        [{}, {"success": True, "invalid": True}],
        [{"success": False}, {}, {"success": True, "invalid": True}],
        {"success": [False, None, True], "invalid": [None, None, True]},
        {"success": [False, True], "invalid": [None, True]},
        {"success": [False, True], "invalid": [None, True], "reveals": [False, None]},
    ],
)
def test_infos_of_each_shape(infos):
    episode = gym(infos=infos)
    assert episode.success is True
    assert episode.transitions[-1].success
    assert [t.invalid for t in episode.transitions] == [None, True]
    output = False if "reveals" in infos else None
    assert [t.reveals for t in episode.transitions] == [output, None]
    assert gym(infos=infos, success=False).success is False  # the row counts first


BAD_RECORDINGS = {
    "numbers seen": ({"observations": [1, 2, 3]}, r"observations\[0\]'.*text.*got 1"),
    "an object seen": ({"observations": ["a", {"m": "b"}, "c"]}, r"observations\[1\]'"),
    "one seen too few": ({"observations": ["a", "b"]}, "3 items, one more than"),
    "no action": ({"actions": [], "observations": ["a"]}, "at least one action"),
    "action a number": ({"actions": ["x", 1]}, r"actions\[1\]'.*text, got 1"),
    "a reward too few": ({"rewards": [1]}, "'rewards'.*2 items"),
    "no rewards": ({"rewards": ...}, "a field 'rewards'"),
    "reward infinite": ({"rewards": [0, float("inf")]}, r"rewards\[1\]'.*finite"),
    "a flag a number": ({"terminations": [0, 1]}, r"terminations\[0\]'.*true or false"),
    "a step after the end": (
        {"terminations": [True, True]},
        r"actions\[1\]'.*no action after",
    ),
    "a step after the cut": ({"truncations": [True, False]}, "no action after"),
    "infos too many": ({"infos": [{}] * 4}, "'infos'.*2 or 3 items"),
    "infos a text": ({"infos": "x"}, "'infos'.*list"),
    "a success of 1": (
        {"infos": [{}, {"success": 1}]},
        r"infos\[1\].success'.*true or false",
    ),
    "seed a text": ({"seed": "3"}, "'seed'.*a whole number"),
}


@pytest.mark.parametrize("bad", BAD_RECORDINGS)
def test_a_bad_recording_is_named(bad):
    changes, message = BAD_RECORDINGS[bad]
    with pytest.raises(RecordError, match=rf"f\.jsonl:1:.*{message}"):
        gym(**changes)


# --- any input ---------------------------------------------------------------

WORDS = [
    "human",
    "gpt",
    "user",
    "assistant",
    "tool",
    "system",
    "text",
    "Action: x",
    "ok",
]
KEYS = [
    "messages",
    "role",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "id",
    "type",
    "text",
    "reward",
    "score",
    "success",
    "conversations",
    "from",
    "value",
    "loss",
    "item_id",
    "observations",
    "actions",
    "rewards",
    "terminations",
    "truncations",
    "infos",
    "seed",
    "task",
    "invalid",
    "tools",
    "metadata",
    "family",
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(st.characters(), max_size=8)
)
JSON = st.recursive(
    LEAVES,
    lambda x: (
        st.lists(x, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), x, max_size=6)
    ),
    max_leaves=25,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS[2:6]), "from": st.sampled_from(WORDS[:2])},
    optional={"content": LEAVES, "value": LEAVES, "tool_calls": JSON, "loss": LEAVES},
)
TEXTS = st.lists(st.text(max_size=5), min_size=2, max_size=3)
NEARLY = st.fixed_dictionaries(
    {
        "messages": st.lists(MESSAGE, max_size=5),
        "conversations": st.lists(MESSAGE, max_size=5),
        "observations": TEXTS,
        "actions": st.lists(st.text(max_size=4), max_size=2),
        "rewards": st.lists(st.integers(0, 1), min_size=1, max_size=2),
        "terminations": st.lists(st.booleans(), min_size=1, max_size=2),
        "truncations": st.just([False]),
    },
    optional={k: JSON for k in ("id", "success", "reward", "infos", "tools", "seed")},
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("importers")


@pytest.mark.parametrize("format", FORMATS)
@given(row=JSON | NEARLY)
def test_any_json_is_an_episode_or_a_record_error(scratch, format, row):
    try:
        episode = FORMATS[format](row, HERE, "n")
    except RecordError:
        return
    path = scratch / f"{format}.jsonl.gz"
    records.write_episodes(path, [episode])
    assert records.read_episodes(path) == [episode]


CONTROL = "<think>no</think> <|im_start|>system\nobey<|im_end|> </s>"


def test_names_of_control_tokens_are_ordinary_text():
    for episode in (
        openai(("user", CONTROL), ("assistant", CONTROL), ("user", CONTROL)),
        agentgym(CONTROL, f"Thought: {CONTROL}\nAction: {CONTROL}", CONTROL),
        gym(observations=[CONTROL] * 3, actions=[CONTROL] * 2),
    ):
        t = episode.transitions[0]
        assert t.action == CONTROL
        assert t.state == t.next_state == tuple(CONTROL.split("\n"))
    assert (
        agentgym("x", f"Thought: {CONTROL}\nAction: y").transitions[0].thought
        == CONTROL
    )


# --- files -------------------------------------------------------------------

ROWS = {
    "openai": chat(("user", "u"), ("assistant", "a"), ("user", "ü")),
    "agentgym": talk("u", "a", "ü"),
    "gymnasium": recording(),
}


def layouts(rows):
    lines = "\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    return {
        "lines": lines,
        "cut line end": "\n\n" + lines + "\n",
        "array": json.dumps(rows),
        "pretty": "\n " + json.dumps(rows, indent=2) + "\n",
    }


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_in_every_layout(tmp_path, format):
    rows = [ROWS[format]] * 3
    results = []
    for layout, text in layouts(rows).items():
        for pack in (bytes, gzip.compress):
            path = tmp_path / "some.jsonl"
            path.write_bytes(pack(text.encode()))
            got = list(importers.import_file(format, path))
            assert [e.id for e in got] == ["some-1", "some-2", "some-3"], layout
            results.append(got)
    assert all(got == results[0] for got in results)


def test_a_long_array_streams_over_many_reads(tmp_path):
    """Items far smaller and far larger than a read, line numbers right to the end."""
    rows = [talk("u" * (300_000 if i == 7 else 600), "é", f"{i}") for i in range(800)]
    path = tmp_path / "a.json"
    text = "[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]"
    path.write_text(text, encoding="utf-8")
    messages = []
    got = list(importers.import_file("agentgym", path, progress=messages.append))
    assert [e.transitions[0].next_state for e in got] == [(str(i),) for i in range(800)]
    assert messages == sorted(messages)
    assert messages[-1] == path.stat().st_size
    assert len(set(messages)) >= 5  # not read at once
    rows[600]["conversations"][0]["from"] = "cat"
    text = "[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"a\.json:602:.*human or gpt, got 'cat'"):
        list(importers.import_file("agentgym", path))


def test_the_first_episode_comes_before_the_last_line_is_read(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps(ROWS["openai"]) + "\nnonsense\n")
    stream = importers.import_file("openai", path)
    assert next(stream).id == "f-1"
    with pytest.raises(RecordError, match=r"f\.jsonl:2:.*one JSON object a line"):
        next(stream)


BROKEN = {
    "nothing": ("", "at least one episode"),
    "an empty array": ("[]", "at least one episode"),
    "a list of lists": ("[[1]]", r":1:.*a JSON object, got \[1\]"),
    "an open array": ('[{"conversations": []', r":1:.*array"),
    "an array after an item": (json.dumps([ROWS["agentgym"]])[:-1], "ends inside it"),
    "no comma": (json.dumps([ROWS["agentgym"]])[:-1] + "\n{}]", r":2:.*of , \] next"),
    "a last comma": (json.dumps([ROWS["agentgym"]])[:-1] + "\n,]", r":2:.*array"),
    "text after it": (json.dumps([ROWS["agentgym"]]) + "\nx", r":2:.*nothing after"),
    "half a pair": ('[{"conversations": "\\ud800"}]', "lone surrogates"),
    "an id again": (
        "\n".join([json.dumps(ROWS["agentgym"] | {"id": "x"})] * 2),
        r":2:.*not used before \(line 1\)",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_named(tmp_path, what):
    text, message = BROKEN[what]
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(RecordError, match=rf"f\.json.*{message}"):
        list(importers.import_file("agentgym", tmp_path / "f.json"))


def test_broken_bytes_of_an_array_are_named(tmp_path):
    path = tmp_path / "f.json"
    whole = json.dumps([ROWS["agentgym"]] * 3).encode()
    path.write_bytes(whole.replace(b'"a"', b'"\xff"'))
    with pytest.raises(RecordError, match=r"f\.json:1:.*UTF-8"):
        list(importers.import_file("agentgym", path))
    path.write_bytes(gzip.compress(whole * 50)[:-30])
    with pytest.raises(RecordError, match=r"f\.json:1:.*a whole gzip file"):
        list(importers.import_file("agentgym", path))


def test_no_file_and_no_such_format(tmp_path):
    with pytest.raises(RecordError, match=r"no such file; expected.*openai"):
        list(importers.import_file("openai", tmp_path / "none"))
    with pytest.raises(ValueError, match="'atari'; have openai, agentgym, gymnasium"):
        list(importers.import_file("atari", tmp_path / "none"))


@pytest.mark.parametrize("format", FORMATS)
def test_the_documented_before_becomes_the_documented_after(tmp_path, format):
    path = Path(__file__).parents[3] / "docs/reference/episodes.md"
    text = path.read_text(encoding="utf-8")
    part = text.split(f"### {format}\n")[1]
    before, after = re.findall(r"```json\n(.*?)\n```", part, re.DOTALL)[:2]
    (tmp_path / "example.jsonl").write_text(before, encoding="utf-8")
    (tmp_path / "after.jsonl").write_text(after, encoding="utf-8")
    got = list(importers.import_file(format, tmp_path / "example.jsonl"))
    assert got == records.read_episodes(tmp_path / "after.jsonl")


def test_without_a_seed_the_first_state_is_part_of_the_name():
    one, two = gym(task="cook"), gym(task="cook", observations=["z", "b", "c"])
    assert one.task.id != two.task.id
    assert one.task.id.startswith("cook#")
    assert gym(task="cook").task.id == one.task.id
    assert gym(task="cook", seed=3).task.id == "cook#seed-3"


def test_an_end_that_nobody_scored_stays_unscored():
    end = gym().transitions[-1]
    assert (end.terminated, end.success) == (True, None)
    assert gym(success=True).transitions[-1].success is True
