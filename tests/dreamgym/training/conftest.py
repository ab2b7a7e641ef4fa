"""Fixtures of the tests of training."""

import jax
import numpy as np
import pytest

from dreamgym.rl.update import Updater
from tests.dreamgym.training.common import UpdateCalls


@pytest.fixture
def update_calls(monkeypatch):
    result = UpdateCalls()

    def update(
        self,
        state,
        examples,
        *,
        seed,
        weights,
        auxiliary,
        visitation_weights,
        advantage_scale,
    ):
        del self, seed, advantage_scale
        result.visits.append(list(visitation_weights))
        result.examples.append(list(examples))
        result.weights.append(weights)
        result.auxiliary.append(list(auxiliary))
        if not np.isfinite(result.loss):
            raise FloatingPointError("loss is nan")
        params = jax.tree.map(lambda x: x + 1.0, state.params)
        row = {"loss": result.loss, "kl": 0.1, "update_kl": 0.01, "entropy": 1.0}
        return state._replace(params=params, step=state.step + 1), row

    monkeypatch.setattr(Updater, "update", update)
    return result
