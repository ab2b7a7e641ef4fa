"""Rewards of a loop from its settings, and the reward model of a run."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from dreamgym.build import component_labels
from dreamgym.build.chat import CACHE, ServerLost, run_client
from dreamgym.build.episodes import read
from dreamgym.envs.sandbox import run_python
from dreamgym.evaluation.statistics import rate, wilson
from dreamgym.rewards import progress_attribution, reward_model
from dreamgym.rewards.components.classifier import OBJECTIVE as COMPONENTS
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.hard_negatives import KINDS, hard_negatives
from dreamgym.rewards.judge import Judge
from dreamgym.rewards.preferences import (
    Preference,
    attempts_of,
    read_preferences,
    split,
    won_over_lost,
    write_preferences,
)
from dreamgym.rewards.reward_function import Pasts, RewardFunction
from dreamgym.rewards.reward_model import RewardModel
from dreamgym.rewards.reward_model_config import RewardModelConfig
from dreamgym.rewards.reward_model_refit import (
    OutcomeRefit,
    PairRefit,
    RewardModelRefit,
)
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from worldmodel.backbone.weights import load_model
from worldmodel.chat.protocol import ChatError
from worldmodel.data import processes
from worldmodel.data.hashing import content_hash
from worldmodel.data.json_reading import RecordError
from worldmodel.data.records import Episode

STAGE = DIRECTORY = "reward_model"
"""The stage that fits a run's reward model, and where the run keeps it."""

PAIRS = "pairs.jsonl"
"""The pairs that a reward model was fitted to, in its directory."""


class _RunJudge(Judge):
    """A judge whose error says what to do when its server does not answer.

    The error is raised here and not in the caller, where the server of the dream may
    have failed instead.
    """

    def scores(
        self,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Pasts | None = None,
    ) -> list[dict[int, float] | str]:
        """See Judge.

        Raises:
          ServerLost: it gave no answer, and what to do.
        """
        try:
            return super().scores(episodes, step_numbers, pasts)
        except ChatError as error:
            raise ServerLost(
                f"{error}; what the judge answered is kept in {CACHE}: once it "
                "answers again the same command goes on"
            ) from error


def _program_output(code: str) -> str:
    """Run a program of the judge; return what it printed, and why it failed."""
    result = run_python(code)
    text = "\n".join(x for x in (result.output, result.reason) if x)
    return text or "nothing was printed"


@contextlib.contextmanager
def reward_function(
    run: Run, config: RewardConfig, stage: str
) -> Iterator[RewardFunction]:
    """Yield the reward function of a stage; close its clients at the end.

    A judge's answers are cached with those of the run's server; its requests in all
    attempts of the stage are counted in stages/STAGE.usage.json.

    Raises:
      RunError: the source "reward_model" without a fitted model or data to fit one.
      ValueError: the judge has no URL, or the variable of its key is not set.
      ServerLost: the judge gave no answer (raised while it is used).
    """
    client = judge = None
    model = _model(run, config) if "reward_model" in config.sources else None
    if config.asks_judge:
        client = run_client(run, config.judge.chat, stage, "judge")
    if client is not None and "judge" in config.sources:
        judge = _RunJudge(
            client, config.judge, seed=run.config.seed, run_python=_program_output
        )
    try:
        labellers = component_labels.labellers(run, config, client)
        yield RewardFunction(
            config, reward_model=model, judge=judge, labellers=labellers
        )
    finally:
        if client is not None:
            client.close()


