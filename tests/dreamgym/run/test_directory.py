"""A run directory: manifest, refusals, stage markers, nothing overwritten."""

import json
import types

import pytest

from dreamgym.config.overrides import digest_of
from dreamgym.config.presets import preset
from dreamgym.config.stages import UncertaintyConfig
from dreamgym.run import directory
from dreamgym.run.directory import SCHEMA, Run, RunError
from dreamgym.run.display import progress_bar
from dreamgym.run.tracking import FILE, read_metrics

TINY = preset("tiny")


def everything(root):
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


def test_the_manifest_says_what_the_run_is(tmp_path):
    run = Run(tmp_path / "deep/run", preset("tiny", seed=3))
    data = run.read_json("manifest.json")
    assert data["schema"] == SCHEMA
    assert (data["preset"], data["seed"]) == ("tiny", 3)
    assert data["settings"] == run.config.digest()
    assert data["config"]["collect"]["train_tasks"] == run.config.collect.train_tasks
    assert {"python", "jax", "dreamgym"} <= data["versions"].keys()


def test_the_same_settings_open_the_run_again(tmp_path):
    Run(tmp_path, TINY).write_json("a.json", {"a": 1})
    before = everything(tmp_path)
    assert Run(tmp_path, TINY).read_json("a.json") == {"a": 1}
    assert everything(tmp_path) == before


def test_a_run_that_has_not_begun_takes_other_settings(tmp_path):
    def fail():
        raise ConnectionError("the environment does not start")

    with Run(tmp_path, TINY) as run, pytest.raises(ConnectionError):
        run.stage("collect", fail)
    with Run(tmp_path, preset("tiny", seed=4)) as other:
        assert other.read_json("manifest.json")["seed"] == 4
        with pytest.raises(BlockingIOError, match="works in this run"):
            Run(tmp_path, TINY)
        other.stage("collect", dict)
    with pytest.raises(RunError, match=r"seed: 4 there, 0 here"):
        Run(tmp_path, TINY)


def test_the_command_at_work_has_its_own_settings(tmp_path, capsys):
    first = Run(tmp_path, TINY)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/collect.seconds").write_text("300.0")
    Run(tmp_path, preset("tiny", seed=4))  # another command, before the first begins
    assert "seed: 0 there, 4 here); it had not begun" in capsys.readouterr().err
    assert not (tmp_path / "stages/collect.seconds").exists()
    with first:
        assert first.read_json("manifest.json")["seed"] == 0
        first.stage("collect", dict)
    with pytest.raises(RunError, match="seed: 0 there, 4 here"):
        Run(tmp_path, preset("tiny", seed=4))


def test_what_a_tracker_or_a_kill_leaves_is_no_beginning(tmp_path):
    Run(tmp_path, TINY)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/events.out").write_text("x")
    (tmp_path / ".manifest.json.7.tmp").write_text("{")
    Run(tmp_path, preset("tiny", seed=4))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/manifest.json").write_text("{}")
    with pytest.raises(RunError, match="seed: 4 there, 0 here"):
        Run(tmp_path, TINY)


def test_steps_that_were_paid_for_keep_the_settings(tmp_path):
    def play_and_fail():
        run.real_steps.add()
        raise ConnectionError("the environment has ended")

    with Run(tmp_path, TINY) as run, pytest.raises(ConnectionError):
        run.stage("collect", play_and_fail)
    with pytest.raises(RunError, match=r"seed: 0 there, 4 here"):
        Run(tmp_path, preset("tiny", seed=4))


def test_other_settings_are_refused_and_named(tmp_path):
    Run(tmp_path, TINY).mark("collect", {})
    before = everything(tmp_path)
    with pytest.raises(RunError, match=r"other settings.*seed: 0 there, 4 here"):
        Run(tmp_path, preset("tiny", seed=4))
    with pytest.raises(RunError, match=r"collect\.train_tasks: 24 there"):
        Run(tmp_path, preset("default"))
    assert everything(tmp_path) == before


def test_a_changed_episodes_file_is_refused(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text("one")
    config = preset("tiny", {"env.id": "", "data.episodes": str(path)})
    Run(tmp_path / "run", config).mark("collect", {})
    path.write_text("two")
    with pytest.raises(RunError, match="the episodes file has changed"):
        Run(tmp_path / "run", config)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("dreamgym.run/1", "the last version that reads it is commit 41d68fb"),
        ("dreamgym.run/9", "another version made it"),
        (None, "got None: another version made it"),
    ],
)
def test_another_schema_is_refused(tmp_path, schema, message):
    run = Run(tmp_path, TINY)
    manifest = run.read_json("manifest.json") | {"schema": schema}
    run.write_json("manifest.json", manifest)
    before = everything(tmp_path)
    for again in (lambda: Run(tmp_path, TINY), lambda: Run.open(tmp_path)):
        with pytest.raises(RunError, match=rf"manifest\.json: expected .*{message}"):
            again()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null"])
