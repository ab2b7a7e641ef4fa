"""Changes: what they are for, shown on sums that no training episode held."""

import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.experience.test_markers import fitted
from worldmodel import fidelity, reasoning
from worldmodel.data.records import Episode, Task
from worldmodel.experience.examples import train_tokenizer


def stocks(count: int, seed: int) -> list[Episode]:
    """A stock of ice, sand and wood that grows by what is got of one of them."""
    rng, out = np.random.default_rng(seed), []
    for i in range(count):
        held = dict(zip(("ice", "sand", "wood"), rng.integers(1, 60, 3), strict=True))
        before = tuple(f"{name} {n}" for name, n in held.items())
        name, n = str(rng.choice(list(held))), int(rng.integers(2, 40))
        after = tuple(f"{k} {v + n * (k == name)}" for k, v in held.items())
        task = Task(id=f"{seed}-{i}", instruction="fill the stock", family="stocks")
        step = helpers.transition(before, f"get {n} {name}", after)
        out.append(reasoning.annotate(helpers.episode(f"e{seed}-{i}", task, [step])))
    return out


@pytest.mark.slow
def test_a_model_that_writes_changes_adds_what_it_never_added(tmp_path):
    train, dev = stocks(300, seed=0), stocks(100, seed=1)

    def exact(*, changes: bool) -> float:
        tok = train_tokenizer(train, 400, changes=changes)
        assert (tok.writing.changes is not None) == changes
        written = [
            reasoning.set_rule_traces(e, enabled=True, writing=tok.writing)
            for e in train
        ]
        model = fitted(tok, written, tmp_path / f"{changes}", row_tokens=128)
        return fidelity.score(model, dev, limit=100)["exact"]["all"]["mean"]

    # 1.0 and 0.07 when this was written.
    assert exact(changes=True) > exact(changes=False) + 0.5