def reward_model_refit(
    run: Run, config: RewardConfig, model: object
) -> RewardModelRefit | None:
    """Return the refits of a loop's reward model, or None where it is left as it is.

    Beside what the loop plays, a model of shares is refitted to the run's collected
    training episodes, and a model of preferences to the pairs in its directory.

    Raises:
      RunError: the pairs that the model was fitted to are missing or damaged.
    """
    source = config.reward_model
    if not source.refit.every:
        return None
    assert isinstance(model, RewardModel)
    if model.objective == "progress":
        attempts = progress_attribution.scored_attempts(read(run)[0])
        return OutcomeRefit(model, attempts, source, seed=run.config.seed)
    directory = _directory(run, config)
    try:
        original = read_preferences(directory / PAIRS)
    except RecordError as error:
        raise RunError(
            f"{error}; a refit mixes the pairs that the model was fitted to into the "
            "new ones: `dreamgym reward-model` writes both anew"
        ) from None
    return PairRefit(model, original, source, seed=run.config.seed)


def _directory(run: Run, config: RewardConfig) -> Path:
    """Return the directory of the reward model that is named, or the run's own."""
    named = config.reward_model.model
    return Path(named) if named else run.path(DIRECTORY)


def _model(run: Run, config: RewardConfig) -> RewardModel:
    """Return the reward model that is named, or the run's own."""
    directory = _directory(run, config)
    try:
        model = RewardModel.load(directory, run.mesh)
    except ValueError as error:
        raise RunError(
            f"{error}; `dreamgym reward-model {run.root}` makes that of the run, which "
            "is taken where train.reward.reward_model.model names none"
        ) from None
    problem = config.reward_model.progress_problem()
    if model.objective == COMPONENTS:
        raise RunError(
            f"{directory}: expected a reward model, got a classifier of tool use"
        )
    if model.objective == "progress" and problem is not None:
        raise RunError(f"{directory}: {problem}")
    return model


def fit(run: Run, config: RewardModelConfig) -> dict[str, Any]:
    """Fit the run's reward model; return the numbers of its stage.

    Without `preferences` the pairs are successful over failed attempts at the same
    task: those of the training tasks are fitted, those of the dev tasks are held out.
    One pair counts per held-out task, because pairs of a task are not independent. The
    objective "progress" takes all scored episodes of the training and the dev tasks.
    The same call resumes after an interruption, and a finished fit returns its numbers.

    Raises:
      RunError: the run is not pretrained, or there is nothing to fit or to hold out.
      RecordError: a bad file of pairs; the message names file and line.
    """
    run.require("pretrain")
    if run.config.server is not None:
        raise RunError(
            f"{run.root}: its dream is a server; there is no model for a reward model "
            "to begin at: train.reward.reward_model.model names another"
        )
    if config.objective == "progress":
        return _fit_outcomes(run, config)
    seed = run.config.seed
    fitted, held_out = preference_pairs(
        run,
        config.preferences,
        max_pairs_per_task=config.max_pairs_per_task,
        held_out_share=config.held_out_share,
    )
    # Won episodes need no lost one beside them for their flawed copies.
    examined = attempts_of(held_out) if config.preferences else read(run)[1]
    digest = _digest([fitted, held_out, examined], config, seed)
    earlier = run.numbers(STAGE)
    whole = "hard_negatives" in earlier and (run.path(DIRECTORY) / PAIRS).is_file()
    if earlier.get("digest") == digest and whole:  # else of an older version
        return earlier
    model = _fit(run, config, reward_model.fit, fitted, digest)
    return {
        "pairs": len(fitted),
        **_ranking(model, held_out),
        "hard_negatives": {
            kind: _ranking(model, pairs, tie=TIE)
            for kind, pairs in hard_negatives(examined, seed=seed).items()
            if pairs
        },
        "digest": digest,
    }


def _fit(
    run: Run,
    config: RewardModelConfig,
    fit_model: Callable[..., tuple[RewardModel, list[dict[str, float | int]]]],
    records: Sequence[Any],
    digest: str,
) -> RewardModel:
    """Fit a model to pairs or episodes, and write it, its pairs and its curve."""
    trunk, tok = load_model(run.path("experience"), mesh=run.mesh)
    checkpoints = f"checkpoints/{STAGE}-{digest}"
    with progress_bar(config.steps, "reward model", "update") as show:
        model, curve = fit_model(
            trunk,
            tok,
            records,
            config,
            seed=run.config.seed,
            directory=run.path(checkpoints),
            progress=show,
        )
    pairs_file = run.path(DIRECTORY) / PAIRS
    with processes.first_process_writes("reward model") as writes:
        if writes:  # of the model before
            run.path(f"stages/{STAGE}.json").unlink(missing_ok=True)
            pairs_file.unlink(missing_ok=True)
    model.save(run.path(DIRECTORY))
    if config.objective == "preference":
        write_preferences(pairs_file, records)
    run.write_curve(STAGE, curve)
    run.drop(checkpoints)
    return model


