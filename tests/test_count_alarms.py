"""Alarms of finished runs, by hand: one true, one false, one missing."""

import json

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from scripts.count_alarms import table, trainings


def add_run(root, name, kl, after, *, before=0.5, **settings):
    """A run of four updates, of which the last one has a large KL, or none."""
    settings = {"train.monitor.max_kl_ratio": 10.0} | settings
    run = Run(root / name, preset("tiny", settings))
    rows = [{"update": n, "update_kl": 0.01} for n in (1, 2, 3)]
    end = {"update": 4, "update_kl": kl}
    if after is not None:
        end |= {"real_success": after, "real_games/": 64.0}
    run.path("curves").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in [*rows, end])
    run.path("curves/dream.jsonl").write_text(text)
    run.mark("train", {"dev_success_before": before})


def test_alarms_are_counted_by_what_became_of_their_runs(tmp_path):
    add_run(tmp_path, "true", 1.0, 0.2)
    add_run(tmp_path, "false", 1.0, 0.5)
    add_run(tmp_path, "luck", 1.0, 0.45)  # less than a standard error
    add_run(tmp_path, "silent", 0.01, 0.2)
    add_run(tmp_path, "unplayed", 1.0, None)
    add_run(tmp_path, "real", 1.0, 0.2, **{"train.environment": "real"})
    (tmp_path / "empty").mkdir()
    text = table(list(trainings([tmp_path])))
    assert "5 trainings, 20 updates; of 4 real dev games" in text
    assert "2 won fewer by more than a standard error" in text
    assert "| max_kl_ratio | 4 | 4 | 1 | 2 |" in text
    assert "without an alarm: 1" in text
