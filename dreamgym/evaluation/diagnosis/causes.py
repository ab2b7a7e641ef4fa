"""Likely causes of a disappointing run, the first one first.

results, numbers of stages, the training curve -> what was too little, what to change.
All are pure functions; the verdict on a run (verdict.py) names the first cause, and
that of each stage that did not help; `dreamgym doctor` names all of them.
"""

from collections.abc import Callable

from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.evaluation.diagnosis import dream_causes
from dreamgym.evaluation.diagnosis.evidence import (
    Cause,
    Evidence,
    broken_advice,
    collect_more,
    fit_more,
)
from dreamgym.evaluation.statistics import percent
from worldmodel.experience.config import ExperienceConfig

MANY_BROKEN = 0.1
"""The share of the collected episodes that broke, or that are not scored, above which
this is a cause."""
FEW_DEMONSTRATIONS = 20
FEW_WON = 20
"""Won episodes among the collected ones below which ends and rewards are rare."""
WEAK_IMITATION = 0.8
"""The share of the expert's success below which imitation has learnt little."""
LOW_SIGNAL = 0.2
MANY_BROKEN_ROLLOUTS = 0.25
"""The share of the dreamed rollouts that broke off from which this is a cause."""
HIGH_INVALID = 0.3
LARGE_KL = 1.0
"""Nats a token from which on a policy has little in common with its warm start."""
FEW_GAMES = 100


def causes(evidence: Evidence) -> list[Cause]:
    """Return the likely causes of a disappointing run, the first one first.

    Causes in earlier stages come first: without demonstrations, or with a wrong dream,
    later stages cannot succeed. Where none of them holds, a dream that is not very good
    is named as well. That the test games are few explains a difference that they cannot
    show, but not that nothing was won.
    """
    likely = _all(
        evidence,
        broken_episodes,
        unscored_episodes,
        few_demonstrations,
        few_won,
        *dream_causes.CHECKS,
        invalid_actions,
        weak_imitation,
        *_UPDATE_CHECKS,
    )
    likely = likely or _all(evidence, *dream_causes.LESSER_CHECKS)
    if any(evidence.trained().values()):
        likely += _all(evidence, few_games)
    return likely


def cause_of_stage(evidence: Evidence, stage: str) -> str:
    """Return why a stage may not have helped, and the settings to try.

    `stage` is a key of STAGE_ADVICE.
    """
    checks = _STAGE_CHECKS[stage]
    # The dream is not asked about a warm start.
    lesser = () if stage == "warmstart" else dream_causes.LESSER_CHECKS
    if likely := _all(evidence, *checks, *lesser):
        return f"Likely cause: {likely[0].text()}"
    return STAGE_ADVICE[stage]


def _all(
    evidence: Evidence, *checks: Callable[[Evidence], Cause | None]
) -> list[Cause]:
    if not evidence.asks_dream():  # a wrong dream explains nothing there
        of_dream = (*dream_causes.CHECKS, *dream_causes.LESSER_CHECKS)
        checks = tuple(check for check in checks if check not in of_dream)
    return [cause for check in checks if (cause := check(evidence)) is not None]


def broken_episodes(evidence: Evidence) -> Cause | None:
    """Return a cause if the environment broke many of the collected episodes."""
    numbers = evidence.stages.get("collect", {})
    errors = {
        name.removeprefix("broken/"): count
        for name, count in numbers.items()
        if name.startswith("broken/")
    }
    broken = sum(errors.values())
    recorded = sum(numbers.get(name, 0) for name in ("episodes", "dev_episodes"))
    if broken <= MANY_BROKEN * recorded:
        return None
    commonest = max(errors, key=errors.__getitem__)
    return Cause(
        "broken episodes",
        f"The environment broke {broken} episodes of the collection, mostly by "
        f"{commonest}. Its files hold {recorded} episodes, with those that had a step "
        "before they broke.",
        f"{broken_advice(evidence.env, commonest, evidence.memory_gb)}.",
    )


def unscored_episodes(evidence: Evidence) -> Cause | None:
    """Return a cause if many recorded episodes do not say whether they were won."""
    unscored, episodes = (
        evidence.number("collect", name) or 0 for name in ("unscored", "episodes")
    )
    if unscored <= MANY_BROKEN * episodes:
        return None
    return Cause(
        "unscored episodes",
        f"{unscored} of {episodes} training episodes do not say whether they were won, "
        "so that nothing is learnt about their ends.",
        "Give them `success` and `terminated`, or let a judge score them (`dreamgym "
        "judge`).",
    )


