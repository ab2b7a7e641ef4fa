"""One dreamed step next to the real one, in the terminal and as a page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience, remedy_folder
from dreamgym.build.real.instances import instance_maker
from dreamgym.envs import restarting
from dreamgym.evaluation.comparisons.episode_comparison import (
    LEGEND,
    compare_episode,
    compare_step,
    episode_view,
    recall_from,
)
from dreamgym.evaluation.pages import page
from dreamgym.evaluation.pages.episode_text import print_episode
from dreamgym.evaluation.state_text import ReadableState, readable_states
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import Episode


def show(
    run: Run,
    console: Console,
    *,
    episode: str | None = None,
    step: int | None = None,
    whole: bool = False,
    html: Path | None = None,
) -> None:
    """Print a step of a dev episode, real and dreamed; write the page `html`.

    The step is dreamed from the real state before it. With `whole`, and on the page,
    all steps follow, the dream going on from its own states.

    Args:
      episode: the id of a dev episode (default: the first).
      step: the number of a step, from 1 (default: the first that changes something and
        reveals nothing).

    Raises:
      RunError: there is no such episode or step; the message says which there are.
    """
    record = _episode(run, episode)
    number = _step_number(record, step)
    experience = load_experience(run, scaled=True, folder=remedy_folder(run))
    recall = recall_from(experience.memory, experience.config.demonstrations)
    with run_chat.experience_session(experience), run_readable_states(run) as readable:
        one = compare_step(experience, recall, record, number - 1)
        single = episode_view(record, [one], readable, first=number)
        page_view: dict[str, Any] = {}
        if whole or html is not None:
            steps = compare_episode(experience, recall, record)
            page_view = episode_view(record, steps, readable)
    print_episode(page_view if whole else single, console)
    if html is not None:
        page.write(
            html,
            "episodes.html",
            title=f"Dream and reality: {single['title']}",
            single=single,
            view=page_view,
            legend=LEGEND,
        )


def _episode(run: Run, name: str | None) -> Episode:
    _, dev = read(run)
    by_id = {e.id: e for e in dev}
    if name is None and dev:
        return dev[0]
    if name not in by_id:
        raise RunError(
            f"{run.path('dev.jsonl')}: no episode {name!r}; have {list(by_id)[:8]} ..."
        )
    return by_id[name]


def _step_number(episode: Episode, step: int | None) -> int:
    count = len(episode.transitions)
    if step is not None:
        if not 1 <= step <= count:
            raise RunError(
                f"episode {episode.id!r} has steps 1 to {count}, got --step {step}"
            )
        return step
    for number, t in enumerate(episode.transitions, 1):
        if t.next_state != t.state and not t.reveals and not t.invalid:
            return number
    return 1


@contextlib.contextmanager
def run_readable_states(run: Run) -> Iterator[ReadableState]:
    """Open a run's environment, and yield how its states are shown to people.

    The environment is in a worker where the run has workers; it is closed at the end of
    the block, after which the function that is yielded must not be called.
    """
    env_config = run.config.env
    if not env_config.id:
        yield readable_states(None)
        return
    make = instance_maker(env_config)
    with contextlib.closing(restarting.open_env(env_config.id, make=make)) as env:
        yield readable_states(env)
