"""Stage: how far the experience model can be trusted, on unseen games.

The stage takes dev games and what every run needs to know; `full_scorecard` takes any
episodes and asks everything.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from dreamgym.envs import base, registry
from dreamgym.evaluation import scorecard_page
from dreamgym.pipeline import served
from dreamgym.pipeline.config import ServerConfig
from dreamgym.pipeline.pretrain import episodes_of, load_experience
from dreamgym.pipeline.run import Run, bar
from worldmodel import fidelity
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, lines, read_episodes
from worldmodel.experience.base import ExperienceModel, Query
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.fidelity.cases import ReplayResult


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
            experience, dev, limit, lambda done, _: show(done), env=run.config.env,
            open_loop_steps=limit,
        )  # fmt: skip
    scale = fidelity.fit_calibration(experience, dev, limit=limit)
    card["calibration"] = scale.json()
    gate = run.config.trust.gate
    least = fidelity.confidence_threshold(experience, dev, limit=limit, gate=gate)
    # The gate reads calibrated chances: so its threshold is one. 0 believes all.
    card["threshold"] = scale.confidence(least) if least else 0.0
    run.write_json("fidelity.json", card)
    scorecard_page.plot_states(card, run.path("plots/fidelity.png"))
    print(scorecard_page.summary(card))
    return {
        "transitions": card["transitions"],
        "real_transitions": card["real_transitions"],
        **{f"exact_{k}": v["mean"] for k, v in card["exact"].items()},
        "kept_all": card["kept"]["all"]["mean"],
        "copy_all": card["copy"]["all"]["mean"],
        "rewards_found": card["reward"]["recall"]["mean"],
        "reward_false_positives": card["reward"]["false_positives"]["mean"],
        "near_misses_rewarded": card["reward"]["near_misses"]["mean"],
        "ends_found": card["done"]["recall"]["mean"],
        "success_agreement": card["open_loop"]["outcomes"]["agree"]["mean"],
        **served.spent(experience),
    }


def by_family(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    limit: int,
    progress: Callable[[int, int], None],
    *,
    env: str = "",
    full: bool = False,
    open_loop_steps: int | None = None,
) -> dict[str, Any]:
    """Return the scorecard of all episodes, with those of each family in `families`.

    With the `env` they come from, near misses are tried there, and where its
    transitions are random every case is played a second time; `real_transitions` counts
    its steps. With `full` also the scorecards of each source (who acted) in `sources`,
    and in `ceiling` what the environment scores itself when it is played again.
    `open_loop_steps`: see fidelity.score; the parts are not dreamed whole again.
    """
    with contextlib.ExitStack() as stack:
        replays = None
        if env:
            real = stack.enter_context(contextlib.closing(registry.make(env)))
            replays = Replays(real)
        ask = functools.partial(
            fidelity.score, model, full=full, replay=replays,
            stochastic=replays is not None and replays.stochastic,
        )  # fmt: skip
        card = ask(
            episodes, limit=limit, progress=progress, open_loop_steps=open_loop_steps
        )
        parts = functools.partial(_parts, ask, episodes, max(limit // 2, 1))
        card["families"] = parts(lambda e: e.task.family)
        if full:
            card["sources"] = parts(lambda e: e.source)
        if replays is not None and full:
            card["ceiling"] = replays.exact(episodes)
        card["real_transitions"] = 0 if replays is None else replays.transitions
        card["failed_replays"] = 0 if replays is None else replays.failed
        return card


def _parts(
    score: Callable[..., dict[str, Any]],
    episodes: Sequence[Episode],
    limit: int,
    name_of: Callable[[Episode], str],
) -> dict[str, Any]:
    groups: dict[str, list[Episode]] = {}
    for e in episodes:
        groups.setdefault(name_of(e), []).append(e)
    return {
        name: score(group, limit=limit, open_loop_steps=0)
        for name, group in sorted(groups.items())
    }


class Replays:
    """A real environment in which recorded steps are played a second time.

    `transitions` counts the real steps that this takes, `failed` the replays in which
    the environment raised an exception.
    """

    def __init__(self, env: gymnasium.Env):
        self._env, self.transitions, self.failed = env, 0, 0
        self.stochastic = not base.is_deterministic(env)
        self._known: dict[tuple, ReplayResult | None] = {}

    def __call__(self, query: Query) -> ReplayResult | None:
        """Return what a query's action leads to, its past played again first.

        None where the environment comes to another state (its transitions are random)
        or cannot take the task: then it is not the one that the query is of. Each query
        is played once; a family's scorecard asks again what the whole one asked.
        """
        key = (query.task.id, *query[1:])
        if key not in self._known:
            self._known[key] = self._play(query)
        return self._known[key]

    def _step(self, action: str):
        self.transitions += 1
        return self._env.step(action)

    def _play(self, query: Query) -> ReplayResult | None:
        result = base.guarded(self._env, lambda: self._replay(query))
        if isinstance(result, base.EnvironmentFailure):
            self.failed += 1
            return None
        return result

    def _replay(self, query: Query) -> ReplayResult | None:
        _, state = base.begin(self._env, query.task)
        for action in query.past:
            text, _, terminated, truncated, _ = self._step(action)
            if terminated or truncated:
                return None
            state = lines(text)
        if state != query.state:
            return None
        text, reward, _, _, info = self._step(query.action)
        return ReplayResult(lines(text), float(reward) > 0 or bool(info.get("success")))

    def exact(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Return how often the environment comes to the recorded next state again.

        What an experience model can reach at best: below 1 where transitions are
        random. Episodes whose task it cannot take, or that begin elsewhere, are left
        out.
        """
        rate = Rate()
        for e in episodes:
            result = base.guarded(self._env, lambda e=e: self._compare(e, rate))
            self.failed += isinstance(result, base.EnvironmentFailure)
        return rate.json()

    def _compare(self, episode: Episode, rate: Rate) -> None:
        """Play an episode again; add to the rate which next states are the same."""
        _, state = base.begin(self._env, episode.task)
        if state != episode.transitions[0].state:
            return
        for t in episode.transitions:
            text, _, terminated, truncated, _ = self._step(t.action)
            rate.add(lines(text) == t.next_state)
            if terminated or truncated:
                return


