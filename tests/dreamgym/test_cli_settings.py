"""Settings on the command line: options, --set, files, and those of a stored run."""

import json
import operator

import pytest

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests.dreamgym.commands_as_typed import CORRIDOR, refused, run, tiny


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_server_is_a_setting_of_the_run_and_its_key_is_not(capsys, tmp_path):

    args = ["--preset", "tiny", "--env", CORRIDOR, "--server", "http://h/v1"]
    assert run("collect", *args, "--server-key-env", "NOT_SET") == 0
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["tiny-0-server"]
    server = Run.open(tmp_path / "runs/tiny-0-server").config.server
    chat = server.chat
    assert (chat.base_url, chat.model, chat.api_key_env) == (
        "http://h/v1",
        "default",
        "NOT_SET",
    )
    assert chat.temperature > 0  # what cannot be known is sampled, not averaged
    error = refused(capsys, "pretrain", *args, "--server-key-env", "NOT_SET")
    assert "variable NOT_SET holds no API key" in error
    error = refused(capsys, "pretrain", *args, "--run-dir", "runs/tiny-0-server")
    assert "server.chat.api_key_env: 'NOT_SET' there, '' here" in error


def test_every_setting_can_be_set(tmp_path):

    text = {
        "experience.history": 0,
        "experience.reasoning": False,
        "uncertainty.false_abort_rate": 0.05,
        "uncertainty.signal": "self_consistency",
        "pretrain.data_share": 1,
        "pretrain.fit.optimizer.name": "adamw",
    }
    args = [x for k, v in text.items() for x in ("--set", f"{k}={json.dumps(v)}")]
    assert tiny("collect", "--env", CORRIDOR, *args) == 0
    config = Run.open(tmp_path / "r").config
    for name, value in text.items():
        assert operator.attrgetter(name)(config) == value
    # A bare word is a string; what is asked of a server has settings too.
    more = ["--set", "memory.encoder=lexical", "--set", "server.chat.max_tokens=64"]
    args = ["--env", CORRIDOR, "--server", "http://h/v1", *more]
    assert run("collect", "--preset", "tiny", "--run-dir", "s", *args) == 0
    assert Run.open(tmp_path / "s").config.server.chat.max_tokens == 64


@pytest.mark.parametrize(
    "value",
    [
        '[{"name": "lit", "pattern": "^on$", "weight": 1}]',
        '[{name = "lit", pattern = "^on$", weight = 1}]',
    ],
)
def test_lists_and_tables_are_given_as_json_or_toml(value, tmp_path):

    args = ["--env", CORRIDOR, "--set", f"train.reward.milestones={value}"]
    assert tiny("collect", *args) == 0
    (result,) = Run.open(tmp_path / "r").config.train.reward.milestones
    assert (result.name, result.pattern) == ("lit", "^on$")


def test_a_run_that_stands_keeps_its_settings(capsys, tmp_path):

    more = ["--set", "collect.episodes=10", "--seed", "4"]
    assert (
        run("collect", "--preset", "tiny", "--run-dir", "r", "--env", CORRIDOR, *more)
        == 0
    )
    capsys.readouterr()
    assert run("collect", "--run-dir", "r") == 0  # no option again
    assert "done before" in capsys.readouterr().err
    assert Run.open(tmp_path / "r").config.collect.episodes == 10
    error = refused(
        capsys, "collect", "--run-dir", "r", "--set", "pretrain.data_share=0.5"
    )
    assert (
        "made with other settings (pretrain.data_share: 1.0 there, 0.5 here)" in error
    )


def test_a_refit_goes_on_under_its_own_settings(capsys, tmp_path):
    from dreamgym.config.presets import preset

    (tmp_path / "e.jsonl").write_text("{}")
    made = {
        "env.id": CORRIDOR,
        "data.base_run": str(tmp_path / "old"),
        "data.episodes": str(tmp_path / "e.jsonl"),
    }
    Run(tmp_path / "new", preset("tiny", made, seed=3))
    assert "no run there" in refused(capsys, "warmstart", "--run-dir", "new")
    error = refused(capsys, "train", "--run-dir", "new", "--seed", "1")
    assert "goes on under its settings: drop --seed" in error
    error = refused(capsys, "control", "shuffled", "--run-dir", "new")
    assert "goes on under its settings: drop control" in error  # it would be none


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hope=1", "no setting 'hope'; `dreamgym settings` lists them"),
        (
            "train.update.max_updat_kl=1",
            "did you mean train.update.max_update_kl",
        ),
        ("train.max_update_kl=1", "did you mean train.update.max_update_kl"),
        ("uncertainty.hope=1", "no setting 'uncertainty.hope'"),
        ("uncertainty=1", "'uncertainty' is a group of settings: name one of them"),
        (
            "uncertainty.false_abort_rate.x=1",
            "'uncertainty.false_abort_rate' is 0.0 and has no settings",
        ),
        (
            "uncertainty.false_abort_rate=much",
            "false_abort_rate: expected float, like 0.0, got 'much'",
        ),
        ("uncertainty.false_abort_rate=2", "false_abort_rate must be in [0, 1)"),
        ("experience.history=1.5", "history: expected int, like 2, got 1.5"),
        ("experience.history=true", "history: expected int, like 2, got True"),
        ("experience.reasoning=0", "reasoning: expected bool, like True, got 0"),
        ("server.chat.retries=1", "'server' is None and has no settings"),
        ("seed=1", "seed is set by --seed"),
        (
            "pretrain.permute_outcomes=true",
            "pretrain.permute_outcomes is set by dreamgym control shuffled",
        ),
        ("share", "expected NAME=VALUE"),
        ("=1", "expected NAME=VALUE"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(setting, message, capsys, tmp_path):
    error = refused(
        capsys, "collect", "--preset", "tiny", "--run-dir", "r", "--set", setting
    )
    assert message in error
    assert not (tmp_path / "r").exists()


def test_a_refit_takes_no_settings_of_its_own(capsys):
    for option in (["--set", "seed=1"], ["--seed", "7"], ["--train.updates", "1"]):
        error = refused(capsys, "refit", "r", "--episodes", "e.jsonl", *option)
        assert f"unrecognized arguments: {option[0]}" in error


def test_every_setting_is_a_typed_option(tmp_path):

    args = ["--train.update.max_update_kl", "0.5", "--train.drop_void_turns"]
    args += ["--train.reward.sources", "rule", "judge", "--env.num-envs=3"]
    args += ["--train.reward.judge.chat.base_url", "http://h/v1"]
    assert tiny("collect", "--env", CORRIDOR, *args) == 0
    config = Run.open(tmp_path / "r").config
    assert (config.train.update.max_update_kl, config.env.num_envs) == (0.5, 3)
    assert config.train.drop_void_turns is True
    assert config.train.reward.sources == ("rule", "judge")
    assert config.collect == preset("tiny").collect  # the preset's, untouched


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--train.update.max_updat_kl", "1"], ["--train.update.max_update_kl FLOAT"]),
        (["--train.update.max_update_kl", "x"], ["train.update.max_update_kl", "'x'"]),
        (["--train.update.max_update_kl", "-1"], ["max_update_kl must be >= 0"]),
        (["--env.id", "x"], ["env.id is set by --env"]),
    ],
)
def test_a_wrong_option_says_what_was_expected(option, words, capsys, tmp_path):
    error = refused(capsys, "collect", "--preset", "tiny", "--run-dir", "r", *option)
    for word in words:
        assert word in error
    assert not (tmp_path / "r").exists()


