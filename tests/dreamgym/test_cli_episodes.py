"""Episodes of a file (`--episodes`) at the command line."""

import dataclasses
import json

import pytest

from dreamgym.commands import quickstart as quickstart_command
from dreamgym.config.presets import preset
from dreamgym.run.directory import RunError
from dreamgym.run.runner import run_stages
from tests import doubles
from tests.dreamgym.test_cli import refused, run, tiny
from worldmodel.data.records import SCHEMA, read_episodes, write_episodes


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(count=12):
    some = doubles.tasks("train")[:count]
    write_episodes("e.jsonl", [doubles.expert(t) for t in some])
    with open("e.jsonl", encoding="utf-8") as file:
        return file.read().splitlines()


def changed(line, **changes):
    return json.dumps(json.loads(line) | changes)


def without(line, key):
    return json.dumps({k: v for k, v in json.loads(line).items() if k != key})


def wrong_step(line, **changes):
    row = json.loads(line)
    row["transitions"][-1] |= changes
    return json.dumps(row)


BAD = {
    "not json": (lambda _: "{'id': 1}", ["JSON object"]),
    "a list": (lambda _: "[1, 2]", ["JSON object"]),
    "no schema": (lambda x: without(x, "schema"), ["schema"]),
    "other schema": (
        lambda x: changed(x, schema="dreamgym.episodes/9"),
        [SCHEMA, "episodes/9"],
    ),
    "no id": (lambda x: without(x, "id"), ["'id'"]),
    "no steps": (lambda x: changed(x, transitions=[]), ["at least one transition"]),
    "action a number": (
        lambda x: wrong_step(x, action=3),
        ["action", "expected text", "3"],
    ),
    "reward a text": (
        lambda x: wrong_step(x, rewards={"coin": "much"}),
        ["rewards", "a number", "much"],
    ),
    "reward infinite": (
        lambda x: wrong_step(x, rewards={"coin": float("inf")}),
        ["finite"],
    ),
    "not chained": (lambda x: wrong_step(x, state=["moon"]), ["state", "moon"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_with_file_line_and_expectation(name, capsys):
    change, messages = BAD[name]
    lines = rows()
    long = next(i for i, x in enumerate(lines) if len(json.loads(x)["transitions"]) > 1)
    lines[long] = change(lines[long])
    with open("e.jsonl", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    error = refused(
        capsys, "collect", "--preset", "tiny", "--run-dir", "r", "--episodes", "e.jsonl"
    )
    assert f"e.jsonl:{long + 1}:" in error
    assert "expected" in error
    for word in messages:
        assert word in error


def test_a_truncated_file_is_named_as_such(capsys):
    text = "\n".join(rows())
    with open("e.jsonl", "w", encoding="utf-8") as file:
        file.write(text[:-40])
    error = refused(capsys, "collect", "--run-dir", "r", "--episodes", "e.jsonl")
    assert "e.jsonl:12:" in error
    assert "the file ends inside it" in error


def test_an_empty_file_and_bytes_that_are_no_text_are_refused(capsys, tmp_path):
    (tmp_path / "e.jsonl").write_text("")
    error = refused(capsys, "collect", "--run-dir", "r", "--episodes", "e.jsonl")
    assert "at least one episode" in error
    first = rows()[0]
    (tmp_path / "e.jsonl").write_bytes(first.encode() + b"\n\xff\xfe{}\n")
    error = refused(capsys, "collect", "--run-dir", "s", "--episodes", "e.jsonl")
    assert "e.jsonl" in error
    assert "UTF-8" in error


def test_a_repaired_file_goes_on_under_the_same_command(capsys):
    good = rows()
    with open("e.jsonl", "w", encoding="utf-8") as file:
        file.write("\n".join([*good[:-1], "oops"]) + "\n")
    refused(
        capsys, "collect", "--preset", "tiny", "--run-dir", "r", "--episodes", "e.jsonl"
    )
    rows()
    assert tiny("collect", "--episodes", "e.jsonl") == 0


def test_episodes_from_elsewhere_are_split_by_task_and_kept(capsys, tmp_path):
    rows()
    assert tiny("collect", "--episodes", "e.jsonl") == 0
    train, dev = (read_episodes(tmp_path / f"r/{n}.jsonl") for n in ("episodes", "dev"))
    assert len(train) + len(dev) == 12
    assert not {e.task.id for e in train} & {e.task.id for e in dev}
    assert {e.task.split for e in dev} == {"dev"}
    capsys.readouterr()
    # Another file under the same run directory is another run.
    write_episodes("e.jsonl", [doubles.expert(t) for t in doubles.tasks("dev")])
    error = refused(
        capsys, "collect", "--preset", "tiny", "--run-dir", "r", "--episodes", "e.jsonl"
    )
    assert "has changed" in error
    assert len(read_episodes(tmp_path / "r/episodes.jsonl")) == len(train)


def test_a_task_on_both_sides_is_refused_and_test_episodes_are_left_out(capsys):
    one, two, three = (doubles.expert(t) for t in doubles.tasks("train")[:3])

    def of(split, episode):
        task = dataclasses.replace(episode.task, split=split)
        return dataclasses.replace(episode, id=split, task=task)

    args = ("collect", "--preset", "tiny", "--run-dir", "r", "--episodes", "e.jsonl")
    write_episodes("e.jsonl", [one, two, of("dev", one)])
    error = refused(capsys, *args)
    assert f"got 1 in train and dev (such as {one.task.id!r})" in error
    for number, (split, output) in enumerate(
        (
            ("test", "of split 'train' or 'dev', got none"),
            ("dev", "expected an episode of split 'train', got none"),
        )
    ):
        write_episodes("e.jsonl", [of(split, one)])
        assert output in refused(capsys, *args[:-3], f"r{number}", *args[-2:])
    write_episodes("e.jsonl", [one, two, of("test", three)])
    assert run(*args[:-3], "s", *args[-2:]) == 0
    assert "1 episodes of split 'test' are left out" in capsys.readouterr().err
    held = read_episodes("s/episodes.jsonl") + read_episodes("s/dev.jsonl")
    assert {e.task.id for e in held} == {one.task.id, two.task.id}


class Collected(Exception):
    """The run went on after its first stage."""


def test_a_run_goes_on_without_a_win_where_progress_is_paid(tmp_path, monkeypatch):
    """It would imitate the part that earned more than the others."""
    del tmp_path
    lost = [doubles.episode(t, ["go right"]) for t in doubles.tasks("train")[:4]]
    step = dataclasses.replace(lost[0].transitions[0], rewards={"progress": 0.5})
    paid = dataclasses.replace(lost[0], transitions=(step,))
    dev = dataclasses.replace(lost[3], task=doubles.tasks("dev")[0])

    def first(run, table, names, **settings):
        assert "collect" in names
        run_stages(run, table, ["collect"], **settings)
        raise Collected

    monkeypatch.setattr(quickstart_command, "run_stages", first)
    for number, episodes in enumerate(([*lost[:3], dev], [paid, *lost[1:3], dev])):
        write_episodes("e.jsonl", episodes)
        config = preset("tiny", {"data.episodes": "e.jsonl"})
        error = Collected if number else RunError
        with pytest.raises(error):
            quickstart_command.quickstart(f"r{number}", config)
    # Rollouts cannot begin in a win that nobody has.
    share = {"train.curriculum.demonstration_starts.share": 0.5}
    config = preset("tiny", {"data.episodes": "e.jsonl", **share})
    with pytest.raises(RunError, match=r"demonstration_starts .* begin in won"):
        quickstart_command.quickstart("starts", config)


@pytest.mark.medium
def test_nothing_to_imitate_is_said_before_anything_is_fitted(capsys, tmp_path):
    lost = [
        dataclasses.replace(doubles.expert(t), success=None)
        for t in doubles.tasks("train")[:4]
    ]
    write_episodes("e.jsonl", lost)
    error = refused(
        capsys,
        "quickstart",
        "--preset",
        "tiny",
        "--run-dir",
        "r",
        "--episodes",
        "e.jsonl",
    )
    assert "no successful episode to imitate among the collected" in error
    assert "do not say whether they were won. Imitation needs episodes" in error
    assert "dreamgym judge FILE" in error
    assert " 0 broke," in error
    assert not (tmp_path / "r/experience").exists()


def test_one_task_alone_cannot_be_split(capsys):
    one = doubles.expert(doubles.task(0, 1, 2))
    write_episodes("e.jsonl", [one, dataclasses.replace(one, id="again")])
    error = refused(capsys, "collect", "--run-dir", "r", "--episodes", "e.jsonl")
    assert "at least 2 tasks" in error
