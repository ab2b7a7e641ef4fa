"""Parts of what stages cost: real games, rollouts of a loop, answers of a server.

The multiples of an update were measured on runs of the presets (docs/LOG.md, 2026-11-21
and 22: models of 1 to 2 M parameters on 2 CPU cores); elsewhere they are a guess.
"""

from dreamgym.agent.config import PlanConfig
from dreamgym.config import budget
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.training.config import LoopConfig
from worldmodel.experience.base import SAMPLES

GAME = 0.25
"""Updates of the fit that the actions of a policy in a real game take."""

DREAMED_STEP = 1.1 / 16
"""Updates of the fit that a step takes which a rollout in the dream may have."""

REAL_STEP = 0.05
"""Updates of the fit that learning from a real transition takes."""

RANKED_TRANSITION = 0.05
"""Updates of the fit that a transition takes in one step of a reward model's fit."""

PLANNED = 0.5
"""Share of the steps that plans may dream which they do: episodes end, and candidates
are equal (15 to 20 steps of 32 on the default games)."""

PLANNED_STEP = 0.4 * DREAMED_STEP
"""Updates of the fit that a planned step takes: many are asked at once (14 and 22 s for
the two stages of a default run that ask for plans)."""

PLAYED = 0.73
"""Share of the rollouts of expert iteration that are played: a task that is won is not
played again (2,616 of 3,600 in a default run)."""

SEARCHED = 0.3
"""Share of the steps that searches of expert iteration may dream which they do: tasks
are won without one, and a search ends with its win (the default games without an
expert, three rounds)."""

UNCACHED = 0.6
"""Share of the steps that a rollout may have whose question was not asked before."""

TRANSITION_BYTES = 730
"""Bytes of a transition in an episodes file."""


def game_seconds(workload: Workload) -> float:
    """Return the seconds of a real game that a policy plays."""
    actions = GAME * workload.timings.update
    return actions + workload.episode_steps * workload.timings.step


def games_cost(workload: Workload, games: int, *, policy: bool = True) -> Cost:
    """Return the cost of recorded real games of a policy, or of a scripted one."""
    steps = games * workload.episode_steps
    seconds = steps * workload.timings.step
    if policy:
        seconds = games * game_seconds(workload)
    return Cost(seconds, disk=TRANSITION_BYTES * steps)


def dev_games(config: RunConfig, workload: Workload) -> int:
    """Return the real dev games of one comparison of policies; 0 where none is made."""
    monitor, c = config.train.monitor, config.budget
    games = monitor.real_eval_tasks * bool(config.env.id and monitor.real_eval_every)
    if not c.real_steps:
        return games
    steps = budget.dev_game_steps(workload.episode_steps, workload.max_steps)
    return budget.dev_games(c, workload.transitions, steps, games)


def uses_early_experience(config: RunConfig, workload: Workload) -> bool:
    """Return whether the warm start is more than behaviour cloning."""
    return config.warmstart.method_with(dev_games(config, workload)) != "bc"


def train_steps(config: RunConfig, workload: Workload) -> int:
    """Return the steps that the stage `train` may take, in dream or reality."""
    steps = loop_steps(config.train, workload.max_steps)
    if config.train.environment == "real" and config.budget.real_steps:
        parts = budget.division(config.budget, workload.transitions, real_training=True)
        return min(steps, parts["train"])
    return steps


def loop_steps(loop: LoopConfig, max_steps: int) -> int:
    """Return the steps that the rollouts of a loop may take.

    Of the groups that may be drawn again, half are counted.
    """
    tasks = loop.tasks_per_update * (1 + loop.max_resample_rounds / 2)
    retried = min(loop.curriculum.guided_retries.groups, loop.tasks_per_update)
    rollouts = (tasks + loop.forks_per_update + retried) * loop.group_size
    steps = round(loop.updates * rollouts * max_steps)
    return min(steps, loop.max_transitions) if loop.max_transitions else steps


def ranking_cost(workload: Workload, steps: int, batch_pairs: int) -> Cost:
    """Return the cost of so many steps of fitting a reward model to pairs."""
    transitions = 2 * batch_pairs * workload.episode_steps
    return workload.fit(steps * transitions * RANKED_TRANSITION)


def refit_seconds(loop: LoopConfig, workload: Workload) -> float:
    """Return the seconds that the refits of a loop's reward model take."""
    refit = loop.reward.reward_model.refit
    if not refit.every:
        return 0.0
    steps = loop.updates // refit.every * refit.steps
    return ranking_cost(workload, steps, refit.batch_pairs).seconds


def loop_memory(loop: LoopConfig, workload: Workload) -> float:
    """Return the bytes that a loop needs.

    There are the experience model, the policy now, before and as it began, two moments,
    a gradient, and several arrays of logits.
    """
    tokens = loop.update.batch_rows * loop.update.row_tokens
    logits = 4.0 * tokens * workload.timings.vocabulary
    scratch = workload.timings.scratch * tokens / workload.batch_tokens
    return 7 * workload.model_bytes + 5 * logits + scratch


def answers_per_query(config: RunConfig) -> int:
    """Return the answers of a server to one question; 0 if no server is asked."""
    if config.server is None:
        return 0
    return 1 + SAMPLES * (config.uncertainty.signal == "self_consistency")


def plan_cost(
    config: RunConfig, workload: Workload, plan: PlanConfig, steps: float | int
) -> Cost:
    """Return the cost of what a plan dreams in so many real steps."""
    dreamed = PLANNED * plan.simulations * plan.depth
    return dream_cost(config, workload, steps * dreamed, updates=PLANNED_STEP)


def dreamed_wins_cost(config: RunConfig, workload: Workload, rounds: int) -> Cost:
    """Return what the rollouts of these rounds dream at most, and their searches."""
    c = config.expert_iteration
    steps_per_task = PLAYED * c.rollouts_per_task * workload.max_steps
    steps_per_task += SEARCHED * c.search_steps
    # To write a task takes about as long as to answer an action.
    written = 4 * c.invented_tasks
    return dream_cost(config, workload, rounds * c.tasks * steps_per_task + written)


def dream_cost(
    config: RunConfig,
    workload: Workload,
    steps: float | int,
    *,
    updates: float = DREAMED_STEP,
) -> Cost:
    """Return the cost of steps that rollouts in the dream may have.

    A step takes as long as so many `updates` of the fit.
    """
    answers = UNCACHED * answers_per_query(config) * steps
    seconds = updates * steps * workload.timings.update
    return Cost(seconds + answers * workload.timings.answer, answers=answers)
