"""The stage `branch` says what it may take before its first real step."""

import pytest

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages.policies import branch
from tests import doubles
from worldmodel.data.records import read_branches, write_episodes


@pytest.mark.parametrize("limit", [0, 3])
def test_the_real_steps_are_said_before_they_are_taken(tmp_path, capsys, limit):
    settings = {
        "env.id": "tests.doubles:Corridor",
        "branch.max_transitions": limit,
        "branch.alternatives": 2,
        "warmstart.method": "sr",
    }
    experts = [doubles.expert(t) for t in doubles.tasks("train")[:3]]
    with Run(tmp_path, preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), experts)
        write_episodes(run.path("dev.jsonl"), experts[:1])
        run.mark("collect", {"max_episode_steps": 10, "deterministic": True})
        numbers = branch.body(run)
        taken = run.real_steps.count
        assert numbers["branches"] == len(read_branches(run.path("branches.jsonl"))) > 0
    line = capsys.readouterr().err.splitlines()[0]
    words = line.replace(",", "").split()
    assert words[:1] + words[2:6] == ["branch:", "real", "steps", "at", "most"]
    assert 0 < taken <= int(words[1])
    if limit:
        assert int(words[1]) == limit
        assert "of" in words  # and what all states would take