def test_options_go_over_a_file_and_a_file_over_the_preset(tmp_path, capsys):

    (tmp_path / "c.toml").write_text(
        'preset = "tiny"\nseed = 4\nalgorithm = "ppo"\n"collect.episodes" = 11\n'
        f'[env]\nid = "{CORRIDOR}"\n[train]\nupdates = 7\ngroup_size = 3\n'
        '[[train.reward.milestones]]\nname = "a"\npattern = "b"\nweight = 1\n'
    )
    args = ["--config", "c.toml", "--run-dir", "r", "--set", "train.updates=8"]
    assert run("collect", *args, "--train.group_size", "5") == 0
    config = Run.open(tmp_path / "r").config
    assert (config.preset, config.seed, config.env.id) == ("tiny", 4, CORRIDOR)
    assert config.train.update.advantage_estimator == "gae"
    assert (config.train.updates, config.train.group_size) == (8, 5)
    assert config.collect.episodes == 11
    assert config.train.reward.milestones[0].name == "a"
    assert config.experience == preset("tiny").experience
    (tmp_path / "bad.toml").write_text("[train]\nupdats = 7\n")
    error = refused(capsys, "collect", "--config", "bad.toml", "--run-dir", "s")
    assert "no setting 'train.updats': did you mean train.updates" in error
    (tmp_path / "bad.toml").write_text("[train")
    error = refused(capsys, "collect", "--config", "bad.toml", "--run-dir", "s")
    assert "--config bad.toml: expected TOML" in error


def test_settings_are_listed(capsys):
    assert run("settings", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) > 300
    assert all(row["text"] and row["type"] for row in rows)
    assert run("settings", "train.update.critic", "--preset", "tiny") == 0
    out = capsys.readouterr().out
    assert "train.update.critic.gae_lambda  (float)  0.95\n    lambda of" in out
    assert "train.updates" not in out
    assert run("settings", "gae_lambda") == 0
    assert capsys.readouterr().out.count("gae_lambda  (float)") == 2
    assert "did you mean train.updates" in refused(capsys, "settings", "train.updats")
    assert run("settings", "server.chat.price_in") == 0  # also without a server
    assert "server.chat.price_in  (float)  0.0" in capsys.readouterr().out


def test_how_fits_are_computed_is_a_setting(capsys, tmp_path):

    error = refused(
        capsys, "collect", "--preset", "tiny", "--run-dir", "r", "--lora", "4"
    )
    assert "--lora needs a pretrained --model DIR" in error
    assert tiny("collect", "--env", CORRIDOR, "--remat", "--dtype", "bfloat16") == 0
    config = Run.open(tmp_path / "r").config
    for fit in (config.pretrain.fit, config.bc.fit):
        assert (fit.lora, fit.compute.remat) == (None, True)
        assert (fit.compute.dtype, fit.compute.extra_trainable) == ("bfloat16", ())
        assert fit.optimizer.name == "muon"  # as the preset has it


def test_a_pretrained_model_takes_gentler_steps(tmp_path, tok, text_model):
    from worldmodel.backbone.weights import save_model

    save_model(tmp_path / "model", text_model, tok)
    args = ["--env", CORRIDOR, "--model", "model", "--lora", "4"]
    assert tiny("collect", *args) == 0
    config = Run.open(tmp_path / "r").config
    for fit in (config.pretrain.fit, config.bc.fit):
        assert (fit.lora.rank, fit.compute.extra_trainable) == (4, ("embed",))
        assert (fit.optimizer.name, fit.optimizer.learning_rate) == ("adamw", 1e-3)
    assert config.train.update.learning_rate == 1e-5
    assert config.train.tasks_per_update == 4
