"""Fine-tuning by expert iteration: real play, a refit of the dream, imitation of both.

policy, planning or not -> real episodes of unsolved tasks -> the experience model
fitted further to them -> episodes won in its dream -> a fit from the initial policy to
everything that was won -> the next round

Each real transition is kept: it is a demonstration if its episode was won, and the
experience model is fitted to it in any case.
"""

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dreamgym.agent.demonstrations import solutions, without_surpassed
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.build.episodes import (
    imitated_episodes,
    known_solutions,
    names_with,
    read,
    recorded_episodes,
)
from dreamgym.build.experience import (
    fidelity_file,
    load_experience,
    remedy_folder,
)
from dreamgym.build.imitation import dreamed_wins, fit_demonstrations
from dreamgym.build.planning import (
    chosen_plan,
    planning_policy,
    planning_session,
)
from dreamgym.build.real.environments import dreamable_tasks, real_envs, training_tasks
from dreamgym.build.refit import can_refit, refit
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.comparisons.outcome_discrimination import lost_discrimination
from dreamgym.run.directory import Run
from worldmodel import fidelity
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode, Task, write_episodes


def iterate(
    run: Run, name: str, policy: Policy, *, steps: int, dreams: bool, reserve: int = 0
) -> tuple[Policy, dict[str, Any]]:
    """Return the policy after `transfer.iteration.rounds` rounds, and their numbers.

    Interrupted, it goes on with the first part of a round that was not finished. What
    was played in round n is in NAME/round-n/episodes.jsonl.

    Args:
      policy: plays the first round. With `dreams` it may plan (`transfer.iteration`).
      steps: real steps of all rounds; no episode starts that might take more.
      reserve: real steps of the run that are left for what follows.
      dreams: whether the experience model is refitted and dreamed in; without it the
        real episodes alone are imitated, which is the control.
    """
    c = run.config
    tasks = training_tasks(
        run, [e.task for e in read(run)[0]], c.expert_iteration.fresh_tasks
    )
    collected, imitated = known_solutions(run), imitated_episodes(run)
    dreamed: list[Episode] = []
    if dreams:  # the control must not see it
        dreamed = recorded_episodes(run.path("expert_iteration.jsonl"))
    play = Play([], 0)
    rows: list[dict[str, Any]] = []
    model_folder = remedy_folder(run) if dreams else ""
    for number in range(1, c.transfer.iteration.rounds + 1):
        folder = f"{name}/round-{number}"
        limit = steps * number // c.transfer.iteration.rounds - play.steps
        player: Policy | PlanningPolicy = policy
        if dreams:
            plan = chosen_plan(run, policy, c.transfer.iteration.plan, "none")
            player = planning_policy(run, policy, plan, stage=name, folder=model_folder)
        unsolved = _unsolved(tasks, [*collected, *play.episodes])
        play = play_round(run, folder, player, unsolved, play, limit, reserve)
        new = solutions(play.episodes, c.bc.min_wins, _won_tasks(collected))
        real = [*collected, *new]
        solved = _won_tasks(real)
        row: dict[str, Any] = {
            "real_transitions": play.steps,
            "real_demonstrations": len(solved),
        }
        if dreams:
            if c.transfer.iteration.refit_share and can_refit(run.config):
                model_folder, scores = refit_round(run, folder, model_folder)
                row |= scores
            unsolved = _unsolved(tasks, real)
            # Where all are won, or the others cannot be begun, nothing is dreamed of.
            if any(t.initial_state for t in unsolved):
                unsolved = dreamable_tasks(unsolved)
            else:
                unsolved = []
            experience = load_experience(
                run, stage=name, scaled=True, folder=model_folder
            )
            newly_dreamed = dreamed_wins(
                run,
                experience,
                policy,
                unsolved,
                folder,
                model_folder,
                won_tasks=solved | _won_tasks(dreamed),
            )
            replaced = solved | _won_tasks(newly_dreamed)
            earlier = [e for e in dreamed if e.task.id not in replaced]
            dreamed = without_surpassed([*newly_dreamed, *earlier])
            row["dreamed_demonstrations"] = len(_won_tasks(dreamed))
        extra = [e for e in dreamed if e.task.id not in solved]
        imitable = without_surpassed([*imitated, *new, *extra])
        if parts := sum(not e.success for e in imitable):
            row["imitated_parts"] = parts
        names = names_with(run, play.episodes)
        policy = fit_demonstrations(run, imitable, folder, names)
        rows.append(row)
        print(f"{name}: round {number}: {_text(row)}", file=sys.stderr)
    first = len(_won_tasks(collected))
    return policy, {"rounds": rows, "collected_demonstrations": first}


def _text(row: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value:.3g}" for key, value in row.items())


def count_transitions(episodes: Sequence[Episode]) -> int:
    """Return how many steps the episodes have."""
    return sum(len(e.transitions) for e in episodes)


def _won_tasks(episodes: Sequence[Episode]) -> set[str]:
    return {e.task.id for e in episodes if e.success}


