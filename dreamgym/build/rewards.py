"""Rewards of a loop from its settings, and the reward model of a run."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.build.chat import ANSWERS, ServerLost
from dreamgym.build.episodes import read
from dreamgym.evaluation.statistics import wilson
from dreamgym.rewards import reward_model
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.judge import Judge
from dreamgym.rewards.preferences import (
    Preference,
    read_preferences,
    split,
    won_over_lost,
)
from dreamgym.rewards.reward_function import Pasts, RewardFunction
from dreamgym.rewards.reward_model import PreferenceFitConfig, RewardModel
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import bar
from worldmodel.backbone.weights import load_model
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatError
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Episode

DIRECTORY = "reward"
"""Where a run keeps its reward model."""


class _RunJudge(Judge):
    """A judge that says what to do when its server is lost.

    Here, and not around all that is done while it is at hand: there the dream's server
    may be lost, too.
    """

    def scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts | None = None,
    ) -> list[dict[int, float] | str]:
        """See Judge.

        Raises:
          ServerLost: it gave no answer, and what to do.
        """
        try:
            return super().scores(episodes, wanted, pasts)
        except ChatError as error:
            raise ServerLost(
                f"{error}; what the judge answered is kept in {ANSWERS}: once it "
                "answers again the same command goes on"
            ) from error


def needs_reward_model(config: RewardConfig) -> bool:
    """Return whether these rewards want a model of the run's own."""
    return "learned" in config.tiers and not config.learned.model


@contextlib.contextmanager
def reward_function(
    run: Run, config: RewardConfig, stage: str
) -> Iterator[RewardFunction]:
    """What scores the episodes of a stage, as the settings say; closed at the end.

    A judge's answers are kept with those of the run's server; what it was asked in all
    attempts of the stage stands in stages/STAGE.judge.

    Raises:
      RunError: a learned tier without a fitted model, and nothing to fit one to.
      ValueError: a judge without a URL, or a variable of a key that is not set.
      ServerLost: while it is used, a judge that gave no answer, and what to do.
    """
    client = judge = None
    model = _model(run, config) if "learned" in config.tiers else None
    if "judge" in config.tiers:
        client = ChatClient(
            config.judge.chat(), run.path(ANSWERS), run.path(f"stages/{stage}.judge")
        )
        judge = _RunJudge(client, config.judge, seed=run.config.seed)
    try:
        yield RewardFunction(config, learned=model, judge=judge)
    finally:
        if client is not None:
            client.close()


def _model(run: Run, config: RewardConfig) -> RewardModel:
    """Return the model that is named, or the run's own."""
    own, named = run.path(DIRECTORY), config.learned.model
    try:
        return RewardModel.load(Path(named) if named else own)
    except ValueError as error:
        raise RunError(
            f"{error}; `dreamgym reward fit {run.root}` makes that of the run, which "
            "is taken where dream.reward.learned.model names none"
        ) from None


def fit(run: Run, path: Path | None, config: PreferenceFitConfig) -> dict[str, Any]:
    """Fit the run's reward model; returns what reward/fit.json holds.

    Without a `path` the pairs are won over lost attempts at the same task: those of the
    training games are fitted to, those of its dev games are held out. Of a held-out
    task one pair counts: those of one task stand and fall together. The same call,
    after a kill, goes on; after the end it tells the same again.

    Raises:
      RunError: the run is not pretrained, or no task was both won and lost.
      RecordError: a bad file of pairs; the message names file and line.
    """
    run.require("pretrain")
    if run.config.server is not None:
        told = "its dream is a server; there is no model for a reward model to begin at"
        raise RunError(f"{run.root}: {told}: dream.reward.learned.model names another")
    seed = run.config.seed
    fitted, held = _pairs(run, path, config)
    digest = _digest(fitted, held, config, seed)
    done = run.path(f"{DIRECTORY}/fit.json")
    if done.is_file() and (told := json.loads(done.read_text()))["digest"] == digest:
        return told
    trunk, tok = load_model(run.path("experience"))
    checkpoints = f"checkpoints/reward-{digest}"
    with bar(config.steps, "reward", "update") as show:
        model, curve = reward_model.fit(
            trunk, tok, fitted, config, seed=seed, directory=run.path(checkpoints),
            progress=show,
        )  # fmt: skip
    done.unlink(missing_ok=True)
    model.save(run.path(DIRECTORY))
    gaps = model.margins(held)
    hits, shorter = int((gaps > 0).sum()), [len(p.better) < len(p.worse) for p in held]
    told = {
        "digest": digest,
        "pairs": len(fitted),
        "held_out": len(held),
        "ranked_right": hits,
        "accuracy": hits / len(held),
        "interval": list(wilson(hits, len(held))),
        "better_is_shorter": float(np.mean(shorter)),
        "curve": curve,
    }
    run.write_json(f"{DIRECTORY}/fit.json", told)
    run.drop(checkpoints)
    return told


def _pairs(
    run: Run, path: Path | None, config: PreferenceFitConfig
) -> tuple[list[Preference], list[Preference]]:
    """(fitted, held out), one pair a task of the latter."""
    if path is None:
        both = read(run)
        fitted, held = (
            won_over_lost(e, max_pairs=config.most, seed=run.config.seed) for e in both
        )
        source = f"{run.root}: episodes.jsonl and dev.jsonl"
    else:
        pairs = read_preferences(path)
        fitted, held = split(pairs, held_out_share=config.held, seed=run.config.seed)
        source = str(path)
    held = list({p.task.id: p for p in held[::-1]}.values())[::-1]
    if not fitted or not held:
        raise RunError(
            f"{source}: {len(fitted)} pairs to fit and {len(held)} tasks held out; "
            "expected at least one of each (tasks both won and lost, or more of them)"
        )
    return fitted, held


def _digest(
    fitted: Sequence[Preference], held: Sequence[Preference],
    config: PreferenceFitConfig, seed: int,
) -> str:  # fmt: skip
    rows = [[dataclasses.asdict(p) for p in pairs] for pairs in (fitted, held)]
    return content_hash([rows, dataclasses.asdict(config), seed])[:16]


def summary(told: dict[str, Any]) -> str:
    """What a fit came to, in a line."""
    low, high = told["interval"]
    return (
        f"fitted to {told['pairs']} pairs; of {told['held_out']} tasks held out, one "
        f"pair each, it ranks {told['accuracy']:.1%} right (95 % interval {low:.1%} to "
        f"{high:.1%}; `the shorter is better` {told['better_is_shorter']:.1%})"
    )
