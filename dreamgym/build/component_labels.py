"""The classifier of components of tool use of a run, and who labels them in a loop."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dreamgym.build.chat import CACHE, ServerLost
from dreamgym.build.episodes import read
from dreamgym.rewards.components import classifier
from dreamgym.rewards.components.classifier import ComponentClassifier
from dreamgym.rewards.components.judge import ComponentJudge
from dreamgym.rewards.components.questions import ComponentLabeller, Question
from dreamgym.rewards.config import RewardConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from worldmodel.backbone.weights import load_model
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatError
from worldmodel.data.hashing import content_hash

DIRECTORY = "component_classifier"
"""Where a run keeps its classifier."""


def fit(run: Run, match: str) -> dict[str, Any]:
    """Fit the run's classifier of components; return its numbers.

    It is fitted to the training tasks, with the settings of the reward model's fit, and
    examined on the dev tasks. The same call resumes after an interruption, and returns
    the numbers of a finished fit.

    Raises:
      RunError: the run is not pretrained, or its episodes have no expected calls.
    """
    run.require("pretrain")
    if run.config.server is not None:
        raise RunError(
            f"{run.root}: its dream is a server; there is no model for a classifier of "
            'tool use to begin at: set the labels to "rule" or "judge"'
        )
    seed, config = run.config.seed, run.config.reward_model
    fitted, held_out = (
        classifier.answered_questions(episodes, match, seed=seed)
        for episodes in read(run)
    )
    if not fitted or not held_out:
        raise RunError(
            f"{run.root}: {len(fitted)} episodes to fit a classifier of tool use to, "
            f"and {len(held_out)} held out; expected at least one of each (tasks with "
            'options["calls"], or won episodes with calls, in episodes.jsonl and '
            "dev.jsonl)"
        )
    digest = content_hash(
        [[[q.key, label] for q, label in row] for row in (*fitted, *held_out)]
        + [dataclasses.asdict(config), seed, match]
    )[:16]
    earlier = run.numbers("reward_model").get("components", {})
    if earlier.get("digest") == digest and run.path(DIRECTORY).is_dir():
        return earlier
    trunk, tok = load_model(run.path("experience"), mesh=run.mesh)
    checkpoints = f"checkpoints/components-{digest}"
    with progress_bar(config.steps, "classifier of tool use", "update") as show:
        model, curve = classifier.fit(
            trunk,
            tok,
            fitted,
            config,
            seed=seed,
            directory=run.path(checkpoints),
            progress=show,
        )
    model.save(run.path(DIRECTORY))
    run.write_curve(DIRECTORY, curve)
    run.drop(checkpoints)
    return {
        "episodes": len(fitted),
        **classifier.accuracies(model, fitted, held_out),
        "digest": digest,
    }


class _RunComponentJudge(ComponentJudge):
    """A judge of components whose error says what to do without an answer."""

    def labels(self, questions: Sequence[Question]) -> list[float | str]:
        """See ComponentJudge.

        Raises:
          ServerLost: it gave no answer, and what to do.
        """
        try:
            return super().labels(questions)
        except ChatError as error:
            raise ServerLost(
                f"{error}; what the judge answered is kept in {CACHE}: once it "
                "answers again the same command goes on"
            ) from error


def labellers(
    run: Run, config: RewardConfig, client: ChatClient | None
) -> dict[str, ComponentLabeller]:
    """Return who labels components of tool use, as far as the settings name them.

    Raises:
      RunError: the classifier is not fitted.
    """
    out: dict[str, ComponentLabeller] = {}
    if config.fits_classifier:
        try:
            out["classifier"] = ComponentClassifier.load(run.path(DIRECTORY), run.mesh)
        except ValueError as error:
            raise RunError(
                f"{error}; the stage reward_model fits the classifier of tool use"
            ) from None
    judges = config.tools.enabled and config.tools.labels.asks("judge")
    if judges and client is not None:
        out["judge"] = _RunComponentJudge(client, config.judge, seed=run.config.seed)
    return out