def _unsolved(tasks: Sequence[Task], played: Sequence[Episode]) -> list[Task]:
    solved = _won_tasks(played)
    return [t for t in tasks if t.id not in solved]


class Play(NamedTuple):
    """What was played in real rounds, and the real steps that it took.

    Episodes that the environment broke are left out; their steps count.
    """

    episodes: list[Episode]
    steps: int


def play_round(
    run: Run,
    folder: str,
    policy: Policy | PlanningPolicy,
    tasks: Sequence[Task],
    before: Play,
    steps: int,
    reserve: int = 0,
) -> Play:
    """Return what was played `before` and in this round, which is recorded.

    The tasks are played in random order. Where `steps` are left after that, those that
    were not won are played again. Episodes that the environment broke are left out.
    `reserve` of the real steps that the run may still take are left: an attempt that
    was interrupted has taken some.
    """
    path, steps_file = run.path(f"{folder}/episodes.jsonl"), f"{folder}/real_steps.json"
    if path.is_file():
        episodes = recorded_episodes(path)
        if run.path(steps_file).is_file():
            return Play(episodes, int(run.read_json(steps_file)["real_steps"]))
        return Play(episodes, count_transitions(episodes))  # of a run before 2026-11-29
    seed = content_seed(run.config.policy_seed, folder)
    order = np.random.default_rng(seed).permutation(len(tasks)).tolist()
    played, remaining = list(before.episodes), [tasks[i] for i in order]
    if run.real_steps.left is not None:
        steps = min(steps, max(run.real_steps.left - reserve, 0))
    with (
        planning_session(policy),
        contextlib.closing(real_envs(run)) as envs,
        run.progress_report(folder, steps, "step") as report,
    ):
        for attempt in itertools.count():
            taken = envs.transitions
            trajectories = evaluate.play(
                policy,
                envs,
                remaining,
                seed=content_seed(seed, attempt),
                temperature=run.config.evaluate.temperature,
                max_transitions=steps - taken,
                progress=lambda *_: report(envs.transitions, {}),
            )
            if envs.transitions == taken:  # no steps are left, or nothing starts
                break
            new = [t.episode for t in trajectories if t.error is None]
            played += [
                dataclasses.replace(
                    e, id=f"{folder}-{attempt}-{e.task.id}", source="policy"
                )
                for e in new
            ]
            remaining = _unsolved(remaining, new)
        steps_taken = before.steps + envs.transitions
    path.parent.mkdir(parents=True, exist_ok=True)
    run.write_json(steps_file, {"real_steps": steps_taken})
    write_episodes(path, played, check=False)
    return Play(played, steps_taken)


def refit_round(run: Run, folder: str, start: str) -> tuple[str, dict[str, float]]:
    """Fit the experience model further; return the better folder, and its numbers.

    What was played is in the folder's episodes.jsonl; `start` is the folder of the
    model that the fit starts from. That model stays where the new one tells rewards and
    ends apart less well on dev tasks (lost_discrimination), and the new one is removed.
    A round that was refitted is not refitted again.

    Returns:
      The folder of the model to dream in, and: exact_predictable, the share of the
      predictable next states that are right after the refit, on dev tasks;
      exact_on_policy, the share before it, on what the policy of this round has played.
      Neither is there without a case. refit_left_out is 1 where the model before stays.
    """
    out = {"exact_on_policy": _exact_on_policy(run, folder, start)}
    if not run.path(f"{folder}/fidelity.json").is_file():
        name, share = f"{folder}-experience", run.config.transfer.iteration.refit_share
        refit(run, folder, name, share, start=start)
    scorecard = run.read_json(fidelity_file(folder))
    out["exact_predictable"] = scorecard["exact"]["predictable"]["mean"]
    numbers = {name: share for name, share in out.items() if share is not None}
    before = fidelity_file(start)
    losses = []
    if run.path(before).is_file():
        losses = lost_discrimination(run.read_json(before), scorecard)
    if not losses:
        return folder, numbers
    print(
        f"{folder}: the refitted experience model is left out, and the one before it "
        f"stays: it is worse at {'; '.join(losses)}",
        file=sys.stderr,
    )
    run.drop(f"{folder}/experience")  # nobody is to plan in it (paid_folder)
    return start, numbers | {"refit_left_out": 1.0}


def _exact_on_policy(run: Run, folder: str, model_folder: str) -> float | None:
    """Return how often a model is right in the episodes that a round has played."""
    played = recorded_episodes(run.path(f"{folder}/episodes.jsonl"))
    new = [e for e in played if e.id.startswith(f"{folder}-") and e.transitions]
    if not new:
        return None
    experience = load_experience(run, folder=model_folder)
    limit = max(run.config.fidelity.transitions // 2, 1)
    scorecard = fidelity.score(
        experience, new, limit=limit, open_loop_steps=0, recorded=read(run)[0]
    )
    return scorecard["exact"]["predictable"]["mean"]
