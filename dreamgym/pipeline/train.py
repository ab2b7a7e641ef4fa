"""Stage: trust-region training in the dream, or in the real environment as control."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dreamgym.agent.policy import Policy
from dreamgym.envs import base, registry, vector
from dreamgym.envs.base import UNTRUSTED
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.evaluation import bounds, evaluate
from dreamgym.pipeline import evaluate as evaluation
from dreamgym.pipeline import served
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.policies import load_policy
from dreamgym.pipeline.pretrain import episodes_of, load_experience
from dreamgym.pipeline.reinforce import reinforce, trust_of
from dreamgym.pipeline.run import Run, RunError
from dreamgym.rewards.config import RewardConfig
from dreamgym.training import TrainingState
from dreamgym.training.metrics import training_note
from dreamgym.training.monitor import best_row
from worldmodel import fidelity
from worldmodel.data.records import Episode, Task
from worldmodel.experience.base import CachingExperienceModel

UNPROMISED = (
    "Theorem 1 says nothing of this update: its gain needs advantages in units of the "
    "return (baseline group, others, batch or critic, not divided by a std, averaged "
    "over tokens, without replay)."
)
UNMEASURED = (
    "Theorem 1 says nothing of this update: it was paid other rewards than the "
    "environment's (dream.reward, trust.pessimism, or a KL in the reward), and how far "
    "the dream is wrong about those was not measured."
)


def _share(curve: Sequence[dict[str, Any]], name: str) -> float:
    """A count of the curve as a share of all rollouts."""
    total = sum(row["rollouts"] for row in curve)
    return sum(row.get(name, 0.0) for row in curve) / max(total, 1)


def _promised(
    run: Run,
    experience: CachingExperienceModel,
    dev: Sequence[Episode],
    curve: Sequence[dict[str, Any]],
) -> dict[str, Any] | None:
    """What Theorem 1 says of the updates of a curve; None where it cannot be told."""
    loop = run.config.dream
    if not loop.update.in_returns or loop.replay.share:
        return {"sentence": UNPROMISED}
    if _paid_otherwise(run.config):
        return {"sentence": UNMEASURED}
    limit = run.config.evaluate.fidelity
    errors = fidelity.largest_errors(experience, dev, limit=limit)
    if errors is None:
        return None
    return bounds.best_bound(
        curve, discount=run.config.dream.update.discount, eps_r=errors.reward,
        eps_p=errors.moves, r_max=errors.span, measured=errors.transitions,
    )  # fmt: skip


def _paid_otherwise(config: RunConfig) -> bool:
    """Whether updates in the dream earn more or less than what the dream says."""
    update = config.dream.update
    withheld = update.kl > 0 and update.penalty.place == "reward"
    shaped = config.dream.reward != RewardConfig()
    return shaped or withheld or config.trust.pessimism > 0


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
        with _probe(run) as probe:
            _, progress = reinforce(
                run, "dream", warm, warm, envs, tasks, run.config.dream, probe=probe
            )
    finally:
        envs.close()
    run.drop("checkpoints/dream")
    spent = progress.transitions + _probed(progress)
    return _numbers(progress) | {"real_transitions": spent}


def _dreamed(run: Run, experience: CachingExperienceModel) -> dict[str, Any]:
    train_episodes, dev = episodes_of(run)
    served.check_trust(run, experience, dev)
    warm = load_policy(run, "warmstart")
    tasks = _dreamable(list({e.task.id: e.task for e in train_episodes}.values()))
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
    run.drop("checkpoints/dream")  # until here a kill costs no update
    return {
        **_numbers(progress),
        "dream_transitions": progress.transitions,
        "real_transitions": _probed(progress),
        "untrusted": _share(progress.curve, f"unscored/{UNTRUSTED}"),
        "computed_share": experience.computed / max(experience.queried, 1),
        **served.spent(experience),
    }


def _dreamable(tasks: Sequence[Task]) -> list[Task]:
    """Tasks that a dream can begin: the others are left out, which is said.

    Raises:
      RunError: none of them has a first state.
    """
    known = [t for t in tasks if t.initial_state]
    if not known:
        raise RunError("no task to dream of: all recorded episodes begin empty")
    if left := len(tasks) - len(known):
        print(
            f"train: {left} tasks begin with an empty state: left out", file=sys.stderr
        )
    return known


def _probed(progress: TrainingState) -> int:
    """Real steps that probes took."""
    return int(sum(row.get("probed", 0) for row in progress.curve))


def _numbers(progress: TrainingState) -> dict[str, Any]:
    """What the stage tells of a loop, wherever it ran."""
    pool = progress.pool.entries.values()
    told: dict[str, Any] = (
        {"halted": progress.stop_reason} if progress.stop_reason else {}
    )
    scored = [row for row in progress.curve if "success" in row]
    if scored:  # else nobody knows how often it won
        for name, row in (("first", scored[0]), ("last", scored[-1])):
            told[f"success_{name}"] = row["success"]
            told[f"success_{name}_of"] = int(row["rollouts"] - row["unscored"])
    if progress.curve and "kl" in progress.curve[-1]:
        told["kl"] = progress.curve[-1]["kl"]
    note = training_note(progress.curve)
    if note is not None:
        told["note"] = note
        print(f"train: {note}", file=sys.stderr)
    best = best_row(progress.curve)
    if progress.best is not None and best is not None:
        row = progress.curve[best]
        told |= {"kept_update": row["update"], "kept_probe": row["probe"]}
    return told | {
        "updates": progress.update,
        "proposal_resets": progress.pool.resets,
        "generated_tasks": sum(e.generated for e in pool),
        "retired_tasks": sum(e.retired for e in pool),
        **{f"accepted_{k}": v for k, v in progress.pool.acceptance().items()},
    }


@contextlib.contextmanager
def _probe(run: Run) -> Iterator[Callable[[Policy], dict[str, float]] | None]:
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