def test_a_broken_manifest_is_refused_and_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json"):
        Run(tmp_path, TINY)
    assert (tmp_path / "manifest.json").read_text() == text


def test_a_foreign_directory_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis.txt").write_text("two years")
    with pytest.raises(RunError, match=r"not empty and no run of ours"):
        Run(tmp_path, TINY)
    assert everything(tmp_path) == {"thesis.txt": b"two years"}


def test_what_a_kill_left_of_the_first_write_is_not_foreign(tmp_path):
    (tmp_path / ".manifest.json.4711.tmp").write_text("{")
    assert Run(tmp_path, TINY).path("manifest.json").is_file()


def test_a_stage_runs_once_and_leaves_its_numbers(tmp_path, capsys):
    run = Run(tmp_path, TINY)
    calls = []

    def body():
        calls.append(1)
        return {"loss": 0.123456, "games": 7}

    first = run.stage("collect", body)
    assert "loss 0.123" in capsys.readouterr().out
    again = Run(tmp_path, TINY).stage("collect", body)
    assert "done before" in capsys.readouterr().err
    assert len(calls) == 1
    assert first["numbers"] == again["numbers"] == {"loss": 0.123456, "games": 7}
    assert run.require("collect")["seconds"] >= 0


def test_a_stage_that_fails_has_no_marker_and_its_seconds_add_up(tmp_path, monkeypatch):
    run = Run(tmp_path, TINY)
    clock = iter([0.0, 5.0, 100.0, 103.0])
    fake = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(directory, "time", fake)

    def fail():
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run.stage("collect", fail)
    assert run.done("collect") is None
    with pytest.raises(RunError, match=r"'collect' has not been run.*dreamgym collect"):
        run.require("collect")
    run.stage("collect", dict)
    assert run.done("collect")["seconds"] == 8.0
    assert sorted(p.name for p in (tmp_path / "stages").iterdir()) == ["collect.json"]


