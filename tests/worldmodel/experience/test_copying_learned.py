"""References: what they are for, shown on identifiers that no training episode held."""

import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.experience.test_markers import fitted
from worldmodel import fidelity, reasoning
from worldmodel.data.records import Episode, Task
from worldmodel.experience.examples import train_tokenizer

LETTERS = list("ABCDEFGHJKLMNPQRSTUVWXYZ")


def orders(count: int, seed: int) -> list[Episode]:
    """Open orders of which one is shipped; every order has a number of its own."""
    rng, out = np.random.default_rng(seed), []
    for i in range(count):
        names = [
            f"{''.join(rng.choice(LETTERS, 2))}{rng.integers(100, 1000)}"
            for _ in range(3)
        ]
        chosen = names[int(rng.integers(3))]
        before = tuple(f"order {name} is open" for name in names)
        after = (*(x for x in before if chosen not in x), f"order {chosen} is shipped")
        task = Task(id=f"{seed}-{i}", instruction=f"ship {chosen}", family="orders")
        step = helpers.transition(before, f"ship {chosen}", after)
        out.append(reasoning.annotate(helpers.episode(f"e{seed}-{i}", task, [step])))
    return out


@pytest.mark.slow
def test_a_model_with_references_copies_what_it_never_saw(tmp_path):
    train, dev = orders(200, seed=0), orders(100, seed=1)

    def unseen(*, references: bool) -> float:
        tok = train_tokenizer(train, 400, references=references)
        model = fitted(tok, train, tmp_path / f"{references}", row_tokens=128)
        card = fidelity.score(model, dev, limit=100, recorded=train)
        rate = card["copying"]["state_unseen"]
        assert rate["count"] > 90
        return rate["mean"]

    result = {r: unseen(references=r) for r in (True, False)}
    # 1.0 and 0.28 when this was written.
    assert result[True] >= 0.99 > result[False] + 0.3
