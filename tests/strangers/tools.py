"""Six environments behind JSON tools, or of one turn, as users write them."""

import random

from dreamgym import Task, ToolEnv, tool
from tests.strangers.common import split_of

NAMES = ("ada", "bob", "eve", "ida", "joe", "kim", "leo", "mia", "ned", "pat", "sam")
FRUIT = ("apple", "fig", "kiwi", "lime", "mango", "peach", "pear", "plum")
DAYS = ("mon", "tue", "wed", "thu", "fri")


def numbered(name: str, split: str, instruction) -> list[Task]:
    """400 seeds as tasks; instruction(rng) -> (text, options)."""
    tasks = {}
    for seed in range(400):
        text, options = instruction(random.Random(seed))
        if split_of(text + str(options)) == split:
            tasks[text + str(options)] = Task(
                id=f"{name}-{seed}",
                instruction=text,
                family=name,
                split=split,
                options={**options, "seed": seed},
            )
    return list(tasks.values())


class Store(ToolEnv):
    """A key-value store: read, add, write (as in docs/how-to/environments.md)."""

    max_episode_steps = 8

    def tasks(self, split):
        def task(rng):
            key, other = rng.sample(NAMES, 2)
            values = {key: rng.randrange(50), other: rng.randrange(50)}
            return f"copy {key} to {other}", {"from": key, "to": other, "data": values}

        return numbered("store", split, task)

    def start(self, task):
        self.options, self.data = task.options, dict(task.options["data"])
        return f"keys {' '.join(self.data)}"

    @tool
    def get(self, key: str) -> str:
        """Read a value."""
        return f"{key} is {self.data[key]}"

    @tool
    def put(self, key: str, value: int) -> str:
        """Write a value."""
        self.data[key] = value
        if self.data[self.options["to"]] == self.data[self.options["from"]]:
            self.finish(True)
        return "ok"

    def expert(self):
        key, other = self.options["from"], self.options["to"]
        value = self.options["data"][key]
        return [self.call("get", key=key), self.call("put", key=other, value=value)]


class Calendar(ToolEnv):
    """A week of one person: meetings are listed, moved and cancelled."""

    max_episode_steps = 8

    def tasks(self, split):
        def task(rng):
            people = rng.sample(NAMES, 3)
            busy = dict(zip(rng.sample(DAYS, 3), people, strict=True))
            day = rng.choice([d for d in DAYS if d not in busy])
            who = rng.choice(people)
            return f"move the meeting with {who} to {day}", {
                "busy": busy,
                "who": who,
                "day": day,
            }

        return numbered("calendar", split, task)

    def start(self, task):
        self.goal, self.busy = task.options, dict(task.options["busy"])
        return ""

    def observation(self):
        return "\n".join(f"{d} {self.busy.get(d, 'free')}" for d in DAYS)

    @tool
    def cancel(self, day: str) -> str:
        """Cancel the meeting of a day."""
        return f"cancelled {self.busy.pop(day)}"

    @tool
    def book(self, day: str, who: str) -> str:
        """Book a meeting on a free day."""
        if day not in DAYS or day in self.busy:
            raise ValueError(f"{day} is not free")
        self.busy[day] = who
        days = [d for d, name in self.busy.items() if name == self.goal["who"]]
        if days == [self.goal["day"]] and len(self.busy) == 3:
            self.finish(True)
        return "booked"

    def expert(self):
        who, day = self.goal["who"], self.goal["day"]
        old = next(d for d, name in self.busy.items() if name == who)
        return [self.call("cancel", day=old), self.call("book", day=day, who=who)]

    def valid_actions(self):
        free = [day for day in DAYS if day not in self.busy]
        people = self.goal["busy"].values()
        bookings = [self.call("book", day=d, who=w) for d in free for w in people]
        return [*(self.call("cancel", day=day) for day in self.busy), *bookings]