def _fit_outcomes(run: Run, config: RewardModelConfig) -> dict[str, Any]:
    """Fit the run's reward model to outcomes; return the numbers of its stage."""
    fitted, held_out = map(progress_attribution.scored_attempts, read(run))
    won = sum(bool(e.success) for e in fitted)
    if not 0 < won < len(fitted) or not held_out:
        raise RunError(
            f"{run.root}: {won} won and {len(fitted) - won} lost episodes to fit a "
            f"reward model to, and {len(held_out)} held out; expected at least one of "
            "each (episodes.jsonl and dev.jsonl, those with a known outcome)"
        )
    digest = _digest([fitted, held_out], config, run.config.seed)
    earlier = run.numbers(STAGE)
    if earlier.get("digest") == digest:
        return earlier
    model = _fit(run, config, progress_attribution.fit, fitted, digest)
    predictions = progress_attribution.predicted_outcomes(model, fitted, held_out)
    rows = {name: _outcome_errors(held_out, x) for name, x in predictions.items()}
    return {
        "objective": config.objective,
        "episodes": len(fitted),
        "held_out": len(held_out),
        "held_out_tasks": len({e.task.id for e in held_out}),
        "held_out_won": sum(bool(e.success) for e in held_out),
        **rows.pop("model"),
        **rows,
        "digest": digest,
    }


def _outcome_errors(
    attempts: Sequence[Episode], predictions: Float[np.ndarray, " N"]
) -> dict[str, Any]:
    """Return the mean squared error of predicted outcomes, and how many are right.

    In the interval the attempts at one task count less than those at several.
    """
    outcome = progress_attribution.outcomes_of(attempts)
    right = (predictions > progress_attribution.WON) == (outcome > 0)
    tasks: dict[str, list[bool]] = {}
    for attempt, hit in zip(attempts, right.tolist(), strict=True):
        tasks.setdefault(attempt.task.id, []).append(hit)
    accuracy = rate(tasks)
    return {
        "error": float(((predictions - outcome) ** 2).mean()),
        "accuracy": accuracy["mean"],
        "interval": [accuracy["low"], accuracy["high"]],
    }


TIE = 1e-4
"""A margin between an attempt and its copy that is no larger may be rounding: a model
that does not read past actions gives the same steps in another order the same mean."""


def _ranking(
    model: RewardModel, pairs: Sequence[Preference], *, tie: float = 0.0
) -> dict[str, Any]:
    """Return how many pairs a model ranks right, and how many length alone does.

    A margin of at most `tie` is not right.
    """
    hits = int((model.margins(pairs) > tie).sum())
    shorter = [len(p.better) < len(p.worse) for p in pairs]
    return {
        "held_out": len(pairs),
        "ranked_right": hits,
        "accuracy": hits / len(pairs),
        "interval": list(wilson(hits, len(pairs))),
        "better_is_shorter": float(np.mean(shorter)),
    }


def _without_test_tasks(pairs: list[Preference], file: str) -> list[Preference]:
    """Return the pairs that are not of test tasks; say how many are."""
    others = [p for p in pairs if p.task.split != "test"]
    if count := len(pairs) - len(others):
        print(
            f"{file}: {count} of {len(pairs)} pairs are of test tasks and left out: "
            "what is learnt from them cannot be tested on them",
            file=sys.stderr,
        )
    return others


