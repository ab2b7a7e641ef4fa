"""How robust the policies of a run are: test games in other words.

a run's policies, perturbations -> the same test games, perturbed -> success, and its
difference to the games as they are, paired by game; of two games in a row to both as
they are. The expert plays them, too: where it loses more than as they are, the
perturbation is unfair, and says nothing of a policy. Where nothing is changed, the
results say so: a difference of 0 would say nothing of a policy either.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.agent import floors
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.episodes import NAMES, read_names, recorded_episodes
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
    names_of,
)
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.card import UNCHANGED, losses_beyond
from dreamgym.run.directory import Run, RunError
from dreamgym.run.terminal import short_path
from dreamgym.stages.table import POLICIES
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Episode, Task
from worldmodel.text import identifiers
from worldmodel.text.names import Groups, interchangeable_names

FILE = "robustness.json"
NO_NAMES = "not played: the run's games show no names that stand for each other"
_EXPERT = "expert"

Games = dict[str, Trajectory]
"""The games of a player, by the id of their task."""


class _Perturbation(NamedTuple):
    """A kind with its settings, and the test tasks that are played under it."""

    kind: str
    rate: float
    names: Mapping[str, Groups]
    tasks: Sequence[Task]

    @property
    def changed_tasks(self) -> list[Task]:
        """The tasks whose games may be changed: all, or those that have names."""
        if self.kind != "rename":
            return list(self.tasks)
        return [task for task in self.tasks if names_of(task, self.names)]

    def make(self, run: Run) -> tuple[PerturbedEnv, list[Task]]:
        """Return the perturbed environment, and the tasks as the agent reads them."""
        env = PerturbedEnv(
            make_env(run),
            self.kind,
            rate=self.rate,
            names=self.names,
            seed=run.config.seed,
        )
        return env, [env.perturbed(task) for task in self.tasks]


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
    names = _names(run) if "rename" in kinds else {}
    # The games as they are come first: the others are compared with them.
    results: dict[str, Any] = {"rate": rate, "kinds": {}}
    before: dict[str, Games] = {}
    for kind in dict.fromkeys(("identity", *kinds)):
        perturbation = _Perturbation(kind, rate, names, tasks)
        results["kinds"][kind] = _measure(run, perturbation, chosen, before)
    run.write_json(FILE, results)
    return results


def _names(run: Run) -> dict[str, Groups]:
    """Return the names that stand for each other, by what the run's games show.

    Names that a fit has exchanged need the evidence that the fit needed. Test games
    count, too: no policy learns from an audit.
    """
    episodes = recorded_episodes(run.path("episodes.jsonl"))
    for path in sorted(run.path("test").glob("*.jsonl")):
        episodes += [t.episode for t in evaluate.trajectories(path) if t.error is None]
    # Policies that play alike are no further evidence.
    distinct = {(e.task.id, _texts(e)): e for e in episodes}
    before = read_names(run) if run.path(NAMES).is_file() else None
    return interchangeable_names(list(distinct.values()), trial_names=before)


def _texts(episode: Episode) -> tuple[str, ...]:
    """Return what was read and written in an episode."""
    return tuple(identifiers.texts(episode))


def _measure(
    run: Run,
    perturbation: _Perturbation,
    policies: Sequence[str],
    before: dict[str, Games],
) -> dict[str, Any]:
    """Return the results of a kind; add a player's first games to those `before`."""
    changed = {task.id for task in perturbation.changed_tasks}
    if not changed:
        return {"expert_losses": None, "policies": {}, "note": NO_NAMES}
    expert, rows = _expert_games(run, perturbation), {}
    lost = lost_before = None
    if expert is not None:
        before.setdefault(_EXPERT, _by_task(expert))
        reference = _reference(perturbation, before[_EXPERT])
        lost, lost_before = (_losses(x, changed) for x in (expert, reference))
    for policy in policies:
        played = _play(run, policy, perturbation)
        if policy not in before:
            before[policy] = _by_task(played)
            _warn_of_other_games(run, policy, played)
        reference = _reference(perturbation, before[policy])
        played = [t for t in played if t.episode.task.id in changed]
        first = before[policy]
        rows[policy] = {
            "success": evaluate.summary(played, real_transitions=0)["success"],
            "difference": evaluate.paired(played, reference, seed=run.config.seed),
            "changed_games": sum(
                _texts(t.episode) != _texts(first[t.episode.task.id].episode)
                for t in played
            ),
        }
    row = {
        "expert_losses": lost,
        "expert_losses_unperturbed": lost_before,
        "policies": rows,
    }
    if perturbation.kind != "rename":
        return row
    row["names"] = {
        task.family: names_of(task, perturbation.names)
        for task in perturbation.changed_tasks
    }
    others = {task.family for task in perturbation.tasks} - row["names"].keys()
    if others:
        names = ", ".join(map(repr, sorted(others)))
        row["note"] = f"left out, without names that stand for each other: {names}"
    return row


