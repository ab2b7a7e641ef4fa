"""What report.html says of a run: its episodes, its command, how to go on."""

import dataclasses
import shlex
import types

import pytest

from dreamgym.cli.main import _parser
from dreamgym.cli.options import config_of
from dreamgym.commands.inspection import report
from dreamgym.commands.results import read_results
from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import for_pretrained, for_server, preset, with_control
from dreamgym.config.stages import EnvConfig, ServerConfig
from dreamgym.run.directory import Run, RunError
from tests import doubles
from tests.dreamgym.evaluation.pages.test_scorecard_page import card
from tests.dreamgym.evaluation.test_report import results
from worldmodel.backbone.config import LoraConfig
from worldmodel.backbone.weights import save_model
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import write_episodes
from worldmodel.experience.base import Prediction
from worldmodel.memory import ReplayMemory


def episode(name, family, won):
    result = doubles.expert(doubles.task(0, 1, 2))
    task = dataclasses.replace(result.task, id=name, family=family)
    steps = result.transitions if won else result.transitions[:1]
    return dataclasses.replace(
        result, id=name, task=task, success=won, transitions=steps
    )


def test_won_and_lost_episodes_of_different_families_are_chosen():
    episodes = [
        episode("a", "coin", False),
        episode("b", "coin", True),
        episode("c", "coin", True),
        episode("d", "map", False),
        episode("e", "map", True),
    ]
    chosen = report.choose_episodes(episodes, 3)
    assert [e.id for e in chosen] == ["b", "d", "c"]  # won, lost of another, won
    lost = [e for e in episodes if not e.success]
    assert [e.id for e in report.choose_episodes(lost, 3)] == ["a", "d"]
    assert report.choose_episodes([], 3) == []


class Still:
    """A dream in which nothing changes."""

    memory = ReplayMemory(capacity=1)
    config = types.SimpleNamespace(demonstrations=1)

    def __init__(self):
        self.asked = 0

    def predict(self, queries):
        self.asked += len(queries)
        return [Prediction(q.state, 0.0, "go", "", 0.5, None) for q in queries]

    def vary(self, groups, *, key):
        raise AssertionError(f"no task is varied, got {groups} and {key}")


@pytest.fixture
def run(tmp_path):
    made = Run(
        tmp_path / "r", preset("tiny", env=EnvConfig(id="tests.doubles:Corridor"))
    )
    write_episodes(made.path("dev.jsonl"), [episode("x", "coin", True)])
    return made


def test_episodes_are_dreamed_once_and_kept(run, monkeypatch):
    model = Still()
    monkeypatch.setattr(report, "load_experience", lambda *_, **__: model)
    views, text = report.episode_views(run)
    assert text == "Held-out dev episodes."
    assert [v["id"] for v in views] == ["x"]
    num_queries = model.asked
    assert num_queries == len(views[0]["steps"]) > 0
    assert report.episode_views(run) == (views, text)
    assert model.asked == num_queries
    write_episodes(run.path("test/dream.jsonl"), [episode("y", "coin", False)])
    views, text = report.episode_views(run)  # others are there now
    assert [v["id"] for v in views] == ["y"]
    assert "policy dream" in text


def test_a_dream_that_does_not_answer_leaves_the_rest_of_the_page(run, monkeypatch):
    def lost(*_, **__):
        raise RunError("the server is gone")

    monkeypatch.setattr(report, "load_experience", lost)
    assert report.episode_views(run) == (
        [],
        "None: the experience model gave no answer (the server is gone).",
    )


def test_the_command_of_a_run_repeats_it():
    assert report.repeat_command(preset("tiny", seed=3)) == (
        "dreamgym quickstart --preset tiny --seed 3"
    )
    config = changed_by(
        preset("default"),
        {
            "env.id": "my mod:Env",
            "pretrain.permute_outcomes": True,
            "train.tasks_per_update": 5,
            "experience.full_state": True,
        },
    )
    assert report.repeat_command(config) == (
        "dreamgym control shuffled --preset default --seed 0 --env 'my mod:Env' "
        "--set experience.full_state=true --set train.tasks_per_update=5"
    )
    budget = preset("default", {"budget.real_steps": 900})
    assert report.repeat_command(with_control(budget, "real-play")) == (
        "dreamgym control real-play --preset default --seed 0 --budget 900"
    )
    chat = ChatConfig(base_url="http://h/v1", read_timeout=600.0, model="m")
    served = for_server(preset("tiny"), ServerConfig(chat=chat))
    assert report.repeat_command(served) == (
        "dreamgym quickstart --preset tiny --seed 0 --server http://h/v1 "
        "--server-model m"
    )


