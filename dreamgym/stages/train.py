"""Stage: trust-region training in the dream, or in the real environment as control."""

import sys
from collections.abc import Sequence
from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build import environments
from dreamgym.build import experience as run_experience
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience, trust
from dreamgym.build.loop import real_evaluation, reinforce
from dreamgym.build.models import load_policy
from dreamgym.config.settings import RunConfig
from dreamgym.envs.base import UNTRUSTED
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.evaluation import bounds
from dreamgym.rewards.config import RewardConfig
from dreamgym.run.directory import Run, RunError
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


def body(run: Run) -> dict[str, Any]:
    """Train from the warm start in the dream; writes policies/dream.

    A server's answers are kept on disk, so an update that was broken off is played
    again without new questions. Where it answers none any more the stage stops. With
    the setting `real` the same happens in the real environment instead.
    """
    if run.config.real:
        return _played(run)
    experience = load_experience(run, stage="train", scaled=True)
    with run_chat.asking(experience):
        return _dreamed(run, experience)


def _played(run: Run) -> dict[str, Any]:
    """The control: as many updates of the same loop on the real environment."""
    train_episodes, _ = read(run)
    warm, envs = load_policy(run, "warmstart"), environments.real_envs(run)
    tasks = list({e.task.id: e.task for e in train_episodes}.values())
    try:
        with real_evaluation(run) as probe:
            _, progress = reinforce(
                run, "dream", warm, warm, envs, tasks, run.config.dream, probe=probe
            )
    finally:
        envs.close()
    run.drop("checkpoints/dream")
    spent = progress.transitions + _probed(progress)
    return _numbers(progress) | {"real_transitions": spent}


def _dreamed(run: Run, experience: CachingExperienceModel) -> dict[str, Any]:
    train_episodes, dev = read(run)
    run_experience.check_trust(run, experience, dev)
    warm = load_policy(run, "warmstart")
    tasks = _dreamable(list({e.task.id: e.task for e in train_episodes}.values()))
    loop = run.config.dream
    envs = DreamVectorEnv(
        experience, loop.tasks * loop.group_size, max_steps=run.config.max_steps,
        trust=trust(run),
    )  # fmt: skip
    with real_evaluation(run) as probe:
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
        **run_chat.spent(experience),
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
