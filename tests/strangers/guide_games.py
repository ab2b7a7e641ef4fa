"""Four environments that were written from the guide on environments alone.

Their author had not seen the package or its own games: a booking agent with tools, a
laboratory, a game of dice and questions about a table.
"""

import copy
import itertools
import random

from dreamgym import Task, TextEnv, ToolEnv, tool

PLACES = ("Rome", "Oslo", "Lima", "Cairo", "Porto", "Kyoto", "Quito", "Malta")
TRIPS = {"train": range(240), "dev": range(1000, 1060), "test": range(2000, 2120)}
SUBSTANCES = ("acid", "salt", "water", "resin", "ether", "iron")
RECIPES = ("heat", "mix", "brew")
DICE = {"train": range(240), "dev": range(240, 310), "test": range(310, 420)}
PEOPLE = ("ada", "bob", "eve", "ida", "joe", "kim", "leo", "mia", "ned", "pia")
THINGS = ("apples", "books", "coins", "dogs")
TABLES = {"train": range(240), "dev": range(1000, 1060), "test": range(2000, 2120)}


def trips_of(rng: random.Random, places: list[str], limit: int) -> dict[str, dict]:
    """Return seven trips, three of them to the first place, one within the limit."""
    ids = [f"T{n}" for n in rng.sample(range(10, 1000), 7)]
    dear = [limit + rng.randrange(1, 200) for _ in range(2)]
    rows = [(places[0], price) for price in (limit - rng.randrange(0, 100), *dear)]
    rows += [(rng.choice(places[1:]), rng.randrange(100, 900)) for _ in range(4)]
    rng.shuffle(rows)
    return {
        name: {"to": to, "price": price}
        for name, (to, price) in zip(ids, rows, strict=True)
    }


def booking(number: int, split: str) -> Task:
    """Return the task of a number."""
    rng = random.Random(number)
    places, limit = rng.sample(PLACES, 3), rng.randrange(200, 800, 10)
    trips = trips_of(rng, places, limit)
    return Task(
        id=f"booking-{number}",
        split=split,
        instruction=f"book a trip to {places[0]} for at most {limit} euros",
        options={"trips": trips, "to": places[0], "limit": limit},
    )


class Booking(ToolEnv):
    """Every call costs 1, a wrong booking 50 more; the right booking pays 100."""

    max_episode_steps = 10

    def tasks(self, split: str) -> list[Task]:
        return [booking(number, split) for number in TRIPS[split]]

    def start(self, task: Task) -> str:
        keys = ("trips", "to", "limit")
        self.trips, self.to, self.limit = (task.options[k] for k in keys)
        self.known, self.places = {}, sorted({t["to"] for t in self.trips.values()})
        return "trips go to " + " ".join(self.places)

    def observation(self) -> list[str]:
        return [f"trip {name} {text}" for name, text in self.known.items()]

    @tool
    def search(self, destination: str) -> str:
        """List the trips to a destination."""
        self.add_reward(-1)
        names = [name for name, trip in self.trips.items() if trip["to"] == destination]
        self.known = {name: f"to {destination}" for name in names} | self.known
        return f"found {len(names)} trips"

    @tool
    def details(self, trip_id: str) -> str:
        """Read the destination and the price of a trip."""
        self.add_reward(-1)
        self.known[trip_id] = "to {to} for {price} euros".format(**self.trips[trip_id])
        return f"read {trip_id}"

    @tool
    def book(self, trip_id: str) -> str:
        """Book a trip, which ends the task."""
        to, price = (self.trips[trip_id][k] for k in ("to", "price"))
        right = to == self.to and price <= self.limit
        self.finish(right, reward=99 if right else -51)
        return f"booked {trip_id}"

    def expert(self) -> list[str]:
        ids = [name for name, trip in self.trips.items() if trip["to"] == self.to]
        prices = [self.trips[name]["price"] for name in ids]
        right = next(i for i, price in enumerate(prices) if price <= self.limit)
        plan = [self.call("details", trip_id=name) for name in ids[: right + 1]]
        booking = self.call("book", trip_id=ids[right])
        return [self.call("search", destination=self.to), *plan, booking]

    def valid_actions(self) -> list[str]:
        tools = ("details", "book")
        calls = [self.call(t, trip_id=n) for n in self.known for t in tools]
        return [self.call("search", destination=p) for p in self.places] + calls


def plan_of(recipe: str, x: str, y: str, z: str, hot: int) -> list[str]:
    """Return the actions of a recipe, the last step of which may need heat."""
    last, heated = [f"add {y}"] * hot, ["heat flask"] * hot
    plans = {
        "heat": [f"heat {x}", f"heat {y}", f"add {x}", f"add {z}", *last],
        "mix": [f"add {x}", f"add {y}", f"add {z}", *heated],
        "brew": [f"heat {x}", f"add {x}", f"add {y}", *heated, f"add {z}"],
    }
    return plans[recipe]


