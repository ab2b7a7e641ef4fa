"""One dev episode played in the dream, by the actions that were really taken."""

from pathlib import Path

from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.evaluation import episode_comparison
from dreamgym.evaluation.episode_comparison import ComparedStep
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import Episode
from worldmodel.experience.base import Query
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel


def shown(run: Run, name: str | None) -> tuple[str, Path]:
    """(text for the terminal, path of the page) of an episode: `name`, or the first.

    Raises:
      RunError: no dev episode of that name; the message says some that are there.
    """
    experience = load_experience(run, scaled=True)
    _, dev = read(run)
    found = {e.id: e for e in dev}
    episode = dev[0] if name is None else found.get(name)
    if episode is None:
        raise RunError(
            f"{run.path('dev.jsonl')}: no episode {name!r}; have {list(found)[:8]} ..."
        )
    with run_chat.asking(experience):
        moments = dreamed(experience, episode)
    page = run.path(f"scorecard/episode-{list(found).index(episode.id)}.html")
    episode_comparison.write_page(episode, moments, page)
    return episode_comparison.text(episode, moments), page


def dreamed(
    experience: LocalExperienceModel | PromptedExperienceModel, episode: Episode
) -> list[ComparedStep]:
    """Every step of the episode, the dream going on from its own states."""
    state, out, over = episode.transitions[0].state, [], False
    for i, t in enumerate(episode.transitions):
        if over:
            out.append(ComparedStep(t, state, None, ()))
            continue
        past = tuple(x.action for x in episode.transitions[:i])
        (answer,) = experience.predict([Query(episode.task, past, state, t.action)])
        query = (episode.task.id, state, t.action)
        (near,) = experience.memory.nearest([query], experience.config.demos)
        out.append(ComparedStep(t, state, answer, tuple(near[::-1])))
        over = answer.error is not None or answer.outcome != "go"
        state = answer.next_state
    return out