class Invoices(ToolEnv):
    """Invoices are opened and paid: every number and supplier is of its task alone.

    What a step writes can only be copied; nothing is revealed but amounts. Paying
    another invoice costs, and a wrong amount is refused.
    """

    max_episode_steps = 8

    def tasks(self, split):
        def task(rng):
            rows = [
                {
                    "id": f"N{rng.randrange(1000, 10000)}",
                    "of": f"{rng.choice(NAMES)}{rng.randrange(10, 100)}",
                    "amount": rng.randrange(100, 1000),
                }
                for _ in range(4)
            ]
            return f"pay the invoice of {rng.choice(rows)['of']}", {"rows": rows}

        return numbered("invoices", split, task)

    def start(self, task):
        self.rows = {row["id"]: dict(row) for row in task.options["rows"]}
        self.supplier, self.opened = task.instruction.split()[-1], set()
        return "welcome"

    def observation(self):
        return [
            f"invoice {name} of {row['of']} amount "
            f"{row['amount'] if name in self.opened else 'hidden'}"
            for name, row in self.rows.items()
        ]

    @tool
    def show(self, invoice: str) -> str:
        """Open an invoice, which shows its amount."""
        self.opened.add(self.rows[invoice]["id"])
        return f"opened {invoice}"

    @tool
    def pay(self, invoice: str, amount: int) -> str:
        """Pay an invoice, by its exact amount."""
        if self.rows[invoice]["amount"] != amount:
            raise ValueError("the amount differs")
        right = self.rows[invoice]["of"] == self.supplier
        self.finish(right, 99.0 if right else -51.0)
        return f"paid {invoice}"

    def expert(self):
        row = next(r for r in self.rows.values() if r["of"] == self.supplier)
        pay = self.call("pay", invoice=row["id"], amount=row["amount"])
        return [self.call("show", invoice=row["id"]), pay]


def _sum(rng):
    a, b = rng.randrange(100), rng.randrange(100)
    return f"what is {a} plus {b}", {"a": a, "b": b}


class Arithmetic(ToolEnv):
    """One question, one answer."""

    max_episode_steps = 1

    def tasks(self, split):
        return numbered("arithmetic", split, _sum)

    def start(self, task):
        self.right = task.options["a"] + task.options["b"]
        return f"{task.options['a']} + {task.options['b']}"

    def answer(self, text):
        self.finish(text.strip() == str(self.right))
        return "right" if self._success else f"wrong it is {self.right}"

    def expert(self):
        return [str(self.right)]

    def valid_actions(self):
        return [str(self.right + i) for i in (-10, -1, 0, 1, 10) if self.right + i >= 0]


class Calculator(Arithmetic):
    """The same with a tool that adds, and an answer at the end."""

    max_episode_steps = 4

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    def expert(self):
        a, b = self._task.options["a"], self._task.options["b"]
        return [self.call("add", a=a, b=b), str(self.right)]

    def valid_actions(self):
        return [*ToolEnv.valid_actions(self)[:20], str(self.right), str(self.right + 1)]


class Shop(ToolEnv):
    """A shelf of fruit: half of the tasks need the price list, half can be read.

    What is asked for has a label with its price, or it has none. A label and a look at
    the list say the same, so that a call too many costs a step and no success.
    """

    max_episode_steps = 4

    def tasks(self, split):
        def task(rng):
            prices = {fruit: rng.randrange(10, 100) for fruit in rng.sample(FRUIT, 3)}
            labels = rng.sample(list(prices), rng.choice([1, 2]))
            asked = rng.choice(list(prices))
            options = {"prices": prices, "labels": labels, "asked": asked}
            return f"price of {asked}", options

        return numbered("shop", split, task)

    def start(self, task):
        self.prices, self.labels = task.options["prices"], task.options["labels"]
        self.asked, self.looked_up = task.options["asked"], set()
        return "welcome"

    def observation(self):
        return [
            f"{fruit} costs {price if fruit in self.labels else 'unknown'}"
            for fruit, price in self.prices.items()
        ]

    @tool
    def price(self, fruit: str) -> str:
        """Look a price up."""
        message = f"{fruit} is {self.prices[fruit]}"
        self.looked_up.add(fruit)
        return message

    def answer(self, text):
        right = int(text) == self.prices[self.asked]
        self.finish(right)
        return "thanks" if right else "no"

    def expert(self):
        call = self.call("price", fruit=self.asked)
        answer = self.write_answer(str(self.prices[self.asked]))
        return [answer] if self.asked in self.labels else [call, answer]

    def valid_actions(self):
        calls = [self.call("price", fruit=fruit) for fruit in self.prices]
        seen = [f for f in self.prices if f in self.looked_up or f in self.labels]
        return [*calls, *(self.write_answer(str(self.prices[f])) for f in seen)]
