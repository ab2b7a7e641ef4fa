"""How robust the policies of a run are: test games in other words.

a run's policies, perturbations -> the same test games, perturbed -> success, and its
difference to the games as they are, paired by game; of two games in a row to both as
they are. The expert plays them, too: where it loses, the perturbation is unfair, and
says nothing of a policy.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from curriculum.renaming import entities
from dreamgym.agent import floors
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.real.audit_games import play_audit_games
from dreamgym.build.real.environments import TEST_SEED, make_env, test_tasks
from dreamgym.build.real.step_limit import step_limit
from dreamgym.commands.results import raise_no_games
from dreamgym.envs import base
from dreamgym.envs.perturbations import (
    PERTURBATIONS,
    PerturbedEnv,
    following,
    games_in_a_row,
)
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run, RunError
from dreamgym.run.terminal import short_path
from dreamgym.stages.table import POLICIES
from worldmodel.data.records import Task

FILE = "robustness.json"


def robustness(
    run: Run, policies: Sequence[str], kinds: Sequence[str], rate: float
) -> dict[str, Any]:
    """Play the test games under each kind; write robustness.json; return its content.

    Without `policies` all that the run has made are played.

    Raises:
      RunError: the run has no environment, or no such policy.
      ValueError: there is no such kind.
    """
    if not run.config.env.id:
        raise_no_games(run)
    available = [p for p in POLICIES if run.path(f"policies/{p}/config.json").is_file()]
    if not available:
        raise RunError(
            f"{run.root}: no policy is trained yet (dreamgym quickstart, or bc)"
        )
    chosen = policies or available
    if unknown := [p for p in chosen if p not in available]:
        raise RunError(f"{run.root}: no policy {unknown[0]!r}; have {available}")
    if wrong := [k for k in kinds if k not in PERTURBATIONS]:
        raise ValueError(f"kinds must be among {PERTURBATIONS}, got {wrong}")
    tasks = test_tasks(run)
    names = sorted(entities(tasks))
    # The games as they are come first: the others are compared with them.
    results: dict[str, Any] = {"rate": rate, "kinds": {}}
    before: dict[str, list[Trajectory]] = {}
    for kind in dict.fromkeys(("identity", *kinds)):
        rows, fair = {}, _expert_loses(run, kind, names, rate, tasks)
        for policy in chosen:
            played = _play(run, policy, kind, names, rate, tasks)
            if policy not in before:
                before[policy] = played
                _warn_of_other_games(run, policy, played)
            row = evaluate.summary(played, real_transitions=0)
            reference = before[policy]
            if games_in_a_row(kind) > 1:
                reference = _both(reference, tasks)
            difference = evaluate.paired(played, reference, seed=run.config.seed)
            rows[policy] = {"success": row["success"], "difference": difference}
        results["kinds"][kind] = {"expert_losses": fair, "policies": rows}
    run.write_json(FILE, results)
    return results


def _warn_of_other_games(run: Run, policy: str, played: Sequence[Trajectory]) -> None:
    """Warn where unperturbed games end otherwise than in the run's test."""
    path = run.path(f"test/{policy}.jsonl")
    if not path.is_file():
        return
    earlier = {t.episode.task.id: t for t in evaluate.trajectories(path)}
    pairs = [(t, earlier.get(t.episode.task.id)) for t in played]
    same = [b is None or a.episode.success == b.episode.success for a, b in pairs]
    if others := same.count(False):
        print(
            f"{policy}: {others} of {len(same)} games as they are end otherwise than "
            f"in {short_path(path)}: the environment or the program has changed, or "
            "the environment draws lots; differences are to the games of today",
            file=sys.stderr,
        )


def _both(played: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
    """Return the games, won where the game that follows is won as well."""
    by_task = {task.id: game for task, game in zip(tasks, played, strict=True)}
    out = []
    for task, game in zip(tasks, played, strict=True):
        other = by_task[following(task, tasks).id]
        won = bool(game.episode.success and other.episode.success)
        episode = dataclasses.replace(game.episode, success=won)
        out.append(game._replace(episode=episode, error=game.error or other.error))
    return out


def _perturbed_env(
    run: Run, kind: str, names: Sequence[str], rate: float, tasks: Sequence[Task]
) -> tuple[PerturbedEnv, list[Task]]:
    """Return an environment and its tasks as the agent reads them."""
    env = PerturbedEnv(
        make_env(run), kind, rate=rate, names=names, seed=run.config.seed
    )
    return env, [env.perturbed(task) for task in tasks]


def _play(
    run: Run,
    policy: str,
    kind: str,
    names: Sequence[str],
    rate: float,
    tasks: Sequence[Task],
) -> list[Trajectory]:
    env, changed = _perturbed_env(run, kind, names, rate, tasks)
    env.close()
    folder = f"robustness/{kind}-{rate:g}"
    return play_audit_games(
        run,
        policy,
        changed,
        folder,
        make=lambda: _perturbed_env(run, kind, names, rate, tasks)[0],
        games=games_in_a_row(kind),
    )


def _expert_loses(
    run: Run, kind: str, names: Sequence[str], rate: float, tasks: Sequence[Task]
) -> int | None:
    """Return how many games the expert loses; None where there is no expert."""
    env, changed = _perturbed_env(run, kind, names, rate, tasks)
    with contextlib.closing(env):
        if base.as_expert(env) is None:
            return None
        played = floors.play_scripted(
            env,
            changed,
            lambda env, _: floors.expert_actor(env),
            source="expert",
            seed=run.config.seed + TEST_SEED,
            max_steps=games_in_a_row(kind) * step_limit(run),
        )
    return sum(not t.episode.success for t in played)


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown: success, and the difference to the games."""
    policies = list(results["kinds"]["identity"]["policies"])
    out = ["| | " + " | ".join(policies) + " | expert loses |"]
    out.append("|---" * (len(policies) + 2) + "|")
    for kind, row in results["kinds"].items():
        cells = [_cell(row["policies"][p], kind) for p in policies]
        lost = row["expert_losses"]
        cells.append("-" if lost is None else str(lost))
        out.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def _cell(row: dict[str, Any], kind: str) -> str:
    mean = row["success"]["mean"]
    if mean is None:
        return "-"
    text, d = f"{100 * mean:.1f} %", row["difference"]
    if kind == "identity" or d["mean"] is None:
        return text
    low, high = 100 * d["low"], 100 * d["high"]
    return f"{text} ({100 * d['mean']:+.1f} [{low:+.1f}, {high:+.1f}])"