class Lab(TextEnv):
    """`heat X` and `add X` change the flask and the shelf; `hand in` ends it."""

    max_episode_steps = 10

    def tasks(self, split: str) -> list[Task]:
        orders = itertools.permutations(SUBSTANCES, 3)
        jobs = [(f, *p, hot) for p in orders for f in RECIPES for hot in (0, 1)]
        random.Random(7).shuffle(jobs)
        part = {"train": jobs[:220], "dev": jobs[220:285], "test": jobs[285:]}[split]
        return [self.task(job, split) for job in part]

    def task(self, job: tuple, split: str) -> Task:
        recipe, plan = job[0], plan_of(*job)
        goal = "do in this order: " + ", ".join(plan) + ", and hand it in"
        name, options = "-".join(map(str, job)), {"plan": plan}
        return Task(
            id=name, instruction=goal, family=recipe, split=split, options=options
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.steps, self.running, self.log = 0, True, []
        self.plan = task.options["plan"]
        return self.text("the flask is empty"), {}

    def text(self, message: str) -> str:
        hot = [a.split()[1] for a in self.log if a.startswith("heat")]
        flask = [a.split()[1] for a in self.log if a.startswith("add")]
        heat = {n: "hot" if n in hot else "cold" for n in (*SUBSTANCES, "flask")}
        lines = [f"{n}: {heat[n]}" for n in SUBSTANCES if n not in flask]
        lines.append(f"flask: {heat['flask']}, {' '.join(flask) or 'nothing'}")
        return "\n".join([*lines, f"done: {len(self.log)} steps", f"said: {message}"])

    def step(self, action: str):
        if not self.running:
            raise RuntimeError("call reset() first")
        self.steps += 1
        invalid, over = action not in self.valid_actions(), action == "hand in"
        won = over and self.log == self.plan
        if not (invalid or over):
            self.log.append(action)
        truncated = not over and self.steps >= self.max_episode_steps
        self.running = not (over or truncated)
        text = self.text("that is not possible" if invalid else f"{action} ok")
        info = {"success": won, "invalid": invalid}
        return text, -0.1 + float(won), over, truncated, info

    def expert(self) -> list[str]:
        return [*self.plan, "hand in"]

    def valid_actions(self) -> list[str]:
        used = {a.split()[1] for a in self.log if a.startswith("add")}
        free = [n for n in SUBSTANCES if n not in used]
        hot = [a.split()[1] for a in self.log if a.startswith("heat")]
        heat = [f"heat {n}" for n in [*free, "flask"] if n not in hot]
        return [*heat, *(f"add {n}" for n in free), "hand in"]


class NumberGame(TextEnv):
    """`roll` adds a die to the sum, `stop` ends; a sum from `low` to `high` wins."""

    deterministic = False
    max_episode_steps = 12

    def tasks(self, split: str) -> list[Task]:
        return [self.task(n, split) for n in DICE[split]]

    def task(self, n: int, split: str) -> Task:
        low, width, start = 8 + n % 12, 5 + n // 12 % 3, n // 36
        goal = f"stop with a sum from {low} to {low + width}"
        options = {"low": low, "high": low + width, "start": start}
        return Task(id=f"dice-{n}", instruction=goal, split=split, options=options)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        keys = ("low", "high", "start")
        self.low, self.high, self.sum = (task.options[k] for k in keys)
        self.steps, self.rolls, self.running = 0, 0, True
        return self.text("no roll yet"), {}

    def text(self, message: str) -> str:
        return f"rolls {self.rolls}\nsum {self.sum}\nsaid {message}"

    def step(self, action: str):
        if not self.running:
            raise RuntimeError("call reset() first")
        message, won, over = "that is not possible", False, False
        if action == "roll":
            die = int(self.np_random.integers(1, 7))
            self.rolls, self.sum = self.rolls + 1, self.sum + die
            over, message = self.sum > self.high, f"the die shows {die}"
        elif action == "stop":
            won, over = self.low <= self.sum <= self.high, True
            message = "stopped"
        self.steps += 1
        truncated = not over and self.steps >= self.max_episode_steps
        self.running = not (over or truncated)
        invalid, reveals = action not in ("roll", "stop"), action == "roll"
        info = {"success": won, "invalid": invalid, "reveals": reveals}
        return self.text(message), float(won), over, truncated, info

    def expert(self) -> list[str]:
        dice, total, plan = copy.deepcopy(self.np_random), self.sum, []
        while total < self.low:
            total += int(dice.integers(1, 7))
            plan.append("roll")
        return [*plan, "stop"] if total <= self.high else []

    def valid_actions(self) -> list[str]:
        return ["roll", "stop"]


class Questions(ToolEnv):
    """The state is a table; the action is the name that answers the question."""

    max_episode_steps = 1

    def tasks(self, split: str) -> list[Task]:
        return [self.task(number, split) for number in TABLES[split]]

    def task(self, number: int, split: str) -> Task:
        rng = random.Random(number)
        names, things = rng.sample(PEOPLE, 4), rng.sample(THINGS, 2)
        columns = {thing: rng.sample(range(1, 30), 4) for thing in things}
        table = {n: {t: columns[t][i] for t in things} for i, n in enumerate(names)}
        asked = rng.choice(things)
        return Task(
            id=f"question-{number}",
            instruction=f"who has the most {asked}? answer with the name",
            family=asked,
            split=split,
            options={"table": table, "asked": asked},
        )

    def start(self, task: Task) -> str:
        self.table, asked = task.options["table"], task.options["asked"]
        self.right = max(self.table, key=lambda name: self.table[name][asked])
        rows = {n: [f"{v} {t}" for t, v in r.items()] for n, r in self.table.items()}
        return "\n".join(f"{name}: {', '.join(row)}" for name, row in rows.items())

    def answer(self, text: str) -> str:
        self.finish(text.strip() == self.right)
        return f"it is {self.right}"

    def expert(self) -> list[str]:
        return [self.right]

    def valid_actions(self) -> list[str]:
        return list(self.table)
