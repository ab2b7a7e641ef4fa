"""The walk through the code of `pretrain` stays as short as DESIGN.md says."""

import importlib.util
from pathlib import Path

import pytest

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run

ROOT = Path(__file__).parents[1]
MAX_STOPS, MAX_CLIMBS = 25, 3


@pytest.mark.slow
def test_few_files_are_read_to_follow_pretraining(tmp_path):
    spec = importlib.util.spec_from_file_location("walks", ROOT / "scripts/walks.py")
    walks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walks)
    with Run(tmp_path / "run", preset("tiny")) as run:
        files = walks.stops(walks.composition(walks.pretrain_visits(run)))
    assert "dreamgym/stages/pretrain.py" in files
    assert len(files) <= MAX_STOPS, files
    climbs = len(files) - len(set(files))
    assert climbs <= MAX_CLIMBS, files
    design = (ROOT / "docs/DESIGN.md").read_text()
    row = "| the run of the stage `pretrain`, composition | "
    assert f"{row}{len(files)} | {len(set(files))} | {climbs} |" in design
