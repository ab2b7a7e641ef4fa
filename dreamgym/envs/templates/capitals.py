"""Capitals, an environment of one question and one answer.

It runs as it is. Put your own in its place:

- `tasks`: the questions, apart for train, dev and test;
- `start`: returns the question;
- `answer`: judges the text of the agent;
- `expert`: the right answer (leave it out where you know none);
- `valid_actions`: answers to choose from (leave it out where any text may be right).
"""

from dreamgym import Task, ToolEnv

TRAIN = {"France": "Paris", "Italy": "Rome", "Kenya": "Nairobi", "Japan": "Tokyo"}
DEV = {"Peru": "Lima", "Chad": "Ndjamena", "Oman": "Muscat", "Cuba": "Havana"}
TEST = {"Spain": "Madrid", "Ghana": "Accra", "Nepal": "Kathmandu", "Fiji": "Suva"}
SPLITS = {"train": TRAIN, "dev": DEV, "test": TEST}
CAPITALS = TRAIN | DEV | TEST


class Capitals(ToolEnv):
    max_episode_steps = 1

    def tasks(self, split: str) -> list[Task]:
        goal = "name the capital"
        return [Task(id=name, instruction=goal, split=split) for name in SPLITS[split]]

    def start(self, task: Task) -> str:
        self.right = CAPITALS[task.id]
        return task.id

    def answer(self, text: str) -> str:
        self.finish(text.strip() == self.right)
        return f"it is {self.right}"

    def expert(self) -> list[str]:
        return [self.right]

    def valid_actions(self) -> list[str]:
        return list(CAPITALS.values())
