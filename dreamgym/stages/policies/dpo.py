"""Stage: offline DPO, a policy trained from preference pairs alone (arXiv:2305.18290).

pairs of a file, won over lost collected episodes of a task, or actions of one state by
their values in a tree search in the dream (Agent Q, arXiv:2408.07199) -> DPO from the
start policy, which is the reference -> held-out pairs. No reward model is needed, and
no real step is taken. Without the search nothing is dreamed, either: it is the baseline
on offline data.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.agent.search.tree_search import Edge, Tree, sibling_pairs
from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dream_cost, plan_cost
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.build.imitation import SLOTS
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.planning import Dreams
from dreamgym.build.real.environments import dreamable_tasks
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.build.rewards import preference_pairs
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.statistics import wilson_of
from dreamgym.rewards.preferences import (
    Preference,
    read_preferences,
    split,
    write_preferences,
)
from dreamgym.rl.dpo_config import PLANNED, DPOConfig, PlannedPairsConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run, RunError
from dreamgym.training.preference_training import (
    PairTurns,
    pair_turns,
    train_preferences,
)
from worldmodel.data.hashing import content_hash, content_seed
from worldmodel.data.records import Transition

NAME = "dpo"
PAIRS_FILE = "dpo_pairs.jsonl"
"""The pairs that a search has made, for people and for reward models."""
SEARCHES = f"checkpoints/{NAME}-search"
"""What interrupted attempts have searched, which the stage removes when it ends."""


def body(run: Run) -> dict[str, Any]:
    """Train the start policy from the pairs of the settings; write policies/dpo.

    Raises:
      RunError: there are no pairs, or none of them can be learnt from.
      RecordError: a bad file of pairs; the message names file and line.
    """
    c = run.config.dpo
    if not c.pairs:
        raise RunError(
            f"{run.root}: no pairs to train from: dpo.pairs names a file of them, or "
            'is "collected" for the won and lost episodes of the run, or "planned" for '
            "what a tree search in its dream prefers"
        )
    policy = load_policy(run, c.start)
    searched: list[Preference] = []
    try:
        if c.pairs == PLANNED:
            searched = planned_pairs(run, policy)
            both = _split(run, searched)
        else:
            both = preference_pairs(
                run,
                c.file,
                max_pairs_per_task=c.max_pairs_per_task,
                held_out_share=c.held_out_share,
            )
        fitted, left_out = _turns(run, policy, both[0], "pairs")
        held_out, held_out_left_out = _turns(run, policy, both[1], "held_out")
    except RunError:  # other settings are needed: what was searched is of no use
        run.drop(SEARCHES)
        raise
    # By what it is trained from: an interrupted attempt may have been another one.
    rows = [[dataclasses.asdict(p) for p in pairs] for pairs in both]
    digest = content_hash([rows, dataclasses.asdict(c)])[:16]
    checkpoints = f"checkpoints/{NAME}-{digest}"
    with run.progress_report(NAME, c.updates) as report:
        trained, curve, result = train_preferences(
            policy,
            fitted,
            c,
            held_out=held_out,
            seed=run.config.seed,
            directory=run.path(checkpoints),
            progress=report,
        )
    save_policy(run, NAME, trained)
    run.write_curve(NAME, curve)
    if searched:
        write_preferences(run.path(PAIRS_FILE), searched)
    run.drop(checkpoints)
    run.drop(SEARCHES)
    shorter = [len(pair.better) < len(pair.worse) for pair in held_out]
    return {
        # A command may have asked for other ones than the run's.
        "settings": dataclasses.asdict(c),
        "pairs": len(fitted),
        "held_out": len(held_out),
        "accuracy": result.accuracy,
        "interval": list(wilson_of(result.accuracy, len(held_out))),
        "margin": result.margin,
        "held_out_loss": result.loss,
        "better_is_shorter": float(np.mean(shorter)),
        **left_out,
        **held_out_left_out,
    }


def _turns(
    run: Run, policy: Policy, pairs: Sequence[Preference], what: str
) -> tuple[list[PairTurns], dict[str, int]]:
    """Return the turns of pairs, and counts of those that are left out by WHAT/REASON.

    Raises:
      RunError: all of them are left out.
    """
    turns, counts = pair_turns(policy, pairs, run.config.dpo)
    if counts:
        reasons = ", ".join(f"{n} {name}" for name, n in counts.items())
        line = f"{sum(counts.values())} of {len(pairs)} {what} are left out: {reasons}"
        if not turns:
            raise RunError(f"{run.root}: dpo.pairs: {line}")
        print(f"{NAME}: {line}", file=sys.stderr)
    return turns, {f"{what}/{name}": n for name, n in counts.items()}


def _search_file(run: Run) -> Path:
    """Return the file of what an interrupted stage has searched.

    It is another one for another seed, start policy, experience model or search.
    """
    c = run.config.dpo
    settings = dataclasses.asdict(c.planned), c.start, c.max_pairs_per_task
    models = [(run.done(stage) or {}).get("key") for stage in ("warmstart", "ensemble")]
    digest = content_hash([settings, run.config.seed, models])[:16]
    return run.path(f"{SEARCHES}/{digest}.jsonl")


def planned_pairs(run: Run, policy: Policy) -> list[Preference]:
    """Return pairs of actions by their values in a tree search in the run's dream.

    The policy plays train tasks in the dream as it was pretrained, and searches there
    at each step. What an interrupted stage has searched is not searched again.
    """
    c, path = run.config.dpo, _search_file(run)
    if path.is_file():
        pairs = read_preferences(path)
    else:
        trees, trajectories = _search(run, policy, c.planned)
        pairs = search_preferences(trees, trajectories, c)
        if pairs:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_preferences(path, pairs)
    return pairs


def _search(
    run: Run, policy: Policy, config: PlannedPairsConfig
) -> tuple[list[Tree], list[Trajectory]]:
    """Return the trees of all steps, and what was played in the dream by them."""
    seed = content_seed(run.config.seed, f"{NAME}/search")
    tasks = {e.task.id: e.task for e in read(run)[0]}
    startable = dreamable_tasks(list(tasks.values()))
    order = np.random.default_rng(seed).permutation(len(startable))
    drawn = [startable[i] for i in order[: config.tasks].tolist()]
    plan = PlanConfig(
        method="puct",
        depth=config.depth,
        simulations=config.simulations,
        discount=config.discount,
    )
    experience = load_experience(run, stage=NAME)
    dreams = Dreams(experience, step_limit(run), lasting_wins=lasting_wins(run))
    trees = list[Tree]()
    player = PlanningPolicy(policy, dreams, plan, observe=trees.extend)
    with (
        run_chat.experience_session(experience),
        run.progress_report(f"{NAME}, searched", len(drawn), "episode") as report,
    ):
        trajectories = rollout(
            player,
            dreams(SLOTS),
            drawn,
            key=jax.random.key(seed),
            temperature=1.0,
            source=NAME,
            progress=lambda done, _: report(done, {}),
        )
    return trees, trajectories


def search_preferences(
    trees: Sequence[Tree], trajectories: Sequence[Trajectory], config: DPOConfig
) -> list[Preference]:
    """Return pairs of actions of one state, by their values in trees along episodes.

    Both attempts of a pair have the steps that led to the state, which cancel in DPO,
    and then one action each. Of each task those whose values differ most are taken.

    Args:
      trees: those of the steps of the trajectories, in any order.
      trajectories: one for each task.
    """
    played = {t.episode.task.id: t.episode.transitions for t in trajectories}
    edges = (e for tree in trees for _, node in tree.nodes() for e in node.edges)
    scale = max((abs(e.value) for e in edges), default=0.0)
    if not scale:
        return []
    tasks: dict[str, dict[tuple, tuple[float, Preference]]] = {}
    for tree in trees:
        at = tree.root.at
        before = played[at.task.id][: len(at.past)]
        for path, better, worse in sibling_pairs(
            tree,
            margin=config.planned.margin * scale,
            min_visits=config.planned.min_visits,
        ):
            shared = (*before, *map(_transition, path))
            sides = (*shared, _transition(better)), (*shared, _transition(worse))
            # A state may be searched twice, where a turn was drawn again.
            key = tuple(tuple(t.action for t in side) for side in sides)
            pair = Preference(task=at.task, better=sides[0], worse=sides[1])
            gap = better.value - worse.value
            tasks.setdefault(at.task.id, {}).setdefault(key, (gap, pair))
    return [
        pair
        for name in sorted(tasks)
        for _, pair in sorted(tasks[name].values(), key=lambda x: -x[0])[
            : config.max_pairs_per_task
        ]
    ]


def _transition(edge: Edge) -> Transition:
    assert edge.step is not None, "only actions that were taken have a value"
    return edge.step.transition(edge.parent.state, edge.turn.action, edge.turn.thought)


def _split(
    run: Run, pairs: Sequence[Preference]
) -> tuple[list[Preference], list[Preference]]:
    """Return (pairs to learn from, pairs held out), one for each task of the latter.

    Raises:
      RunError: either is empty.
    """
    c = run.config.dpo
    fitted, held_out = split(
        pairs, held_out_share=c.held_out_share, seed=run.config.seed
    )
    held_out = list({p.task.id: p for p in held_out[::-1]}.values())[::-1]
    if not fitted or not held_out:
        raise RunError(
            f"{run.root}: the search of {c.planned.tasks} tasks in the dream found "
            f"{len(fitted)} pairs to fit and {len(held_out)} tasks held out; expected "
            "at least one of each (more dpo.planned.tasks or simulations, or a policy "
            "that wins in the dream)"
        )
    return fitted, held_out


PAIR_STEP = 0.13
"""Updates of the experience model's fit that a transition takes in one of DPO.

Not measured: eight passes through the model, where the fit of a reward model, whose
number was, takes three (stages/reward_model.py)."""


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the updates take; the lengths of attempts are those of episodes."""
    c = config.dpo
    if not c.pairs:
        return Cost()
    transitions = 2 * c.batch_pairs * workload.episode_steps
    if c.pairs == PLANNED:  # what both attempts begin with is not computed
        transitions = 2 * c.batch_pairs
    fit = workload.fit(c.updates * transitions * PAIR_STEP)._replace(compile_seconds=8)
    if c.pairs != PLANNED:
        return fit
    plan = PlanConfig(simulations=c.planned.simulations, depth=c.planned.depth)
    steps = c.planned.tasks * workload.max_steps
    searched = plan_cost(config, workload, plan, steps)
    played = dream_cost(config, workload, steps)
    return fit._replace(
        seconds=fit.seconds + searched.seconds + played.seconds,
        answers=searched.answers + played.answers,
    )
