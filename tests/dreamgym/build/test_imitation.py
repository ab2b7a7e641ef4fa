"""How long a fit to demonstrations is."""

import pytest

from dreamgym.build import imitation
from dreamgym.build.episodes import NAMES
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles


@pytest.mark.parametrize(("epochs", "by_epochs"), [(1, False), (2000, True)])
def test_a_fit_makes_as_many_updates_as_behaviour_cloning_at_least(
    tmp_path, monkeypatch, epochs, by_epochs
):
    """Few demonstrations are read more than `epochs` times, many just as often."""
    fits = []

    def fit_model(run, name, model, examples, fit, held_out):
        del run, name, examples, held_out
        fits.append(fit)
        return model

    monkeypatch.setattr(imitation, "initial_policy", lambda _: doubles.policy())
    monkeypatch.setattr(imitation, "fit_model", fit_model)
    settings = {
        "env.id": "tests.doubles:Corridor",
        "bc.fit.steps": 7,
        "bc.fit.eval_every": 7,
        "expert_iteration.epochs": epochs,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.write_json(NAMES, {})
        demonstrations = [doubles.expert(t) for t in doubles.tasks("train")[:2]]
        imitation.fit_demonstrations(run, demonstrations, "fit")
    (fit,) = fits
    assert fit.steps == fit.eval_every
    assert fit.steps > 7 if by_epochs else fit.steps == 7
