"""Stage: checks the dream on the policy that is to be trained in it.

The warm start plays dev tasks in the dream and, if there is an environment, the same
tasks in reality. The policy is only trained in the dream if both agree on success. A
dream that is refused is fitted once more, against what it gets wrong, and asked again.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.agent.shield import valid_shield
from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dream_cost
from dreamgym.build.episodes import read
from dreamgym.build.experience import REMEDY, load_experience, read_scorecard
from dreamgym.build.models import load_policy
from dreamgym.build.real.dev_play import (
    TRAINED_IN_DREAM,
    dev_game_steps,
    dreamed_dev_games,
    few_dev_tasks,
    play_dev_games,
    play_first_dev_games,
    plays_dev_games,
)
from dreamgym.build.refit import can_refit, mend
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.comparisons.outcome_discrimination import lost_discrimination
from dreamgym.evaluation.dream_check import (
    Fault,
    agreement_text,
    broken_refusals,
    cost_gaps,
    cost_text,
    describe_unmeasured,
    dev_metrics,
    disagrees,
    dream_faults,
    gap_text,
    scorecard_refusals,
    success_gap,
)
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.evaluation.leading_numbers import ends_found, rate_text
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.training.limits import cost_counters
from worldmodel import fidelity
from worldmodel.experience.base import ExperienceModel

UNSHIELDED = "dev_games/bc-unshielded.jsonl"
"""Real dev games of bc without its shield, where the stage shield gave it one."""
SHIELDED_GAMES = 16
"""Real dev games that a warm start with a shield plays without it, at most."""
ON_POLICY = {
    "predictable": "right next states",
    "kept": "known facts kept",
    "rewards": "rewards found",
    "ends": "ends found",
}
"""Figures of the policy's own real dev games that are printed, with their titles."""


class Check(NamedTuple):
    """The numbers of a check, the reasons to refuse the dream, and its faults."""

    numbers: dict[str, Any]
    reasons: list[str]
    faults: frozenset[str]

    @property
    def refused(self) -> str:
        """Return the reasons as one text, empty if there are none."""
        return "; ".join(self.reasons)


def body(run: Run) -> dict[str, Any]:
    """Compare the warm start in the dream with the real environment, before training.

    The marker says whether training is `refused`, and why. Its `remedy` says what was
    wrong before a refit and whether that `helped`: then policies are trained in the
    refitted model (build/experience.remedy_folder).
    """
    policy = load_policy(run, "warmstart")
    real = None
    played_as = run.numbers("warmstart").get("kept", "warmstart")
    if plays_dev_games(run, played_as):
        real = play_dev_games(run, played_as, policy)
    elif few := few_dev_tasks(run):
        print(
            "dream_check: how often the policy wins in the dream is not compared with "
            f"real dev games{few}",
            file=sys.stderr,
        )
    if run.config.train.environment == "real":  # the control asks no dream
        return {"real": {} if real is None else dev_metrics(real), "refused": ""}
    experience = load_experience(run, stage="dream_check", scaled=True)
    comparable = _comparable_games(run, policy, played_as, real)
    with run_chat.experience_session(experience):
        check = _check(run, policy, comparable, experience)
        on_policy = _on_policy(run, real, experience)
    c = run.config
    tries = c.dream_check.remedy_share > 0 and not c.dream_check.force
    if check.reasons and tries and can_refit(run.config):
        check = _with_remedy(run, policy, comparable, check)
    check = check._replace(numbers=check.numbers | on_policy)
    if real is not None:
        check = check._replace(numbers=check.numbers | {"real": dev_metrics(real)})
    forced = c.dream_check.force or c.pretrain.permute_outcomes
    if check.refused:
        outcome = "it is trained there all the same" if forced else "it is not trained"
        print(f"dream_check: {check.refused}: {outcome}", file=sys.stderr)
    refused = {"refused": check.refused, "forced": bool(check.refused) and forced}
    return check.numbers | refused


def _comparable_games(
    run: Run, policy: Policy, name: str, real: Sequence[Trajectory] | None
) -> Sequence[Trajectory] | None:
    """Return the real dev games that dreamed ones are compared with, or None.

    A dream lists no valid actions, so that a policy with a shield plays there without
    it. Without it bc has played the real games (stage shield); another policy plays
    SHIELDED_GAMES of them again, if the steps are left after those of later stages.
    """
    unshielded = run.path(UNSHIELDED)
    if real is None or policy.shield is not valid_shield:
        return real  # another shield acts in the dream as well
    if name == "bc" and unshielded.is_file():
        return trajectories(unshielded)
    player = Policy(
        policy.model,
        policy.tokenizer,
        dataclasses.replace(policy.config, shield=""),
        policy.strict,
        policy.memory,
    )
    record = f"{name}-no-shield"
    later = dev_game_steps(run, later=len(TRAINED_IN_DREAM))
    if played := play_first_dev_games(
        run, record, player, SHIELDED_GAMES, reserve=later
    ):
        return played
    print(
        "dream_check: the policy keeps to the valid actions, which the dream does not "
        "list, and no real steps are left to play without them: how often it wins is "
        "not compared",
        file=sys.stderr,
    )
    return None