ON_POLICY = ("warmstart", "dream")
"""Policies whose own test episodes a full scorecard asks about."""


def on_policy(run: Run, model: ExperienceModel, limit: int) -> dict[str, Any]:
    """Return the scorecard on the test episodes of each policy that played some.

    These are the states that the policies themselves reach, which decide what a policy
    learns in the dream and what it is worth outside.
    """
    cards = {}
    for name in ON_POLICY:
        path = run.path(f"test/{name}.jsonl")
        if path.is_file():
            played = [e for e in read_episodes(path) if e.success is not None]
            if played:
                cards[name] = fidelity.score(
                    model, played, limit=limit, open_loop_steps=limit
                )
    return cards


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


def full_scorecard(
    run: Run, path: Path | None, limit: int | None, server: ServerConfig | None = None
) -> tuple[dict, Path]:
    """Score a run's model on the episodes of a file, or on its dev games, in full.

    Without a `limit` it is the run's own, and all episodes are dreamed whole; with one
    as many as it holds. With a `server` it is asked in the place of the run's own
    model. On the dev games also the policies' own test episodes (`on_policy`). Writes
    scorecard/NAME.json, NAME.html and its plots into the run; returns the card and the
    page's path. Episodes of tasks that the model was fitted to are counted in
    `seen_tasks`: what is measured on those is not on unseen games.
    """
    experience = load_experience(run, server=server)
    train, dev = episodes_of(run)
    episodes = dev if path is None else read_episodes(path)
    known = {e.task.id for e in train}
    steps, limit = limit, run.config.evaluate.fidelity if limit is None else limit
    with served.asking(experience), bar(limit, "fidelity", "transition") as show:
        card = by_family(
            experience, episodes, limit, lambda done, _: show(done), full=True,
            env=run.config.env, open_loop_steps=steps,
        )  # fmt: skip
        if path is None:
            card["on_policy"] = on_policy(run, experience, limit)
    source = run.path("dev.jsonl") if path is None else path
    card["episodes"] = str(source.resolve())
    card["seen_tasks"] = len({e.task.id for e in episodes} & known)
    name = "dev" if path is None else path.name.removesuffix(".gz")
    name = name.removesuffix(".jsonl")
    if isinstance(experience, PromptedExperienceModel):
        name += "-server"
        card["usage"] = experience.client.usage._asdict()
    name = name if path is None else _free(run, name, card["episodes"])
    run.write_json(f"scorecard/{name}.json", card)
    page = run.path(f"scorecard/{name}.html")
    scorecard_page.write_page(card, page)
    return card, page
