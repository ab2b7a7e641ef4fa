"""Stage: expert iteration in the dream (arXiv:1705.08439; STaR, arXiv:2203.14465).

tasks -> rollouts in the dream -> won episodes without their detours -> a fit from the
initial policy on these and the real demonstrations -> the next round.

No real step is spent on demonstrations: the dream is where they are found, and tasks of
which nothing was collected have some, too. Each round fits from the same initial
policy, so that errors of an earlier one do not add up.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dreamgym.agent import early_experience as early
from dreamgym.agent.demonstrations import shortened_wins
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import rollout
from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dev_games, dream_cost, game_seconds
from dreamgym.build.dev_choice import Choice, compare_with_start
from dreamgym.build.environments import dreamable_tasks, training_tasks
from dreamgym.build.episodes import imitated_episodes, read
from dreamgym.build.experience import (
    load_experience,
    remedy_folder,
    uncertainty_gate,
)
from dreamgym.build.models import fit_model, initial_policy, load_policy, save_policy
from dreamgym.build.step_limit import step_limit
from dreamgym.config.settings import RunConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.data.records import Episode, Task, read_episodes, write_episodes
from worldmodel.experience.base import CachingExperienceModel

NAME = "expert_iteration"
SLOTS = 64
"""Dreamed episodes that are played at a time."""


def body(run: Run) -> dict[str, Any]:
    """Imitate what the policy wins in the dream; write policies/expert_iteration.

    It is the warm start where nothing is imitated, or where that did not help on dev
    tasks. The marker has the metrics of the policy that is kept, `real` and `dreamed`.
    """
    check, warm = run.numbers("dream_check"), load_policy(run, "warmstart")
    start = {k: check[k] for k in ("real", "dreamed") if k in check}
    if reason := _reason_to_skip(run, check):
        save_policy(run, NAME, warm)
        return {"rounds": 0, "kept": "warmstart", **reason, **start}
    folder = remedy_folder(run)
    experience = load_experience(run, stage=NAME, scaled=True, folder=folder)
    with run_chat.experience_session(experience):
        policy, numbers = _iterate(run, experience, warm)
        if policy is None:
            note = "nothing was imitated: the dream was won in no further task"
            choice = Choice(False, {"kept": "warmstart", "note": note}, start)
        else:
            choice = compare_with_start(
                run, NAME, policy, start, "warmstart", experience
            )
    save_policy(run, NAME, policy if policy is not None and choice.better else warm)
    run.drop(f"checkpoints/{NAME}")
    return numbers | choice.numbers | choice.metrics


def _reason_to_skip(run: Run, check: dict[str, Any]) -> dict[str, str] | None:
    """Return why nothing is imitated, with a note where a user would want one."""
    c = run.config
    if not c.expert_iteration.rounds or c.train.environment == "real":
        return {"status": "off"}
    if check.get("refused") and not check["forced"]:
        return {"note": f"nothing was imitated: {check['refused']}"}
    if not run.numbers("collect").get("deterministic", True):
        return {
            "note": "nothing was imitated: the environment draws lots, so that what "
            "was won may have been lucky"
        }
    return None


def _iterate(
    run: Run, experience: CachingExperienceModel, warm: Policy
) -> tuple[Policy | None, dict[str, Any]]:
    """Return the policy of the last round, and the numbers of all rounds.

    There is no policy if nothing was won in tasks without a real demonstration. What an
    interrupted stage dreamed in whole rounds, and its fits, are not repeated.
    """
    c, collected = run.config.expert_iteration, [e.task for e in read(run)[0]]
    tasks = dreamable_tasks(training_tasks(run, collected, c.fresh_tasks))
    real = imitated_episodes(run)
    solved = {e.task.id for e in real}
    won: list[Episode] = []
    counts: list[int] = []
    policy: Policy | None = None
    for number in range(1, c.rounds + 1):
        player = warm if policy is None else policy
        # Another win of a task would add nothing: one episode of each is imitated.
        unsolved = [t for t in tasks if t.id not in solved]
        new = shortened_wins(_dreamed_wins(run, experience, player, unsolved, number))
        won += new
        solved |= {e.task.id for e in new}
        counts.append(len(won))
        if new:
            policy = _fit_round(run, [*real, *won], number)
    write_episodes(run.path(f"{NAME}.jsonl"), won)
    numbers = {
        "rounds": c.rounds,
        "tasks": len(tasks),
        "real_demonstrations": len(real),
        "dreamed_demonstrations": counts,
        **run_chat.server_usage(experience),
    }
    return policy, numbers


def _dreamed_wins(
    run: Run,
    experience: CachingExperienceModel,
    policy: Policy,
    tasks: Sequence[Task],
    number: int,
) -> list[Episode]:
    """Return the episodes that the policy wins in a round of rollouts in the dream."""
    path = run.path(f"checkpoints/{NAME}/won-{number}.jsonl")
    if path.is_file():
        return read_episodes(path)
    c, seed = run.config.expert_iteration, run.config.seed
    if not tasks:
        return []
    drawn = np.random.default_rng((seed, number)).permutation(len(tasks))[: c.tasks]
    starts = [tasks[i] for i in drawn.tolist() for _ in range(c.rollouts_per_task)]
    dream = DreamVectorEnv(
        experience,
        SLOTS,
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, remedy_folder(run)),
    )
    with run.progress_report(
        f"dreamed round {number}", len(starts), "episode"
    ) as report:
        trajectories = rollout(
            policy,
            dream,
            starts,
            key=jax.random.fold_in(jax.random.key(seed + 17), number),
            temperature=c.temperature,
            source=f"{NAME}-{number}",
            progress=lambda done, _: report(done, {}),
        )
    won = [t.episode for t in trajectories if t.error is None and t.episode.success]
    print(
        f"expert_iteration: round {number}: {len(won)} of {len(trajectories)} dreamed "
        f"episodes were won, in {len({e.task.id for e in won})} of {len(drawn)} tasks",
        file=sys.stderr,
    )
    write_episodes(path, won)
    return won


def _fit_round(run: Run, demonstrations: Sequence[Episode], number: int) -> Policy:
    """Return the initial policy fitted to these demonstrations.

    Nothing is held out: what stops the fit is that it reads each example only a few
    times.
    """
    policy, fit = initial_policy(run), run.config.bc.fit
    examples = early.bc_examples(policy, demonstrations)
    tokens = sum(len(e.ids) for e in examples) * run.config.expert_iteration.epochs
    steps = math.ceil(tokens / (fit.batch_rows * fit.row_tokens))
    fit = dataclasses.replace(fit, steps=steps, eval_every=steps)
    draws = early.draws(policy, fit, examples)
    if draws > 1:
        examples = early.bc_examples(policy, demonstrations, draws=draws)
    name = f"{NAME}/round-{number}"
    return policy.replace(fit_model(run, name, policy.model, examples, fit, ()))


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the rollouts and the fits of all rounds take."""
    c = config.expert_iteration
    if not c.rounds or config.train.environment == "real":
        return Cost(disk=workload.model_bytes)
    steps = c.rounds * c.tasks * c.rollouts_per_task * workload.max_steps
    dreamed = dream_cost(config, workload, steps)
    fit = workload.fit(1.1 * c.rounds * 2 * config.bc.fit.steps)
    games = dev_games(config, workload) * game_seconds(workload)
    return fit._replace(
        seconds=dreamed.seconds + fit.seconds + games,
        compile_seconds=4 * c.rounds,
        answers=dreamed.answers,
    )
