"""Off-policy evaluation: what recorded episodes say about a policy.

Without an environment: policy, held-out demonstrations -> how often it takes the
recorded action; its success in the dream; how well the dream predicts recorded
outcomes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dreamgym.agent.policy import Policy, Situation
from dreamgym.evaluation.statistics import percent, wilson
from worldmodel.data.records import Episode


def action_agreement(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    limit: int,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """Return how often a policy takes the recorded action, in at most `limit` states.

    The states are drawn by the seed, the same for every policy. {mean, low, high,
    count}; without a state the mean is None.
    """
    situations, recorded = [], []
    for e in episodes:
        for i, t in enumerate(e.transitions):
            situations.append(Situation.at_step(e.task, e.transitions, i))
            recorded.append(t.action)
    order = np.random.default_rng(seed).permutation(len(situations))[:limit]
    if not len(order):
        return {"mean": None, "low": 0.0, "high": 1.0, "count": 0}
    key = jax.random.key(seed)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(len(order)))
    turns = policy.act([situations[i] for i in order], keys, temperature=temperature)
    hits = sum(t.action == recorded[i] for t, i in zip(turns, order, strict=True))
    low, high = wilson(hits, len(order))
    return {"mean": hits / len(order), "low": low, "high": high, "count": len(order)}


def sentences(off_policy: dict[str, Any], copies: Mapping[str, str]) -> list[str]:
    """Return sentences on policies that could not be tested in an environment.

    `copies` maps the name of a policy to that of the policy that it is a copy of.
    """
    out = ["No environment was at hand: what follows is no success in the real one."]
    for name, row in off_policy["policies"].items():
        if name in copies:
            out.append(f"{name} is {copies[name]}.")
            continue
        acts, won = row["action_agreement"], row["dream_success"]
        share = percent(won["mean"])
        dream = f"it wins {share} of {won['episodes']} dev tasks in the dream"
        if not won["episodes"]:
            dream = "none of its episodes in the dream could be scored"
        if acts["count"]:
            agreement = (
                f"{name} takes the recorded action in {percent(acts['mean'])} of "
                f"{acts['count']} states of held-out demonstrations"
            )
        else:
            agreement = (
                "No held-out task has a won episode, so that no state shows whether "
                f"{name} takes the recorded action"
            )
        out.append(f"{agreement}, and {dream}.")
    agree = off_policy["outcome_agreement"]  # None where no recorded end was compared
    if agree is not None and agree["mean"] is not None:
        out.append(
            "Success in the dream is worth as much as the dream's outcomes: of "
            f"{agree['count']} recorded episodes, dreamed from their own actions, "
            f"{percent(agree['mean'])} end as recorded."
        )
    return out
