"""The full scorecard of a run, on its dev tasks or on other episodes."""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience, remedy_folder
from dreamgym.build.fidelity import add_training_ends
from dreamgym.build.real.dev_choice import original_policy
from dreamgym.build.real.environments import open_env
from dreamgym.commands.results import read_results
from dreamgym.config.stages import ServerConfig
from dreamgym.evaluation.diagnosis.verdict import benefit_sentence
from dreamgym.evaluation.fidelity import by_family
from dreamgym.evaluation.pages import scorecard_page
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from worldmodel import fidelity
from worldmodel.data.records import Episode, read_episodes
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel

ON_POLICY = ("warmstart", "expert_iteration", "dream")
"""Policies whose own test episodes a full scorecard asks about."""


def on_policy(
    run: Run, model: ExperienceModel, limit: int, recorded: Sequence[Episode]
) -> dict[str, Any]:
    """Return a scorecard on the test episodes of each policy that has some.

    Policies that are copies of one policy are asked about once, under its name.
    `recorded` are the episodes that the model was fitted to.
    They contain the states that the policies themselves reach, on which the accuracy of
    the dream matters most for training.
    """
    scorecards = {}
    for name in ON_POLICY:
        path, origin = run.path(f"test/{name}.jsonl"), original_policy(run, name)
        if origin not in scorecards and path.is_file():
            played = [e for e in read_episodes(path) if e.success is not None]
            if played:
                scorecards[origin] = fidelity.score(
                    model,
                    played,
                    limit=limit,
                    open_loop_steps=limit,
                    recorded=recorded,
                )
    return scorecards


def _free(run: Run, name: str, episodes: str) -> str:
    """The name of a card of a file, numbered where other episodes have it.

    The run's own have `dev` and `dev-server`.
    """
    for number in itertools.count(2 if name in ("dev", "dev-server") else 1):
        candidate = name if number == 1 else f"{name}-{number}"
        path = f"scorecard/{candidate}.json"
        if not run.path(path).is_file() or run.read_json(path)["episodes"] == episodes:
            return candidate
    raise AssertionError


def full_scorecard(
    run: Run, path: Path | None, limit: int | None, server: ServerConfig | None = None
) -> tuple[dict, Path]:
    """Score a run's model in full on the episodes of a file, or on its dev tasks.

    `limit` is the number of transitions, and of open-loop steps (default: the run's,
    and all open-loop steps). A `server` is scored in place of the run's own model. With
    the dev tasks, also the test episodes of policies are scored (`on_policy`). Writes
    scorecard/NAME.json, NAME.html and its plots into the run; returns the scorecard and
    the path of the page. `seen_tasks` counts episodes of tasks that the model was
    fitted to: what is measured on those does not show generalization. `real_games` is
    a sentence on the run's real games where the dream paid in them.
    """
    real_games = ""
    if server is None and run.path("results.json").is_file():
        try:
            real_games = benefit_sentence(read_results(run))
        except RunError as error:  # the scorecard itself does not need them
            print(f"left out what real games say: {error}", file=sys.stderr)
    experience = load_experience(
        run, server=server, folder="" if server else remedy_folder(run)
    )
    train, dev = read(run)
    episodes = dev if path is None else read_episodes(path)
    train_tasks = {e.task.id for e in train}
    steps, limit = limit, run.config.fidelity.transitions if limit is None else limit
    with (
        run_chat.experience_session(experience),
        progress_bar(limit, "fidelity", "transition") as show,
        open_env(run) as env,
    ):
        scorecard = by_family(
            experience,
            episodes,
            limit,
            lambda done, _: show(done),
            full=True,
            env=env,
            open_loop_steps=steps,
            recorded=train,
        )
        if path is None:
            if server is None and run.config.server is None:
                add_training_ends(scorecard, experience, train)
            scorecard["on_policy"] = on_policy(run, experience, limit, train)
    if real_games:
        scorecard["real_games"] = real_games
    source = run.path("dev.jsonl") if path is None else path
    scorecard["episodes"] = str(source.resolve())
    scorecard["seen_tasks"] = len({e.task.id for e in episodes} & train_tasks)
    name = "dev" if path is None else path.name.removesuffix(".gz")
    name = name.removesuffix(".jsonl")
    if isinstance(experience, PromptedExperienceModel):
        name += "-server"
        scorecard["usage"] = experience.client.usage._asdict()
    name = name if path is None else _free(run, name, scorecard["episodes"])
    run.write_json(f"scorecard/{name}.json", scorecard)
    page = run.path(f"scorecard/{name}.html")
    scorecard_page.write_page(scorecard, page)
    return scorecard, page
