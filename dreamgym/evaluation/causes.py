"""Likely causes of a disappointing run, the first one first.

results, numbers of stages, the training curve -> what was too little, what to change.
All are pure functions; the verdict on a run (verdict.py) names the first cause, and
that of each stage that did not help; `dreamgym doctor` names all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.agent.config import FLOORS
from dreamgym.evaluation.dream_check import unmeasured
from dreamgym.evaluation.leading_numbers import (
    FEW_IDENTIFIERS,
    REQUIRED,
    REQUIRED_COPIES,
    ends_found,
    level_of,
)
from dreamgym.evaluation.statistics import percent

MANY_BROKEN = 0.1
"""The share of the collected episodes that broke above which this is a cause."""
FEW_DEMONSTRATIONS = 20
FEW_WON = 20
"""Won episodes among the collected ones below which ends and rewards are rare."""
EXPERT_SETTINGS = ("collect.expert_weight", "collect.noisy_weight")
"""Settings without effect where the environment has no expert."""
LOW_FIDELITY = 0.6
LOW_ENDS = 0.8
WEAK_ENDS = 0.95
"""The same for a cause that is named only where there is no other one."""
WEAK_IMITATION = 0.8
"""The share of the expert's success below which imitation has learnt little."""
HIDDEN = 0.03
"""Share of the repeated steps that contradict each other above which something that
decides is hidden."""
FEW_REPEATED = 50
"""Repeated steps below which this share says little."""
LOW_AGREEMENT = 0.8
"""Balanced accuracy of reveals that follow from the instruction; 0.5 is chance."""
LOW_SIGNAL = 0.2
HIGH_INVALID = 0.3
LARGE_KL = 1.0
"""Nats a token from which on a policy has little in common with its warm start."""
FEW_GAMES = 100


class Cause(NamedTuple):
    """A likely cause of a disappointing run: what is the case, what to change."""

    name: str
    sentence: str
    advice: str

    def text(self) -> str:
        """Return the cause with its advice."""
        return f"{self.sentence} {self.advice}"


class Evidence(NamedTuple):
    """The evidence for a verdict: results.json, numbers by stage, the dream's curve."""

    results: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    curve: Sequence[Mapping[str, Any]] = ()

    def success(self, policy: str) -> float | None:
        """Return a policy's success on the test tasks, None if it is unknown."""
        row = self.results.get("policies", {}).get(policy)
        return None if row is None else row["success"]["mean"]

    def trained(self) -> dict[str, float]:
        """Return the success of each trained policy by name."""
        names = [n for n in self.results["policies"] if n not in (*FLOORS, "untrained")]
        rates = {name: self.success(name) for name in names}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def number(self, stage: str, name: str) -> Any:
        """Return a number of a stage, None if it has none of that name."""
        return self.stages.get(stage, {}).get(name)

    def has_expert(self) -> bool:
        """Return whether the environment has an expert, as far as is known."""
        status = self.number("evaluate/expert", "status")
        return status is None or "no expert" not in status

    def figure(self, *path: str) -> Mapping[str, Any]:
        """Return the mean (None: unknown) and count of a figure of the scorecard."""
        part: Any = self.results.get("fidelity") or {}
        for name in path:
            part = part.get(name) or {}
        return part if "mean" in part else {"mean": None, "count": 0}


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
        few_demonstrations,
        few_won,
        *_DREAM_CHECKS,
        invalid_actions,
        weak_imitation,
        *_UPDATE_CHECKS,
    )
    likely = likely or _all(evidence, *_LESSER_CHECKS)
    if any(evidence.trained().values()):
        likely += _all(evidence, few_games)
    return likely


def cause_of_stage(evidence: Evidence, stage: str) -> str:
    """Return why a stage may not have helped, and the settings to try.

    `stage` is a key of STAGE_ADVICE.
    """
    checks = _STAGE_CHECKS[stage]
    if likely := _all(evidence, *checks, *_LESSER_CHECKS):
        return f"Likely cause: {likely[0].text()}"
    return STAGE_ADVICE[stage]


def _all(
    evidence: Evidence, *checks: Callable[[Evidence], Cause | None]
) -> list[Cause]:
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
    # Of those that broke, only the ones with a step are recorded.
    recorded = sum(numbers.get(name, 0) for name in ("episodes", "dev_episodes"))
    if broken <= MANY_BROKEN * recorded:
        return None
    commonest = max(errors, key=errors.__getitem__)
    return Cause(
        "broken episodes",
        f"The environment broke {broken} episodes of the collection, next to "
        f"{recorded} that were recorded, mostly by {commonest}.",
        "`dreamgym check --env ENV` says where it raises and what to do.",
    )


