"""The verdict on a run: numbers to sentences.

results, numbers of stages, the training curve -> what was learnt, what was not, the
likely causes in order, and what to change first. All are pure functions; `verdict` is
what a run ends with, `diagnosis` what `dreamgym doctor` prints.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.agent.config import FLOORS
from dreamgym.evaluation.off_policy import sentences as off_policy_sentences
from dreamgym.evaluation.statistics import difference_text, percent

FEW_DEMONSTRATIONS = 20
FEW_WON = 20
"""Won episodes among the collected ones below which ends and rewards are rare."""
LOW_FIDELITY = 0.6
LOW_ENDS = 0.8
LOW_AGREEMENT = 0.8
"""Balanced accuracy of reveals that follow from the instruction; 0.5 is chance."""
LOW_SIGNAL = 0.2
HIGH_INVALID = 0.3
LARGE_KL = 1.0
"""Nats a token from which on a policy has little in common with its warm start."""
LOW_EXPERT = 0.9
FEW_GAMES = 100


_START = {"expert_iteration": "warmstart", "train": "expert_iteration"}
"""The policy that a stage begins at, and keeps where it did not help."""
_MAKERS = {
    "expert_iteration_minus_warmstart": ("expert_iteration",),
    "dream_minus_expert_iteration": ("train",),
    "dream_minus_warmstart": ("expert_iteration", "train"),
}
"""The stages between two policies that are compared."""


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

    def figure(self, *path: str) -> Mapping[str, Any]:
        """Return the mean (None: unknown) and count of a figure of the scorecard."""
        part: Any = self.results.get("fidelity") or {}
        for name in path:
            part = part.get(name) or {}
        return part if "mean" in part else {"mean": None, "count": 0}


def verdict(evidence: Evidence) -> list[str]:
    """Return the sentences that a run ends with."""
    out = [*outcome_sentences(evidence), *training_sentences(evidence)]
    if _is_disappointing(evidence):
        likely_causes = causes(evidence)
        if likely_causes:
            out.append(f"Likely cause: {likely_causes[0].text()}")
        if len(likely_causes) > 1:
            out.append(
                f"`dreamgym doctor RUN` names {len(likely_causes) - 1} more: "
                + ", ".join(cause.name for cause in likely_causes[1:])
                + "."
            )
    return out


def outcome_sentences(evidence: Evidence) -> list[str]:
    """Return sentences on the test results of all policies, chance and the expert."""
    trained = evidence.trained()
    if not trained and evidence.results.get("off_policy"):
        return off_policy_sentences(evidence.results["off_policy"])
    if not trained:
        return ["No policy was scored on real test games."]
    games = max(
        evidence.results["policies"][name]["success"]["episodes"] for name in trained
    )
    best = max(trained, key=lambda name: trained[name])
    if trained[best] == 0.0:
        out = [f"All policies win 0 of {games} test games: nothing was learnt."]
    else:
        out = [f"The best policy is {best}: it wins {percent(trained[best])} of games."]
    chance, expert = evidence.success("random"), evidence.success("expert")
    if chance is not None:
        below = [name for name, rate in trained.items() if chance > rate]
        comparison = f"A random choice among valid actions wins {percent(chance)}"
        if len(below) == len(trained):
            out.append(f"{comparison}, more than every trained policy.")
        elif below:
            out.append(f"{comparison}, more than {', '.join(below)}.")
    if expert is not None and expert < LOW_EXPERT:
        out.append(
            f"The expert itself wins {percent(expert)}: its plans may be longer than "
            "the step limit, or its games draw lots."
        )
    return out


def training_sentences(evidence: Evidence) -> list[str]:
    """Return sentences on the effects of early experience and training in the dream."""
    out = []
    paired = evidence.results.get("paired", {})
    for key, what in (
        ("warmstart_minus_bc", "Early experience"),
        ("expert_iteration_minus_warmstart", "Imitating what was won in the dream"),
        ("dream_minus_expert_iteration", "Trust-region updates in the dream"),
        ("dream_minus_warmstart", "Training in the dream"),
        ("s2r_minus_dream", "Fine-tuning in the real environment"),
    ):
        if key == "dream_minus_expert_iteration" and (
            evidence.number("expert_iteration", "kept") == "warmstart"
        ):
            continue  # the difference to the warm start says it
        makers = _MAKERS.get(key, ())
        if makers and all(evidence.number(s, "kept") == _START[s] for s in makers):
            continue  # one policy under two names
        if key in paired and paired[key]["mean"] is not None:
            out.append(_change(what, paired[key]))
    remedy = evidence.number("dream_check", "remedy")
    if remedy and remedy["helped"]:
        out.append(f"The dream was refitted before training, because {_cause(remedy)}.")
    for stage, name in (
        ("warmstart", "The warm start"),
        ("expert_iteration", "Expert iteration"),
        ("train", "The dream policy"),
    ):
        if note := evidence.number(stage, "note"):
            out.append(f"{name}: {note}.")
    return out


def _cause(remedy: Mapping[str, Any]) -> str:
    """Return why a dream was refitted, without the details of its episodes."""
    return str(remedy["before"]).split(": ")[0]


def _change(what: str, difference: Mapping[str, Any]) -> str:
    low, high = difference["low"], difference["high"]
    text = f"{difference_text(difference)} over {difference['episodes']} games"
    if low > 0:
        return f"{what} made the policy better: {text}."
    if high < 0:
        return f"{what} made the policy worse: {text}."
    return f"{what} changed nothing that these games can show: {text}."


def _is_disappointing(evidence: Evidence) -> bool:
    """Whether nothing better than chance, or nothing better by training, came of it."""
    trained = evidence.trained()
    chance = evidence.success("random") or 0.0
    if not trained or max(trained.values()) <= chance:
        return True
    gain = evidence.results.get("paired", {}).get("dream_minus_warmstart")
    return gain is None or gain["mean"] is None or gain["low"] <= 0


# --- causes ------------------------------------------------------------------


def causes(evidence: Evidence) -> list[Cause]:
    """Return the likely causes of a disappointing run, the first one first.

    Causes in earlier stages come first: without demonstrations, or with a wrong dream,
    later stages cannot succeed.
    """
    checks = (
        few_demonstrations,
        few_won,
        low_fidelity,
        low_ends,
        ignored_instruction,
        wrong_about_policy,
        invalid_actions,
        little_signal,
        broken_rollouts,
        large_kl,
        few_games,
    )
    return [cause for check in checks if (cause := check(evidence)) is not None]


def few_demonstrations(evidence: Evidence) -> Cause | None:
    """Return a cause if there are too few successful episodes to imitate."""
    count = evidence.number("bc", "imitated_episodes")
    if count is None or count >= FEW_DEMONSTRATIONS:
        return None
    return Cause(
        "few demonstrations",
        f"The policies imitate only {count} won episodes.",
        "Collect more (collect.train_tasks, collect.expert_weight), or give episodes "
        "that were won.",
    )


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
        "or weigh rare rewards and ends (pretrain.rare_event_share).",
    )


def low_fidelity(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream is often wrong about predictable states."""
    figure = evidence.figure("exact", "predictable")
    if figure["mean"] is None or figure["mean"] >= LOW_FIDELITY:
        return None
    return Cause(
        "low fidelity",
        f"The dream has {percent(figure['mean'])} of {figure['count']} predictable "
        "next states right.",
        "Fit it longer (pretrain.fit.steps), to more episodes (collect.episodes), or "
        "take a larger --model.",
    )


