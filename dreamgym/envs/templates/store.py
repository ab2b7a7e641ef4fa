"""Store, an environment whose actions are calls of tools.

It runs as it is. Put your own in its place:

- `tasks`: the goals, apart for train, dev and test;
- `start`: sets an episode up and returns the first message;
- the methods under `@tool`: type hints are the schema, docstrings the description;
- `finish`, `add_reward`: say when it is over, and what is paid;
- `expert`: calls that win from the start (leave it out where you know none).
"""

from dreamgym import Task, ToolEnv, tool

NAMES = ("ada", "bob", "eve", "ida", "joe", "kim")


class Store(ToolEnv):
    def tasks(self, split: str) -> list[Task]:
        goals = [f"copy {a} to {b}" for a in NAMES for b in NAMES if a != b]
        part = {"train": goals[:20], "dev": goals[20:24], "test": goals[24:]}[split]
        return [Task(id=goal, instruction=goal, split=split) for goal in part]

    def start(self, task: Task) -> str:
        _, self.source, _, self.target = task.id.split()
        self.data = {name: 7 * i for i, name in enumerate(NAMES, start=1)}
        return f"keys {' '.join(self.data)}"

    @tool
    def get(self, key: str) -> str:
        """Read a value."""
        return f"{key} is {self.data[key]}"

    @tool
    def put(self, key: str, value: int) -> str:
        """Write a value."""
        self.data[key] = value
        if self.data[self.target] == self.data[self.source]:
            self.finish(True)
        return "ok"

    def expert(self) -> list[str]:
        get = self.call("get", key=self.source)
        return [get, self.call("put", key=self.target, value=self.data[self.source])]
