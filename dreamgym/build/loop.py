"""The training loop of a run: parts from settings, checkpoints, policy and curve."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence

from curriculum.lesson_tracker import lesson_tracker_for
from curriculum.sampler import max_generated, pool_of
from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.build import curriculum as run_curriculum
from dreamgym.build import episodes as run_episodes
from dreamgym.build.episodes import plan_lengths
from dreamgym.build.experience import trust
from dreamgym.build.loop_checkpoint import LoopCheckpoint
from dreamgym.build.models import save_policy
from dreamgym.build.rewards import reward_function
from dreamgym.envs import base, registry, vector
from dreamgym.envs.base import UNTRUSTED
from dreamgym.envs.vector import VectorEnv
from dreamgym.evaluation import evaluate
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.run.directory import Run, RunError
from dreamgym.training import LoopConfig, LoopParts, TrainingState, train
from dreamgym.training.feasibility import feasibility_filter_for
from dreamgym.training.rollouts import ScoreEpisodes
from worldmodel.data.records import Task, read_branches
from worldmodel.experience.base import CachingExperienceModel
from worldmodel.fitting.batches import Example


@contextlib.contextmanager
def real_evaluation(run: Run) -> Iterator[Callable[[Policy], dict[str, float]] | None]:
    """Real dev games for a policy in training, where the settings ask for them.

    Raises:
      RunError: they ask, and there is no environment.
    """
    c = run.config
    w = c.dream.watch
    if not w.probe:
        yield None
        return
    if not c.env:
        raise RunError("dream.watch.probe plays real dev games: give --env")
    envs = vector.RealVectorEnv(
        [registry.make(c.env) for _ in range(min(w.games, c.evaluate.slots))],
        max_steps=c.max_steps,
    )
    env = registry.make(c.env)
    try:
        games = base.tasks_of(env, c.env, "dev", w.games)
        if not games:
            raise RunError(f"dream.watch.probe: {c.env!r} has no dev task to play")
        games = base.begin_all(env, games)

        def probe(policy: Policy) -> dict[str, float]:
            before = envs.transitions
            found = evaluate.play(
                policy, envs, games, seed=c.seed + 11,
                temperature=c.evaluate.temperature,
            )  # fmt: skip
            told = {"probed": float(envs.transitions - before)}
            mean = evaluate.summary(found, real_transitions=0)["success"]["mean"]
            return told if mean is None else told | {"probe": mean}

        yield probe
    finally:
        env.close()
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
    probe: Callable[[Policy], dict[str, float]] | None = None,
) -> tuple[Policy, TrainingState]:
    """The loop from `policy`, resumable under checkpoints/NAME, with its curve.

    Whoever calls drops the checkpoint, once all that needs the progress is written.
    """
    grammar = policy.grammar(config.update.temperature)
    update, critic = config.update, None
    updater = Updater(policy.model, reference.model.params, grammar, update)
    if update.baseline == "critic":
        critic = Critic(
            policy.model, update.critic, rows=update.rows, width=update.width
        )
    keep = config.watch.keep and probe is not None
    start = TrainingState(
        0, updater.learner.init(),
        pool_of(tasks, config.curriculum, seed=run.config.seed), 0, [],
        None if critic is None else critic.init(),
        lessons=lesson_tracker_for(config.curriculum),
        best=updater.learner.init() if keep else None,
    )  # fmt: skip
    total, unit, stage = config.updates, "update", "train"
    if budget is not None:
        total, unit, stage = budget, "step", "transfer"

    def position(now: TrainingState) -> int:
        return now.update if budget is None else now.transitions

    with (
        scorer(run, config, stage) as score,
        run.following(name, total, unit) as told,
    ):
        reached = 0

        def after(now: TrainingState) -> None:
            nonlocal reached
            reached, row = position(now), now.curve[-1]
            gate = {"gate": row.get(f"unscored/{UNTRUSTED}", 0.0) / row["rollouts"]}
            told(now.update, row | gate, reached)

        saver = LoopCheckpoint(
            run.path(f"checkpoints/{name}"), experience, run.config, after
        )
        progress = saver.restore(start)
        reached = position(progress)
        told(progress.update, {}, reached)
        parts = _parts(run, policy, progress, config, experience)
        progress = train(
            policy, envs, updater, progress, config, seed=run.config.seed,
            recorder=saver, budget=budget, show=lambda at, *_: told(at, {}, reached),
            parts=dataclasses.replace(
                parts, critic=critic, real_eval=probe, score=score
            ),
        )  # fmt: skip
    if progress.stop_reason:
        print(f"{name}: {progress.stop_reason}", file=sys.stderr)
    params = progress.result.params
    result = policy.replace(policy.model._replace(params=params))
    save_policy(run, name, result)
    run.write_curve(name, progress.curve)
    return result, progress


def _parts(
    run: Run,
    policy: Policy,
    progress: TrainingState,
    config: LoopConfig,
    experience: CachingExperienceModel | None,
) -> LoopParts:
    """What the loop is given by the settings of its curriculum and of imitation."""
    parts = LoopParts(
        auxiliary=supervised(run, policy, config) if config.supervised else (),
        plan_lengths=plan_lengths(run) if progress.lessons is not None else {},
    )
    if experience is None:
        return parts
    c, seed, propose = config.curriculum, run.config.seed, None
    if max_generated(c, config.tasks):  # else proposals are paid for and never drawn
        propose = run_curriculum.proposer(
            progress.pool, c, experience, env=run.config.env, seed=seed
        )
    trial = feasibility_filter_for(
        c, experience, policy, max_steps=run.config.max_steps,
        temperature=config.update.temperature, seed=seed, trust=trust(run),
    )  # fmt: skip
    return dataclasses.replace(parts, propose=propose, feasibility=trial)


@contextlib.contextmanager
def scorer(run: Run, config: LoopConfig, stage: str) -> Iterator[ScoreEpisodes | None]:
    """What pays the steps of a loop; None where rewards stay as they are."""
    if config.reward == RewardConfig():
        yield None
        return
    with reward_function(run, config.reward, stage) as built:
        yield built.score


def supervised(run: Run, policy: Policy, config: LoopConfig) -> list[Example]:
    """What may be imitated beside the update's own loss (training.BesideConfig).

    Raises:
      RunError: none of the collected episodes was won.
    """
    if config.beside.kind == "own":
        return []  # the loop's own rollouts
    experts, _ = run_episodes.demonstrations(
        run
    )  # no more of them than the warm start was shown
    if config.beside.kind == "bc":
        return early.bc_examples(policy, experts)
    branches = run.path("branches.jsonl")
    known = read_branches(branches) if branches.is_file() else []
    return early.iwm_examples(policy, experts, known)
