"""Stage: how far the experience model can be trusted, on unseen games.

The stage takes dev games and what every run needs to know; `scored` takes any episodes
and asks everything.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from dreamgym.envs import base, registry
from dreamgym.evaluation import scorecard
from dreamgym.pipeline import served
from dreamgym.pipeline.config import ServerConfig
from dreamgym.pipeline.pretrain import episodes_of, load_experience
from dreamgym.pipeline.run import Run, bar
from worldmodel import fidelity
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, lines, read_episodes
from worldmodel.experience.base import ExperienceModel, Query
from worldmodel.experience.prompted import PromptedExperience


def stage(run: Run) -> dict[str, Any]:
    """Score the experience model on dev games; writes fidelity.json and its plot."""
    experience = load_experience(run, stage="fidelity")
    with served.asking(experience):
        return _measured(run, experience)


def _measured(run: Run, experience: ExperienceModel) -> dict[str, Any]:
    _, dev = episodes_of(run)
    served.check_trust(run, experience, dev)
    limit = run.config.evaluate.fidelity
    with bar(limit, "fidelity", "transition") as show:
        card = by_family(
            experience, dev, limit, lambda done, _: show(done), env=run.config.env
        )
    scale = fidelity.calibrated(experience, dev, limit=limit)
    card["calibration"] = scale.json()
    gate = run.config.trust.gate
    least = fidelity.threshold(experience, dev, limit=limit, gate=gate)
    # The gate reads calibrated chances: so its threshold is one. 0 believes all.
    card["threshold"] = scale.confidence(least) if least else 0.0
    run.write_json("fidelity.json", card)
    scorecard.plot_states(card, run.path("plots/fidelity.png"))
    return {
        "transitions": card["transitions"],
        **{f"exact_{k}": v["mean"] for k, v in card["exact"].items()},
        "copy_all": card["copy"]["all"]["mean"],
        "reward": card["reward"]["accuracy"]["mean"],
        "reward_false_positives": card["reward"]["false_positives"]["mean"],
        "near_misses_rewarded": card["reward"]["near_misses"]["mean"],
        "done": card["done"]["accuracy"]["mean"],
        **served.spent(experience),
    }


def by_family(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    limit: int,
    progress: Callable[[int, int], None],
    *,
    env: str = "",
    deep: bool = False,
    whole: int | None = None,
) -> dict[str, Any]:
    """The scorecard of all episodes, with those of each family in `families`.

    With the `env` they come from, near misses are tried there. With `deep` also those
    of each source (who acted) in `sources`, and what the environment played again
    scores itself in `ceiling`. `whole`: see fidelity.score.
    """
    with contextlib.ExitStack() as stack:
        replay = None
        if env:
            real = stack.enter_context(contextlib.closing(registry.make(env)))
            replay = _remembered(functools.partial(rewarded, real))
        ask = functools.partial(
            fidelity.score, model, deep=deep, replay=replay, whole=whole
        )
        card = _by_family(ask, episodes, limit, progress, deep)
        if env and deep:
            card["ceiling"] = played_again(real, episodes)
        return card


def played_again(env: gymnasium.Env, episodes: Sequence[Episode]) -> dict[str, Any]:
    """How often the environment itself comes to the recorded next state again.

    What an experience model can reach at best: below 1 where the environment draws
    lots. Episodes whose task it cannot take, or that begin elsewhere, are left out.
    """
    rate = Rate()
    for e in episodes:
        try:
            if base.begin(env, e.task)[1] != e.transitions[0].state:
                continue
            for t in e.transitions:
                seen, _, terminated, truncated, _ = env.step(t.action)
                rate.add(lines(seen) == t.next_state)
                if terminated or truncated:
                    break
        except Exception:  # an environment may raise anything
            continue
    return rate.json()


def _remembered(replay: Callable[[Query], bool | None]):
    """Each query once: a family's card asks again what the whole one asked."""
    known: dict[tuple, bool | None] = {}

    def once(query: Query) -> bool | None:
        key = (query.task.id, *query[1:])
        if key not in known:
            known[key] = replay(query)
        return known[key]

    return once


def rewarded(env: gymnasium.Env, query: Query) -> bool | None:
    """Whether the environment rewards a query's action, its past played again first.

    None where the environment comes to another state (it is not deterministic) or
    cannot take the task: then it is not the one that the query is of.
    """
    try:
        _, state = base.begin(env, query.task)
        for action in query.past:
            seen, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                return None
            state = lines(seen)
        if state != query.state:
            return None
        _, reward, _, _, info = env.step(query.action)
    except Exception:  # an environment may raise anything
        return None
    return float(reward) > 0 or bool(info.get("success"))


def _by_family(
    score: Callable[..., dict[str, Any]],
    episodes: Sequence[Episode],
    limit: int,
    progress: Callable[[int, int], None],
    deep: bool,
) -> dict[str, Any]:
    card = score(episodes, limit=limit, progress=progress)

    def parts(name_of: Callable[[Episode], str]) -> dict[str, Any]:
        groups: dict[str, list[Episode]] = {}
        for e in episodes:
            groups.setdefault(name_of(e), []).append(e)
        return {
            name: score(group, limit=max(limit // 2, 1))
            for name, group in sorted(groups.items())
        }

    card["families"] = parts(lambda e: e.task.family)
    if deep:
        card["sources"] = parts(lambda e: e.source)
    return card


def _free(run: Run, name: str, episodes: str) -> str:
    """The name of a card of a file, numbered where other episodes have it.

    The run's own have `dev` and `dev-server`.
    """
    for number in itertools.count(2 if name in ("dev", "dev-server") else 1):
        tried = name if number == 1 else f"{name}-{number}"
        path = f"scorecard/{tried}.json"
        if not run.path(path).is_file() or run.read_json(path)["episodes"] == episodes:
            return tried
    raise AssertionError


def scored(
    run: Run, path: Path | None, limit: int | None, server: ServerConfig | None = None
) -> tuple[dict, Path]:
    """The whole scorecard of a run on the episodes of a file, or on its dev games.

    Without a `limit` it is the run's own, and all episodes are dreamed whole; with one
    as many as it holds. With a `server` it is asked in the place of the run's own
    model. Writes
    scorecard/NAME.json, NAME.html and its plots into the run; returns the card and the
    page's path. Episodes of tasks that the model was fitted to are counted in
    `seen_tasks`: what is measured on those is not on unseen games.
    """
    experience = load_experience(run, server=server)
    train, dev = episodes_of(run)
    episodes = dev if path is None else read_episodes(path)
    known = {e.task.id for e in train}
    whole, limit = limit, run.config.evaluate.fidelity if limit is None else limit
    with served.asking(experience), bar(limit, "fidelity", "transition") as show:
        card = by_family(
            experience, episodes, limit, lambda done, _: show(done), deep=True,
            env=run.config.env, whole=whole,
        )  # fmt: skip
    source = run.path("dev.jsonl") if path is None else path
    card["episodes"] = str(source.resolve())
    card["seen_tasks"] = len({e.task.id for e in episodes} & known)
    name = "dev" if path is None else path.name.removesuffix(".gz")
    name = name.removesuffix(".jsonl")
    if isinstance(experience, PromptedExperience):
        name += "-server"
        card["usage"] = experience.client.usage._asdict()
    name = name if path is None else _free(run, name, card["episodes"])
    run.write_json(f"scorecard/{name}.json", card)
    page = run.path(f"scorecard/{name}.html")
    scorecard.write_page(card, page)
    return card, page
