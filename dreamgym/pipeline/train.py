"""Stage: trust-region training in the dream, checkpointed after every update."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.sampler import pool_of
from curriculum.staged import staged_of
from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs import base
from dreamgym.envs.base import UNTRUSTED, VectorEnv
from dreamgym.envs.dream import DreamVectorEnv, Trust
from dreamgym.evaluation import bounds, evaluate
from dreamgym.pipeline import evaluate as evaluation
from dreamgym.pipeline import proposals, served
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.feasibility import trial_of
from dreamgym.pipeline.pretrain import episodes_of, load_experience
from dreamgym.pipeline.reward import scoring
from dreamgym.pipeline.run import Run, RunError, bar
from dreamgym.pipeline.warmstart import experts_of, load_policy, save_policy
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.scoring.config import RewardConfig
from dreamgym.training import LoopConfig, Parts, Progress, train
from dreamgym.training.gather import Score
from worldmodel import fidelity, pretrain
from worldmodel.experience import Query, Remembering
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState
from worldmodel.text.records import Episode, Task, Transition, read_branches


class _Saver:
    """Saves after each update, and enriches the memory where there is one."""

    def __init__(
        self,
        directory: Path,
        experience: Remembering | None,
        config: RunConfig,
    ):
        self._directory, self._experience = directory, experience
        self._enrich, self._least = config.enrich, config.trust.enrich
        self._seed = config.seed
        self._fresh: list[tuple[str, dict[str, Any]]] = []

    def after_update(
        self, progress: Progress, trajectories: Sequence[Trajectory]
    ) -> None:
        """See training.Hooks."""
        if self._experience is not None:
            self._remember(progress.update, trajectories)
        for name in (k for k in progress.curve[-1] if k.startswith("alarm/")):
            undone = ", undone" * bool(progress.curve[-1].get("undone"))
            said = f"update {progress.update}: {name.removeprefix('alarm/')}{undone}"
            print(f"alarm, {said} (see watch in the settings)", file=sys.stderr)
        host = {
            "pool": progress.pool.state(),
            "transitions": progress.transitions,
            "curve": progress.curve,
            "fresh": self._fresh,
            "stages": None if progress.stages is None else progress.stages.to_json(),
            "replay": [_plain(e) for e in progress.replay],
            "halted": progress.halted,
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
        if start.stages is not None:
            start.stages.load(host["stages"])
        self._fresh = [(t, x) for t, x in host["fresh"]]
        if self._experience is not None:
            tuples = [_transition(x) for _, x in self._fresh]
            self._experience.refresh([t for t, _ in self._fresh], tuples)
        return Progress(
            number, TrainState(*state), start.pool, host["transitions"],
            host["curve"], None if critic is None else TrainState(*critic),
            tuple(Example(**e) for e in host["replay"]), start.stages, host["halted"],
        )  # fmt: skip


def _plain(example: Example) -> dict[str, Any]:
    """An example as JSON."""
    return {
        k: v.tolist() if isinstance(v, np.ndarray) else v
        for k, v in example._asdict().items()
    }


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
    probe: Callable[[Policy], dict[str, float]] | None = None,
) -> tuple[Policy, Progress]:
    """The loop from `policy`, resumable under checkpoints/NAME, with its curve."""
    grammar = policy.grammar(config.update.temperature)
    update, critic = config.update, None
    updater = Updater(policy.model, reference.model.params, grammar, update)
    if update.baseline == "critic":
        critic = Critic(
            policy.model, update.critic, rows=update.rows, width=update.width
        )
    saver = _Saver(run.path(f"checkpoints/{name}"), experience, run.config)
    start = Progress(
        0, updater.learner.init(),
        pool_of(tasks, config.curriculum, seed=run.config.seed), 0, [],
        None if critic is None else critic.init(),
        stages=staged_of(config.curriculum),
    )  # fmt: skip
    progress = saver.restore(start)
    propose = trial = None
    if experience is not None:
        propose = proposals.proposer(
            progress.pool, config.curriculum, experience, env=run.config.env,
            seed=run.config.seed,
        )  # fmt: skip
        trial = trial_of(
            config.curriculum, experience, policy, max_steps=run.config.max_steps,
            temperature=update.temperature, seed=run.config.seed, trust=trust_of(run),
        )  # fmt: skip
    total = budget if budget is not None else config.updates
    stage = "train" if budget is None else "transfer"
    with (
        scorer(run, config, stage) as score,
        bar(total, name, "step" if budget is not None else "update") as show,
    ):

        def shown(update: int, done: int, of: int) -> None:
            del of
            show(update if budget is None else progress.transitions + done)

        parts = Parts(
            propose=propose, trial=trial, critic=critic, probe=probe, score=score,
            beside=supervised(run, policy, config) if config.supervised else (),
            plans=_plans(run) if progress.stages is not None else {},
        )  # fmt: skip
        progress = train(
            policy, envs, updater, progress, config, seed=run.config.seed,
            hooks=saver, parts=parts, budget=budget, show=shown,
        )  # fmt: skip
    if progress.halted:
        print(f"{name}: {progress.halted}", file=sys.stderr)
    params = progress.state.params
    result = policy.replace(policy.model._replace(params=params))
    save_policy(run, name, result)
    pretrain.write_curve(run.path(f"curves/{name}.jsonl"), progress.curve)
    run.drop(f"checkpoints/{name}")
    return result, progress


@contextlib.contextmanager
def scorer(run: Run, config: LoopConfig, stage: str) -> Iterator[Score | None]:
    """What pays the steps of a loop; None where rewards stay as they are."""
    if config.reward == RewardConfig():
        yield None
        return
    with scoring(run, config.reward, stage) as built:
        yield built.score


def supervised(run: Run, policy: Policy, config: LoopConfig) -> list[Example]:
    """What may be imitated beside the update's own loss (training.BesideConfig)."""
    train_episodes, _ = episodes_of(run)
    experts = experts_of(train_episodes, run.config.warmstart.experts)
    if config.beside.kind == "bc":
        return early.bc_examples(policy, experts)
    branches = run.path("branches.jsonl")
    known = read_branches(branches) if branches.is_file() else []
    return early.iwm_examples(policy, experts, known)