def _imitated_wins(evidence: Evidence) -> int | None:
    """Return the number of won episodes that bc imitates, None if it is not known."""
    count = evidence.number("bc", "imitated_episodes")
    if count is None:
        return None
    return count - (evidence.number("bc", "imitated_parts") or 0)


def few_demonstrations(evidence: Evidence) -> Cause | None:
    """Return a cause if there are too few successful episodes to imitate."""
    count = _imitated_wins(evidence)
    if count is None or count >= FEW_DEMONSTRATIONS:
        return None
    return Cause(
        "few demonstrations",
        f"The policies imitate only {count} won episodes.",
        f"{collect_more(evidence, 'collect.train_tasks', 'collect.expert_weight')}, "
        "or give episodes that were won.",
    )


def few_won(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream has too few successes to learn rewards and ends."""
    won, episodes = (
        evidence.number("collect", name) for name in ("successes", "episodes")
    )
    if won is None or won >= FEW_WON or not evidence.asks_dream():
        return None  # what is imitated of them is another cause
    return Cause(
        "few episodes that were won",
        f"Only {won} of {episodes} collected episodes were won, so the dream has seen "
        "few rewards and ends.",
        "Collect more from the expert (collect.expert_weight, collect.noisy_weight), "
        "or weigh rare rewards and ends (pretrain.rare_event_share)."
        if evidence.has_expert()
        else f"{collect_more(evidence, 'collect.episodes')}, or weigh rare rewards "
        "and ends (pretrain.rare_event_share).",
    )


def invalid_actions(evidence: Evidence) -> Cause | None:
    """Return a cause if the warm start often takes invalid actions."""
    row = evidence.results.get("policies", {}).get("warmstart", {})
    share = row.get("invalid_action_rate")
    if share is None or share <= HIGH_INVALID:
        return None
    if evidence.stages.get("collect", {}).get("listed_actions_of", 0) is None:
        return Cause(
            "invalid actions",
            f"{percent(share)} of the warm start's actions are invalid, and the "
            "environment lists no valid ones.",
            "Define valid_actions() in the environment, some tens of actions where "
            "there are many: random players then take real actions"
            + (", from which the dream learns what they do" * evidence.asks_dream())
            + ", and policies can be kept to them (policy.shield).",
        )
    return Cause(
        "invalid actions",
        f"{percent(share)} of the warm start's actions are invalid.",
        "It needs more demonstrations, a longer fit (bc.fit.steps), or, where the "
        "environment lists all valid actions, to be kept to them "
        "(policy.shield=valid) or to read them (policy.admissible_actions); names "
        "and numbers in actions have to be copied, which a pretrained --model does "
        "better.",
    )


def weak_imitation(evidence: Evidence) -> Cause | None:
    """Return a cause if many demonstrations taught far less than the expert knows."""
    bc, expert = evidence.success("bc"), evidence.success("expert")
    count = _imitated_wins(evidence)
    if bc is None or not expert or count is None or count < FEW_DEMONSTRATIONS:
        return None
    if bc >= WEAK_IMITATION * expert:
        return None
    return Cause(
        "weak imitation",
        f"bc imitates {count} won episodes and wins {percent(bc)}, the expert "
        f"{percent(expert)}.",
        "What to do may not follow from what the policy reads (its task, its last "
        "actions and the state), or may need more demonstrations "
        "(collect.expert_weight), a longer fit (bc.fit.steps) or a larger --model.",
    )


def little_signal(evidence: Evidence) -> Cause | None:
    """Return a cause if many groups have equal returns, which give no gradient."""
    shares = [
        row["informative_groups"]
        for row in evidence.curve
        if "informative_groups" in row
    ]
    if not shares:
        return None
    share = sum(shares) / len(shares)
    if share >= LOW_SIGNAL or _broken_share(evidence) >= MANY_BROKEN_ROLLOUTS:
        return None  # groups of rollouts that broke off have no returns to compare
    return Cause(
        "little signal",
        f"Rollouts of one task ended differently in {percent(share)} of the groups; "
        "the others teach nothing.",
        "Take larger groups (train.group_size), resample (train.max_resample_rounds), "
        "or choose tasks that are won sometimes (train.curriculum).",
    )


def _broken_share(evidence: Evidence) -> float:
    """Return the share of the dreamed rollouts that ended with an error."""
    rollouts = sum(row.get("rollouts", 0.0) for row in evidence.curve)
    unscored = sum(row.get("unscored_rollouts", 0.0) for row in evidence.curve)
    return unscored / rollouts if rollouts else 0.0


def broken_rollouts(evidence: Evidence) -> Cause | None:
    """Return a cause if many rollouts ended with an error where the policy trained."""
    share = _broken_share(evidence)
    if share < MANY_BROKEN_ROLLOUTS:
        return None
    if not evidence.asks_dream():
        return Cause(
            "broken rollouts",
            f"{percent(share)} of the rollouts in the real environment broke off.",
            f"{broken_advice(evidence.env, '', 0.0)}.",
        )
    unsure = any(row.get(f"unscored/{LOW_CONFIDENCE}") for row in evidence.curve)
    gate = ", or lower uncertainty.false_abort_rate" if unsure else ""
    return Cause(
        "broken rollouts",
        f"{percent(share)} of the rollouts in the dream broke off.",
        f"{_better_answers(evidence)}{gate}.",
    )


def _better_answers(evidence: Evidence) -> str:
    """Return what to do about malformed answers of the dream, without a full stop.

    More attempts than the default's mend hardly any (docs/LOG.md, 2026-11-27).
    """
    if evidence.retries is None:
        return (
            "Sample malformed answers again more often (server.prompt.retries), or ask "
            "a better model"
        )
    if evidence.retries < ExperienceConfig().retries:
        return (
            "Sample malformed answers again more often (experience.retries, now "
            f"{evidence.retries})"
        )
    return (
        f"A malformed answer is sampled again {evidence.retries} times already "
        f"(experience.retries). {fit_more(evidence).removesuffix('.')}"
    )


def large_kl(evidence: Evidence) -> Cause | None:
    """Return a cause if the policy moved far from its warm start."""
    distance = evidence.number("train", "kl")
    if distance is None or distance <= LARGE_KL:
        return None
    return Cause(
        "large KL",
        f"Training moved the policy {distance:.2g} nats a token away from the warm "
        "start.",
        "Lower train.update.learning_rate, or raise "
        "train.update.kl_penalty.coefficient.",
    )


def few_games(evidence: Evidence) -> Cause | None:
    """Return a cause if there are too few test tasks to show a useful difference."""
    trained = evidence.trained()
    if not trained:
        return None
    games = min(
        evidence.results["policies"][name]["success"]["episodes"] for name in trained
    )
    if games >= FEW_GAMES or not games:
        return None
    return Cause(
        "few test games",
        f"{games} test games show differences of {1.96 * (0.5 / games) ** 0.5:.2f} or "
        "more.",
        "Play more of them (evaluate.tasks).",
    )


_UPDATE_CHECKS = (little_signal, broken_rollouts, large_kl)
_STAGE_CHECKS = {
    "warmstart": (few_demonstrations,),
    "expert_iteration": (few_won, *dream_causes.CHECKS),
    "train": (few_won, *dream_causes.CHECKS, *_UPDATE_CHECKS),
    "s2r": (),
    "planner": dream_causes.CHECKS,
}
STAGE_ADVICE = {
    "warmstart": "Another method (warmstart.method) or more branches "
    "(branch.alternatives) may help; without early experience it is bc.",
    "expert_iteration": "More tasks to dream of (expert_iteration.fresh_tasks, "
    "expert_iteration.tasks) may help, or more dev games "
    "(train.monitor.real_eval_tasks), which decide by chance where they are few.",
    "train": "Smaller steps (train.update.learning_rate, train.update.max_update_kl) "
    "or fewer updates (train.updates) may help.",
    "s2r": "More real steps (transfer.real_transitions, or a larger --budget) may "
    "help, or more dev games (train.monitor.real_eval_tasks), which decide by chance "
    "where they are few.",
    "planner": "Fewer dreamed steps (planner.depth), in which fewer errors add up, or "
    "more candidates (planner.simulations) may help.",
}
"""What to try where a stage did not help and no cause was measured."""
