"""Games of audits: recorded with a hash of the player, and valid for it alone.

policy of a run, tasks -> FOLDER/POLICY.jsonl and FOLDER/POLICY.player, the hash of what
played them. A policy that has been trained again since has another hash, and plays
anew. Times of files decide nothing: clocks are set back, and copies keep old times.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.planning import paid_folder, plan_of
from dreamgym.build.real.environments import play_test_games
from dreamgym.run.directory import Run
from worldmodel.data.checksums import directory_sums, file_sum
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Task, atomic_write


def player_hash(run: Run, policy: str) -> str:
    """Return a hash of what a policy of a run plays with.

    These are its weights and tokenizer, what stages have decided about its actions, the
    experience model in which it plans, and the episodes, where it reads them. Settings
    are no part of it: a run keeps its own.
    """
    plan = plan_of(run, policy).method
    parts = {
        "policy": directory_sums(run.path(f"policies/{policy}")),
        "shield": run.numbers("shield").get("shield", ""),
        "action_tokens": run.numbers("pretrain").get("action_tokens", 0),
        "deterministic": run.numbers("collect").get("deterministic", True),
        "plan": plan,
    }
    if plan != "none":
        folder = run.path(paid_folder(run, policy))
        parts["experience"] = directory_sums(folder / "experience")
    episodes = run.path("episodes.jsonl")
    if (plan != "none" or run.config.policy.memories) and episodes.is_file():
        parts["episodes"] = file_sum(episodes)
    return content_hash(parts)


def play_audit_games(
    host: Run,
    policy: str,
    tasks: Sequence[Task],
    folder: str,
    *,
    source: Run | None = None,
    make: Callable[[], gymnasium.Env] | None = None,
    load: Callable[[], Policy | PlanningPolicy] | None = None,
    games: int = 1,
) -> list[Trajectory]:
    """Play tasks of a run with a policy, unless it has; return the trajectories.

    They are recorded in FOLDER/POLICY.jsonl of the `host`. Games of another policy of
    this name, or of an unknown one, are played anew; they stay until that has ended.

    Args:
      source: the run of the policy, by default the host.
      make: makes the environment, by default that of the host.
      load: loads what plays, by default the host's policy.
      games: of an episode, each with the host's step limit.

    Raises:
      EnvironmentDown: the environment failed in every episode; no file is written.
    """
    path = host.path(f"{folder}/{policy}.player")
    player = player_hash(host if source is None else source, policy)
    is_current = _text(path) == player
    if not is_current:
        path.unlink(missing_ok=True)  # first: a kill below leaves games without it
    played = play_test_games(
        host,
        policy,
        tasks,
        folder,
        make=make,
        load=load,
        again=not is_current,
        games=games,
    )
    if not is_current:
        with atomic_write(path) as file:
            file.write(f"{player}\n")
    return played


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