def _by_task(played: Sequence[Trajectory]) -> Games:
    return {t.episode.task.id: t for t in played}


def _losses(played: Sequence[Trajectory], tasks: set[str]) -> int:
    """Return how many games of these tasks were not won."""
    games = [t.episode for t in played if t.episode.task.id in tasks]
    return sum(not episode.success for episode in games)


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


def _reference(perturbation: _Perturbation, games: Games) -> list[Trajectory]:
    """Return the games as they are that the perturbed ones are compared with.

    Of two in a row, a game is won where the game that follows is won as well.
    """
    tasks = perturbation.tasks
    if games_in_a_row(perturbation.kind) == 1:
        return [games[task.id] for task in tasks]
    out = []
    for task in tasks:
        game, other = games[task.id], games[following(task, tasks).id]
        won = bool(game.episode.success and other.episode.success)
        episode = dataclasses.replace(game.episode, success=won)
        out.append(game._replace(episode=episode, error=game.error or other.error))
    return out


def _expert_games(run: Run, perturbation: _Perturbation) -> list[Trajectory] | None:
    """Play the expert's plans; return None where there is no expert."""
    env, tasks = perturbation.make(run)
    with contextlib.closing(env):
        if base.as_expert(env) is None:
            return None
        return floors.play_scripted(
            env,
            tasks,
            lambda env, _: floors.expert_actor(env),
            source="expert",
            seed=run.config.seed + TEST_SEED,
            max_steps=games_in_a_row(perturbation.kind) * step_limit(run),
        )


def _play(run: Run, policy: str, perturbation: _Perturbation) -> list[Trajectory]:
    env, tasks = perturbation.make(run)
    env.close()
    folder = f"robustness/{perturbation.kind}-{perturbation.rate:g}"
    if perturbation.kind == "rename":  # other names give other games
        folder += f"-{content_hash(perturbation.names)[:8]}"
    return play_audit_games(
        run,
        policy,
        tasks,
        folder,
        make=lambda: perturbation.make(run)[0],
        games=games_in_a_row(perturbation.kind),
    )


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown: success, and the difference to the games.

    Notes on kinds that change nothing, or not all games, stand below.
    """
    identity = results["kinds"]["identity"]
    policies = list(identity["policies"])
    out = ["| | " + " | ".join(policies) + " | expert loses |"]
    out.append("|---" * (len(policies) + 2) + "|")
    notes = []
    for kind, row in results["kinds"].items():
        cells = [_cell(row["policies"].get(p), kind) for p in policies]
        lost, more = row["expert_losses"], losses_beyond(row, identity)
        cells.append(
            "-" if lost is None else f"{lost} (+{more})" if more else f"{lost}"
        )
        out.append(f"| {kind} | " + " | ".join(cells) + " |")
        notes += [f"{kind}: {row['note']}"] if row.get("note") else []
    return "\n".join([*out, *([""] if notes else []), *notes])


def _cell(row: dict[str, Any] | None, kind: str) -> str:
    if row is None or (mean := row["success"]["mean"]) is None:
        return "-"
    text, d = f"{100 * mean:.1f} %", row["difference"]
    if kind == "identity" or d["mean"] is None:
        return text
    if not row["changed_games"]:
        return UNCHANGED
    low, high = 100 * d["low"], 100 * d["high"]
    return f"{text} ({100 * d['mean']:+.1f} [{low:+.1f}, {high:+.1f}])"
