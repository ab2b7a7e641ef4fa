"""A file of episodes gets its traces: streamed, resumed, by all three ways."""

import dataclasses
import itertools
import json
import re

import pytest

from dreamgym import cli
from dreamgym.commands import annotate
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect
from tests import doubles
from tests.chat_server import answering, serving, user_text
from worldmodel import reasoning
from worldmodel.data.records import read_episodes, write_episodes
from worldmodel.reasoning import Report, RuleAnnotator

EPISODES = [doubles.expert(t) for t in doubles.tasks("train")[:12]]
RULED = [reasoning.annotate(e) for e in EPISODES]
STEPS = sum(len(e.transitions) for e in EPISODES)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(annotate, "EPISODES", 3)  # several chunks of a short file
    monkeypatch.setattr(annotate, "TRANSITIONS", 2)
    write_episodes("in.jsonl", EPISODES)


def run(capsys, *args):
    try:
        status = cli.main(["annotate", *map(str, args)])
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def names(tmp_path):
    return {p.name for p in tmp_path.iterdir()}


class Breaking:
    """The rule, until it is interrupted in the chunk of that number."""

    def __init__(self, at):
        self.at, self.seen, self.report = at, [], Report({})

    def annotate(self, episodes):
        if len(self.seen) == self.at:
            raise KeyboardInterrupt
        self.seen.append([e.id for e in episodes])
        self.report = Report({"written": 1}, (f"chunk {len(self.seen)}",))
        return [reasoning.annotate(e) for e in episodes]


def write(tmp_path, annotator, **made):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    result = annotate.survey(source, out)
    return annotate.annotate(source, out, annotator, made, result)


def test_what_was_got_before_a_kill_is_not_got_again(tmp_path):
    first, second = Breaking(2), Breaking(99)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, first, by="test")
    assert names(tmp_path) == {"in.jsonl", ".out.jsonl.part"}
    with (tmp_path / ".out.jsonl.part").open("ab") as file:
        file.write(b'{"counts": {"writ')  # killed in the middle of a line
    report = write(tmp_path, second, by="test")
    seen = first.seen + second.seen
    assert [len(ids) for ids in seen] == [3, 3, 3, 3]
    assert [x for ids in seen for x in ids] == [e.id for e in EPISODES]
    assert read_episodes("out.jsonl") == RULED
    assert report == ({"written": 4}, ("chunk 1", "chunk 2", "chunk 1", "chunk 2"))
    assert names(tmp_path) == {"in.jsonl", "out.jsonl"}


def test_another_attempt_is_not_mixed_with_the_first(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, Breaking(2), by="test", samples=4)
    before = (tmp_path / ".out.jsonl.part").read_bytes()
    with pytest.raises(RunError, match=r"samples: 4 there, 8 here.*remove it"):
        write(tmp_path, Breaking(9), by="test", samples=8)
    write_episodes("in.jsonl", EPISODES[1:])
    with pytest.raises(RunError, match=r"file: '\w+' there, '\w+' here"):
        write(tmp_path, Breaking(9), by="test", samples=4)
    assert (tmp_path / ".out.jsonl.part").read_bytes() == before
    assert not (tmp_path / "out.jsonl").exists()


def test_only_a_chunk_is_held(tmp_path):
    read = []

    def source():
        for e in EPISODES:
            read.append(e.id)
            yield e

    part = annotate._Part(tmp_path / "out.jsonl", {})
    got = annotate._filled(source(), RuleAnnotator(), part, lambda *_: None)
    assert (next(got), len(read)) == (RULED[0], 3)
    assert ([next(got) for _ in range(3)][-1], len(read)) == (RULED[3], 6)


def test_chunks_have_enough_of_both(monkeypatch):
    sizes = [len(e.transitions) for e in EPISODES]
    monkeypatch.setattr(annotate, "TRANSITIONS", 14)
    chunks = list(annotate._chunks(iter(EPISODES)))
    assert [e for c in chunks for e in c] == EPISODES
    for chunk in chunks[:-1]:
        steps = [len(e.transitions) for e in chunk]
        assert len(chunk) >= 3
        assert sum(steps) >= 14
        assert len(chunk) == 3 or sum(steps[:-1]) < 14
    assert len(chunks) > 1 < max(sizes)