def preference_pairs(
    run: Run, file: str, *, max_pairs_per_task: int, held_out_share: float
) -> tuple[list[Preference], list[Preference]]:
    """Return (pairs to learn from, pairs held out), one for each task of the latter.

    Without a `file` the pairs are successful over failed attempts at the same task:
    those of the training tasks are learnt from, those of the dev tasks are held out.
    Pairs of test tasks are left out.

    Raises:
      RunError: there are no pairs to learn from, or none is held out.
      RecordError: a bad file of pairs; the message names file and line.
    """
    seed = run.config.seed
    if not file:
        fitted, held_out = (
            won_over_lost(episodes, max_pairs=max_pairs_per_task, seed=seed)
            for episodes in read(run)
        )
        source = f"{run.root}: episodes.jsonl and dev.jsonl"
    else:
        pairs = _without_test_tasks(read_preferences(Path(file)), file)
        fitted, held_out = split(pairs, held_out_share=held_out_share, seed=seed)
        source = file
    held_out = list({p.task.id: p for p in held_out[::-1]}.values())[::-1]
    if not fitted or not held_out:
        raise RunError(
            f"{source}: {len(fitted)} pairs to fit and {len(held_out)} tasks held out; "
            "expected at least one of each (tasks both won and lost, or more of them)"
        )
    return fitted, held_out


def _digest(
    records: Sequence[Sequence[Preference | Episode]],
    config: RewardModelConfig,
    seed: int,
) -> str:
    rows = [[dataclasses.asdict(x) for x in part] for part in records]
    return content_hash([rows, dataclasses.asdict(config), seed])[:16]


def report_lines(numbers: dict[str, Any]) -> list[str]:
    """Return the numbers of a reward model's fit as lines to print."""
    if numbers.get("objective") == "progress":
        return _outcome_lines(numbers)
    return [
        f"reward model: {summary(numbers)}",
        "hard negatives, flawed copies of won attempts that it should rank below:",
        *(f"  {line}" for line in hard_negative_lines(numbers)),
    ]


def _outcome_lines(numbers: dict[str, Any]) -> list[str]:
    low, high = numbers["interval"]
    lines = [
        f"reward model: fitted to the outcomes of {numbers['episodes']} episodes; of "
        f"{numbers['held_out']} held out ({numbers['held_out_won']} won, "
        f"{numbers['held_out_tasks']} tasks), the sum of the shares has a mean squared "
        f"error of {numbers['error']:.3f} and tells {numbers['accuracy']:.1%} right "
        f"(95 % interval {low:.1%} to {high:.1%})"
    ]
    for name, text in (
        ("constant", "the mean outcome of the fitted episodes"),
        ("length", "a line through their outcomes by number of steps"),
    ):
        row = numbers[name]
        lines.append(f"  {text}: {row['error']:.3f}, {row['accuracy']:.1%}")
    return lines


def summary(numbers: dict[str, Any]) -> str:
    """Return the numbers of a fit, of a reward model or by DPO, as a sentence."""
    return (
        f"fitted to {numbers['pairs']} pairs; of {numbers['held_out']} tasks held "
        f"out, one pair each, it ranks {_accuracy(numbers)}"
    )


def hard_negative_lines(numbers: dict[str, Any]) -> list[str]:
    """Return a line for each kind of hard negative, and one for what was not made."""
    kinds = numbers["hard_negatives"]
    lines = [
        f"{kind.replace('_', ' ')}: of {row['held_out']} won attempts it ranks "
        f"{_accuracy(row)}"
        for kind, row in kinds.items()
    ]
    missing = [kind.replace("_", " ") for kind in KINDS if kind not in kinds]
    if missing:
        lines.append(f"no held-out won attempt has such a copy: {', '.join(missing)}")
    return lines


def _accuracy(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return (
        f"{row['accuracy']:.1%} right (95 % interval {low:.1%} to {high:.1%}; "
        f"`the shorter is better` {row['better_is_shorter']:.1%})"
    )
