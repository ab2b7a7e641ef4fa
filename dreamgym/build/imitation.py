"""Imitation of won episodes: what a policy wins in the dream, and the fit to it.

tasks -> rollouts in the dream -> a search for a win in the tasks that they did not win
-> the shortest won episode of each task, where few are won also the parts of others
that earned most -> a fit from the initial policy
"""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import jax
import numpy as np

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.demonstrations import shortened_wins, solutions, valid_steps
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.agent.search.a_star import WonPlans
from dreamgym.agent.search.batch import Noise, Search
from dreamgym.agent.search.recorded import frequent_actions
from dreamgym.agent.search.tree_search import path_transitions
from dreamgym.build.episodes import read, read_names, recorded_episodes
from dreamgym.build.experience import uncertainty_gate
from dreamgym.build.models import fit_model, initial_policy
from dreamgym.build.planning import Dreams, won_actions
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.envs.vector import Snapshot
from dreamgym.run.directory import Run
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode, Task, write_episodes
from worldmodel.experience.base import CachingExperienceModel
from worldmodel.text.names import Groups

SLOTS = 64
"""Dreamed episodes that are played at a time, and searches that run at a time."""
SEARCH_DRAWS = 4
"""Actions that a search draws of the policy in each state."""


def dreamed_wins(
    run: Run,
    experience: CachingExperienceModel,
    policy: Policy,
    tasks: Sequence[Task],
    name: str,
    folder: str = "",
    *,
    won_tasks: Collection[str],
) -> list[Episode]:
    """Return the shortest episode, without detours, of each task won in the dream.

    Where these and `won_tasks` are fewer than `bc.min_wins`, the parts of episodes that
    earned most in other tasks follow (`best_parts`); their `success` is false.
    `expert_iteration.tasks` of the tasks are drawn. What was dreamed under this name
    before an interruption is not repeated: it is in checkpoints/NAME.jsonl.

    Args:
      name: names the rollouts, and seeds the draw and their noise.
      folder: that of the experience model in the run.
      won_tasks: the tasks of which a win is imitated already, by id.
    """
    path = run.path(f"checkpoints/{name}.jsonl")
    if path.is_file():
        recorded = recorded_episodes(path)
        return [*shortened_wins(recorded), *(e for e in recorded if not e.success)]
    if not tasks:
        return []
    c, seed = run.config.expert_iteration, content_seed(run.config.policy_seed, name)
    order = np.random.default_rng(seed).permutation(len(tasks))
    drawn = [tasks[i] for i in order[: c.tasks].tolist()]
    gate, lasting = uncertainty_gate(run, folder), lasting_wins(run)
    dreams = Dreams(experience, step_limit(run), gate, lasting)
    starts = [task for task in drawn for _ in range(c.rollouts_per_task)]
    with run.progress_report(f"{name}, dreamed", len(starts), "episode") as report:
        trajectories = rollout(
            policy,
            dreams(SLOTS),
            starts,
            key=jax.random.key(seed),
            temperature=c.temperature,
            source=name,
            progress=lambda done, _: report(done, {}),
        )
    played = [t.episode for t in trajectories if t.error is None]
    won = [e for e in played if e.success]
    print(
        f"{name}: {len(won)} of {len(trajectories)} dreamed episodes were won, in "
        f"{len({e.task.id for e in won})} of {len(drawn)} tasks"
        f"{broken_text(trajectories)}",
        file=sys.stderr,
    )
    solved = {e.task.id for e in won}
    lost = [task for task in drawn if task.id not in solved]
    won += searched_wins(run, dreams, policy, lost, name)
    imitable = solutions([*played, *won], run.config.bc.min_wins, won_tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_episodes(path, imitable, check=False)
    return imitable


def broken_text(trajectories: Sequence[Trajectory]) -> str:
    """Return how many dreamed episodes broke off, how far they got, and why.

    '' if none did. Where the broken ones had more steps than the others, what is left
    out is what went far. Families are named where there are several.
    """
    broken = [t for t in trajectories if t.error is not None]
    if not broken:
        return ""
    errors = Counter(t.error for t in broken)
    text = ", ".join(f"{error}: {n}" for error, n in errors.most_common(2))
    counts = Counter(t.episode.task.family for t in trajectories)
    if len(counts) > 1:
        of = Counter(t.episode.task.family for t in broken)
        families = (f"{of[k]} of {n} of {k}" for k, n in sorted(counts.items()))
        text += f"; {', '.join(families)}"
    others = [t for t in trajectories if t.error is None]
    length = f"after {_mean_steps(broken):.1f} steps"
    if others:
        length += f", where the others have {_mean_steps(others):.1f}"
    return f"; {len(broken)} broke {length} ({text})"


def _mean_steps(trajectories: Sequence[Trajectory]) -> float:
    return float(np.mean([len(t.episode.transitions) for t in trajectories]))


def searched_wins(
    run: Run, dreams: Dreams, policy: Policy, tasks: Sequence[Task], name: str
) -> list[Episode]:
    """Return an episode of each task in which A* finds a win in the dream.

    A search takes `expert_iteration.search_steps` dreamed steps at most. Its candidates
    are draws of the policy, and the run's frequent actions.
    """
    c = run.config.expert_iteration
    if not c.search_steps or not tasks:
        return []
    episodes = read(run)[0]
    plan = PlanConfig(method="a_star", depth=dreams.max_steps, simulations=SEARCH_DRAWS)
    recorded, plans = frequent_actions(episodes), WonPlans(won_actions(episodes))
    key = jax.random.key(content_seed(run.config.policy_seed, f"{name}/search"))
    won: list[Episode] = []
    with run.progress_report(f"{name}, searched", len(tasks), "task") as report:
        for first in range(0, len(tasks), SLOTS):
            chunk = tasks[first : first + SLOTS]
            noise = Noise(jax.random.split(jax.random.fold_in(key, first), len(chunk)))
            search = Search(policy, dreams, plan, noise, c.temperature, plans, recorded)
            starts = [Snapshot(t, (), t.initial_state, ()) for t in chunk]
            wins = search.wins(starts, c.search_steps)
            won += [
                Episode(
                    id=f"{name}-search-{task.id}",
                    task=task,
                    transitions=path_transitions(path),
                    source=name,
                    success=True,
                )
                for task, path in zip(chunk, wins, strict=True)
                if path
            ]
            report(first + len(chunk), {})
    print(
        f"{name}: a search in the dream won {len(won)} of the other {len(tasks)} tasks",
        file=sys.stderr,
    )
    return won


def exploration_policy(run: Run, name: str) -> Policy:
    """Return the initial policy fitted to the valid actions of random players.

    It acts at random among what can be done, also in the dream, which lists no valid
    actions.
    """
    return fit_demonstrations(run, valid_steps(read(run)[0]), name)


def fit_demonstrations(
    run: Run,
    demonstrations: Sequence[Episode],
    name: str,
    names: Mapping[str, Groups] | None = None,
) -> Policy:
    """Return the initial policy fitted to these demonstrations, under a name.

    Copies have other `names`, by default those of the collection.

    Nothing is held out: what stops the fit is that it reads each example only
    `expert_iteration.epochs` times. It makes as many updates as behaviour cloning does
    in any case: with few demonstrations, fewer leave the policy half learnt.
    """
    policy, fit = initial_policy(run), run.config.bc.fit
    examples = early.bc_examples(policy, demonstrations)
    tokens = sum(len(e.ids) for e in examples) * run.config.expert_iteration.epochs
    steps = max(math.ceil(tokens / (fit.batch_rows * fit.row_tokens)), fit.steps)
    fit = dataclasses.replace(fit, steps=steps, eval_every=steps)
    names = read_names(run) if names is None else names
    draws = early.draws(fit, examples, names)
    if draws > 1:
        examples = early.bc_examples(policy, demonstrations, draws=draws, names=names)
    seed = run.config.policy_seed
    return policy.replace(fit_model(run, name, policy.model, examples, fit, (), seed))