def test_json_is_replaced_at_once_or_not_at_all(tmp_path):
    run = Run(tmp_path, TINY)
    run.write_json("a.json", {"x": 1})
    with pytest.raises(TypeError):
        run.write_json("a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "manifest.json"]


def test_drop_removes_a_folder_and_only_that(tmp_path):
    run = Run(tmp_path, TINY)
    (tmp_path / "checkpoints/a").mkdir(parents=True)
    (tmp_path / "checkpoints/b").mkdir()
    run.drop("checkpoints/a")
    run.drop("checkpoints/a")
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["b"]


def test_the_bar_takes_positions_notes_and_too_much():
    with progress_bar(3, "x") as show:
        for done in (1, 3, 9):
            show(done, {"loss": 0.5, "step": done})


def test_what_is_followed_is_told_with_its_speed_and_gaps_are_filled(
    tmp_path, monkeypatch
):
    clock = iter([100.0, 102.0, 107.0, 107.5])
    run = Run(tmp_path, TINY)
    with monkeypatch.context() as patched:
        fake = types.SimpleNamespace(monotonic=lambda: next(clock, 110.0))
        patched.setattr(directory, "time", fake)
        with run.progress_report("bc", 30) as output:
            output(10, {"loss": 2.0, "tokens": 100})  # in 2 s
            output(10, {})
            output(20, {"loss": 1.0, "tokens": 110})  # in 5.5 s since the last row
    run.write_curve("bc", [{"step": 20, "loss": 1.0}, {"step": 30, "loss": 0.5}])
    rows = [(r["stage"], r["step"], r["metrics"]) for r in read_metrics(run.path(FILE))]
    assert rows == [
        ("bc", 10, {"loss": 2.0, "tokens": 100, "tokens/s": 50.0}),
        ("bc", 20, {"loss": 1.0, "tokens": 110, "tokens/s": 20.0}),
        ("bc", 30, {"loss": 0.5}),
    ]
    lines = run.path("curves/bc.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in lines] == [20, 30]
    run.stage("warmstart", lambda: {"experts": 6, "note": "text"})
    *_, last = read_metrics(run.path(FILE))
    assert (last["stage"], last["metrics"]["experts"]) == ("done/warmstart", 6)


def test_a_run_is_opened_with_the_settings_it_was_made_with(tmp_path):
    config = preset(
        "tiny", {"env.id": "a:B", "pretrain.permute_outcomes": True}, seed=3
    )
    made = Run(tmp_path / "r", config)
    opened = Run.open(tmp_path / "r")
    assert opened.config == config
    assert opened.config.digest() == made.config.digest()


def test_what_is_no_run_is_not_opened(tmp_path):
    with pytest.raises(RunError, match="no run there"):
        Run.open(tmp_path)
    Run(tmp_path / "r", preset("tiny"))
    path = tmp_path / "r/manifest.json"
    data = json.loads(path.read_text())
    data["config"]["pretrain"]["speed"] = 9
    path.write_text(json.dumps(data))
    with pytest.raises(
        RunError, match=r"made by dreamgym .*PretrainConfig has no \['speed'\]"
    ):
        Run.open(tmp_path / "r")
    path.write_text("[]")
    with pytest.raises(RunError, match="expected a JSON object"):
        Run.open(tmp_path / "r")


def test_a_run_of_before_a_setting_did_what_its_default_does(tmp_path):
    Run(tmp_path / "r", TINY).mark("collect", {})
    path = tmp_path / "r/manifest.json"
    data = json.loads(path.read_text())
    del data["config"]["uncertainty"]  # as a version before would have written it
    digest = digest_of(data["config"], "")
    path.write_text(json.dumps(data | {"settings": digest}))
    assert Run.open(tmp_path / "r").config == TINY
    Run(tmp_path / "r", TINY)
    doubting = preset("tiny", uncertainty=UncertaintyConfig(false_abort_rate=0.1))
    with pytest.raises(RunError, match="uncertainty"):
        Run(tmp_path / "r", doubting)


def test_a_run_of_before_a_setting_is_opened_with_its_episodes_and_no_others(tmp_path):
    file = tmp_path / "e.jsonl"
    file.write_text("one")
    config = preset("tiny", {"env.id": "", "data.episodes": str(file)})
    made = Run(tmp_path / "r", config)
    made.mark("collect", {})
    data = made.read_json("manifest.json")
    del data["config"]["server"]  # as a version before would have written it
    before = digest_of(data["config"], config.data.episodes)
    assert before != data["settings"]
    made.write_json("manifest.json", data | {"settings": before})
    assert Run.open(tmp_path / "r").config == config
    file.write_text("two")
    with pytest.raises(RunError, match="the episodes file has changed"):
        Run(tmp_path / "r", config)


def test_a_marker_cut_short_is_named(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    path = run.path("stages/collect.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(RunError, match=r"stages/collect\.json: expected JSON"):
        run.done("collect")


def test_what_a_kill_left_of_a_dropped_folder_is_no_checkpoint(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    for part in ("checkpoints/dream", "checkpoints/.dream.gone"):
        run.path(part).mkdir(parents=True)
        (run.path(part) / "host.json").write_text("{}")
    run.drop("checkpoints/dream")
    assert list(run.path("checkpoints").iterdir()) == []
    run.drop("checkpoints/dream")  # nothing is there


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"numbers": []}'])
def test_a_damaged_marker_is_an_error_with_its_name(tmp_path, text):
    run = Run(tmp_path, TINY)
    run.mark("collect", {"episodes": 1})
    (tmp_path / "stages/collect.json").write_text(text)
    with pytest.raises(RunError, match=r"collect\.json.*runs again"):
        run.done("collect")


@pytest.mark.parametrize("text", ["", "[]", "nan", "x", "-3", "1e999"])
def test_damaged_seconds_are_none(tmp_path, text, capsys):
    run = Run(tmp_path, TINY)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/collect.seconds").write_text(text)
    run.stage("collect", lambda: {})
    assert 0 <= run.read_json("stages/collect.json")["seconds"] < 10
    capsys.readouterr()


@pytest.mark.parametrize("edit", ["seed", "preset", "config.seed"])
def test_an_edited_manifest_is_refused(tmp_path, edit):
    Run(tmp_path, TINY)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    *group, name = edit.split(".")
    (manifest[group[0]] if group else manifest)[name] = 5 if name == "seed" else "small"
    path.write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"manifest\.json: edited"):
        Run.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "{}", '{"config": 3}'])
def test_a_damaged_manifest_is_an_error_with_its_name(tmp_path, text):
    Run(tmp_path, TINY)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json"):
        Run.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{"])
def test_a_damaged_file_of_a_run_is_an_error_with_its_name(tmp_path, text):
    run = Run(tmp_path, TINY)
    (tmp_path / "fidelity.json").write_text(text)
    with pytest.raises(ValueError, match=r"fidelity\.json: expected"):
        run.read_json("fidelity.json")


def test_a_run_stays_where_it_is_when_an_environment_goes_elsewhere(
    tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Run("runs/here", preset("tiny")) as run:
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.write_json("numbers.json", {})
        run.mark("collect", {})
    assert (tmp_path / "runs/here/numbers.json").is_file()
    assert (tmp_path / "runs/here/stages/collect.json").is_file()
    assert not list((tmp_path / "elsewhere").iterdir())
