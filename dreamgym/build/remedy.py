"""The remedy of a dream that is wrong about the policy: one refit, and its scorecard.

faults of the dream, real episodes of the policy on train tasks -> the experience model
fitted further, weighted for both -> a folder of the run with model, scorecard and
episodes. The dev tasks that decide are not fitted to.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Any

from dreamgym.build import experience as run_experience
from dreamgym.build.environments import play_train_games
from dreamgym.build.episodes import read
from dreamgym.build.experience import REMEDY, fidelity_file
from dreamgym.build.fidelity import measure
from dreamgym.evaluation.dream_check import RARE_EVENTS
from dreamgym.run.directory import Run
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.examples import transition_examples
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.text.tokenizer import TextTokenizer

RARE_SHARE = 0.3
"""The share that rare rewards and ends make up in the refit, if the dream misses
them."""
OWN_SHARE = 0.25
"""The share that the policy's own transitions make up among the refit's examples."""


def can_refit(run: Run) -> bool:
    """Return whether the run has a model of its own to refit, and is to try it.

    Members of an ensemble are adapters on the model before, and would not fit.
    """
    c = run.config
    return (
        c.dream_check.remedy_share > 0
        and not c.dream_check.force
        and not c.pretrain.permute_outcomes
        and c.server is None
        and not c.ensemble.members
    )


def refit(run: Run, policy: Any, faults: Collection[str]) -> ExperienceModel:
    """Fit the run's experience model further, against its faults; return the result.

    With an environment the policy plays train tasks there. Rare rewards and ends are
    weighted if they are missed. Interrupted, it goes on from its last checkpoint.
    """
    c = run.config
    if c.env.id and c.dream_check.remedy_tasks:
        play_train_games(run, policy, c.dream_check.remedy_tasks)
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    steps = max(round(c.dream_check.remedy_share * c.pretrain.fit.steps), 1)
    config = dataclasses.replace(
        c.pretrain.fit, steps=steps, eval_every=min(c.pretrain.fit.eval_every, steps)
    )
    examples, held_out = _examples(run, tok, faults)
    with run.progress_report("dream_check", steps) as report:
        model, curve = supervised.fit(
            model,
            examples,
            config,
            seed=c.seed + 1,
            held_out=held_out[: c.fidelity.transitions],
            progress=report,
            directory=run.path("checkpoints/dream_check"),
        )
    save_model(run.path(f"{REMEDY}/experience"), model, tok)
    run.write_curve("dream_check", curve)
    raw = run_experience.load_experience(run, folder=REMEDY)
    run.write_json(fidelity_file(REMEDY), measure(run, raw, "fidelity, refitted"))
    return run_experience.load_experience(run, folder=REMEDY, scaled=True)


def _examples(
    run: Run, tok: TextTokenizer, faults: Collection[str]
) -> tuple[list[Example], list[Example]]:
    """Return the examples of the refit, and held-out ones."""
    train, dev = read(run)
    share = run.config.pretrain.rare_event_share
    if RARE_EVENTS & set(faults):
        share = max(share, RARE_SHARE)
    data = run_experience.fit_data(run, tok, train, dev, rare_event_share=share)
    policy_examples = transition_examples(
        tok,
        run_experience.remedy_episodes(run),
        run_experience.replay_memory(run, train, REMEDY),
        run.config.experience,
        balance=share,
        seed=run.config.seed,
    )
    repeats = (
        OWN_SHARE / (1 - OWN_SHARE) * len(data.examples) / max(len(policy_examples), 1)
    )
    return [*data.examples, *policy_examples * math.ceil(repeats)], data.held_out
