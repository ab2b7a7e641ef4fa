"""Stage: trust-region training in the dream, checkpointed after every update."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import UNTRUSTED, VectorEnv
from dreamgym.envs.dream import DreamVectorEnv, Trust
from dreamgym.evaluation import bounds
from dreamgym.pipeline import served
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.pretrain import episodes_of, load_experience
from dreamgym.pipeline.run import Run
from dreamgym.pipeline.warmstart import load_policy, save_policy
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.training import LoopConfig, Progress, pool_of, train
from worldmodel import fidelity
from worldmodel.experience import Query, Remembering, content_seed
from worldmodel.fitting import checkpoint
from worldmodel.fitting.learner import TrainState
from worldmodel.text.records import Episode, Task, Transition


class _Saver:
    """Saves after each update, and enriches the memory where there is one.

    `told` hears of the progress first: a kill in between does not leave a row out.
    """

    def __init__(
        self,
        directory: Path,
        experience: Remembering | None,
        config: RunConfig,
        told: Callable[[Progress], None] = lambda _: None,
    ):
        self._directory, self._experience, self._told = directory, experience, told
        self._enrich, self._least = config.enrich, config.trust.enrich
        self._seed = config.seed
        self._fresh: list[tuple[str, dict[str, Any]]] = []

    def after_update(
        self, progress: Progress, trajectories: Sequence[Trajectory]
    ) -> None:
        """See training.Hooks."""
        self._told(progress)
        if self._experience is not None:
            self._remember(progress.update, trajectories)
        host = {
            "pool": progress.pool.state(),
            "transitions": progress.transitions,
            "curve": progress.curve,
            "fresh": self._fresh,
        }
        checkpoint.save(self._directory, progress.update, _arrays(progress), host)

    def _remember(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        assert self._experience is not None
        rows = [row for t in trajectories if t.error is None for row in _asked(t)]
        if self._least and rows:  # known answers: nothing is computed again
            answers = self._experience.predict([query for query, _ in rows])
            pairs = zip(rows, answers, strict=True)
            rows = [row for row, a in pairs if a.confidence >= self._least]
        rng = np.random.default_rng((self._seed, update))
        chosen = [rows[i] for i in rng.permutation(len(rows))[: self._enrich]]
        picked = [(query.task.id, x) for query, x in chosen]
        self._fresh += [(task, dataclasses.asdict(x)) for task, x in picked]
        self._experience.refresh([t for t, _ in picked], [x for _, x in picked])

    def restore(self, start: Progress) -> Progress:
        """The newest checkpoint, or `start` where there is none."""
        found = checkpoint.restore(self._directory, _arrays(start))
        if found is None:
            return start
        number, arrays, host = found
        state, critic = arrays if start.critic is not None else (arrays, None)
        start.pool.load(host["pool"])
        self._fresh = [(t, x) for t, x in host["fresh"]]
        if self._experience is not None:
            tuples = [_transition(x) for _, x in self._fresh]
            self._experience.refresh([t for t, _ in self._fresh], tuples)
        return Progress(
            number, TrainState(*state), start.pool, host["transitions"],
            host["curve"], None if critic is None else TrainState(*critic),
        )  # fmt: skip


def _arrays(progress: Progress) -> Any:
    """What of the progress is arrays."""
    one, two = progress.state, progress.critic
    return one if two is None else (one, two)


def _asked(trajectory: Trajectory) -> list[tuple[Query, Transition]]:
    """Each dreamed transition with the question that it answers."""
    episode = trajectory.episode
    acted = tuple(x.action for x in episode.transitions)
    return [
        (Query(episode.task, acted[:i], x.state, x.action), x)
        for i, x in enumerate(episode.transitions)
    ]


def _transition(row: dict[str, Any]) -> Transition:
    states: dict[str, Any] = {k: tuple(row[k]) for k in ("state", "next_state")}
    return Transition(**(row | states))


def reinforce(
    run: Run,
    name: str,
    policy: Policy,
    reference: Policy,
    envs: VectorEnv,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    experience: Remembering | None = None,
    budget: int | None = None,
) -> tuple[Policy, Progress]:
    """The loop from `policy`, resumable under checkpoints/NAME, with its curve."""
    grammar = policy.grammar(config.update.temperature)
    update, critic = config.update, None
    updater = Updater(policy.model, reference.model.params, grammar, update)
    if update.baseline == "critic":
        critic = Critic(
            policy.model, update.critic, rows=update.rows, width=update.width
        )
    start = Progress(
        0, updater.learner.init(), pool_of(tasks, config.curriculum), 0, [],
        None if critic is None else critic.init(),
    )  # fmt: skip

    def propose(seeds: Sequence[Task]) -> list[Task | None]:
        assert experience is not None
        key = jax.random.key(content_seed(run.config.seed, *(t.id for t in seeds)))
        return experience.vary(seeds, key=key)

    total, unit = config.updates, "update"
    if budget is not None:
        total, unit = budget, "step"

    def position(now: Progress) -> int:
        return now.update if budget is None else now.transitions

    with run.following(name, total, unit) as told:
        reached = 0

        def after(now: Progress) -> None:
            nonlocal reached
            reached = position(now)
            cut = now.curve[-1].get(f"unscored/{UNTRUSTED}", 0.0)
            gate = {"gate": cut / (config.tasks * config.group_size)}
            told(now.update, now.curve[-1] | gate, reached)

        saver = _Saver(run.path(f"checkpoints/{name}"), experience, run.config, after)
        progress = saver.restore(start)
        reached = position(progress)
        told(progress.update, {}, reached)
        progress = train(
            policy, envs, updater, progress, config, seed=run.config.seed,
            hooks=saver, propose=None if experience is None else propose,
            budget=budget, show=lambda at, *_: told(at, {}, reached), critic=critic,
        )  # fmt: skip
    params = progress.state.params
    result = policy.replace(policy.model._replace(params=params))
    save_policy(run, name, result)
    run.write_curve(name, progress.curve)
    run.drop(f"checkpoints/{name}")
    return result, progress


def _share(curve: Sequence[dict[str, Any]], name: str, loop: LoopConfig) -> float:
    """A count of the curve as a share of all rollouts."""
    return sum(row.get(name, 0.0) for row in curve) / (
        max(len(curve), 1) * loop.tasks * loop.group_size
    )


def _promised(
    run: Run,
    experience: Remembering,
    dev: Sequence[Episode],
    curve: Sequence[dict[str, Any]],
) -> dict[str, Any] | None:
    """What Theorem 1 says of the updates of a curve; None where it cannot be told."""
    limit = run.config.evaluate.fidelity
    errors = fidelity.largest_errors(experience, dev, limit=limit)
    if errors is None:
        return None
    return bounds.told(
        curve, discount=run.config.dream.update.discount, eps_r=errors.reward,
        eps_p=errors.moves, r_max=errors.span, measured=errors.transitions,
    )  # fmt: skip


def trust_of(run: Run) -> Trust:
    """The trust that the run's settings ask for, by what was measured on dev games."""
    c, threshold = run.config.trust, 0.0
    if c.gate:
        run.require("fidelity")
        threshold = run.read_json("fidelity.json")["threshold"]
    return Trust(threshold=threshold, pessimism=c.pessimism)