def _on_policy(
    run: Run, real: Sequence[Trajectory] | None, experience: ExperienceModel
) -> dict[str, Any]:
    """Return how often the dream is right in real dev games of the policy itself.

    `on_policy` has figures of a scorecard, each {mean, count, effective}: the states
    that a policy reaches are others than those that were collected. They are of the
    model before a remedy. Empty without real games. A chat server is not asked: every
    step would be a request.
    """
    if not real or run.config.server is not None:
        return {}
    episodes = [t.episode for t in real if t.error is None and t.episode.transitions]
    if not episodes:
        return {}
    limit = max(run.config.fidelity.transitions // 2, 1)
    scorecard = fidelity.score(
        experience, episodes, limit=limit, open_loop_steps=0, recorded=read(run)[0]
    )
    rates = {
        "predictable": scorecard["exact"].get("predictable"),
        "changed": scorecard["exact"].get("changed"),
        "kept": scorecard["kept"]["all"],
        "rewards": scorecard["reward"]["recall"],
        "ends": ends_found(scorecard),
    }
    print(f"dream_check: in the policy's own {len(episodes)} real dev games")
    for name, title in ON_POLICY.items():
        print(f"  {title:<17} {rate_text(rates[name])}")
    return {"on_policy": rates}


def _with_remedy(
    run: Run, policy: Policy, real: Sequence[Trajectory] | None, before: Check
) -> Check:
    """Return the check of the refitted dream; its numbers say what was wrong before.

    A refit that tells rewards and ends apart less well has not helped, and then the
    check is that of the model before, which stays.
    """
    print(f"dream_check: {before.refused}: the dream is refitted", file=sys.stderr)
    after = _check(run, policy, real, mend(run, policy, before.faults), REMEDY)
    losses = lost_discrimination(read_scorecard(run), read_scorecard(run, REMEDY))
    remedy = {"before": before.refused, "helped": not after.reasons and not losses}
    if losses and not after.reasons:
        text = f"a refit mended it, but is worse at {'; '.join(losses)}"
        print(f"dream_check: {text}: the model before it stays", file=sys.stderr)
        reasons = [*before.reasons, text]
        numbers = before.numbers | {"remedy": remedy}
        return Check(numbers, reasons, before.faults)
    if remedy["helped"]:
        print("dream_check: refitted, the dream agrees", file=sys.stderr)
        return after._replace(numbers=after.numbers | {"remedy": remedy})
    reasons = [*after.reasons, "a refit did not mend it"]
    return Check(after.numbers | {"remedy": remedy}, reasons, after.faults)


def _check(
    run: Run,
    policy: Policy,
    real: Sequence[Trajectory] | None,
    experience: ExperienceModel,
    folder: str = "",
) -> Check:
    """Check a model by its scorecard and by the dev tasks; `folder` is its own."""
    c, scorecard = run.config.dream_check, read_scorecard(run, folder)
    if sentence := describe_unmeasured(scorecard):
        print(f"dream_check: {sentence}", file=sys.stderr)
    faults = scorecard_refusals(
        scorecard,
        min_predictable=c.min_predictable,
        min_ends=c.min_ends,
    )
    dreamed = dreamed_dev_games(run, experience, policy, folder)
    numbers: dict[str, Any] = {"dreamed": dev_metrics(dreamed)}
    faults += broken_refusals(dreamed)
    reasons = [fault.text for fault in faults]
    if real is not None:
        comparison, differences = _compare(run, real, dreamed)
        numbers |= comparison
        if numbers["disagrees"]:
            faults += differences
            reasons.append(numbers["sentence"])
        elif differences:
            faults_text = ", ".join(fault.text for fault in differences)
            text = f"{agreement_text(numbers['gap'])}, but {faults_text}"
            print(f"dream_check: {text}", file=sys.stderr)
    return Check(numbers, reasons, frozenset(fault.name for fault in faults))


def _compare(
    run: Run, real: Sequence[Trajectory], dreamed: Sequence[Trajectory]
) -> tuple[dict[str, Any], list[Fault]]:
    """Return how dreamed games differ from real ones, and the faults this shows."""
    by_task = {t.episode.task.id: t for t in real}
    # Some tasks begin with nothing, and some were not played because a budget ended.
    dreamed = [t for t in dreamed if t.episode.task.id in by_task]
    pairs = [by_task[t.episode.task.id] for t in dreamed]
    if not pairs:
        return {"disagrees": False}, []
    gap = success_gap(pairs, dreamed, seed=run.config.seed)
    cost_gap = cost_gaps(pairs, dreamed, cost_counters(run.config.train.limits))
    for name, of_cost in cost_gap.items():
        text = cost_text(name, of_cost, len(pairs))
        print(f"dream_check: {text}", file=sys.stderr)
    faults = dream_faults(pairs, dreamed)
    texts = [fault.text for fault in faults]
    metrics, tolerance = dev_metrics(real), run.config.dream_check.max_success_gap
    numbers = {
        "gap": gap,
        "disagrees": disagrees(gap, tolerance, metrics.get("real_success", 0.0)),
        "faults": texts,
        "sentence": ": ".join([gap_text(gap), *([", ".join(texts)] if texts else [])]),
    }
    if cost_gap:
        numbers["costs"] = cost_gap
    return numbers, faults


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dev games take in the dream; those in reality are played by now.

    The control that trains in the real environment asks no dream. The refit of a dream
    that is refused comes on top: nobody knows before whether it is.
    """
    if config.train.environment == "real":
        return Cost()
    games = config.train.monitor.real_eval_tasks
    steps = games * workload.max_steps
    scored = 0 if config.server else min(config.fidelity.transitions // 2, steps)
    return dream_cost(config, workload, steps + scored)
