"""`dreamgym doctor` of runs that are not finished."""

import pytest

from dreamgym.cli import main
from dreamgym.commands.inspection.doctor import explain
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel import fidelity
from worldmodel.data.records import write_episodes


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))


def test_without_a_scorecard_there_is_nothing_to_explain(run, capsys):
    with pytest.raises(RunError, match="nothing to explain before the stage fidelity"):
        explain(run)
    assert main(["doctor", str(run.root)]) == 2
    assert "go on: dreamgym quickstart" in capsys.readouterr().err


def test_an_unfinished_run_is_explained_as_far_as_it_is(run):
    """Whoever waits for an hour wants to know before."""
    run.mark("collect", {"episodes": 40, "real_transitions": 300})
    run.mark("pretrain", {})
    run.mark("fidelity", {})
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:8]]
    run.write_json("fidelity.json", fidelity.score(doubles.RuleModel(), dev, limit=20))
    text = explain(run)
    assert text.startswith("This run is not finished (last stage: fidelity).")
    assert "No policy was scored" in text
    assert "--episodes" not in text  # it has an environment to play more
    games = [doubles.expert(t) for t in doubles.tasks("test")[:4]]
    write_episodes(run.path("test/bc.jsonl"), games)
    assert "The best policy is bc" in explain(run)
    assert not run.path("results.json").exists()  # nothing is written