def parsed(command):
    """Return the settings that the command line reads from a command."""
    args = _parser().parse_args(shlex.split(command)[1:])
    args.typed = ()  # options such as --train.updates, of which it has none
    return config_of(args)


@pytest.mark.parametrize(
    "kind", ["plain", "episodes", "both", "lora", "model", "server"]
)
def test_the_command_of_a_run_is_read_as_its_settings(tmp_path, kind):
    """Also where an option changes what a setting would be without it."""
    path = tmp_path / "e.jsonl"
    write_episodes(path, [episode("x", "coin", True)])
    save_model(tmp_path / "model", doubles.model(), doubles.tokenizer())
    model = {"model": str((tmp_path / "model").resolve())}
    recorded = {"data.episodes": str(path.resolve())}
    chat = ChatConfig(base_url="http://h/v1", read_timeout=600.0, model="m")
    config = {
        "plain": lambda: preset("default", {"train.update.learning_rate": 3e-4}),
        "episodes": lambda: preset("default", recorded | {"env.id": ""}),
        # The preset's own environment, which --episodes alone leaves out.
        "both": lambda: preset("default", recorded),
        "lora": lambda: for_pretrained(
            preset("default", model), lora=LoraConfig(rank=8)
        ),
        # What a preset has, where the option stands for another value.
        "model": lambda: changed_by(
            for_pretrained(preset("default", model), lora=None),
            {"train.update.learning_rate": 1e-3},
        ),
        "server": lambda: changed_by(
            for_server(preset("default"), ServerConfig(chat=chat)),
            {"expert_iteration.rounds": 3},
        ),
    }[kind]()
    assert parsed(report.repeat_command(config)) == config


def test_the_command_of_a_refit_names_what_it_goes_on_from():
    config = preset("tiny", {"data.base_run": "/r/a", "data.episodes": "/e.jsonl"})
    assert report.repeat_command(config) == ("dreamgym refit /r/a --episodes /e.jsonl")


def test_episodes_are_dreamed_again_where_others_have_the_same_names(run, monkeypatch):
    """As test games have, whatever was played there."""
    model = Still()
    monkeypatch.setattr(report, "load_experience", lambda *_, **__: model)
    write_episodes(run.path("test/dream.jsonl"), [episode("x", "coin", True)])
    before, _ = report.episode_views(run)
    write_episodes(run.path("test/dream.jsonl"), [episode("x", "coin", False)])
    after, _ = report.episode_views(run)
    assert len(before[0]["steps"]) != len(after[0]["steps"])


def test_a_control_is_not_told_to_dream(tmp_path):
    settings = {"env.id": "tests.doubles:Corridor", "budget.real_steps": 900}
    config = with_control(preset("tiny", settings), "real-play")
    text = str(list(report._next_steps(Run(tmp_path / "c", config))))
    assert "permuted outcomes" not in text
    assert "Fine-tune" not in text
    assert "dreamgym show" not in text
    assert "dreamgym scorecard" not in text
    budget = Run(tmp_path / "b", preset("tiny", settings))
    text = str(list(report._next_steps(budget)))
    assert "Fine-tune in the real environment:" in text  # it has no controls


def test_the_page_of_a_control_without_a_dream_shows_none(tmp_path, monkeypatch):
    def load(*_, **__):
        raise AssertionError("nobody is to dream")

    monkeypatch.setattr(report, "load_experience", load)
    settings = {"env.id": "tests.doubles:Corridor", "budget.real_steps": 900}
    config = with_control(preset("tiny", settings), "real-play")
    found = results() | {"fidelity": card(), "versions": {}}
    page = report.write_report(Run(tmp_path / "c", config), found).read_text()
    assert "None: no policy was trained in a dream" in page
    assert "Do not trust this dream" not in page


def test_how_to_go_on_depends_on_what_was_done(run):
    text = str(list(report._next_steps(run)))
    assert "dreamgym transfer --run-dir" in text
    assert "control shuffled --preset tiny --seed 0 --env" in text
    assert f"{run.root}-shuffled" in text
    command = shlex.split(report.repeat_command(run.config))
    assert f"dreamgym quickstart --env {command[command.index('--env') + 1]}" in text
    run.stage("s2r", dict)
    assert "dreamgym transfer" not in str(list(report._next_steps(run)))


def test_results_without_policies_are_refused(run):
    run.write_json("results.json", {})
    with pytest.raises(RunError, match=r"results\.json: expected a field 'policies'"):
        read_results(run)