def low_ends(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream misses ends of episodes."""
    figure = evidence.figure("done", "recall")
    if figure["mean"] is None or figure["mean"] >= LOW_ENDS:
        return None
    return Cause(
        "missed ends",
        f"The dream finds {percent(figure['mean'])} of {figure['count']} ends.",
        "Weigh rare rewards and ends (pretrain.rare_event_share), and collect more "
        "episodes that end.",
    )


def ignored_instruction(evidence: Evidence) -> Cause | None:
    """Return a cause if reveals of the dream do not show what the instruction says."""
    agree, shown, elsewhere = (
        evidence.figure("instruction", name) for name in ("agree", "shown", "elsewhere")
    )
    if agree["mean"] is None or agree["mean"] >= LOW_AGREEMENT:
        return None
    scorecard = evidence.results.get("fidelity") or {}
    words = ", ".join(scorecard["instruction"]["words"][:3])
    return Cause(
        "ignored instruction",
        "The dream does not show what the instruction says: where that says that "
        f"something ({words}) is there, it shows it in {percent(shown['mean'])} of "
        f"{shown['count']} reveals, and in {percent(elsewhere['mean'])} of "
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
        "Collect episodes like the policy's own (collect.noisy_weight), refit with "
        "them, and weigh rare rewards and ends (pretrain.rare_event_share).",
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
        "It needs more demonstrations or a longer fit (bc.fit.steps); names and "
        "numbers in actions have to be copied, which a pretrained --model does better.",
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


def diagnosis(evidence: Evidence) -> str:
    """Return the verdict with all causes, as text of several lines."""
    out = [*outcome_sentences(evidence), *training_sentences(evidence), ""]
    likely_causes = causes(evidence)
    if not likely_causes:
        out.append("Nothing that was measured explains more than this.")
    else:
        out.append("What may have been too little, what to change first:")
        out += [f"{i + 1}. {cause.text()}" for i, cause in enumerate(likely_causes)]
    return "\n".join(out)
