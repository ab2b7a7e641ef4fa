"""`import` and `inspect` at the command line."""

import contextlib
import dataclasses
import gzip
import json

import pytest

from dreamgym import cli
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *args):
    status = cli.main([str(a) for a in args])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def chats(count=3):
    """Solved and unsolved questions, one a line."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"question {i}"},
                {"role": "assistant", "content": "<think>hm</think> answer"},
                {"role": "user", "content": "thanks"},
            ],
            "score": i,
            "success": i > 0,
        }
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_traces_become_episodes_that_a_run_can_use(capsys, tmp_path):
    (tmp_path / "traces.jsonl").write_text(chats())
    status, out, err = run(
        capsys,
        "import",
        "openai",
        "traces.jsonl",
        "--to",
        "new/mine.jsonl.gz",
        "--env",
        "desk",
        "--family",
        "support",
    )
    assert (status, err) == (0, "")
    assert out.startswith(
        "new/mine.jsonl.gz: 3 episodes, 3 transitions from openai traces.jsonl\n"
    )
    assert "success         2 yes, 1 no, 0 not told" in out
    assert (tmp_path / "new/mine.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    episodes = read_episodes("new/mine.jsonl.gz")
    assert [e.id for e in episodes] == ["traces-1", "traces-2", "traces-3"]
    assert {(e.task.env, e.task.family, e.task.split) for e in episodes} == {
        ("desk", "support", "train")
    }
    assert episodes[0].transitions[0].action == "<think>hm</think> answer"
    collect = ("collect", "--preset", "tiny", "--run-dir", "r", "--episodes")
    assert run(capsys, *collect, "new/mine.jsonl.gz")[0] == 0
    held = read_episodes("r/episodes.jsonl") + read_episodes("r/dev.jsonl")
    assert len(held) == 3


def test_the_split_is_kept_unless_it_is_said(capsys, tmp_path):
    row = json.loads(chats(1)) | {"split": "test", "family": "own"}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    for text, split in (((), "test"), (("--split", "dev"), "dev")):
        assert (
            run(capsys, "import", "openai", "t.jsonl", "--to", "o.jsonl", *text)[0] == 0
        )
        (episode,) = read_episodes("o.jsonl")
        assert (episode.task.split, episode.task.family) == (split, "own")


def test_a_bad_trace_leaves_no_file_and_keeps_the_old_one(capsys, tmp_path):
    (tmp_path / "t.jsonl").write_text(chats(2) + '{"messages": [{"role": "robot"}]}\n')
    (tmp_path / "old.jsonl").write_text("kept")
    for to in ("new.jsonl", "old.jsonl"):
        status, _, err = run(capsys, "import", "openai", "t.jsonl", "--to", to)
        assert status == 2
        assert "t.jsonl:3: field 'messages[0].role': expected one of system" in err
    assert {p.name for p in tmp_path.iterdir()} == {"t.jsonl", "old.jsonl"}
    assert (tmp_path / "old.jsonl").read_text() == "kept"


def test_the_source_is_never_written_over(capsys, tmp_path):
    (tmp_path / "t.jsonl").write_text(chats())
    status, _, err = run(capsys, "import", "openai", "t.jsonl", "--to", "./t.jsonl")
    assert status == 2
    assert "is the file to be read" in err
    assert (tmp_path / "t.jsonl").read_text() == chats()


def test_an_unknown_format_is_refused_with_the_known(capsys):
    with pytest.raises(SystemExit) as stop:
        run(capsys, "import", "atari", "t.jsonl", "--to", "o.jsonl")
    assert stop.value.code == 2
    output = capsys.readouterr().err
    for word in ("atari", "openai", "agentgym", "gymnasium"):
        assert word in output


def test_inspect_sees_a_leak_between_files(capsys):
    one, two = (doubles.expert(t) for t in doubles.tasks("train")[:2])
    held = dataclasses.replace(
        one, id="held", task=dataclasses.replace(one.task, split="dev")
    )
    write_episodes("train.jsonl", [one, two])
    write_episodes("dev.jsonl.gz", [held])
    assert "leak" not in run(capsys, "inspect", "train.jsonl")[1]
    status, out, err = run(capsys, "inspect", "train.jsonl", "dev.jsonl.gz")
    assert (status, err) == (0, "")
    assert f"leak: the same task id in train and dev: 1 (such as {one.task.id})" in out
    status, out, _ = run(capsys, "inspect", "train.jsonl", "dev.jsonl.gz", "--json")
    result = json.loads(out)
    assert result["episodes"] == 3
    assert result["leaks"]["tasks"]["shared"] == [
        {"splits": ["train", "dev"], "count": 1}
    ]
    assert result["leaks"]["seen_in_train"]["dev"]["share"] == 1.0


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (None, "e.jsonl: no such file"),
        (b"", "e.jsonl: expected at least one episode"),
        (b"{}\n", "e.jsonl:1: expected a field 'schema'"),
        (
            gzip.compress(b"{}" * 99, mtime=0)[:-9],
            "e.jsonl:1: expected a whole gzip file",
        ),
    ],
)
@pytest.mark.parametrize("args", [["inspect"], ["import", "openai", "--to", "o.jsonl"]])
def test_a_bad_file_is_one_line_on_stderr(content, output, args, capsys, tmp_path):
    if content is not None:
        (tmp_path / "e.jsonl").write_bytes(content)
    status, out, err = run(capsys, *args, "e.jsonl")
    output = output.replace(
        "'schema'", "'schema'" if args == ["inspect"] else "'messages'"
    )
    assert (status, out) == (2, "")
    assert err.startswith(f"dreamgym {args[0]}: {output}")
    assert err.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("command", ["import", "inspect"])
def test_the_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(capsys, command, "--help")
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert f"examples:\n  dreamgym {command} " in output


def test_a_bar_follows_the_bytes(monkeypatch, tmp_path):
    from dreamgym.cli import data
    from dreamgym.run import display

    shown = []

    @contextlib.contextmanager
    def progress_bar(*settings):
        shown.append(settings)
        yield shown.append

    monkeypatch.setattr(display, "progress_bar", progress_bar)
    path = tmp_path / "t.jsonl"
    path.write_text(chats(5))
    with data._bar(path, "read") as show:
        show(100)
    assert shown == [(path.stat().st_size, "read t.jsonl", "B"), 100]


def test_what_cannot_be_taken_is_left_out_where_that_is_asked_for(capsys, tmp_path):
    bad = '{"messages": [{"role": "robot"}]}\n'
    cut = '{"messages": [{"role": "us\n'  # as where a log was cut
    (tmp_path / "t.jsonl").write_text(bad * 6 + cut + chats(2))
    status, out, err = run(
        capsys, "import", "openai", "t.jsonl", "--to", "o.jsonl", "--skip"
    )
    assert status == 0
    assert "2 episodes" in out
    assert "; 7 left out" in out
    assert "left out: t.jsonl:1: field 'messages[0].role'" in err
    assert "left out: 2 more" in err
    (tmp_path / "t.jsonl").write_text(bad)
    status, _, err = run(
        capsys, "import", "openai", "t.jsonl", "--to", "none.jsonl", "--skip"
    )
    assert status == 2
    assert not (tmp_path / "none.jsonl").exists()
