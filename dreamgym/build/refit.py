"""Refits of a run's experience model to real episodes of its policy.

a model, real episodes of the policy on train tasks -> the model fitted further, these
episodes and, where the dream misses them, rare events weighted -> a folder of the run
with model, scorecard and episodes. The dev tasks that decide are not fitted to.
"""

import dataclasses
import math
from collections.abc import Collection

from dreamgym.agent.policy import Policy
from dreamgym.build import experience as run_experience
from dreamgym.build.episodes import names_with, read, recorded_episodes
from dreamgym.build.experience import REMEDY, fidelity_file
from dreamgym.build.fidelity import measure
from dreamgym.build.real.dev_play import play_train_games
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import RARE_EVENTS
from dreamgym.run.directory import Run
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.experience.base import ExperienceModel
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.text.tokenizer import TextTokenizer

RARE_SHARE = 0.3
"""The share that rare rewards and ends make up in the refit, if the dream misses
them."""
POLICY_SHARE = 0.25
"""The share of the policy's own transitions among the refit's examples, at least."""


def can_refit(config: RunConfig) -> bool:
    """Return whether a run has a model of its own that can be fitted further.

    Members of an ensemble are adapters on the model before, and would not fit.
    """
    c = config
    return (
        not c.pretrain.permute_outcomes and c.server is None and not c.ensemble.members
    )


def mend(run: Run, policy: Policy, faults: Collection[str]) -> ExperienceModel:
    """Fit the run's experience model further, against its faults; return the result.

    With an environment the policy plays train tasks there. Rare rewards and ends are
    weighted if they are missed. Interrupted, it goes on from its last checkpoint.
    """
    c = run.config
    if c.env.id and c.dream_check.remedy_tasks:
        play_train_games(run, policy, c.dream_check.remedy_tasks)
    share = c.pretrain.rare_event_share
    if RARE_EVENTS & set(faults):
        share = max(share, RARE_SHARE)
    return refit(
        run, REMEDY, "dream_check", c.dream_check.remedy_share, rare_event_share=share
    )


def refit(
    run: Run,
    folder: str,
    name: str,
    share: float,
    *,
    start: str = "",
    rare_event_share: float | None = None,
) -> ExperienceModel:
    """Fit an experience model further to all real episodes; return it, calibrated.

    It is fitted to the collected episodes and to those in the folder's episodes.jsonl,
    which count for POLICY_SHARE of what is read. Writes experience/ and fidelity.json
    in the folder.

    Args:
      name: names the checkpoints and the curve.
      share: updates, as a share of those of `pretrain`.
      start: the folder of the model that the fit starts from; "" is the run's own.
    """
    c = run.config
    start_folder = f"{start}/experience" if start else "experience"
    model, tok = load_model(run.path(start_folder), mesh=run.mesh)
    steps = max(round(share * c.pretrain.fit.steps), 1)
    config = dataclasses.replace(
        c.pretrain.fit, steps=steps, eval_every=min(c.pretrain.fit.eval_every, steps)
    )
    examples, held_out = _examples(run, tok, folder, rare_event_share)
    with run.progress_report(name, steps) as report:
        model, curve = supervised.fit(
            model,
            examples,
            config,
            seed=c.seed + 1,
            held_out=held_out[: c.fidelity.transitions],
            progress=report,
            directory=run.path(f"checkpoints/{name}"),
        )
    save_model(run.path(f"{folder}/experience"), model, tok)
    run.write_curve(name, curve)
    raw = run_experience.load_experience(run, folder=folder)
    run.write_json(fidelity_file(folder), measure(run, raw, "fidelity, refitted"))
    return run_experience.load_experience(run, folder=folder, scaled=True)


def _examples(
    run: Run, tok: TextTokenizer, folder: str, rare_event_share: float | None
) -> tuple[list[Example], list[Example]]:
    """Return the examples of the refit, and held-out ones."""
    train, dev = read(run)
    names = names_with(run, recorded_episodes(run.path(f"{folder}/episodes.jsonl")))
    data = run_experience.fit_data(
        run, tok, train, dev, names=names, rare_event_share=rare_event_share
    )
    source = run_experience.transition_source(
        run,
        tok,
        train,
        names,
        folder=folder,
        rare_event_share=rare_event_share,
    )
    first = source.examples(0)
    ratio = POLICY_SHARE / (1 - POLICY_SHARE)
    repeats = math.ceil(ratio * len(data.examples) / max(len(first), 1))
    # Repeats have other names, as far as there are any.
    draws = min(repeats, source.max_draws)
    versions = [first, *(source.examples(draw) for draw in range(1, draws))]
    repeated = [
        example for i in range(repeats) for example in versions[i % len(versions)]
    ]
    return [*data.examples, *repeated], data.held_out