# --- at the command line -----------------------------------------------------


def test_by_rule_from_gzip_to_gzip(capsys, tmp_path):
    steps = list(EPISODES[1].transitions)
    steps[0] = dataclasses.replace(steps[0], reasoning="mine")
    half = dataclasses.replace(EPISODES[1], transitions=tuple(steps))
    write_episodes("in.jsonl.gz", [RULED[0], half, *EPISODES[2:]])
    args = ("in.jsonl.gz", "--to", "new/out.jsonl.gz", "--by", "rule")
    status, out, err = run(capsys, *args)
    assert (status, err) == (0, "")
    assert (tmp_path / "new/out.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    results = read_episodes("new/out.jsonl.gz")
    had = len(RULED[0].transitions) + 1
    assert f"12 episodes, {STEPS} transitions; {had} had a trace\n" in out
    assert f"\n{STEPS - had} traces by rule\n" in out
    assert results[1].transitions[0].reasoning == "mine"
    assert results[1].transitions[1:] == RULED[1].transitions[1:]
    assert [results[0], *results[2:]] == [RULED[0], *RULED[2:]]
    assert names(tmp_path / "new") == {"out.jsonl.gz"}


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """A run that counts as pretrained; replies 1 and later are right for "go right"."""

    class Half(doubles.Known):
        def sample(self, queries, number):
            results = self.predict(queries)
            good = [number and q.action == "go right" for q in queries]
            return [
                p._replace(
                    reasoning=f"own {number}",
                    next_state=p.next_state if ok else ("a cat",),
                )
                for p, ok in zip(results, good, strict=True)
            ]

    made = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    made.stage("collect", lambda: collect.body(made))
    made.write_json("stages/pretrain.json", {"numbers": {}, "seconds": 0})
    model = Half(doubles.ReplayMemory())
    monkeypatch.setattr(annotate, "load_experience", lambda _: model)
    return model


@pytest.mark.usefixtures("fitted")
def test_by_own_and_then_into_a_run(capsys):
    args = ("in.jsonl", "--to", "out.jsonl", "--by", "own", "--run", "r")
    status, out, err = run(capsys, *args, "--samples", 3)
    assert (status, err) == (0, "")
    results = read_episodes("out.jsonl")
    right = 0
    for e, ruled in zip(results, RULED, strict=True):
        for t, rule in zip(e.transitions, ruled.transitions, strict=True):
            right += t.action == "go right"
            output = "own 1" if t.action == "go right" else rule.reasoning
            assert t == dataclasses.replace(rule, reasoning=output)
    assert 0 < right < STEPS
    samples = 2 * right + 3 * (STEPS - right)
    assert f"traces: {right} of the model's own, {STEPS - right} by rule" in out
    assert f"replies: {samples}, {100 * right / samples:.1f} % accepted; 2.00" in out
    collect_it = ("collect", "--preset", "tiny", "--run-dir", "n", "--episodes")
    assert cli.main([*collect_it, "out.jsonl"]) == 0
    kept = read_episodes("n/episodes.jsonl") + read_episodes("n/dev.jsonl")
    traced = {e.id: [t.reasoning for t in e.transitions] for e in results}
    assert {e.id: [t.reasoning for t in e.transitions] for e in kept} == traced


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"reasoning": False}, "no reasoning"), ({"temperature": 0.0}, "the same")],
)
def test_a_model_that_cannot_tell_is_refused(
    changes, message, capsys, fitted, tmp_path
):
    fitted.config = dataclasses.replace(fitted.config, **changes)
    args = ("in.jsonl", "--to", "out.jsonl", "--by", "own", "--run", "r")
    status, _, err = run(capsys, *args)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err
    assert names(tmp_path) == {"in.jsonl", "r"}