def few_demonstrations(evidence: Evidence) -> Cause | None:
    """Return a cause if there are too few successful episodes to imitate."""
    count = evidence.number("bc", "imitated_episodes")
    if count is None or count >= FEW_DEMONSTRATIONS:
        return None
    return Cause(
        "few demonstrations",
        f"The policies imitate only {count} won episodes.",
        f"{_collect_more(evidence, 'collect.train_tasks', 'collect.expert_weight')}, "
        "or give episodes that were won.",
    )


def _collect_more(evidence: Evidence, *settings: str) -> str:
    """Return the advice to collect more by these settings, as far as they have effect.

    A budget decides how many episodes are played. Without an expert its weight changes
    nothing.
    """
    what = "Collect more"
    if not evidence.has_expert():
        what = "Give the environment an expert(), if only for some tasks; collect more"
        settings = tuple(s for s in settings if s not in EXPERT_SETTINGS)
    if evidence.results.get("budget"):
        others = (s for s in settings if s != "collect.episodes")
        settings = ("a larger --budget", *others)
    return f"{what} ({', '.join(settings)})" if settings else what


def few_won(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream has too few successes to learn rewards and ends."""
    won, episodes = (
        evidence.number("collect", name) for name in ("successes", "episodes")
    )
    if won is None or won >= FEW_WON:
        return None
    return Cause(
        "few episodes that were won",
        f"Only {won} of {episodes} collected episodes were won, so the dream has seen "
        "few rewards and ends.",
        "Collect more from the expert (collect.expert_weight, collect.noisy_weight), "
        "or weigh rare rewards and ends (pretrain.rare_event_share)."
        if evidence.has_expert()
        else f"{_collect_more(evidence, 'collect.episodes')}, or weigh rare rewards "
        "and ends (pretrain.rare_event_share).",
    )


def hidden_state(evidence: Evidence) -> Cause | None:
    """Return a cause if equal steps had different results, and no lots are drawn."""
    figure = evidence.figure("hidden_state")
    if figure["count"] < FEW_REPEATED or figure["mean"] <= HIDDEN:
        return None
    if not evidence.number("collect", "deterministic"):
        return None
    return Cause(
        "hidden state",
        f"Of {figure['count']} recorded steps that were taken more than once, with the "
        f"same task, state and last actions, {percent(figure['mean'])} had another "
        "result than the others: what decides stands in none of them.",
        "Write it into the state, or let the models read more of the past "
        "(experience.history, policy.history).",
    )


def garbled_identifiers(evidence: Evidence) -> Cause | None:
    """Return a cause if identifiers of the context are not reproduced exactly."""
    figure = evidence.figure("copying", "state_unseen")
    if figure["count"] < FEW_IDENTIFIERS or figure["mean"] >= REQUIRED:
        return None
    return _garbled(figure)


def some_garbled_identifiers(evidence: Evidence) -> Cause | None:
    """Return a cause if surely fewer identifiers are reproduced than are required."""
    figure = evidence.figure("copying", "state_unseen")
    if figure["count"] < FEW_IDENTIFIERS:
        return None
    if level_of(dict(figure), REQUIRED_COPIES) != "bad":
        return None
    return _garbled(figure)


def _garbled(figure: Mapping[str, Any]) -> Cause:
    return Cause(
        "garbled identifiers",
        f"The dream reproduces {percent(figure['mean'])} of {figure['count']} "
        "identifiers and numbers that it can only copy from its context.",
        "Fit it longer (pretrain.fit.steps), or take a larger --model.",
    )


def low_fidelity(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream is often wrong about predictable states."""
    return _states_below(evidence, LOW_FIDELITY)


def mediocre_states(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream is sometimes wrong about predictable states."""
    return _states_below(evidence, REQUIRED)


def _states_below(evidence: Evidence, threshold: float) -> Cause | None:
    figure = evidence.figure("exact", "predictable")
    if figure["mean"] is None or figure["mean"] >= threshold:
        return None
    budget = evidence.results.get("budget")
    return Cause(
        "low fidelity",
        f"The dream has {percent(figure['mean'])} of {figure['count']} predictable "
        "next states right.",
        f"Fit it longer (pretrain.fit.steps), to more episodes "
        f"({'a larger --budget' if budget else 'collect.episodes'}), or take a larger "
        "--model.",
    )


def low_ends(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream misses ends of episodes."""
    return _ends_below(evidence, LOW_ENDS)


def mediocre_ends(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream misses some ends of episodes."""
    return _ends_below(evidence, WEAK_ENDS)


def unmeasured_dream(evidence: Evidence) -> Cause | None:
    """Return a cause if the dev episodes hold nothing to measure the dream by."""
    scorecard = evidence.results.get("fidelity")
    sentence = unmeasured(scorecard) if scorecard else ""
    if not sentence:
        return None
    return Cause(
        "unmeasured dream",
        f"{sentence[0].upper()}{sentence[1:]}.",
        "More dev episodes that reach an end (collect.dev_tasks, or a larger step "
        "limit, env.max_episode_steps), and states that say what an action led to, "
        "would show whether it can be trusted.",
    )


def _ends_below(evidence: Evidence, threshold: float) -> Cause | None:
    scorecard = evidence.results.get("fidelity")
    figure = ends_found(scorecard) if scorecard else evidence.figure("done", "recall")
    if figure["mean"] is None or figure["mean"] >= threshold:
        return None
    return Cause(
        "missed ends",
        f"The dream finds {percent(figure['mean'])} of {figure['count']} ends.",
        "Weigh rare rewards and ends (pretrain.rare_event_share), and collect more "
        "episodes that end.",
    )


def ignored_instruction(evidence: Evidence) -> Cause | None:
    """Return a cause if reveals of the dream do not show what the instruction says."""
    agree, mentioned, elsewhere = (
        evidence.figure("instruction", name) for name in ("agree", "shown", "elsewhere")
    )
    if agree["mean"] is None or agree["mean"] >= LOW_AGREEMENT:
        return None
    scorecard = evidence.results.get("fidelity") or {}
    words = ", ".join(scorecard["instruction"]["words"][:3])
    return Cause(
        "ignored instruction",
        "The dream does not show what the instruction says: where that says that "
        f"something ({words}) is there, it shows it in {percent(mentioned['mean'])} of "
        f"{mentioned['count']} reveals, and in {percent(elsewhere['mean'])} of "
        f"{elsewhere['count']} others.",
        "A policy cannot learn from it to follow the instruction. Fit it longer "
        "(pretrain.fit.steps), to more episodes (collect.episodes), or take a larger "
        "--model.",
    )


def wrong_about_policy(evidence: Evidence) -> Cause | None:
    """Return a cause if dream and environment disagree about the warm start."""
    if not evidence.number("dream_check", "disagrees"):
        return None
    sentence = str(evidence.number("dream_check", "sentence"))
    return Cause(
        "wrong about the policy",
        f"{sentence[0].upper()}{sentence[1:]}.",
        (
            "Collect episodes like the policy's own (collect.noisy_weight), refit with "
            "them, "
            if evidence.has_expert()
            else "Refit with episodes of the policy (`dreamgym refit`), "
        )
        + "and weigh rare rewards and ends (pretrain.rare_event_share).",
    )


def invalid_actions(evidence: Evidence) -> Cause | None:
    """Return a cause if the warm start often takes invalid actions."""
    row = evidence.results.get("policies", {}).get("warmstart", {})
    share = row.get("invalid_action_rate")
    if share is None or share <= HIGH_INVALID:
        return None
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
    count = evidence.number("bc", "imitated_episodes")
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
    if share >= LOW_SIGNAL:
        return None
    return Cause(
        "little signal",
        f"Rollouts of one task ended differently in {percent(share)} of the groups; "
        "the others teach nothing.",
        "Take larger groups (train.group_size), resample (train.max_resample_rounds), "
        "or choose tasks that are won sometimes (train.curriculum).",
    )


def broken_rollouts(evidence: Evidence) -> Cause | None:
    """Return a cause if many rollouts ended with an error in the dream."""
    rollouts = sum(row.get("rollouts", 0.0) for row in evidence.curve)
    unscored = sum(row.get("unscored_rollouts", 0.0) for row in evidence.curve)
    if not rollouts or unscored / rollouts < 0.25:
        return None
    return Cause(
        "broken rollouts",
        f"{percent(unscored / rollouts)} of the rollouts in the dream broke off.",
        "Sample malformed answers again (experience.retries), or lower "
        "uncertainty.false_abort_rate.",
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


_DREAM_CHECKS = (
    hidden_state,
    garbled_identifiers,
    low_fidelity,
    low_ends,
    ignored_instruction,
    wrong_about_policy,
)
_LESSER_CHECKS = (
    mediocre_states,
    mediocre_ends,
    some_garbled_identifiers,
    unmeasured_dream,
)
"""Named only where there is no other cause."""
_UPDATE_CHECKS = (little_signal, broken_rollouts, large_kl)
_STAGE_CHECKS = {
    "warmstart": (few_demonstrations,),
    "expert_iteration": (few_won, *_DREAM_CHECKS),
    "train": (few_won, *_DREAM_CHECKS, *_UPDATE_CHECKS),
    "s2r": (),
    "planner": _DREAM_CHECKS,
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
