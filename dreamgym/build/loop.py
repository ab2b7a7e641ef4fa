"""The training loop of a run: builds its parts, runs it, saves policy and curve."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from curriculum.lesson_tracker import lesson_tracker_for
from curriculum.sampler import max_generated, pool_of
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy
from dreamgym.build import curriculum as run_curriculum
from dreamgym.build import episodes as run_episodes
from dreamgym.build.episodes import plan_lengths
from dreamgym.build.loop_checkpoint import LoopCheckpoint
from dreamgym.build.models import save_policy
from dreamgym.build.real.dev_play import (
    dev_game_steps,
    dev_tasks,
    play_dev_tasks,
    plays_dev_games,
)
from dreamgym.build.real.environments import real_envs
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.build.rewards import reward_function, reward_model_refit
from dreamgym.envs.dream import DreamVectorEnv, UncertaintyGate
from dreamgym.envs.vector import VectorEnv
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.rewards.potential import GoalPotential
from dreamgym.rewards.reward_model_refit import RewardModelRefit
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.run.directory import Run, RunError
from dreamgym.training import LoopParts, TrainingState, train
from dreamgym.training.config import LoopConfig
from dreamgym.training.feasibility import feasibility_filter_for
from dreamgym.training.rollouts.rewards import ScoreEpisodes
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task, read_branches
from worldmodel.experience.base import CachingExperienceModel
from worldmodel.fitting.batches import Example
from worldmodel.text.names import MAX_DRAWS, Groups


@contextlib.contextmanager
def real_evaluation(
    run: Run, reserve: int = 0
) -> Iterator[Callable[[Policy], dict[str, float]] | None]:
    """Yield a function that plays real dev tasks with a policy, or None.

    None without an environment, or if the settings ask for no real evaluation. The
    function returns no metrics where a budget has too few real steps left for it, of
    which it leaves a `reserve`, or where they did not last for all games: what is
    compared must be of the same games.

    Raises:
      RunError: the environment has no dev task.
    """
    if not plays_dev_games(run):
        yield None
        return
    games = dev_tasks(run)
    envs = real_envs(run, len(games))
    try:

        def probe(policy: Policy) -> dict[str, float]:
            left = run.real_steps.left
            if left is not None:
                left -= reserve
                if left < max(dev_game_steps(run, later=1), envs.max_steps):
                    return {}
            before = envs.transitions
            trajectories = play_dev_tasks(run, policy, envs, games, left)
            metrics = {"real_eval_transitions": float(envs.transitions - before)}
            if len(trajectories) < len(games):
                return metrics
            return metrics | dev_metrics(trajectories)

        yield probe
    finally:
        envs.close()


def reinforce(
    run: Run,
    name: str,
    policy: Policy,
    reference: Policy,
    envs: VectorEnv,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    experience: CachingExperienceModel | None = None,
    budget: int | None = None,
    reserve: int = 0,
    rollout_lag: int = 0,
    probe: Callable[[Policy], dict[str, float]] | None = None,
    baseline: Mapping[str, float] | None = None,
) -> tuple[Policy, TrainingState]:
    """Train `policy`; return the trained policy and the final state of the loop.

    The loop resumes from checkpoints/NAME and writes curves/NAME.jsonl. `probe` plays
    real dev tasks; `baseline` holds its metrics for the initial `policy`. Of a budget
    `reserve` is left. The caller removes the checkpoint when everything is written.
    """
    seed, grammar = _seed(run, name), policy.grammar(config.update.temperature)
    updater = Updater(policy.model, reference.model.params, grammar, config.update)
    critic = _critic(policy, config, seed)
    start = _initial_state(
        run, updater, critic, tasks, config, seed=seed, keep_best=probe is not None
    )
    gate = envs.uncertainty if isinstance(envs, DreamVectorEnv) else None
    total, unit = (config.updates, "update") if budget is None else (budget, "step")
    stage = "train" if name == "dream" else "transfer"

    def position(state: TrainingState) -> int:
        return state.update if budget is None else state.transitions

    with (
        scorer(run, config, stage) as (score, reward_refit),
        run.progress_report(name, total, unit) as report,
    ):
        reached = 0

        def after(state: TrainingState) -> None:
            nonlocal reached
            reached, row = position(state), state.curve[-1]
            broken = row["unscored_rollouts"] / row["rollouts"]
            report(state.update, row | {"broken_share": broken}, reached)

        weights = None if reward_refit is None else reward_refit.weights
        with _checkpoint(run, name, config, experience, after) as saver:
            # Before the parts are built: the proposer holds the pool of the state.
            progress = saver.restore(start._replace(reward_model=weights))
            reached = position(progress)
            report(progress.update, {}, reached)
            progress = train(
                policy,
                envs,
                updater,
                progress,
                config,
                seed=seed,
                recorder=saver,
                budget=budget,
                rollout_lag=rollout_lag,
                show=lambda at, *_: report(at, {}, reached),
                parts=dataclasses.replace(
                    _parts(run, policy, progress, config, experience, seed, gate),
                    critic=critic,
                    real_eval=probe,
                    score=score,
                    reward_refit=reward_refit,
                    real_eval_baseline={} if baseline is None else baseline,
                    steps_left=steps_left(run, reserve) if experience is None else None,
                ),
            )
    if progress.stop_reason:
        print(f"{name}: {progress.stop_reason}", file=sys.stderr)
    result = policy.replace(policy.model._replace(params=progress.result.params))
    save_policy(run, name, result)
    run.write_curve(name, progress.curve)
    return result, progress


def _seed(run: Run, name: str) -> int:
    """Return the seed of a loop; each round of a policy, NAME/round-n, has its own."""
    seed = run.config.policy_seed
    return content_seed(seed, name) if "/" in name else seed


def _checkpoint(
    run: Run,
    name: str,
    config: LoopConfig,
    experience: CachingExperienceModel | None,
    after: Callable[[TrainingState], None],
) -> LoopCheckpoint:
    """Return the recorder of a loop, which saves it and calls `after` each update."""
    return LoopCheckpoint(
        run.path(f"checkpoints/{name}"),
        experience,
        run.config,
        after,
        run.path(f"rollouts/{name}"),
        config.keep_rollouts,
    )


def steps_left(run: Run, reserve: int = 0) -> Callable[[], int] | None:
    """Return a function that counts the real steps a loop may still take.

    None where the run sets no bound.
    """
    if run.real_steps.left is None:
        return None
    return lambda: (run.real_steps.left or 0) - reserve


def _critic(policy: Policy, config: LoopConfig, seed: int) -> Critic | None:
    """Return the critic of generalized advantage estimation, or None without it."""
    update = config.update
    if update.advantage_estimator != "gae":
        return None
    return Critic(
        policy.model,
        update.critic,
        rows=update.batch_rows,
        width=update.row_tokens,
        seed=seed,
    )


def _initial_state(
    run: Run,
    updater: Updater,
    critic: Critic | None,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    seed: int,
    keep_best: bool,
) -> TrainingState:
    """Return the state before the first update, which checkpoints are restored to."""
    # What won most may have cost most: under limits the last policy counts.
    keep_best = keep_best and config.monitor.keep_best and not config.limits
    return TrainingState(
        0,
        updater.learner.init(),
        pool_of(tasks, config.curriculum, seed=seed),
        0,
        [],
        None if critic is None else critic.init(),
        lessons=lesson_tracker_for(config.curriculum, config.reward.tools.match),
        best=updater.learner.init() if keep_best else None,
        novelty=_novelty(run, config),
    )


def _novelty(run: Run, config: LoopConfig) -> NoveltyReward | None:
    """Return the reward of novel states, which knows the collected ones, or None."""
    novelty = config.reward.novelty
    if not novelty.weight:
        return None
    return NoveltyReward(novelty, run_episodes.read(run)[0])


def _goals(run: Run, config: LoopConfig) -> GoalPotential | None:
    """Return the potential "goal", or None without it.

    Raises:
      RunError: no collected episode was won.
    """
    potential = config.reward.potential
    if not potential.weight or potential.kind != "goal":
        return None
    collected = run_episodes.read(run)[0]
    won = [e for e in collected if e.success]
    if not won:
        source = run.config.env.id or run.config.data.episodes
        raise RunError(
            f'{run.root}: reward.potential.kind = "goal" compares states with the ends '
            f"of won episodes, and none of the {len(collected)} collected train "
            f"episodes of {source} was won: collect some that are won, or set "
            'reward.potential.weight to 0, or the kind to "plan" where an expert of '
            "the environment plans from any state"
        )
    return GoalPotential(won)


def _parts(
    run: Run,
    policy: Policy,
    progress: TrainingState,
    config: LoopConfig,
    experience: CachingExperienceModel | None,
    seed: int,
    gate: UncertaintyGate | None,
) -> LoopParts:
    """Return the parts of the loop that need the run's files.

    Args:
      seed: that of generated tasks and of their tests.
      gate: that of the dream that is trained in, under which generated tasks are
        tested; None in the real environment.

    Raises:
      RunError: rollouts begin in demonstrations, or are guided by them, or a potential
        is computed from won episodes, and no collected episode was won.
    """
    won = []
    if config.curriculum.reads_demonstrations:
        won = run_episodes.won_solutions(run)
    parts = LoopParts(
        auxiliary=supervised(run, policy, config) if config.supervised else (),
        plan_lengths=plan_lengths(run) if progress.lessons is not None else {},
        rollout_mesh=run.rollout_mesh,
        demonstrations=won,
        goals=_goals(run, config),
    )
    if experience is None:
        return parts
    c, propose = config.curriculum, None
    if max_generated(
        c, config.tasks_per_update
    ):  # else proposals are paid for and never drawn
        propose = run_curriculum.proposer(
            progress.pool, c, experience, env=run.config.env, seed=seed
        )
    trial = feasibility_filter_for(
        c,
        experience,
        policy,
        max_steps=step_limit(run),
        temperature=config.update.temperature,
        seed=seed,
        uncertainty=gate,
        lasting_wins=lasting_wins(run),
    )
    return dataclasses.replace(parts, propose=propose, feasibility=trial)


@contextlib.contextmanager
def scorer(
    run: Run, config: LoopConfig, stage: str
) -> Iterator[tuple[ScoreEpisodes | None, RewardModelRefit | None]]:
    """Yield the reward function of a loop and the refits of its reward model.

    Each is None without it: rewards that stay unchanged, a model that is not refitted.
    """
    if config.reward == RewardConfig():
        yield None, None
        return
    with reward_function(run, config.reward, stage) as built:
        yield built.score, reward_model_refit(run, config.reward, built.reward_model)


def supervised(run: Run, policy: Policy, config: LoopConfig) -> list[Example]:
    """Return the examples for the auxiliary loss (training.AuxiliaryConfig).

    Where names stand for each other there are copies of the examples with other names,
    as in the warm start: as many as the updates read them, and one more, because the
    warm start has read them with the names that were recorded.

    Raises:
      RunError: there is no demonstration.
    """
    if config.auxiliary.objective == "rollout_iwm":
        return []  # the loop's own rollouts
    names = run_episodes.read_names(run)
    if config.auxiliary.objective == "bc":  # what the warm start was shown, and no more
        imitated = run_episodes.imitated_episodes(run)
        examples = early.bc_examples(policy, imitated)
        draws = _draws(config, examples, names)
        if draws == 1:
            return examples
        return early.bc_examples(policy, imitated, draws=draws, names=names)
    experts, _ = run_episodes.demonstrations(run)
    path = run.path("branches.jsonl")
    branches = read_branches(path) if path.is_file() else []
    examples = early.iwm_examples(policy, experts, branches)
    draws = _draws(config, examples, names)
    if draws == 1:
        return examples
    return early.iwm_examples(policy, experts, branches, draws=draws, names=names)


def _draws(
    config: LoopConfig, examples: Sequence[Example], names: Mapping[str, Groups]
) -> int:
    """Return how many draws of names the examples of the auxiliary loss have."""
    if not names or not examples:
        return 1
    read = config.updates * config.auxiliary.examples_per_update / len(examples)
    return min(math.ceil(read) + 1, MAX_DRAWS)