def explained(body):
    """What a teacher says of as many steps as it was asked for."""
    (count,) = re.findall(r"each of the (\d+) steps", user_text(body))
    row = dict.fromkeys(("overall_plan", "success_mode", "failure_mode"), "so")
    return json.dumps(row | {"explanations": [f"why {i}" for i in range(int(count))]})


def test_by_teacher_nothing_is_paid_for_twice(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "secret-key")
    counter = itertools.count()

    def failing(body):
        # Of the fourth chunk all are refused: the key is not taken any more.
        return explained(body) if next(counter) < 9 else 401

    with serving(answering(failing)) as server:
        args = (
            "in.jsonl",
            "--to",
            "out.jsonl",
            "--by",
            "teacher",
            "--server",
            server.url,
            "--server-model",
            "large",
            "--server-key-env",
            "TEACHER_KEY",
            "--price-in",
            1e5,
            "--price-out",
            0,
        )
        status, out, err = run(capsys, *args)
        assert (status, out) == (2, "")
        assert "refused" in err
        assert "12 requests sent" in err
        assert "cost 9" in err  # ten tokens read for each of nine
        left = {".out.jsonl.part", "out.jsonl.chat_cache.sqlite"}
        assert names(tmp_path) == {"in.jsonl"} | left
        assert server.headers[0]["Authorization"] == "Bearer secret-key"
        assert {b["model"] for b in server.posts} == {"large"}

        server.posts.clear()
        server.behaviours = (answering(explained),)
        status, out, err = run(capsys, *args)
        assert (status, err) == (0, "")
        assert len(server.posts) == 3
        assert "episodes: 12 by the teacher, 0 by rule\n" in out
        assert "asked this time: 3 requests sent, 0 known before, 0 tried again" in out
        for e, old in zip(read_episodes("out.jsonl"), EPISODES, strict=True):
            steps = enumerate(old.transitions)
            output = [dataclasses.replace(t, reasoning=f"why {i}") for i, t in steps]
            assert e == dataclasses.replace(old, transitions=tuple(output))

        # Once more from the beginning: every answer is known.
        (tmp_path / "out.jsonl").unlink()
        server.posts.clear()
        status, out, _ = run(capsys, *args)
        assert (status, server.posts) == (0, [])
        assert "0 requests sent, 12 known before" in out
        assert "0 tokens read, 0 written, cost 0" in out
    assert not any(b"secret-key" in p.read_bytes() for p in tmp_path.iterdir())


def test_where_the_teacher_fails_the_rule_stands_and_it_is_said(capsys):
    def failing(body):
        long = max(len(e.transitions) for e in EPISODES)
        many = f"of the {long} steps" in user_text(body)
        return "Sure!" if many else explained(body)

    with serving(answering(failing)) as server:
        args = ("--by", "teacher", "--server", server.url)
        status, out, _ = run(capsys, "in.jsonl", "--to", "out.jsonl", *args)
    assert status == 0
    most = max(len(e.transitions) for e in EPISODES)
    lost = [e for e in EPISODES if len(e.transitions) == most]
    assert f"{12 - len(lost)} by the teacher, {len(lost)} by rule\n" in out
    assert f"\n  episode {lost[0].id!r}: malformed: " in out
    for e, ruled in zip(read_episodes("out.jsonl"), RULED, strict=True):
        assert (e == ruled) == (len(e.transitions) == most)