def stage(run: Run) -> dict[str, Any]:
    """Train from the warm start in the dream; writes policies/dream.

    A server's answers are kept on disk, so an update that was broken off is played
    again without new questions. Where it answers none any more the stage stops.
    """
    run.require("warmstart")
    experience = load_experience(run, stage="train", scaled=True)
    with served.asking(experience):
        return _dreamed(run, experience)


def _dreamed(run: Run, experience: Remembering) -> dict[str, Any]:
    train_episodes, dev = episodes_of(run)
    served.check_trust(run, experience, dev)
    warm = load_policy(run, "warmstart")
    tasks = list({e.task.id: e.task for e in train_episodes}.values())
    loop = run.config.dream
    envs = DreamVectorEnv(
        experience, loop.tasks * loop.group_size, max_steps=run.config.max_steps,
        trust=trust_of(run),
    )  # fmt: skip
    _, progress = reinforce(
        run, "dream", warm, warm, envs, tasks, loop, experience=experience
    )
    run.write_json("bound.json", _promised(run, experience, dev, progress.curve))
    first, last = progress.curve[0], progress.curve[-1]
    return {
        "updates": progress.update,
        "dream_transitions": progress.transitions,
        "success_first": first["success"],
        "success_last": last["success"],
        "kl": last.get("kl", 0.0),
        "untrusted": _share(progress.curve, f"unscored/{UNTRUSTED}", loop),
        "computed_share": experience.computed / max(experience.asked, 1),
        "generated_tasks": sum(e.generated for e in progress.pool.entries.values()),
        "retired_tasks": sum(e.retired for e in progress.pool.entries.values()),
        **served.spent(experience),
    }
