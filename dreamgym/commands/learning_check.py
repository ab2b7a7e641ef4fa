"""The learning check: can an environment be learned at all?

a few tasks -> episodes of the expert and of random players -> an experience model and a
policy that are fitted to these very episodes -> both are asked about them again.

A small run learns little of any environment, sound or not. What a model was fitted to
at length it has to know by heart, however: if it does not, then what it reads does not
say what happens, or is more than it can read or write.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.build.episodes import imitated_episodes, read
from dreamgym.build.experience import load_experience
from dreamgym.build.models import load_policy
from dreamgym.build.real.environments import real_envs
from dreamgym.config.presets import preset
from dreamgym.envs.contract.findings import Finding
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.statistics import percent, wilson_of
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES
from worldmodel import fidelity
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode
from worldmodel.fidelity.hidden_state import hidden_state

TASKS, EPISODES = 12, 48
"""Train tasks, and episodes of them, that are learned by heart."""
TRANSITIONS = 200
"""Transitions of these that the model is asked about, at most."""
STATES_RIGHT, ENDS_RIGHT, WON = 0.8, 0.9, 0.85
"""Shares of next states, of rewards and ends, and of games: something is wrong where
the 95 % interval lies below (docs/LOG.md, 2026-11-26, has those of sound and of broken
environments)."""
CONTRADICTING = 0.05
"""Share of repeated steps with another result from which on something is hidden."""
ENOUGH_REPEATED = 20
"""Repeated steps below which this share says little."""
SETTINGS: dict[str, Any] = {
    "collect.train_tasks": TASKS,
    "collect.episodes": EPISODES,
    "collect.dev_tasks": 2,
    "collect.expert_weight": 0.3,
    "collect.noisy_weight": 0.1,
    "collect.random_weight": 0.6,
    "pretrain.fit.steps": 500,
    "pretrain.fit.eval_every": 500,
    "bc.fit.steps": 120,
    "bc.fit.eval_every": 120,
    "bc.min_wins": 0,  # a game is expected to be won where its win was imitated
    # Demonstrations would show the model what it is to know by heart.
    "experience.demonstrations": 0,
    "train.monitor.real_eval_every": 0,
}


Figure = Mapping[str, Any]
"""A share as {mean, count, effective} (worldmodel.data.rates.Rate)."""


class LearningReport(NamedTuple):
    """What was learned by heart, and what could not be.

    `states`, `rewards` and `ends` are the shares that the experience model has right of
    transitions that it was fitted to; `contradicting` is the share of repeated steps
    that had another result; `games` are those that the policy wins of the tasks whose
    episodes it imitates.
    """

    tasks: int
    real_steps: int
    seconds: float
    states: Figure
    rewards: Figure
    ends: Figure
    contradicting: Figure
    games: Figure
    warnings: tuple[Finding, ...]

    def text(self) -> str:
        """Return the report as text."""
        rows = (
            ("next states that the experience model has right", self.states),
            ("rewards", self.rewards),
            ("ends", self.ends),
            ("games that the policy wins of those that it imitates", self.games),
        )
        cost = f"{self.tasks} tasks, {self.real_steps} real steps, {self.seconds:.0f} s"
        lines = [f"  {what}: {_share(figure)}" for what, figure in rows]
        lines += [f"warning: {finding}" for finding in self.warnings]
        return "\n".join([f"learned by heart ({cost}):", *lines])

    def json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        warnings = [finding._asdict() for finding in self.warnings]
        return self._asdict() | {"warnings": warnings}


def _share(figure: Figure) -> str:
    if not figure["count"]:
        return "there were none"
    return f"{percent(figure['mean'])} of {figure['count']}"


def check_learning(name: str, max_steps: int = 0) -> LearningReport:
    """Fit an experience model and a policy to a few tasks; return what they know.

    It takes a minute or two, and real steps, which the report has.

    Args:
      name: of the environment, as for `registry.make`.
      max_steps: the step limit; 0 for the environment's.

    Raises:
      RunError: no episode was collected.
    """
    begin = time.monotonic()
    settings = SETTINGS | {"env.id": name, "env.max_episode_steps": max_steps}
    with (
        tempfile.TemporaryDirectory(prefix="dreamgym-check-") as folder,
        Run(Path(folder) / "run", preset("default", settings)) as run,
    ):
        run_stages(run, STAGES, ["pretrain"])
        collected, (train, _) = run.numbers("collect"), read(run)
        history = run.config.experience.history
        states, rewards, ends = _ask_model(run, train)
        games, steps = Rate().json(), 0
        if collected["successes"]:
            run_stages(run, STAGES, ["bc"])
            games, steps = _play(run)
    figures = {
        "states": states,
        "rewards": rewards,
        "ends": ends,
        "contradicting": hidden_state(train, history=history).json(),
        "games": games,
    }
    return LearningReport(
        tasks=collected["games"],
        real_steps=collected["real_transitions"] + steps,
        seconds=time.monotonic() - begin,
        **figures,
        warnings=tuple(find_warnings(**figures, lots=not collected["deterministic"])),
    )


def _ask_model(run: Run, episodes: Sequence[Episode]) -> tuple[Figure, Figure, Figure]:
    """Return the shares of next states, rewards and ends that the model has right."""
    model = load_experience(run, stage="fidelity")
    with progress_bar(TRANSITIONS, "ask the model", "transition") as show:
        scorecard = fidelity.score(
            model,
            episodes,
            limit=TRANSITIONS,
            progress=lambda done, _: show(done),
            open_loop_steps=0,
        )
    return (
        scorecard["exact"]["all"],
        scorecard["reward"]["recall"],
        scorecard["done"]["recall"],
    )


def _play(run: Run) -> tuple[Figure, int]:
    """Return the games that bc wins of those that it imitates, and the steps taken."""
    tasks = [episode.task for episode in imitated_episodes(run)]
    with contextlib.closing(real_envs(run, len(tasks))) as envs:
        played = evaluate.play(
            load_policy(run, "bc"), envs, tasks, seed=run.config.seed, temperature=0.0
        )
    scored = [t for t in played if t.error is None]
    won = sum(bool(t.episode.success) for t in scored)
    steps = sum(len(t.episode.transitions) for t in played)
    return Rate.of(won, len(scored)).json(), steps


def find_warnings(
    *,
    states: Figure,
    rewards: Figure,
    ends: Figure,
    contradicting: Figure,
    games: Figure,
    lots: bool,
) -> Iterator[Finding]:
    """Yield what was not learned by heart, with its likely cause.

    Where the environment draws lots, nobody can know the next state by heart, and who
    imitates a lucky episode may lose.
    """
    repeated = contradicting["count"] >= ENOUGH_REPEATED
    if repeated and not lots and _interval(contradicting)[0] > CONTRADICTING:
        yield Finding(
            "the state hides what decides the next one",
            f"{_share(contradicting)} repeated steps (equal task, last actions, state "
            "and action) had another result than most of their equals",
            "show it in the state; dreamgym.envs.wrappers remember what was shown "
            "(docs/how-to/environments.md)",
        )
    if not lots and _interval(states)[1] < STATES_RIGHT:
        yield Finding(
            "the experience model does not learn what it was shown",
            f"it has {_share(states)} next states right that it was fitted to",
            "look at the texts: is what an action does said by the state and the "
            "action, are lines short, does the same thing always have the same name? "
            "`dreamgym check` warns of what it can see",
        )
    for what, figure in (("rewards", rewards), ("ends", ends)):
        if not lots and _interval(figure)[1] < ENDS_RIGHT:
            yield Finding(
                f"the {what} do not follow from what the model reads",
                f"it has {_share(figure)} right that it was fitted to",
                "show in the state what they depend on",
            )
    if not games["count"]:
        yield Finding(
            "there is nothing to imitate",
            f"none of the {EPISODES} collected episodes was won",
            "give it an expert, easier train tasks, or valid_actions()",
        )
    elif not lots and _interval(games)[1] < WON:
        yield Finding(
            "a policy that imitates an episode does not win its task",
            f"it wins {_share(games)} games",
            "the episode's actions must follow from the task and the states: is the "
            "expert told something that no state shows?",
        )


def _interval(figure: Figure) -> tuple[float, float]:
    """Return the 95 % interval of a share; of no cases, all that is possible."""
    if not figure["count"]:
        return 0.0, 1.0
    return wilson_of(figure["mean"], figure["effective"])
