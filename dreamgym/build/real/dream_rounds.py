"""Fine-tuning by updates in the dream: real play, a refit, updates, round after round.

policy -> real episodes of train tasks -> the experience model fitted further to them ->
trust-region updates in its dream -> the next round. It is the loop of Dyna and MBPO
(arXiv:1906.08253): policy and experience model improve each other. Real steps are
spent on play alone, and each real transition is kept.
"""

import sys
from collections.abc import Sequence
from typing import Any

from dreamgym.agent.policy import Policy
from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import read
from dreamgym.build.experience import (
    load_experience,
    remedy_folder,
    uncertainty_gate,
)
from dreamgym.build.loop import reinforce
from dreamgym.build.real.environments import dreamable_tasks, training_tasks
from dreamgym.build.real.real_iteration import (
    Play,
    play_round,
    refit_round,
)
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.build.refit import can_refit
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.run.directory import Run
from dreamgym.training import TrainingState
from worldmodel.data.records import Episode, Task


def dream_rounds(
    run: Run, name: str, policy: Policy, *, steps: int, reserve: int = 0
) -> tuple[Policy, dict[str, Any]]:
    """Return the policy after `transfer.iteration.rounds` rounds, and their numbers.

    Interrupted, it goes on where it was. What was played in round n is in
    NAME/round-n/episodes.jsonl, next to the refitted model, and its updates are in
    curves/NAME/round-n.jsonl.

    Args:
      steps: real steps of all rounds; no episode starts that might take more.
      reserve: real steps of the run that are left for what follows.
    """
    c = run.config.transfer
    tasks = training_tasks(run, [e.task for e in read(run)[0]], c.fresh_tasks)
    play = Play([], 0)
    rows: list[dict[str, Any]] = []
    model_folder = remedy_folder(run)
    for number in range(1, c.iteration.rounds + 1):
        folder, before = f"{name}/round-{number}", len(play.episodes)
        limit = steps * number // c.iteration.rounds - play.steps
        play = play_round(run, folder, policy, tasks, play, limit, reserve)
        row: dict[str, Any] = {
            "real_transitions": play.steps,
            **_success("real_success", play.episodes[before:]),
        }
        if can_refit(run.config):
            model_folder, scores = refit_round(run, folder, model_folder)
            row |= scores
        policy, state = _dream_updates(run, folder, policy, tasks, model_folder)
        row["updates"] = state.update
        successes = [r["success"] for r in state.curve if "success" in r]
        if successes:
            row["dreamed_success"] = successes[-1]
        rows.append(row)
        text = "  ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"{name}: round {number}: {text}", file=sys.stderr)
    return policy, {"rounds": rows, "updates": sum(row["updates"] for row in rows)}


def _success(name: str, episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the success of episodes under a name, nothing where none was scored."""
    scored = [bool(e.success) for e in episodes if e.success is not None]
    return {name: sum(scored) / len(scored)} if scored else {}


def _dream_updates(
    run: Run, name: str, policy: Policy, tasks: Sequence[Task], folder: str
) -> tuple[Policy, TrainingState]:
    """Train a policy in the dream of the experience model in a folder."""
    loop = run.config.transfer
    experience = load_experience(
        run, stage=name, scaled=True, folder=folder, for_rollouts=True
    )
    envs = DreamVectorEnv(
        experience,
        loop.tasks_per_update * loop.group_size,
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, folder),
        lasting_wins=lasting_wins(run),
    )
    with run_chat.experience_session(experience):
        trained, state = reinforce(
            run,
            name,
            policy,
            policy,
            envs,
            dreamable_tasks(tasks),
            loop,
            experience=experience,
        )
    # The loop has saved it; only that of the last round is a policy of the run.
    run.drop(f"policies/{name}")
    return trained, state
