"""Imitation of won episodes: what a policy wins in the dream, and the fit to it.

tasks -> rollouts in the dream -> the shortest won episode of each task -> a fit from
the initial policy
"""

import dataclasses
import math
import sys
from collections.abc import Sequence

import jax
import numpy as np

from dreamgym.agent.demonstrations import shortened_wins, valid_steps
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import rollout
from dreamgym.build.episodes import read, read_names, recorded_episodes
from dreamgym.build.experience import uncertainty_gate
from dreamgym.build.models import fit_model, initial_policy
from dreamgym.build.real.step_limit import step_limit
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.run.directory import Run
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode, Task, write_episodes
from worldmodel.experience.base import CachingExperienceModel

SLOTS = 64
"""Dreamed episodes that are played at a time."""


def dreamed_wins(
    run: Run,
    experience: CachingExperienceModel,
    policy: Policy,
    tasks: Sequence[Task],
    name: str,
    folder: str = "",
) -> list[Episode]:
    """Return the shortest episode, without detours, of each task won in the dream.

    `expert_iteration.tasks` of the tasks are drawn. What was dreamed under this name
    before an interruption is not repeated: it is in checkpoints/NAME.jsonl.

    Args:
      name: names the rollouts, and seeds the draw and their noise.
      folder: that of the experience model in the run.
    """
    path = run.path(f"checkpoints/{name}.jsonl")
    if path.is_file():
        return shortened_wins(recorded_episodes(path))
    if not tasks:
        return []
    c, seed = run.config.expert_iteration, content_seed(run.config.seed, name)
    order = np.random.default_rng(seed).permutation(len(tasks))
    drawn = [tasks[i] for i in order[: c.tasks].tolist()]
    dream = DreamVectorEnv(
        experience,
        SLOTS,
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, folder),
    )
    starts = [task for task in drawn for _ in range(c.rollouts_per_task)]
    with run.progress_report(f"{name}, dreamed", len(starts), "episode") as report:
        trajectories = rollout(
            policy,
            dream,
            starts,
            key=jax.random.key(seed),
            temperature=c.temperature,
            source=name,
            progress=lambda done, _: report(done, {}),
        )
    won = [t.episode for t in trajectories if t.error is None and t.episode.success]
    broken = sum(t.error is not None for t in trajectories)
    print(
        f"{name}: {len(won)} of {len(trajectories)} dreamed episodes were won, in "
        f"{len({e.task.id for e in won})} of {len(drawn)} tasks"
        + (f"; {broken} broke" if broken else ""),
        file=sys.stderr,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_episodes(path, won)
    return shortened_wins(won)


def exploration_policy(run: Run, name: str) -> Policy:
    """Return the initial policy fitted to the valid actions of random players.

    It acts at random among what can be done, also in the dream, which lists no valid
    actions.
    """
    return fit_demonstrations(run, valid_steps(read(run)[0]), name)


def fit_demonstrations(
    run: Run, demonstrations: Sequence[Episode], name: str
) -> Policy:
    """Return the initial policy fitted to these demonstrations, under a name.

    Nothing is held out: what stops the fit is that it reads each example only
    `expert_iteration.epochs` times. It makes as many updates as behaviour cloning does
    in any case: with few demonstrations, fewer leave the policy half learnt.
    """
    policy, fit = initial_policy(run), run.config.bc.fit
    examples = early.bc_examples(policy, demonstrations)
    tokens = sum(len(e.ids) for e in examples) * run.config.expert_iteration.epochs
    steps = max(math.ceil(tokens / (fit.batch_rows * fit.row_tokens)), fit.steps)
    fit = dataclasses.replace(fit, steps=steps, eval_every=steps)
    names = read_names(run)
    draws = early.draws(fit, examples, names)
    if draws > 1:
        examples = early.bc_examples(policy, demonstrations, draws=draws, names=names)
    return policy.replace(fit_model(run, name, policy.model, examples, fit, ()))