def _plans(run: Run) -> dict[str, int]:
    """The fewest steps in which a task of the training episodes was won."""
    out: dict[str, int] = {}
    for e in episodes_of(run)[0]:
        if e.success:
            steps = len(e.transitions)
            out[e.task.id] = min(out.get(e.task.id, steps), steps)
    return out


def _share(curve: Sequence[dict[str, Any]], name: str) -> float:
    """A count of the curve as a share of all rollouts."""
    total = sum(row["rollouts"] for row in curve)
    return sum(row.get(name, 0.0) for row in curve) / max(total, 1)


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
    again without new questions. Where it answers none any more the stage stops. With
    the setting `real` the same happens in the real environment instead.
    """
    run.require("warmstart")
    if run.config.real:
        return _played(run)
    experience = load_experience(run, stage="train", scaled=True)
    with served.asking(experience):
        return _dreamed(run, experience)


def _played(run: Run) -> dict[str, Any]:
    """The control: as many updates of the same loop on the real environment."""
    train_episodes, _ = episodes_of(run)
    warm, envs = load_policy(run, "warmstart"), evaluation.real_envs(run)
    tasks = list({e.task.id: e.task for e in train_episodes}.values())
    try:
        _, progress = reinforce(run, "dream", warm, warm, envs, tasks, run.config.dream)
    finally:
        envs.close()
    return _numbers(progress) | {"real_transitions": progress.transitions}


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
    with _probe(run) as probe:
        _, progress = reinforce(
            run, "dream", warm, warm, envs, tasks, loop, experience=experience,
            probe=probe,
        )  # fmt: skip
    run.write_json("bound.json", _promised(run, experience, dev, progress.curve))
    return {
        **_numbers(progress),
        "dream_transitions": progress.transitions,
        "real_transitions": int(sum(r.get("probed", 0) for r in progress.curve)),
        "untrusted": _share(progress.curve, f"unscored/{UNTRUSTED}"),
        "computed_share": experience.computed / max(experience.asked, 1),
        **served.spent(experience),
    }


def _numbers(progress: Progress) -> dict[str, Any]:
    """What the stage tells of a loop, wherever it ran."""
    first, last = progress.curve[0], progress.curve[-1]
    pool = progress.pool.entries.values()
    told: dict[str, Any] = {"halted": progress.halted} if progress.halted else {}
    return told | {
        "updates": progress.update,
        "success_first": first["success"],
        "success_last": last["success"],
        "kl": last.get("kl", 0.0),
        "proposal_resets": progress.pool.resets,
        "generated_tasks": sum(e.generated for e in pool),
        "retired_tasks": sum(e.retired for e in pool),
    }


@contextlib.contextmanager
def _probe(run: Run) -> Iterator[Callable[[Policy], dict[str, float]] | None]:
    """Real dev games for a policy in training, where the settings ask for them.

    Raises:
      RunError: they ask, and there is no environment.
    """
    c = run.config
    watch = c.dream.watch
    if not watch.probe:
        yield None
        return
    if not c.env:
        raise RunError("dream.watch.probe plays real dev games: give --env")
    envs = base.RealVectorEnv(
        [base.make(c.env) for _ in range(min(watch.games, c.evaluate.slots))],
        max_steps=c.max_steps,
    )
    env = base.make(c.env)
    try:
        games = base.tasks_of(env, c.env, "dev", watch.games)
        games = [base.begin(env, t)[0] for t in games]

        def probe(policy: Policy) -> dict[str, float]:
            before = envs.transitions
            found = evaluate.play(
                policy, envs, games, seed=c.seed + 11,
                temperature=c.evaluate.temperature,
            )  # fmt: skip
            row = evaluate.summary(found, real_transitions=0)
            return {
                "probe": row["success"]["mean"],
                "probed": float(envs.transitions - before),
            }

        yield probe
    finally:
        env.close()
        envs.close()