@pytest.mark.parametrize("hopeless", [5, 99])
def test_a_teacher_that_explains_nothing_ends_the_command(
    capsys, tmp_path, monkeypatch, hopeless
):
    monkeypatch.setattr(annotate, "HOPELESS", hopeless)
    with serving(answering(lambda _: "Sure!")) as server:
        args = ("--by", "teacher", "--server", server.url)
        status, _, err = run(capsys, "in.jsonl", "--to", "out.jsonl", *args)
        count = 6 if hopeless == 5 else len(EPISODES)  # in chunks of three
        assert f"the teacher explained none of {count} episodes" in err
        assert len(server.posts) == 3 * count  # each asked again twice
    assert status == 2
    assert "malformed" in err
    assert names(tmp_path) == {"in.jsonl", "out.jsonl.chat_cache.sqlite"}
    # A server that makes sense is asked by the same command, from the first one on.
    with serving(answering(explained)) as server:
        args = ("--by", "teacher", "--server", server.url)
        status, out, _ = run(capsys, "in.jsonl", "--to", "out.jsonl", *args)
    assert status == 0
    assert "12 by the teacher, 0 by rule" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--by"),
        (("--by", "oracle"), "'rule', 'teacher', 'own'"),
        (("--by", "teacher"), "--by teacher needs --server URL"),
        (("--by", "own"), "--by own needs --run RUN"),
        (("--by", "own", "--run", "nowhere"), "nowhere: no run there"),
        (("--by", "rule", "--samples", 3), "--samples is for --by own, not --by rule"),
        (("--by", "own", "--run", "r", "--price-in", 1), "--price-in is for --by"),
        (("--by", "teacher", "--server", "nowhere"), "must be http"),
        (
            ("--by", "teacher", "--server", "http://x/v1", "--server-key-env", "NO"),
            "NO holds no API key",
        ),
    ],
)
def test_what_cannot_be_done_is_said_before_a_file_is_read(
    args, message, capsys, tmp_path
):
    status, out, err = run(capsys, "missing.jsonl", "--to", "out.jsonl", *args)
    assert (status, out) == (2, "")
    assert message in err
    assert names(tmp_path) == {"in.jsonl"}


@pytest.mark.parametrize("source", ["missing.jsonl", "bad.jsonl"])
def test_bad_episodes_are_told_before_anybody_is_asked(source, capsys, tmp_path):
    good = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "bad.jsonl").write_text(good + "{}\n")
    with serving(answering(explained)) as server:
        args = ("--by", "teacher", "--server", server.url)
        status, out, err = run(capsys, source, "--to", "out.jsonl", *args)
        assert server.posts == []
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert ("bad.jsonl:13" if source == "bad.jsonl" else "no such file") in err
    assert names(tmp_path) == {"in.jsonl", "bad.jsonl"}


def test_what_is_there_is_not_written_over(capsys, tmp_path):
    before = (tmp_path / "in.jsonl").read_bytes()
    status, _, err = run(capsys, "in.jsonl", "--to", "./in.jsonl", "--by", "rule")
    assert (status, err.count("\n")) == (2, 1)
    assert "in.jsonl: there already" in err
    assert (tmp_path / "in.jsonl").read_bytes() == before


def test_a_run_that_is_not_fitted_is_refused(capsys, tmp_path):
    Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    args = ("missing.jsonl", "--to", "out.jsonl", "--by", "own", "--run", "r")
    status, _, err = run(capsys, *args)
    assert (status, err.count("\n")) == (2, 1)
    assert "stage 'pretrain' has not been run" in err
    assert names(tmp_path) == {"in.jsonl", "r"}


@pytest.mark.slow
def test_a_fitted_run_annotates_with_its_own_samples(capsys, tmp_path):
    fit = ("pretrain", "--preset", "tiny", "--env", "tests.doubles:Corridor")
    for stage in ("collect", fit[0]):
        assert cli.main([stage, *fit[1:], "--run-dir", "r"]) == 0
    capsys.readouterr()
    for out in ("one.jsonl", "two.jsonl"):
        args = ("in.jsonl", "--to", out, "--by", "own", "--run", "r", "--samples", 2)
        status, output, _ = run(capsys, *args)
        assert status == 0
        assert re.search(r"replies: \d+, \d+\.\d % accepted", output)
    assert (tmp_path / "one.jsonl").read_bytes() == (
        tmp_path / "two.jsonl"
    ).read_bytes()
    assert all(t.reasoning for e in read_episodes("one.jsonl") for t in e.transitions)
